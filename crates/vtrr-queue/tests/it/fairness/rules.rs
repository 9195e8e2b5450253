//! R1 to R7, one by one.

use proptest::prelude::*;
use vtrr_queue::{Share, Tagging, Weight, finish_tag};

use super::cases;
use super::ops::any_share;
use super::world::World;

/// A backlog of B in a queue whose V is `v`, as far as it reaches.
fn at_v(tagging: Tagging, v: usize) -> World {
    let mut world = World::new(tagging);
    world.backlog("B", 100);
    world.serve(v);
    assert_eq!(world.v(), v as f64);
    world
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn r1_an_arrival_enters_at_v_plus_1_over_share(share in any_share(), v in 0_usize..20, all in any::<bool>(), weight in 1_u32..50) {
        let mut world = at_v(if all { Tagging::All } else { Tagging::Head }, v);
        world.share("A", share);
        world.enqueue("A", &[("a", weight)]);
        assert_eq!(world.tag("a"), Some(v as f64 + 1.0 / share));
    }

    #[test]
    fn r1_a_debt_is_not_forgiven_by_coming_back(weight in 2_u32..90, v in 0_usize..90) {
        let mut world = World::head();
        world.enqueue("A", &[("a1", weight)]);
        world.backlog("B", 100);
        assert!(world.serve(2).contains(&"a1".to_owned()));
        world.serve(v);
        let debt = f64::from(1 + weight);
        let now = world.v();
        world.enqueue("A", &[("a2", 1)]);
        assert_eq!(world.tag("a2"), Some(debt.max(now + 1.0)));
    }

    #[test]
    fn r3_the_next_tag_is_weight_over_share_later(share in any_share(), weights in prop::collection::vec(1_u32..=1_000_000, 2..9)) {
        for tagging in [Tagging::Head, Tagging::All] {
            let mut world = World::new(tagging);
            world.share("A", share);
            let ids: Vec<_> = (0..weights.len()).map(|i| format!("a{i}")).collect();
            let tasks: Vec<_> = ids.iter().map(String::as_str).zip(weights.iter().copied()).collect();
            world.enqueue("A", &tasks);
            let mut expected = 1.0 / share;
            for (id, weight) in tasks {
                assert_eq!(world.tag(id), Some(expected));
                world.serve(1);
                expected += f64::from(weight) / share;
            }
        }
    }

    #[test]
    fn r3_tags_grow_where_a_double_cannot_hold_the_step(start in 1.0_f64..1e300, weight in 1_i64..=1_000_000, share in any_share()) {
        let finish = finish_tag(start, Weight::new(weight).unwrap(), Share::new(share).unwrap());
        assert!(finish >= start.next_up());
    }
}

#[test]
fn r1_leased_and_delayed_tasks_are_not_queued() {
    for delay_ms in [None, Some(60_000)] {
        let mut world = World::head();
        world.enqueue("A", &[("a1", 1)]);
        world.backlog("B", 100);
        let deliveries = world.take(1);
        if let Some(delay_ms) = delay_ms {
            world.retry(&deliveries, delay_ms);
        }
        world.serve(9);
        world.enqueue("A", &[("a2", 1)]);
        assert_eq!((world.v(), world.tag("a2")), (9.0, Some(10.0)));
    }
}

#[test]
fn r1_one_task_more_is_no_arrival_but_one_behind_paid_ones_is() {
    let mut world = World::head();
    world.enqueue("A", &[("a1", 1)]);
    world.backlog("B", 100);
    let first = world.take(1);
    world.serve(5);
    world.release(&first);
    assert_eq!((world.v(), world.tag("a1")), (5.0, Some(5.0)), "paid");
    world.enqueue("A", &[("a2", 1)]);
    assert_eq!(world.finish("A"), Some(6.0), "an arrival");
    world.serve(1);
    assert_eq!(world.tag("a2"), Some(6.0));
    let finish = world.finish("A");
    world.enqueue("A", &[("a3", 1)]);
    assert_eq!(world.finish("A"), finish, "no arrival");
}

#[test]
fn r1_in_mode_all_every_enqueue_is_an_arrival() {
    let mut world = World::new(Tagging::All);
    world.share("A", 10.0);
    world.enqueue("A", &[("a1", 1)]);
    world.share("A", 1.0);
    world.enqueue("A", &[("a2", 1)]);
    assert_eq!((world.tag("a1"), world.tag("a2")), (Some(0.1), Some(1.0)));
}

