//! The one error type. `kind()` says who must act; the message names the argument, the value and what is allowed.

use std::error::Error as StdError;
use std::fmt;

use crate::task::TaskId;

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// The beginning of a text of any length, quoted: what a message shows of it.
pub(crate) fn shown(text: &[u8]) -> String {
    const MOST: usize = 80;
    let beginning = String::from_utf8_lossy(&text[..text.len().min(MOST)]);
    let cut = if text.len() > MOST { "…" } else { "" };
    format!("{beginning:?}{cut}")
}

/// Who must act, and on what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument is not allowed; nothing was sent or stored. The caller's fault.
    Invalid,
    /// The queue is in the other tagging mode; the message says how to switch. Nothing was stored.
    Mode,
    /// A task id is alive in another partition; the whole call was refused.
    Conflict,
    /// The call would have passed a bound on queued tasks, `max_queued` or `max_queued_per_partition`; all of it was refused.
    /// Repeat it later, or tell whoever asked to wait.
    Full,
    /// The queue was written by a newer format of this library. Upgrade this client.
    Version,
    /// The server cannot be reached, is loading, failing over, or did not answer in time. Repeating the same command is safe.
    Unavailable,
    /// The server refused the command: out of memory, a missing right, a key of a wrong type. Nothing was stored.
    Server,
    /// The server's answer cannot be read: not ours, or a bug of ours.
    Protocol,
}

/// What went wrong. Opaque; look at [`Error::kind`].
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    unfinished: Option<Box<Unfinished>>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// How far an enqueue got that ended in an error half way. Repeat the call with this request id and these task ids:
/// what is stored already is neither stored nor charged again.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unfinished {
    /// The request id of the call.
    pub request: String,
    /// The ids of all tasks of the call, in order.
    pub ids: Vec<TaskId>,
    /// How many of them, from the start, are known to be stored.
    pub stored: usize,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), unfinished: None, source: None }
    }

    /// An argument that is not allowed.
    pub(crate) fn invalid(argument: &str, value: impl fmt::Display, allowed: &str) -> Self {
        Self::new(ErrorKind::Invalid, format!("{argument} must be {allowed}, not {value}"))
    }

    pub(crate) fn protocol(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Protocol, message)
    }

    #[cfg(feature = "redis")]
    pub(crate) fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.source = Some(Box::new(source));
        self
    }

    pub(crate) fn with_unfinished(mut self, unfinished: Unfinished) -> Self {
        self.unfinished = Some(Box::new(unfinished));
        self
    }

    /// Who must act.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// For an enqueue: what is needed to finish it.
    pub fn unfinished(&self) -> Option<&Unfinished> {
        self.unfinished.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if let Some(unfinished) = &self.unfinished {
            write!(f, " (request {}: {} of {} tasks stored)", unfinished.request, unfinished.stored, unfinished.ids.len())?;
        }
        Ok(())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}
