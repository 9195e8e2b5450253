//! Fills a queue on Redis; `consumer` works on it, in another process or written in Python.
//!
//! `REDIS_URL=redis://127.0.0.1/ QUEUE=files cargo run --example producer -- ann 20 bob 3`: partitions, and how many tasks
//! for each.
#![allow(clippy::print_stdout, reason = "it tells what it stored")]

use std::env;
use std::error::Error;

use vtrr_queue::{Queue, Redis, Runner, Task};

fn setting(name: &str, default: &str) -> String {
    env::var(name).unwrap_or_else(|_| default.to_owned())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let runner = Redis::connect(&setting("REDIS_URL", "redis://127.0.0.1/"))?;
    let queue = Queue::new(setting("QUEUE", "files"))?;
    let words: Vec<_> = env::args().skip(1).collect();
    for pair in words.chunks(2) {
        let [partition, amount] = pair else { return Err("usage: producer PARTITION AMOUNT …".into()) };
        let tasks = (1..=amount.parse()?).map(|n: u64| Task::new("convert", &(format!("{partition}-{n}.pdf"),)));
        let tasks = tasks.collect::<Result<Vec<_>, _>>()?;
        let enqueued = runner.run(queue.enqueue(partition, tasks)?).await?;
        println!("{partition}: {} tasks", enqueued.ids.len());
    }
    Ok(())
}
