//! The worker's loop: the only part that talks to the queue. One round (settle and dequeue) is under way at a time; what
//! ends meanwhile goes with the next one. Leases are extended and the queue is swept beside it.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::task::{AbortHandle, Id, JoinError, JoinSet, yield_now};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::alone::Suspects;
use super::backoff::Patience;
use super::eviction::warn_of_eviction;
use super::round::Round;
use super::stop::{LAST_CALL, STOPPED, Stopping};
use super::unsettled::Unsettled;
use super::{Panicked, Summary, Worker};
use crate::command::{Cause, Dequeued, Eviction, Outcome, Settled, Settlement, Swept};
use crate::error::{Error, ErrorKind, Result};
use crate::queue::Queue;
use crate::runner::{Listener, Runner};
use crate::task::{Delivery, Owner, TaskId, Token};

/// Where one call does not see all keys, the sweep's round is spread over so many calls per interval, or over several.
const SWEEPS_PER_INTERVAL: u32 = 8;

/// A worker at work.
pub(super) struct Drive<'a, R> {
    pub(super) worker: &'a Worker<R>,
    pub(super) owner: Owner,
    pub(super) summary: Summary,
    pub(super) tasks: JoinSet<Settlement>,
    pub(super) held: HashMap<Id, Held>,
    pub(super) unsettled: Unsettled,
    pub(super) calls: FuturesUnordered<BoxFuture<'a, Answer>>,
    pub(super) round: Round,
    pub(super) suspects: Suspects,
    /// Whether there may be tasks that nobody has looked for.
    pub(super) look: bool,
    pub(super) next_look: Instant,
    pub(super) extending: bool,
    pub(super) next_extend: Instant,
    pub(super) sweeping: bool,
    pub(super) next_sweep: Instant,
    /// To be asked once.
    pub(super) eviction: Option<Eviction>,
    pub(super) listening: Listening,
    pub(super) stopping: Option<Stopping>,
}

/// A delivery whose handler runs.
pub(super) struct Held {
    pub(super) id: TaskId,
    pub(super) token: Token,
    pub(super) handler: AbortHandle,
    pub(super) cancelled: CancellationToken,
    pub(super) lost: bool,
}

pub(super) enum Listening {
    Starting,
    Not(Instant),
    To(Listener),
}

pub(super) enum Answer {
    Round(Result<Dequeued>),
    Claim(Result<Option<Delivery>>),
    Extend(Vec<Id>, Result<Vec<Settled>>),
    Sweep(Result<Swept>),
    Listen(Result<Listener>),
    Eviction(Result<Option<String>>),
}

impl Held {
    /// Stops the handler: it can see that, and is dropped at its next `await`.
    pub(super) fn stop(&self) {
        self.cancelled.cancel();
        self.handler.abort();
    }
}

impl<'a, R: Runner> Drive<'a, R> {
    pub(super) fn new(worker: &'a Worker<R>) -> Self {
        let now = Instant::now();
        worker.pulse.begin();
        Self {
            worker,
            owner: Queue::fresh_owner(),
            summary: Summary::default(),
            tasks: JoinSet::new(),
            held: HashMap::new(),
            unsettled: Unsettled::new(),
            calls: FuturesUnordered::new(),
            round: Round::default(),
            suspects: Suspects::default(),
            look: true,
            next_look: now,
            extending: false,
            next_extend: now,
            sweeping: false,
            // Workers that start together do not sweep together.
            next_sweep: now + worker.settings.sweep_interval.mul_f64(fastrand::f64()),
            eviction: Some(worker.queue.eviction()),
            listening: Listening::Not(now),
            stopping: None,
        }
    }

