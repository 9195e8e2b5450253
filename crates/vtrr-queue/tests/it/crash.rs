//! Workers that die and workers that stop for too long: real processes, and the same command by command.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

use serde::de::IgnoredAny;
use vtrr_queue::worker::BoxError;
use vtrr_queue::{Blocking, Cause, Context, Outcome, Queue, Redis, Released, Settled, Settlement, Task, Totals, Worker};

use crate::busy::{enqueue, owner};
use crate::clocked::Clocked;
use crate::server::{Kind, Server, signal};

/// Not a test of its own: this binary, started again as a worker. It logs `start ID DELIVERIES` and `end ID`, and at its
/// end `summary SUCCEEDED LOST`.
#[test]
fn a_worker_process() {
    let Ok(url) = env::var("VTRR_WORKER_URL") else { return };
    // It ends with the process that started it.
    thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        process::exit(1);
    });
    let number = |name: &str| env::var(name).unwrap().parse::<u64>().unwrap();
    let (log, task_time) = (env::var("VTRR_WORKER_LOG").unwrap(), Duration::from_millis(number("VTRR_WORKER_TASK_MS")));
    let write = move |line: String| {
        use std::io::Write as _;
        let file = fs::OpenOptions::new().append(true).create(true).open(&log);
        // One write, so that lines of several processes do not mix.
        file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes())).unwrap();
    };
    let log = write.clone();
    let handler = move |context: Context, _: IgnoredAny| {
        let log = log.clone();
        async move {
            log(format!("start {} {}", context.id(), context.deliveries()));
            tokio::time::sleep(task_time).await;
            log(format!("end {}", context.id()));
            Ok::<_, BoxError>(())
        }
    };
    let worker = Worker::builder(Queue::new("q").unwrap(), Redis::connect(&url).unwrap())
        .concurrency(8)
        .lease(Duration::from_secs(1))
        .max_deliveries(u32::try_from(number("VTRR_WORKER_MAX_DELIVERIES")).unwrap())
        .register("poison", |_: Context, _: IgnoredAny| async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            process::abort();
            #[allow(unreachable_code, reason = "it tells the type")]
            Ok::<_, BoxError>(())
        })
        .register("resize", handler);
    let summary = tokio::runtime::Runtime::new().unwrap().block_on(worker.build().unwrap().run()).unwrap();
    write(format!("summary {} {}", summary.succeeded, summary.lost));
}

/// A worker in a process of its own.
struct Process(Child);

