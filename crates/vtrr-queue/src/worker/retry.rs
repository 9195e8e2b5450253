//! `Retry`: the error by which a handler asks to be run again.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::BoxError;
use crate::error::Result;
use crate::layout::Layout;

/// Asks for the task to be run again, as `self.retry()` does in Celery: return it as the handler's error.
///
/// It goes through the fair queue and is charged again. It may be wrapped in other errors (`thiserror`, `anyhow`): it is
/// found by the chain of sources. When `max_retries` is used up, the task becomes a dead letter.
///
/// ```
/// # use std::time::Duration;
/// # use vtrr_queue::{Context, Retry, worker::BoxError};
/// async fn fetch(context: Context, (url, page): (String, u32)) -> Result<(), BoxError> {
///     if page < 3 {
///         return Err(Retry::after(Duration::from_secs(10)).args(&(url, page + 1))?.into());
///     }
///     Err(context.retry().because("the server is down").into()) // after the task's default_retry_delay
/// }
/// ```
#[derive(Debug, Default)]
pub struct Retry(Asked);

/// What was asked for. The source of a `Retry`, so that a transparent wrapper does not hide it.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// None: the task's `default_retry_delay`.
    pub(super) delay: Option<Duration>,
    /// None: the task's `max_retries`.
    pub(super) max_retries: Option<u32>,
    pub(super) layout: Option<Layout>,
    pub(super) because: Option<BoxError>,
}

impl Retry {
    /// After the task's `default_retry_delay`.
    pub fn later() -> Self {
        Self::default()
    }

    /// After `delay`; 0 for at once.
    pub fn after(delay: Duration) -> Self {
        Self(Asked { delay: Some(delay), ..Asked::default() })
    }

    /// With other arguments, laid out as [`Body::call`](crate::Body::call) does it: a list or tuple replaces the
    /// positional ones, a struct the named ones, and the other kind is emptied.
    ///
    /// Errors: [`Invalid`](crate::ErrorKind::Invalid) if they cannot be written as JSON, or would come back as something else.
    pub fn args(mut self, arguments: &impl Serialize) -> Result<Self> {
        self.0.layout = Some(Layout::of(arguments)?);
        Ok(self)
    }

    /// Gives up after this many retries instead of the task's `max_retries`, this time.
    #[must_use]
    pub fn max_retries(mut self, most: u32) -> Self {
        self.0.max_retries = Some(most);
        self
    }

    /// The error behind it: logged, and the dead letter's reason when no retry is left.
    #[must_use]
    pub fn because(mut self, error: impl Into<BoxError>) -> Self {
        self.0.because = Some(error.into());
        self
    }
}

impl Asked {
    /// Looks for one in an error and its sources.
    pub(super) fn find<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Self> {
        let asked = |error: &'a (dyn StdError + 'static)| {
            error.downcast_ref::<Retry>().map(|retry| &retry.0).or_else(|| error.downcast_ref())
        };
        chain(error).find_map(asked)
    }
}

/// An error and its sources.
pub(super) fn chain<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error: &&'a (dyn StdError + 'static)| (*error).source())
}

/// An error and its sources as one line; a source that its error has already told is left out, and how a retry was asked for.
pub(super) fn describe(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    for source in chain(error).skip(1).filter(|source| !source.is::<Asked>()) {
        let source = source.to_string();
        if !text.ends_with(&source) {
            text = format!("{text}: {source}");
        }
    }
    text
}

/// What the `Retry` in front of it has not told.
impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.delay {
            Some(delay) => write!(f, "after {delay:?}"),
            None => f.write_str("after the task's default_retry_delay"),
        }
    }
}

impl StdError for Asked {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.because.as_deref().map(|error| error as &(dyn StdError + 'static))
    }
}

impl fmt::Display for Retry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a retry was asked for")
    }
}

impl StdError for Retry {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Transparent(Retry);
    impl fmt::Display for Transparent {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.fmt(f)
        }
    }
    impl StdError for Transparent {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            self.0.source()
        }
    }

    #[test]
    fn a_retry_is_found_behind_other_errors() {
        let delay = Duration::from_secs(7);
        let bare: BoxError = Retry::after(delay).into();
        assert_eq!(Asked::find(&*bare).unwrap().delay, Some(delay));
        let wrapped: BoxError = Transparent(Retry::after(delay)).into();
        assert_eq!(Asked::find(&*wrapped).unwrap().delay, Some(delay));
        let other: BoxError = "down".into();
        assert!(Asked::find(&*other).is_none());
    }

    #[test]
    fn sources_are_told_once() {
        let error: BoxError = Retry::later().because("the server is down").into();
        assert_eq!(describe(&*error), "a retry was asked for: the server is down");
    }
}
