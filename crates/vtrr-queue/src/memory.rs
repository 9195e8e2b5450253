//! The memory runner: the embedded default. Same commands, same answers, same process, no server.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::command::{Command, Step};
use crate::error::Result;
use crate::keys::QueueName;
use crate::state::State;

/// Queues in this process's memory. Share it by reference or in an `Arc`; any number of threads may use it.
///
/// Nothing survives the process. A command takes O(log) of what it touches, under one lock.
#[derive(Debug, Default)]
pub struct Memory {
    states: Mutex<HashMap<QueueName, State>>,
    #[cfg(any(feature = "worker", feature = "redis"))]
    woken: tokio::sync::watch::Sender<()>,
}

impl Memory {
    /// No queues yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs a command now, by the clock of this machine. Never blocks on anything but the lock.
    pub fn run_now<C: Command>(&self, mut command: C) -> Result<C::Reply> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now_us = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let state = states.entry(command.queue().clone()).or_default();
        let mut placed = false;
        let reply = loop {
            let step = command.apply(state.at(now_us)).map_err(|error| command.interrupted(error));
            placed |= state.has_woken();
            match step {
                Ok(Step::Done(reply)) => break Ok(reply),
                Ok(Step::Again) => {}
                Err(error) => break Err(error),
            }
        };
        drop(states);
        #[cfg(any(feature = "worker", feature = "redis"))]
        if placed {
            self.woken.send_replace(());
        }
        #[cfg(not(any(feature = "worker", feature = "redis")))]
        let _ = placed;
        reply
    }
}

#[cfg(any(feature = "worker", feature = "redis"))]
impl crate::runner::Runner for Memory {
    async fn run<C: Command>(&self, command: C) -> Result<C::Reply> {
        self.run_now(command)
    }

    async fn listen(&self, _queue: &crate::Queue) -> Result<crate::runner::Listener> {
        Ok(crate::runner::Listener::new(self.woken.subscribe(), None))
    }
}
