//! A worker and a server that answers anything: it works on, and it stops when it is told to.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use vtrr_queue::{Blocking, Command, Listener, Memory, Queue, Result, Runner};

use super::hand::{self, Seen};
use super::replies::Wire;

/// What comes over the wire, for one call of the worker after the other; then the connection is broken.
pub fn worker(input: &[u8]) {
    let server = Arc::new(Server { wire: Mutex::new(Wire::new(input)), memory: Memory::new() });
    let stop = async { tokio::time::sleep(Duration::from_secs(20)).await };
    // An error is as good: it says what the server did.
    let _ = hand::run(hand::worker(server, &Seen::default()), stop);
}

struct Server<'a> {
    wire: Mutex<Wire<'a>>,
    memory: Memory,
}

impl Runner for Server<'_> {
    async fn run<C: Command>(&self, command: C) -> Result<C::Reply> {
        // The worker survives what panics in a task of its own.
        assert!(!command.call().args.iter().any(|word| word.starts_with(b"panicked")));
        Blocking::new(&mut *self.wire.lock().unwrap()).run(command)
    }

    async fn listen(&self, queue: &Queue) -> Result<Listener> {
        self.memory.listen(queue).await
    }
}
