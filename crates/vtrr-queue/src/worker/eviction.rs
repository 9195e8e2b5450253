//! A server that makes room by deleting any key would delete tasks: a worker says so after its first sweep.

use super::drive::{Answer, Drive};
use crate::error::Result;
use crate::runner::Runner;

impl<R: Runner> Drive<'_, R> {
    /// Asks once. A user without the right to `INFO` is not warned.
    pub(super) fn ask_for_eviction(&mut self) {
        let Some(command) = self.eviction.take() else { return };
        let runner = &self.worker.runner;
        self.calls.push(Box::pin(async move { Answer::Eviction(runner.run(command).await) }));
    }
}

pub(super) fn warn_of_eviction(answer: Result<Option<String>>) {
    match answer {
        Ok(Some(policy)) if policy.starts_with("allkeys") => {
            tracing::warn!("maxmemory-policy {policy} may delete tasks; set it to noeviction");
        }
        Ok(_) => {}
        Err(error) => tracing::debug!(%error, "whether the server evicts keys is not known"),
    }
}
