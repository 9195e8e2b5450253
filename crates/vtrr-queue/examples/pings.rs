//! How long others wait while the queue does a lot at once: beside each load a second connection sends a PING every 2 ms.
//!
//! `REDIS_URL=redis://127.0.0.1/ cargo run --release --example pings`, on a server that nobody else uses. Needs about
//! 500 MB there. A wait counts from when the PING was due, so that those not sent meanwhile count too.
#![allow(clippy::print_stdout, reason = "it shows the figures")]

use std::collections::BTreeSet;
use std::env;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use redis::Connection;
use vtrr_queue::{Blocking, Command, Queue, Settlement, Task, TaskId};

type Any = Box<dyn Error + Send + Sync>;

const EVERY: Duration = Duration::from_millis(2);

/// PINGs in the background; what they waited.
struct Pings {
    stop: Arc<AtomicBool>,
    waits: JoinHandle<Result<Vec<Duration>, redis::RedisError>>,
}

impl Pings {
    fn start(mut connection: Connection) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let waits = thread::spawn(move || {
            let (mut waits, mut due) = (Vec::new(), Instant::now());
            while !stopped.load(Ordering::Relaxed) {
                thread::sleep(due.saturating_duration_since(Instant::now()));
                redis::cmd("PING").exec(&mut connection)?;
                let answered = Instant::now();
                while due <= answered {
                    waits.push(answered - due);
                    due += EVERY;
                }
            }
            Ok(waits)
        });
        Self { stop, waits }
    }

    fn stop(self) -> Result<Vec<Duration>, Any> {
        self.stop.store(true, Ordering::Relaxed);
        Ok(self.waits.join().map_err(|_| "the pinging thread panicked")??)
    }
}

/// With arguments of about 100 bytes.
fn tasks(n: usize) -> Result<Vec<Task>, Any> {
    let tasks = (0..n).map(|n| Task::new("resize", &(format!("file-{n}-{}", "x".repeat(80)),)));
    Ok(tasks.collect::<Result<_, _>>()?)
}

struct Bench {
    client: redis::Client,
    runner: Blocking<Connection>,
    queue: Queue,
}

impl Bench {
    fn run<C: Command>(&mut self, command: C) -> Result<C::Reply, Any> {
        Ok(self.runner.run(command)?)
    }

    fn enqueue(&mut self, partition: &str, n: usize) -> Result<Vec<TaskId>, Any> {
        let command = self.queue.enqueue(partition, tasks(n)?)?;
        Ok(self.run(command)?.ids)
    }

    /// Takes 10,000 tasks in calls of up to 1,000 and leaves them leased.
    fn lease(&mut self, lease: Duration) -> Result<Vec<Settlement>, Any> {
        let mut settlements = Vec::new();
        while settlements.len() < 10_000 {
            let command = self.queue.dequeue((10_000 - settlements.len()).min(1_000))?.lease(lease)?;
            let later = |it| Settlement::retry(it, Duration::from_secs(3), None);
            settlements.extend(self.run(command)?.deliveries.iter().map(later).collect::<Result<Vec<_>, _>>()?);
        }
        Ok(settlements)
    }

    fn empty(&mut self) -> Result<(), Any> {
        let mut connection = self.client.get_connection()?;
        let keys: BTreeSet<String> =
            redis::cmd("KEYS").arg(format!("vtrr:{}:*", self.queue.name())).query(&mut connection)?;
        for key in keys {
            redis::cmd("UNLINK").arg(key).exec(&mut connection)?;
        }
        Ok(())
    }

    /// Prepares, then does a load beside the pings and prints a line about it.
    fn measure<T>(
        &mut self,
        title: &str,
        prepare: impl FnOnce(&mut Self) -> Result<T, Any>,
        load: impl FnOnce(&mut Self, T) -> Result<usize, Any>,
    ) -> Result<(), Any> {
        let prepared = prepare(self)?;
        let pings = Pings::start(self.client.get_connection()?);
        thread::sleep(Duration::from_millis(50));
        let start = Instant::now();
        let calls = load(self, prepared)?;
        let took = start.elapsed();
        thread::sleep(Duration::from_millis(50));
        let mut waits = pings.stop()?;
        waits.sort_unstable();
        let ms = |wait: Option<&Duration>| wait.map_or(0.0, |wait| wait.as_secs_f64() * 1_000.0);
        let p99 = ms(waits.get(waits.len() * 99 / 100));
        let (worst, took) = (ms(waits.last()), took.as_secs_f64());
        println!("| {title:<62} | {calls:>6} | {took:>8.2} | {:>6} | {p99:>6.1} | {worst:>6.1} |", waits.len());
        self.empty()
    }
}

