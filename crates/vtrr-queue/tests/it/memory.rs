//! The memory runner: who comes in between the steps of a long command, and whose clock it goes by.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use vtrr_queue::worker::Options;
use vtrr_queue::{
    Call, Command, Context, ErrorKind, Listener, Memory, Queue, QueueName, Result, Runner, Settlement, State, Step, Task,
    Value, Worker,
};

use crate::busy::{enqueue, task};

/// A command that tells of its steps, from 0, while the queue is locked for them.
struct Watched<C, F>(C, u32, F);

impl<C: Command, F: FnMut(u32) + Send> Command for Watched<C, F> {
    type Reply = C::Reply;

    fn queue(&self) -> &QueueName {
        self.0.queue()
    }
    fn call(&self) -> Call {
        self.0.call()
    }
    fn decode(&mut self, answer: Value) -> Result<Step<C::Reply>> {
        self.0.decode(answer)
    }
    fn apply(&mut self, state: &mut State) -> Result<Step<C::Reply>> {
        (self.2)(self.1);
        self.1 += 1;
        self.0.apply(state)
    }
    fn interrupted(&self, error: vtrr_queue::Error) -> vtrr_queue::Error {
        self.0.interrupted(error)
    }
}

#[test]
fn a_long_call_holds_up_no_other_queue() {
    let (memory, long, other) = (Memory::new(), Queue::new("long").unwrap(), Queue::new("other").unwrap());
    let mut steps = 0;
    thread::scope(|scope| {
        let (memory, other) = (&memory, &other);
        let watched = Watched(enqueue(&long, "a", 0..2_500), 0, |step| {
            steps = step + 1;
            let (tell, told) = mpsc::channel();
            scope.spawn(move || tell.send(memory.run_now(enqueue(other, "b", step..step + 1))));
            assert!(told.recv_timeout(Duration::from_secs(20)).expect("the other queue waits").is_ok());
        });
        memory.run_now(watched).unwrap();
    });
    assert_eq!((steps, memory.run_now(other.stats()).unwrap().queued), (3, 3));
    assert_eq!(memory.run_now(long.stats()).unwrap().queued, 2_500);
}

/// A command that goes on until somebody else has been let in.
struct Endless {
    queue: Queue,
    knocks: Arc<AtomicBool>,
    came_in: Arc<AtomicBool>,
    steps: u32,
}

impl Command for Endless {
    type Reply = u32;

    fn queue(&self) -> &QueueName {
        self.queue.name()
    }
    fn call(&self) -> Call {
        self.queue.stats().call()
    }
    fn decode(&mut self, _: Value) -> Result<Step<u32>> {
        unreachable!()
    }
    fn apply(&mut self, _: &mut State) -> Result<Step<u32>> {
        self.steps += u32::from(self.knocks.load(Ordering::SeqCst));
        thread::yield_now();
        let ends = self.came_in.load(Ordering::SeqCst) || self.steps > 3_000_000;
        Ok(if ends { Step::Done(self.steps) } else { Step::Again })
    }
}

#[test]
fn who_waits_for_the_queue_comes_in_between_two_steps_of_a_long_call() {
    let (memory, queue) = (Memory::new(), Queue::new("q").unwrap());
    let (knocks, came_in) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let endless = Endless { queue: queue.clone(), knocks: Arc::clone(&knocks), came_in: Arc::clone(&came_in), steps: 0 };
    thread::scope(|scope| {
        scope.spawn(|| {
            knocks.store(true, Ordering::SeqCst);
            memory.run_now(queue.stats()).unwrap();
            came_in.store(true, Ordering::SeqCst);
        });
        let steps = memory.run_now(endless).unwrap();
        assert!(came_in.load(Ordering::SeqCst), "nobody came in within {steps} steps");
    });
}

#[tokio::test]
async fn other_tasks_of_the_runtime_run_between_two_chunks_of_a_long_call() {
    let (memory, queue) = (Memory::new(), Queue::new("q").unwrap());
    let turns = Arc::new(AtomicU32::new(0));
    let counting = Arc::clone(&turns);
    let neighbour = tokio::spawn(async move {
        loop {
            counting.fetch_add(1, Ordering::SeqCst);
            tokio::task::yield_now().await;
        }
    });
    memory.run(enqueue(&queue, "a", 0..3_500)).await.unwrap();
    neighbour.abort();
    assert!(turns.load(Ordering::SeqCst) >= 3, "{turns:?}");
}

/// As on a server: each chunk is stored whole, and the error tells how many were.
#[test]
fn a_long_call_that_is_refused_half_way_tells_what_is_stored() {
    let (memory, queue) = (Memory::new(), Queue::new("q").unwrap());
    memory.run_now(queue.enqueue("b", [task("a3001")]).unwrap()).unwrap();
    let long = queue.enqueue("a", (0..3_500).map(|n| task(&format!("a{n}")))).unwrap().request("r").unwrap();
    let error = memory.run_now(long).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    let unfinished = error.unfinished().unwrap();
    assert_eq!((unfinished.stored, unfinished.ids.len(), unfinished.request.as_str()), (3_000, 3_500, "r"));
    assert_eq!(memory.run_now(queue.stats()).unwrap().queued, 3_001);
}

