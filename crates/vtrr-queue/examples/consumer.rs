//! Works on a queue on Redis until SIGTERM or Ctrl-C; `producer` fills it.
//!
//! `REDIS_URL=redis://127.0.0.1/ QUEUE=files cargo run --example consumer`, with these in the environment too, if wanted:
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `CONCURRENCY` | tasks at once | 10 |
//! | `LEASE_MS` | lease | 30000 |
//! | `TASK_MS` | how long a task takes | 0 |
//! | `MAX_DELIVERIES` | deliveries before a task counts as poison | 5 |
//! | `GRACE_MS` | grace period | 25000 |
//! | `LOG` | a file that gets the lines `start ID DELIVERIES` and `end ID` | none |
#![allow(clippy::print_stdout, reason = "it tells what it does")]

use std::env;
use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::de::IgnoredAny;
use vtrr_queue::worker::BoxError;
use vtrr_queue::{Context, Queue, Redis, Worker};

fn setting<T: FromStr>(name: &str, default: &str) -> Result<T, String> {
    let text = env::var(name).unwrap_or_else(|_| default.to_owned());
    text.parse().map_err(|_| format!("{name} must not be {text:?}"))
}

fn milliseconds(name: &str, default: &str) -> Result<Duration, String> {
    setting(name, default).map(Duration::from_millis)
}

/// What tasks do here.
struct Work {
    task_time: Duration,
    log: Option<File>,
}

impl Work {
    /// One write, so that lines of several processes do not mix.
    fn log(&self, line: &str) -> std::io::Result<()> {
        match &self.log {
            Some(file) => (&mut &*file).write_all(format!("{line}\n").as_bytes()),
            None => Ok(()),
        }
    }

    async fn convert(self: Arc<Self>, context: Context) -> Result<(), BoxError> {
        self.log(&format!("start {} {}", context.id(), context.deliveries()))?;
        if !self.task_time.is_zero() {
            tokio::time::sleep(self.task_time).await;
        }
        self.log(&format!("end {}", context.id()))?;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_env_filter(tracing_subscriber::EnvFilter::from_default_env()).init();
    let runner = Redis::connect(&setting::<String>("REDIS_URL", "redis://127.0.0.1/")?)?;
    let queue = Queue::new(setting::<String>("QUEUE", "files")?)?;
    let log = env::var_os("LOG").map(|path| OpenOptions::new().create(true).append(true).open(path)).transpose()?;
    let work = Arc::new(Work { task_time: milliseconds("TASK_MS", "0")?, log });
    let worker = Worker::builder(queue, runner)
        .concurrency(setting("CONCURRENCY", "10")?)
        .lease(milliseconds("LEASE_MS", "30000")?)
        .max_deliveries(setting("MAX_DELIVERIES", "5")?)
        .grace(milliseconds("GRACE_MS", "25000")?)
        .register("convert", move |context, _: IgnoredAny| Arc::clone(&work).convert(context))
        .build()?;
    let summary = worker.run().await?;
    println!("{summary:?}");
    Ok(())
}
