//! One delivery from its start to the settlement it ends in. Nothing here talks to the queue.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::arguments::Arguments;
use super::hooks::tell;
use super::options::{Options, Verdict};
use super::retry::{Asked, describe};
use super::stored::{Stored, retried};
use super::{BoxError, Context, Hooks};
use crate::command::{Cause, Released, Settlement};
use crate::task::Delivery;

type Running = Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send>>;
type Start = Box<dyn Fn(Context, &Arguments<'_>) -> serde_json::Result<Running> + Send + Sync>;

/// The longest delay of a retry or release: what the queue takes.
const LONGEST_DELAY: Duration = Duration::from_secs(10 * 365 * 86_400);
/// The longest delay of a task whose name is unknown.
const LONGEST_UNKNOWN_DELAY: Duration = Duration::from_secs(600);

/// A handler with its task's options.
pub(super) struct Registered {
    options: Options,
    start: Start,
}

impl Registered {
    /// The one place where the handler's types are known.
    pub(super) fn new<A, F, Fut, T, E>(options: Options, handler: F) -> Self
    where
        A: DeserializeOwned,
        F: Fn(Context, A) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
        E: Into<BoxError>,
    {
        let start: Start = Box::new(move |context, arguments| {
            let running = handler(context, arguments.decode()?);
            Ok(Box::pin(async move { running.await.map(drop).map_err(Into::into) }))
        });
        Self { options, start }
    }
}

/// What every delivery needs.
pub(super) struct Attendant {
    pub(super) registry: HashMap<String, Registered>,
    pub(super) hooks: Option<Arc<dyn Hooks>>,
    /// The first delay of a task whose name is unknown.
    pub(super) unknown_delay: Duration,
}

/// The error that a panicking handler is taken to have returned.
#[derive(Debug)]
pub struct Panicked {
    message: String,
}

impl Panicked {
    pub(super) fn new(payload: &(dyn Any + Send)) -> Self {
        let message = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let message = message.or_else(|| payload.downcast_ref::<String>().cloned());
        Self { message: message.unwrap_or_else(|| "no message".to_owned()) }
    }
}

impl fmt::Display for Panicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "panicked: {}", self.message)
    }
}

impl std::error::Error for Panicked {}

/// How a handler ended.
enum Ended {
    Returned(Result<(), BoxError>),
    TimedOut(Duration),
}

impl Attendant {
    /// Runs the handler of a delivery and decides what becomes of the task.
    pub(super) async fn attend(self: Arc<Self>, delivery: Delivery, cancelled: CancellationToken) -> Settlement {
        let delivery = Arc::new(delivery);
        let stored = match Stored::read(&delivery.payload) {
            Ok(stored) => stored,
            Err(error) => {
                let context = Context::new(Arc::clone(&delivery), String::new(), 0, cancelled);
                return self.fail(&context, Cause::Unreadable, format!("unreadable payload: {error}"));
            }
        };
        let span = tracing::info_span!(
            "task",
            id = %delivery.id,
            name = %stored.task_name,
            partition = delivery.payload.partition().as_ref().map(tracing::field::display),
            deliveries = delivery.deliveries,
            retries = stored.retries,
        );
        let Some(registered) = self.registry.get(stored.task_name.as_ref()) else {
            return span.in_scope(|| self.release_unknown(&delivery, &stored.task_name));
        };
        let task_name = stored.task_name.into_owned();
        let context = Context::new(Arc::clone(&delivery), task_name, stored.retries, cancelled);
        let arguments = Arguments::read(stored.args, stored.kwargs);
        let running = async {
            let began = Instant::now();
            // The handler's synchronous part may panic as well as its future, and decoding runs the user's code too.
            let started = std::panic::catch_unwind(AssertUnwindSafe(|| (registered.start)(context.clone(), &arguments?)));
            let ended = match started {
                Ok(Ok(running)) => {
                    tell(self.hooks.as_deref(), |hooks| hooks.started(&context));
                    limited(running, &registered.options, &context).await
                }
                Ok(Err(error)) => {
                    return self.fail(&context, Cause::Unreadable, format!("arguments do not fit the handler: {error}"));
                }
                Err(panic) => Ended::Returned(Err(Panicked::new(&*panic).into())),
            };
            self.judge(&registered.options, &context, ended, began)
        };
        running.instrument(span).await
    }

