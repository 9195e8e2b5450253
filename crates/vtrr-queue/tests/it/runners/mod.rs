//! The runners: one conformance list on each of them, and what they do when the server goes away.

mod conformance;
mod failures;
mod given;
mod said_once;
mod sentinel;
mod wake;

use std::fmt::Write as _;

use redis::ConnectionLike;
use tokio::runtime::Runtime;
use vtrr_queue::{Blocking, Command, Dequeued, Error, Memory, Queue, Redis, Result, Runner, Settlement, Task};

use crate::server::Server;

/// Any runner, seen from a thread that waits.
trait Runs {
    fn run<C: Command>(&mut self, command: C) -> Result<C::Reply>;
}

impl Runs for Memory {
    fn run<C: Command>(&mut self, command: C) -> Result<C::Reply> {
        self.run_now(command)
    }
}

impl<K: ConnectionLike> Runs for Blocking<K> {
    fn run<C: Command>(&mut self, command: C) -> Result<C::Reply> {
        Blocking::run(self, command)
    }
}

/// An async runner with a runtime of its own.
struct Async(Runtime, Redis);

impl Async {
    fn new(redis: Redis) -> Self {
        Self(Runtime::new().unwrap(), redis)
    }
}

impl Runs for Async {
    fn run<C: Command>(&mut self, command: C) -> Result<C::Reply> {
        self.0.block_on(self.1.run(command))
    }
}

fn queue(name: &str) -> Queue {
    Queue::new(name).unwrap()
}

fn tasks(n: usize) -> Vec<Task> {
    (0..n).map(|i| Task::new("resize", &[i]).unwrap()).collect()
}

fn enqueue(runner: &mut impl Runs, queue: &Queue, n: usize) {
    let enqueued = runner.run(queue.enqueue("alice", tasks(n)).unwrap()).unwrap();
    assert_eq!((enqueued.ids.len(), enqueued.duplicates.len()), (n, 0));
}

fn dequeue(runner: &mut impl Runs, queue: &Queue, n: usize) -> Dequeued {
    runner.run(queue.dequeue(n).unwrap()).unwrap()
}

fn ack(runner: &mut impl Runs, queue: &Queue, dequeued: &Dequeued) {
    if dequeued.deliveries.is_empty() {
        return;
    }
    let settlements = dequeued.deliveries.iter().map(Settlement::ack).collect();
    let settled = runner.run(queue.settle(settlements).unwrap()).unwrap();
    assert!(settled.iter().all(|settled| *settled == vtrr_queue::Settled::Done), "{settled:?}");
}

/// How many tasks were ever enqueued in the queue.
fn enqueued(runner: &mut impl Runs, queue: &Queue) -> u64 {
    runner.run(queue.stats()).unwrap().totals["enqueued"]
}

/// An error and all that caused it, in both of its forms.
fn chain(error: &Error) -> String {
    let mut text = String::new();
    let mut next: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = next {
        writeln!(text, "{error} {error:?}").unwrap();
        next = error.source();
    }
    text
}

/// A port on which nobody listens.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn socket_url(server: &Server) -> String {
    format!("unix://{}", server.socket().display())
}

/// The URL of a server with TLS, and whom to trust.
fn tls_url(server: &Server) -> String {
    format!("{}?ssl_ca_certs={}", server.url(), server.ca_file().display())
}
