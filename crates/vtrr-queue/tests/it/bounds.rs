//! A call does a bounded piece of work, and the next one goes on: large amounts, not timed. What waits at once is 10,000
//! where a call takes 1,000 or 100. On a server and in memory, with equal answers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use vtrr_queue::{Settlement, Task, Whereabouts};

use crate::busy::{id, owner, task};
use crate::pair::{LEASE, NAME, Pair};

/// Many tasks that are due at once, after leases that ran out or delays.
fn ten_thousand_in_flight(partitions: usize) -> Pair {
    let mut pair = Pair::new();
    for partition in 0..partitions {
        let tasks = (0..10_000 / partitions).map(|n| task(&format!("{partition}-{n}")));
        let command = pair.queue.enqueue(format!("p{partition}"), tasks).unwrap();
        pair.run(command);
    }
    pair
}

#[test]
fn ten_thousand_leases_that_run_out_at_once_are_swept() {
    for partitions in [1, 500] {
        let mut pair = ten_thousand_in_flight(partitions);
        let each = if partitions == 1 { 1_000 } else { 250 };
        for worker in 0..10_000 / each {
            let command = pair.queue.dequeue(1_000).unwrap().lease(LEASE).unwrap();
            let command = command.owner(owner(&format!("w{worker}")), Vec::new());
            assert_eq!(pair.run(command).deliveries.len(), each);
        }
        pair.wait(31);
        let mut sweeps = Vec::new();
        loop {
            let swept = pair.sweep();
            sweeps.push(swept.reclaimed);
            if !swept.more {
                break;
            }
        }
        assert_eq!(sweeps.iter().sum::<u64>(), 10_000);
        assert!(sweeps.iter().all(|n| *n <= 250), "{sweeps:?}");
        let keys = pair.keys();
        for key in ["lease", "running", "owner"] {
            assert!(!keys.iter().any(|it| it == key), "{keys:?}");
        }
        pair.compare();
        assert_eq!(pair.drain(), 10_000);
        assert_eq!(pair.keys(), ["meta"]);
    }
}

#[test]
fn ten_thousand_leases_that_run_out_at_once_are_dequeued_again() {
    let mut pair = ten_thousand_in_flight(4);
    for _ in 0..10 {
        assert_eq!(pair.dequeue(1_000).deliveries.len(), 1_000);
    }
    pair.wait(31);
    let mut ids = BTreeSet::new();
    for _ in 0..100 {
        let dequeued = pair.dequeue(100);
        assert!(dequeued.deliveries.len() == 100 && dequeued.more);
        assert!(dequeued.deliveries.iter().all(|it| it.deliveries == 2));
        ids.extend(dequeued.deliveries.into_iter().map(|it| it.id));
    }
    assert_eq!(ids.len(), 10_000);
    assert!(!pair.dequeue(100).more);
    pair.compare();
}

#[test]
fn ten_thousand_delayed_tasks_that_are_due_at_once_come_back() {
    let mut pair = ten_thousand_in_flight(4);
    for _ in 0..10 {
        let deliveries = pair.dequeue(1_000).deliveries;
        let later = |it| Settlement::retry(it, Duration::from_secs(60), None).unwrap();
        let command = pair.queue.settle(deliveries.iter().map(later).collect()).unwrap();
        pair.run(command);
    }
    let waiting = pair.dequeue(10);
    assert!(waiting.deliveries.is_empty() && !waiting.more && waiting.next_due == Some(Duration::from_secs(60)));
    pair.wait(61);
    // Half by dequeue, 100 at a time; half by sweep.
    for _ in 0..50 {
        let dequeued = pair.dequeue(0);
        assert!(dequeued.more);
    }
    let swept: Vec<_> = (0..20).map(|_| pair.sweep()).map(|swept| (swept.due, swept.more)).collect();
    assert_eq!(swept, [(250, true); 20]);
    assert!(!pair.sweep().more);
    pair.compare();
    assert_eq!(pair.drain(), 10_000);
    assert_eq!(pair.keys(), ["meta"]);
}

