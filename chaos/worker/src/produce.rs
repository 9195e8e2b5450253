//! The producer: calls of 1 to 40 tasks until SIGTERM, each repeated until it is accepted, as docs/production.md says.

use std::collections::HashMap;
use std::time::Duration;

use fastrand::Rng;
use tokio::time::sleep;
use vtrr_queue::worker::BoxError;
use vtrr_queue::{Queue, Redis, Runner, Task, TaskId};

use crate::ledger::Ledger;
use crate::settings::{self, number, text};
use crate::stopping::Stopping;
use crate::watched::TIME_LIMIT;

/// With so many queued it waits.
const ENOUGH: u64 = 1_000;

struct Producer {
    queue: Queue,
    runner: Redis,
    ledger: Ledger,
    name: String,
    partitions: usize,
    max_ms: u64,
    random: Rng,
    calls: u64,
    stopping: Stopping,
}

pub(crate) async fn run() -> Result<(), BoxError> {
    let mut producer = Producer {
        queue: settings::queue()?,
        runner: settings::store()?.time_limit(TIME_LIMIT),
        ledger: Ledger::open()?,
        name: text("CHAOS_PRODUCER")?,
        partitions: number("CHAOS_PARTITIONS")?,
        max_ms: number("CHAOS_MAX_MS")?,
        random: Rng::with_seed(number("CHAOS_SEED")?),
        calls: 0,
        stopping: Stopping::heeded()?,
    };
    producer.ledger.note("ready", "");
    while !producer.stopping.has_come() {
        // A call that has begun is brought to its end: what was offered is accounted for.
        producer.call().await?;
        while !producer.stopping.has_come() && producer.has_enough().await {
            sleep(Duration::from_millis(20)).await;
        }
    }
    producer.ledger.note("stopped", "");
    Ok(())
}

impl Producer {
    async fn has_enough(&self) -> bool {
        self.runner.run(self.queue.stats()).await.is_ok_and(|stats| stats.queued > ENOUGH)
    }

    /// One call of some tasks, until it is accepted.
    async fn call(&mut self) -> Result<(), BoxError> {
        self.calls += 1;
        let call = format!("{}-{}", self.name, self.calls);
        // Each producer has partitions of its own, so that the order in them is its own.
        let partition = format!("{}:p{}", self.name, self.random.usize(..self.partitions));
        let ids: Vec<_> = (0..self.random.usize(1..=40)).map(|n| format!("{call}.{n}")).collect();
        let tasks = ids.iter().map(|id| self.task(id)).collect::<Result<Vec<_>, BoxError>>()?;
        self.ledger.note("offered", &format!("{call} {partition} {}", ids.join(",")));
        let request = format!("request-{call}");
        loop {
            let command = self.queue.enqueue(&partition, tasks.clone())?.request(&request)?;
            match self.runner.run(command).await {
                Ok(_) => {
                    self.ledger.note("accepted", &call);
                    return Ok(());
                }
                Err(error) => self.ledger.note("refused", &format!("{call} {:?}", error.kind())),
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    fn task(&mut self, id: &str) -> Result<Task, BoxError> {
        let name = match self.random.u8(..100) {
            0..3 => "flaky",
            3..4 => "bad",
            _ => "work",
        };
        let args = HashMap::from([("ms", self.random.u64(..=self.max_ms))]);
        Ok(Task::new(name, &args)?.id(TaskId::new(id)?))
    }
}
