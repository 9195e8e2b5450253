//! `Context`: what a handler knows of the task in its hands.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::Retry;
use crate::task::{Delivery, Partition, Payload, TaskId};

/// The task in a handler's hands. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    delivery: Arc<Delivery>,
    task_name: String,
    retries: u32,
    cancelled: CancellationToken,
}

impl Context {
    pub(super) fn new(delivery: Arc<Delivery>, task_name: String, retries: u32, cancelled: CancellationToken) -> Self {
        Self { inner: Arc::new(Inner { delivery, task_name, retries, cancelled }) }
    }

    pub(super) fn delivery(&self) -> &Delivery {
        &self.inner.delivery
    }

    pub(super) fn cancel(&self) {
        self.inner.cancelled.cancel();
    }

    /// The task's id: the same over retries and redeliveries.
    pub fn id(&self) -> &TaskId {
        &self.inner.delivery.id
    }

    /// The name it was called by; empty if the payload cannot be read (hooks only).
    pub fn task_name(&self) -> &str {
        &self.inner.task_name
    }

    /// The partition; none for a task that 0.1.0 stored.
    pub fn partition(&self) -> Option<Partition> {
        self.payload().partition()
    }

    /// How often the task has been delivered, this time included. More than retries + 1 means that a worker was lost
    /// while it had it: it may have run before.
    pub fn deliveries(&self) -> u32 {
        self.inner.delivery.deliveries
    }

    /// How often it has been run again by a retry.
    pub fn retries(&self) -> u32 {
        self.inner.retries
    }

    /// The task as stored.
    pub fn payload(&self) -> &Payload {
        &self.inner.delivery.payload
    }

    /// Asks for a retry after the task's `default_retry_delay`: return it as an error.
    pub fn retry(&self) -> Retry {
        Retry::later()
    }

    /// Whether the soft time limit has passed, or the task is no longer this worker's: its lease was lost, or the worker
    /// stops. In the latter two cases the handler's own future is dropped as well; what it has spawned can see it here.
    pub fn is_cancelled(&self) -> bool {
        self.inner.cancelled.is_cancelled()
    }

    /// Returns when [`is_cancelled`](Self::is_cancelled) becomes true.
    pub async fn cancelled(&self) {
        self.inner.cancelled.cancelled().await;
    }
}