/// 5,000 cancelled tasks between two others: a call skips 1,000 of them, and they cost their partition nothing.
#[test]
fn cancelled_tasks_in_the_way_are_skipped_uncharged() {
    for company in [0, 20] {
        let mut pair = Pair::new();
        pair.enqueue("a", 5_002);
        if company > 0 {
            pair.enqueue("b", company);
        }
        for call in 0..5 {
            let ids = (1..=1_000).map(|n| id(&format!("a{}", 1_000 * call + n)));
            let command = pair.queue.cancel(ids).unwrap();
            pair.run(command);
        }
        let (mut served, mut calls) = (Vec::new(), 0);
        loop {
            let dequeued = pair.dequeue(1);
            calls += 1;
            served.extend(dequeued.deliveries.iter().map(|it| it.id.to_string()));
            if dequeued.deliveries.is_empty() && !dequeued.more {
                break;
            }
            assert!(calls <= 2 + company + 6, "{served:?}");
        }
        let (own, others): (Vec<_>, Vec<_>) = served.iter().partition(|id| id.starts_with('a'));
        assert_eq!((own.len(), others.len()), (2, company), "{served:?}");
        let position = served.iter().position(|id| id == "a5001").unwrap();
        // Not further behind than the calls that skip took.
        assert!(position <= 2 + 6, "{served:?}");
        pair.compare();
        let start = |pair: &mut Pair, id: &str| -> f64 {
            let held = &pair.clocked.dump(NAME)["held"][id];
            held.split(' ').nth(7).unwrap().parse().unwrap()
        };
        assert_eq!(start(&mut pair, "a5001"), start(&mut pair, "a0") + 1.0);
    }
}

/// A thousand partitions of 30 tasks each.
fn thousand_partitions(pair: &mut Pair) {
    for partition in 0..1_000 {
        let tasks = (0..30).map(|n| task(&format!("{partition}-{n}")));
        let command = pair.queue.enqueue(format!("p{partition}"), tasks).unwrap();
        pair.run(command);
    }
}

#[test]
fn a_sweep_of_a_thousand_partitions_finds_every_stolen_head() {
    let mut pair = Pair::new();
    thousand_partitions(&mut pair);
    let mut stolen = redis::pipe();
    for partition in (0..1_000).filter(|n| n % 10 < 7) {
        stolen.zrem("vtrr:q:queue", format!("{partition}-0")).hdel("vtrr:q:task", format!("{partition}-0"));
    }
    stolen.exec(&mut pair.clocked.connection).unwrap();
    let mut healed = 0;
    for calls in 1.. {
        let swept = pair.clocked.run(pair.queue.sweep()).unwrap();
        healed += swept.healed;
        assert!(calls <= 10);
        if !swept.more && !swept.unfinished {
            break;
        }
    }
    assert_eq!(healed, 700);
    let heads = &pair.clocked.keys(NAME)["queue"];
    assert_eq!(heads.len(), 1_000);
    assert!((0..1_000).all(|n| heads.contains_key(&format!("{n}-{}", u8::from(n % 10 < 7)))));
    let stats = pair.clocked.run(pair.queue.stats()).unwrap();
    assert_eq!(stats.queued, 29_300);
}

#[test]
fn a_thousand_partitions_are_flattened_and_served_in_order() {
    let mut pair = Pair::new();
    thousand_partitions(&mut pair);
    let flattened = pair.run(pair.queue.flatten());
    assert_eq!((flattened.in_lanes, flattened.leased), (0, 0));
    pair.compare();
    let mut next: BTreeMap<String, u32> = BTreeMap::new();
    for call in 1..=4 * 30 {
        let dequeued = pair.dequeue(1_000);
        assert_eq!((dequeued.deliveries.len(), dequeued.more), (250, call < 4 * 30));
        for delivery in dequeued.deliveries {
            let (partition, number) = delivery.id.as_str().split_once('-').unwrap();
            let next = next.entry(partition.to_owned()).or_default();
            assert_eq!(number.parse::<u32>().unwrap(), *next);
            *next += 1;
        }
        // The round is fair: at its end everybody has had as many.
        assert!(call % 4 != 0 || next.values().collect::<BTreeSet<_>>().len() == 1);
    }
    assert_eq!(next.len(), 1_000);
}

