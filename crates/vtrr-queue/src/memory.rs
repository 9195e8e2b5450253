//! The memory runner: the embedded default. Same commands, same answers, same process, no server.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
#[cfg(not(any(feature = "worker", feature = "redis")))]
use std::time::Instant;
use std::time::{SystemTime, UNIX_EPOCH};

#[cfg(any(feature = "worker", feature = "redis"))]
use tokio::time::Instant;

use crate::command::{Command, Step};
use crate::error::Result;
use crate::keys::QueueName;
use crate::state::State;

/// Queues in this process's memory. Share it by reference or in an `Arc`; any number of threads may use it.
///
/// Nothing survives the process. A step of a command takes O(log) of what it touches, under a lock of its queue's; a long
/// command has many steps, as on Redis, and whoever waits comes in between them.
///
/// Time is this machine's when the value is made, and from then on that of tokio's clock: in a test with a paused one
/// (`start_paused`, `tokio::time::advance`) leases, delays and ages go by that.
#[derive(Debug, Default)]
pub struct Memory {
    clock: Clock,
    places: Mutex<HashMap<QueueName, Arc<Place>>>,
    #[cfg(any(feature = "worker", feature = "redis"))]
    woken: tokio::sync::watch::Sender<()>,
}

impl Memory {
    /// No queues yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs a command now. Never blocks on anything but locks, and needs no runtime.
    pub fn run_now<C: Command>(&self, mut command: C) -> Result<C::Reply> {
        let place = self.place(command.queue());
        loop {
            if let Step::Done(reply) = self.step(&place, &mut command)? {
                return Ok(reply);
            }
        }
    }

    /// Does the step that is due, in one piece.
    fn step<C: Command>(&self, place: &Place, command: &mut C) -> Result<Step<C::Reply>> {
        let mut state = place.enter();
        let step = command.apply(state.at(self.clock.now_us()));
        let placed = state.has_woken();
        drop(state);
        #[cfg(any(feature = "worker", feature = "redis"))]
        if placed {
            self.woken.send_replace(());
        }
        #[cfg(not(any(feature = "worker", feature = "redis")))]
        let _ = placed;
        step.map_err(|error| command.interrupted(error))
    }

    fn place(&self, queue: &QueueName) -> Arc<Place> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = places.get(queue) {
            return Arc::clone(place);
        }
        Arc::clone(places.entry(queue.clone()).or_default())
    }
}

/// One queue.
#[derive(Debug, Default)]
struct Place {
    /// Held while waiting for the state. Who has just let go of that finds somebody else at the door, and does not come in
    /// first again: a lock alone would let it.
    door: Mutex<()>,
    state: Mutex<State>,
}

impl Place {
    fn enter(&self) -> MutexGuard<'_, State> {
        let _door = self.door.lock().unwrap_or_else(PoisonError::into_inner);
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Microseconds since 1970, never less than before: when it was made, and what tokio's clock has counted since.
#[derive(Debug)]
struct Clock {
    began: Instant,
    began_us: u64,
    latest: AtomicU64,
}

impl Default for Clock {
    fn default() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let began_us = u64::try_from(wall.as_micros()).unwrap_or(u64::MAX);
        Self { began: Instant::now(), began_us, latest: AtomicU64::new(began_us) }
    }
}

impl Clock {
    fn now_us(&self) -> u64 {
        let since = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        let now = self.began_us.saturating_add(since);
        // Threads without tokio's clock would see a paused one jump.
        self.latest.fetch_max(now, Ordering::Relaxed).max(now)
    }
}

#[cfg(any(feature = "worker", feature = "redis"))]
impl crate::runner::Runner for Memory {
    /// Lets other tasks of the runtime run between two steps. Dropped there, as much is done as was done by then.
    async fn run<C: Command>(&self, mut command: C) -> Result<C::Reply> {
        let place = self.place(command.queue());
        loop {
            if let Step::Done(reply) = self.step(&place, &mut command)? {
                return Ok(reply);
            }
            tokio::task::yield_now().await;
        }
    }

    async fn listen(&self, _queue: &crate::Queue) -> Result<crate::runner::Listener> {
        Ok(crate::runner::Listener::new(self.woken.subscribe(), None))
    }
}
