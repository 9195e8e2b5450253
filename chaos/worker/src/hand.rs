//! A user's own loop around the core, without our worker: it takes tasks one by one, runs them, and gives some back.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;
use vtrr_queue::worker::BoxError;
use vtrr_queue::{Cause, Delivery, Queue, Redis, Released, Runner, Settlement};

use crate::ledger::Ledger;
use crate::settings::{self, milliseconds, number};
use crate::stopping::Stopping;
use crate::watched::{TIME_LIMIT, Watched};

struct Hand {
    ledger: Arc<Ledger>,
    queue: Queue,
    runner: Watched<Redis>,
    stopping: Stopping,
    lease: Duration,
    max_deliveries: u32,
    /// A file that, while there, makes `restless` tasks give themselves back.
    restless: PathBuf,
}

pub(crate) async fn run() -> Result<(), BoxError> {
    let ledger = Arc::new(Ledger::open()?);
    let folder = PathBuf::from(settings::text("CHAOS_FOLDER")?);
    let store = settings::store()?.time_limit(TIME_LIMIT);
    let hand = Arc::new(Hand {
        queue: settings::queue()?,
        runner: Watched::new(store, Arc::clone(&ledger), settings::mutant()?, folder.join("spoil")),
        stopping: Stopping::heeded()?,
        lease: milliseconds("CHAOS_LEASE_MS")?,
        max_deliveries: number("CHAOS_MAX_DELIVERIES")?,
        restless: folder.join("restless"),
        ledger,
    });
    hand.ledger.note("ready", "");
    let mut loops = JoinSet::new();
    for _ in 0..number("CHAOS_CONCURRENCY")? {
        loops.spawn(Arc::clone(&hand).work());
    }
    while let Some(ended) = loops.join_next().await {
        ended??;
    }
    hand.ledger.note("stopped", "");
    Ok(())
}

impl Hand {
    async fn work(self: Arc<Self>) -> Result<(), BoxError> {
        let owner = Queue::fresh_owner();
        let mut settlements = Vec::new();
        loop {
            let n = usize::from(!self.stopping.has_come());
            let dequeue = self.queue.dequeue(n)?.lease(self.lease)?.max_deliveries(self.max_deliveries)?;
            let call = dequeue.owner(owner.clone(), Vec::new()).settle(std::mem::take(&mut settlements))?;
            let deliveries = self.runner.run(call).await?.deliveries;
            if n == 0 {
                return Ok(());
            }
            if deliveries.is_empty() {
                sleep(Duration::from_millis(20)).await;
            }
            for delivery in &deliveries {
                settlements.push(self.attend(delivery).await?);
            }
        }
    }

    async fn attend(&self, delivery: &Delivery) -> Result<Settlement, BoxError> {
        let invocation = delivery.payload.invocation()?;
        self.ledger.note("start", &format!("{} {}", delivery.id, delivery.deliveries));
        sleep(Duration::from_millis(invocation.kwargs["ms"].as_u64().unwrap_or_default())).await;
        let failed = |error: &str| {
            self.ledger.note("failed", delivery.id.as_str());
            error.to_owned()
        };
        Ok(match invocation.task_name.as_str() {
            "restless" if self.restless.exists() => Settlement::release(delivery, Duration::ZERO, Released::Ran)?,
            "flaky" if delivery.deliveries == 1 => {
                failed("a first run");
                Settlement::retry(delivery, Duration::from_millis(300), None)?
            }
            "bad" => Settlement::fail(delivery, Cause::Failed, failed("planned")),
            _ => {
                self.ledger.note("end", delivery.id.as_str());
                Settlement::ack(delivery)
            }
        })
    }
}
