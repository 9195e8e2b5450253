//! Names, ids and payloads as an attacker would choose them: no command on them reaches a key of another queue or a task of
//! another partition, and what went in comes out, byte for byte.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::select;
use vtrr_queue::{
    Body, Cause, Command, Delivery, Outcome, Queue, Released, Settled, Settlement, Tagging, Task, TaskId, Whereabouts,
};

use crate::busy::{id, owner};
use crate::clocked::Clocked;
use crate::pair::LEASE;
use crate::server::Kind;

const NOW_US: u64 = 1_800_000_000_000_000;
const HOUR: Duration = Duration::from_secs(3_600);

/// What keys, records, patterns, JSON, Lua, the protocol or a glob could trip over.
const PIECES: [&str; 40] = [
    ":",
    "%",
    "%3A",
    "%25",
    "%z",
    "%f[a]",
    "lane:=",
    ":lane:=",
    ":paid:=",
    ":queue",
    ":meta",
    ":wake",
    ":sweeper",
    "vtrr:",
    "*",
    "?",
    "[a-z]",
    "[^",
    "{",
    "}",
    "{}",
    "\"",
    "\\",
    "\\u0000",
    " ",
    "\n",
    "\r\n$1\r\n",
    "\u{1}",
    "\u{7f}",
    "\u{ff}",
    "😀",
    "\u{10ffff}",
    "\",\"weight\":9,\"at\":1,\"serial\":1,",
    "]]",
    "--",
    "~",
    "+",
    "-",
    "a",
    "$(id)`id`",
];

fn name() -> impl Strategy<Value = String> {
    prop::collection::vec(select(&PIECES[..]), 1..5).prop_map(|pieces| pieces.concat())
}

/// Every key of the server, with what stands in it.
fn keys(server: &mut Clocked) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let names: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(&mut server.connection).unwrap();
    let copy = |server: &mut Clocked, key: &[u8]| redis::cmd("DUMP").arg(key).query(&mut server.connection).unwrap();
    names.into_iter().filter(|key| key != b"clock").map(|key| (key.clone(), copy(server, &key))).collect()
}

/// Whether a key is this queue's by the rule of docs/protocol.md, section 4, spelled here once more.
fn is_of(queue: &str, key: &[u8]) -> bool {
    const KEYS: &str = "queue current_virtual_time partition_virtual_time task waiting head idle lease held owner running \
                        delayed dead error share meta request answer";
    let Some(rest) = key.strip_prefix(format!("vtrr:{queue}:").as_bytes()) else { return false };
    let rest = std::str::from_utf8(rest).unwrap();
    let lane = rest.strip_prefix("lane:=").or_else(|| rest.strip_prefix("paid:="));
    lane.map_or_else(|| KEYS.split_whitespace().any(|key| key == rest), |partition| !partition.contains(':'))
}

/// All bytes but those that would end the string, in a body that is one for us and for nobody else.
fn body(text: &str) -> Body {
    let text = serde_json::Value::from(text).to_string();
    let bytes = (0..=255).filter(|byte| !b"\"\\".contains(byte));
    Body::from_json(
        [b"{\"task_name\":", text.as_bytes(), b",\"args\":[\"", &bytes.collect::<Vec<u8>>()[..], b"\"]}"].concat(),
    )
    .unwrap()
}

fn task(text: &str) -> Task {
    Task::with_body(body(text)).id(id(text))
}

/// Names for `n` tasks of a partition, which no other partition here can have.
fn ids(partition: &str, n: usize) -> Vec<String> {
    (0..n).map(|n| format!("{partition}\u{2} {n}~{partition}")).collect()
}

/// A queue in use: tasks in each of the partitions, of which one is leased, one delayed and one dead.
fn fill(server: &mut Clocked, queue: &Queue, partitions: &[String]) {
    for partition in partitions {
        server.run(queue.set_share(partition, 2.0).unwrap()).unwrap();
        let tasks = ids(partition, 7).into_iter().map(|id| task(&id));
        server.run(queue.enqueue(partition, tasks).unwrap().request(partition.as_str()).unwrap()).unwrap();
    }
    let found = server.run(queue.dequeue(3).unwrap().lease(LEASE).unwrap().owner(owner("bystander"), Vec::new())).unwrap();
    let [_, fails, waits] = &found.deliveries[..] else { panic!("{found:?}") };
    let settle =
        vec![Settlement::fail(fails, Cause::Failed, "no"), Settlement::release(waits, HOUR, Released::Unrun).unwrap()];
    server.run(queue.settle(settle).unwrap()).unwrap();
}

/// One attack: a queue and a partition of the attacker's, on a server where others are.
struct Attack<'a> {
    server: &'a mut Clocked,
    queue: Queue,
    partition: String,
    owner: String,
}

