//! R9 to R11: what comes back, new shares, and what is taken out.

use proptest::prelude::*;
use vtrr_queue::{Cause, Released, Tagging};

use super::cases;
use super::world::{World, id_of};

/// A and B with tasks of weight 1; served one each, so V = 1 and both heads stand at 2.
fn two() -> World {
    let mut world = World::head();
    world.enqueue("A", &[("a1", 1), ("a2", 1), ("a3", 1), ("a4", 1)]);
    world.enqueue("B", &[("b1", 1), ("b2", 1), ("b3", 1), ("b4", 1), ("b5", 1)]);
    world
}

#[test]
fn r9_what_is_given_back_comes_next_and_is_free() {
    let mut world = two();
    let deliveries = world.take(2);
    world.release(&deliveries[..1]);
    assert_eq!((world.tag("a1"), world.tag("a2"), world.finish("A")), (Some(1.0), None, Some(2.0)));
    assert_eq!(world.see().lanes["A"], ["a2", "a3", "a4"]);
    assert_eq!(world.serve(1), ["a1"]);
    assert_eq!((world.v(), world.tag("a2")), (1.0, Some(2.0)), "as if it had never been given back");
}

#[test]
fn r9_a_paid_head_leaves_f_alone_when_another_paid_one_goes_before_it() {
    let mut world = two();
    let deliveries = world.take(4);
    assert_eq!(deliveries.iter().map(id_of).collect::<Vec<_>>(), ["a1", "b1", "a2", "b2"]);
    world.release(&deliveries[2..3]);
    assert_eq!((world.tag("a2"), world.finish("A")), (Some(2.0), Some(3.0)));
    world.release(&deliveries[..1]);
    assert_eq!((world.tag("a1"), world.tag("a2"), world.finish("A")), (Some(2.0), None, Some(3.0)));
    assert_eq!(world.serve(5), ["a1", "a2", "a3", "b3", "a4"]);
}

#[test]
fn r9_several_given_back_at_once_keep_their_order_also_a_second_time() {
    // Ids in the opposite order: with the tags of paid tasks, which are equal, they must not decide.
    let mut world = World::head();
    world.enqueue("A", &[("z", 1), ("y", 1), ("x", 1), ("w", 1)]);
    for _ in 0..3 {
        let deliveries = world.take(3);
        assert_eq!(deliveries.iter().map(id_of).collect::<Vec<_>>(), ["z", "y", "x"]);
        let in_any_order = [deliveries[1].clone(), deliveries[0].clone(), deliveries[2].clone()];
        world.release(&in_any_order);
    }
    world.take(3);
    world.now_ms += 31_000;
    assert_eq!(world.take(3).iter().map(id_of).collect::<Vec<_>>(), ["z", "y", "x"], "reclaimed");
}

#[test]
fn r9_an_owner_gives_back_in_order() {
    let mut world = World::head();
    world.enqueue("A", &[("z", 1), ("y", 1), ("x", 1), ("w", 1)]);
    let owner = vtrr_queue::Queue::fresh_owner();
    for _ in 0..3 {
        let command = world.queue.dequeue(3).unwrap().owner(owner.clone(), Vec::new());
        let deliveries = world.run(command).unwrap().deliveries;
        assert_eq!(deliveries.iter().map(id_of).collect::<Vec<_>>(), ["z", "y", "x"]);
    }
    let command = world.queue.release_owner(owner, Released::Unrun);
    assert_eq!(world.run(command).unwrap().len(), 3);
    assert_eq!(world.serve(4), ["z", "y", "x", "w"]);
}

#[test]
fn r9_a_release_is_free_each_time_blame_only_once() {
    let mut world = two();
    for _ in 0..9 {
        let deliveries = world.take(1);
        assert_eq!(id_of(&deliveries[0]), "a1");
        world.release(&deliveries);
        assert_eq!((world.tag("a1"), world.finish("A")), (Some(world.v()), Some(2.0)));
    }
    let deliveries = world.take(1);
    world.blame(&deliveries);
    assert_eq!((world.tag("a1"), world.tag("a2")), (Some(1.0), None), "free once");
    let deliveries = world.take(1);
    world.blame(&deliveries);
    assert_eq!((world.tag("a1"), world.tag("a2")), (None, Some(2.0)), "then as a retry");
    assert_eq!(world.see().lanes["A"], ["a1", "a3", "a4"]);
    let deliveries = world.take(3);
    assert_eq!(deliveries.iter().map(id_of).collect::<Vec<_>>(), ["b1", "a2", "b2"]);
    assert_eq!(world.tag("a1"), Some(3.0), "charged again");
    let deliveries = world.take(1);
    world.release(&deliveries);
    assert_eq!(world.tag("a1"), Some(3.0), "and a release stays free");
}

