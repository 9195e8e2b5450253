//! A server that forgets the scripts, closes connections, dies and comes back, loses answers: between any two commands, and
//! under a worker.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::de::IgnoredAny;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use vtrr_queue::worker::{BoxError, Summary};
use vtrr_queue::{Command, Context, Delivery, Queue, Redis, Released, Runner, Settlement, Totals, Worker};

use crate::busy::{enqueue, id, owner};
use crate::clocked::{Clocked, Dump};
use crate::proxy::Proxy;
use crate::server::{Kind, Server};

/// Work must go on this soon.
const SOON: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Accident {
    None,
    ScriptFlush,
    ClientKill,
    /// The server dies; it comes back while the next command waits.
    Crash,
    /// The reply to the next command is lost.
    LostReply,
}

struct Stage {
    server: Server,
    proxy: Proxy,
    runtime: Runtime,
    redis: Redis,
    accident: Accident,
}

impl Stage {
    fn new(kind: Kind, accident: Accident) -> Self {
        let options = Server::options(kind).arg("--appendonly", "yes").arg("--appendfsync", "always");
        let server = options.start();
        let proxy = Proxy::start(server.port());
        let redis = Redis::connect(&proxy.url()).unwrap();
        Self { server, proxy, runtime: Runtime::new().unwrap(), redis, accident }
    }

    /// Runs a command after, or during, the accident.
    fn run<C: Command>(&mut self, command: C) -> C::Reply {
        let start = Instant::now();
        let reply = match self.accident {
            Accident::Crash => {
                self.server.kill9();
                std::thread::scope(|scope| {
                    scope.spawn(|| self.server.restart());
                    self.runtime.block_on(self.redis.run(command))
                })
            }
            accident => {
                match accident {
                    Accident::ScriptFlush => drop(self.server.command(&["SCRIPT", "FLUSH"]).unwrap()),
                    Accident::ClientKill => drop(self.server.command(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap()),
                    Accident::LostReply => self.proxy.drop_next_reply(),
                    Accident::None | Accident::Crash => {}
                }
                self.runtime.block_on(self.redis.run(command))
            }
        };
        assert!(!self.proxy.is_armed() && start.elapsed() < SOON, "{:?}", start.elapsed());
        reply.unwrap_or_else(|error| panic!("{:?}: {error}", self.accident))
    }
}

/// What may not depend on accidents: the order, and the counts.
fn outcome(stage: &mut Stage, queue: &Queue) -> (Dump, Totals) {
    stage.accident = Accident::None;
    let mut totals = stage.run(queue.stats());
    totals.next_due = None;
    let mut keys = Clocked::at(&stage.server.url()).dump("q");
    keys.retain(|key, _| ["queue", "partition_virtual_time", "head", "running", "share"].contains(&key.as_str()));
    (keys, totals)
}

fn sequence(kind: Kind, accident: Accident) -> (Dump, Totals) {
    let stage = &mut Stage::new(kind, accident);
    let (queue, minute) = (Queue::new("q").unwrap(), Duration::from_secs(60));
    stage.run(queue.set_share("a", 3.0).unwrap());
    stage.run(enqueue(&queue, "a", 0..6));
    stage.run(enqueue(&queue, "b", 0..6));
    let worker = || owner("w");
    let dequeued = stage.run(queue.dequeue(8).unwrap().lease(minute).unwrap().owner(worker(), Vec::new()));
    let of: BTreeMap<String, Delivery> = dequeued.deliveries.into_iter().map(|it| (it.id.to_string(), it)).collect();
    let ids: Vec<_> = of.keys().map(String::as_str).collect();
    assert_eq!(ids, ["a0", "a1", "a2", "a3", "a4", "a5", "b0", "b1"]);
    stage.run(queue.extend(&[of["a0"].clone(), of["b0"].clone()], minute).unwrap());
    stage.run(queue.ack(&of["a0"]).unwrap());
    stage.run(queue.retry(&of["a1"], Duration::ZERO).unwrap());
    stage.run(queue.retry(&of["a2"], minute).unwrap());
    stage.run(queue.release(&of["a3"], Duration::ZERO, Released::Unrun).unwrap());
    stage.run(queue.fail(&of["b0"], "no").unwrap());
    stage.run(queue.sweep());
    let next = queue.dequeue(1).unwrap().owner(worker(), ["a4", "a5", "b1"].map(id).to_vec());
    let next = stage.run(next.settle(vec![Settlement::ack(&of["a4"])]).unwrap());
    assert_eq!(next.deliveries[0].id, id("a3"));
    stage.run(queue.cancel([id("b2"), id("b4")]).unwrap());
    stage.run(queue.redrive([id("b0")]).unwrap());
    stage.run(queue.release_owner(worker(), Released::Unrun));
    assert_eq!(stage.run(queue.peek(1).unwrap())[0].id, id("a5"));
    stage.run(queue.flatten());
    stage.run(queue.unflatten());
    outcome(stage, &queue)
}

fn accidents(kind: Kind) {
    let expected = sequence(kind, Accident::None);
    for accident in [Accident::ScriptFlush, Accident::ClientKill, Accident::LostReply, Accident::Crash] {
        assert_eq!(sequence(kind, accident), expected, "{kind:?}, {accident:?}");
    }
}

#[test]
fn an_accident_between_any_two_commands_redis_7() {
    accidents(Kind::Redis);
}

#[test]
fn an_accident_between_any_two_commands_valkey_8() {
    accidents(Kind::Valkey);
}

#[test]
fn an_accident_between_any_two_commands_redis_6_2() {
    accidents(Kind::Redis62);
}

/// Runs a worker while `meanwhile` does something on another thread; answers how it went, and the longest time in which it
/// did nothing.
fn worker(stage: &mut Stage, tasks: u32, meanwhile: impl FnOnce(&mut Server, &Proxy) + Send) -> (Summary, Duration) {
    let queue = Queue::new("q").unwrap();
    stage.run(enqueue(&queue, "a", 0..tasks));
    let (tell, mut told) = mpsc::unbounded_channel();
    let handler = move |_: Context, _: IgnoredAny| {
        let tell = tell.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(2)).await;
            tell.send(()).unwrap();
            Ok::<_, BoxError>(())
        }
    };
    let worker = Worker::builder(queue, stage.redis.clone()).concurrency(8).register("resize", handler).build().unwrap();
    let longest = Arc::new(Mutex::new(Duration::ZERO));
    let seen = Arc::clone(&longest);
    let done = async move {
        let mut last = Instant::now();
        for _ in 0..tasks {
            told.recv().await;
            let mut longest = seen.lock().unwrap();
            *longest = longest.max(last.elapsed());
            last = Instant::now();
        }
    };
    let (server, proxy) = (&mut stage.server, &stage.proxy);
    let summary = std::thread::scope(|scope| {
        scope.spawn(|| meanwhile(server, proxy));
        stage.runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), worker.run_until(done)).await })
    });
    let longest = *longest.lock().unwrap();
    (summary.expect("it hangs").unwrap(), longest)
}

