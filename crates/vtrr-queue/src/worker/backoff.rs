//! How long a worker waits before it asks a server again that did not answer.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
/// So short that a worker resumes well within 5 s of the server's recovery.
const LONGEST: Duration = Duration::from_secs(2);

/// Growing delays with jitter.
#[derive(Debug, Default)]
pub(super) struct Patience {
    failures: u32,
}

impl Patience {
    /// The delay after one more failure: between half and all of 100 ms · 2^failures, at most 2 s.
    pub(super) fn next(&mut self) -> Duration {
        let longest = FIRST.saturating_mul(1 << self.failures.min(10)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        longest.mul_f64(0.5 + fastrand::f64() / 2.0)
    }

    /// Whether the last attempt was the first one to fail.
    pub(super) fn is_first_failure(&self) -> bool {
        self.failures == 1
    }
}
