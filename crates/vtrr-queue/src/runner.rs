//! What the worker needs of a runner: run a command, and hear when there is work.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::command::Command;
use crate::error::Result;
use crate::queue::Queue;

/// Runs commands, asynchronously. It has one method for all of them; a new command needs no new one.
pub trait Runner: Send + Sync {
    /// Runs a command to its end, with as many steps as it takes.
    fn run<C: Command>(&self, command: C) -> impl Future<Output = Result<C::Reply>> + Send;

    /// Starts to listen for tasks being placed in the queue.
    fn listen(&self, queue: &Queue) -> impl Future<Output = Result<Listener>> + Send;
}

impl<R: Runner> Runner for Arc<R> {
    async fn run<C: Command>(&self, command: C) -> Result<C::Reply> {
        R::run(self, command).await
    }

    async fn listen(&self, queue: &Queue) -> Result<Listener> {
        R::listen(self, queue).await
    }
}

/// Hears when tasks are placed in a queue. What happens between two waits is heard by the second.
#[derive(Debug)]
pub struct Listener {
    woken: watch::Receiver<()>,
    /// Feeds `woken`, where something must.
    feeder: Option<JoinHandle<()>>,
}

impl Listener {
    pub(crate) fn new(woken: watch::Receiver<()>, feeder: Option<JoinHandle<()>>) -> Self {
        Self { woken, feeder }
    }

    /// Returns when tasks were placed since the last wait, or after `at_most`: then look all the same.
    pub async fn wait(&mut self, at_most: Duration) {
        let changed = async {
            if self.woken.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let _ = tokio::time::timeout(at_most, changed).await;
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(feeder) = &self.feeder {
            feeder.abort();
        }
    }
}
