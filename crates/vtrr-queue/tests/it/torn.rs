//! A server that dies while it writes its append-only file leaves a part of a transaction in it. Redis and Valkey drop that
//! part from their memory when they load the file, but not always from the file: where it ends in the middle of a command,
//! they cut off that command alone. What they write next is appended to it, so the load after the next crash runs the part
//! after all, right before what came then. Whatever the part, every task must be there once both have run, and no key may
//! stay.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use vtrr_queue::{Call, Cancelled, Cause, Command as _, Queue, Redis, Released, Runner as _, Settled, Settlement};

use crate::busy::{Busy, Mode, enqueue, id, owner};
use crate::clocked::Clocked;
use crate::resp;
use crate::server::{Kind, Server};

const NAME: &str = "q";
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);
const START: u64 = 1_700_000_000_000_000;

/// A server with an append-only file, and what is in it.
struct Torn {
    server: Server,
    clocked: Clocked,
    /// What made the queue as it is before each case.
    made: Vec<u8>,
    /// How many tasks may run twice.
    twice: usize,
    faults: Vec<String>,
}

/// What became of the tasks: how often each was delivered at the end, and which are dead letters.
#[derive(Debug, Default)]
struct Fate {
    delivered: BTreeMap<String, u32>,
    dead: BTreeSet<String>,
}

impl Fate {
    fn ids(&self) -> BTreeSet<&str> {
        self.delivered.keys().chain(&self.dead).map(String::as_str).collect()
    }
}

impl Torn {
    fn new() -> Self {
        let server = Server::options(Kind::Redis).arg("--appendonly", "yes").arg("--appendfsync", "no").start();
        let clocked = Clocked::at(&server.url());
        Self { server, clocked, made: Vec::new(), twice: 2, faults: Vec::new() }
    }

    /// What `act` makes the server append.
    fn appended(&mut self, act: impl FnOnce(&mut Self)) -> Vec<u8> {
        let before = self.server.appended().len();
        act(self);
        self.server.appended().split_off(before)
    }

    /// Fills the queue. However long the test takes, nothing of that expires: the server would write it as a transaction of its
    /// own.
    fn make(&mut self, act: impl FnOnce(&mut Self)) {
        let made = self.appended(act);
        let lasting = |command: &&[u8]| !String::from_utf8_lossy(command).contains("PEXPIREAT");
        self.made = commands(&made).into_iter().filter(lasting).collect::<Vec<_>>().concat();
    }

    /// Runs what was appended once.
    fn replay(&self, parts: &[&[u8]]) {
        let mut socket = UnixStream::connect(self.server.socket()).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        for part in parts {
            socket.write_all(part).unwrap();
        }
        let end = "the end of the replay";
        socket.write_all(&resp::command(&["ECHO", end])).unwrap();
        let (mut replies, mut chunk) = (Vec::new(), vec![0; 65_536]);
        while !replies.ends_with(format!("{end}\r\n").as_bytes()) {
            let length = socket.read(&mut chunk).unwrap();
            assert_ne!(length, 0);
            replies.extend_from_slice(&chunk[..length]);
        }
        let replies = String::from_utf8_lossy(&replies);
        assert!(!replies.split("\r\n").any(|line| line.starts_with('-')), "{replies}");
    }

    /// The queue as it was before, then these.
    fn restore(&self, parts: &[&[u8]]) {
        let flush = resp::command(&["FLUSHALL"]);
        let parts: Vec<_> = [&*flush, &self.made].into_iter().chain(parts.iter().copied()).collect();
        self.replay(&parts);
    }

    /// Hours later, one worker does all that is left.
    fn drain(&mut self, now_us: u64, title: &str) -> Fate {
        let (queue, mut fate, mut idle_rounds) = (Queue::new(NAME).unwrap(), Fate::default(), 0);
        for round in 2..60 {
            self.clocked.set_clock(now_us + round * 3_600_000_000);
            let swept = self.clocked.run(queue.sweep()).unwrap();
            let command = queue.dequeue(100).unwrap().lease(HOUR).unwrap().owner(owner("last"), Vec::new());
            let dequeued = self.clocked.run(command).unwrap();
            for delivery in &dequeued.deliveries {
                self.clocked.run(queue.ack(delivery).unwrap()).unwrap();
            }
            let idle = dequeued.deliveries.is_empty() && !swept.more;
            for delivery in dequeued.deliveries {
                let id = delivery.id.as_str().split('~').next().unwrap().to_owned();
                *fate.delivered.entry(id).or_default() += 1;
            }
            idle_rounds = if idle { idle_rounds + 1 } else { 0 };
            if idle_rounds == 8 {
                break;
            }
        }
        let dead = self.clocked.run(queue.dead_letters(0, 100).unwrap()).unwrap();
        fate.dead.extend(dead.iter().map(|letter| letter.id.to_string()));
        for letter in dead {
            self.clocked.run(queue.discard([letter.id]).unwrap()).unwrap();
        }
        for _ in 0..2 {
            self.clocked.run(queue.sweep()).unwrap();
        }
        let mut left = self.clocked.keys(NAME);
        left.retain(|key, _| {
            !["meta", "share", "request", "answer", "sweeper", "current_virtual_time"].contains(&key.as_str())
        });
        if !left.is_empty() {
            self.faults.push(format!("{title}: left: {left:?}"));
        }
        fate
    }