/// Later than any request is remembered, and when some of the tasks are done.
#[tokio::test(start_paused = true)]
async fn a_long_call_that_broke_off_is_resumed_behind_what_it_has_stored() {
    let (memory, queue) = (Memory::new(), Queue::new("q").unwrap());
    memory.run_now(queue.enqueue("b", [task("a3001")]).unwrap()).unwrap();
    let tasks = |n: u32| (0..n).map(|n| if n == 3_001 { task("a3001") } else { Task::new("t", &(n,)).unwrap() });
    let long = |n| queue.enqueue("a", tasks(n)).unwrap();
    let unfinished = memory.run_now(long(3_500)).unwrap_err().unfinished().unwrap().clone();
    memory.run_now(queue.cancel([unfinished.ids[3_001].clone()]).unwrap()).unwrap();
    let done = memory.run_now(queue.dequeue(1_000).unwrap()).unwrap().deliveries;
    memory.run_now(queue.settle(done.iter().map(Settlement::ack).collect()).unwrap()).unwrap();
    tokio::time::advance(Duration::from_secs(300)).await;
    let enqueued = memory.run_now(long(3_500).resume(&unfinished).unwrap()).unwrap();
    assert_eq!((&enqueued.ids, enqueued.duplicates.len()), (&unfinished.ids, 0));
    let stats = memory.run_now(queue.stats()).unwrap();
    assert_eq!((stats.queued, stats.totals["enqueued"]), (2_500, 3_501));
    for other in [long(3_499), long(3_501), queue.enqueue("a", tasks(3_499).chain([task("x")])).unwrap()] {
        let error = other.resume(&unfinished).unwrap_err().to_string();
        assert!(error.starts_with("tasks must be the 3500 of the call that broke off, not 3"), "{error}");
    }
}

#[test]
fn without_a_runtime_time_is_the_machines() {
    let (memory, queue) = (Memory::new(), Queue::new("q").unwrap());
    memory.run_now(enqueue(&queue, "a", 0..1)).unwrap();
    let delivery = memory.run_now(queue.dequeue(1).unwrap()).unwrap().deliveries.remove(0);
    let at = Duration::from_millis(delivery.payload.enqueued_at_ms().unwrap());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    assert!(now.abs_diff(at) < Duration::from_secs(3_600), "{at:?}, now {now:?}");
}

#[tokio::test(start_paused = true)]
async fn a_paused_clock_is_the_clock_of_the_queue() {
    let (memory, queue) = (Memory::new(), Queue::new("q").unwrap());
    let (second, ms) = (Duration::from_secs(1), Duration::from_millis(1));
    memory.run_now(enqueue(&queue, "a", 0..1)).unwrap();
    let dequeue = || memory.run_now(queue.dequeue(1).unwrap().lease(5 * second).unwrap()).unwrap();
    let first = dequeue().deliveries.remove(0);
    memory.run_now(queue.retry(&first, 20 * second).unwrap()).unwrap();
    tokio::time::advance(19_999 * ms).await;
    let early = dequeue();
    assert_eq!((early.deliveries.len(), early.next_due), (0, Some(ms)));
    tokio::time::advance(ms).await;
    assert_eq!(dequeue().deliveries[0].deliveries, 2);
    // The lease runs out by the same clock.
    tokio::time::advance(5 * second).await;
    assert_eq!(dequeue().deliveries[0].deliveries, 3);
    // Without the runtime's clock, time stands where it stood, and does not go back.
    let moved = thread::scope(|scope| scope.spawn(|| memory.run_now(queue.sweep()).unwrap()).join().unwrap());
    assert!(!moved.more);
    assert_eq!(memory.run_now(queue.stats()).unwrap().leased, 1);
}

/// Counts commands.
#[derive(Clone, Default)]
struct Counting(Arc<Memory>, Arc<AtomicU32>);

impl Runner for Counting {
    async fn run<C: Command>(&self, command: C) -> Result<C::Reply> {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.run(command).await
    }
    async fn listen(&self, queue: &Queue) -> Result<Listener> {
        self.0.listen(queue).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_on_a_paused_clock_waits_for_a_retry_without_spinning() {
    let (runner, queue) = (Counting::default(), Queue::new("q").unwrap());
    runner.run(queue.enqueue("u", [Task::new("flaky", &()).unwrap()]).unwrap()).await.unwrap();
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let flaky = move |context: Context, (): ()| {
        tell.send((context.retries(), tokio::time::Instant::now())).unwrap();
        async move { if context.retries() == 0 { Err("down") } else { Ok(()) } }
    };
    let options = Options::new().autoretry_any().retry_countdown(Duration::from_secs(20));
    let worker = Worker::builder(queue.clone(), runner.clone()).register_with("flaky", options, flaky).build().unwrap();
    let summary = worker.run_until(tokio::time::sleep(Duration::from_secs(60))).await.unwrap();
    assert_eq!((summary.retried, summary.succeeded), (1, 1), "{summary:?}");
    let (first, second) = (told.recv().await.unwrap(), told.recv().await.unwrap());
    let between = second.1 - first.1;
    assert!(
        (0, 1) == (first.0, second.0) && between >= Duration::from_secs(20) && between < Duration::from_secs(21),
        "{between:?}"
    );
    // A look a second and a sweep each five, for a minute.
    let commands = runner.1.load(Ordering::SeqCst);
    assert!(commands < 100, "{commands}");
}
