//! The worker: runs async handlers on the tasks of a queue, on any runner.
//!
//! ```
//! use vtrr_queue::worker::Options;
//! use vtrr_queue::{Context, Memory, Queue, Runner, Task, Worker};
//!
//! async fn send(context: Context, (to, text): (String, String)) -> Result<(), std::io::Error> {
//!     println!("{to}: {text} (partition {:?})", context.partition());
//!     Ok(())
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (queue, runner) = (Queue::new("mail")?, std::sync::Arc::new(Memory::new()));
//! runner.run(queue.enqueue("u_1", [Task::new("send", &("ann", "hello"))?])?).await?;
//! let worker = Worker::builder(queue, runner)
//!     .concurrency(100)
//!     .register_with("send", Options::new().autoretry_for::<std::io::Error>().retry_backoff(true), send)
//!     .build()?;
//! # let until = tokio::time::sleep(std::time::Duration::from_millis(50));
//! let summary = worker.run_until(until).await?; // or `run()`: until SIGTERM or SIGINT
//! assert_eq!(summary.succeeded, 1);
//! # Ok(())
//! # }
//! ```
//!
//! Delivery is at least once: a task whose worker dies, or loses its lease, is delivered again. What a task does must
//! bear being done twice.
//!
//! A handler is async: it must not hold up its thread. One that computes for long belongs into `spawn_blocking`, and the
//! worker on a runtime of several threads: on a single one a handler that does not yield also keeps the worker from
//! extending its leases.
//!
//! | what happens | what becomes of the task |
//! |---|---|
//! | `Ok` | done |
//! | an error | a dead letter, unless [`Options`] retry it or it is a [`Retry`] |
//! | a panic | the same, as the error [`Panicked`] |
//! | arguments that the handler's type cannot take, an unreadable payload | a dead letter that says so; no retry |
//! | `time_limit` | the future is dropped; a dead letter |
//! | a name that is not registered | released with a delay, `max_deliveries` times, then a dead letter |
//! | the process dies | delivered again; the last time before it counts as poison alone, if the others end within a lease |
//! | the lease is lost | the future is dropped; whoever has the task now settles it |
//! | the worker stops and the grace period ends | the future is dropped; released without blame |
//!
//! Modules: `builder` makes a worker; `drive` is its loop, the only part that talks to the queue, with `round` (settle and
//! dequeue), `alone`, `extend`, `eviction` and `stop`; `unsettled` keeps settlements; `attend` runs one delivery (`stored` reads the body,
//! `arguments` decodes, `failure` keeps what a handler fails with, `options` judges it); `health` says whether the worker is live, `livez` says so over HTTP.

mod alone;
mod arguments;
mod attend;
mod backoff;
mod builder;
mod context;
mod drive;
mod eviction;
mod extend;
mod failure;
mod health;
mod hooks;
#[cfg(feature = "health-http")]
mod livez;
mod options;
mod retry;
mod round;
mod signal;
mod stop;
mod stored;
#[cfg(test)]
mod tests;
mod unsettled;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

pub use attend::Panicked;
pub use builder::WorkerBuilder;
pub use context::Context;
pub use failure::{HandlerError, HasError, IsError, IsText};
pub use health::Health;
pub use hooks::Hooks;
#[cfg(feature = "health-http")]
pub use livez::Livez;
pub use options::{Backoff, Options};
pub use retry::Retry;

use crate::error::{Error, ErrorKind, Result};
use crate::queue::Queue;
use crate::runner::Runner;

/// Any error.
pub type BoxError = Box<dyn std::error::Error + Send + Sync + 'static>;

/// Runs handlers on the tasks of one queue. Made by [`Worker::builder`].
pub struct Worker<R> {
    queue: Queue,
    runner: R,
    settings: Settings,
    attendant: Arc<attend::Attendant>,
    pulse: health::Pulse,
}

/// What the builder sets.
#[derive(Debug, Clone)]
struct Settings {
    concurrency: usize,
    lease: Duration,
    max_deliveries: u32,
    poll: Duration,
    grace: Duration,
    sweep_interval: Duration,
}

/// What a worker did, as the queue has confirmed it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Tasks done.
    pub succeeded: u64,
    /// Tasks failed for good: dead letters.
    pub failed: u64,
    /// Tasks to be run again.
    pub retried: u64,
    /// Tasks given back: unknown names, and what still ran at the end.
    pub released: u64,
    /// Deliveries taken away before they were settled.
    pub lost: u64,
}

impl<R: Runner> Worker<R> {
    /// A worker for this queue on this runner (also an `Arc` of one).
    pub fn builder(queue: Queue, runner: R) -> WorkerBuilder<R> {
        WorkerBuilder::new(queue, runner)
    }

    /// Says, while the worker runs, whether it is live.
    pub fn health(&self) -> Health {
        self.pulse.health(self.settings.lease)
    }

    /// Works until SIGTERM or SIGINT, then stops as [`run_until`](Self::run_until) says; a second signal ends the grace
    /// period at once.
    ///
    /// Errors: as `run_until`, and [`Invalid`](ErrorKind::Invalid) where signals cannot be caught.
    pub async fn run(self) -> Result<Summary> {
        let caught = |error| Error::new(ErrorKind::Invalid, format!("signals cannot be caught here: {error}"));
        let (mut first, mut second) = (signal::Signals::new().map_err(caught)?, signal::Signals::new().map_err(caught)?);
        let hurry = async {
            second.next().await;
            second.next().await;
        };
        drive::Drive::new(&self).run(first.next(), hurry).await
    }

    /// Works until `stop` is ready. Then no more tasks are taken; those at work have the grace period to end; what still
    /// runs is dropped and released without blame; everything is settled.
    ///
    /// After its first sweep it logs a warning if the server's `maxmemory-policy` is one that may delete tasks.
    ///
    /// An unreachable server is waited for, forever: the worker resumes when it is back. Dropping the future drops the
    /// handlers; their tasks are delivered again when the leases have run out.
    ///
    /// Errors: [`Version`](ErrorKind::Version) if the queue was written by a newer format of this library; the last error
    /// if at the end the server could not be reached for 5 s, so that tasks wait until their leases have run out.
    pub async fn run_until(self, stop: impl Future<Output = ()> + Send) -> Result<Summary> {
        drive::Drive::new(&self).run(stop, std::future::pending()).await
    }
}

impl<R> std::fmt::Debug for Worker<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("queue", &self.queue).field("settings", &self.settings).finish_non_exhaustive()
    }
}
