//! Leases: kept while handlers run, lost, and of workers that are gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use vtrr_queue::worker::BoxError;
use vtrr_queue::{Command, Context, Listener, Owner, Queue, Released, Result, Runner, Task, Whereabouts, Worker};

use super::bed::{Bed, OnDrop, Working, events, eventually, in_time};

/// The first run of a task waits for ever, the next one ends; both tell.
fn waits_once(
    tell: tokio::sync::mpsc::UnboundedSender<&'static str>,
) -> impl Fn(Context, ()) -> std::pin::Pin<Box<dyn Future<Output = std::result::Result<(), BoxError>> + Send>> {
    move |context, ()| {
        let tell = tell.clone();
        Box::pin(async move {
            if context.deliveries() > 1 {
                tell.send("again")?;
                return Ok(());
            }
            let _dropped = OnDrop(tell.clone(), "dropped");
            tell.send("started")?;
            std::future::pending().await
        })
    }
}

pub(super) async fn leases_are_extended_while_handlers_run(runner: impl Runner + Clone + 'static) {
    let bed = Bed::new(runner);
    let (tell, mut told) = events();
    let worker = Working::start(bed.worker().lease(Duration::from_secs(3)).register("t", waits_once(tell)));
    let id = bed.enqueue_call("t").await;
    told.next().await;
    let left = async || match bed.find(&id).await.map(|found| found.whereabouts) {
        Some(Whereabouts::Leased { left, .. }) => left,
        other => panic!("{other:?}"),
    };
    for _ in 0..2 {
        let mut least = left().await;
        in_time(async {
            loop {
                let now = left().await;
                if now > least {
                    return;
                }
                least = now;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
    worker.stop().await;
    assert_eq!(told.rest(), ["dropped"]);
}

/// Somebody takes the lease away: at the next extension the worker learns of it.
pub(super) async fn a_lost_lease_drops_the_handler(runner: impl Runner + Clone + 'static) {
    let bed = Bed::new(runner);
    let (tell, mut told) = events();
    let builder = bed.worker().concurrency(1).lease(Duration::from_secs(2));
    let worker = Working::start(builder.register("t", waits_once(tell)));
    let id = bed.enqueue_call("t").await;
    assert_eq!(told.next().await, "started");
    let owner = match bed.find(&id).await.map(|found| found.whereabouts) {
        Some(Whereabouts::Leased { owner: Some(owner), .. }) => Owner::new(owner).unwrap(),
        other => panic!("{other:?}"),
    };
    assert_eq!(bed.runner.run(bed.queue.release_owner(owner, Released::Unrun)).await.unwrap().len(), 1);
    assert_eq!(told.take(2).await, ["dropped", "again"]);
    bed.drained().await;
    let summary = worker.stop().await;
    assert_eq!((summary.lost, summary.succeeded), (1, 1));
}

pub(super) async fn a_poisonous_task_is_a_dead_letter_and_others_run(runner: impl Runner + Clone + 'static) {
    let bed = Bed::new(runner);
    let id = bed.enqueue_call("t").await;
    // Twice a worker dies of it.
    for deliveries in 1..=2 {
        let dequeue = bed.queue.dequeue(1).unwrap().lease(Duration::from_millis(1)).unwrap();
        let dequeue = dequeue.max_deliveries(2).unwrap();
        let taken = async || bed.runner.run(dequeue.clone()).await.unwrap().deliveries;
        in_time(async { while taken().await.iter().all(|delivery| delivery.deliveries != deliveries) {} }).await;
    }
    bed.enqueue("b", (0..5).map(|_| Task::new("t", &()).unwrap())).await;
    let worker =
        Working::start(bed.worker().max_deliveries(2).register("t", async |_: Context, (): ()| Ok::<_, BoxError>(())));
    let letter = bed.dead_letters(1).await.remove(0);
    assert_eq!((letter.id, letter.deliveries), (id, 2));
    assert!(letter.error.contains("poison"), "{}", letter.error);
    bed.drained().await;
    assert_eq!(worker.stop().await.succeeded, 5);
}

pub(super) async fn a_task_of_a_dead_worker_is_delivered_again(runner: impl Runner + Clone + 'static) {
    let bed = Bed::new(runner);
    let (tell, mut told) = events();
    let worker = || Working::start(bed.worker().lease(Duration::from_secs(1)).register("t", waits_once(tell.clone())));
    let doomed = worker();
    bed.enqueue_call("t").await;
    assert_eq!(told.next().await, "started");
    doomed.kill();
    let heir = worker();
    assert_eq!(told.take(2).await, ["dropped", "again"]);
    bed.drained().await;
    assert_eq!(heir.stop().await.succeeded, 1);
}

/// Counts commands.
#[derive(Clone)]
struct Counting<R>(R, Arc<AtomicU32>);

impl<R: Runner> Runner for Counting<R> {
    async fn run<C: Command>(&self, command: C) -> Result<C::Reply> {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.run(command).await
    }
    async fn listen(&self, queue: &Queue) -> Result<Listener> {
        self.0.listen(queue).await
    }
}

pub(super) async fn an_idle_worker_costs_a_few_commands_per_second(runner: impl Runner + Clone + 'static) {
    let commands = Arc::new(AtomicU32::new(0));
    let bed = Bed::new(Counting(runner, Arc::clone(&commands)));
    let worker = Working::start(Worker::builder(bed.queue.clone(), bed.runner.clone()).concurrency(100));
    tokio::time::sleep(Duration::from_secs(3)).await;
    worker.stop().await;
    // Looks: at the start, for the listener (twice), one per second; a sweep or two; once whether the server evicts keys.
    let commands = commands.load(Ordering::SeqCst);
    assert!((2..=10).contains(&commands), "{commands}");
}

pub(super) async fn an_idle_worker_is_woken(runner: impl Runner + Clone + 'static) {
    let bed = Bed::new(runner);
    let (tell, mut told) = events();
    let hour = Duration::from_secs(3_600);
    let worker = Working::start(bed.worker().poll(hour).sweep_interval(hour).register("t", move |_: Context, (): ()| {
        tell.send(()).unwrap();
        async { Ok::<_, BoxError>(()) }
    }));
    for _ in 0..20 {
        bed.enqueue_call("t").await;
        told.next().await;
        eventually("settled", async || bed.stats().await.leased == 0).await;
    }
    assert_eq!(worker.stop().await.succeeded, 20);
}