    fn judge(&self, options: &Options, context: &Context, ended: Ended, began: Instant) -> Settlement {
        let error = match ended {
            Ended::Returned(Ok(())) => {
                tracing::debug!("done");
                tell(self.hooks.as_deref(), |hooks| hooks.succeeded(context, began.elapsed()));
                return Settlement::ack(context.delivery());
            }
            Ended::TimedOut(limit) => {
                return self.fail(context, Cause::Timeout, format!("time limit of {limit:?} exceeded"));
            }
            Ended::Returned(Err(error)) => error,
        };
        let asked = Asked::find(&*error);
        let told = match asked.and_then(|asked| asked.because.as_deref()) {
            Some(because) => describe(because),
            None => describe(&*error),
        };
        match options.judge(&*error, context.retries(), fastrand::f64()) {
            Verdict::Final => self.fail(context, Cause::Failed, told),
            Verdict::UsedUp => {
                self.fail(context, Cause::Failed, format!("{told} (given up after {} retries)", context.retries()))
            }
            Verdict::Retry(delay) => {
                let delay = delay.min(LONGEST_DELAY);
                let layout = asked.and_then(|asked| asked.layout.as_ref());
                let body = retried(context.payload(), context.retries().saturating_add(1), layout);
                match body.and_then(|body| Settlement::retry(context.delivery(), delay, Some(body))) {
                    Ok(settlement) => {
                        tracing::info!(error = %told, ?delay, "retry");
                        tell(self.hooks.as_deref(), |hooks| hooks.retried(context, &told, delay));
                        settlement
                    }
                    Err(error) => self.fail(context, Cause::Failed, format!("{told}; the retry cannot be stored: {error}")),
                }
            }
        }
    }

    fn fail(&self, context: &Context, cause: Cause, error: String) -> Settlement {
        tracing::error!(task = %context.id(), error, "failed for good");
        tell(self.hooks.as_deref(), |hooks| hooks.failed(context, &error));
        Settlement::fail(context.delivery(), cause, error)
    }

    /// A deploy may be under way: another worker may know it, or this one's successor. Each time it waits twice as long;
    /// `max_deliveries` bounds it.
    fn release_unknown(&self, delivery: &Delivery, name: &str) -> Settlement {
        let factor = 1 << delivery.deliveries.saturating_sub(1).min(20);
        let delay = self.unknown_delay.saturating_mul(factor).min(LONGEST_UNKNOWN_DELAY.max(self.unknown_delay));
        tracing::warn!(?delay, "unknown task name: released");
        let reason = format!("no handler for a task named \"{name}\"");
        Settlement::release(delivery, delay, Released::unknown(reason)).unwrap_or_else(|error| {
            Settlement::fail(delivery, Cause::Unknown, format!("unknown task name, and no release: {error}"))
        })
    }
}

/// Runs a handler within its time limits. A panic becomes an error.
async fn limited(running: Running, options: &Options, context: &Context) -> Ended {
    let running = AssertUnwindSafe(running).catch_unwind();
    let running = running.map(|ended| ended.unwrap_or_else(|panic| Err(Panicked::new(&*panic).into())));
    let began = Instant::now();
    let softly = async {
        let Some(limit) = options.soft_time_limit else { return running.await };
        tokio::pin!(running);
        tokio::select! {
            biased;
            ended = &mut running => return ended,
            () = sleep(limit) => {
                tracing::warn!(?limit, "soft time limit exceeded");
                context.cancel();
            }
        }
        running.await
    };
    let Some(limit) = options.time_limit else { return Ended::Returned(softly.await) };
    if let Ok(ended) = timeout_at(began + limit, softly).await {
        return Ended::Returned(ended);
    }
    context.cancel();
    Ended::TimedOut(limit)
}
