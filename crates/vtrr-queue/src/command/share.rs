//! share: sets or clears what a partition is entitled to.

use super::{Command, Step, Target, script};
use crate::call::{Call, Script, Value, arg};
use crate::error::Result;
use crate::keys::QueueName;
use crate::state::State;
use crate::tag::Share;
use crate::task::Partition;

pub(crate) const SCRIPT: Script = script!("share", "order", "commit");

/// Sets the share of a partition; a share of 1 is no record. It acts at once on the whole backlog in mode `head`, on
/// tasks enqueued later in mode `all`. It stays until it is cleared, also when the queue is empty. O(log partitions).
#[derive(Debug, Clone)]
#[must_use = "a command does nothing until a runner runs it"]
pub struct SetShare {
    target: Target,
    partition: Partition,
    share: Share,
}

impl SetShare {
    pub(crate) fn new(target: Target, partition: Partition, share: Share) -> Self {
        Self { target, partition, share }
    }
}

impl Command for SetShare {
    type Reply = ();

    fn queue(&self) -> &QueueName {
        &self.target.name
    }

    fn call(&self) -> Call {
        self.target.call(SCRIPT, vec![arg(&self.partition), arg(self.share.get())])
    }

    fn decode(&mut self, answer: Value) -> Result<Step<()>> {
        answer.answer().map(|_| Step::Done(()))
    }

    fn apply(&mut self, state: &mut State) -> Result<Step<()>> {
        state.reshare(self.partition.as_str(), self.share);
        state.finish(0);
        Ok(Step::Done(()))
    }
}
