//! Producers and a worker in one process, without a server: a big customer does not hold up the small ones.
//!
//! `cargo run --example one_process`
#![allow(clippy::print_stdout, reason = "it shows the order")]

use std::error::Error;
use std::sync::Arc;

use tokio::sync::Semaphore;
use vtrr_queue::worker::BoxError;
use vtrr_queue::{Context, Memory, Queue, Runner, Task, Worker};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let queue = Queue::new("files")?;
    let runner = Arc::new(Memory::new());

    // ann comes first, with the most; carl's second task is a heavy one.
    let convert = |file: &str| Task::new("convert", &(file,));
    let files = (1..=6).map(|n| convert(&format!("ann-{n}.pdf"))).collect::<Result<Vec<_>, _>>()?;
    runner.run(queue.enqueue("ann", files)?).await?;
    runner.run(queue.enqueue("bob", [convert("bob-1.pdf")?, convert("bob-2.pdf")?])?).await?;
    let carl = [convert("carl-1.pdf")?, convert("carl-2.pdf")?.weight(3)?, convert("carl-3.pdf")?];
    runner.run(queue.enqueue("carl", carl)?).await?;

    let done = Arc::new(Semaphore::new(0));
    let counted = Arc::clone(&done);
    let worker = Worker::builder(queue, runner)
        .concurrency(1)
        .register("convert", move |_: Context, (file,): (String,)| {
            let counted = Arc::clone(&counted);
            async move {
                println!("{file}");
                counted.add_permits(1);
                Ok::<_, BoxError>(())
            }
        })
        .build()?;
    // In a service: `worker.run()`, until SIGTERM.
    let summary = worker.run_until(async { drop(done.acquire_many(11).await) }).await?;
    println!("{} done", summary.succeeded);
    Ok(())
}