#[test]
fn a_worker_goes_on_after_crashes_of_the_server() {
    for kind in Kind::ALL {
        let stage = &mut Stage::new(kind, Accident::None);
        let (summary, longest) = worker(stage, 1_000, |server, _| {
            for _ in 0..3 {
                std::thread::sleep(Duration::from_millis(50));
                server.kill9();
                std::thread::sleep(Duration::from_millis(100));
                server.restart();
            }
        });
        assert_eq!((summary.succeeded, summary.lost), (1_000, 0), "{kind:?} {summary:?}");
        assert!(longest < SOON, "{longest:?}");
        let totals = stage.run(Queue::new("q").unwrap().stats());
        assert_eq!((totals.queued, totals.leased, totals.totals["acked"]), (0, 0, 1_000), "{kind:?}");
    }
}

#[test]
fn a_worker_that_loses_replies_does_every_task_once() {
    let stage = &mut Stage::new(Kind::Redis, Accident::None);
    let (summary, longest) = worker(stage, 2_000, |_, proxy| {
        for _ in 0..10 {
            proxy.drop_next_reply();
            // Time to pause, and for the same call once more.
            std::thread::sleep(Duration::from_millis(40));
        }
    });
    assert!(longest < SOON, "{longest:?}");
    let totals = stage.run(Queue::new("q").unwrap().stats()).totals;
    let count = |total: &str| totals.get(total).copied().unwrap_or_default();
    assert_eq!((count("acked"), count("delivered"), count("reclaimed")), (2_000, 2_000, 0), "{totals:?}");
    assert_eq!((summary.succeeded, summary.lost), (2_000, 0), "{summary:?}");
}