impl Process {
    fn start(server: &Server, log: &Path, task_ms: u64, max_deliveries: u32) -> Self {
        let child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "crash::a_worker_process", "--nocapture"])
            .env("VTRR_WORKER_URL", server.url())
            .env("VTRR_WORKER_LOG", log)
            .env("VTRR_WORKER_TASK_MS", task_ms.to_string())
            .env("VTRR_WORKER_MAX_DELIVERIES", max_deliveries.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }

    fn kill9(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    fn signal(&self, name: &str) {
        signal(name, &self.0.id().to_string());
    }

    fn stop(mut self) {
        // `wait` would close it.
        let _input = self.0.stdin.take();
        self.signal("TERM");
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server with an empty queue `q`, seen from outside of the workers.
struct Scene {
    server: Server,
    folder: tempfile::TempDir,
    queue: Queue,
    runner: Blocking<redis::Connection>,
}

impl Scene {
    fn new() -> Self {
        let server = Server::start(Kind::Redis);
        let runner = Blocking::connect(&server.url()).unwrap();
        Self { server, folder: tempfile::tempdir().unwrap(), queue: Queue::new("q").unwrap(), runner }
    }

    fn log_file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn worker(&self, name: &str, task_ms: u64) -> Process {
        Process::start(&self.server, &self.log_file(name), task_ms, 1_000)
    }

    fn log(&self, name: &str) -> String {
        fs::read_to_string(self.log_file(name)).unwrap_or_default()
    }

    fn stats(&mut self) -> Totals {
        self.runner.run(self.queue.stats()).unwrap()
    }

    fn drained(&mut self) {
        until("an empty queue", || {
            let stats = self.stats();
            (stats.queued, stats.leased, stats.delayed) == (0, 0, 0)
        });
    }

    /// What stands in Redis, without the prefix.
    fn keys(&self) -> BTreeSet<String> {
        Clocked::at(&self.server.url()).keys("q").into_keys().collect()
    }
}

pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn fifty_workers_are_killed_and_every_task_is_done_once() {
    const TASKS: usize = 5_000;
    const KILLS: u32 = 50;
    let mut scene = Scene::new();
    scene.runner.run(scene.queue.set_share("p0", 3.0).unwrap()).unwrap();
    let mut ids = BTreeSet::new();
    for partition in 0..5 {
        let tasks = (0..TASKS / 5).map(|n| Task::new("resize", &(n,)).unwrap());
        let enqueued = scene.runner.run(scene.queue.enqueue(format!("p{partition}"), tasks).unwrap()).unwrap();
        ids.extend(enqueued.ids.into_iter().map(|id| id.to_string()));
    }
    let length = |scene: &Scene| fs::metadata(scene.log_file("log")).map_or(0, |file| file.len());
    let mut random: u64 = 0x2545_F491_4F6C_DD1D;
    for kill in 0..KILLS {
        let before = length(&scene);
        let doomed = scene.worker("log", 3);
        until("a sign of life", || length(&scene) > before);
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        thread::sleep(Duration::from_micros(random % 50_000));
        let acked = scene.stats().totals.get("acked").copied().unwrap_or_default();
        assert!(acked < TASKS as u64, "all is done after {kill} kills: no more to learn");
        doomed.kill9();
    }
    let last = scene.worker("log", 3);
    scene.drained();
    last.stop();

    let log = scene.log("log");
    let ended: BTreeSet<_> = log.lines().filter_map(|line| line.strip_prefix("end ")).map(ToOwned::to_owned).collect();
    assert_eq!(ended, ids);
    let totals = scene.stats().totals;
    let total = |name: &str| totals.get(name).copied().unwrap_or_default();
    assert_eq!((total("acked"), total("dead")), (TASKS as u64, 0), "{totals:?}");
    assert_eq!(total("delivered"), total("acked") + total("reclaimed") + total("released"), "{totals:?}");
    assert!(total("reclaimed") >= u64::from(KILLS), "{totals:?}");
    let left: BTreeSet<String> =
        ["meta", "share", "request", "answer", "current_virtual_time"].map(ToOwned::to_owned).into();
    let keys = scene.keys();
    assert!(keys.is_subset(&left), "{keys:?}");
}

/// A worker that is stopped for longer than its lease; another one takes over. Answers the first one's last words.
fn paused_worker(scene: &mut Scene, wake_when: &str) -> String {
    scene.runner.run(scene.queue.enqueue("p", [Task::new("resize", &()).unwrap()]).unwrap()).unwrap();
    let first = scene.worker("first", 2_000);
    until("a start", || scene.log("first").contains("start"));
    first.signal("STOP");
    let second = scene.worker("second", 2_000);
    until("a second start", || scene.log("second").contains(wake_when));
    first.signal("CONT");
    scene.drained();
    first.stop();
    second.stop();
    let totals = scene.stats().totals;
    assert_eq!((totals["acked"], totals["reclaimed"], totals["delivered"]), (1, 1, 2), "{totals:?}");
    assert!(scene.log("second").ends_with("summary 1 0\n"), "{}", scene.log("second"));
    let log = scene.log("first");
    log.lines().last().unwrap_or_default().to_owned()
}

#[test]
fn a_worker_that_was_paused_is_told_that_another_one_has_its_task() {
    assert_eq!(paused_worker(&mut Scene::new(), "start"), "summary 0 1");
}

#[test]
fn a_worker_that_was_paused_is_told_that_another_one_has_done_its_task() {
    assert_eq!(paused_worker(&mut Scene::new(), "end"), "summary 0 1");
}

/// C17, where tasks share a process: those beside a poisonous one, which die with it each time, are no poison.
#[test]
fn a_poisonous_task_takes_no_other_with_it() {
    let mut scene = Scene::new();
    let tasks = (0..8).map(|n| Task::new(if n == 3 { "poison" } else { "resize" }, &()).unwrap());
    let ids = scene.runner.run(scene.queue.enqueue("p", tasks).unwrap()).unwrap().ids;
    let (log, mut deaths) = (scene.log_file("log"), 0);
    let mut worker = Process::start(&scene.server, &log, 500, 3);
    until("an empty queue", || {
        if worker.0.try_wait().unwrap().is_some() {
            deaths += 1;
            worker = Process::start(&scene.server, &log, 500, 3);
        }
        let stats = scene.stats();
        (stats.queued, stats.leased, stats.delayed) == (0, 0, 0)
    });
    worker.stop();
    let dead = scene.runner.run(scene.queue.dead_letters(0, 10).unwrap()).unwrap();
    assert_eq!(dead.iter().map(|letter| &letter.id).collect::<Vec<_>>(), [&ids[3]]);
    let totals = scene.stats().totals;
    assert_eq!((deaths, totals["acked"], totals["dead"]), (3, 7, 1), "{totals:?}");
}

const LEASE: Duration = Duration::from_secs(30);
const LEASE_US: u64 = 30_000_000;

#[test]
fn a_late_settle_changes_nothing() {
    for kind in Kind::ALL {
        let (mut server, queue) = (Clocked::new(kind), Queue::new("crash-late").unwrap());
        server.set_clock(LEASE_US);
        server.run(enqueue(&queue, "a", 0..3)).unwrap();
        let mut take = |now_us: u64| {
            server.set_clock(now_us);
            let command = queue.dequeue(1).unwrap().lease(LEASE).unwrap();
            server.run(command.owner(Queue::fresh_owner(), Vec::new())).unwrap().deliveries.remove(0)
        };
        let (late, now) = (take(LEASE_US), take(2 * LEASE_US));
        assert_eq!((&late.id, late.deliveries, now.deliveries), (&now.id, 1, 2));
        let again = Duration::from_secs(1);
        let endings = [
            Settlement::ack(&late),
            Settlement::release(&late, Duration::ZERO, Released::Unrun).unwrap(),
            Settlement::release(&late, again, Released::lost("blamed")).unwrap(),
            Settlement::retry(&late, again, None).unwrap(),
            Settlement::fail(&late, Cause::Failed, "no"),
        ];
        let refused = |server: &mut Clocked, with: Settled| {
            let before = server.keys("crash-late");
            for ending in &endings {
                assert_eq!(server.run(queue.settle(vec![ending.clone()]).unwrap()).unwrap(), [with], "{ending:?}");
            }
            let late = std::slice::from_ref(&late);
            assert_eq!(server.run(queue.extend(late, LEASE).unwrap()).unwrap(), [with]);
            assert_eq!(server.keys("crash-late"), before);
        };
        refused(&mut server, Settled::Lost);
        assert_eq!(server.run(queue.ack(&now).unwrap()).unwrap(), [Settled::Done]);
        refused(&mut server, Settled::Gone);
        assert_eq!(server.run(queue.ack(&now).unwrap()).unwrap(), [Settled::Gone]);
        server.run(queue.purge_all()).unwrap();
    }
}

/// C20: nothing of a dead worker stays behind, however often it happens.
#[test]
fn recovery_leaves_no_counter_behind() {
    for kind in Kind::ALL {
        let (mut server, queue) = (Clocked::new(kind), Queue::new("crash-c20").unwrap());
        let mut now_us = LEASE_US;
        for round in 0..20 {
            server.set_clock(now_us);
            server.run(enqueue(&queue, "a", 4 * round..4 * round + 4)).unwrap();
            let take = |name: String| {
                let command = queue.dequeue(10).unwrap().lease(LEASE).unwrap();
                command.owner(owner(&name), Vec::new())
            };
            let lost = server.run(take(format!("lost-{round}"))).unwrap().deliveries;
            assert_eq!(lost.len(), 4);
            now_us += LEASE_US;
            server.set_clock(now_us);
            let swept = server.run(queue.sweep()).unwrap();
            assert_eq!((swept.reclaimed, swept.more), (4, false));
            let keys: BTreeMap<_, _> = server.keys("crash-c20");
            assert!(!keys.contains_key("running") && !keys.contains_key("owner") && !keys.contains_key("lease"), "{keys:?}");
            let again = server.run(take(format!("next-{round}"))).unwrap().deliveries;
            assert_eq!(again.iter().map(|it| &it.id).collect::<Vec<_>>(), lost.iter().map(|it| &it.id).collect::<Vec<_>>());
            // Each round ends in another way.
            let (ack, fail) = (Outcome::Ack, Outcome::Fail { cause: Cause::Failed, error: "no".into() });
            let outcome = if round % 2 == 0 { ack } else { fail };
            let settlements =
                again.iter().map(|it| Settlement::new(it.id.clone(), it.token.clone(), outcome.clone()).unwrap());
            server.run(queue.settle(settlements.collect()).unwrap()).unwrap();
            if round % 2 == 1 {
                server.run(queue.discard(again.into_iter().map(|it| it.id)).unwrap()).unwrap();
            }
            let keys: Vec<_> = server.keys("crash-c20").into_keys().collect();
            assert_eq!(keys, ["meta", "request"], "{kind:?}, round {round}");
        }
    }
}
