//! A bound on queued tasks: a call over it is refused whole. On a server and in memory, with equal answers and equal state.

use std::time::Duration;

use vtrr_queue::{Cause, Command, Enqueue, Enqueued, ErrorKind, Queue, Released, Result, Settlement, Step, Tagging};

use crate::busy::{enqueue, id, task};
use crate::clocked::{Dump, convert};
use crate::pair::{NAME, Pair};

const AT_ONCE: Duration = Duration::ZERO;

/// Bounds for all partitions and for each.
fn bounded(all: Option<u64>, partition: Option<u64>) -> Queue {
    let queue = Queue::new(NAME).unwrap();
    let queue = all.map_or(Ok(queue.clone()), |most| queue.max_queued(most)).unwrap();
    partition.map_or(Ok(queue.clone()), |most| queue.max_queued_per_partition(most)).unwrap()
}

/// All keys but those that remember requests.
fn keys(pair: &mut Pair) -> Dump {
    let mut keys = pair.clocked.keys(NAME);
    keys.retain(|key, _| key != "request" && key != "answer");
    keys
}

/// A call that is refused, and changes nothing at all. Answers why.
fn refused(pair: &mut Pair, command: Enqueue) -> String {
    let before = keys(pair);
    let error = pair.try_run(command).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert!(keys(pair) == before, "a refused call changed something");
    pair.compare();
    error.to_string()
}

fn stored(pair: &mut Pair, command: Enqueue) -> Enqueued {
    let enqueued = pair.run(command);
    pair.compare();
    enqueued
}

fn queued(pair: &mut Pair) -> u64 {
    pair.run(pair.queue.stats()).queued
}

#[test]
fn a_bound_of_a_partition_is_that_partitions_only() {
    for tagging in [Tagging::Head, Tagging::All] {
        let mut pair = Pair::new();
        let queue = bounded(None, Some(5)).tagging(tagging);
        refused(&mut pair, enqueue(&queue, "a", 0..6));
        stored(&mut pair, enqueue(&queue, "a", 0..3));
        let error = refused(&mut pair, enqueue(&queue, "a", 10..13));
        let why = "partition \"a\" is full: 3 queued and 3 to be added are more than max_queued_per_partition, 5";
        assert_eq!(error, format!("{why} (request a 10..13: 0 of 3 tasks stored)"));
        stored(&mut pair, enqueue(&queue, "b", 0..5));
        stored(&mut pair, enqueue(&queue, "a", 10..12));
        refused(&mut pair, enqueue(&queue, "a", 20..21));
        assert_eq!(queued(&mut pair), 10);
        // Who names no bound has none.
        stored(&mut pair, enqueue(&Queue::new(NAME).unwrap(), "a", 20..21));
    }
}

#[test]
fn a_bound_of_the_queue_is_for_all_partitions_together() {
    for tagging in [Tagging::Head, Tagging::All] {
        let mut pair = Pair::new();
        let queue = bounded(Some(5), None).tagging(tagging);
        refused(&mut pair, enqueue(&queue, "a", 0..6));
        stored(&mut pair, enqueue(&queue, "a", 0..4));
        let error = refused(&mut pair, enqueue(&queue, "b\"", 0..2));
        let why = r#"the queue is full: 4 queued and 2 to be added to partition "b\"" are more than max_queued, 5"#;
        assert!(error.starts_with(why), "{error}");
        stored(&mut pair, enqueue(&queue, "b\"", 0..1));
        refused(&mut pair, enqueue(&queue, "c", 0..1));
        // With both, either refuses.
        let both = bounded(Some(6), Some(1)).tagging(tagging);
        assert!(refused(&mut pair, enqueue(&both, "a", 10..11)).contains("max_queued_per_partition"));
        assert!(refused(&mut pair, enqueue(&both, "c", 0..2)).contains("max_queued_per_partition"));
        stored(&mut pair, enqueue(&both, "c", 0..1));
        assert!(refused(&mut pair, enqueue(&both, "d", 0..1)).contains("max_queued,"));
    }
}

