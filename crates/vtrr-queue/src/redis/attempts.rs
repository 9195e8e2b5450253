//! How often and how long a call is repeated.

use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// How long a call may take, unless the caller says otherwise.
pub(super) const TIME_LIMIT: Duration = Duration::from_secs(5);

/// The attempts of one call.
pub(super) struct Attempts {
    now: fn() -> Instant,
    deadline: Instant,
    most: Duration,
    /// How long the server knows the call again once it has run; none: for ever.
    known: Option<Duration>,
    pauses: Pauses,
    /// How the last attempt failed.
    earlier: Option<Error>,
}

impl Attempts {
    /// `now` is the clock of whoever waits. `known_for` is as [`Command::known_for`](crate::Command::known_for) has it; a sixth of
    /// it is left for what is still on its way.
    pub(super) fn within(limit: Duration, known_for: Option<Duration>, now: fn() -> Instant) -> Self {
        // Far away, and yet a time that exists.
        let limit = limit.min(Duration::from_secs(365 * 86_400));
        let known = known_for.map(|known| known / 6 * 5);
        let most = known.map_or(limit, |known| limit.min(known)) / 2;
        let pauses = Pauses::new(Duration::from_millis(10), Duration::from_millis(500));
        Self { now, deadline: now() + limit, most, known, pauses, earlier: None }
    }

    /// How long the attempt that starts now may take: a connection that died in silence must leave time for a new one.
    pub(super) fn time(&self) -> Duration {
        self.deadline.saturating_duration_since((self.now)()).min(self.most)
    }

    /// The attempt that began then may have arrived: the server may know the call since, and will forget it. All attempts must
    /// have ended before that.
    pub(super) fn arrived(&mut self, began: Instant) {
        if let Some(known) = self.known.take() {
            self.deadline = self.deadline.min(began + known);
        }
    }

    pub(super) fn now(&self) -> Instant {
        (self.now)()
    }

    /// How long to wait before the next attempt after this error; or what to report if that would have less than a tenth
    /// of the limit. An attempt that the deadline cut off says less than the one before.
    pub(super) fn again(&mut self, error: Error) -> Result<Duration> {
        let error = match self.earlier.take() {
            Some(earlier) if self.time().is_zero() => earlier,
            _ => error,
        };
        let pause = self.pauses.next();
        if self.now() + pause + self.most / 5 >= self.deadline {
            return Err(error);
        }
        self.earlier = Some(error);
        Ok(pause)
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
        assert!(Attempts::within(Duration::MAX, None, Instant::now).time() > limit);
        let mut attempts = Attempts::within(limit, None, Instant::now);
        assert_eq!(attempts.time(), limit / 2);
        attempts.deadline = Instant::now() + Duration::from_secs(1);
        assert!(attempts.time() <= Duration::from_secs(1));
        attempts.deadline = Instant::now();
        assert_eq!(attempts.time(), Duration::ZERO);
    }

    #[test]
    fn the_last_error_is_reported_unless_the_deadline_cut_its_attempt_off() {
        let error = Error::protocol;
        let mut attempts = Attempts::within(Duration::from_secs(10), None, Instant::now);
        assert!(attempts.again(error("first")).is_ok());
        assert!(attempts.again(error("second")).is_ok());
        attempts.deadline = Instant::now() + Duration::from_millis(900);
        assert_eq!(attempts.again(error("third")).unwrap_err().to_string(), "third");
        let mut attempts = Attempts::within(Duration::from_secs(10), None, Instant::now);
        assert!(attempts.again(error("first")).is_ok());
        attempts.deadline = Instant::now();
        assert_eq!(attempts.again(error("cut off")).unwrap_err().to_string(), "first");
        assert_eq!(attempts.again(error("alone")).unwrap_err().to_string(), "alone");
    }

    #[test]
    fn no_attempt_is_under_way_when_the_server_may_have_forgotten_the_call() {
        let (minute, hour) = (Duration::from_secs(60), Duration::from_secs(3_600));
        let mut attempts = Attempts::within(hour, Some(minute), Instant::now);
        let began = attempts.now();
        assert_eq!(attempts.time(), Duration::from_secs(25));
        // None has arrived: the server is waited for.
        assert!(attempts.deadline > began + minute);
        attempts.arrived(began);
        assert_eq!(attempts.deadline, began + Duration::from_secs(50));
        // The first counts.
        attempts.arrived(began + Duration::from_secs(30));
        assert_eq!(attempts.deadline, began + Duration::from_secs(50));
        let mut attempts = Attempts::within(hour, None, Instant::now);
        attempts.arrived(began);
        assert!(attempts.deadline > began + minute && attempts.time() == hour / 2);
    }
}
