//! The worker on a runner that loses what it is told to lose.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use super::{BoxError, Context, Worker, WorkerBuilder};
use crate::command::Command;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::Memory;
use crate::queue::Queue;
use crate::runner::{Listener, Runner};
use crate::task::{Task, TaskId};

type Fault = fn(u32) -> Option<Loss>;

#[derive(Clone, Copy)]
enum Loss {
    /// The command does not arrive.
    Request(ErrorKind),
    /// The command is run; its answer does not arrive.
    Reply,
}

/// Loses what `fault` says of the n-th command.
struct Lossy {
    memory: Arc<Memory>,
    commands: AtomicU32,
    fault: Fault,
    faulty: Notify,
}

impl Lossy {
    fn new(fault: Fault) -> Arc<Self> {
        Arc::new(Self { memory: Arc::default(), commands: AtomicU32::new(0), fault, faulty: Notify::new() })
    }
}

impl Runner for Lossy {
    async fn run<C: Command>(&self, command: C) -> Result<C::Reply> {
        let n = self.commands.fetch_add(1, Ordering::SeqCst);
        let error = match (self.fault)(n) {
            None => return self.memory.run_now(command),
            Some(Loss::Request(kind)) => Error::new(kind, "lost request"),
            Some(Loss::Reply) => {
                let _ = self.memory.run_now(command);
                Error::new(ErrorKind::Unavailable, "lost reply")
            }
        };
        self.faulty.notify_one();
        Err(error)
    }

    async fn listen(&self, queue: &Queue) -> Result<Listener> {
        self.memory.listen(queue).await
    }
}

/// The delivery counts that a task's runs saw.
type Runs = Arc<Mutex<HashMap<TaskId, Vec<u32>>>>;

/// A worker that never sweeps, on `n` tasks.
fn bed(lossy: &Arc<Lossy>, n: usize) -> (Queue, WorkerBuilder<Arc<Lossy>>, Runs) {
    let queue = Queue::new("q").unwrap();
    let tasks = (0..n).map(|_| Task::new("t", &()).unwrap());
    lossy.memory.run_now(queue.enqueue("p", tasks).unwrap()).unwrap();
    let runs = Runs::default();
    let counted = Arc::clone(&runs);
    let builder = Worker::builder(queue.clone(), Arc::clone(lossy)).sweep_interval(Duration::from_secs(3_600));
    let builder = builder.register("t", move |context: Context, (): ()| {
        counted.lock().unwrap().entry(context.id().clone()).or_default().push(context.deliveries());
        async { Ok::<_, BoxError>(()) }
    });
    (queue, builder, runs)
}

/// How many ran; each of them once, on its first delivery.
fn once_each(runs: &Runs) -> usize {
    let runs = runs.lock().unwrap();
    assert!(runs.values().all(|deliveries| deliveries == &[1]), "{runs:?}");
    runs.len()
}

async fn drained(lossy: &Lossy, queue: &Queue) {
    loop {
        let stats = lossy.memory.run_now(queue.stats()).unwrap();
        if stats.queued + stats.leased + stats.delayed == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn whatever_is_lost_each_task_runs_once() {
    let lossy = Lossy::new(|n| match n % 4 {
        1 => Some(Loss::Request(ErrorKind::Unavailable)),
        3 => Some(Loss::Reply),
        _ => None,
    });
    let (queue, builder, runs) = bed(&lossy, 60);
    let worker = builder.concurrency(10).build().unwrap();
    let summary = worker.run_until(drained(&lossy, &queue)).await.unwrap();
    assert_eq!((summary.succeeded, summary.lost), (60, 0));
    assert_eq!(once_each(&runs), 60);
}

/// At the end of an outage that outlasts the leases, what was done meanwhile is settled before anything is reclaimed.
#[tokio::test]
async fn an_outage_longer_than_the_lease_runs_nothing_twice() {
    let lossy = Lossy::new(|n| (1..6).contains(&n).then_some(Loss::Request(ErrorKind::Unavailable)));
    let (queue, builder, runs) = bed(&lossy, 10);
    let worker = builder.concurrency(10).lease(Duration::from_millis(1)).build().unwrap();
    let summary = worker.run_until(drained(&lossy, &queue)).await.unwrap();
    assert_eq!((summary.succeeded, summary.lost, once_each(&runs)), (10, 0, 10));
}

#[tokio::test]
async fn a_worker_that_stops_gives_back_what_a_lost_reply_handed_out() {
    let lossy = Lossy::new(|n| (n == 0).then_some(Loss::Reply));
    let (queue, builder, runs) = bed(&lossy, 10);
    let worker = builder.concurrency(10).build().unwrap();
    let summary = worker.run_until(lossy.faulty.notified()).await.unwrap();
    assert_eq!((summary.succeeded, runs.lock().unwrap().len()), (0, 0));
    let stats = lossy.memory.run_now(queue.stats()).unwrap();
    assert_eq!((stats.queued, stats.leased), (10, 0));
}

#[tokio::test]
async fn a_worker_that_cannot_settle_in_the_end_says_so() {
    let lossy = Lossy::new(|n| (n > 0).then_some(Loss::Request(ErrorKind::Unavailable)));
    let (_, builder, _) = bed(&lossy, 1);
    let error = builder.build().unwrap().run_until(lossy.faulty.notified()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn a_newer_format_ends_the_worker() {
    let lossy = Lossy::new(|n| (n == 1).then_some(Loss::Request(ErrorKind::Version)));
    let (_, builder, _) = bed(&lossy, 1);
    let error = builder.build().unwrap().run_until(std::future::pending()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Version);
}

#[tokio::test]
async fn a_server_that_refuses_for_a_while_is_asked_again() {
    let lossy = Lossy::new(|n| (2..6).contains(&n).then_some(Loss::Request(ErrorKind::Server)));
    let (queue, builder, runs) = bed(&lossy, 30);
    let summary = builder.build().unwrap().run_until(drained(&lossy, &queue)).await.unwrap();
    assert_eq!((summary.succeeded, once_each(&runs)), (30, 30));
}
