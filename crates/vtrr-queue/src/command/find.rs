//! find: where a task is.

use std::time::Duration;

use super::{Cause, Command, Step, Target, script};
use crate::call::{Call, Script, Value, arg};
use crate::error::Result;
use crate::keys::QueueName;
use crate::state::{Place, State, as_ms};
use crate::task::{Payload, TaskId};

pub(crate) const SCRIPT: Script = script!("find");

/// Where a task is; none if it is done, cancelled or was never there. Changes nothing. O(1).
#[derive(Debug, Clone)]
#[must_use = "a command does nothing until a runner runs it"]
pub struct Find {
    target: Target,
    id: TaskId,
}

/// A task that is still known.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Found {
    /// Where it is.
    pub whereabouts: Whereabouts,
    /// How often it has been delivered.
    pub deliveries: u32,
    /// The task as stored; empty if it is missing.
    pub payload: Payload,
}

/// Where a task is.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Whereabouts {
    /// In its partition's lane, without a tag yet.
    Waiting,
    /// In the order, with this start tag.
    Tagged {
        /// S.
        start: f64,
    },
    /// Being worked on.
    Leased {
        /// Until the lease runs out; 0 when it already has.
        left: Duration,
        /// Who works on it; none for an anonymous dequeue.
        owner: Option<String>,
    },
    /// Waiting for its time.
    Delayed {
        /// Until it is due; 0 when it already is.
        left: Duration,
    },
    /// A dead letter.
    Dead {
        /// What kind of end it was.
        cause: Cause,
        /// Why.
        error: String,
    },
}

impl Find {
    pub(crate) fn new(target: Target, id: TaskId) -> Self {
        Self { target, id }
    }
}

impl Command for Find {
    type Reply = Option<Found>;

    fn queue(&self) -> &QueueName {
        &self.target.name
    }

    fn call(&self) -> Call {
        self.target.call(SCRIPT, vec![arg(&self.id)])
    }

    fn decode(&mut self, answer: Value) -> Result<Step<Self::Reply>> {
        let mut fields = answer.answer()?;
        let kind = fields.value()?;
        if kind.text()? == "gone" {
            return Ok(Step::Done(None));
        }
        let deliveries = u32::try_from(fields.count()?).unwrap_or(u32::MAX);
        let payload = Payload(fields.bytes()?);
        let whereabouts = match kind.text()?.as_ref() {
            "waiting" => Whereabouts::Waiting,
            "tagged" => Whereabouts::Tagged { start: fields.float()? },
            "leased" => Whereabouts::Leased {
                left: Duration::from_millis(fields.count()?),
                owner: Some(fields.text()?).filter(|owner| owner != "-"),
            },
            "delayed" => Whereabouts::Delayed { left: Duration::from_millis(fields.count()?) },
            "dead" => dead(&fields.text()?),
            _ => return Err(kind.unreadable("whereabouts")),
        };
        Ok(Step::Done(Some(Found { whereabouts, deliveries, payload })))
    }

    fn apply(&mut self, state: &mut State) -> Result<Step<Self::Reply>> {
        let id = self.id.as_str();
        let held = state.held.get(id);
        let deliveries = held.map_or(0, |held| held.deliveries);
        let left = |at: Option<f64>| Duration::from_millis(as_ms(at.unwrap_or_default()).saturating_sub(state.now_ms()));
        let queued = || {
            if let Some(payload) = state.waiting.get(id) {
                return Some((Whereabouts::Waiting, payload.clone()));
            }
            let start = state.queue.score(id)?;
            Some((Whereabouts::Tagged { start }, state.task.get(id).cloned().unwrap_or(Payload(Vec::new()))))
        };
        let found = match held.map(|held| (held.place, held)) {
            None | Some((Place::Queued | Place::QueuedPaid, _)) => queued(),
            Some((Place::Leased, held)) => {
                let owner = Some(held.owner.clone()).filter(|owner| owner != "-");
                Some((Whereabouts::Leased { left: left(state.lease.score(id)), owner }, held.payload.clone()))
            }
            Some((Place::DelayedPaid | Place::DelayedRetry, held)) => {
                Some((Whereabouts::Delayed { left: left(state.delayed.score(id)) }, held.payload.clone()))
            }
            Some((Place::Dead, held)) => Some((dead(state.error.get(id).map_or("", String::as_str)), held.payload.clone())),
        };
        Ok(Step::Done(found.map(|(whereabouts, payload)| Found { whereabouts, deliveries, payload })))
    }
}

fn dead(why: &str) -> Whereabouts {
    let (cause, error) = Cause::split(why);
    Whereabouts::Dead { cause, error }
}
