//! `Hooks`: be told what becomes of tasks.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::Context;

/// Called as tasks start and end, on the task's own thread, in its tracing span: for metrics and error reports. They must
/// not block. A panic in a hook is logged and changes nothing.
///
/// They tell how the handler ended, before the queue has confirmed it. A task that is dropped because its lease was lost
/// or the worker stops has started and not ended. Unknown tasks have not even started.
pub trait Hooks: Send + Sync + 'static {
    /// The handler is about to run.
    fn started(&self, task: &Context) {
        let _ = task;
    }

    /// The handler returned `Ok` after this time.
    fn succeeded(&self, task: &Context, took: Duration) {
        let _ = (task, took);
    }

    /// The task failed for good: it becomes a dead letter with this error.
    fn failed(&self, task: &Context, error: &str) {
        let _ = (task, error);
    }

    /// The task will run again after this delay.
    fn retried(&self, task: &Context, error: &str, delay: Duration) {
        let _ = (task, error, delay);
    }
}

/// Calls a hook, if there are hooks.
pub(super) fn tell(hooks: Option<&dyn Hooks>, call: impl FnOnce(&dyn Hooks)) {
    if let Some(hooks) = hooks
        && catch_unwind(AssertUnwindSafe(|| call(hooks))).is_err()
    {
        tracing::error!("a hook panicked");
    }
}
