//! vtrr-queue 0.1.0 on the wire: the real package from `PyPI` and this crate on the same queues.

mod foreign;
mod order;
mod switches;
mod together;
mod twice;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use redis::Connection;
use serde_json::{Value, json};
use vtrr_queue::{Blocking, Body, Delivery, Queue, Settled, Settlement, Task, TaskId, Whereabouts};

use crate::server::{Kind, Server};

/// The server of these tests; each of them has a queue name of its own.
fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| Server::start(Kind::Redis))
}

/// A Python process with 0.1.0 in it.
fn python() -> Command {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = package.join("../../target/reference/bin/python");
    assert!(python.is_file(), "no vtrr-queue 0.1.0 here: run `make servers`");
    let mut command = Command::new(python);
    command.current_dir(package.join("tests")).env("PYTHONDONTWRITEBYTECODE", "1").env("REFERENCE_URL", server().url());
    command.stdin(Stdio::piped());
    command
}

/// 0.1.0 as a library: it enqueues and dequeues when told to. Ends with the test process, which holds its input.
struct Driver {
    child: Child,
    output: BufReader<ChildStdout>,
}

fn ask(request: &str) -> Value {
    static DRIVER: OnceLock<Mutex<Driver>> = OnceLock::new();
    let driver = DRIVER.get_or_init(|| {
        let mut child = python().arg("reference.py").stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Mutex::new(Driver { child, output })
    });
    let mut driver = driver.lock().unwrap_or_else(PoisonError::into_inner);
    writeln!(driver.child.stdin.as_mut().unwrap(), "{request}").unwrap();
    let mut answer = String::new();
    driver.output.read_line(&mut answer).unwrap();
    serde_json::from_str(&answer).unwrap_or_else(|error| panic!("0.1.0 answered {request} with {answer:?}: {error}"))
}

/// A call of 0.1.0's `.queue()`; every task is the JSON text of a dict with id, weight, args and kwargs.
fn theirs_enqueue(queue: &str, partition: &str, tasks: &[Job]) {
    let tasks: Vec<_> = tasks.iter().map(Job::for_0_1_0).collect();
    let (queue, partition) = (json!(queue), json!(partition));
    ask(&format!("{{\"queue\":{queue},\"partition\":{partition},\"tasks\":[{}]}}", tasks.join(",")));
}

/// Up to `n` calls of 0.1.0's `_dequeue`: the bodies of the tasks it handed out.
fn theirs_dequeue(queue: &str, n: Option<usize>) -> Vec<String> {
    let answer = ask(&json!({"queue": queue, "n": n}).to_string());
    serde_json::from_value(answer.clone()).unwrap_or_else(|_| panic!("0.1.0 failed: {answer}"))
}

/// A task for either side to enqueue.
#[derive(Debug, Clone)]
struct Job {
    id: String,
    weight: u32,
    args: String,
    kwargs: &'static str,
}

/// Named arguments that suffer from decoding and encoding, in the text that Python makes of them.
const KWARGS: [&str; 5] = [
    "{}",
    r#"{"empty": [[], {}, "", null], "deep": [[[[[{"a": [1, {"b": []}]}]]]]]}"#,
    r#"{"big": 123456789012345678901234567890, "small": -9007199254740993, "float": 0.1, "long": 1e+22}"#,
    r#"{"text": "\u00fc \ud83d\ude00 \\ \" / \u0000 \n", "weight": 9, "partition_key": "\",\"weight\":7"}"#,
    r#"{"odd": [NaN, Infinity, -Infinity, -0.0, 1.0, true]}"#,
];

impl Job {
    fn new(number: usize) -> Self {
        Self { id: format!("id-{number}"), weight: 1, args: format!("[{number}]"), kwargs: KWARGS[number % KWARGS.len()] }
    }

    fn for_0_1_0(&self) -> String {
        let Self { id, weight, args, kwargs } = self;
        format!("{{\"id\":{},\"weight\":{weight},\"args\":{args},\"kwargs\":{kwargs}}}", json!(id))
    }

