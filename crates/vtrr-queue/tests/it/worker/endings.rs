//! Concurrency, time limits, shutdown, unknown names.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Barrier, Semaphore};
use vtrr_queue::worker::{BoxError, Options};
use vtrr_queue::{Context, Runner, Task};

use super::bed::{Bed, OnDrop, Working, events, eventually};

async fn forever(_: Context, (): ()) -> Result<(), BoxError> {
    std::future::pending().await
}

fn calls(n: usize) -> impl Iterator<Item = Task> {
    (0..n).map(|_| Task::new("t", &()).unwrap())
}

/// Three at a time pass a barrier that opens for three.
pub(super) async fn concurrency_is_reached_and_never_exceeded(runner: impl Runner + Clone + 'static) {
    let bed = Bed::new(runner);
    let (running, most, barrier) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)), Arc::new(Barrier::new(3)));
    bed.enqueue("a", calls(15)).await;
    bed.enqueue("b", calls(15)).await;
    let counting = (Arc::clone(&running), Arc::clone(&most));
    let worker = Working::start(bed.worker().concurrency(3).register("t", move |_: Context, (): ()| {
        let ((running, most), barrier) = (counting.clone(), Arc::clone(&barrier));
        async move {
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            barrier.wait().await;
            running.fetch_sub(1, Ordering::SeqCst);
            Ok::<_, BoxError>(())
        }
    }));
    bed.drained().await;
    assert_eq!((worker.stop().await.succeeded, most.load(Ordering::SeqCst)), (30, 3));
}

pub(super) async fn a_soft_limit_is_seen_by_the_handler(runner: impl Runner + Clone + 'static) {
    let bed = Bed::new(runner);
    let (tell, mut told) = events();
    let options = Options::new().soft_time_limit(Duration::from_millis(10));
    let worker = Working::start(bed.worker().register_with("t", options, move |context: Context, (): ()| {
        let tell = tell.clone();
        async move {
            let before = context.is_cancelled();
            context.cancelled().await;
            tell.send((before, context.is_cancelled()))?;
            Ok::<_, BoxError>(())
        }
    }));
    bed.enqueue_call("t").await;
    assert_eq!(told.next().await, (false, true));
    bed.drained().await;
    assert_eq!(worker.stop().await.succeeded, 1);
}

pub(super) async fn a_time_limit_drops_the_handler(runner: impl Runner + Clone + 'static) {
    let bed = Bed::new(runner);
    let (tell, mut told) = events();
    let options = Options::new().autoretry_any().time_limit(Duration::from_millis(10));
    let worker = Working::start(bed.worker().register_with("t", options, move |context, (): ()| {
        let dropped = OnDrop(tell.clone(), ());
        async move {
            let _dropped = dropped;
            forever(context, ()).await
        }
    }));
    bed.enqueue_call("t").await;
    told.next().await;
    let letter = bed.dead_letters(1).await.remove(0);
    assert_eq!((letter.error.as_str(), letter.deliveries), ("time limit of 10ms exceeded", 1));
    assert_eq!(worker.stop().await.failed, 1);
}

pub(super) async fn a_stopping_worker_lets_handlers_end(runner: impl Runner + Clone + 'static) {
    let bed = Bed::new(runner);
    let (tell, mut told) = events();
    let may_end = Arc::new(Semaphore::new(0));
    let gate = Arc::clone(&may_end);
    let builder = bed.worker().concurrency(2).grace(Duration::from_secs(3_600));
    let worker = Working::start(builder.register("t", move |_: Context, (): ()| {
        let (tell, gate) = (tell.clone(), Arc::clone(&gate));
        async move {
            tell.send(())?;
            gate.acquire().await?.forget();
            Ok::<_, BoxError>(())
        }
    }));
    bed.enqueue("p", calls(5)).await;
    told.take(2).await;
    let stopped = worker.tell_to_stop();
    // One ends, and nothing takes its place; then the other.
    may_end.add_permits(1);
    eventually("one settled", async || bed.stats().await.leased == 1).await;
    may_end.add_permits(1);
    let summary = stopped.await;
    assert_eq!((summary.succeeded, summary.released, told.rest().len()), (2, 0, 0));
    assert_eq!((bed.stats().await.queued, bed.stats().await.leased), (3, 0));
}

