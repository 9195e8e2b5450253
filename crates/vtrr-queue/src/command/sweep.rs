//! sweep: the periodic repair.

use std::time::Duration;

use super::{Command, Step, Target, milliseconds, script};
use crate::call::{Call, Script, Value, arg};
use crate::error::Result;
use crate::keys::QueueName;
use crate::state::{MAX_DEAD_MS, MAX_SWEEP, State};
use crate::task::Owner;

pub(crate) const SCRIPT: Script = script!("sweep", "order", "commit", "lease");

/// Takes back expired leases, brings back delayed tasks that are due, gives partitions whose head was taken by 0.1.0
/// workers a new one, drops what those workers left over, mends what a server left that died while it wrote its file
/// (docs/decisions/0009-torn-files.md), and drops dead letters older than 30 days. At most 250 tasks, about 500 partitions
/// and about 100 fields of each key: it goes on where the last one ended, round after round. [`Swept::more`] says whether to
/// call again at once, [`Swept::unfinished`] whether within the round. Any number of sweepers may run at once; with
/// [`leader`](Self::leader) one of them does the work.
#[derive(Debug, Clone)]
#[must_use = "a command does nothing until a runner runs it"]
pub struct Sweep {
    target: Target,
    leader: Option<(Owner, u64)>,
}

/// What a sweep did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Swept {
    /// Leases that had run out.
    pub reclaimed: u64,
    /// Delayed tasks that were due.
    pub due: u64,
    /// Partitions that got a new head, and tasks that got their place back.
    pub healed: u64,
    /// Records of tasks that 0.1.0 workers took, and entries that nothing stands for.
    pub dropped: u64,
    /// Whether it found work, so that there may be more: call again at once.
    pub more: bool,
    /// Whether there are partitions that this round has not looked at: call again a little later.
    pub unfinished: bool,
    /// Whether this sweeper is the one that sweeps. If not, it did nothing.
    pub leading: bool,
}

impl Sweep {
    pub(crate) fn new(target: Target) -> Self {
        Self { target, leader: None }
    }

    /// Sweeps only if no other sweeper does: from now on this one is the leader, for `span` (at most ten years) unless it
    /// sweeps again. Names must be unique per process start.
    pub fn leader(mut self, name: Owner, span: Duration) -> Result<Self> {
        self.leader = Some((name, milliseconds("span", span, 1)?));
        Ok(self)
    }
}

impl Command for Sweep {
    type Reply = Swept;

    fn queue(&self) -> &QueueName {
        &self.target.name
    }

    fn call(&self) -> Call {
        let (name, span_ms) = self.leader.as_ref().map_or(("", 0), |(name, span_ms)| (name.as_str(), *span_ms));
        self.target.call(SCRIPT, vec![arg(MAX_SWEEP), arg(MAX_DEAD_MS), arg(name), arg(span_ms)])
    }

    fn decode(&mut self, answer: Value) -> Result<Step<Swept>> {
        let mut fields = answer.answer()?;
        Ok(Step::Done(Swept {
            reclaimed: fields.count()?,
            due: fields.count()?,
            healed: fields.count()?,
            dropped: fields.count()?,
            more: fields.flag()?,
            unfinished: fields.flag()?,
            leading: fields.flag()?,
        }))
    }

    fn apply(&mut self, state: &mut State) -> Result<Step<Swept>> {
        let now = state.now_ms();
        if let Some((name, span_ms)) = &self.leader {
            if state.sweeper.as_ref().is_some_and(|(leader, until)| leader != name.as_str() && *until > now) {
                return Ok(Step::Done(Swept::default()));
            }
            state.sweeper = Some((name.to_string(), now.saturating_add(*span_ms)));
        }
        let (reclaimed, due) = state.bring_due(MAX_SWEEP);
        let mut more = reclaimed + due == MAX_SWEEP as u64;
        if now >= MAX_DEAD_MS {
            let old: Vec<_> =
                state.dead.up_to((now - MAX_DEAD_MS) as f64).take(MAX_SWEEP).map(|(_, id)| id.to_owned()).collect();
            more |= old.len() == MAX_SWEEP;
            for id in old {
                state.forget_dead(&id);
            }
        }
        state.finish(MAX_SWEEP);
        Ok(Step::Done(Swept { reclaimed, due, healed: 0, dropped: 0, more, unfinished: false, leading: true }))
    }
}
