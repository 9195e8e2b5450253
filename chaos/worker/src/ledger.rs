//! What happened, one line each: `WHAT PID MONOTONIC-NS more…`. The lines are listed in `chaos/ledger.py`, which reads them.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::process;

use rustix::time::{ClockId, clock_gettime};
use vtrr_queue::worker::BoxError;

use crate::settings;

/// A file that only grows. A line is one write, so it is there whole, whatever becomes of this process.
pub(crate) struct Ledger(File);

impl Ledger {
    pub(crate) fn open() -> Result<Self, BoxError> {
        Ok(Self(OpenOptions::new().create(true).append(true).open(settings::text("CHAOS_LEDGER")?)?))
    }

    #[allow(clippy::panic, reason = "a run that is not written down proves nothing")]
    pub(crate) fn note(&self, what: &str, more: &str) {
        let line = format!("{what} {} {} {more}\n", process::id(), now());
        if let Err(error) = (&self.0).write_all(line.as_bytes()) {
            panic!("the ledger cannot be written: {error}");
        }
    }
}

/// Nanoseconds of the clock that all processes of this machine share and nobody sets.
pub(crate) fn now() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}