pub(super) async fn a_stopping_worker_releases_what_still_runs_without_blame(runner: impl Runner + Clone + 'static) {
    let bed = Bed::new(runner);
    let (tell, mut told) = events();
    // With `max_deliveries` 1 any blame would be a dead letter.
    let worker = Working::start(bed.worker().max_deliveries(1).register("t", move |context: Context, (): ()| {
        tell.send("started").unwrap();
        let dropped = OnDrop(tell.clone(), "dropped");
        async move {
            let _dropped = dropped;
            forever(context, ()).await
        }
    }));
    let id = bed.enqueue_call("t").await;
    assert_eq!(told.next().await, "started");
    assert_eq!(worker.stop().await.released, 1);
    assert_eq!(told.rest(), ["dropped"]);
    let (tell, mut told) = events();
    let worker = Working::start(bed.worker().max_deliveries(1).register("t", move |context: Context, (): ()| {
        tell.send((context.id().clone(), context.deliveries(), context.retries())).unwrap();
        async { Ok::<_, BoxError>(()) }
    }));
    assert_eq!(told.next().await, (id, 2, 0));
    bed.drained().await;
    assert_eq!(worker.stop().await.succeeded, 1);
}

pub(super) async fn an_unknown_task_waits_for_a_worker_that_knows_it(runner: impl Runner + Clone + 'static) {
    let bed = Bed::new(runner);
    let old =
        Working::start(bed.worker().max_deliveries(1_000).unknown_delay(Duration::from_millis(10)).register("old", forever));
    let id = bed.enqueue_call("t").await;
    eventually("a release", async || bed.stats().await.totals.get("released").is_some_and(|n| *n >= 2)).await;
    assert!(old.stop().await.released >= 2);
    let (tell, mut told) = events();
    let new = Working::start(bed.worker().max_deliveries(1_000).register("t", move |context: Context, (): ()| {
        tell.send((context.id().clone(), context.retries())).unwrap();
        async { Ok::<_, BoxError>(()) }
    }));
    assert_eq!(told.next().await, (id, 0));
    bed.drained().await;
    assert_eq!(new.stop().await.succeeded, 1);
}

pub(super) async fn a_task_that_nobody_knows_is_a_dead_letter_in_the_end(runner: impl Runner + Clone + 'static) {
    let bed = Bed::new(runner);
    let worker = Working::start(bed.worker().max_deliveries(3).register("other", forever));
    let id = bed.enqueue_call("t").await;
    let letter = bed.dead_letters(1).await.remove(0);
    assert_eq!((letter.id, letter.deliveries), (id, 3));
    assert!(letter.error.ends_with("the last one: no handler for a task named \"t\""), "{}", letter.error);
    assert_eq!(worker.stop().await.released, 3);
}

pub(super) async fn five_thousand_tasks_are_done_once_each(runner: impl Runner + Clone + 'static) {
    let bed = Bed::new(runner);
    let (tell, mut told) = events();
    let worker = |concurrency| {
        let tell = tell.clone();
        Working::start(bed.worker().concurrency(concurrency).register("t", move |context: Context, (): ()| {
            tell.send(context.id().clone()).unwrap();
            async { Ok::<_, BoxError>(()) }
        }))
    };
    let workers = [worker(100), worker(7), worker(2_000)];
    for partition in 0..10 {
        bed.enqueue(&partition.to_string(), calls(500)).await;
    }
    let mut ids = told.take(5_000).await;
    bed.drained().await;
    let mut succeeded = 0;
    for worker in workers {
        succeeded += worker.stop().await.succeeded;
    }
    ids.sort();
    ids.dedup();
    assert_eq!((ids.len(), succeeded, told.rest().len()), (5_000, 5_000, 0));
}