    /// Works until `stop`, then until everything is settled; `hurry` ends the grace period.
    pub(super) async fn run(
        mut self,
        stop: impl Future<Output = ()> + Send,
        hurry: impl Future<Output = ()> + Send,
    ) -> Result<Summary> {
        tokio::pin!(stop, hurry);
        let mut hurried = false;
        loop {
            self.collect().await;
            // Before anything is started: nothing that ended after the stop makes room for another task.
            if self.stopping.is_none() && is_ready(stop.as_mut()).await {
                self.begin_to_stop();
            }
            self.tell_to_stop();
            if let Some(ended) = self.ended() {
                return ended;
            }
            self.start_calls()?;
            let (deadline, hears) = (self.deadline(), self.free() > 0 && !self.look && self.stopping.is_none());
            tokio::select! {
                Some(answer) = self.calls.next(), if !self.calls.is_empty() => self.take(answer)?,
                Some(ended) = self.tasks.join_next_with_id(), if !self.tasks.is_empty() => self.end(ended),
                () = hear(&mut self.listening), if hears => self.look = true,
                () = sleep_until(deadline) => {}
                () = &mut stop, if self.stopping.is_none() => self.begin_to_stop(),
                () = &mut hurry, if self.stopping.is_some() && !hurried => {
                    hurried = true;
                    if let Some(stopping) = &mut self.stopping {
                        stopping.grace_ends = Instant::now();
                    }
                }
            }
        }
    }

    /// Takes what ended since, after handlers that end at once had the chance to: then it goes with one call.
    async fn collect(&mut self) {
        for _ in 0..3 {
            if self.tasks.is_empty() || self.round.under_way.is_some() {
                return;
            }
            yield_now().await;
            let mut any = false;
            while let Some(ended) = self.tasks.try_join_next_with_id() {
                self.end(ended);
                any = true;
            }
            if !any {
                return;
            }
        }
    }

