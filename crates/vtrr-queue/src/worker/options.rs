//! Options of a task: retries and time limits, in the terms of 0.1.0 and with Celery's defaults.

use std::any::{Any, TypeId, type_name};
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::failure::Failure;
use super::retry::{Asked, chain};

type Picks<T> = Arc<dyn Fn(&T) -> bool + Send + Sync>;

/// Whether errors are retried.
#[derive(Clone)]
enum Predicate {
    /// By the error itself and its sources.
    Error(Picks<dyn StdError>),
    /// By the handler's own type, which has this id and name.
    Own((TypeId, &'static str), Picks<dyn Any>),
}

impl Predicate {
    fn picks(&self, failure: &Failure) -> bool {
        match self {
            Self::Error(picks) => picks(failure.error()),
            Self::Own(_, picks) => picks(failure.own()),
        }
    }
}

/// How a task is retried and limited. The defaults are Celery's: an error is final unless an `autoretry` says otherwise
/// or the handler returns a [`Retry`](super::Retry).
///
/// | 0.1.0 | here | default |
/// |---|---|---|
/// | `max_retries` | [`max_retries`](Self::max_retries), [`retry_forever`](Self::retry_forever) for `None` | 3 |
/// | `default_retry_delay` | [`default_retry_delay`](Self::default_retry_delay) | 180 s |
/// | `autoretry_for` | [`autoretry_for`](Self::autoretry_for), [`autoretry_if`](Self::autoretry_if), [`autoretry_when`](Self::autoretry_when), [`autoretry_any`](Self::autoretry_any) | no error |
/// | `retry_backoff` | [`retry_backoff`](Self::retry_backoff): `true`, `false`, or the factor as a `Duration` | `false` |
/// | `retry_backoff_max` | [`retry_backoff_max`](Self::retry_backoff_max) | 600 s |
/// | `retry_jitter` | [`retry_jitter`](Self::retry_jitter) | `true` |
/// | `retry_kwargs` | [`retry_countdown`](Self::retry_countdown), [`retry_max_retries`](Self::retry_max_retries) | none |
/// | `soft_time_limit` | [`soft_time_limit`](Self::soft_time_limit) | none |
/// | `time_limit` | [`time_limit`](Self::time_limit) | none |
/// | `base` | a class to inherit from: no meaning in Rust; see [`Hooks`](super::Hooks) and closures instead | |
///
/// A panic counts as an error of the type [`Panicked`](super::Panicked): it is retried if an `autoretry` takes it.
#[derive(Clone)]
#[must_use]
pub struct Options {
    max_retries: Option<u32>,
    default_retry_delay: Duration,
    autoretry: Vec<Predicate>,
    retry_backoff: Backoff,
    retry_backoff_max: Duration,
    retry_jitter: bool,
    retry_countdown: Option<Duration>,
    retry_max_retries: Option<u32>,
    pub(super) soft_time_limit: Option<Duration>,
    pub(super) time_limit: Option<Duration>,
}

/// Whether the delays of automatic retries grow: `false`, `true` (from 1 s), or from this factor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff(Option<Duration>);

impl From<bool> for Backoff {
    fn from(on: bool) -> Self {
        Self(on.then_some(Duration::from_secs(1)))
    }
}

impl From<Duration> for Backoff {
    fn from(factor: Duration) -> Self {
        Self(Some(factor).filter(|factor| !factor.is_zero()))
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_retries: Some(3),
            default_retry_delay: Duration::from_secs(180),
            autoretry: Vec::new(),
            retry_backoff: Backoff(None),
            retry_backoff_max: Duration::from_secs(600),
            retry_jitter: true,
            retry_countdown: None,
            retry_max_retries: None,
            soft_time_limit: None,
            time_limit: None,
        }
    }
}

impl Options {
    /// Celery's defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// After so many retries an error is final: a dead letter. 3 unless said otherwise; 0 for no retry at all.
    pub fn max_retries(mut self, most: u32) -> Self {
        self.max_retries = Some(most);
        self
    }

    /// No bound on retries (`max_retries=None`).
    pub fn retry_forever(mut self) -> Self {
        self.max_retries = None;
        self
    }

    /// The delay of a retry that names none. 180 s unless said otherwise.
    pub fn default_retry_delay(mut self, delay: Duration) -> Self {
        self.default_retry_delay = delay;
        self
    }