#[test]
fn r9_what_ran_and_gave_itself_back_is_charged_each_time() {
    let mut world = two();
    let mut served = Vec::new();
    for _ in 0..8 {
        let deliveries = world.take(1);
        served.push(id_of(&deliveries[0]));
        if id_of(&deliveries[0]) == "a1" {
            world.give_back(&deliveries, &Released::Ran);
        }
    }
    assert_eq!(served, ["a1", "b1", "a2", "b2", "a1", "b3", "a3", "b4"], "behind the head, and B gets its half");
}

#[test]
fn r9_a_name_that_nobody_knows_is_free_each_time_and_counts() {
    let mut world = two();
    for blames in 0..4 {
        let deliveries = world.take(1);
        assert_eq!((id_of(&deliveries[0]).as_str(), deliveries[0].blames, deliveries[0].losses), ("a1", blames, 0));
        world.give_back(&deliveries, &Released::unknown("no handler"));
        assert_eq!((world.finish("A"), world.see().lanes["A"].len()), (Some(2.0), 3), "free");
    }
    let deliveries = world.take(1);
    world.give_back(&deliveries, &Released::unknown("no handler"));
    let command = world.queue.dead_letters(0, 9).unwrap();
    let letters = world.run(command).unwrap();
    assert_eq!(letters.iter().map(|it| (it.id.as_str(), it.cause.clone())).collect::<Vec<_>>(), [("a1", Cause::Unknown)]);
    assert_eq!(letters[0].error, "poison: 5 deliveries ended without a settle; the last one: no handler");
}

#[test]
fn r9_a_retry_goes_before_its_lane_behind_the_head_and_paid_ones_and_pays_again() {
    let mut world = two();
    let deliveries = world.take(6);
    assert_eq!(deliveries.iter().map(id_of).collect::<Vec<_>>(), ["a1", "b1", "a2", "b2", "a3", "b3"]);
    world.retry(&deliveries[..1], 0);
    assert_eq!((world.tag("a4"), world.finish("A")), (Some(4.0), Some(5.0)), "the head stays");
    world.release(&[deliveries[2].clone(), deliveries[4].clone()]);
    world.retry(&deliveries[1..2], 0);
    assert_eq!((world.tag("a2"), world.finish("A")), (Some(3.0), Some(4.0)));
    assert_eq!(world.see().lanes["A"], ["a3", "a4", "a1"]);
    assert_eq!(world.see().lanes["B"], ["b1", "b5"]);
    assert_eq!(world.serve(8), ["a2", "a3", "a4", "b4", "a1", "b1", "b5"]);
}

#[test]
fn r9_a_delay_keeps_what_was_paid_paid_and_what_was_not_not() {
    let mut world = two();
    let deliveries = world.take(3);
    let late = std::time::Duration::from_secs(5);
    world.settle(vec![
        vtrr_queue::Settlement::release(&deliveries[0], late, Released::Unrun).unwrap(),
        vtrr_queue::Settlement::retry(&deliveries[1], late, None).unwrap(),
    ]);
    assert_eq!(world.serve(2), ["b2", "a3"]);
    world.now_ms += 5_000;
    let command = world.queue.sweep();
    assert_eq!(world.run(command).unwrap().due, 2);
    assert_eq!((world.tag("a1"), world.see().lanes["B"][0].as_str()), (Some(world.v()), "b1"));
}

#[test]
fn r9_in_mode_all_paid_ones_stand_at_v_and_a_retry_is_an_arrival() {
    let mut world = World::new(Tagging::All);
    world.enqueue("A", &[("a1", 1), ("a2", 1), ("a3", 1)]);
    world.backlog("B", 20);
    let deliveries = world.take(4);
    let v = world.v();
    world.release(&deliveries[..1]);
    assert_eq!((v, world.tag("a1"), world.finish("A")), (2.0, Some(2.0), Some(4.0)));
    world.serve(12);
    let again = deliveries.iter().filter(|delivery| id_of(delivery) == "a2").cloned().collect::<Vec<_>>();
    world.retry(&again, 0);
    assert_eq!((world.tag("a2"), world.finish("A")), (Some(world.v() + 1.0), Some(world.v() + 2.0)));
}

