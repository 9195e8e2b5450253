//! stats: the queue in numbers.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Command, Step, Tagging, Target, script};
use crate::call::{Call, Script, Value};
use crate::error::Result;
use crate::keys::QueueName;
use crate::state::State;

pub(crate) const SCRIPT: Script = script!("stats", "order", "lease");

/// Exact counts at one moment. Changes nothing. O(1) at any backlog.
#[derive(Debug, Clone)]
#[must_use = "a command does nothing until a runner runs it"]
pub struct Stats {
    target: Target,
}

/// The queue in numbers.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Totals {
    /// The tagging mode; none before the first enqueue.
    pub tagging: Option<Tagging>,
    /// Tasks that could run now.
    pub queued: u64,
    /// Tasks being worked on.
    pub leased: u64,
    /// Tasks that wait for a time.
    pub delayed: u64,
    /// Dead letters.
    pub dead: u64,
    /// Partitions with queued tasks.
    pub partitions: u64,
    /// V.
    pub virtual_time: f64,
    /// Time until the next lease runs out or the next delayed task is due.
    pub next_due: Option<Duration>,
    /// Counts since the queue was made: `enqueued`, `delivered`, `acked`, `released`, `retried`, `failed`,
    /// `reclaimed`, `dead`, `cancelled`, `purged`, `redriven`; those that are 0 are left out.
    pub totals: BTreeMap<String, u64>,
}

impl Stats {
    pub(crate) fn new(target: Target) -> Self {
        Self { target }
    }
}

impl Command for Stats {
    type Reply = Totals;

    fn queue(&self) -> &QueueName {
        &self.target.name
    }

    fn call(&self) -> Call {
        self.target.call(SCRIPT, Vec::new())
    }

    fn decode(&mut self, answer: Value) -> Result<Step<Totals>> {
        let mut fields = answer.answer()?;
        let mut totals = Totals {
            tagging: Tagging::parse(&fields.text()?),
            queued: fields.count()?,
            leased: fields.count()?,
            delayed: fields.count()?,
            dead: fields.count()?,
            partitions: fields.count()?,
            virtual_time: fields.float()?,
            next_due: u64::try_from(fields.int()?).ok().map(Duration::from_millis),
            totals: BTreeMap::new(),
        };
        let mut counts = fields.fields()?;
        while !counts.is_empty() {
            totals.totals.insert(counts.text()?, counts.count()?);
        }
        Ok(Step::Done(totals))
    }

    fn apply(&mut self, state: &mut State) -> Result<Step<Totals>> {
        Ok(Step::Done(Totals {
            tagging: state.mode,
            queued: state.queued(),
            leased: state.lease.len() as u64,
            delayed: state.delayed.len() as u64,
            dead: state.dead.len() as u64,
            partitions: state.head.len() as u64,
            virtual_time: state.virtual_time,
            next_due: state.next_due_ms().map(Duration::from_millis),
            totals: state.totals.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect(),
        }))
    }
}
