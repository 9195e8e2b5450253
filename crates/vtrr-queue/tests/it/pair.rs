//! The same queue on a server and in memory: each command runs on both, with equal answers.

use std::fmt::Debug;
use std::time::Duration;

use vtrr_queue::{Command, Dequeue, Dequeued, Queue, Result, Settlement, State, Step, Swept};

use crate::busy::task;
use crate::clocked::Clocked;
use crate::server::{Kind, Server};

pub(crate) const NAME: &str = "q";
const SECOND: u64 = 1_000_000;
pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// The same queue on a server and in memory.
pub(crate) struct Pair {
    _server: Server,
    pub(crate) clocked: Clocked,
    pub(crate) state: State,
    now_us: u64,
    pub(crate) queue: Queue,
}

impl Pair {
    pub(crate) fn new() -> Self {
        let server = Server::start(Kind::Redis);
        let clocked = Clocked::at(&server.url());
        let queue = Queue::new(NAME).unwrap();
        let mut pair = Self { _server: server, clocked, state: State::default(), now_us: 0, queue };
        pair.wait(1_800_000_000);
        pair
    }

    pub(crate) fn wait(&mut self, seconds: u64) {
        self.now_us += seconds * SECOND;
        self.clocked.set_clock(self.now_us);
    }

    pub(crate) fn run<C: Command<Reply: Debug> + Clone>(&mut self, command: C) -> C::Reply {
        self.try_run(command).unwrap()
    }

    /// A sweep; that its round over the partitions goes on, only servers know.
    pub(crate) fn sweep(&mut self) -> Swept {
        let Ok(Step::Done(ours)) = self.queue.sweep().apply(self.state.at(self.now_us)) else { unreachable!("one step") };
        let theirs = self.clocked.run(self.queue.sweep()).unwrap();
        let told = |swept: Swept| (swept.reclaimed, swept.due, swept.healed, swept.dropped, swept.more, swept.leading);
        assert_eq!(told(ours), told(theirs));
        theirs
    }

    /// The same for a command that may be refused.
    pub(crate) fn try_run<C: Command<Reply: Debug> + Clone>(&mut self, command: C) -> Result<C::Reply> {
        let mut twin = command.clone();
        let ours = loop {
            match twin.apply(self.state.at(self.now_us)) {
                Ok(Step::Done(reply)) => break Ok(reply),
                Ok(Step::Again) => {}
                Err(error) => break Err(twin.interrupted(error)),
            }
        };
        let theirs = self.clocked.run(command);
        // Not `assert_eq`: they are long.
        assert!(format!("{ours:?}") == format!("{theirs:?}"), "memory and server differ: {ours:.999?}\n{theirs:.999?}");
        theirs
    }

    /// Both hold the same.
    pub(crate) fn compare(&mut self) {
        let (ours, theirs) = (self.state.dump(), self.clocked.dump(NAME));
        let differ: Vec<_> = ours.keys().chain(theirs.keys()).filter(|key| ours.get(*key) != theirs.get(*key)).collect();
        assert!(differ.is_empty(), "memory and server differ in {differ:?}");
    }

    pub(crate) fn enqueue(&mut self, partition: &str, n: usize) {
        let letter = &partition[..1];
        let tasks = (0..n).map(|n| task(&format!("{letter}{n}")));
        let command = self.queue.enqueue(partition, tasks).unwrap();
        self.run(command);
    }

    pub(crate) fn dequeue(&mut self, n: usize) -> Dequeued {
        let command: Dequeue = self.queue.dequeue(n).unwrap().lease(LEASE).unwrap();
        self.run(command)
    }

    /// Takes what there is, in calls of 1,000; acks it; answers how many there were.
    pub(crate) fn drain(&mut self) -> usize {
        let mut n = 0;
        loop {
            let dequeued = self.dequeue(1_000);
            if dequeued.deliveries.is_empty() && !dequeued.more {
                return n;
            }
            n += dequeued.deliveries.len();
            let done: Vec<_> = dequeued.deliveries.iter().map(Settlement::ack).collect();
            if !done.is_empty() {
                let command = self.queue.settle(done).unwrap();
                self.run(command);
            }
        }
    }

    pub(crate) fn keys(&mut self) -> Vec<String> {
        self.clocked.keys(NAME).into_keys().filter(|key| key != "request").collect()
    }
}