#[test]
fn r9_a_flatten_brings_the_delayed_back_in_their_order() {
    let mut world = World::head();
    world.enqueue("A", &[("z", 1), ("y", 1), ("x", 1), ("w", 1)]);
    world.backlog("B", 9);
    let deliveries = world.take(6);
    for (i, delivery) in deliveries.iter().filter(|delivery| id_of(delivery).len() == 1).enumerate() {
        world.retry(std::slice::from_ref(delivery), 1_000 * (i as u64 + 1));
    }
    let command = world.queue.flatten();
    world.run(command).unwrap();
    let of_a: Vec<_> = world.serve(20).into_iter().filter(|id| id.len() == 1).collect();
    assert_eq!(of_a, ["w", "z", "y", "x"], "w was the head and stays it");
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn r10_a_new_share_keeps_debts_the_same_in_weight(
        weight in 1_u32..1_000,
        before in prop::sample::select(vec![1.0, 2.0, 0.25, 64.0]),
        after in prop::sample::select(vec![1.0, 2.0, 0.25, 64.0, 0.001, 1_000.0]),
        v in 0_usize..30,
    ) {
        let mut world = World::head();
        world.share("A", before);
        world.enqueue("A", &[("a1", weight), ("a2", weight), ("a3", 1)]);
        world.backlog("B", 100);
        while world.tag("a1").is_some() {
            world.serve(1);
        }
        world.serve(v);
        let now = world.v();
        let Some(start) = world.tag("a2") else { return Ok(()) };
        let finish = world.finish("A").unwrap();
        world.share("A", after);
        let (new_start, new_finish) = (world.tag("a2").unwrap(), world.finish("A").unwrap());
        let close = |a: f64, b: f64| (a - b).abs() <= 1e-9 * (1.0 + a.abs());
        assert!(close((new_start - now) * after, (start - now) * before), "S");
        assert!(close((new_finish - now) * after, (finish - now) * before), "F");
        assert!(new_start >= now && new_finish > new_start);
    }
}

#[test]
fn r10_an_idle_debt_moves_and_one_that_r1_would_not_see_is_forgotten() {
    let mut world = World::head();
    world.enqueue("A", &[("a1", 9)]);
    world.enqueue("C", &[("c1", 1)]);
    world.backlog("B", 100);
    world.serve(4);
    assert_eq!((world.v(), world.finish("A"), world.finish("C")), (2.0, Some(10.0), None));
    world.share("A", 4.0);
    assert_eq!(world.finish("A"), Some(4.0));
    world.enqueue("A", &[("a2", 1)]);
    assert_eq!(world.tag("a2"), Some(4.0), "later than V + 1/share");
    world.share("C", 0.25);
    assert_eq!((world.finish("C"), world.see().count("idle")), (None, 0));
}

#[test]
fn r10_a_backlog_gets_its_new_share_at_once() {
    let mut world = World::head();
    world.backlog("A", 400);
    world.backlog("B", 400);
    world.serve(100);
    world.share("A", 9.0);
    let a = world.serve_partitions(100).iter().filter(|partition| *partition == "A").count();
    assert!((89..=91).contains(&a), "{a} of 100");
    world.share("A", 1.0);
    let a = world.serve_partitions(100).iter().filter(|partition| *partition == "A").count();
    assert!((49..=51).contains(&a), "{a} of 100");
}

#[test]
fn r11_what_is_cancelled_is_not_charged() {
    let mut world = World::head();
    world.enqueue("A", &[("a1", 1_000), ("a2", 3), ("a3", 1), ("a4", 1)]);
    world.backlog("B", 100);
    world.cancel(&["a1"]);
    assert_eq!((world.tag("a2"), world.finish("A")), (Some(1.0), Some(4.0)));
    world.cancel(&["a3"]);
    assert_eq!((world.tag("a2"), world.finish("A")), (Some(1.0), Some(4.0)), "one that waits");
    world.cancel(&["a2", "a4"]);
    assert_eq!(world.finish("A"), None, "nothing owed");
    world.enqueue("A", &[("a5", 1)]);
    assert_eq!(world.tag("a5"), Some(1.0));
    let command = world.queue.purge("A").unwrap();
    assert_eq!((world.run(command).unwrap().purged, world.finish("A")), (1, None));
}

#[test]
fn r11_a_paid_task_that_is_cancelled_leaves_f_alone() {
    let mut world = World::head();
    world.enqueue("A", &[("a1", 50), ("a2", 1)]);
    world.backlog("B", 100);
    let deliveries = world.take(2);
    let first: Vec<_> = deliveries.into_iter().filter(|delivery| id_of(delivery) == "a1").collect();
    world.release(&first);
    assert_eq!((world.tag("a1"), world.finish("A")), (Some(1.0), Some(51.0)));
    world.cancel(&["a1"]);
    assert_eq!((world.tag("a2"), world.finish("A")), (Some(51.0), Some(52.0)));
}

#[test]
fn thousands_of_cancelled_tasks_cost_their_partition_nothing() {
    let mut world = World::head();
    let ids: Vec<_> = (0..5_000).map(|i| format!("a{i:04}")).collect();
    for chunk in ids.chunks(1_000) {
        world.add("A", chunk.iter().map(|id| super::world::task(id.as_str(), 1)));
    }
    world.backlog("B", 10);
    for chunk in ids[1..4_990].chunks(1_000) {
        world.cancel(&chunk.iter().map(String::as_str).collect::<Vec<_>>());
    }
    let mut served = Vec::new();
    for _ in 0..40 {
        served.extend(world.serve_partitions(1));
    }
    let turns: String = served.concat();
    assert_eq!(turns, "AB".repeat(10) + "A");
    assert!(world.see().left_over().is_empty());
}