    fn judge(&self, parts: usize, least: usize) {
        assert!(self.faults.is_empty(), "{} of {parts} parts:\n{}", self.faults.len(), self.faults.join("\n"));
        assert!(parts > least, "{parts}");
    }

    /// Runs `next` after every part of `call`, and after none and all of it; answers how many commands the call wrote.
    fn case(&mut self, now_us: u64, title: &str, call: &Call, next: &Call) -> usize {
        let mut run = |call: &Call| {
            self.restore(&[]);
            self.clocked.set_clock(now_us);
            self.appended(|it| drop(it.clocked.send(call)))
        };
        let (whole, after) = (run(call), run(next));
        let commands = commands(&whole);
        if commands.len() < 4 {
            return 0; // one write is never torn
        }
        self.restore(&[&after]);
        let never = self.drain(now_us, title);
        self.restore(&[&whole]);
        self.clocked.set_clock(now_us);
        drop(self.clocked.send(next));
        let both = self.drain(now_us, title);
        let (never, both) = (never.ids(), both.ids());
        // Without MULTI, and at most to right before EXEC.
        for end in 2..commands.len() {
            let title = format!("{title}, torn after {}", String::from_utf8_lossy(commands[end - 1]).replace("\r\n", " "));
            self.restore(&[&commands[1..end].concat(), &after]);
            let fate = self.drain(now_us, &title);
            let ids = fate.ids();
            let (must, may): (BTreeSet<_>, BTreeSet<_>) = (&never & &both, &never | &both);
            if !must.is_subset(&ids) {
                self.faults.push(format!("{title}: lost {:?}", &must - &ids));
            }
            if !ids.is_subset(&may) {
                self.faults.push(format!("{title}: made up {:?}", &ids - &may));
            }
            // What was promoted may be promoted once more.
            if fate.delivered.values().any(|&n| n > 2) || fate.delivered.values().filter(|&&n| n == 2).count() > self.twice {
                self.faults.push(format!("{title}: too often {fate:?}"));
            }
        }
        commands.len()
    }
}

fn commands(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut commands = Vec::new();
    while let Some(length) = resp::frame_length(bytes) {
        commands.push(&bytes[..length]);
        bytes = &bytes[length..];
    }
    assert!(bytes.is_empty());
    commands.retain(|command| !String::from_utf8_lossy(command).contains("\r\nSELECT\r\n"));
    commands
}

fn every_part_of_every_transaction(mode: Mode) {
    let torn = &mut Torn::new();
    let mut busy = None;
    torn.make(|it| busy = Some(Busy::make(&mut it.clocked, NAME, mode)));
    let busy = busy.unwrap();
    let all: BTreeMap<_, _> = busy.calls().into_iter().collect();
    let other = &all["dequeue: everything"];
    let mut parts = 0;
    for (title, call) in &all {
        for (after, next) in [("itself", call), ("another dequeue", other)] {
            parts += torn.case(busy.now_us, &format!("{title}, then {after}"), call, next);
        }
    }
    torn.judge(parts, 200);
}

#[test]
fn every_part_of_a_transaction_may_run_later_head() {
    every_part_of_every_transaction(Mode::Head);
}

#[test]
fn every_part_of_a_transaction_may_run_later_all() {
    every_part_of_every_transaction(Mode::All);
}

#[test]
fn every_part_of_a_transaction_may_run_later_back() {
    every_part_of_every_transaction(Mode::Back);
}

#[test]
fn every_part_of_a_wide_transaction_may_run_later() {
    let torn = &mut Torn::new();
    let queue = Queue::new(NAME).unwrap();
    torn.twice = 40;
    let names: Vec<_> = (0..40).map(|n| format!("{}{n}", char::from(b'A' + n))).collect();
    torn.make(|it| {
        it.clocked.set_clock(START);
        for name in &names {
            it.clocked.run(enqueue(&queue, name, 0..3)).unwrap();
        }
    });
    let dequeue = |n: usize, name: &str| {
        let command = queue.dequeue(n).unwrap().lease(HOUR).unwrap();
        command.owner(owner(name), Vec::new()).call()
    };
    let mut parts = 0;
    for (title, next) in
        [("a dequeue", dequeue(60, "first")), ("a short dequeue", dequeue(1, "first")), ("a sweep", queue.sweep().call())]
    {
        parts += torn.case(START, &format!("a dequeue, then {title}"), &dequeue(60, "torn"), &next);
    }
    torn.judge(parts, 20);
}

