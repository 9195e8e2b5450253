//! eviction: what the server does when its memory is full.

use super::{Command, Step, Target, script};
use crate::call::{Call, Script, Value};
use crate::error::Result;
use crate::keys::QueueName;
use crate::state::State;

pub(crate) const SCRIPT: Script = script!("eviction");

/// The server's `maxmemory-policy`, such as `noeviction`; none where the user has no right to `INFO`. With an
/// `allkeys-…` policy a full server deletes tasks. Changes nothing. O(1).
#[derive(Debug, Clone)]
#[must_use = "a command does nothing until a runner runs it"]
pub struct Eviction {
    target: Target,
}

impl Eviction {
    pub(crate) fn new(target: Target) -> Self {
        Self { target }
    }
}

impl Command for Eviction {
    type Reply = Option<String>;

    fn queue(&self) -> &QueueName {
        &self.target.name
    }

    fn call(&self) -> Call {
        self.target.call(SCRIPT, Vec::new())
    }

    fn decode(&mut self, answer: Value) -> Result<Step<Option<String>>> {
        let policy = answer.answer()?.text()?;
        Ok(Step::Done((!policy.is_empty()).then_some(policy)))
    }

    /// Memory deletes nothing.
    fn apply(&mut self, _: &mut State) -> Result<Step<Option<String>>> {
        Ok(Step::Done(Some("noeviction".to_owned())))
    }
}