    /// What 0.1.0 would store.
    fn body(&self) -> String {
        format!("{{\"task_name\": \"reference.record\", \"args\": {}, \"kwargs\": {}}}", self.args, self.kwargs)
    }

    fn for_us(&self) -> Task {
        let task = Task::with_body(Body::from_json(self.body()).unwrap()).weight(self.weight.into()).unwrap();
        task.id(TaskId::new(self.id.as_str()).unwrap())
    }
}

/// A queue, and a connection to look into it.
struct Ours {
    name: String,
    queue: Queue,
    runner: Blocking<Connection>,
    redis: Connection,
}

impl Ours {
    fn new(name: &str) -> Self {
        let redis = redis::Client::open(server().url()).unwrap().get_connection().unwrap();
        let (queue, runner) = (Queue::new(name).unwrap(), Blocking::connect(&server().url()).unwrap());
        Self { name: name.to_owned(), queue, runner, redis }
    }

    fn run<C: vtrr_queue::Command>(&mut self, command: C) -> C::Reply {
        self.runner.run(command).unwrap()
    }

    fn enqueue(&mut self, partition: &str, jobs: &[Job]) {
        let enqueued = self.run(self.queue.enqueue(partition, jobs.iter().map(Job::for_us)).unwrap());
        assert!(enqueued.duplicates.is_empty(), "{enqueued:?}");
    }

    fn dequeue(&mut self, n: usize) -> Vec<Delivery> {
        self.run(self.queue.dequeue(n).unwrap()).deliveries
    }

    fn next(&mut self) -> Delivery {
        self.dequeue(1).pop().expect("there is a task")
    }

    fn ack(&mut self, deliveries: &[Delivery]) {
        if !deliveries.is_empty() {
            let settled = self.run(self.queue.settle(deliveries.iter().map(Settlement::ack).collect()).unwrap());
            assert!(settled.iter().all(|settled| *settled == Settled::Done), "{settled:?}");
        }
    }

    /// Takes and acks up to `n` tasks: their bodies.
    fn work(&mut self, n: usize) -> Vec<String> {
        let deliveries = self.dequeue(n);
        self.ack(&deliveries);
        deliveries.iter().map(body).collect()
    }

    /// Takes and acks all tasks, a few at a time.
    fn drain(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        for n in (1..5).cycle() {
            let some = self.work(n);
            if some.is_empty() {
                break;
            }
            all.extend(some);
        }
        all
    }

    /// Where a task is, and how often it was delivered.
    fn find(&mut self, id: &str) -> Option<(Whereabouts, u32)> {
        let found = self.run(self.queue.find(TaskId::new(id).unwrap()));
        found.map(|found| (found.whereabouts, found.deliveries))
    }

    /// Copies all keys of the queue to another one.
    fn copy(&mut self, name: &str) -> Self {
        for key in self.keys() {
            let (from, to) = (self.key(&key), format!("vtrr:{name}:{key}"));
            redis::cmd("COPY").arg(from).arg(to).exec(&mut self.redis).unwrap();
        }
        Self::new(name)
    }

    fn key(&self, key: &str) -> String {
        format!("vtrr:{}:{key}", self.name)
    }

    /// The keys that there are, without the queue's prefix.
    fn keys(&mut self) -> Vec<String> {
        let prefix = self.key("");
        let mut keys: Vec<String> = redis::cmd("KEYS").arg(format!("{prefix}*")).query(&mut self.redis).unwrap();
        keys.sort();
        keys.into_iter().map(|key| key[prefix.len()..].to_owned()).collect()
    }

    /// Nothing is left but what stays of every queue, and what expires by itself.
    fn assert_clean(&mut self) {
        let stays = ["meta", "current_virtual_time", "request", "answer"];
        let left: Vec<_> = self.keys().into_iter().filter(|key| !stays.contains(&key.as_str())).collect();
        assert!(left.is_empty(), "left over: {left:?}");
    }
}

fn body(delivery: &Delivery) -> String {
    String::from_utf8(delivery.payload.body()).unwrap()
}

/// Random numbers, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % n
    }
}
