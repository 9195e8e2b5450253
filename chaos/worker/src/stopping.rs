//! SIGTERM, noted whatever a process does meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{SignalKind, signal};
use vtrr_queue::worker::BoxError;

#[derive(Clone)]
pub(crate) struct Stopping(Arc<AtomicBool>);

impl Stopping {
    /// From now on the signal is heeded.
    pub(crate) fn heeded() -> Result<Self, BoxError> {
        let mut terminate = signal(SignalKind::terminate())?;
        let stopping = Self(Arc::default());
        let noted = stopping.clone();
        tokio::spawn(async move {
            terminate.recv().await;
            noted.0.store(true, Ordering::Relaxed);
        });
        Ok(stopping)
    }

    pub(crate) fn has_come(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
