//! dequeue: settles, brings back what is due, hands out the next tasks in order.

use std::collections::HashSet;
use std::time::Duration;

use super::{Command, Settled, Settlement, Step, Target, amount, milliseconds, one_each, script};
use crate::call::{Call, Fields, Script, Value, arg};
use crate::error::Result;
use crate::keys::{QueueName, text};
use crate::state::{MAX_DUE, MAX_PARTITIONS, State};
use crate::task::{Delivery, MAX_PAYLOAD_BYTES, Owner, Payload, TaskId, Token};

pub(crate) const SCRIPT: Script = script!("dequeue", "order", "commit", "lease", "serve");

/// The lease of a delivery unless said otherwise.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(30);
/// How many deliveries may end without a settle unless said otherwise.
pub const DEFAULT_MAX_DELIVERIES: u32 = 5;

/// Hands out up to `n` tasks in fair order, each under a lease. One atomic step: settle, give back what the owner lost,
/// bring back what is due (at most 100 tasks), deliver (tasks of at most 250 partitions, at most 4 MiB).
///
/// Nothing to hand out is an empty list. O(n log partitions) in mode `head`, O(n log tasks) in mode `all`.
#[derive(Debug, Clone)]
#[must_use = "a command does nothing until a runner runs it"]
pub struct Dequeue {
    target: Target,
    n: usize,
    lease_ms: u64,
    max_deliveries: u32,
    owner: Option<Owner>,
    request: String,
    holding: Vec<TaskId>,
    settlements: Vec<Settlement>,
    repeated: bool,
}

/// The answer of a dequeue.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dequeued {
    /// In order of service.
    pub deliveries: Vec<Delivery>,
    /// How the settlements of the call ended, in order.
    pub settled: Vec<Settled>,
    /// Time until the next lease runs out or the next delayed task is due: look again by then.
    pub next_due: Option<Duration>,
    /// Whether a bound of the call was reached: call again at once.
    pub more: bool,
}

impl Dequeue {
    pub(crate) fn new(target: Target, n: usize, request: String) -> Result<Self> {
        Ok(Self {
            target,
            n: amount("n", n, 0)?,
            lease_ms: 30_000,
            max_deliveries: DEFAULT_MAX_DELIVERIES,
            owner: None,
            request,
            holding: Vec::new(),
            settlements: Vec::new(),
            repeated: false,
        })
    }

    /// How long the lease lasts: from 1 ms, 30 s unless said otherwise. Extend it every third of that.
    pub fn lease(mut self, lease: Duration) -> Result<Self> {
        self.lease_ms = milliseconds("lease", lease, 1)?;
        Ok(self)
    }

    /// After so many deliveries that ended without a settle, the task is a dead letter: from 1, 5 unless said otherwise.
    pub fn max_deliveries(mut self, max: u32) -> Result<Self> {
        if max == 0 {
            return Err(crate::Error::invalid("max_deliveries", max, "at least 1"));
        }
        self.max_deliveries = max;
        Ok(self)
    }

    /// Lets a lost reply be repaired: the same request repeated hands out the same tasks, and a new one first gives back
    /// what the owner holds and does not name in `holding`. Name everything the owner still works on or settles later.
    pub fn owner(mut self, owner: Owner, holding: Vec<TaskId>) -> Self {
        self.owner = Some(owner);
        self.holding = holding;
        self
    }

    /// The request id, when an earlier call is repeated.
    pub fn request(mut self, request: impl Into<String>) -> Result<Self> {
        self.request = text("request", request.into())?;
        Ok(self)
    }

    /// Settles these deliveries first, at most 1,000.
    pub fn settle(mut self, settlements: Vec<Settlement>) -> Result<Self> {
        amount("settlements", settlements.len(), 0)?;
        self.settlements = settlements;
        Ok(self)
    }
}

pub(super) fn delivery(fields: &mut Fields) -> Result<Delivery> {
    Ok(Delivery {
        id: TaskId::trusted(fields.text()?),
        token: Token(fields.text()?),
        deliveries: u32::try_from(fields.count()?).unwrap_or(u32::MAX),
        blames: u32::try_from(fields.count()?).unwrap_or(u32::MAX),
        losses: u32::try_from(fields.count()?).unwrap_or(u32::MAX),
        payload: Payload(fields.bytes()?),
    })
}