#[test]
fn only_what_waits_counts_and_what_comes_back_is_never_refused() {
    for tagging in [Tagging::Head, Tagging::All] {
        let mut pair = Pair::new();
        let queue = bounded(Some(4), Some(4)).tagging(tagging);
        stored(&mut pair, enqueue(&queue, "a", 0..4));
        let held = pair.dequeue(4).deliveries;
        let later = vec![
            Settlement::retry(&held[1], Duration::from_secs(9), None).unwrap(),
            Settlement::fail(&held[2], Cause::Failed, "no"),
            Settlement::release(&held[3], Duration::from_secs(9), Released::Unrun).unwrap(),
        ];
        let command = queue.settle(later).unwrap();
        pair.run(command);
        // One is leased, two are delayed, one is dead.
        stored(&mut pair, enqueue(&queue, "a", 10..14));
        refused(&mut pair, enqueue(&queue, "a", 20..21));
        let command = queue.retry(&held[0], AT_ONCE).unwrap();
        pair.run(command);
        let command = queue.redrive([held[2].id.clone()]).unwrap();
        assert_eq!(pair.run(command), [true]);
        pair.wait(10);
        pair.run(queue.sweep());
        pair.compare();
        assert_eq!(queued(&mut pair), 8);
        let error = refused(&mut pair, enqueue(&queue, "a", 20..21));
        assert!(error.contains(": 8 queued and 1 to be added"), "{error}");
        // An id that is dead is stored anew, and counts.
        let failed = pair.dequeue(8).deliveries;
        let command = queue.settle(failed.iter().map(|it| Settlement::fail(it, Cause::Failed, "no")).collect()).unwrap();
        pair.run(command);
        stored(&mut pair, queue.enqueue("a", ["a0", "a1", "a2", "a3"].map(task)).unwrap());
        refused(&mut pair, queue.enqueue("a", ["a10"].map(task)).unwrap());
    }
}

#[test]
fn duplicates_do_not_count() {
    let mut pair = Pair::new();
    let queue = bounded(Some(3), Some(3));
    stored(&mut pair, queue.enqueue("a", ["x", "y", "x"].map(task)).unwrap());
    let all = stored(&mut pair, queue.enqueue("a", ["y", "z", "x", "z"].map(task)).unwrap());
    assert_eq!(all.duplicates, ["y", "x", "z"].map(id));
    stored(&mut pair, queue.enqueue("a", ["x", "y", "z"].map(task)).unwrap());
    refused(&mut pair, queue.enqueue("a", ["x", "w"].map(task)).unwrap());
}

#[test]
fn a_request_that_was_stored_is_not_refused_when_it_comes_again() {
    let mut pair = Pair::new();
    let queue = bounded(Some(3), Some(3));
    let first = enqueue(&queue, "a", 0..3);
    stored(&mut pair, first.clone());
    assert_eq!(stored(&mut pair, first).duplicates, []);
    // One that was refused is remembered as nothing.
    let second = enqueue(&queue, "a", 10..13);
    refused(&mut pair, second.clone());
    assert_eq!(pair.dequeue(3).deliveries.len(), 3);
    stored(&mut pair, second);
}

#[test]
fn a_long_call_is_refused_or_stored_whole() {
    for (all, partition) in [(Some(2_600), None), (None, Some(2_600))] {
        let mut pair = Pair::new();
        let queue = bounded(all, partition);
        stored(&mut pair, enqueue(&queue, "a", 0..101));
        let error = refused(&mut pair, enqueue(&queue, "a", 1_000..3_500));
        assert!(error.contains("101 queued and 2500 to be added"), "{error}");
        assert_eq!(pair.dequeue(1).deliveries.len(), 1);
        stored(&mut pair, enqueue(&queue, "a", 1_000..3_500));
        refused(&mut pair, enqueue(&queue, "a", 9_000..9_001));
        assert_eq!(queued(&mut pair), 2_600);
    }
}

/// One step of a command, on the server only.
fn one_call(pair: &mut Pair, command: &mut Enqueue) -> Result<Step<Enqueued>> {
    let answer = pair.clocked.send(&command.call()).unwrap();
    command.decode(convert(answer))
}