#[test]
fn a_thousand_partitions_are_purged() {
    let mut pair = Pair::new();
    thousand_partitions(&mut pair);
    let purged = pair.run(pair.queue.purge_all());
    assert_eq!((purged.purged, purged.leased), (30_000, 0));
    pair.compare();
    assert_eq!(pair.keys(), ["meta"]);
    assert_eq!(pair.run(pair.queue.stats()).partitions, 0);
}

#[test]
fn partitions_are_listed_by_the_thousand() {
    let mut pair = Pair::new();
    thousand_partitions(&mut pair);
    let rows = pair.clocked.run(pair.queue.partitions()).unwrap();
    let names: BTreeSet<_> = rows.iter().map(|row| row.partition.as_str()).collect();
    assert_eq!(names.len(), 1_000);
    assert!(rows.iter().all(|row| row.queued == 30));
}

#[test]
fn a_dequeue_of_a_thousand_is_bounded_in_bytes() {
    let mut pair = Pair::new();
    let text = "x".repeat(10_000);
    for partition in ["a", "b", "c"] {
        let tasks = (0..400).map(|n| Task::new("t", &[&text]).unwrap().id(id(&format!("{partition}{n}"))));
        let command = pair.queue.enqueue(partition, tasks).unwrap();
        pair.run(command);
    }
    let dequeued = pair.dequeue(1_000);
    let bytes: usize = dequeued.deliveries.iter().map(|it| it.payload.as_bytes().len()).sum();
    assert!(dequeued.more && (4 << 20..(4 << 20) + 11_000).contains(&bytes), "{bytes}");
    let first: Vec<_> = dequeued.deliveries.iter().take(4).map(|it| it.id.as_str()).collect();
    assert_eq!(first, ["a0", "b0", "c0", "a1"]);
    assert_eq!(dequeued.deliveries.len() + pair.drain(), 1_200);
    pair.compare();
}

#[test]
fn three_hundred_thousand_tasks_in_one_call() {
    const TASKS: usize = 300_000;
    let mut pair = Pair::new();
    let queue = pair.queue.clone();
    let tasks = (0..TASKS).map(|n| Task::new("t", &(n,)).unwrap());
    let enqueued = pair.clocked.run(queue.enqueue("a", tasks).unwrap()).unwrap();
    assert_eq!((enqueued.ids.len(), enqueued.duplicates.len()), (TASKS, 0));
    pair.clocked.run(queue.enqueue("b", (0..3).map(|n| task(&format!("b{n}")))).unwrap()).unwrap();
    assert_eq!(pair.clocked.run(queue.stats()).unwrap().queued, TASKS as u64 + 3);
    let last = pair.clocked.run(queue.find(enqueued.ids[TASKS - 1].clone())).unwrap().unwrap();
    assert_eq!(last.whereabouts, Whereabouts::Waiting);
    // C49: the newcomer is not behind them.
    let served = pair.clocked.run(queue.dequeue(1_000).unwrap()).unwrap().deliveries;
    let (others, own): (Vec<_>, Vec<_>) = served.iter().enumerate().partition(|(_, it)| it.id.as_str().starts_with('b'));
    assert!(others.iter().map(|(at, _)| *at).max() <= Some(6), "{others:?}");
    let own: Vec<_> = own.into_iter().map(|(_, it)| &it.id).collect();
    assert_eq!(own, enqueued.ids[..997].iter().collect::<Vec<_>>());
    // The rest is purged, in many steps.
    let purged = pair.clocked.run(queue.purge("a").unwrap()).unwrap();
    assert_eq!((purged.purged, purged.leased), (TASKS as u64 - 997, 997));
    assert_eq!(pair.keys(), ["held", "lease", "meta", "running"]);
}
