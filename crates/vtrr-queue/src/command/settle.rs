//! settle: ends deliveries. Ack, release, retry and fail are its four outcomes.

use std::time::Duration;

use super::{Cause, Command, Step, Target, amount, milliseconds, one_each, script};
use crate::call::{Call, Fields, Script, Value, arg};
use crate::error::{Error, Result};
use crate::keys::QueueName;
use crate::state::State;
use crate::task::{Body, Delivery, Owner, TaskId, Token};

pub(crate) const SCRIPT: Script = script!("settle", "order", "commit", "lease");

/// Longest error text of a dead letter, in bytes; longer ones are cut.
pub const MAX_ERROR_BYTES: usize = 4_096;

/// What becomes of a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Done.
    Ack,
    /// Given back.
    Release {
        /// Until then nobody gets it; 0 for at once.
        delay_ms: u64,
        /// Whether it ran, and who is to blame.
        how: Released,
    },
    /// Run again later, and charged again.
    Retry {
        /// Until then nobody gets it; 0 for at once.
        delay_ms: u64,
        /// Other arguments for the next run.
        body: Option<Body>,
    },
    /// Given up: a dead letter with this error.
    Fail {
        /// What kind of end it is.
        cause: Cause,
        /// Why.
        error: String,
    },
}

/// How a delivery that is given back went: what that costs the task, by R9 of docs/protocol.md.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Released {
    /// The task did not begin: free, each time.
    Unrun,
    /// It began, and its worker was stopped: free, each time. A loss all the same: it may have done a part of its work.
    Stopped,
    /// It began, and gave itself back: charged as a retry, and placed as one. Otherwise a task that gives itself back again
    /// and again would starve everybody.
    Ran,
    /// Its worker was lost: free once. Counts towards `max_deliveries`.
    Lost {
        /// Why; the last one is part of the dead letter's error. Up to 4,096 bytes are kept.
        reason: String,
    },
    /// Its worker does not know its name: free. Counts towards `max_deliveries`.
    Unknown {
        /// As for `Lost`.
        reason: String,
    },
}

impl Released {
    /// Its worker was lost.
    pub fn lost(reason: impl Into<String>) -> Self {
        Self::Lost { reason: reason.into() }
    }

    /// Its worker does not know its name.
    pub fn unknown(reason: impl Into<String>) -> Self {
        Self::Unknown { reason: reason.into() }
    }
}

/// A delivery and what becomes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    pub(crate) id: TaskId,
    pub(crate) token: Token,
    pub(crate) outcome: Outcome,
}

impl Settlement {
    fn of(delivery: &Delivery, outcome: Outcome) -> Self {
        Self { id: delivery.id.clone(), token: delivery.token.clone(), outcome }
    }

    /// For callers that kept id and token only. Error texts are cut at 4,096 bytes.
    ///
    /// Errors: [`Invalid`](crate::ErrorKind::Invalid) for a delay of more than ten years.
    pub fn new(id: TaskId, token: Token, outcome: Outcome) -> Result<Self> {
        if let Outcome::Release { delay_ms, .. } | Outcome::Retry { delay_ms, .. } = outcome {
            milliseconds("delay", Duration::from_millis(delay_ms), 0)?;
        }
        Ok(Self::trusted(id, token, outcome.checked()))
    }

    pub(crate) fn trusted(id: TaskId, token: Token, outcome: Outcome) -> Self {
        Self { id, token, outcome }
    }

    /// Done.
    pub fn ack(delivery: &Delivery) -> Self {
        Self::of(delivery, Outcome::Ack)
    }

    /// Given back, to be delivered again after `delay` (at most ten years).
    pub fn release(delivery: &Delivery, delay: Duration, how: Released) -> Result<Self> {
        let outcome = Outcome::Release { delay_ms: milliseconds("delay", delay, 0)?, how };
        Ok(Self::of(delivery, outcome.checked()))
    }

    /// Run again after `delay` (at most ten years), with another body if one is given.
    pub fn retry(delivery: &Delivery, delay: Duration, body: Option<Body>) -> Result<Self> {
        Ok(Self::of(delivery, Outcome::Retry { delay_ms: milliseconds("delay", delay, 0)?, body }))
    }

    /// Given up, with the error that the dead letter shows: up to 4,096 bytes of it.
    pub fn fail(delivery: &Delivery, cause: Cause, error: impl Into<String>) -> Self {
        Self::of(delivery, Outcome::Fail { cause, error: error.into() }.checked())
    }

    /// The task it settles.
    pub fn id(&self) -> &TaskId {
        &self.id
    }

    /// `id`, `token`, and three arguments for the outcome.
    pub(super) fn args(&self, args: &mut Vec<Vec<u8>>) {
        args.push(arg(&self.id));
        args.push(arg(&self.token));
        self.outcome.args(args);
    }
}

