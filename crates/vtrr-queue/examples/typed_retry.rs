//! Handlers with typed arguments, and what becomes of errors.
//!
//! `cargo run --example typed_retry`
#![allow(clippy::print_stdout, reason = "it shows what happens")]

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use vtrr_queue::worker::{BoxError, Hooks, Options};
use vtrr_queue::{Context, Memory, Queue, Retry, Runner, Task, Worker};

/// An error that is worth another try.
#[derive(Debug)]
struct Busy;

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the server is busy")
    }
}

impl Error for Busy {}

/// The named arguments of `send`: `kwargs` for Python producers.
#[derive(Debug, Serialize, Deserialize)]
struct Mail {
    to: String,
    #[serde(default)]
    urgent: bool,
}

/// Retried by its options: the error is one of those in `autoretry_for`.
async fn send(context: Context, mail: Mail) -> Result<(), Busy> {
    if context.retries() < 2 {
        return Err(Busy);
    }
    println!("sent {mail:?}");
    Ok(())
}

/// Asks for a retry itself, with other arguments: the next page.
async fn import(_: Context, (source, page): (String, u32)) -> Result<(), BoxError> {
    println!("page {page} of {source}");
    if page < 3 {
        return Err(Retry::after(Duration::from_millis(20)).args(&(source, page + 1))?.into());
    }
    Ok(())
}

/// Stops in time by itself.
async fn count(context: Context, (): ()) -> Result<(), BoxError> {
    let mut n = 0_u64;
    while !context.is_cancelled() {
        n += 1;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Err(format!("counted for too long (to {})", n.min(1)).into())
}

/// Tells what happens, and counts what has ended.
struct Told(Arc<Semaphore>);

impl Hooks for Told {
    fn succeeded(&self, task: &Context, _took: Duration) {
        println!("{}: done after {} retries", task.task_name(), task.retries());
        self.0.add_permits(1);
    }
    fn retried(&self, task: &Context, error: &str, _delay: Duration) {
        println!("{}: again: {error}", task.task_name());
    }
    fn failed(&self, task: &Context, error: &str) {
        println!("{}: failed: {error}", task.task_name());
        self.0.add_permits(1);
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let queue = Queue::new("typed")?;
    let runner = Arc::new(Memory::new());
    let tasks = [
        Task::new("send", &Mail { to: "ann".into(), urgent: true })?,
        Task::new("import", &("catalogue", 1))?,
        Task::new("count", &())?,
    ];
    runner.run(queue.enqueue("u_1", tasks)?).await?;

    let soon = Options::new().autoretry_for::<Busy>().retry_backoff(Duration::from_millis(20)).max_retries(5);
    let limited = Options::new().soft_time_limit(Duration::from_millis(50)).time_limit(Duration::from_secs(1));
    let ended = Arc::new(Semaphore::new(0));
    let worker = Worker::builder(queue.clone(), Arc::clone(&runner))
        .register_with("send", soon, send)
        .register("import", import)
        .register_with("count", limited, count)
        .hooks(Told(Arc::clone(&ended)))
        .build()?;
    worker.run_until(async { drop(ended.acquire_many(3).await) }).await?;

    for letter in runner.run(queue.dead_letters(0, 10)?).await? {
        println!("dead letter: {}", letter.error);
    }
    Ok(())
}