#[test]
fn what_others_store_between_two_chunks_of_a_call_stops_neither() {
    let mut pair = Pair::new();
    let queue = bounded(Some(2_600), None);
    let mut long = enqueue(&queue, "a", 0..2_500);
    assert!(matches!(one_call(&mut pair, &mut long), Ok(Step::Again)));
    pair.clocked.run(enqueue(&queue, "b", 0..1_600)).unwrap();
    assert_eq!(pair.clocked.run(enqueue(&queue, "b", 5_000..5_001)).unwrap_err().kind(), ErrorKind::Full);
    pair.clocked.run(long).unwrap();
    assert_eq!(pair.clocked.run(queue.stats()).unwrap().queued, 4_100);
}

/// A call that broke off after its first or second chunk was let in, and goes on whatever others stored meanwhile. When its
/// request is forgotten the rest is checked anew, and what it stored itself is still not counted twice.
#[test]
fn a_long_call_that_broke_off_is_not_refused_for_its_own_tasks() {
    for (done, forgotten) in [(1, false), (2, false), (1, true), (2, true)] {
        let mut pair = Pair::new();
        let queue = bounded(Some(2_500), Some(2_500));
        let mut broken = enqueue(&queue, "a", 0..2_500);
        for _ in 0..done {
            assert!(matches!(one_call(&mut pair, &mut broken), Ok(Step::Again)));
        }
        pair.clocked.run(enqueue(&Queue::new(NAME).unwrap(), "a", 9_000..9_001)).unwrap();
        let again = || enqueue(&queue, "a", 0..2_500);
        let mut all = 2_501;
        if forgotten {
            redis::cmd("DEL").arg("vtrr:q:request").exec(&mut pair.clocked.connection).unwrap();
            let error = pair.clocked.run(again()).unwrap_err();
            let rest = 2_500 - done * 1_000;
            let why = format!("{} queued and {rest} to be added", done * 1_000 + 1);
            assert!(error.kind() == ErrorKind::Full && error.to_string().contains(&why), "{error}");
            pair.clocked.run(queue.cancel([id("a9000")]).unwrap()).unwrap();
            all -= 1;
        }
        let enqueued = pair.clocked.run(again()).unwrap();
        assert_eq!(enqueued.duplicates.len(), if forgotten { done * 1_000 } else { 0 });
        assert_eq!(pair.clocked.run(queue.stats()).unwrap().queued, all);
    }
}

/// What is alive already lets nothing in: then the next chunk is the first to store something.
#[test]
fn the_first_chunk_that_stores_something_is_checked() {
    let mut pair = Pair::new();
    let queue = bounded(Some(1_500), None);
    stored(&mut pair, enqueue(&queue, "a", 0..1_000));
    let error = refused(&mut pair, enqueue(&queue, "a", 0..1_501));
    assert!(error.contains("1000 queued and 501 to be added"), "{error}");
    let all = stored(&mut pair, enqueue(&queue, "a", 0..1_500));
    assert_eq!((all.duplicates.len(), queued(&mut pair)), (1_000, 1_500));
}

#[test]
fn tasks_of_0_1_0_count_in_the_queue() {
    let mut pair = Pair::new();
    let queue = bounded(Some(3), None);
    redis::pipe()
        .zadd("vtrr:q:queue", "old", 1)
        .hset("vtrr:q:task", "old", r#"{"task_name": "t", "args": [], "kwargs": {}}"#)
        .exec(&mut pair.clocked.connection)
        .unwrap();
    let error = pair.clocked.run(enqueue(&queue, "a", 0..3)).unwrap_err();
    assert!(error.kind() == ErrorKind::Full && error.to_string().contains("1 queued and 3 to be added"), "{error}");
    pair.clocked.run(enqueue(&queue, "a", 0..2)).unwrap();
    assert_eq!(pair.clocked.run(queue.stats()).unwrap().queued, 3);
}

#[test]
fn a_bound_of_nothing_is_refused() {
    let queue = Queue::new(NAME).unwrap();
    let command = queue.enqueue("a", [task("a0")]).unwrap();
    for (error, name) in [
        (queue.clone().max_queued(0).unwrap_err(), "max_queued"),
        (queue.max_queued_per_partition(0).unwrap_err(), "max_queued_per_partition"),
        (command.clone().max_queued(0).unwrap_err(), "max_queued"),
        (command.max_queued_per_partition(0).unwrap_err(), "max_queued_per_partition"),
    ] {
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert_eq!(error.to_string(), format!("{name} must be at least 1, not 0"));
    }
}
