//! Traps that fair queues fall into.

use std::time::Duration;

use proptest::prelude::*;
use vtrr_queue::{Partition, Queue, Settlement, Tagging, TaskId, Weight};

use super::cases;
use super::world::{World, id_of, plain, task};

fn count(served: &[String], partition: &str) -> usize {
    served.iter().filter(|served| *served == partition).count()
}

proptest! {
    #![proptest_config(cases(60))]

    #[test]
    fn a_partition_refilled_after_each_service_gets_no_more_than_its_share(
        share in prop::sample::select(vec![0.125, 0.5, 1.0, 3.0, 9.0]),
        while_leased in any::<bool>(),
        all in any::<bool>(),
    ) {
        let mut world = World::new(if all { Tagging::All } else { Tagging::Head });
        world.share("T", share);
        world.add("B", (0..600).map(|_| plain(1)));
        world.add("T", [plain(1)]);
        let mut served = Vec::new();
        for _ in 0..300 {
            let deliveries = world.take(1);
            let partition = deliveries[0].payload.partition().unwrap().as_str().to_owned();
            if while_leased && partition == "T" {
                world.add("T", [plain(1)]);
            }
            world.settle(vec![Settlement::ack(&deliveries[0])]);
            if !while_leased && partition == "T" {
                world.add("T", [plain(1)]);
            }
            served.push(partition);
        }
        let fair = 300.0 * share / (share + 1.0);
        assert!(count(&served, "T") as f64 <= fair + 1.0 + share, "{} where {fair} is fair", count(&served, "T"));
    }
}

#[test]
fn a_fresh_partition_for_every_task_does_not_starve_a_backlog() {
    for every in [1, 2] {
        let mut world = World::head();
        world.add("BIG", (0..1_000).map(|_| plain(1)));
        let (mut ahead, mut waited, mut big) = (1, 0, 0_u32);
        for i in 0..1_800 {
            if i % every == 0 {
                world.add(&format!("fresh{i}"), [plain(1)]);
            }
            if world.serve_partitions(1) == ["BIG"] {
                big += 1;
                (ahead, waited) = (world.see().tags.len(), 0);
            } else {
                waited += 1;
                assert!(waited <= ahead, "between two turns of BIG, no more than were there at the first");
            }
        }
        // At two turns for each fresh one, half of them are BIG's; at one, the fresh ones queue up, and each is as good as BIG.
        assert!(big >= if every == 2 { 890 } else { 59 }, "{big}");
    }
}

#[test]
fn a_million_partitions_that_came_and_went_leave_no_records() {
    let mut world = World::head();
    world.share("LONG", 0.001);
    world.add("LONG", [plain(1_000_000), plain(1)]);
    world.serve(1);
    world.add("LONG", [plain(1)]);
    let mut settled = Vec::new();
    for round in 0..10_000 {
        for i in 0..100 {
            world.add(&format!("t{}", round * 100 + i), [plain(1)]);
        }
        let command = world.queue.dequeue(100).unwrap().settle(std::mem::take(&mut settled)).unwrap();
        settled = world.run(command).unwrap().deliveries.iter().map(Settlement::ack).collect();
        // Request ids are remembered for a minute.
        world.now_ms += 1_000;
    }
    world.settle(settled);
    let seen = world.see();
    let records: Vec<_> = ["partition_virtual_time", "idle", "head", "running", "held"].map(|key| seen.count(key)).into();
    assert!(seen.v > 0.0 && records.iter().all(|n| *n <= 110), "{records:?}");
    world.take(1);
    assert!(world.v() > 1_000.0);
}

#[test]
fn one_off_tenants_leave_no_records_while_another_waits() {
    // C46: whether LONG's tasks wait, or are worked on while nothing waits.
    for waiting in [true, false] {
        let mut world = World::head();
        if waiting {
            world.share("LONG", 0.001);
        }
        world.backlog("LONG", 3);
        let mut held = if waiting { Vec::new() } else { world.take(3) };
        for i in 0..3_000 {
            if i % 30 == 0 {
                // LONG's tasks come at 1,000: a hundred rounds do not reach it.
                assert!(world.v() < 1_000.0);
            }
            world.add(&format!("t{i}"), [plain(1)]);
            if i % 30 == 29 {
                assert_eq!(count(&world.serve_partitions(30), "LONG"), 0);
                let seen = world.see();
                for key in ["partition_virtual_time", "idle", "head"] {
                    assert!(seen.count(key) <= 1 + 30, "{key}: {}", seen.count(key));
                }
            }
        }
        if waiting {
            held = world.take(3);
        }
        assert_eq!(held.len(), 3);
        world.settle(held.iter().map(Settlement::ack).collect());
        assert!(world.see().left_over().is_empty());
    }
}

#[test]
fn a_partition_whose_tasks_are_all_delayed_holds_nothing_back_and_earns_nothing() {
    let mut world = World::head();
    world.backlog("A", 10);
    let first = world.take(10);
    world.retry(&first, 60_000);
    world.backlog("B", 100);
    world.backlog("C", 100);
    let served = world.serve_partitions(60);
    assert_eq!((count(&served, "B"), count(&served, "C"), world.v()), (30, 30, 30.0));
    world.now_ms += 60_000;
    let served = world.serve_partitions(30);
    assert_eq!((count(&served, "A"), count(&served, "B"), count(&served, "C")), (10, 10, 10));
}

