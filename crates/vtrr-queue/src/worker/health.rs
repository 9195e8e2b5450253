//! Whether a worker can do its work, for an orchestrator that asks. `Pulse` is the worker's end, [`Health`] the asker's.

use std::time::{Duration, Instant};

use tokio::sync::watch;

/// Whether a worker is live. Made by [`Worker::health`](super::Worker::health); cheap to clone; does no IO, may be asked from
/// any thread and outlives the worker.
///
/// A worker is live while less than its lease has passed since the queue last did as it asked: settled and handed out, or extended
/// its leases. An idle worker asks at least three times per lease, one whose places are all taken extends; sweeps do not count,
/// nor do calls that the server refuses. Before the first answer the time runs from when the worker was built, then from when it
/// began to run. So a worker whose server is gone or silent, or whose runtime is blocked, is not live after a lease; it is live
/// again after the next answer. One that stops is live as long as it extends and settles. One that has ended, by whatever way, is not.
///
/// Time is monotonic. With a lease so short that an answer may take as long, this says little.
#[derive(Debug, Clone)]
pub struct Health {
    state: watch::Receiver<State>,
    lease: Duration,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// Nothing was answered since.
    Unanswered(Instant),
    Answered(Instant),
    Ended,
}

impl Health {
    /// Whether the worker is live.
    pub fn is_live(&self) -> bool {
        self.trouble().is_none()
    }

    /// How long ago the queue last did as the worker asked; none before the first time, and after the worker's end.
    pub fn last_contact(&self) -> Option<Duration> {
        match *self.state.borrow() {
            State::Answered(at) => Some(at.elapsed()),
            State::Unanswered(_) | State::Ended => None,
        }
    }

    /// Why the worker is not live, in words; none if it is.
    pub fn trouble(&self) -> Option<String> {
        let (State::Unanswered(since) | State::Answered(since)) = *self.state.borrow() else {
            return Some("the worker has ended".to_owned());
        };
        let silence = since.elapsed();
        (silence >= self.lease).then(|| format!("no answer from the queue for {silence:.1?}; the lease is {:?}", self.lease))
    }
}

/// Tells what [`Health`] says. Its end is the worker's.
#[derive(Debug)]
pub(super) struct Pulse(watch::Sender<State>);

impl Pulse {
    pub(super) fn new() -> Self {
        Self(watch::Sender::new(State::Unanswered(Instant::now())))
    }

    pub(super) fn health(&self, lease: Duration) -> Health {
        Health { state: self.0.subscribe(), lease }
    }

    /// The worker begins to run.
    pub(super) fn begin(&self) {
        self.0.send_replace(State::Unanswered(Instant::now()));
    }

    /// The queue has handed out and settled, or extended leases.
    pub(super) fn answered(&self) {
        self.0.send_replace(State::Answered(Instant::now()));
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.0.send_replace(State::Ended);
    }
}
