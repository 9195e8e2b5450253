//! cancel: takes tasks out that are queued or delayed.

use super::{Command, Step, Target, amount, one_each, script};
use crate::call::{Call, Script, Value, arg};
use crate::error::{Error, Result};
use crate::keys::QueueName;
use crate::state::{Place, State};
use crate::task::TaskId;

pub(crate) const SCRIPT: Script = script!("cancel", "order", "commit");

/// Takes up to 1,000 queued or delayed tasks out, in one atomic step; answers one [`Cancelled`] each, in order.
///
/// What did not run is not charged. O(log partitions) per task.
#[derive(Debug, Clone)]
#[must_use = "a command does nothing until a runner runs it"]
pub struct Cancel {
    target: Target,
    ids: Vec<TaskId>,
}

/// How a cancel ended for one task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cancelled {
    /// It was queued or delayed, and is gone.
    Done,
    /// There is no such task.
    Gone,
    /// It is being worked on, and was left alone.
    Leased,
    /// It is a dead letter, and was left alone.
    Dead,
}

impl Cancel {
    pub(crate) fn new(target: Target, ids: Vec<TaskId>) -> Result<Self> {
        amount("ids", ids.len(), 1)?;
        Ok(Self { target, ids })
    }
}

impl Command for Cancel {
    type Reply = Vec<Cancelled>;

    fn queue(&self) -> &QueueName {
        &self.target.name
    }

    fn call(&self) -> Call {
        self.target.call(SCRIPT, self.ids.iter().map(arg).collect())
    }

    fn decode(&mut self, answer: Value) -> Result<Step<Self::Reply>> {
        let codes = answer.answer()?.list()?;
        let codes = codes.iter().map(|code| match code.int()? {
            0 => Ok(Cancelled::Done),
            1 => Ok(Cancelled::Gone),
            2 => Ok(Cancelled::Leased),
            3 => Ok(Cancelled::Dead),
            n => Err(Error::protocol(format!("{n} where a cancelled code was expected"))),
        });
        Ok(Step::Done(one_each(codes.collect::<Result<_>>()?, self.ids.len())?))
    }

    fn apply(&mut self, state: &mut State) -> Result<Step<Self::Reply>> {
        let answers = self.ids.iter().map(|id| state.cancel(id.as_str())).collect();
        state.finish(0);
        Ok(Step::Done(answers))
    }
}

impl State {
    fn cancel(&mut self, id: &str) -> Cancelled {
        match self.held.get(id).map(|held| held.place) {
            Some(Place::Leased) => return Cancelled::Leased,
            Some(Place::Dead) => return Cancelled::Dead,
            Some(Place::DelayedPaid | Place::DelayedRetry) => {
                self.delayed.remove(id);
                self.held.remove(id);
            }
            Some(Place::Queued | Place::QueuedPaid) | None => {
                if !self.remove_queued(id) {
                    return Cancelled::Gone;
                }
            }
        }
        self.count("cancelled", 1);
        Cancelled::Done
    }
}
