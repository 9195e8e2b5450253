//! First figures: what enqueue, dequeue and ack cost, beside vtrr-queue 0.1.0, on a private Redis in one run.
//!
//! `make bench`. Medians of five rounds. "Redis CPU" is what INFO tells, per task; it counts the server's system calls
//! too. Wall time is one blocking client that waits for each answer.
#![allow(
    missing_docs,
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a program that measures and prints"
)]

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use vtrr_queue::worker::BoxError;
use vtrr_queue::{Blocking, Command as _, Context, Queue, Redis, Settlement, Task, Worker};

const ROUNDS: usize = 5;
const BATCH: usize = 1_000;

struct Server {
    process: Child,
    port: u16,
    admin: redis::Connection,
}

impl Server {
    fn start() -> Self {
        let program = std::env::var("VTRR_REDIS_SERVER").unwrap_or_else(|_| "redis-server".into());
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let process = Command::new(program)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--loglevel", "warning"])
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server could not be started");
        let client = redis::Client::open(("127.0.0.1", port)).unwrap();
        let admin = loop {
            if let Ok(connection) = client.get_connection() {
                break connection;
            }
            std::thread::yield_now();
        };
        Self { process, port, admin }
    }

    fn connection(&self) -> redis::Connection {
        redis::Client::open(("127.0.0.1", self.port)).unwrap().get_connection().unwrap()
    }

    fn runner(&self) -> Blocking<redis::Connection> {
        Blocking::new(self.connection())
    }