#[test]
fn r2_a_tag_is_f_and_never_behind_v() {
    let mut world = World::head();
    world.enqueue("A", &[("a1", 7), ("a2", 1)]);
    world.backlog("B", 20);
    assert_eq!((world.tag("a1"), world.finish("A")), (Some(1.0), Some(8.0)));
    world.serve(2);
    assert_eq!((world.tag("a2"), world.v()), (Some(8.0), 1.0));
    for _ in 0..20 {
        world.serve(1);
        let seen = world.see();
        assert!(seen.tags.values().all(|start| *start >= seen.v));
    }
}

#[test]
fn r4_the_smallest_tag_is_next_equal_ones_by_the_bytes_of_their_ids_and_v_follows() {
    let mut world = World::head();
    let ids = ["z", "Z", "é", "a", "aa", "\u{1}", "😀", "~"];
    for (i, id) in ids.iter().enumerate() {
        world.enqueue(&format!("P{i}"), &[(id, 3)]);
    }
    world.enqueue("late", &[("first by bytes: \u{0001}", 1)]);
    world.share("late", 0.5);
    let mut sorted = ids.to_vec();
    sorted.sort_by_key(|id| id.as_bytes());
    assert_eq!(world.serve(8), sorted);
    assert_eq!(world.v(), 1.0);
    world.enqueue("P0", &[("again", 1)]);
    assert_eq!(world.serve(1), ["first by bytes: \u{1}"]);
    assert_eq!(world.v(), 2.0);
    world.take(1);
    assert_eq!(world.v(), 0.0, "R5");
}

#[test]
fn r5_with_no_task_tagged_all_is_forgotten() {
    let mut world = World::head();
    world.enqueue("A", &[("a1", 1_000_000)]);
    let leased = world.take(1);
    let seen = world.see();
    assert_eq!((seen.v, seen.count("partition_virtual_time"), seen.count("idle"), seen.count("head")), (0.0, 0, 0, 0));
    world.enqueue("A", &[("a2", 1)]);
    assert_eq!(world.tag("a2"), Some(1.0), "what was leased does not count");
    world.cancel(&["a2"]);
    assert_eq!(world.see().count("partition_virtual_time"), 0, "after a cancel too");
    world.retry(&leased, 0);
    assert_eq!(world.tag("a1"), Some(1.0));
}

#[test]
fn r6_an_idle_partition_is_forgotten_as_soon_as_v_has_passed_its_last_charge() {
    let mut world = World::head();
    world.share("A", 0.5);
    world.enqueue("A", &[("a1", 4)]);
    world.backlog("B", 100);
    // a1 is served at 2, so F = 2 + 4 / 0.5 = 10: forgotten once V + 2 ≥ 10.
    for _ in 0..9 {
        world.serve(1);
        let expected = (world.v() >= 2.0 && world.v() < 8.0).then_some(10.0);
        let record = world.finish("A").filter(|_| world.v() >= 2.0 && world.tag("a1").is_none());
        assert_eq!((record, world.see().count("idle")), (expected, usize::from(expected.is_some())), "V = {}", world.v());
    }
}

#[test]
fn r7_neither_release_nor_retry_nor_cancel_nor_share_moves_v() {
    let mut world = World::head();
    world.enqueue("A", &[("a1", 1), ("a2", 1), ("a3", 1)]);
    world.backlog("B", 100);
    let mut first = world.take(4);
    let v = world.v();
    assert_eq!(v, 2.0);
    world.release(&first.split_off(3));
    world.retry(&first.split_off(2), 0);
    world.blame(&first);
    world.cancel(&["a3"]);
    world.share("A", 0.001);
    world.share("B", 1_000.0);
    assert_eq!(world.v(), v);
}

#[test]
fn r6_what_one_call_has_not_got_round_to_forgetting_counts_for_nothing() {
    for tagging in [Tagging::Head, Tagging::All] {
        let mut world = World::new(tagging);
        for i in 0..40 {
            world.enqueue(&format!("P{i:02}"), &[(&format!("a{i:02}"), 100)]);
        }
        world.share("B", 2.0);
        world.enqueue("B", &[("b1", 199), ("b2", 1), ("b3", 1), ("b4", 1), ("b5", 1), ("b6", 1)]);
        world.serve(41);
        assert_eq!((world.v(), world.finish("P39"), world.see().count("idle")), (1.0, Some(101.0), 40));
        assert_eq!(world.serve(1), ["b2"]);
        let late = world.see().count("idle");
        assert!((1..40).contains(&late) && world.v() == 100.0, "{late}");
        world.share("P39", 1_000.0);
        world.enqueue("P39", &[("again", 1)]);
        assert_eq!(world.tag("again"), Some(100.001), "{tagging:?}");
        world.enqueue("P38", &[("too", 1)]);
        assert_eq!(world.tag("too"), Some(101.0));
        world.serve(1);
        world.serve(1);
        world.serve(1);
        assert!(world.see().count("idle") <= 1, "a few calls later they are gone");
    }
}
