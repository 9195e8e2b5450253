//! `WorkerBuilder`: settings and handlers of a worker.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::attend::{Attendant, Registered};
use super::health::Pulse;
use super::{Context, HandlerError, Hooks, Options, Settings, Worker};
use crate::command::{DEFAULT_LEASE, DEFAULT_MAX_DELIVERIES};
use crate::error::{Error, Result};
use crate::queue::Queue;
use crate::runner::Runner;

/// Settings and handlers of a worker; checked by [`build`](Self::build).
#[must_use]
pub struct WorkerBuilder<R> {
    queue: Queue,
    runner: R,
    settings: Settings,
    unknown_delay: Duration,
    hooks: Option<Arc<dyn Hooks>>,
    registry: HashMap<String, Registered>,
    twice: Option<String>,
}

impl<R: Runner> WorkerBuilder<R> {
    pub(super) fn new(queue: Queue, runner: R) -> Self {
        let settings = Settings {
            concurrency: 10,
            lease: DEFAULT_LEASE,
            max_deliveries: DEFAULT_MAX_DELIVERIES,
            poll: Duration::from_secs(1),
            grace: Duration::from_secs(25),
            sweep_interval: Duration::from_secs(5),
        };
        let unknown_delay = Duration::from_secs(5);
        Self { queue, runner, settings, unknown_delay, hooks: None, registry: HashMap::new(), twice: None }
    }

    /// How many tasks run at once: from 1, 10 unless said otherwise. No more are leased than can be started.
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.settings.concurrency = concurrency;
        self
    }

    /// After how long without a sign of life the worker's tasks are given to others: from 1 ms, 30 s unless said
    /// otherwise. Leases are extended every third of it while handlers run.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease;
        self
    }

    /// After so many deliveries that ended without a settle, a task is a dead letter: from 1, 5 unless said otherwise.
    pub fn max_deliveries(mut self, most: u32) -> Self {
        self.settings.max_deliveries = most;
        self
    }

    /// How often an idle worker looks for tasks where it is not woken, at least every third of a lease. 1 s unless said otherwise.
    pub fn poll(mut self, interval: Duration) -> Self {
        self.settings.poll = interval;
        self
    }

    /// How long running tasks may take to end when the worker stops. 25 s unless said otherwise.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.settings.grace = grace;
        self
    }

    /// How often the worker sweeps the queue. 5 s unless said otherwise.
    pub fn sweep_interval(mut self, interval: Duration) -> Self {
        self.settings.sweep_interval = interval;
        self
    }

    /// How long a task whose name is not registered waits when it is released for the first time; then twice as long each
    /// time, at most 10 minutes. 5 s unless said otherwise.
    pub fn unknown_delay(mut self, delay: Duration) -> Self {
        self.unknown_delay = delay;
        self
    }

    /// Who is told what becomes of tasks.
    pub fn hooks(mut self, hooks: impl Hooks) -> Self {
        self.hooks = Some(Arc::new(hooks));
        self
    }

    /// Registers the handler of a task, with the default [`Options`].
    ///
    /// A handler is an `async fn(Context, Args) -> Result<T, E>`; what it returns is dropped. `Args` takes the arguments as
    /// [`Body::call`](crate::Body::call) lays them out: a tuple or `Vec` the positional ones, a struct or map the named
    /// ones; any other type the only one. A struct also binds positional arguments, to its fields in order; the last
    /// element of a tuple also takes the named ones. An `E` is any error, `anyhow::Error`, a boxed error, or text: a
    /// [`HandlerError`].
    pub fn register<A, F, Fut, T, E, Kind>(self, task_name: impl Into<String>, handler: F) -> Self
    where
        A: DeserializeOwned,
        F: Fn(Context, A) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = std::result::Result<T, E>> + Send + 'static,
        E: HandlerError<Kind>,
    {
        self.register_with(task_name, Options::default(), handler)
    }

    /// Registers the handler of a task, with options.
    pub fn register_with<A, F, Fut, T, E, Kind>(mut self, task_name: impl Into<String>, options: Options, handler: F) -> Self
    where
        A: DeserializeOwned,
        F: Fn(Context, A) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = std::result::Result<T, E>> + Send + 'static,
        E: HandlerError<Kind>,
    {
        match self.registry.entry(task_name.into()) {
            Entry::Vacant(free) => {
                free.insert(Registered::new(options, handler));
            }
            Entry::Occupied(taken) => self.twice = Some(taken.key().clone()),
        }
        self
    }

    /// The worker.
    ///
    /// Errors: [`Invalid`](crate::ErrorKind::Invalid) for settings out of range, for a name registered twice, and for options that
    /// ask about an error type that their handler does not fail with.
    pub fn build(self) -> Result<Worker<R>> {
        let Settings { concurrency, lease, max_deliveries, poll, sweep_interval, .. } = self.settings;
        if let Some(name) = self.twice {
            return Err(Error::invalid("task_name", format_args!("{name:?} a second time"), "registered once"));
        }
        for (name, registered) in &self.registry {
            if let Some(never) = registered.never() {
                let allowed = format!("`{}`, which the handler of {name:?} fails with", registered.fails_with.1);
                return Err(Error::invalid(
                    "the type that `autoretry_when` asks about",
                    format_args!("`{never}`"),
                    &allowed,
                ));
            }
        }
        if concurrency == 0 {
            return Err(Error::invalid("concurrency", concurrency, "at least 1"));
        }
        for (argument, interval) in [("poll", poll), ("sweep_interval", sweep_interval)] {
            if interval < Duration::from_millis(1) {
                return Err(Error::invalid(argument, format_args!("{interval:?}"), "at least 1 ms"));
            }
        }
        // The command itself knows what it takes.
        drop(self.queue.dequeue(1)?.lease(lease)?.max_deliveries(max_deliveries)?);
        let Self { queue, runner, settings, unknown_delay, hooks, registry, .. } = self;
        let attendant = Arc::new(Attendant { registry, hooks, unknown_delay });
        Ok(Worker { queue, runner, settings, attendant, pulse: Pulse::new() })
    }
}

impl<R> fmt::Debug for WorkerBuilder<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.registry.keys().collect();
        f.debug_struct("WorkerBuilder")
            .field("queue", &self.queue)
            .field("settings", &self.settings)
            .field("registered", &names)
            .finish_non_exhaustive()
    }
}
