//! purge: takes the queued tasks of a partition, or of all, out.

use super::{Command, Step, Target, script};
use crate::call::{Call, Script, Value, arg};
use crate::error::Result;
use crate::keys::QueueName;
use crate::state::{MAX_STEP, Place, State};
use crate::task::{Partition, Payload};

pub(crate) const SCRIPT: Script = script!("purge", "order", "commit");

/// Takes out the tasks that were queued when it began, 1,000 a step; leased, delayed and dead ones stay and are
/// counted. Each step is atomic; a purge that is interrupted can be started again.
///
/// O(tasks purged); of one partition in mode `all`: O(tasks of the queue).
#[derive(Debug, Clone)]
#[must_use = "a command does nothing until a runner runs it"]
pub struct Purge {
    target: Target,
    partition: Option<Partition>,
    cursor: String,
    purged: Purged,
}

/// What a purge took out, and what it left in the same scope.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Purged {
    /// Tasks taken out.
    pub purged: u64,
    /// Leased tasks, left alone.
    pub leased: u64,
    /// Delayed tasks, left alone.
    pub delayed: u64,
    /// Dead letters, left alone.
    pub dead: u64,
}

impl Purge {
    pub(crate) fn new(target: Target, partition: Option<Partition>) -> Self {
        Self { target, partition, cursor: String::new(), purged: Purged::default() }
    }
}

impl Command for Purge {
    type Reply = Purged;

    fn queue(&self) -> &QueueName {
        &self.target.name
    }

    fn call(&self) -> Call {
        let partition = self.partition.as_ref().map_or("", Partition::as_str);
        self.target.call(SCRIPT, vec![arg(partition), arg(&self.cursor), arg(MAX_STEP)])
    }

    fn decode(&mut self, answer: Value) -> Result<Step<Purged>> {
        let mut fields = answer.answer()?;
        self.cursor = fields.text()?;
        let Purged { purged, leased, delayed, dead } = &mut self.purged;
        for total in [purged, leased, delayed, dead] {
            *total = total.saturating_add(fields.count()?);
        }
        Ok(if self.cursor.is_empty() { Step::Done(self.purged) } else { Step::Again })
    }

    fn apply(&mut self, state: &mut State) -> Result<Step<Purged>> {
        let wanted = |payload: &Payload| match &self.partition {
            None => true,
            Some(wanted) => State::partition_of(payload).is_some_and(|partition| partition == wanted.as_str()),
        };
        // Lanes first: a head that goes last promotes nothing in between.
        let ids = |tasks: &std::collections::HashMap<String, Payload>| {
            let mut ids: Vec<_> = tasks.iter().filter(|(_, payload)| wanted(payload)).map(|(id, _)| id.clone()).collect();
            ids.sort();
            ids
        };
        let doomed: Vec<_> = ids(&state.waiting).into_iter().chain(ids(&state.task)).collect();
        let held = |place: fn(Place) -> bool| {
            state.held.values().filter(|held| place(held.place) && wanted(&held.payload)).count() as u64
        };
        let purged = Purged {
            purged: doomed.len() as u64,
            leased: held(|place| place == Place::Leased),
            delayed: held(|place| matches!(place, Place::DelayedPaid | Place::DelayedRetry)),
            dead: held(|place| place == Place::Dead),
        };
        for id in &doomed {
            state.remove_queued(id);
        }
        state.count("purged", purged.purged);
        state.finish(0);
        Ok(Step::Done(purged))
    }
}