    /// Retries errors of this type, also where they are a source of the error, and inside `anyhow::Error`. May be called for
    /// several types.
    ///
    /// An error in a variant that is `#[error(transparent)]` cannot be seen from outside, only what it has for sources: pick it
    /// by [`autoretry_when`](Self::autoretry_when), or use `#[error("…")]` with `#[source]` or `#[from]`.
    pub fn autoretry_for<E: StdError + 'static>(self) -> Self {
        self.autoretry_if(|error| chain(error).any(<dyn StdError + 'static>::is::<E>))
    }

    /// Retries errors that this function picks. It sees the error that the handler returned, before it is boxed: of an
    /// `anyhow::Error` the one inside. May be called several times.
    pub fn autoretry_if(mut self, picks: impl Fn(&(dyn StdError + 'static)) -> bool + Send + Sync + 'static) -> Self {
        self.autoretry.push(Predicate::Error(Arc::new(picks)));
        self
    }

    /// Retries errors that this function picks by the handler's own error type: variants of an enum, what is inside an
    /// `anyhow::Error`. May be called several times; a handler that fails with another type is refused when the worker is built.
    ///
    /// ```
    /// # use vtrr_queue::worker::Options;
    /// enum Failed {
    ///     Network(std::io::Error),
    ///     Invoice(u64),
    /// }
    /// let options = Options::new().autoretry_when(|failed: &Failed| matches!(failed, Failed::Network(_)));
    /// ```
    pub fn autoretry_when<E: 'static>(mut self, picks: impl Fn(&E) -> bool + Send + Sync + 'static) -> Self {
        let picks = move |error: &dyn Any| error.downcast_ref().is_some_and(&picks);
        self.autoretry.push(Predicate::Own((TypeId::of::<E>(), type_name::<E>()), Arc::new(picks)));
        self
    }

    /// The error types that `autoretry_when` asks about.
    pub(super) fn own_types(&self) -> impl Iterator<Item = (TypeId, &'static str)> {
        self.autoretry.iter().filter_map(|predicate| match predicate {
            Predicate::Own(own, _) => Some(*own),
            Predicate::Error(_) => None,
        })
    }

    /// Retries every error, and panics.
    pub fn autoretry_any(self) -> Self {
        self.autoretry_if(|_| true)
    }

    /// Lets the delays of automatic retries grow: factor · 2^retries. Replaces `retry_countdown`.
    pub fn retry_backoff(mut self, backoff: impl Into<Backoff>) -> Self {
        self.retry_backoff = backoff.into();
        self
    }

    /// The longest delay that `retry_backoff` makes. 600 s unless said otherwise.
    pub fn retry_backoff_max(mut self, longest: Duration) -> Self {
        self.retry_backoff_max = longest;
        self
    }

    /// Whether `retry_backoff` takes a random delay between 0 and the one computed (full jitter). Yes unless said
    /// otherwise.
    pub fn retry_jitter(mut self, jitter: bool) -> Self {
        self.retry_jitter = jitter;
        self
    }

    /// The delay of automatic retries (`retry_kwargs={"countdown": …}`).
    pub fn retry_countdown(mut self, delay: Duration) -> Self {
        self.retry_countdown = Some(delay);
        self
    }

    /// The bound of automatic retries (`retry_kwargs={"max_retries": …}`).
    pub fn retry_max_retries(mut self, most: u32) -> Self {
        self.retry_max_retries = Some(most);
        self
    }

    /// After this time [`Context::cancelled`](super::Context::cancelled) fires. The handler decides what it means: what it
    /// returns then counts as ever.
    pub fn soft_time_limit(mut self, limit: Duration) -> Self {
        self.soft_time_limit = Some(limit);
        self
    }

    /// After this time the handler's future is dropped at its next `await` and the task is a dead letter; no retry.
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = Some(limit);
        self
    }

    /// What becomes of a task that ended in an error after `retries` retries; `jitter` from 0 to 1.
    pub(super) fn judge(&self, failure: &Failure, retries: u32, jitter: f64) -> Verdict {
        let (delay, most) = match Asked::find(failure.error()) {
            Some(asked) => (asked.delay.unwrap_or(self.default_retry_delay), asked.max_retries.or(self.max_retries)),
            None if self.autoretry.iter().any(|predicate| predicate.picks(failure)) => {
                (self.automatic_delay(retries, jitter), self.retry_max_retries.or(self.max_retries))
            }
            None => return Verdict::Final,
        };
        if most.is_some_and(|most| retries >= most) { Verdict::UsedUp } else { Verdict::Retry(delay) }
    }

    fn automatic_delay(&self, retries: u32, jitter: f64) -> Duration {
        let Some(factor) = self.retry_backoff.0 else { return self.retry_countdown.unwrap_or(self.default_retry_delay) };
        let grown = 2_u32.checked_pow(retries).and_then(|power| factor.checked_mul(power));
        let longest = grown.map_or(self.retry_backoff_max, |grown| grown.min(self.retry_backoff_max));
        if self.retry_jitter { longest.mul_f64(jitter) } else { longest }
    }
}

/// What an error means.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    /// Run again after this time.
    Retry(Duration),
    /// It would be retried, but for `max_retries`.
    UsedUp,
    /// Not to be retried.
    Final,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("max_retries", &self.max_retries)
            .field("default_retry_delay", &self.default_retry_delay)
            .field("autoretry", &self.autoretry.len())
            .field("retry_backoff", &self.retry_backoff.0)
            .field("retry_backoff_max", &self.retry_backoff_max)
            .field("retry_jitter", &self.retry_jitter)
            .field("retry_countdown", &self.retry_countdown)
            .field("retry_max_retries", &self.retry_max_retries)
            .field("soft_time_limit", &self.soft_time_limit)
            .field("time_limit", &self.time_limit)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::Retry;

