//! The commands, one file and one script each. A command is a value that knows its script call, how to read the
//! answer, and how to do the same step on the state in memory. Runners execute it and know nothing of its inside.
//!
//! | file | what it does |
//! |---|---|
//! | `enqueue` | adds tasks of one partition |
//! | `dequeue` | settles, brings back what is due, hands out the next tasks in order |
//! | `settle` | ack, release, retry, fail; of single deliveries or of all that an owner holds |
//! | `claim` | takes a delivery back that was released with a delay |
//! | `extend` | moves deadlines of leases |
//! | `sweep` | the periodic repair |
//! | `cancel`, `purge` | take queued tasks out |
//! | `share` | sets and clears a partition's share |
//! | `flatten` | switches the tagging mode, both ways |
//! | `dead`, `cause` | lists, redrives and discards dead letters; why they are |
//! | `stats`, `partitions`, `peek`, `find` | look, and change nothing |
//! | `eviction` | whether the server may delete tasks |

mod cancel;
mod cause;
mod claim;
mod dead;
mod dequeue;
mod enqueue;
mod eviction;
mod extend;
mod find;
mod flatten;
mod partitions;
mod peek;
mod purge;
mod settle;
mod share;
mod stats;
mod sweep;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use cancel::{Cancel, Cancelled};
pub use cause::Cause;
pub use claim::Claim;
pub use dead::{DeadLetter, DeadLetters, Discard, Redrive};
pub use dequeue::{DEFAULT_LEASE, DEFAULT_MAX_DELIVERIES, Dequeue, Dequeued};
pub(crate) use enqueue::{Bounds, bound};
pub use enqueue::{Enqueue, Enqueued};
pub use eviction::Eviction;
pub use extend::Extend;
pub use find::{Find, Found, Whereabouts};
pub use flatten::{Flatten, Flattened, Unflatten};
pub use partitions::{PartitionStats, Partitions};
pub use peek::{Peek, Peeked};
pub use purge::{Purge, Purged};
pub use settle::{MAX_ERROR_BYTES, Outcome, Released, Settle, SettleOwner, Settled, Settlement};
pub use share::SetShare;
pub use stats::{Stats, Totals};
pub use sweep::{Sweep, Swept};

use crate::call::{Call, Script, Value};
use crate::error::{Error, ErrorKind, Result};
use crate::keys::QueueName;
use crate::state::State;

/// One thing to do to a queue: a value with no IO in it.
///
/// A runner sends [`call`](Command::call) and hands the answer to [`decode`](Command::decode), or calls
/// [`apply`](Command::apply) on a [`State`]; again while the answer is [`Step::Again`]. Each step is atomic.
pub trait Command: Send {
    /// What it answers.
    type Reply: Send;

    /// The queue it is for.
    fn queue(&self) -> &QueueName;

    /// The script call of the step that is due.
    fn call(&self) -> Call;

    /// Reads the answer of that call. Errors: what the script refused; [`Protocol`](ErrorKind::Protocol) for what no script
    /// answers, as a whole.
    fn decode(&mut self, answer: Value) -> Result<Step<Self::Reply>>;

    /// Does the step that is due on the state in memory.
    fn apply(&mut self, state: &mut State) -> Result<Step<Self::Reply>>;

    /// Told before a call is sent again because its answer was lost: what it asks for may have been done by the first.
    fn repeated(&mut self) {}

    /// Adds to an error what the caller must know of the steps already done.
    fn interrupted(&self, error: Error) -> Error {
        error
    }
}

/// Whether a command has answered or has another step to do.
#[derive(Debug)]
pub enum Step<Reply> {
    /// Finished.
    Done(Reply),
    /// Bounded work done; call again.
    Again,
}

/// How tasks are tagged; stored with the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tagging {
    /// Only the first task of each partition has a tag, the default: shares act on the whole backlog at once.
    Head,
    /// Every task gets its tag when it is enqueued, as 0.1.0 does it: for a queue that 0.1.0 workers still consume.
    All,
}

impl Tagging {
    /// `head` or `all`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Head => "head",
            Self::All => "all",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "head" => Some(Self::Head),
            "all" => Some(Self::All),
            _ => None,
        }
    }
}

impl fmt::Display for Tagging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What every command of a queue shares: its name and keys.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) name: QueueName,
    pub(crate) keys: Arc<[String]>,
}

impl Target {
    pub(crate) fn new(name: QueueName) -> Self {
        let keys = name.keys().into();
        Self { name, keys }
    }

    fn call(&self, script: Script, args: Vec<Vec<u8>>) -> Call {
        Call { script, keys: Arc::clone(&self.keys), args }
    }
}

/// A script: the shared parts it needs, then the command's own file.
macro_rules! script {
    ($name:literal $(, $part:literal)*) => {
        crate::call::Script {
            name: $name,
            source: concat!(include_str!("base.lua"), $(include_str!(concat!($part, ".lua")),)* include_str!(concat!($name, ".lua"))),
        }
    };
}
use script;

/// Every script, for clients that load them up front.
pub const SCRIPTS: [Script; 19] = [
    cancel::SCRIPT,
    claim::SCRIPT,
    dead::LIST,
    dead::REDRIVE,
    dead::DISCARD,
    dequeue::SCRIPT,
    enqueue::SCRIPT,
    eviction::SCRIPT,
    extend::SCRIPT,
    find::SCRIPT,
    flatten::FLATTEN,
    flatten::UNFLATTEN,
    partitions::SCRIPT,
    peek::SCRIPT,
    purge::SCRIPT,
    settle::SCRIPT,
    share::SCRIPT,
    stats::SCRIPT,
    sweep::SCRIPT,
];

fn wrong_mode(mode: Tagging) -> Error {
    Error::new(
        ErrorKind::Mode,
        match mode {
            Tagging::Head => "the queue is in tagging mode head; `flatten` switches it to all",
            Tagging::All => "the queue is in tagging mode all; `unflatten` switches it to head",
        },
    )
}

/// A time span in whole milliseconds, rounded up: at most ten years.
fn milliseconds(argument: &str, span: Duration, least: u64) -> Result<u64> {
    const MOST: u64 = 10 * 366 * 86_400_000;
    let ms = span.as_nanos().div_ceil(1_000_000);
    match u64::try_from(ms) {
        Ok(ms) if (least..=MOST).contains(&ms) => Ok(ms),
        _ => Err(Error::invalid(argument, format_args!("{span:?}"), &format!("from {least} ms to 10 years"))),
    }
}

/// The answers of a call that has one for each thing it asked about.
fn one_each<T>(answers: Vec<T>, asked: usize) -> Result<Vec<T>> {
    if answers.len() == asked {
        return Ok(answers);
    }
    Err(Error::protocol(format!("the server's answer is about {} of the {asked} that were asked about", answers.len())))
}

/// A number of things asked for in one call.
fn amount(argument: &str, n: usize, least: usize) -> Result<usize> {
    let most = crate::task::MAX_TASKS_PER_CALL;
    if (least..=most).contains(&n) { Ok(n) } else { Err(Error::invalid(argument, n, &format!("from {least} to {most}"))) }
}
