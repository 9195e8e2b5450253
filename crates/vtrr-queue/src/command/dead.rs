//! dead letters: list, redrive, discard.

use super::{Cause, Command, Step, Target, amount, one_each, script};
use crate::call::{Call, Script, Value, arg};
use crate::error::Result;
use crate::keys::QueueName;
use crate::state::{State, as_ms};
use crate::task::{Payload, TaskId};

pub(crate) const LIST: Script = script!("dead_letters");
pub(crate) const REDRIVE: Script = script!("redrive", "order", "commit", "lease");
pub(crate) const DISCARD: Script = script!("discard", "order", "commit", "lease");

/// Up to `limit` dead letters from position `offset`, oldest first. Changes nothing. O(log dead + limit).
#[derive(Debug, Clone)]
#[must_use = "a command does nothing until a runner runs it"]
pub struct DeadLetters {
    target: Target,
    offset: usize,
    limit: usize,
}

/// A task set aside after it failed for good. At most 10,000 are kept, for at most 30 days.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetter {
    /// The task.
    pub id: TaskId,
    /// When it failed for good: ms since 1970 by the server's clock.
    pub died_at_ms: u64,
    /// How often it had been delivered.
    pub deliveries: u32,
    /// What kind of end it was.
    pub cause: Cause,
    /// Why it failed.
    pub error: String,
    /// The task as stored; empty if it was missing.
    pub payload: Payload,
}

impl DeadLetters {
    pub(crate) fn new(target: Target, offset: usize, limit: usize) -> Result<Self> {
        Ok(Self { target, offset, limit: amount("limit", limit, 1)? })
    }
}

impl Command for DeadLetters {
    type Reply = Vec<DeadLetter>;

    fn queue(&self) -> &QueueName {
        &self.target.name
    }

    fn call(&self) -> Call {
        self.target.call(LIST, vec![arg(self.offset), arg(self.limit)])
    }

    fn decode(&mut self, answer: Value) -> Result<Step<Self::Reply>> {
        let mut letters = Vec::new();
        for letter in answer.answer()? {
            let mut letter = letter.fields()?;
            let id = TaskId::trusted(letter.text()?);
            let died_at_ms = letter.count()?;
            let deliveries = u32::try_from(letter.count()?).unwrap_or(u32::MAX);
            let (cause, error) = Cause::split(&letter.text()?);
            letters.push(DeadLetter { id, died_at_ms, deliveries, cause, error, payload: Payload(letter.bytes()?) });
        }
        Ok(Step::Done(letters))
    }

    fn apply(&mut self, state: &mut State) -> Result<Step<Self::Reply>> {
        let letters = state.dead.iter().skip(self.offset).take(self.limit).filter_map(|(at, id)| {
            let held = state.held.get(id)?;
            let (cause, error) = Cause::split(state.error.get(id).map_or("", String::as_str));
            Some(DeadLetter {
                id: TaskId::trusted(id.to_owned()),
                died_at_ms: as_ms(at),
                deliveries: held.deliveries,
                cause,
                error,
                payload: held.payload.clone(),
            })
        });
        Ok(Step::Done(letters.collect()))
    }
}

/// Puts dead letters back into the queue as new arrivals, counts 0, in this order; answers which of them were there.
///
/// One whose payload is missing stays. At most 1,000, one atomic step. O(log partitions) per task.
#[derive(Debug, Clone)]
#[must_use = "a command does nothing until a runner runs it"]
pub struct Redrive {
    target: Target,
    ids: Vec<TaskId>,
}

impl Redrive {
    pub(crate) fn new(target: Target, ids: Vec<TaskId>) -> Result<Self> {
        amount("ids", ids.len(), 1)?;
        Ok(Self { target, ids })
    }
}

impl Command for Redrive {
    type Reply = Vec<bool>;

    fn queue(&self) -> &QueueName {
        &self.target.name
    }

    fn call(&self) -> Call {
        self.target.call(REDRIVE, self.ids.iter().map(arg).collect())
    }

    fn decode(&mut self, answer: Value) -> Result<Step<Self::Reply>> {
        flags(answer, self.ids.len())
    }

    fn apply(&mut self, state: &mut State) -> Result<Step<Self::Reply>> {
        let mut redriven = Vec::new();
        for id in &self.ids {
            let id = id.as_str();
            let there = state.dead.contains(id) && state.held.get(id).is_some_and(|held| !held.payload.0.is_empty());
            redriven.push(there);
            if !there {
                continue;
            }
            let Some(held) = state.forget_dead(id) else { continue };
            state.count("redriven", 1);
            match State::partition_of(&held.payload) {
                Some(partition) => state.add(&partition, vec![(id.to_owned(), held.payload)]),
                None => state.add_unknown(id, held.payload),
            }
        }
        state.finish(0);
        Ok(Step::Done(redriven))
    }
}

/// Deletes dead letters; answers which of them were there. At most 1,000, one atomic step. O(log dead) each.
#[derive(Debug, Clone)]
#[must_use = "a command does nothing until a runner runs it"]
pub struct Discard {
    target: Target,
    ids: Vec<TaskId>,
}

impl Discard {
    pub(crate) fn new(target: Target, ids: Vec<TaskId>) -> Result<Self> {
        amount("ids", ids.len(), 1)?;
        Ok(Self { target, ids })
    }
}

impl Command for Discard {
    type Reply = Vec<bool>;

    fn queue(&self) -> &QueueName {
        &self.target.name
    }

    fn call(&self) -> Call {
        self.target.call(DISCARD, self.ids.iter().map(arg).collect())
    }

    fn decode(&mut self, answer: Value) -> Result<Step<Self::Reply>> {
        flags(answer, self.ids.len())
    }

    fn apply(&mut self, state: &mut State) -> Result<Step<Self::Reply>> {
        let discarded =
            self.ids.iter().map(|id| state.dead.contains(id.as_str()) && state.forget_dead(id.as_str()).is_some());
        let discarded = discarded.collect();
        state.finish(0);
        Ok(Step::Done(discarded))
    }
}

fn flags(answer: Value, asked: usize) -> Result<Step<Vec<bool>>> {
    let mut fields = answer.answer()?;
    let flags = fields.list()?.iter().map(|flag| Ok(flag.int()? != 0)).collect::<Result<_>>()?;
    Ok(Step::Done(one_each(flags, asked)?))
}