impl Attack<'_> {
    fn run<C: Command>(&mut self, command: C) -> C::Reply {
        self.server.run(command).unwrap()
    }

    /// What came out is what went in.
    fn check(&self, it: &Delivery) {
        assert_eq!(it.payload.partition().unwrap().as_str(), self.partition);
        assert_eq!(it.payload.body(), body(it.id.as_str()).as_bytes());
    }

    /// The next tasks of the attacker's partition; what others have at the front of the same queue goes back.
    fn take(&mut self, n: usize) -> Vec<Delivery> {
        let command = self.queue.dequeue(1_000).unwrap().lease(LEASE).unwrap();
        let found = self.run(command.owner(owner(&self.owner), Vec::new())).deliveries;
        let (ours, others): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|it| it.payload.partition().unwrap().as_str() == self.partition);
        let back =
            ours.iter().skip(n).chain(&others).map(|it| Settlement::release(it, Duration::ZERO, Released::Unrun).unwrap());
        let back: Vec<_> = back.collect();
        if !back.is_empty() {
            self.run(self.queue.settle(back).unwrap());
        }
        let taken: Vec<_> = ours.into_iter().take(n).collect();
        for it in &taken {
            self.check(it);
        }
        assert_eq!(taken.len(), n);
        taken
    }

    fn settle(&mut self, it: &Delivery, outcome: Outcome) {
        let settlement = Settlement::new(it.id.clone(), it.token.clone(), outcome).unwrap();
        assert_eq!(self.run(self.queue.settle(vec![settlement]).unwrap()), [Settled::Done]);
    }

    /// Every command there is.
    fn play(&mut self) {
        let (queue, partition) = (self.queue.clone(), self.partition.clone());
        let names = ids(&partition, 12);
        let all = || names.iter().map(|name| TaskId::new(name.as_str()).unwrap());
        for twice in [false, true] {
            let tasks = names.iter().map(|name| task(name).weight(3).unwrap());
            let command = queue.enqueue(&partition, tasks).unwrap();
            let enqueued = self.run(command.request(format!("{partition}{twice}")).unwrap());
            assert_eq!((enqueued.ids, enqueued.duplicates.len()), (all().collect(), if twice { 12 } else { 0 }));
        }
        self.run(queue.set_share(&partition, 5.5).unwrap());
        let rows = self.run(queue.partitions());
        let row = rows.iter().find(|row| row.partition.as_str() == partition).unwrap();
        assert_eq!(row.queued, 12);
        self.run(queue.stats());
        let peeked = self.run(queue.peek(1_000).unwrap());
        assert_eq!(peeked.iter().filter(|it| it.payload.partition().unwrap().as_str() == partition).count(), 12);
        for id in all() {
            let found = self.run(queue.find(id.clone())).unwrap();
            assert!(matches!(found.whereabouts, Whereabouts::Waiting | Whereabouts::Tagged { .. }));
            assert_eq!(found.payload.body(), body(id.as_str()).as_bytes());
        }

        let taken = self.take(6);
        let command = queue.extend(&taken, LEASE).unwrap();
        assert_eq!(self.run(command), [Settled::Done; 6]);
        self.run(queue.extend_owner(owner(&self.owner), LEASE).unwrap());
        let again = Outcome::Retry { delay_ms: 0, body: Some(body(taken[1].id.as_str())) };
        self.settle(&taken[0], Outcome::Ack);
        self.settle(&taken[1], again);
        self.settle(&taken[2], Outcome::Release { delay_ms: 0, how: Released::lost(partition.clone()) });
        self.settle(&taken[3], Outcome::Release { delay_ms: 9_000, how: Released::Unrun });
        self.settle(&taken[4], Outcome::Fail { cause: Cause::Failed, error: partition.clone() });
        let parked = &taken[3];
        let claim = queue.claim(parked.id.clone(), parked.token.clone(), owner(&self.owner), LEASE).unwrap();
        let claimed = self.run(claim).unwrap();
        self.check(&claimed);
        let letters = self.run(queue.dead_letters(0, 1_000).unwrap());
        let letter = letters.iter().find(|it| it.id == taken[4].id).unwrap();
        assert_eq!((&letter.error, letter.payload.body()), (&partition, body(taken[4].id.as_str()).as_bytes().to_vec()));
        assert_eq!(self.run(queue.redrive([taken[4].id.clone()]).unwrap()), [true]);
        self.run(queue.sweep());
        // What it still holds, the claimed one and the last, in each way that ends all of it.
        self.run(queue.release_owner(owner(&self.owner), Released::Unrun));
        for end in [
            queue.release_owner(owner(&self.owner), Released::lost(&partition)),
            queue.fail_owner(owner(&self.owner), Cause::Failed, &partition),
        ] {
            self.take(2);
            self.run(end);
        }
        let dead: Vec<_> = self.run(queue.dead_letters(0, 1_000).unwrap());
        let dead: Vec<_> = dead.into_iter().filter(|it| it.error == partition).map(|it| it.id).collect();
        assert_eq!(self.run(queue.discard(dead.clone()).unwrap()), [true, true]);
        // Of twelve, one is done and two were dead.
        assert_eq!(self.run(queue.find(dead[0].clone())), None);
        let cancelled = self.run(queue.cancel(all().take(4)).unwrap());
        assert_eq!(cancelled.len(), 4);
        self.run(queue.purge(&partition).unwrap());
        self.run(queue.clear_share(&partition).unwrap());
        for name in all() {
            assert_eq!(self.run(queue.find(name)), None);
        }
    }
}

