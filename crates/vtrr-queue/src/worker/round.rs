//! The round: the one call that settles and dequeues, again and again.

use tokio::time::{Duration, Instant};

use super::backoff::Patience;
use super::drive::{Answer, Drive};
use super::stop::RELEASE;
use crate::command::{Dequeue, Dequeued, Settlement};
use crate::error::{Error, ErrorKind, Result};
use crate::runner::Runner;
use crate::task::MAX_TASKS_PER_CALL;

/// The round under way, and what is left of one that failed.
#[derive(Default)]
pub(super) struct Round {
    /// The call under way, without its settlements.
    pub(super) under_way: Option<Dequeue>,
    /// A call that was not answered: the same again, lest what it handed out waits for its lease to run out.
    pub(super) unanswered: Option<Dequeue>,
    pub(super) asked: usize,
    pub(super) not_before: Option<Instant>,
    pub(super) patience: Patience,
    pub(super) error: Option<Error>,
}

impl<R: Runner> Drive<'_, R> {
    pub(super) fn wants_round(&self) -> bool {
        !self.unsettled.is_empty()
            || self.round.unanswered.is_some()
            || match &self.stopping {
                Some(stopping) => stopping.owes_round,
                None => self.look && self.free() > 0,
            }
    }

    pub(super) fn start_round(&mut self, now: Instant) -> Result<()> {
        let unanswered = self.round.unanswered.take();
        if let Some(stopping) = &mut self.stopping {
            stopping.owes_round |= unanswered.is_some();
        }
        let dequeue = match unanswered {
            Some(same) if self.stopping.is_none() => same,
            _ => self.dequeue()?,
        };
        let command = dequeue.clone().settle(self.unsettled.send())?;
        self.round.under_way = Some(dequeue);
        self.look = false;
        // An idle worker shows that it lives as often as one that extends.
        self.next_look = now + self.worker.settings.poll.min(self.worker.settings.lease / 3);
        let runner = &self.worker.runner;
        self.calls.push(Box::pin(async move { Answer::Round(runner.run(command).await) }));
        Ok(())
    }

    /// A new request. It names all that runs or is not settled yet; what it does not name was lost on the way.
    fn dequeue(&mut self) -> Result<Dequeue> {
        let settings = &self.worker.settings;
        self.round.asked = if self.stopping.is_some() { 0 } else { self.free().min(MAX_TASKS_PER_CALL) };
        let running = self.held.values().filter(|held| !held.lost).map(|held| &held.id);
        let holding = running.chain(self.unsettled.ids()).cloned().collect();
        let dequeue = self.worker.queue.dequeue(self.round.asked)?;
        let dequeue = dequeue.lease(settings.lease)?.max_deliveries(settings.max_deliveries)?;
        Ok(dequeue.owner(self.owner.clone(), holding))
    }

    pub(super) fn take_round(&mut self, dequeued: Dequeued, now: Instant) {
        self.worker.pulse.answered();
        if self.round.error.take().is_some() {
            tracing::info!("the queue answers again");
        }
        self.round = Round { asked: self.round.asked, ..Round::default() };
        self.unsettled.answered(&dequeued.settled, &mut self.summary);
        let handed_out = dequeued.deliveries.len();
        if let Some(stopping) = &mut self.stopping {
            stopping.owes_round = false;
            for delivery in dequeued.deliveries {
                self.unsettled.push(Settlement::trusted(delivery.id, delivery.token, RELEASE));
            }
            return;
        }
        if self.held.is_empty() {
            self.next_extend = now + self.worker.settings.lease / 3;
        }
        self.start_all(dequeued.deliveries, now);
        // As many as were asked for: there may be more.
        self.look |= dequeued.more || handed_out >= self.round.asked;
        if let Some(due) = dequeued.next_due {
            self.next_look = self.next_look.min(now + due.max(Duration::from_millis(1)));
        }
    }

    pub(super) fn round_failed(&mut self, error: Error, now: Instant) -> Result<()> {
        let dequeue = self.round.under_way.take();
        self.look = true;
        let not_before = now + self.round.patience.next();
        self.round.not_before = Some(not_before);
        match error.kind() {
            ErrorKind::Version => return Err(error),
            ErrorKind::Unavailable => {
                if self.round.patience.is_first_failure() {
                    tracing::warn!(%error, "the queue cannot be reached; the worker tries on");
                }
                self.unsettled.unanswered();
                self.round.unanswered = dequeue;
                self.next_extend = self.next_extend.min(not_before);
            }
            _ => {
                tracing::error!(%error, "the queue refused a round; the worker tries on");
                self.unsettled.refused();
            }
        }
        self.round.error = Some(error);
        Ok(())
    }
}
