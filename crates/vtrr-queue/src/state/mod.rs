//! The state of one queue in memory: the twin of the keys in Redis, field by field, so that a script and its `apply`
//! can be held against each other (docs/protocol.md, "Keys").
//!
//! Time is an input: [`State::at`] sets it. Nothing here does IO, reads a clock or makes random numbers.

mod dump;
mod lease;
mod order;
mod scored;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use crate::command::Tagging;
use crate::tag::Share;
use crate::task::Payload;

pub(crate) use lease::GivenBack;
pub(crate) use order::Tagged;
pub(crate) use scored::{Scored, as_ms};

/// Most entries of cancelled tasks that one call skips before it leaves the rest to the next one.
pub(crate) const MAX_SKIPS: usize = 1_000;
/// Most due leases and delayed tasks that a dequeue brings back.
pub(crate) const MAX_DUE: usize = 100;
/// Most partitions that a dequeue serves.
pub(crate) const MAX_PARTITIONS: usize = 250;
/// Most tasks that a sweep brings back: with as many partitions that is some 30 ms of work.
pub(crate) const MAX_SWEEP: usize = 250;
/// Most units of work of a purge or flatten call.
pub(crate) const MAX_STEP: usize = 1_000;
/// Most dead letters kept, and for how long (30 days).
pub(crate) const MAX_DEAD: usize = 10_000;
pub(crate) const MAX_DEAD_MS: u64 = 30 * 24 * 3_600_000;
/// How long request ids of enqueue are remembered.
pub(crate) const REQUEST_MS: u64 = 60_000;

/// The state of one queue. Made by `Default`; commands change it through [`Command::apply`](crate::Command::apply).
#[derive(Debug, Default, Clone)]
pub struct State {
    /// The mode, stored with the first enqueue.
    pub(crate) mode: Option<Tagging>,
    pub(crate) serial: u64,
    pub(crate) token: u64,
    pub(crate) totals: BTreeMap<&'static str, u64>,
    /// V.
    pub(crate) virtual_time: f64,
    /// F per partition.
    pub(crate) finish: HashMap<String, f64>,
    /// Start tags by member: task ids, and `\0PARTITION` for a place held by cancelled tasks.
    pub(crate) queue: Scored,
    pub(crate) task: HashMap<String, Payload>,
    pub(crate) waiting: HashMap<String, Payload>,
    pub(crate) head: HashMap<String, Head>,
    pub(crate) lane: HashMap<String, VecDeque<Entry>>,
    pub(crate) paid: HashMap<String, VecDeque<Entry>>,
    pub(crate) idle: Scored,
    pub(crate) lease: Scored,
    pub(crate) held: HashMap<String, Held>,
    pub(crate) owner: HashMap<String, Holding>,
    pub(crate) running: HashMap<String, u64>,
    pub(crate) delayed: Scored,
    pub(crate) dead: Scored,
    pub(crate) error: HashMap<String, String>,
    pub(crate) share: HashMap<String, Share>,
    pub(crate) request: Scored,
    pub(crate) answer: HashMap<String, String>,
    /// Who sweeps, and until when (ms).
    pub(crate) sweeper: Option<(String, u64)>,
    /// Microseconds since 1970 of the command under way.
    now_us: u64,
    skips: usize,
    touched: HashSet<String>,
    placed: bool,
}

/// An entry of a lane: live only while `waiting` has this id with this serial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) serial: u64,
    pub(crate) id: String,
}

/// What is known of a partition that has queued tasks.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    /// Live tasks in the lane.
    pub(crate) lane: u64,
    /// Live paid tasks that wait in front of the lane.
    pub(crate) paid: u64,
    /// Tagged tasks beside the head: those of mode `all`.
    pub(crate) old: u64,
    /// How many of them are paid.
    pub(crate) old_paid: u64,
    pub(crate) kind: Kind,
    pub(crate) id: String,
}

/// What the tag of a partition in mode `head` stands for.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// No tag: gated, or with tags of mode `all` left.
    #[default]
    None,
    /// A task that pays when it is served.
    Unpaid,
    /// A task that was given back and has paid already.
    Paid,
    /// No task: the place of cancelled ones, skipped uncharged.
    Ghost,
}

impl Head {
    pub(crate) fn queued(&self) -> u64 {
        self.lane + self.paid + self.old + u64::from(matches!(self.kind, Kind::Unpaid | Kind::Paid))
    }
    pub(crate) fn unpaid(&self) -> u64 {
        self.lane + self.old - self.old_paid + u64::from(self.kind == Kind::Unpaid)
    }
}

/// Where a task that was delivered at least once is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Leased,
    /// Delayed, and paid when it comes back.
    DelayedPaid,
    /// Delayed, and charged again when it comes back.
    DelayedRetry,
    Queued,
    QueuedPaid,
    Dead,
}

/// A task from its first delivery until it is done.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Held {
    pub(crate) place: Place,
    /// `-` once the lease was taken away: every token that was handed out is then lost.
    pub(crate) token: String,
    pub(crate) deliveries: u32,
    pub(crate) blames: u32,
    /// Deliveries that ended with their worker or lease, since the task last ended one itself.
    pub(crate) losses: u32,
    /// Whether its one free return is used up.
    pub(crate) free_used: bool,
    pub(crate) max_deliveries: u32,
    /// The start tag it was served at.
    pub(crate) start: f64,
    /// `-` for none.
    pub(crate) owner: String,
    /// Empty while it is queued: then `task` or `waiting` has it.
    pub(crate) payload: Payload,
}

/// What an owner holds.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Holding {
    /// Its last request id.
    pub(crate) request: String,
    /// The ids it holds, and whether they came with that request.
    pub(crate) ids: Vec<(String, bool)>,
}

impl State {
    /// Starts a command at this time, in microseconds since 1970.
    pub fn at(&mut self, now_us: u64) -> &mut Self {
        self.now_us = now_us;
        self.skips = MAX_SKIPS;
        self.placed = false;
        self
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.now_us / 1_000
    }

    pub(crate) fn count(&mut self, total: &'static str, n: u64) {
        if n > 0 {
            *self.totals.entry(total).or_default() += n;
        }
    }

    pub(crate) fn share_of(&self, partition: &str) -> Share {
        self.share.get(partition).copied().unwrap_or_default()
    }

    /// Tasks that could run now.
    pub(crate) fn queued(&self) -> u64 {
        (self.task.len() + self.waiting.len()) as u64
    }

    pub(crate) fn is_mode_all(&self) -> bool {
        self.mode == Some(Tagging::All)
    }

    /// Whether the last command placed tasks in the queue, so that sleeping consumers should look.
    pub fn has_woken(&self) -> bool {
        self.placed
    }

    /// The partition of a stored payload.
    pub(crate) fn partition_of(payload: &Payload) -> Option<String> {
        payload.prefix().map(|prefix| prefix.partition)
    }
}
