//! How a worker stops: handlers may end, are told to let go, are left behind; everything is settled.

use tokio::time::{Duration, Instant};

use super::Summary;
use super::drive::{Drive, Held};
use crate::command::{Outcome, Released, Settlement};
use crate::error::{Error, ErrorKind, Result};
use crate::runner::Runner;

/// How long handlers get to let go after they were told to, and the server to take the last settlements.
pub(super) const LAST_CALL: Duration = Duration::from_secs(5);

/// Given back at once, without having begun.
pub(super) const RELEASE: Outcome = Outcome::Release { delay_ms: 0, how: Released::Unrun };
/// Given back at once, since the worker stops.
pub(super) const STOPPED: Outcome = Outcome::Release { delay_ms: 0, how: Released::Stopped };

/// A worker that stops.
pub(super) struct Stopping {
    /// When handlers are told to let go.
    pub(super) grace_ends: Instant,
    pub(super) told: bool,
    /// When the loop ends, settled or not.
    pub(super) ends: Option<Instant>,
    /// Whether a reply may have been lost: one more round gives back what it handed out.
    pub(super) owes_round: bool,
}

impl<R: Runner> Drive<'_, R> {
    /// From now on no more tasks are taken.
    pub(super) fn begin_to_stop(&mut self) {
        tracing::info!(running = self.held.len(), "the worker stops");
        let grace_ends = Instant::now() + self.worker.settings.grace;
        self.stopping = Some(Stopping { grace_ends, told: false, ends: None, owes_round: false });
    }

    /// When the grace period is over, handlers are told to let go; those that do not are left behind after a while.
    pub(super) fn tell_to_stop(&mut self) {
        let Some(stopping) = &mut self.stopping else { return };
        let now = Instant::now();
        if !stopping.told && now >= stopping.grace_ends {
            stopping.told = true;
            self.held.values().for_each(Held::stop);
        }
        if stopping.told && now >= stopping.grace_ends + LAST_CALL && !self.held.is_empty() {
            tracing::error!(handlers = self.held.len(), "handlers do not yield; their tasks are released all the same");
            self.tasks.detach_all();
            for (_, held) in self.held.drain().filter(|(_, held)| !held.lost) {
                self.unsettled.push(Settlement::trusted(held.id, held.token, STOPPED));
            }
        }
        if self.held.is_empty() && stopping.ends.is_none() {
            stopping.ends = Some(now + LAST_CALL);
        }
    }

    pub(super) fn ended(&mut self) -> Option<Result<Summary>> {
        let stopping = self.stopping.as_ref()?;
        let settled = self.unsettled.is_done()
            && self.round.under_way.is_none()
            && self.round.unanswered.is_none()
            && !self.suspects.claiming;
        if self.held.is_empty() && settled && !stopping.owes_round {
            return Some(Ok(self.summary));
        }
        if stopping.ends.is_some_and(|ends| Instant::now() >= ends) {
            let error = self.round.error.take();
            return Some(Err(
                error.unwrap_or_else(|| Error::new(ErrorKind::Unavailable, "the queue did not answer in time"))
            ));
        }
        None
    }
}
