//! A queue in which every key is in use and every command has something to do, the same each time it is made.

use std::collections::{BTreeMap, BTreeSet};

use vtrr_queue::{
    Body, Call, Cause, Claim, Command, Delivery, Enqueue, Outcome, Owner, Queue, Released, SCRIPTS, Settlement, Tagging,
    Task, TaskId,
};

use crate::clocked::Clocked;
use crate::world::seconds;

/// How the queue's tasks are tagged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Head,
    All,
    /// In mode `head` again, with tags of mode `all` left.
    Back,
}

impl Mode {
    pub(crate) const EVERY: [Self; 3] = [Self::Head, Self::All, Self::Back];
}

const START: u64 = 1_700_000_000_000_000;
const SECOND: u64 = 1_000_000;

/// The queue, after more than a month of use.
pub(crate) struct Busy {
    pub(crate) queue: Queue,
    /// By id. Held by `w1`: a4, a5, b1; its last request is `take`. Held by `w2` until a moment ago: one that was released.
    pub(crate) deliveries: BTreeMap<String, Delivery>,
    pub(crate) now_us: u64,
}

pub(crate) fn id(text: &str) -> TaskId {
    TaskId::new(text).unwrap()
}

pub(crate) fn owner(name: &str) -> Owner {
    Owner::new(name).unwrap()
}

pub(crate) fn task(name: &str) -> Task {
    Task::new("resize", &(name,)).unwrap().id(id(name))
}

/// Enqueues tasks called by the partition's first letter and these numbers.
pub(crate) fn enqueue(queue: &Queue, partition: &str, numbers: std::ops::Range<u32>) -> Enqueue {
    let names = numbers.clone().map(|n| format!("{}{n}", &partition[..1]));
    let request = format!("{partition} {numbers:?}");
    queue.enqueue(partition, names.map(|name| task(&name))).unwrap().request(request).unwrap()
}

impl Busy {
    /// Fills the queue `name` of a server that has nothing of it.
    pub(crate) fn make(server: &mut Clocked, name: &str, mode: Mode) -> Self {
        let queue = Queue::new(name).unwrap();
        let queue = if mode == Mode::Head { queue } else { queue.tagging(Tagging::All) };
        let mut busy = Self { queue, deliveries: BTreeMap::new(), now_us: START };
        busy.wait(server, 0);
        // A dead letter that is older than a month.
        server.run(enqueue(&busy.queue, "x", 0..1)).unwrap();
        busy.dequeue(server, "w0", 1, 3_600);
        busy.settle(server, &[("x0", Outcome::Fail { cause: Cause::Failed, error: "no".into() })]);
        busy.wait(server, 31 * 86_400);

        server.run(busy.queue.set_share("a", 3.0).unwrap()).unwrap();
        server.run(busy.queue.set_share("d:%", 0.7).unwrap()).unwrap();
        for (partition, n) in [("a", 10), ("b", 6), ("d:%", 4)] {
            server.run(enqueue(&busy.queue, partition, 0..n)).unwrap();
        }
        // Idle later on, with a debt.
        let heavy = busy.queue.enqueue("e", [task("e0").weight(50).unwrap()]).unwrap().request("e").unwrap();
        server.run(heavy).unwrap();
        // A duplicate.
        server.run(enqueue(&busy.queue, "b", 0..1).request("again").unwrap()).unwrap();
        busy.dequeue(server, "w1", 11, 3_600);
        let retry = |seconds: u64| Outcome::Retry { delay_ms: seconds * 1_000, body: None };
        let release = || Outcome::Release { delay_ms: 0, how: Released::Unrun };
        let later = || Outcome::Release { delay_ms: 3_600_000, how: Released::lost("") };
        busy.settle(server, &[("e0", Outcome::Ack), ("b0", Outcome::Fail { cause: Cause::Failed, error: "no".into() })]);
        busy.settle(server, &[("a0", retry(10)), ("d0", retry(3_600)), ("a6", later())]);
        busy.settle(server, &[("a1", release()), ("a2", release()), ("a3", release())]);
        busy.dequeue(server, "w2", 1, 1);
        server.run(busy.queue.cancel([id("b3"), id("a8")]).unwrap()).unwrap();
        server.run(enqueue(&busy.queue, "s", 0..3)).unwrap();
        if mode == Mode::Back {
            server.run(busy.queue.unflatten()).unwrap();
            busy.queue = Queue::new(name).unwrap();
            for partition in ["a", "n"] {
                server.run(enqueue(&busy.queue, partition, 20..23)).unwrap();
            }
        }
        Self::steal(server, name);
        // Leases and delays run out, and requests are forgotten.
        busy.wait(server, 70);
        busy
    }

