//! `Queue`: a queue's name and the commands for it. Makes values; does no IO. The only place that names new tasks,
//! requests and owners.

use std::time::Duration;

use uuid::Uuid;

use crate::command::{
    Bounds, Cancel, Cause, Claim, DeadLetters, Dequeue, Discard, Enqueue, Eviction, Extend, Find, Flatten, Outcome,
    Partitions, Peek, Purge, Redrive, Released, SetShare, Settle, SettleOwner, Settlement, Stats, Sweep, Tagging, Target,
    Unflatten, bound,
};
use crate::error::Result;
use crate::keys::QueueName;
use crate::tag::Share;
use crate::task::{Delivery, Owner, Partition, Task, TaskId, Token};

/// A queue by name: makes the commands that a runner runs. Cheap to clone.
///
/// Arguments are checked here, before anything is sent: [`ErrorKind::Invalid`](crate::ErrorKind::Invalid).
#[derive(Debug, Clone)]
pub struct Queue {
    target: Target,
    tagging: Option<Tagging>,
    bounds: Bounds,
}

impl Queue {
    /// The queue `name`: 1 to 512 bytes of text without NUL. A name like `{files}` is needed on Redis Cluster.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        Ok(Self { target: Target::new(QueueName::new(name)?), tagging: None, bounds: Bounds::default() })
    }

    /// Insists on a tagging mode: a queue that is in the other one refuses to enqueue. Without it a new queue is in
    /// mode `head` and an existing one is taken as it is.
    #[must_use]
    pub fn tagging(mut self, tagging: Tagging) -> Self {
        self.tagging = Some(tagging);
        self
    }

    /// Bounds the tasks queued in all partitions, for what this value enqueues: see [`Enqueue::max_queued`].
    pub fn max_queued(mut self, most: u64) -> Result<Self> {
        self.bounds.all = Some(bound("max_queued", most)?);
        Ok(self)
    }

    /// Bounds the tasks queued in each partition, for what this value enqueues: see [`Enqueue::max_queued_per_partition`].
    pub fn max_queued_per_partition(mut self, most: u64) -> Result<Self> {
        self.bounds.partition = Some(bound("max_queued_per_partition", most)?);
        Ok(self)
    }

    /// The name.
    pub fn name(&self) -> &QueueName {
        &self.target.name
    }

    pub(crate) fn target(&self) -> Target {
        self.target.clone()
    }

    /// Adds tasks of one partition.
    pub fn enqueue(&self, partition: impl Into<String>, tasks: impl IntoIterator<Item = Task>) -> Result<Enqueue> {
        let partition = Partition::new(partition)?;
        let tasks = tasks.into_iter().collect();
        let command = Enqueue::new(self.target(), partition, tasks, fresh(), || TaskId::trusted(fresh()))?;
        Ok(command.with_defaults(self.tagging, self.bounds))
    }

    /// Hands out up to `n` tasks in fair order; 0 to 1,000.
    pub fn dequeue(&self, n: usize) -> Result<Dequeue> {
        Dequeue::new(self.target(), n, fresh())
    }

    /// Settles up to 1,000 deliveries.
    pub fn settle(&self, settlements: Vec<Settlement>) -> Result<Settle> {
        Settle::new(self.target(), settlements)
    }

    /// Settles one delivery: done.
    pub fn ack(&self, delivery: &Delivery) -> Result<Settle> {
        self.settle(vec![Settlement::ack(delivery)])
    }

    /// Gives one delivery back, to be delivered again after `delay`. What ran pays for it: see [`Released`].
    pub fn release(&self, delivery: &Delivery, delay: Duration, how: Released) -> Result<Settle> {
        self.settle(vec![Settlement::release(delivery, delay, how)?])
    }

    /// Settles one delivery: run again after `delay`, charged again.
    pub fn retry(&self, delivery: &Delivery, delay: Duration) -> Result<Settle> {
        self.settle(vec![Settlement::retry(delivery, delay, None)?])
    }

    /// Settles one delivery: given up, a dead letter with this error.
    pub fn fail(&self, delivery: &Delivery, error: impl Into<String>) -> Result<Settle> {
        self.settle(vec![Settlement::fail(delivery, Cause::Failed, error)])
    }

    /// Gives back everything an owner holds, at once.
    pub fn release_owner(&self, owner: Owner, how: Released) -> SettleOwner {
        SettleOwner::new(self.target(), owner, Outcome::Release { delay_ms: 0, how })
    }

    /// Makes dead letters of everything an owner holds.
    pub fn fail_owner(&self, owner: Owner, cause: Cause, error: impl Into<String>) -> SettleOwner {
        SettleOwner::new(self.target(), owner, Outcome::Fail { cause, error: error.into() })
    }

    /// Takes back a delivery that was released with a delay, by the token it had then.
    pub fn claim(&self, id: TaskId, token: Token, owner: Owner, lease: Duration) -> Result<Claim> {
        Claim::new(self.target(), id, token, owner, lease)
    }

    /// Moves the deadlines of up to 1,000 deliveries to now + `lease`.
    pub fn extend(&self, deliveries: &[Delivery], lease: Duration) -> Result<Extend> {
        Extend::of(self.target(), deliveries, lease)
    }

    /// Moves the deadlines of everything an owner holds to now + `lease`.
    pub fn extend_owner(&self, owner: Owner, lease: Duration) -> Result<Extend> {
        Extend::owner(self.target(), owner, lease)
    }

    /// The periodic repair.
    pub fn sweep(&self) -> Sweep {
        Sweep::new(self.target())
    }

    /// Takes up to 1,000 queued or delayed tasks out.
    pub fn cancel(&self, ids: impl IntoIterator<Item = TaskId>) -> Result<Cancel> {
        Cancel::new(self.target(), ids.into_iter().collect())
    }

    /// Takes all queued tasks of one partition out.
    pub fn purge(&self, partition: impl Into<String>) -> Result<Purge> {
        Ok(Purge::new(self.target(), Some(Partition::new(partition)?)))
    }

    /// Takes all queued tasks out.
    pub fn purge_all(&self) -> Purge {
        Purge::new(self.target(), None)
    }

    /// Sets what a partition is entitled to, relative to others: from 0.001 to 1,000.
    pub fn set_share(&self, partition: impl Into<String>, share: f64) -> Result<SetShare> {
        Ok(SetShare::new(self.target(), Partition::new(partition)?, Share::new(share)?))
    }

    /// Sets the share of a partition back to 1.
    pub fn clear_share(&self, partition: impl Into<String>) -> Result<SetShare> {
        Ok(SetShare::new(self.target(), Partition::new(partition)?, Share::default()))
    }

    /// Switches to mode `all`.
    pub fn flatten(&self) -> Flatten {
        Flatten::new(self.target())
    }

    /// Switches to mode `head`.
    pub fn unflatten(&self) -> Unflatten {
        Unflatten::new(self.target())
    }

    /// Lists dead letters, oldest first; `limit` from 1 to 1,000.
    pub fn dead_letters(&self, offset: usize, limit: usize) -> Result<DeadLetters> {
        DeadLetters::new(self.target(), offset, limit)
    }

    /// Puts up to 1,000 dead letters back into the queue.
    pub fn redrive(&self, ids: impl IntoIterator<Item = TaskId>) -> Result<Redrive> {
        Redrive::new(self.target(), ids.into_iter().collect())
    }

    /// Deletes up to 1,000 dead letters.
    pub fn discard(&self, ids: impl IntoIterator<Item = TaskId>) -> Result<Discard> {
        Discard::new(self.target(), ids.into_iter().collect())
    }

    /// The queue in numbers.
    pub fn stats(&self) -> Stats {
        Stats::new(self.target())
    }

    /// Every partition with queued or leased tasks.
    pub fn partitions(&self) -> Partitions {
        Partitions::new(self.target())
    }

    /// Who would be served next; `n` from 1 to 1,000.
    pub fn peek(&self, n: usize) -> Result<Peek> {
        Peek::new(self.target(), n)
    }

    /// Where a task is.
    pub fn find(&self, id: TaskId) -> Find {
        Find::new(self.target(), id)
    }

    /// Whether the server may delete tasks: its `maxmemory-policy`.
    pub fn eviction(&self) -> Eviction {
        Eviction::new(self.target())
    }

    /// A new owner name, unique for ever.
    pub fn fresh_owner() -> Owner {
        Owner::trusted(fresh())
    }
}

/// A `UUIDv7`: later ones sort later, so that ties go first come, first served.
fn fresh() -> String {
    Uuid::now_v7().to_string()
}
