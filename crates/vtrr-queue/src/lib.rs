//! A fair task queue: tasks of different partitions (users, tenants, customers) are interleaved, so that nobody
//! starves however much anybody else submits.
//!
//! A [`Queue`] makes commands; a runner runs them. `Memory` needs no server; `Redis` and `Blocking` work on Redis and
//! Valkey. A [`worker`] runs async handlers.
//!
//! Modules: `tag` (the arithmetic of the order) ← `task` ← `keys`, `call`, `state` ← `command` (one file and one
//! script per command) ← `queue` ← `memory`, `redis` (the runners) ← `worker`.

mod call;
mod command;
mod error;
mod keys;
mod layout;
mod lossless;
mod memory;
mod queue;
#[cfg(feature = "redis")]
mod redis;
#[cfg(any(feature = "worker", feature = "redis"))]
mod runner;
mod state;
mod tag;
mod task;
#[cfg(feature = "worker")]
pub mod worker;

pub use call::{Call, Script, Value};
pub use command::*;
pub use error::{Bound, Error, ErrorKind, Result, Unfinished};
pub use keys::{MAX_NAME_BYTES, QueueName};
pub use memory::Memory;
pub use queue::Queue;
#[cfg(feature = "redis")]
pub use redis::{Blocking, Redis};
#[cfg(any(feature = "worker", feature = "redis"))]
pub use runner::{Listener, Runner};
pub use state::State;
pub use tag::{Share, Weight, arrival, finish_tag, is_forgettable, reshare, start_tag};
pub use task::{
    Body, Delivery, Invocation, MAX_PAYLOAD_BYTES, MAX_TASKS_PER_CALL, Owner, Partition, Payload, Task, TaskId, Token,
};
#[cfg(feature = "worker")]
pub use worker::{Context, Retry, Worker};

/// The README's Rust is run as a test.
#[cfg(all(doctest, feature = "worker"))]
#[doc = include_str!("../../../README.md")]
struct Readme;