fn loads(bench: &mut Bench) -> Result<(), Any> {
    bench.measure(
        "nothing, for 2 s",
        |_| Ok(()),
        |_, ()| {
            thread::sleep(Duration::from_secs(2));
            Ok(0)
        },
    )?;
    bench.measure(
        "enqueue of 300,000 tasks",
        |_| tasks(300_000),
        |bench, tasks| {
            let command = bench.queue.enqueue("a", tasks)?;
            bench.run(command)?;
            Ok(300)
        },
    )?;
    bench.measure(
        "100 dequeues of 1,000, one partition",
        |bench| bench.enqueue("a", 100_000).map(drop),
        |bench, ()| dequeue_all(bench, 1_000),
    )?;
    bench.measure("30 dequeues of 1,000, 1,000 partitions", many_partitions, |bench, ()| dequeue_all(bench, 1_000))?;
    for (title, partitions) in [("1 partition", 1), ("1,000 partitions", 1_000)] {
        let prepare = move |bench: &mut Bench| {
            (0..partitions).try_for_each(|n| bench.enqueue(&format!("p{n}"), 10_000 / partitions).map(drop))
        };
        bench.measure(
            &format!("10,000 leases run out at once, {title}: sweep"),
            |bench| {
                prepare(bench)?;
                bench.lease(Duration::from_secs(2))?;
                thread::sleep(Duration::from_millis(2_100));
                Ok(())
            },
            sweep_all,
        )?;
        bench.measure(
            &format!("10,000 delayed due at once, {title}: dequeue of 100"),
            |bench| {
                prepare(bench)?;
                for settlements in bench.lease(Duration::from_secs(60))?.chunks(1_000) {
                    let command = bench.queue.settle(settlements.to_vec())?;
                    bench.run(command)?;
                }
                thread::sleep(Duration::from_millis(3_100));
                Ok(())
            },
            |bench, ()| dequeue_all(bench, 100),
        )?;
    }
    bench.measure(
        "purge of 1,000,000 tasks, one partition",
        |bench| (0..10).try_for_each(|_| bench.enqueue("a", 100_000).map(drop)),
        |bench, ()| {
            let command = bench.queue.purge("a")?;
            Ok(usize::try_from(bench.run(command)?.purged)? / 1_000)
        },
    )?;
    bench.measure("purge of all, 1,000 partitions of 30", many_partitions, |bench, ()| {
        let command = bench.queue.purge_all();
        Ok(usize::try_from(bench.run(command)?.purged)? / 1_000)
    })?;
    bench.measure("flatten, 1,000 partitions of 30", many_partitions, |bench, ()| {
        let command = bench.queue.flatten();
        bench.run(command)?;
        Ok(30)
    })?;
    bench.measure(
        "sweep, 700 of 1,000 heads stolen",
        |bench| {
            many_partitions(bench)?;
            let mut connection = bench.client.get_connection()?;
            let key = |key: &str| format!("vtrr:{}:{key}", bench.queue.name());
            let heads: Vec<String> = redis::cmd("ZRANGE").arg(key("queue")).arg(0).arg(699).query(&mut connection)?;
            redis::cmd("ZREM").arg(key("queue")).arg(&heads).exec(&mut connection)?;
            redis::cmd("HDEL").arg(key("task")).arg(&heads).exec(&mut connection)?;
            Ok(())
        },
        sweep_all,
    )?;
    let cancelled = |bench: &mut Bench| -> Result<Vec<TaskId>, Any> {
        let ids = bench.enqueue("a", 50_002)?;
        bench.enqueue("b", 100)?;
        Ok(ids[1..50_001].to_vec())
    };
    bench.measure("cancel of 50,000 in calls of 1,000", cancelled, |bench, ids| cancel_all(bench, &ids))?;
    bench.measure(
        "dequeues of 1 past 50,000 cancelled tasks",
        |bench| {
            let ids = cancelled(bench)?;
            cancel_all(bench, &ids).map(drop)
        },
        |bench, ()| dequeue_all(bench, 1),
    )
}

fn many_partitions(bench: &mut Bench) -> Result<(), Any> {
    (0..1_000).try_for_each(|n| bench.enqueue(&format!("p{n}"), 30).map(drop))
}

fn dequeue_all(bench: &mut Bench, n: usize) -> Result<usize, Any> {
    for calls in 1.. {
        let command = bench.queue.dequeue(n)?;
        let dequeued = bench.run(command)?;
        if dequeued.deliveries.is_empty() && !dequeued.more {
            return Ok(calls);
        }
    }
    Ok(0)
}

fn sweep_all(bench: &mut Bench, (): ()) -> Result<usize, Any> {
    for calls in 1.. {
        let command = bench.queue.sweep();
        if !bench.run(command)?.more {
            return Ok(calls);
        }
    }
    Ok(0)
}

fn cancel_all(bench: &mut Bench, ids: &[TaskId]) -> Result<usize, Any> {
    for ids in ids.chunks(1_000) {
        let command = bench.queue.cancel(ids.iter().cloned())?;
        bench.run(command)?;
    }
    Ok(ids.len() / 1_000)
}

fn main() -> Result<(), Any> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".into());
    let client = redis::Client::open(url.as_str())?;
    let runner = Blocking::connect(&url)?.time_limit(Duration::from_secs(60));
    let queue = Queue::new(format!("{{pings-{}}}", std::process::id()))?;
    println!("| load | calls | seconds | pings | p99 ms | worst ms |");
    println!("|---|---:|---:|---:|---:|---:|");
    let mut bench = Bench { client, runner, queue };
    let outcome = loads(&mut bench);
    bench.empty()?;
    outcome
}
