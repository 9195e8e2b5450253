//! Why a task became a dead letter: a word beside the error, for those who must tell the kinds apart.

use std::fmt;

/// What kind of end a dead letter came to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// Its own run failed for good.
    Failed,
    /// Its run rejected it (Celery's `Reject`).
    Rejected,
    /// It ran into its time limit.
    Timeout,
    /// It was revoked and terminated while it ran.
    Revoked,
    /// `max_deliveries` workers or leases were lost with it.
    Poison,
    /// No worker knew its name, `max_deliveries` times.
    Unknown,
    /// It was queued, but its payload was not there.
    Missing,
    /// Its payload or its arguments cannot be read.
    Unreadable,
    /// It ran, but the result backend did not take its state.
    Backend,
    /// A word that only a newer version knows.
    Other(String),
}

impl Cause {
    /// All but `Other`.
    const KNOWN: [Self; 9] = [
        Self::Failed,
        Self::Rejected,
        Self::Timeout,
        Self::Revoked,
        Self::Poison,
        Self::Unknown,
        Self::Missing,
        Self::Unreadable,
        Self::Backend,
    ];

    /// The word: `failed`, `rejected`, `timeout`, `revoked`, `poison`, `unknown`, `missing`, `unreadable` or `backend`.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Failed => "failed",
            Self::Rejected => "rejected",
            Self::Timeout => "timeout",
            Self::Revoked => "revoked",
            Self::Poison => "poison",
            Self::Unknown => "unknown",
            Self::Missing => "missing",
            Self::Unreadable => "unreadable",
            Self::Backend => "backend",
            Self::Other(word) => word,
        }
    }

    /// The cause of this word; any word is one.
    pub fn from_word(word: &str) -> Self {
        Self::KNOWN.into_iter().find(|cause| cause.as_str() == word).unwrap_or_else(|| Self::Other(word.to_owned()))
    }

    /// Cause and error as they are stored.
    pub(crate) fn with(&self, error: &str) -> String {
        format!("{self} {error}")
    }

    /// Takes what is stored apart.
    pub(crate) fn split(stored: &str) -> (Self, String) {
        let (word, error) = stored.split_once(' ').unwrap_or((stored, ""));
        (Self::from_word(word), error.to_owned())
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