/// Takes a lane away while its partition is served, then does this.
fn without_its_lane(act: impl FnOnce(&mut Clocked, &Queue)) -> Fate {
    let torn = &mut Torn::new();
    let queue = Queue::new(NAME).unwrap();
    torn.clocked.set_clock(START);
    torn.clocked.run(enqueue(&queue, "p", 0..4)).unwrap();
    torn.clocked.run(enqueue(&queue, "z", 0..4)).unwrap();
    assert_eq!(torn.server.command(&["DEL", "vtrr:q:lane:=p"]).unwrap(), ":1\r\n");
    let delivery = torn.clocked.run(queue.dequeue(1).unwrap()).unwrap().deliveries.remove(0);
    torn.clocked.run(queue.ack(&delivery).unwrap()).unwrap();
    act(&mut torn.clocked, &queue);
    let fate = torn.drain(START, "without its lane");
    assert!(torn.faults.is_empty(), "{:?}", torn.faults);
    fate
}

#[test]
fn what_lost_its_lane_may_be_cancelled() {
    let fate = without_its_lane(|server, queue| {
        server.run(enqueue(queue, "p", 9..10)).unwrap();
        let codes = server.run(queue.cancel([id("p1"), id("p2")]).unwrap()).unwrap();
        assert_eq!(codes, [Cancelled::Done; 2]);
    });
    assert_eq!(fate.ids().into_iter().collect::<Vec<_>>(), ["p3", "p9", "z0", "z1", "z2", "z3"]);
}

#[test]
fn what_lost_its_lane_comes_back_though_its_partition_goes_on() {
    let fate = without_its_lane(|server, queue| {
        server.run(enqueue(queue, "p", 5..9)).unwrap();
        for _ in 0..3 {
            server.run(queue.sweep()).unwrap();
        }
        let ids: Vec<_> = server.run(queue.peek(99).unwrap()).unwrap().into_iter().map(|it| it.id.to_string()).collect();
        let of_p: Vec<_> = ids.iter().map(String::as_str).filter(|id| id.starts_with('p')).collect();
        assert_eq!(of_p, ["p5", "p6", "p7", "p8", "p1", "p2", "p3"]);
    });
    assert_eq!(fate.ids().len(), 11);
    assert!(fate.delivered.values().all(|&n| n == 1), "{fate:?}");
}

#[test]
fn what_lost_its_lane_is_flattened_too() {
    let fate = without_its_lane(|server, queue| {
        let flattened = server.run(queue.flatten()).unwrap();
        assert_eq!((flattened.in_lanes, flattened.leased), (0, 0));
    });
    assert_eq!(fate.ids().len(), 7);
}

#[test]
fn an_owner_loses_what_its_record_names_and_another_holds() {
    for act in ["dequeue", "extend", "release"] {
        let torn = &mut Torn::new();
        let queue = Queue::new(NAME).unwrap();
        torn.clocked.set_clock(START);
        torn.clocked.run(enqueue(&queue, "p", 0..1)).unwrap();
        let theirs = queue.dequeue(1).unwrap().lease(HOUR).unwrap().owner(owner("w2"), Vec::new());
        let held = torn.clocked.run(theirs).unwrap().deliveries;
        let before = torn.clocked.keys(NAME)["lease"].clone();
        assert_eq!(torn.server.command(&["HSET", "vtrr:q:owner", "w1", "r\0+p0"]).unwrap(), ":1\r\n");
        match act {
            "dequeue" => {
                let ours = queue.dequeue(1).unwrap().owner(owner("w1"), Vec::new());
                assert_eq!(torn.clocked.run(ours).unwrap().deliveries, []);
            }
            "extend" => assert_eq!(torn.clocked.run(queue.extend_owner(owner("w1"), 2 * HOUR).unwrap()).unwrap(), []),
            _ => assert_eq!(torn.clocked.run(queue.release_owner(owner("w1"), Released::Unrun)).unwrap(), []),
        }
        let keys = torn.clocked.keys(NAME);
        assert_eq!(keys["lease"], before, "{act}");
        assert!(act == "extend" || !keys["owner"].contains_key("w1"), "{act}: {keys:?}");
        assert!(!keys["meta"].contains_key("released"), "{act}");
        assert_eq!(torn.clocked.run(queue.ack(&held[0]).unwrap()).unwrap(), [Settled::Done], "{act}");
    }
}