/// What stands in a queue, but for what an attack on another partition of it may move: times, tags and counts.
fn tasks_of(server: &mut Clocked, queue: &Queue, partitions: &[String]) -> Vec<(String, String, Vec<u8>)> {
    let mut found = Vec::new();
    for id in partitions.iter().flat_map(|partition| ids(partition, 7)) {
        let it = server.run(queue.find(TaskId::new(&*id).unwrap())).unwrap().unwrap();
        let place = match it.whereabouts {
            Whereabouts::Waiting | Whereabouts::Tagged { .. } => "queued",
            Whereabouts::Leased { .. } => "leased",
            Whereabouts::Delayed { .. } => "delayed",
            _ => "dead",
        };
        found.push((id, place.to_owned(), it.payload.as_bytes().to_vec()));
    }
    found
}

/// Queues and partitions whose names are the attacker's, longer, shorter or put together another way.
fn attack(server: &mut Clocked, tagging: Tagging, name: &str, partition: &str) {
    redis::cmd("FLUSHALL").exec(&mut server.connection).unwrap();
    server.set_clock(NOW_US);
    let make = |name: &str| Queue::new(name).unwrap().tagging(tagging);
    let shorter: String = name.chars().skip(1).chain("q".chars()).collect();
    let mut queues = vec![
        format!("{name}:{partition}"),
        format!("{name}:lane"),
        format!("{name}:lane:={partition}"),
        format!("{name}:paid:={partition}:queue"),
        format!("{name}*"),
        format!("vtrr:{name}"),
        shorter,
        format!("{name}:"),
        "*".to_owned(),
    ];
    queues.retain(|it| it != name);
    queues.sort();
    queues.dedup();
    let mut partitions = vec![
        format!("{partition}:"),
        format!("{partition}%3A"),
        format!("{partition} "),
        format!("={partition}"),
        partition.replace('%', "%25").replace(':', "%3A"),
        partition.replace(['*', '?'], "x"),
        "*".to_owned(),
    ];
    partitions.retain(|it| it != partition);
    partitions.sort();
    partitions.dedup();
    for queue in &queues {
        fill(server, &make(queue), &[partition.to_owned(), partitions[0].clone()]);
    }
    let before = keys(server);
    fill(server, &make(name), &partitions);
    let beside = tasks_of(server, &make(name), &partitions);
    let end = (server.run(make(name).stats()).unwrap().queued, partition.replace(char::is_whitespace, "_"));
    let mut attack = Attack { server, queue: make(name), partition: partition.to_owned(), owner: format!("w{}", end.1) };
    attack.play();

    // In the same queue: all that others have is where it was, and comes out.
    assert_eq!(tasks_of(server, &make(name), &partitions), beside);
    let stats = server.run(make(name).stats()).unwrap();
    assert_eq!((stats.queued, stats.leased, stats.delayed, stats.dead), (end.0, 1, 1, 1));
    server.run(make(name).purge_all()).unwrap();
    server.run(make(name).flatten()).unwrap();
    server.run(make(name).unflatten()).unwrap();

    // In others: nothing has moved.
    let after = keys(server);
    for key in after.keys() {
        let owners: Vec<_> = queues.iter().map(String::as_str).chain([name]).filter(|queue| is_of(queue, key)).collect();
        assert_eq!(owners.len(), 1, "{:?} belongs to {owners:?}", String::from_utf8_lossy(key));
    }
    let of_others: BTreeMap<_, _> = after.into_iter().filter(|(key, _)| !is_of(name, key)).collect();
    assert!(of_others == before, "{name:?}, {partition:?}: keys of another queue have changed");
}

#[test]
fn no_name_reaches_another_queue_or_partition() {
    for kind in Kind::ALL {
        let mut server = Clocked::new(kind);
        for tagging in [Tagging::Head, Tagging::All] {
            for piece in PIECES {
                let name = if kind == Kind::Redis { "files" } else { piece };
                attack(&mut server, tagging, name, piece);
            }
        }
    }
}

#[test]
fn no_name_put_together_of_such_pieces_does() {
    let mut runner = proptest::test_runner::TestRunner::new(crate::fairness::cases(60));
    let server = std::cell::RefCell::new(Clocked::new(Kind::Redis));
    let strategy = (name(), name(), prop::bool::ANY);
    let tested = runner.run(&strategy, |(name, partition, all)| {
        let tagging = if all { Tagging::All } else { Tagging::Head };
        attack(&mut server.borrow_mut(), tagging, &name, &partition);
        Ok(())
    });
    tested.unwrap();
}
