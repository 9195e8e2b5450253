//! extend: moves the deadlines of leases, a worker's heartbeat.

use std::time::Duration;

use super::{Command, Settled, Step, Target, amount, milliseconds, one_each, script};
use crate::call::{Call, Script, Value, arg};
use crate::error::Result;
use crate::keys::QueueName;
use crate::state::State;
use crate::task::{Delivery, Owner, TaskId, Token};

pub(crate) const SCRIPT: Script = script!("extend", "order", "commit", "lease");

/// Sets the deadlines of leases to now + `lease`, in one atomic step; answers one [`Settled`] each, in order.
///
/// `Lost` and `Gone` mean: stop working on it. O(log leases) per delivery.
#[derive(Debug, Clone)]
#[must_use = "a command does nothing until a runner runs it"]
pub struct Extend {
    target: Target,
    lease_ms: u64,
    owner: Option<Owner>,
    leases: Vec<(TaskId, Token)>,
}

impl Extend {
    pub(crate) fn new(target: Target, leases: Vec<(TaskId, Token)>, lease: Duration) -> Result<Self> {
        amount("leases", leases.len(), 1)?;
        Ok(Self { target, lease_ms: milliseconds("lease", lease, 1)?, owner: None, leases })
    }

    pub(crate) fn of(target: Target, deliveries: &[Delivery], lease: Duration) -> Result<Self> {
        let leases = deliveries.iter().map(|delivery| (delivery.id.clone(), delivery.token.clone())).collect();
        Self::new(target, leases, lease)
    }

    pub(crate) fn owner(target: Target, owner: Owner, lease: Duration) -> Result<Self> {
        Ok(Self { target, lease_ms: milliseconds("lease", lease, 1)?, owner: Some(owner), leases: Vec::new() })
    }
}

impl Command for Extend {
    type Reply = Vec<Settled>;

    fn queue(&self) -> &QueueName {
        &self.target.name
    }

    fn call(&self) -> Call {
        let mut args = vec![arg(self.lease_ms), arg(self.owner.as_ref().map_or("", Owner::as_str))];
        args.extend(self.leases.iter().flat_map(|(id, token)| [arg(id), arg(token)]));
        self.target.call(SCRIPT, args)
    }

    fn decode(&mut self, answer: Value) -> Result<Step<Self::Reply>> {
        let settled = Settled::decode_list(&mut answer.answer()?, false)?;
        Ok(Step::Done(if self.owner.is_some() { settled } else { one_each(settled, self.leases.len())? }))
    }

    fn apply(&mut self, state: &mut State) -> Result<Step<Self::Reply>> {
        let deadline = state.now_ms().saturating_add(self.lease_ms) as f64;
        if let Some(owner) = &self.owner {
            let held = state.owner.get(owner.as_str()).cloned().unwrap_or_default().ids;
            for (id, _) in &held {
                state.lease.insert(id, deadline);
            }
            return Ok(Step::Done(vec![Settled::Done; held.len()]));
        }
        let mut settled = Vec::new();
        for (id, token) in &self.leases {
            let standing = state.standing(id.as_str(), token.as_str());
            if standing == Settled::Done {
                state.lease.insert(id.as_str(), deadline);
            }
            settled.push(standing);
        }
        Ok(Step::Done(settled))
    }
}