    fn wait(&mut self, server: &mut Clocked, seconds: u64) {
        self.now_us += seconds * SECOND;
        server.set_clock(self.now_us);
    }

    fn dequeue(&mut self, server: &mut Clocked, name: &str, n: usize, lease_s: u64) {
        let command = self.queue.dequeue(n).unwrap().lease(std::time::Duration::from_secs(lease_s)).unwrap();
        let dequeued = server.run(command.owner(owner(name), Vec::new()).request("take").unwrap()).unwrap();
        assert_eq!(dequeued.deliveries.len(), n);
        self.deliveries.extend(dequeued.deliveries.into_iter().map(|it| (it.id.to_string(), it)));
    }

    fn settle(&mut self, server: &mut Clocked, outcomes: &[(&str, Outcome)]) {
        let settlements = outcomes.iter().filter_map(|(id, outcome)| self.settlement(id, outcome.clone()));
        server.run(self.queue.settle(settlements.collect()).unwrap()).unwrap();
    }

    /// None if that task was never delivered.
    pub(crate) fn settlement(&self, id: &str, outcome: Outcome) -> Option<Settlement> {
        let delivery = self.deliveries.get(id)?;
        Some(Settlement::new(delivery.id.clone(), delivery.token.clone(), outcome).unwrap())
    }

    /// What 0.1.0 does to the queue: takes a head, leaves the record of a task behind, brings a task of its own.
    fn steal(server: &mut Clocked, name: &str) {
        let key = |key: &str| format!("vtrr:{name}:{key}");
        let payload = r#"{"task_name": "resize", "args": [1], "kwargs": {}}"#;
        redis::pipe()
            .zrem(key("queue"), "s0")
            .hdel(key("task"), "s0")
            .hset(key("held"), "gone", "q 1-1 1 0 0 0 5 0 - ")
            .zadd(key("queue"), "old", 2.5)
            .hset(key("task"), "old", payload)
            .exec(&mut server.connection)
            .unwrap();
    }

    /// A request of `w1` that names what it holds.
    pub(crate) fn next_of_w1(&self, n: usize) -> vtrr_queue::Dequeue {
        let holding = ["a4", "a5"].map(id).to_vec();
        self.queue.dequeue(n).unwrap().lease(seconds(30)).unwrap().owner(owner("w1"), holding).request("next").unwrap()
    }

    /// Of the task that was given back for an hour.
    pub(crate) fn claim_a6(&self) -> Claim {
        let delivery = self.deliveries["a6"].clone();
        self.queue.claim(delivery.id, delivery.token, owner("w1"), seconds(9)).unwrap()
    }