    fn info(&mut self, section: &str, field: &str) -> f64 {
        let info: String = redis::cmd("INFO").arg(section).query(&mut self.admin).unwrap();
        let line = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).unwrap();
        line.trim().parse().unwrap()
    }

    /// CPU seconds the server has used.
    fn cpu(&mut self) -> f64 {
        self.info("cpu", "used_cpu_user") + self.info("cpu", "used_cpu_sys")
    }

    fn memory(&mut self) -> f64 {
        self.info("memory", "used_memory")
    }

    fn flush(&mut self) {
        redis::cmd("FLUSHALL").exec(&mut self.admin).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What one round measured, per task.
#[derive(Clone, Copy)]
struct Figures {
    wall_us: f64,
    cpu_us: f64,
    bytes: f64,
}

fn measure(server: &mut Server, tasks: usize, work: impl FnOnce()) -> Figures {
    let (cpu, memory, start) = (server.cpu(), server.memory(), Instant::now());
    work();
    let wall_us = start.elapsed().as_secs_f64() * 1e6 / tasks as f64;
    let cpu_us = (server.cpu() - cpu) * 1e6 / tasks as f64;
    Figures { wall_us, cpu_us, bytes: (server.memory() - memory) / tasks as f64 }
}

fn median(mut rounds: Vec<Figures>) -> Figures {
    let mut middle = |part: fn(&Figures) -> f64| {
        rounds.sort_by(|a, b| part(a).total_cmp(&part(b)));
        part(&rounds[rounds.len() / 2])
    };
    Figures { wall_us: middle(|f| f.wall_us), cpu_us: middle(|f| f.cpu_us), bytes: middle(|f| f.bytes) }
}

fn show(what: &str, figures: Figures) {
    let bytes = if figures.bytes > 0.0 { format!("{:>8.0}", figures.bytes) } else { "       –".into() };
    println!("{what:<48} {:>10.0} {:>10.2} {:>10.2} {bytes}", 1e6 / figures.wall_us, figures.wall_us, figures.cpu_us);
}

fn tasks(n: usize) -> Vec<Task> {
    (0..n).map(|_| Task::new("myapp.tasks.process_file", &("s3://bucket/a.pdf", "d_1")).unwrap()).collect()
}

/// 100 partitions with `each` tasks.
fn fill(runner: &mut Blocking<impl redis::ConnectionLike>, queue: &Queue, partitions: usize, each: usize) {
    for partition in 0..partitions {
        for _ in 0..each.div_ceil(BATCH) {
            runner.run(queue.enqueue(format!("user-{partition}"), tasks(each.min(BATCH))).unwrap()).unwrap();
        }
    }
}

fn enqueue(server: &mut Server, queue: &Queue) -> Figures {
    server.flush();
    let mut runner = server.runner();
    measure(server, 100 * BATCH, || fill(&mut runner, queue, 100, BATCH))
}

/// Dequeue and ack, two calls a batch; or the acks with the next dequeue, one call a batch.
fn serve(server: &mut Server, queue: &Queue, partitions: usize, batch: usize, one_call: bool) -> Figures {
    server.flush();
    let n = if batch == 1 { 2_000 } else { 10_000 };
    let mut runner = server.runner();
    fill(&mut runner, queue, partitions, 2 * n / partitions);
    let figures = measure(server, n, || {
        let mut settlements: Vec<Settlement> = Vec::new();
        for _ in 0..n / batch {
            let mut dequeue = queue.dequeue(batch).unwrap();
            if one_call {
                dequeue = dequeue.settle(std::mem::take(&mut settlements)).unwrap();
            }
            let deliveries = runner.run(dequeue).unwrap().deliveries;
            assert_eq!(deliveries.len(), batch);
            settlements = deliveries.iter().map(Settlement::ack).collect();
            if !one_call {
                runner.run(queue.settle(std::mem::take(&mut settlements)).unwrap()).unwrap();
            }
        }
    });
    Figures { bytes: 0.0, ..figures }
}

/// The same reads and writes without the rules: `floor.lua`.
fn floor(server: &mut Server, queue: &Queue, batch: usize) -> Figures {
    server.flush();
    let n = 10_000;
    let mut connection = server.connection();
    let call = queue.dequeue(batch).unwrap().call();
    let script = redis::Script::new(include_str!("floor.lua"));
    fill(&mut server.runner(), queue, 100, 2 * n / 100);
    let figures = measure(server, n, || {
        let mut done: Vec<String> = Vec::new();
        for _ in 0..n / batch {
            let mut call_of = script.prepare_invoke();
            for key in call.keys.iter() {
                call_of.key(key);
            }
            let deliveries: Vec<(String, String, String)> = call_of.arg(batch).arg(&done).invoke(&mut connection).unwrap();
            assert_eq!(deliveries.len(), batch);
            done = deliveries.into_iter().map(|(id, _, _)| id).collect();
        }
    });
    Figures { bytes: 0.0, ..figures }
}

/// The Rust worker with handlers that do nothing, until the last task is acked.
fn worker(server: &mut Server, queue: &Queue, concurrency: usize) -> Figures {
    server.flush();
    let n = 20_000;
    let url = format!("redis://127.0.0.1:{}", server.port);
    fill(&mut server.runner(), queue, 100, n / 100);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let done = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&done);
    let all_done = async move {
        while counted.load(Ordering::Relaxed) < n {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let worker = Worker::builder(queue.clone(), Redis::connect(url.as_str()).unwrap())
        .concurrency(concurrency)
        .register("myapp.tasks.process_file", move |_: Context, _: (String, String)| {
            done.fetch_add(1, Ordering::Relaxed);
            async { Ok::<_, BoxError>(()) }
        })
        .build()
        .unwrap();
    let figures = measure(server, n, || {
        let summary = runtime.block_on(worker.run_until(all_done)).unwrap();
        assert_eq!(summary.succeeded, n as u64);
    });
    Figures { bytes: 0.0, ..figures }
}

/// 0.1.0's own enqueue from Python, 100 calls of 1,000 tasks.
fn reference(server: &mut Server) -> Option<Figures> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let python = root.join("target/reference/bin/python");
    server.flush();
    let script = root.join("crates/vtrr-queue/benches/reference.py");
    let (cpu, memory) = (server.cpu(), server.memory());
    let output = Command::new(python).arg(script).arg(server.port.to_string()).output().ok()?;
    let seconds: f64 = String::from_utf8(output.stdout).ok()?.trim().parse().ok()?;
    let n = (100 * BATCH) as f64;
    let cpu_us = (server.cpu() - cpu) * 1e6 / n;
    Some(Figures { wall_us: seconds * 1e6 / n, cpu_us, bytes: (server.memory() - memory) / n })
}

fn main() {
    let mut server = Server::start();
    let queue = Queue::new("bench").unwrap();
    println!("{:<48} {:>10} {:>10} {:>10} {:>8}", "", "tasks/s", "µs wall", "µs Redis", "bytes");
    println!("{:<48} {:>10} {:>10} {:>10} {:>8}", "", "", "per task", "CPU", "per task");

    let ours = median((0..ROUNDS).map(|_| enqueue(&mut server, &queue)).collect());
    show("enqueue, batches of 1,000", ours);
    match (0..ROUNDS).map(|_| reference(&mut server)).collect::<Option<Vec<_>>>() {
        Some(rounds) => {
            let theirs = median(rounds);
            show("0.1.0 from Python, batches of 1,000", theirs);
            println!(
                "{:<48} {:>9.1}x {:>10} {:>9.2}x {:>7.2}x",
                "  ours to theirs",
                theirs.wall_us / ours.wall_us,
                "",
                ours.cpu_us / theirs.cpu_us,
                ours.bytes / theirs.bytes
            );
        }
        None => println!("0.1.0 is not installed: `make servers`"),
    }
    let least = median((0..ROUNDS).map(|_| floor(&mut server, &queue, 25)).collect());
    show("the reads and writes of 25 alone, 100 partitions", least);
    for partitions in [100, 1] {
        for batch in [1, 25, 100] {
            for one_call in [false, true] {
                let rounds = (0..ROUNDS).map(|_| serve(&mut server, &queue, partitions, batch, one_call)).collect();
                let how = if one_call { "in one call" } else { "then ack" };
                let ours = median(rounds);
                show(&format!("dequeue {batch} {how}, {partitions} partitions"), ours);
                if (partitions, batch, one_call) == (100, 25, true) {
                    println!(
                        "{:<48} {:>10} {:>10} {:>9.2}x",
                        "  to its reads and writes alone",
                        "",
                        "",
                        ours.cpu_us / least.cpu_us
                    );
                }
            }
        }
    }
    for concurrency in [1, 100] {
        let rounds = (0..ROUNDS).map(|_| worker(&mut server, &queue, concurrency)).collect();
        show(&format!("Rust worker, no-op tasks, {concurrency} at once"), median(rounds));
    }
}
