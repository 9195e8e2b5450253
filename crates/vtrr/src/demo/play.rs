//! The play: two real queues on one runner, the same tasks in both, two real workers on each.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use vtrr_queue::{Context, Error, Queue, Result, Runner, Task, Worker};

use super::erase::Erase;
use super::scene::{Event, Side, USERS, WORKERS};

const TASK_NAME: &str = "demo";

/// How long a task that runs may take to end when the play is broken off.
const GRACE: Duration = Duration::from_secs(1);

/// Two empty queues, and what is needed to fill and serve them.
pub(super) struct Play<R> {
    runner: R,
    queues: [Queue; 2],
    task_time: Duration,
}

impl<R: Runner + Clone + 'static> Play<R> {
    /// Two queues with names of their own. Errors: the server cannot be used.
    pub(super) async fn prepare(runner: R, task_time: Duration) -> Result<Self> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let name = |side| format!("vtrr-demo-{:x}-{}-{side}", now.as_nanos(), std::process::id());
        let queues = [Queue::new(name("fair"))?, Queue::new(name("unfair"))?];
        // Connects, before anything is timed or shown.
        for queue in &queues {
            runner.run(queue.stats()).await?;
        }
        Ok(Self { runner, queues, task_time })
    }

    /// Submits all tasks and works until `stopped`, telling what happens; at the end nothing is left of the queues.
    pub(super) async fn perform(self, tell: mpsc::UnboundedSender<Event>, stopped: watch::Receiver<bool>) -> Result<()> {
        let performed = match self.submit(&tell).await {
            Ok(()) => self.work(&tell, &stopped).await,
            Err(error) => Err(error),
        };
        drop(tell);
        let cleaned = self.clean_up().await;
        performed.and(cleaned)
    }

    async fn submit(&self, tell: &mpsc::UnboundedSender<Event>) -> Result<()> {
        for (user, of) in USERS.iter().enumerate() {
            for side in Side::BOTH {
                let tasks = (1..=of.tasks).map(|number| Task::new(TASK_NAME, &(user, number)));
                let tasks = tasks.collect::<Result<Vec<_>>>()?;
                let partition = match side {
                    Side::Fair => of.name,
                    Side::Unfair => "everybody",
                };
                self.runner.run(self.queues[side as usize].enqueue(partition, tasks)?).await?;
                let _ = tell.send(Event::Submitted { side, user, at: Instant::now() });
            }
        }
        Ok(())
    }

    async fn work(&self, tell: &mpsc::UnboundedSender<Event>, stopped: &watch::Receiver<bool>) -> Result<()> {
        let mut workers = JoinSet::new();
        for side in Side::BOTH {
            for worker in 0..WORKERS {
                let (worker, mut stopped) = (self.worker(side, worker, tell.clone())?, stopped.clone());
                workers.spawn(worker.run_until(async move {
                    // An error: nobody is left who could say stop.
                    let _ = stopped.wait_for(|stopped| *stopped).await;
                }));
            }
        }
        let ended = workers.join_all().await;
        ended.into_iter().try_for_each(|ended| ended.map(drop))
    }

    /// One worker, whose handler does nothing but take its time.
    fn worker(&self, side: Side, worker: usize, tell: mpsc::UnboundedSender<Event>) -> Result<Worker<R>> {
        let task_time = self.task_time;
        Worker::builder(self.queues[side as usize].clone(), self.runner.clone())
            .concurrency(1)
            .grace(GRACE)
            .register(TASK_NAME, move |_: Context, (user, number): (usize, usize)| {
                let tell = tell.clone();
                async move {
                    let _ = tell.send(Event::Started { side, user, number, worker, at: Instant::now() });
                    tokio::time::sleep(task_time).await;
                    let _ = tell.send(Event::Ended { side, user, number, at: Instant::now() });
                    Ok::<_, Error>(())
                }
            })
            .build()
    }

    async fn clean_up(&self) -> Result<()> {
        for queue in &self.queues {
            self.runner.run(queue.purge_all()).await?;
            self.runner.run(Erase::new(queue)).await?;
        }
        Ok(())
    }
}
