//! Names: queues, their keys, and the lane key of a partition. The only file that spells a key.

use std::fmt;

use crate::error::{Error, Result};

/// Longest queue name, partition key or task id, in bytes.
pub const MAX_NAME_BYTES: usize = 512;

/// The name of a queue: 1 to 512 bytes of text without NUL.
///
/// A name like `{files}` keeps all keys of the queue in one slot of a Redis Cluster.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueName(String);

impl QueueName {
    /// Checks the name.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        text("name", name.into()).map(Self)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether all keys of the queue fall into one slot of a Redis Cluster: the name's first `{` closes around some text.
    pub fn is_one_slot(&self) -> bool {
        self.0.find('{').is_some_and(|open| self.0[open + 1..].find('}').is_some_and(|length| length > 0))
    }

    /// The keys of the queue in the order in which every script takes them.
    pub(crate) fn keys(&self) -> Vec<String> {
        KEYS.iter().map(|key| self.key(key)).collect()
    }

    /// One full key.
    pub(crate) fn key(&self, key: &str) -> String {
        format!("vtrr:{}:{key}", self.0)
    }

    /// The channel on which enqueue, release and retry announce work.
    pub fn wake_channel(&self) -> String {
        self.key("wake")
    }

    /// A string with an expiry: which of several sweepers sweeps.
    pub fn sweeper_key(&self) -> String {
        self.key("sweeper")
    }

    /// A string with an expiry: up to which of all dead letters that there have ever been Celery's workers have told of them.
    /// Optional; no script touches it.
    pub fn told_key(&self) -> String {
        self.key("told")
    }
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The keys of a queue, without the prefix `vtrr:NAME:`. The order is that of KEYS in every script; the first four are
/// those of 0.1.0. `lane:=` and `paid:=` are prefixes: the scripts append the partition. `wake` is a channel.
pub(crate) const KEYS: [&str; 22] = [
    "queue",
    "current_virtual_time",
    "partition_virtual_time",
    "task",
    "waiting",
    "head",
    "idle",
    "lease",
    "held",
    "owner",
    "running",
    "delayed",
    "dead",
    "error",
    "share",
    "meta",
    "request",
    "answer",
    "sweeper",
    "lane:=",
    "paid:=",
    "wake",
];

/// The partition as it stands in a lane key: `%` and `:` percent-encoded, so that no two queues can share a key.
pub(crate) fn encode_partition(partition: &str) -> String {
    partition.replace('%', "%25").replace(':', "%3A")
}

/// Text of 1 to 512 bytes without NUL.
pub(crate) fn text(argument: &str, value: String) -> Result<String> {
    const ALLOWED: &str = "text of 1 to 512 bytes without NUL";
    if value.is_empty() {
        Err(Error::invalid(argument, "empty", ALLOWED))
    } else if value.len() > MAX_NAME_BYTES {
        Err(Error::invalid(argument, format_args!("{} bytes", value.len()), ALLOWED))
    } else if value.contains('\0') {
        Err(Error::invalid(argument, format_args!("{value:?}"), ALLOWED))
    } else {
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lane_of_one_queue_is_never_a_key_of_another() {
        assert_eq!(encode_partition("a:lane:=b"), "a%3Alane%3A=b");
        assert_eq!(encode_partition("100%"), "100%25");
        assert_ne!(encode_partition("%3A"), encode_partition(":"));
    }

    #[test]
    fn a_name_is_one_slot_only_if_its_first_brace_closes_around_text() {
        for (name, one) in
            [("{files}", true), ("a{b}c", true), ("files", false), ("{}", false), ("{}{a}", false), ("a{b", false)]
        {
            assert_eq!(QueueName::new(name).unwrap().is_one_slot(), one, "{name}");
        }
    }

    #[test]
    fn names_that_are_empty_too_long_or_hold_nul_are_refused() {
        for (value, says) in [(String::new(), "empty"), ("a\0b".into(), "\\0"), ("x".repeat(513), "513 bytes")] {
            let error = text("partition", value).unwrap_err().to_string();
            assert!(error.contains("partition") && error.contains(says), "{error}");
        }
        assert!(text("partition", "x".repeat(512)).is_ok());
    }
}
