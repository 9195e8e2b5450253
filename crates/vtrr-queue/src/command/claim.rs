//! claim: takes a delivery back that was released with a delay.

use std::time::Duration;

use super::dequeue::delivery;
use super::{Command, Step, Target, milliseconds, script};
use crate::call::{Call, Script, Value, arg};
use crate::error::Result;
use crate::keys::QueueName;
use crate::state::{Place, State};
use crate::task::{Delivery, Owner, TaskId, Token};

pub(crate) const SCRIPT: Script = script!("claim", "order", "commit");

/// Takes a delivery back that was released with a delay and is not to be charged again, before that delay is over: under a
/// new token and lease, as the same delivery. None if it is due already, cancelled, or was handed out or claimed otherwise.
///
/// So a task can be set aside for one worker, and comes back by itself if that one never asks. One atomic step, O(log tasks).
/// Repeating the call with the same owner is safe; owners must be unique.
#[derive(Debug, Clone)]
#[must_use = "a command does nothing until a runner runs it"]
pub struct Claim {
    target: Target,
    id: TaskId,
    token: Token,
    owner: Owner,
    lease_ms: u64,
}

impl Claim {
    pub(crate) fn new(target: Target, id: TaskId, token: Token, owner: Owner, lease: Duration) -> Result<Self> {
        Ok(Self { target, id, token, owner, lease_ms: milliseconds("lease", lease, 1)? })
    }
}

impl Command for Claim {
    type Reply = Option<Delivery>;

    fn queue(&self) -> &QueueName {
        &self.target.name
    }

    fn call(&self) -> Call {
        self.target.call(SCRIPT, vec![arg(&self.id), arg(&self.token), arg(self.lease_ms), arg(&self.owner)])
    }

    fn decode(&mut self, answer: Value) -> Result<Step<Self::Reply>> {
        let mut fields = answer.answer()?;
        Ok(Step::Done(if fields.is_empty() { None } else { Some(delivery(&mut fields)?) }))
    }

    fn apply(&mut self, state: &mut State) -> Result<Step<Self::Reply>> {
        Ok(Step::Done(state.claim(self.id.as_str(), self.token.as_str(), self.owner.as_str(), self.lease_ms)))
    }
}

impl State {
    fn claim(&mut self, id: &str, token: &str, owner: &str, lease_ms: u64) -> Option<Delivery> {
        let held = self.held.get(id)?;
        if held.place != Place::Leased || held.owner != owner {
            if held.place != Place::DelayedPaid || held.token != token {
                return None;
            }
            let token = self.fresh_token();
            let held = self.held.get_mut(id)?;
            held.place = Place::Leased;
            held.token = token;
            owner.clone_into(&mut held.owner);
            let partition = Self::partition_of(&held.payload);
            self.delayed.remove(id);
            self.lease.insert(id, self.now_ms().saturating_add(lease_ms) as f64);
            if let Some(partition) = partition {
                *self.running.entry(partition).or_default() += 1;
            }
            self.owner.entry(owner.to_owned()).or_default().ids.push((id.to_owned(), false));
            self.finish(0);
        }
        self.delivery(id)
    }
}
