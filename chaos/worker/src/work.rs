//! The worker: tasks of each kind that a row of the table needs.

use std::path::PathBuf;
use std::process;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use vtrr_queue::worker::{BoxError, Options};
use vtrr_queue::{Context, Worker};

use crate::ledger::Ledger;
use crate::settings::{self, milliseconds, number};
use crate::watched::{TIME_LIMIT, Watched};

/// The named argument of all tasks: how long the body takes.
#[derive(Deserialize)]
struct Args {
    ms: u64,
}

struct Bodies(Arc<Ledger>);

impl Bodies {
    async fn body(&self, context: &Context, args: &Args) {
        self.0.note("start", &format!("{} {}", context.id(), context.deliveries()));
        tokio::time::sleep(Duration::from_millis(args.ms)).await;
    }

    fn end(&self, context: &Context) {
        self.0.note("end", &context.id().to_string());
    }

    fn fail(&self, context: &Context, error: &str) -> Result<(), BoxError> {
        self.0.note("failed", &context.id().to_string());
        Err(error.into())
    }

    async fn work(self: Arc<Self>, context: Context, args: Args) -> Result<(), BoxError> {
        self.body(&context, &args).await;
        self.end(&context);
        Ok(())
    }

    /// Ends well when it is run again.
    async fn flaky(self: Arc<Self>, context: Context, args: Args) -> Result<(), BoxError> {
        self.body(&context, &args).await;
        if context.retries() == 0 {
            return self.fail(&context, "a first run");
        }
        self.end(&context);
        Ok(())
    }

    async fn bad(self: Arc<Self>, context: Context, args: Args) -> Result<(), BoxError> {
        self.body(&context, &args).await;
        self.fail(&context, "planned")
    }

    async fn poison(self: Arc<Self>, context: Context, args: Args) -> Result<(), BoxError> {
        self.body(&context, &args).await;
        process::abort();
    }

    /// Takes memory until there is none.
    async fn hungry(self: Arc<Self>, context: Context, args: Args) -> Result<(), BoxError> {
        self.body(&context, &args).await;
        if context.deliveries() == 1 {
            let eaten: Vec<u8> = vec![1; 2_000_000_000];
            std::hint::black_box(eaten);
        }
        self.end(&context);
        Ok(())
    }
}

pub(crate) async fn run() -> Result<(), BoxError> {
    let ledger = Arc::new(Ledger::open()?);
    let spoil = PathBuf::from(settings::text("CHAOS_FOLDER")?).join("spoil");
    let runner = Watched::new(settings::store()?.time_limit(TIME_LIMIT), Arc::clone(&ledger), settings::mutant()?, spoil);
    let bodies = Arc::new(Bodies(Arc::clone(&ledger)));
    macro_rules! body {
        ($name:ident) => {{
            let bodies = Arc::clone(&bodies);
            move |context, args: Args| Arc::clone(&bodies).$name(context, args)
        }};
    }
    let again = Options::new().autoretry_any().max_retries(3).default_retry_delay(Duration::from_millis(300));
    let mut builder = Worker::builder(settings::queue()?, runner)
        .concurrency(number("CHAOS_CONCURRENCY")?)
        .lease(milliseconds("CHAOS_LEASE_MS")?)
        .sweep_interval(milliseconds("CHAOS_SWEEP_MS")?)
        .max_deliveries(number("CHAOS_MAX_DELIVERIES")?)
        .unknown_delay(Duration::from_millis(500))
        .register("work", body!(work))
        .register_with("flaky", again, body!(flaky))
        .register("bad", body!(bad))
        .register("poison", body!(poison))
        .register("hungry", body!(hungry));
    if std::env::var_os("CHAOS_OLD").is_none() {
        builder = builder.register("fresh", body!(work));
    }
    let worker = builder.build()?;
    // Polled second: by then the worker heeds signals.
    let (ended, ()) = tokio::join!(worker.run(), async { ledger.note("ready", "") });
    ended?;
    ledger.note("stopped", "");
    Ok(())
}