    fn end(&mut self, ended: std::result::Result<(Id, Settlement), JoinError>) {
        let id = ended.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let Some(held) = self.held.remove(&id) else { return };
        self.suspects.alone &= !self.held.is_empty();
        if held.lost {
            self.summary.lost += 1;
            return;
        }
        self.unsettled.push(match ended {
            Ok((_, settlement)) => settlement,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => {
                    // Not the handler itself: its future when it was dropped, or an `autoretry` function.
                    let error = Panicked::new(&*panic).to_string();
                    tracing::error!(task = %held.id, error, "failed for good");
                    Settlement::trusted(held.id, held.token, Outcome::Fail { cause: Cause::Failed, error })
                }
                Err(_) => Settlement::trusted(held.id, held.token, STOPPED),
            },
        });
    }

    pub(super) fn free(&self) -> usize {
        if self.keeps_quiet() { 0 } else { self.worker.settings.concurrency.saturating_sub(self.held.len()) }
    }

    // ---- calls ----

    fn start_calls(&mut self) -> Result<()> {
        let now = Instant::now();
        if now >= self.next_look {
            self.look = true;
        }
        // First, so that after an outage the leases are extended before the round takes back what has run out.
        if !self.extending && !self.held.is_empty() && now >= self.next_extend {
            self.extend(now)?;
        }
        if self.round.under_way.is_none() && self.round.not_before.is_none_or(|at| now >= at) && self.wants_round() {
            self.start_round(now)?;
        }
        if self.stopping.is_some() {
            return Ok(());
        }
        self.claim(now)?;
        let (runner, queue) = (&self.worker.runner, &self.worker.queue);
        if !self.sweeping && now >= self.next_sweep {
            self.sweeping = true;
            // One of all workers sweeps; when it ends, another does within three periods.
            let command = queue.sweep().leader(self.owner.clone(), 3 * self.worker.settings.sweep_interval)?;
            self.calls.push(Box::pin(async move { Answer::Sweep(runner.run(command).await) }));
        }
        if matches!(self.listening, Listening::Not(until) if now >= until) {
            self.listening = Listening::Starting;
            self.calls.push(Box::pin(async move { Answer::Listen(runner.listen(queue).await) }));
        }
        Ok(())
    }

    // ---- answers ----

    fn take(&mut self, answer: Answer) -> Result<()> {
        let now = Instant::now();
        match answer {
            Answer::Round(Ok(dequeued)) => self.take_round(dequeued, now),
            Answer::Round(Err(error)) => return self.round_failed(error, now),
            Answer::Claim(answer) => {
                self.suspects.claiming = false;
                match answer {
                    Ok(delivery) => self.claimed(delivery, now),
                    Err(error) => warn_unless_version("claim", error)?,
                }
            }
            Answer::Extend(ids, answer) => {
                self.extending = false;
                match answer {
                    Ok(answers) => {
                        self.worker.pulse.answered();
                        ids.into_iter().zip(answers).for_each(|(id, answer)| self.extended(id, answer));
                    }
                    Err(error) => {
                        self.next_extend = now + Duration::from_secs(1).min(self.worker.settings.lease / 3);
                        warn_unless_version("extend", error)?;
                    }
                }
            }
            Answer::Sweep(answer) => {
                self.sweeping = false;
                self.next_sweep = now + self.worker.settings.sweep_interval;
                match answer {
                    Ok(swept) => {
                        if swept.more {
                            self.next_sweep = now;
                        } else if swept.unfinished {
                            self.next_sweep = now + self.worker.settings.sweep_interval / SWEEPS_PER_INTERVAL;
                        }
                        self.ask_for_eviction();
                    }
                    Err(error) => warn_unless_version("sweep", error)?,
                }
            }
            Answer::Listen(Ok(listener)) => {
                self.listening = Listening::To(listener);
                self.look = true;
            }
            Answer::Listen(Err(error)) => {
                self.listening = Listening::Not(now + self.worker.settings.poll.max(Patience::default().next()));
                warn_unless_version("listen", error)?;
            }
            Answer::Eviction(answer) => warn_of_eviction(answer),
        }
        Ok(())
    }

    pub(super) fn start(&mut self, delivery: Delivery) {
        if delivery.deliveries > 1 {
            // It is back while its former handler runs here: that one lost its lease.
            let same: Vec<_> = self.held.iter().filter(|(_, held)| held.id == delivery.id).map(|(id, _)| *id).collect();
            for id in same {
                self.extended(id, Settled::Lost);
            }
        }
        let (id, token, cancelled) = (delivery.id.clone(), delivery.token.clone(), CancellationToken::new());
        let handler = self.tasks.spawn(Arc::clone(&self.worker.attendant).attend(delivery, cancelled.clone()));
        self.held.insert(handler.id(), Held { id, token, handler, cancelled, lost: false });
    }

    /// When there is something to do though nothing happens.
    fn deadline(&self) -> Instant {
        let mut deadline = Instant::now() + self.worker.settings.poll;
        let mut at = |when: bool, instant: Instant| {
            if when {
                deadline = deadline.min(instant);
            }
        };
        at(!self.held.is_empty() && !self.extending, self.next_extend);
        if let Some(until) = self.aside_until() {
            at(!self.suspects.claiming && self.stopping.is_none(), until);
        }
        if let Some(not_before) = self.round.not_before {
            at(self.round.under_way.is_none(), not_before);
        } else {
            at(self.round.under_way.is_none() && self.free() > 0 && self.stopping.is_none(), self.next_look);
        }
        match &self.stopping {
            None => at(!self.sweeping, self.next_sweep),
            Some(Stopping { grace_ends, told, ends, .. }) => {
                at(!self.held.is_empty(), if *told { *grace_ends + LAST_CALL } else { *grace_ends });
                if let Some(ends) = ends {
                    at(true, *ends);
                }
            }
        }
        deadline
    }
}

/// Handlers are dropped with it; what they have spawned can see that nobody waits for it any more.
impl<R> Drop for Drive<'_, R> {
    fn drop(&mut self) {
        self.held.values().for_each(Held::stop);
    }
}

/// Whether a future is ready by now.
async fn is_ready(mut future: Pin<&mut impl Future<Output = ()>>) -> bool {
    poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready())).await
}

/// Waits for tasks being placed.
async fn hear(listening: &mut Listening) {
    match listening {
        Listening::To(listener) => listener.wait(Duration::MAX).await,
        _ => std::future::pending().await,
    }
}

/// Logs an error that the worker outlives.
fn warn_unless_version(call: &str, error: Error) -> Result<()> {
    if error.kind() == ErrorKind::Version {
        return Err(error);
    }
    tracing::warn!(%error, "{call} failed");
    Ok(())
}