    const SECOND: Duration = Duration::from_secs(1);

    fn io() -> Failure {
        Failure::of(std::io::Error::other("down"))
    }

    #[test]
    fn errors_are_final_unless_told_otherwise() {
        assert_eq!(Options::new().judge(&io(), 0, 0.5), Verdict::Final);
        let options = Options::new().autoretry_for::<fmt::Error>();
        assert_eq!(options.judge(&io(), 0, 0.5), Verdict::Final);
        let options = options.autoretry_for::<std::io::Error>();
        assert_eq!(options.judge(&io(), 0, 0.5), Verdict::Retry(180 * SECOND));
        assert_eq!(options.judge(&io(), 2, 0.5), Verdict::Retry(180 * SECOND));
        assert_eq!(options.judge(&io(), 3, 0.5), Verdict::UsedUp);
        let options = options.retry_countdown(SECOND).retry_max_retries(7).retry_forever();
        assert_eq!(options.judge(&io(), 6, 0.5), Verdict::Retry(SECOND));
        assert_eq!(options.judge(&io(), 7, 0.5), Verdict::UsedUp);
    }

    #[test]
    fn delays_grow_as_celery_lets_them_grow() {
        let delays = |options: &Options, jitter: f64| {
            [0, 1, 2, 10, 31, 32, 1_000].map(|retries| match options.judge(&io(), retries, jitter) {
                Verdict::Retry(delay) => delay.as_secs(),
                other => unreachable!("{other:?}"),
            })
        };
        let options = Options::new().autoretry_any().retry_forever().retry_countdown(SECOND).retry_backoff(true);
        assert_eq!(delays(&options, 1.0), [1, 2, 4, 600, 600, 600, 600]);
        assert_eq!(delays(&options, 0.5), [0, 1, 2, 300, 300, 300, 300]);
        let options = options.retry_jitter(false).retry_backoff(3 * SECOND).retry_backoff_max(7 * SECOND);
        assert_eq!(delays(&options, 0.0), [3, 6, 7, 7, 7, 7, 7]);
    }

    #[test]
    fn a_handler_that_asks_is_heard() {
        let options = Options::new().retry_max_retries(9).default_retry_delay(SECOND);
        let ask = |retry: Retry, retries| options.judge(&Failure::of(retry), retries, 0.5);
        assert_eq!(ask(Retry::later(), 0), Verdict::Retry(SECOND));
        assert_eq!(ask(Retry::after(Duration::ZERO), 2), Verdict::Retry(Duration::ZERO));
        assert_eq!(ask(Retry::later(), 3), Verdict::UsedUp);
        assert_eq!(ask(Retry::later().max_retries(5), 4), Verdict::Retry(SECOND));
        assert_eq!(ask(Retry::later().max_retries(0), 0), Verdict::UsedUp);
    }
}