impl Command for Dequeue {
    type Reply = Dequeued;

    fn queue(&self) -> &QueueName {
        &self.target.name
    }

    fn call(&self) -> Call {
        let mut args = vec![
            arg(self.n),
            arg(self.lease_ms),
            arg(self.max_deliveries),
            arg(self.owner.as_ref().map_or("", Owner::as_str)),
            arg(&self.request),
            arg(self.holding.len()),
            arg(self.settlements.len()),
        ];
        args.extend(self.holding.iter().map(arg));
        for settlement in &self.settlements {
            settlement.args(&mut args);
        }
        self.target.call(SCRIPT, args)
    }

    fn decode(&mut self, answer: Value) -> Result<Step<Dequeued>> {
        let mut fields = answer.answer()?;
        let settled = one_each(Settled::decode_list(&mut fields, self.repeated)?, self.settlements.len())?;
        let next_due = fields.int()?;
        let more = fields.flag()?;
        let deliveries = fields.fields()?.into_iter().map(|value| delivery(&mut value.fields()?)).collect::<Result<_>>()?;
        let next_due = u64::try_from(next_due).ok().map(Duration::from_millis);
        Ok(Step::Done(Dequeued { deliveries, settled, next_due, more }))
    }

    fn repeated(&mut self) {
        self.repeated = true;
    }

    fn apply(&mut self, state: &mut State) -> Result<Step<Dequeued>> {
        let settled = state.settle(&self.settlements);
        let owner = self.owner.as_ref().map_or("-", Owner::as_str);
        if self.owner.is_some() && state.owner.get(owner).is_some_and(|holding| holding.request == self.request) {
            state.finish(0);
            let (deliveries, next_due) = (state.last_deliveries(owner), state.next_due());
            return Ok(Step::Done(Dequeued { deliveries, settled, next_due, more: false }));
        }
        if self.owner.is_some() {
            state.give_back_unnamed(owner, &self.holding);
        }
        let (reclaimed, back) = state.bring_due(MAX_DUE);
        let (mut deliveries, mut bytes, mut served) = (Vec::new(), 0, 0);
        let mut partitions = HashSet::new();
        while deliveries.len() < self.n
            && served < self.n + MAX_DUE
            && partitions.len() < MAX_PARTITIONS
            && bytes < MAX_PAYLOAD_BYTES
        {
            let Some(tagged) = state.take() else { break };
            served += 1;
            partitions.extend(tagged.partition.clone());
            bytes += tagged.payload.as_ref().map_or(0, |payload| payload.as_bytes().len());
            deliveries.extend(state.deliver(tagged, self.lease_ms, self.max_deliveries, owner));
        }
        let more = reclaimed + back == MAX_DUE as u64 || (deliveries.len() < self.n && !state.queue.is_empty());
        if self.owner.is_some() {
            state.hold(owner, &self.request, &deliveries);
        }
        state.finish(served);
        Ok(Step::Done(Dequeued { deliveries, settled, next_due: state.next_due(), more }))
    }
}

impl State {
    fn next_due(&self) -> Option<Duration> {
        self.next_due_ms().map(Duration::from_millis)
    }

    fn hold(&mut self, owner: &str, request: &str, deliveries: &[Delivery]) {
        let mut holding = self.owner.remove(owner).unwrap_or_default();
        request.clone_into(&mut holding.request);
        for (_, last) in &mut holding.ids {
            *last = false;
        }
        holding.ids.extend(deliveries.iter().map(|delivery| (delivery.id.as_str().to_owned(), true)));
        if !holding.ids.is_empty() {
            self.owner.insert(owner.to_owned(), holding);
        }
    }

    /// What the owner's last request handed out and it still holds.
    fn last_deliveries(&self, owner: &str) -> Vec<Delivery> {
        let Some(holding) = self.owner.get(owner) else { return Vec::new() };
        let last = holding.ids.iter().filter(|(_, last)| *last);
        last.filter_map(|(id, _)| self.delivery(id)).collect()
    }
}
