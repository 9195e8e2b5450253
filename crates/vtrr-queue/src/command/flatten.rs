//! flatten, unflatten: switch the tagging mode of a queue with tasks in it.

use super::{Command, Step, Tagging, Target, script};
use crate::call::{Call, Script, Value, arg};
use crate::error::Result;
use crate::keys::QueueName;
use crate::state::{GivenBack, MAX_STEP, Place, State};

pub(crate) const FLATTEN: Script = script!("flatten", "order", "commit", "lease");
pub(crate) const UNFLATTEN: Script = script!("unflatten");

/// Mode `head` → `all`: tags everything that waits and brings in everything delayed, 1,000 tasks a step. The mode
/// changes in the step that empties the last lane. The way back to 0.1.0: done when lanes and leases are both 0.
#[derive(Debug, Clone)]
#[must_use = "a command does nothing until a runner runs it"]
pub struct Flatten {
    target: Target,
}

/// What is left before 0.1.0 can take over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Flattened {
    /// Tasks without a tag: 0 once the mode is `all`.
    pub in_lanes: u64,
    /// Tasks being worked on.
    pub leased: u64,
}

impl Flatten {
    pub(crate) fn new(target: Target) -> Self {
        Self { target }
    }
}

impl Command for Flatten {
    type Reply = Flattened;

    fn queue(&self) -> &QueueName {
        &self.target.name
    }

    fn call(&self) -> Call {
        self.target.call(FLATTEN, vec![arg(MAX_STEP)])
    }

    fn decode(&mut self, answer: Value) -> Result<Step<Flattened>> {
        let mut fields = answer.answer()?;
        let more = fields.flag()?;
        let flattened = Flattened { in_lanes: fields.count()?, leased: fields.count()? };
        Ok(if more { Step::Again } else { Step::Done(flattened) })
    }

    fn apply(&mut self, state: &mut State) -> Result<Step<Flattened>> {
        let delayed: Vec<_> = state.delayed.iter().map(|(_, id)| id.to_owned()).collect();
        let mut given_back = Vec::new();
        for id in delayed {
            state.delayed.remove(&id);
            if let Some(held) = state.held.get(&id) {
                given_back.push(GivenBack::new(&id, held, held.place == Place::DelayedPaid));
            }
        }
        state.place_all(given_back);
        let mut partitions: Vec<_> = state.head.keys().cloned().collect();
        partitions.sort();
        for partition in partitions {
            while state.flatten_one(&partition) {}
        }
        state.mode = Some(Tagging::All);
        state.finish(0);
        Ok(Step::Done(Flattened { in_lanes: state.waiting.len() as u64, leased: state.lease.len() as u64 }))
    }
}

/// Mode `all` → `head`, at once. A partition gets no head until its tags of mode `all` are used up. O(1).
#[derive(Debug, Clone)]
#[must_use = "a command does nothing until a runner runs it"]
pub struct Unflatten {
    target: Target,
}

impl Unflatten {
    pub(crate) fn new(target: Target) -> Self {
        Self { target }
    }
}

impl Command for Unflatten {
    type Reply = ();

    fn queue(&self) -> &QueueName {
        &self.target.name
    }

    fn call(&self) -> Call {
        self.target.call(UNFLATTEN, Vec::new())
    }

    fn decode(&mut self, answer: Value) -> Result<Step<()>> {
        answer.answer().map(|_| Step::Done(()))
    }

    fn apply(&mut self, state: &mut State) -> Result<Step<()>> {
        state.mode = Some(Tagging::Head);
        Ok(Step::Done(()))
    }
}