    /// Calls of every script, in every way that it works.
    pub(crate) fn calls(&self) -> Vec<(String, Call)> {
        let queue = &self.queue;
        let settle = |outcomes: &[(&str, Outcome)]| {
            let settlements = outcomes.iter().map(|(id, outcome)| self.settlement(id, outcome.clone()).unwrap());
            queue.settle(settlements.collect()).unwrap().call()
        };
        let release = |delay_ms, blame: bool| Outcome::Release {
            delay_ms,
            how: if blame { Released::lost("a reason") } else { Released::Unrun },
        };
        let retry = |delay_ms, body: Option<&str>| Outcome::Retry {
            delay_ms,
            body: body.map(|body| Body::from_json(body).unwrap()),
        };
        let back = |delay_ms, how| Outcome::Release { delay_ms, how };
        let fail = || Outcome::Fail { cause: Cause::Failed, error: "no".into() };
        let mixed = [("a4", Outcome::Ack), ("a5", retry(0, Some(r#"{"task_name":"t"}"#))), ("b1", release(0, true))];
        let mixed = mixed.map(|(id, outcome)| self.settlement(id, outcome).unwrap()).to_vec();
        let leased = self.deliveries["a4"].clone();
        let given = ["b0", "b2", "b4", "b9"].map(task);
        let mut calls = vec![
            ("enqueue: a new partition".into(), enqueue(queue, "new:", 0..3).call()),
            ("enqueue: a partition with tasks".into(), enqueue(queue, "a", 30..33).call()),
            ("enqueue: ids dead, queued and new".into(), queue.enqueue("b", given).unwrap().call()),
            ("enqueue: without ids".into(), queue.enqueue("a", [Task::new("resize", &()).unwrap()]).unwrap().call()),
            ("enqueue: within bounds".into(), {
                let command = enqueue(queue, "a", 30..33).max_queued(1_000).unwrap();
                command.max_queued_per_partition(1_000).unwrap().call()
            }),
            ("enqueue: a stolen head".into(), enqueue(queue, "s", 30..31).call()),
            ("a request again".into(), enqueue(queue, "b", 0..1).request("again").unwrap().call()),
            ("dequeue".into(), queue.dequeue(5).unwrap().call()),
            ("dequeue: settles, gives back".into(), self.next_of_w1(5).settle(mixed).unwrap().call()),
            ("dequeue: nothing".into(), queue.dequeue(0).unwrap().call()),
            ("dequeue: everything".into(), queue.dequeue(100).unwrap().owner(owner("w3"), Vec::new()).call()),
            ("dequeue: again".into(), self.next_of_w1(5).request("take").unwrap().call()),
            ("ack".into(), settle(&[("a4", Outcome::Ack)])),
            ("release".into(), settle(&[("a4", release(0, false)), ("a5", release(0, true))])),
            ("release later".into(), settle(&[("a4", release(9, false)), ("b1", release(9, true))])),
            ("release that ran".into(), settle(&[("a4", back(9, Released::Ran)), ("a5", back(0, Released::Ran))])),
            ("release unknown".into(), settle(&[("b1", back(0, Released::unknown("no handler")))])),
            ("retry".into(), settle(&[("a5", retry(0, Some(r#"{"task_name":"t"}"#))), ("b1", retry(9, None))])),
            ("fail".into(), settle(&[("b1", fail())])),
            ("settle: gone".into(), settle(&[("e0", Outcome::Ack)])),
            ("claim".into(), self.claim_a6().call()),
            ("blame_owner".into(), queue.release_owner(owner("w1"), Released::lost("lost")).call()),
            ("release_owner".into(), queue.release_owner(owner("w1"), Released::Unrun).call()),
            ("fail_owner".into(), queue.fail_owner(owner("w1"), Cause::Failed, "no").call()),
            ("extend".into(), queue.extend(&[leased], seconds(9)).unwrap().call()),
            ("extend_owner".into(), queue.extend_owner(owner("w1"), seconds(9)).unwrap().call()),
            ("sweep".into(), queue.sweep().call()),
            (
                "sweep of a leader".into(),
                queue.sweep().leader(owner("w1"), std::time::Duration::from_secs(15)).unwrap().call(),
            ),
            ("cancel: heads, a waiting, a delayed one".into(), {
                queue.cancel(["a2", "b2", "s1", "d0", "d1", "old", "a4", "b0"].map(id)).unwrap().call()
            }),
            ("set_share".into(), queue.set_share("a", 5.5).unwrap().call()),
            ("set_share: idle".into(), queue.set_share("e", 5.5).unwrap().call()),
            ("clear_share".into(), queue.clear_share("d:%").unwrap().call()),
            ("flatten".into(), queue.flatten().call()),
            ("unflatten".into(), queue.unflatten().call()),
            ("redrive".into(), queue.redrive([id("b0"), id("x0"), id("a4")]).unwrap().call()),
            ("discard".into(), queue.discard([id("b0"), id("a4")]).unwrap().call()),
            ("dead_letters".into(), queue.dead_letters(0, 9).unwrap().call()),
            ("stats".into(), queue.stats().call()),
            ("eviction".into(), queue.eviction().call()),
            ("partitions".into(), queue.partitions().call()),
            ("peek".into(), queue.peek(9).unwrap().call()),
        ];
        for text in ["a4", "d0", "b0", "b5", "b2", "e0"] {
            calls.push((format!("find {text}"), queue.find(id(text)).call()));
        }
        // Later steps of commands with several.
        let step = |call: Call, at: usize, cursor: &str| {
            let mut call = call;
            call.args[at] = cursor.into();
            call
        };
        calls.push(("partitions: running".into(), step(queue.partitions().call(), 0, "running 0")));
        for (title, purge) in
            [("a", queue.purge("a").unwrap()), ("b", queue.purge("b").unwrap()), ("all", queue.purge_all())]
        {
            for cursor in ["", "tags 0 999", "delayed 0 999", "dead 0 999"] {
                calls.push((format!("purge {title}: {cursor}"), step(purge.call(), 1, cursor)));
            }
        }
        let called: BTreeSet<_> = calls.iter().map(|(_, call)| call.script.name).collect();
        assert_eq!(called, SCRIPTS.iter().map(|script| script.name).collect());
        calls
    }
}
