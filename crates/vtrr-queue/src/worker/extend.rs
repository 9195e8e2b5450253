//! Leases are extended while handlers run; a handler whose lease is lost is stopped.

use tokio::task::Id;
use tokio::time::Instant;

use super::drive::{Answer, Drive};
use crate::command::{Extend, Settled};
use crate::error::Result;
use crate::runner::Runner;
use crate::task::MAX_TASKS_PER_CALL;

impl<R: Runner> Drive<'_, R> {
    /// Extends all leases, and again after a third of their time.
    pub(super) fn extend(&mut self, now: Instant) -> Result<()> {
        let lease = self.worker.settings.lease;
        self.next_extend = now + lease / 3;
        let held: Vec<_> = self.held.iter().filter(|(_, held)| !held.lost).collect();
        for chunk in held.chunks(MAX_TASKS_PER_CALL) {
            let ids = chunk.iter().map(|(id, _)| **id).collect();
            let leases = chunk.iter().map(|(_, held)| (held.id.clone(), held.token.clone())).collect();
            let command = Extend::new(self.worker.queue.target(), leases, lease)?;
            let runner = &self.worker.runner;
            self.extending = true;
            self.calls.push(Box::pin(async move { Answer::Extend(ids, runner.run(command).await) }));
        }
        Ok(())
    }

    /// What became of an extension.
    pub(super) fn extended(&mut self, id: Id, answer: Settled) {
        if let Some(held) = self.held.get_mut(&id)
            && answer != Settled::Done
            && !held.lost
        {
            tracing::warn!(task = %held.id, ?answer, "the lease was lost: the handler is dropped");
            held.lost = true;
            held.stop();
        }
    }
}
