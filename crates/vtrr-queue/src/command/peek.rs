//! peek: who would be served next.

use std::collections::HashSet;

use super::{Command, Step, Target, amount, script};
use crate::call::{Call, Script, Value, arg};
use crate::error::Result;
use crate::keys::QueueName;
use crate::state::{MAX_PARTITIONS, State};
use crate::task::{Payload, TaskId};

pub(crate) const SCRIPT: Script = script!("peek", "order", "serve");

/// The next `n` tasks in the order a dequeue would hand them out now, without what is due but not back yet; of at most 250
/// partitions, as a dequeue. Changes nothing. O(n log partitions) on a server; O(all tasks) in memory.
#[derive(Debug, Clone)]
#[must_use = "a command does nothing until a runner runs it"]
pub struct Peek {
    target: Target,
    n: usize,
}

/// A task and the tag it would be served at.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Peeked {
    /// The task.
    pub id: TaskId,
    /// S.
    pub start: f64,
    /// The task as stored.
    pub payload: Payload,
}

impl Peek {
    pub(crate) fn new(target: Target, n: usize) -> Result<Self> {
        Ok(Self { target, n: amount("n", n, 1)? })
    }
}

impl Command for Peek {
    type Reply = Vec<Peeked>;

    fn queue(&self) -> &QueueName {
        &self.target.name
    }

    fn call(&self) -> Call {
        self.target.call(SCRIPT, vec![arg(self.n)])
    }

    fn decode(&mut self, answer: Value) -> Result<Step<Self::Reply>> {
        let mut tasks = Vec::new();
        for task in answer.answer()? {
            let mut task = task.fields()?;
            tasks.push(Peeked { id: TaskId::trusted(task.text()?), start: task.float()?, payload: Payload(task.bytes()?) });
        }
        Ok(Step::Done(tasks))
    }

    fn apply(&mut self, state: &mut State) -> Result<Step<Self::Reply>> {
        let mut ahead = state.clone();
        let (mut tasks, mut partitions) = (Vec::new(), HashSet::new());
        while tasks.len() < self.n && partitions.len() < MAX_PARTITIONS {
            let Some(tagged) = ahead.take() else { break };
            partitions.extend(tagged.partition);
            let Some(payload) = tagged.payload else { continue };
            tasks.push(Peeked { id: TaskId::trusted(tagged.id), start: tagged.start, payload });
        }
        Ok(Step::Done(tasks))
    }
}
