//! How often and how long a call is repeated.

use std::time::{Duration, Instant};

/// How long a call may take, unless the caller says otherwise.
pub(super) const TIME_LIMIT: Duration = Duration::from_secs(5);

/// The attempts of one call.
pub(super) struct Attempts {
    deadline: Instant,
    most: Duration,
    pauses: Pauses,
}

impl Attempts {
    pub(super) fn within(limit: Duration) -> Self {
        let deadline = Instant::now() + limit;
        Self { deadline, most: limit / 2, pauses: Pauses::new(Duration::from_millis(10), Duration::from_millis(500)) }
    }

    /// How long the attempt that starts now may take: a connection that died in silence must leave time for a new one.
    pub(super) fn time(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now()).min(self.most)
    }

    /// How long to wait before the next attempt; none if that would have less than a tenth of the limit.
    pub(super) fn pause(&mut self) -> Option<Duration> {
        let pause = self.pauses.next();
        (Instant::now() + pause + self.most / 5 < self.deadline).then_some(pause)
    }
}

/// Pauses that double up to a limit, each shortened at random by up to a half, so that clients do not come back in step.
pub(super) struct Pauses {
    next: Duration,
    most: Duration,
}

impl Pauses {
    pub(super) fn new(first: Duration, most: Duration) -> Self {
        Self { next: first, most }
    }

    pub(super) fn next(&mut self) -> Duration {
        let pause = self.next.mul_f64(1.0 - fastrand::f64() / 2.0);
        self.next = (self.next * 2).min(self.most);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_their_limit() {
        let ms = Duration::from_millis;
        let mut pauses = Pauses::new(ms(10), ms(35));
        for full in [10, 20, 35, 35] {
            let pause = pauses.next();
            assert!(ms(full) / 2 <= pause && pause <= ms(full), "{pause:?} of {full} ms");
        }
    }

    #[test]
    fn an_attempt_gets_half_of_the_limit_and_never_more_than_is_left() {
        let limit = Duration::from_secs(10);
        let mut attempts = Attempts::within(limit);
        assert_eq!(attempts.time(), limit / 2);
        attempts.deadline = Instant::now() + Duration::from_secs(1);
        assert!(attempts.time() <= Duration::from_secs(1));
        assert_eq!(attempts.pause(), None);
        attempts.deadline = Instant::now();
        assert_eq!(attempts.time(), Duration::ZERO);
    }
}
