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
    /// The call would have passed a bound on queued tasks, the one that [`Error::bound`] names; all of it was refused. Repeat it
    /// later, or tell whoever asked to wait.
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
///
/// Its text says everything, once: what a client library said is a part of it, and so [`source`](StdError::source) has nothing
/// to add. For its type see [`Error::origin`].
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: Message,
    bound: Option<Bound>,
    unfinished: Option<Box<Unfinished>>,
    origin: Option<Box<dyn StdError + Send + Sync>>,
}

#[derive(Debug)]
enum Message {
    Text(String),
    /// An argument, what is allowed, and what it was.
    Argument(Box<[String; 3]>),
}

/// A bound on queued tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Bound {
    /// `max_queued`: the queue is full, for every partition.
    Queue,
    /// `max_queued_per_partition`: the call's own partition is full; others may have room.
    Partition,
}

/// How far an enqueue got that ended in an error half way. [`Enqueue::resume`](crate::Enqueue::resume) takes it, to store the rest:
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
        Self { kind, message: Message::Text(message.into()), bound: None, unfinished: None, origin: None }
    }

    pub(crate) fn full(bound: Bound, message: impl Into<String>) -> Self {
        Self { bound: Some(bound), ..Self::new(ErrorKind::Full, message) }
    }

    /// An argument that is not allowed.
    pub(crate) fn invalid(argument: &str, value: impl fmt::Display, allowed: &str) -> Self {
        let message = Message::Argument(Box::new([argument.to_owned(), allowed.to_owned(), value.to_string()]));
        Self { message, ..Self::new(ErrorKind::Invalid, "") }
    }

    pub(crate) fn protocol(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Protocol, message)
    }

    /// What it comes from; the message says all of that.
    #[cfg(feature = "redis")]
    pub(crate) fn with_origin(mut self, origin: impl StdError + Send + Sync + 'static) -> Self {
        self.origin = Some(Box::new(origin));
        self
    }

    /// Adds half a sentence to the message.
    #[cfg(feature = "redis")]
    pub(crate) fn with_hint(mut self, hint: &str) -> Self {
        self.message = Message::Text(format!("{}; {hint}", self.message));
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

    /// For [`Full`](ErrorKind::Full): which bound it was.
    pub fn bound(&self) -> Option<Bound> {
        self.bound
    }

    /// The error of the client library or the operating system behind this one, for those who look for its type. Its text is
    /// part of this one's.
    pub fn origin(&self) -> Option<&(dyn StdError + Send + Sync + 'static)> {
        self.origin.as_deref()
    }

    /// The same about an argument that the caller knows by another name: `tasks[0]` where we say `body`. What is no argument's
    /// fault stays as it is.
    #[must_use]
    pub fn about(mut self, argument: impl Into<String>) -> Self {
        if let Message::Argument(parts) = &mut self.message {
            parts[0] = argument.into();
        }
        self
    }

    /// For an enqueue: what is needed to finish it.
    pub fn unfinished(&self) -> Option<&Unfinished> {
        self.unfinished.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.message.fmt(f)?;
        if let Some(unfinished) = &self.unfinished {
            write!(f, " (request {}: {} of {} tasks stored)", unfinished.request, unfinished.stored, unfinished.ids.len())?;
        }
        Ok(())
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Argument(parts) => {
                let [argument, allowed, value] = &**parts;
                write!(f, "{argument} must be {allowed}, not {value}")
            }
        }
    }
}

impl StdError for Error {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Body, MAX_PAYLOAD_BYTES, TaskId};

    #[test]
    fn an_argument_goes_by_the_name_that_the_caller_knows() {
        let error = Body::from_json(format!("{{\"a\":\"{}\"}}", "x".repeat(MAX_PAYLOAD_BYTES))).unwrap_err();
        assert_eq!(error.to_string(), "body must be at most 4191104 bytes of JSON, not 4194312 bytes");
        assert_eq!(error.about("tasks[0]").to_string(), "tasks[0] must be at most 4191104 bytes of JSON, not 4194312 bytes");
        let error = TaskId::new("").unwrap_err().about("ids[3]");
        assert_eq!(error.to_string(), "ids[3] must be text of 1 to 512 bytes without NUL, not empty");
        assert_eq!(Error::protocol("unreadable").about("tasks[0]").to_string(), "unreadable");
    }
}