#[test]
fn a_huge_backlog_does_not_stand_before_a_small_one() {
    // C49, with generated ids: A came first, so A wins the ties.
    let mut world = World::head();
    world.add("A", (0..300_000).map(|_| plain(1)));
    world.add("B", (0..3).map(|_| plain(1)));
    let served = world.serve_partitions(8);
    assert_eq!(served.concat(), "ABABABAA");
}

#[test]
fn what_fails_and_comes_back_is_charged_again_and_lets_others_by() {
    // C29: A's 100 tasks fail and are retried a second later, up to 3 times; B comes at 2 s; one worker, 50 ms a task.
    let mut world = World::head();
    world.backlog("A", 100);
    world.backlog("C", 400);
    let (mut served, mut retries) = (Vec::new(), std::collections::BTreeMap::<String, u32>::new());
    for turn in 0..300 {
        if turn == 40 {
            world.backlog("B", 1);
        }
        let deliveries = world.take(1);
        let partition = deliveries[0].payload.partition().unwrap().as_str().to_owned();
        world.now_ms += 50;
        let tried = retries.entry(id_of(&deliveries[0])).or_default();
        *tried += 1;
        if partition == "A" && *tried <= 3 {
            world.retry(&deliveries, 1_000);
        } else {
            world.settle(vec![Settlement::ack(&deliveries[0])]);
        }
        served.push(partition);
    }
    assert!(served[40..43].contains(&"B".to_owned()), "{:?}", &served[38..45]);
    assert!(retries.values().filter(|tried| **tried > 1).count() > 20, "retries ran");
    for turns in served.windows(20) {
        let (a, c) = (count(turns, "A"), count(turns, "C"));
        assert!(a <= c + 2, "{a} of A and {c} of C: {turns:?}");
    }
}

#[test]
fn weights_that_are_no_weights_are_refused_before_anything_is_stored() {
    // C33, C34, C35.
    for weight in [0, -1, -5, 1_000_001, 1 << 53, i64::MAX, i64::MIN] {
        let error = plain(1).weight(weight).unwrap_err().to_string();
        assert!(error.contains("weight") && error.contains(&weight.to_string()), "{error}");
    }
    for share in [0.0, -1.0, 0.000_9, 1_000.1, f64::NAN, f64::INFINITY] {
        assert!(Queue::new("fair").unwrap().set_share("A", share).is_err(), "{share}");
    }
}

#[test]
fn the_heaviest_tasks_leave_every_tag_a_number_and_their_partition_in_order() {
    // C35.
    let mut world = World::head();
    world.share("A", 0.001);
    let heaviest = Weight::MAX;
    world.enqueue("A", &[("heavy", heaviest), ("z", 1), ("y", 1), ("x", heaviest), ("w", 1)]);
    let mut served = Vec::new();
    for i in 0..5 {
        world.enqueue("B", &[(&format!("b{i}"), heaviest)]);
        for partition in ["C", "D"] {
            world.add(partition, [plain(heaviest), plain(1)]);
        }
        assert!(world.see().tags.values().all(|start| start.is_finite()));
        served.extend(world.serve(3));
    }
    while !world.see().tags.is_empty() {
        served.extend(world.serve(1));
    }
    served.retain(|id| ["heavy", "z", "y", "x", "w"].contains(&id.as_str()));
    assert_eq!(served, ["heavy", "z", "y", "x", "w"]);
}

#[test]
fn ties_go_first_come_first_served_with_generated_ids_and_each_partition_stays_in_order_with_any() {
    // C36.
    let mut world = World::head();
    for _ in 0..3 {
        world.add("Z", [plain(1)]);
        world.add("A", [plain(1)]);
    }
    assert_eq!(world.serve_partitions(6).concat(), "ZAZAZA");
    for round in 0..3 {
        world.enqueue("A", &[(&format!("z{}", 2 - round), 1)]);
        world.enqueue("Z", &[(&format!("a{}", 2 - round), 1)]);
    }
    let served = world.serve(6);
    let of = |letter: char| served.iter().filter(|id| id.starts_with(letter)).cloned().collect::<Vec<_>>();
    assert_eq!(
        (of('z'), of('a')),
        (vec!["z2".into(), "z1".into(), "z0".into()], vec!["a2".into(), "a1".into(), "a0".into()])
    );
}

#[test]
fn a_name_with_nul_is_refused_and_one_with_512_bytes_is_not() {
    for name in ["\0", "a\0b", "", &"x".repeat(513)] {
        assert!(Partition::new(name).is_err() && TaskId::new(name).is_err(), "{name:?}");
        assert!(Queue::new("fair").unwrap().enqueue(name, [plain(1)]).is_err(), "{name:?}");
    }
    let longest = "ß".repeat(256);
    let mut world = World::head();
    world.add(&longest, [task(longest.as_str(), 1)]);
    assert_eq!(world.serve(1), [longest]);
}

#[test]
fn a_delivery_under_way_does_not_matter_to_the_order() {
    // "Whatever the number in flight": nothing acked, everything acked, everything extended.
    let run = |ack: bool| {
        let mut world = World::head();
        world.share("A", 3.0);
        world.backlog("A", 90);
        world.backlog("B", 60);
        let mut order = Vec::new();
        for _ in 0..50 {
            let deliveries = world.take(3);
            order.extend(deliveries.iter().map(id_of));
            let command = world.queue.extend(&deliveries, Duration::from_secs(3_600)).unwrap();
            world.run(command).unwrap();
            if ack {
                world.settle(deliveries.iter().map(Settlement::ack).collect());
            }
        }
        order
    };
    assert_eq!(run(true), run(false));
}
