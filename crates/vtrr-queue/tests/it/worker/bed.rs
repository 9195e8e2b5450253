//! A queue with workers on it.

use std::future::Future;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use vtrr_queue::worker::{Summary, WorkerBuilder};
use vtrr_queue::{DeadLetter, Found, Queue, Result, Runner, Task, TaskId, Totals, Worker};

/// Nothing here takes this long; what does, hangs.
const TOO_LONG: Duration = Duration::from_secs(60);

/// A queue of its own on a runner.
#[derive(Clone)]
pub(super) struct Bed<R> {
    pub(super) queue: Queue,
    pub(super) runner: R,
}

impl<R: Runner + Clone + 'static> Bed<R> {
    pub(super) fn new(runner: R) -> Self {
        Self { queue: Queue::new(format!("worker-{}", Queue::fresh_owner())).unwrap(), runner }
    }

    /// A worker that looks often, stops at once and is otherwise as by default.
    pub(super) fn worker(&self) -> WorkerBuilder<R> {
        Worker::builder(self.queue.clone(), self.runner.clone())
            .poll(Duration::from_millis(20))
            .sweep_interval(Duration::from_millis(50))
            .grace(Duration::ZERO)
            .unknown_delay(Duration::from_millis(1))
    }

    pub(super) async fn enqueue(&self, partition: &str, tasks: impl IntoIterator<Item = Task>) -> Vec<TaskId> {
        self.runner.run(self.queue.enqueue(partition, tasks).unwrap()).await.unwrap().ids
    }

    pub(super) async fn enqueue_call(&self, task_name: &str) -> TaskId {
        self.enqueue("p", [Task::new(task_name, &()).unwrap()]).await.remove(0)
    }

    pub(super) async fn stats(&self) -> Totals {
        self.runner.run(self.queue.stats()).await.unwrap()
    }

    pub(super) async fn find(&self, id: &TaskId) -> Option<Found> {
        self.runner.run(self.queue.find(id.clone())).await.unwrap()
    }

    /// The dead letters, once there are so many.
    pub(super) async fn dead_letters(&self, n: u64) -> Vec<DeadLetter> {
        eventually("dead letters", async || self.stats().await.dead == n).await;
        self.runner.run(self.queue.dead_letters(0, 1_000).unwrap()).await.unwrap()
    }

    /// Once nothing is queued, leased or delayed.
    pub(super) async fn drained(&self) {
        eventually("an empty queue", async || {
            let stats = self.stats().await;
            (stats.queued, stats.leased, stats.delayed) == (0, 0, 0)
        })
        .await;
    }
}

/// A worker at work.
pub(super) struct Working {
    stop: oneshot::Sender<()>,
    ended: JoinHandle<Result<Summary>>,
}

impl Working {
    pub(super) fn start<R: Runner + 'static>(builder: WorkerBuilder<R>) -> Self {
        Self::run(builder.build().unwrap())
    }

    pub(super) fn run<R: Runner + 'static>(worker: Worker<R>) -> Self {
        let (stop, stopped) = oneshot::channel();
        let ended = tokio::spawn(worker.run_until(async {
            let _ = stopped.await;
        }));
        Self { stop, ended }
    }

    /// Tells it to stop; answers what tells when it has.
    pub(super) fn tell_to_stop(self) -> impl Future<Output = Summary> {
        self.stop.send(()).unwrap();
        async { in_time(self.ended).await.unwrap().unwrap() }
    }

    pub(super) async fn stop(self) -> Summary {
        self.tell_to_stop().await
    }

    /// As if its process had died.
    pub(super) fn kill(self) {
        self.ended.abort();
    }
}

/// What handlers tell the test.
pub(super) fn events<T>() -> (mpsc::UnboundedSender<T>, Events<T>) {
    let (tell, told) = mpsc::unbounded_channel();
    (tell, Events(told))
}

pub(super) struct Events<T>(mpsc::UnboundedReceiver<T>);

impl<T> Events<T> {
    pub(super) async fn next(&mut self) -> T {
        in_time(self.0.recv()).await.expect("nobody tells any more")
    }

    pub(super) async fn take(&mut self, n: usize) -> Vec<T> {
        let mut taken = Vec::new();
        while taken.len() < n {
            taken.push(self.next().await);
        }
        taken
    }

    /// What was told and not taken yet.
    pub(super) fn rest(&mut self) -> Vec<T> {
        std::iter::from_fn(|| self.0.try_recv().ok()).collect()
    }
}

pub(super) async fn in_time<T>(future: impl Future<Output = T>) -> T {
    timeout(TOO_LONG, future).await.expect("it hangs")
}

/// Waits for something that no event tells.
pub(super) async fn eventually(what: &str, holds: impl AsyncFn() -> bool) {
    let poll = async {
        while !holds().await {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(TOO_LONG, poll).await.unwrap_or_else(|_| panic!("never: {what}"));
}

/// Tells when it is dropped.
pub(super) struct OnDrop<T: Clone>(pub(super) mpsc::UnboundedSender<T>, pub(super) T);

impl<T: Clone> Drop for OnDrop<T> {
    fn drop(&mut self) {
        let _ = self.0.send(self.1.clone());
    }
}