#[test]
fn what_made_a_key_long_is_no_task() {
    let torn = &mut Torn::new();
    let (queue, long) = (Queue::new(NAME).unwrap(), "-".repeat(65) + "\0");
    torn.clocked.set_clock(START);
    torn.clocked.run(enqueue(&queue, "p", 0..2)).unwrap();
    assert_eq!(torn.server.command(&["ZADD", "vtrr:q:queue", "0", &long]).unwrap(), ":1\r\n");
    assert_eq!(torn.server.command(&["HSET", "vtrr:q:head", &long, "0"]).unwrap(), ":1\r\n");
    torn.clocked.run(queue.sweep()).unwrap();
    assert_eq!(torn.clocked.run(queue.dequeue(2).unwrap()).unwrap().deliveries.len(), 2);
    assert_eq!(torn.clocked.run(queue.stats()).unwrap().dead, 0);
    assert!(!torn.clocked.keys(NAME).contains_key("head"));
}

#[test]
fn what_somebody_deleted_beside_the_records_is_made_anew() {
    let torn = &mut Torn::new();
    let busy = Busy::make(&mut torn.clocked, NAME, Mode::Head);
    let before = torn.clocked.keys(NAME)["dead"].len();
    for key in ["lease", "delayed", "dead", "owner"] {
        assert_eq!(torn.server.command(&["DEL", &format!("vtrr:q:{key}")]).unwrap(), ":1\r\n");
    }
    let fate = torn.drain(busy.now_us, "keys are gone");
    assert!(torn.faults.is_empty(), "{:?}", torn.faults);
    // All but x0, which is too old; those that 0.1.0 took; and those cancelled or acked.
    let all = [
        "a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "a9", "b1", "b2", "b4", "b5", "d0", "d1", "d2", "d3", "old", "s1",
        "s2",
    ];
    assert_eq!(fate.delivered.keys().collect::<Vec<_>>(), all);
    assert_eq!(fate.dead.len(), before);
}

#[test]
fn a_task_that_is_no_dead_letter_any_more_is_not_forgotten_with_the_oldest() {
    let torn = &mut Torn::new();
    let queue = Queue::new(NAME).unwrap();
    torn.clocked.set_clock(START);
    let fail = |torn: &mut Torn, numbers: std::ops::Range<u32>| {
        torn.clocked.run(enqueue(&queue, "p", numbers)).unwrap();
        let dequeued = torn.clocked.run(queue.dequeue(1_000).unwrap()).unwrap().deliveries;
        let fails = dequeued.iter().map(|delivery| Settlement::fail(delivery, Cause::Failed, "no")).collect();
        torn.clocked.run(queue.settle(fails).unwrap()).unwrap();
    };
    for from in (0..10_000).step_by(1_000) {
        fail(torn, from..from + 1_000);
        torn.clocked.set_clock(START + u64::from(from) * 1_000);
    }
    torn.clocked.run(queue.redrive([id("p0")]).unwrap()).unwrap();
    assert_eq!(torn.server.command(&["ZADD", "vtrr:q:dead", "1", "p0"]).unwrap(), ":1\r\n");
    let held = torn.clocked.run(queue.dequeue(1).unwrap()).unwrap().deliveries;
    assert_eq!(held[0].id.as_str(), "p0");
    fail(torn, 20_000..20_003);
    let settled = torn.clocked.run(queue.ack(&held[0]).unwrap()).unwrap();
    assert_eq!(settled, [Settled::Done]);
}

#[test]
fn a_torn_file_loses_no_task() {
    for kind in Kind::ALL {
        let mut server = Server::options(kind).arg("--appendonly", "yes").arg("--appendfsync", "always").start();
        let redis = Redis::connect(&server.url()).unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let queue = Queue::new(NAME).unwrap();
        let dequeue = |n: usize, name: &str| {
            let command = queue.dequeue(n).unwrap().lease(SECOND).unwrap().owner(owner(name), Vec::new());
            runtime.block_on(redis.run(command)).unwrap().deliveries
        };
        runtime.block_on(redis.run(enqueue(&queue, "a", 0..20))).unwrap();
        dequeue(8, "torn");
        server.kill9();
        // All of it but the end of the EXEC.
        server.tear(3);
        server.restart();
        let mut seen: BTreeSet<_> = dequeue(5, "first").into_iter().map(|delivery| delivery.id.to_string()).collect();
        assert_eq!(seen, (0..5).map(|n| format!("a{n}")).collect(), "{kind:?}: the torn dequeue did not happen");
        server.kill9();
        server.restart();
        let deadline = Instant::now() + 20 * SECOND;
        while seen.len() < 20 && Instant::now() < deadline {
            runtime.block_on(redis.run(queue.sweep())).unwrap();
            seen.extend(dequeue(100, "last").into_iter().map(|delivery| delivery.id.to_string()));
            std::thread::sleep(SECOND / 10);
        }
        assert_eq!(seen.len(), 20, "{kind:?}: {seen:?}");
    }
}
