//! A task that has one delivery left before it counts as poison runs alone: should it end this process, it takes no other
//! task with it, and what only stood beside a poisonous one gets a run of its own.

use std::collections::VecDeque;

use tokio::time::Instant;

use super::drive::{Answer, Drive};
use crate::command::{Outcome, Released, Settlement};
use crate::error::Result;
use crate::runner::Runner;
use crate::task::{Delivery, TaskId, Token};

/// Tasks that have one delivery left.
#[derive(Default)]
pub(super) struct Suspects {
    /// Those that wait for the handlers at work to end.
    aside: VecDeque<Aside>,
    pub(super) claiming: bool,
    /// Whether what runs must stay alone.
    pub(super) alone: bool,
}

/// What was put aside: released, and kept for this worker.
struct Aside {
    id: TaskId,
    token: Token,
    /// When it runs beside others all the same: a long one shall not hold up everything.
    until: Instant,
}

impl<R: Runner> Drive<'_, R> {
    /// Starts what was handed out, but for what must wait to be alone.
    pub(super) fn start_all(&mut self, deliveries: Vec<Delivery>, now: Instant) {
        let only = deliveries.len() == 1 && self.held.is_empty();
        for delivery in deliveries {
            if !self.is_last_chance(&delivery) {
                self.start(delivery);
            } else if only {
                self.start_alone(delivery);
            } else {
                self.put_aside(delivery, now);
            }
        }
    }

    fn is_last_chance(&self, delivery: &Delivery) -> bool {
        let most = self.worker.settings.max_deliveries;
        most > 1 && delivery.blames + 1 >= most
    }

    fn start_alone(&mut self, delivery: Delivery) {
        self.suspects.alone = true;
        self.start(delivery);
    }

    /// It comes back by itself after two leases, should this worker not ask for it.
    fn put_aside(&mut self, delivery: Delivery, now: Instant) {
        let lease = self.worker.settings.lease;
        let delay_ms = u64::try_from(2 * lease.as_millis()).unwrap_or(u64::MAX);
        let outcome = Outcome::Release { delay_ms, how: Released::Unrun };
        self.unsettled.push(Settlement::trusted(delivery.id.clone(), delivery.token.clone(), outcome));
        self.suspects.aside.push_back(Aside { id: delivery.id, token: delivery.token, until: now + lease });
    }

    /// Whether no other task may start now.
    pub(super) fn keeps_quiet(&self) -> bool {
        self.suspects.claiming || !self.suspects.aside.is_empty() || self.suspects.alone && !self.held.is_empty()
    }

    /// When the first that was put aside has waited long enough.
    pub(super) fn aside_until(&self) -> Option<Instant> {
        self.suspects.aside.front().map(|aside| aside.until)
    }

    /// Asks for the first that was put aside, once it can run.
    pub(super) fn claim(&mut self, now: Instant) -> Result<()> {
        let quiet = self.held.is_empty();
        let due = self.suspects.aside.front().is_some_and(|aside| quiet || now >= aside.until);
        if !due || self.suspects.claiming || !self.unsettled.is_done() || self.round.under_way.is_some() {
            return Ok(());
        }
        let Some(Aside { id, token, .. }) = self.suspects.aside.pop_front() else { return Ok(()) };
        let command = self.worker.queue.claim(id, token, self.owner.clone(), self.worker.settings.lease)?;
        let runner = &self.worker.runner;
        self.suspects.claiming = true;
        self.calls.push(Box::pin(async move { Answer::Claim(runner.run(command).await) }));
        Ok(())
    }

    /// None: it is gone, or with another worker.
    pub(super) fn claimed(&mut self, delivery: Option<Delivery>, now: Instant) {
        self.look = true;
        let Some(delivery) = delivery else { return };
        if self.stopping.is_some() {
            self.unsettled.push(Settlement::trusted(delivery.id, delivery.token, super::stop::RELEASE));
        } else if self.held.is_empty() {
            let lease = self.worker.settings.lease;
            self.next_extend = now + lease / 3;
            // It is this one that the others wait for now.
            self.suspects.aside.iter_mut().for_each(|aside| aside.until = now + lease);
            self.start_alone(delivery);
        } else {
            self.start(delivery);
        }
    }
}