impl Outcome {
    /// Cuts an error text that is too long.
    fn checked(mut self) -> Self {
        if let Self::Fail { error: text, .. }
        | Self::Release { how: Released::Lost { reason: text } | Released::Unknown { reason: text }, .. } = &mut self
        {
            let end = (0..=MAX_ERROR_BYTES.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
            text.truncate(end);
        }
        self
    }

    fn args(&self, args: &mut Vec<Vec<u8>>) {
        let (kind, number, text) = match self {
            Self::Ack => ("ack", 0, Vec::new()),
            Self::Release { delay_ms, how } => match how {
                Released::Unrun => ("release", *delay_ms, Vec::new()),
                Released::Stopped => ("stopped", *delay_ms, Vec::new()),
                Released::Ran => ("ran", *delay_ms, Vec::new()),
                Released::Lost { reason } => ("lost", *delay_ms, reason.clone().into_bytes()),
                Released::Unknown { reason } => ("unknown", *delay_ms, reason.clone().into_bytes()),
            },
            Self::Retry { delay_ms, body } => {
                ("retry", *delay_ms, body.as_ref().map_or(b"".as_slice(), Body::rest).to_vec())
            }
            Self::Fail { cause, error } => ("fail", 0, cause.with(error).into_bytes()),
        };
        args.push(arg(kind));
        args.push(arg(number));
        args.push(text);
    }
}

/// How a settle or extend ended. Not an error: the caller decides what it means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Settled {
    /// Done.
    Done,
    /// No such delivery. After one's own repeated call that is success; runners that repeat a call by themselves answer
    /// [`Done`](Self::Done) then.
    Gone,
    /// The lease was taken away, perhaps given to somebody else: nothing changed.
    Lost,
}

impl Settled {
    pub(super) fn decode(value: &Value) -> Result<Self> {
        match value.int()? {
            0 => Ok(Self::Done),
            1 => Ok(Self::Gone),
            2 => Ok(Self::Lost),
            n => Err(Error::protocol(format!("{n} where a settled code was expected"))),
        }
    }

    /// `repeated`: whether the runner sent the call more than once.
    pub(super) fn decode_list(fields: &mut Fields, repeated: bool) -> Result<Vec<Self>> {
        let mut settled = fields.list()?.iter().map(Self::decode).collect::<Result<Vec<_>>>()?;
        for settled in settled.iter_mut().filter(|settled| repeated && **settled == Self::Gone) {
            *settled = Self::Done;
        }
        Ok(settled)
    }
}

/// Settles up to 1,000 deliveries in one atomic step; answers one [`Settled`] each, in order.
///
/// A deadline that has passed but was not reclaimed yet still settles. Repeating the call is safe. O(log tasks) per delivery.
#[derive(Debug, Clone)]
#[must_use = "a command does nothing until a runner runs it"]
pub struct Settle {
    target: Target,
    settlements: Vec<Settlement>,
    repeated: bool,
}

impl Settle {
    pub(crate) fn new(target: Target, settlements: Vec<Settlement>) -> Result<Self> {
        amount("settlements", settlements.len(), 1)?;
        Ok(Self { target, settlements, repeated: false })
    }
}

impl Command for Settle {
    type Reply = Vec<Settled>;

    fn queue(&self) -> &QueueName {
        &self.target.name
    }

    fn call(&self) -> Call {
        let mut args = vec![arg(""), arg(self.settlements.len())];
        for settlement in &self.settlements {
            settlement.args(&mut args);
        }
        self.target.call(SCRIPT, args)
    }

    fn decode(&mut self, answer: Value) -> Result<Step<Self::Reply>> {
        let settled = Settled::decode_list(&mut answer.answer()?, self.repeated)?;
        Ok(Step::Done(one_each(settled, self.settlements.len())?))
    }

    fn repeated(&mut self) {
        self.repeated = true;
    }

    fn apply(&mut self, state: &mut State) -> Result<Step<Self::Reply>> {
        let settled = state.settle(&self.settlements);
        state.finish(0);
        Ok(Step::Done(settled))
    }
}

/// Settles everything an owner holds in one way; answers which tasks that were.
///
/// Repeating the call is safe. O(log tasks) per delivery.
#[derive(Debug, Clone)]
#[must_use = "a command does nothing until a runner runs it"]
pub struct SettleOwner {
    target: Target,
    owner: Owner,
    outcome: Outcome,
}

impl SettleOwner {
    pub(crate) fn new(target: Target, owner: Owner, outcome: Outcome) -> Self {
        Self { target, owner, outcome: outcome.checked() }
    }
}

impl Command for SettleOwner {
    type Reply = Vec<TaskId>;

    fn queue(&self) -> &QueueName {
        &self.target.name
    }

    fn call(&self) -> Call {
        let mut args = vec![arg(&self.owner), arg(0)];
        self.outcome.args(&mut args);
        self.target.call(SCRIPT, args)
    }

    fn decode(&mut self, answer: Value) -> Result<Step<Self::Reply>> {
        let ids = answer.answer()?.list()?;
        let ids = ids.iter().map(|id| Ok(TaskId::trusted(id.text()?.into_owned()))).collect::<Result<_>>()?;
        Ok(Step::Done(ids))
    }

    fn apply(&mut self, state: &mut State) -> Result<Step<Self::Reply>> {
        let held = state.owner.get(self.owner.as_str()).cloned().unwrap_or_default().ids;
        let mut given_back = Vec::new();
        for (id, _) in &held {
            state.settle_one(id, &self.outcome, &mut given_back);
        }
        state.place_all(given_back);
        state.finish(0);
        Ok(Step::Done(held.into_iter().map(|(id, _)| TaskId::trusted(id)).collect()))
    }
}
