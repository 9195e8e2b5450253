//! The two tagging modes and the ways between them.

use proptest::prelude::*;
use vtrr_queue::Tagging;

use super::game::Game;
use super::ops::{Kinds, Op, Ops, any_share, ops, shares};
use super::whole::{by_partition, ids};
use super::world::{World, plain};
use super::{PLAIN, cases};

/// The order of service, to the end.
fn order(tagging: Tagging, shares: &[f64], ops: &[Op]) -> Vec<String> {
    let mut game = Game::new(tagging, shares);
    game.play_all(ops);
    game.drain();
    game.served.into_iter().map(|(id, _)| id).collect()
}

fn with(ops: &Ops, at: usize, op: Op) -> Vec<Op> {
    let mut ops = ops.0.clone();
    ops.insert(at % (ops.len() + 1), op);
    ops
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn both_modes_give_the_same_order(shares in shares(any_share()), ops in ops(PLAIN, any_share())) {
        assert_eq!(order(Tagging::Head, &shares, &ops.0), order(Tagging::All, &shares, &ops.0));
    }

    #[test]
    fn flatten_keeps_the_order(shares in shares(any_share()), ops in ops(PLAIN, any_share()), at in 0_usize..60) {
        let flattened = with(&ops, at, Op::Flatten);
        assert_eq!(order(Tagging::Head, &shares, &ops.0), order(Tagging::Head, &shares, &flattened));
    }

    #[test]
    fn all_to_head_at_once_keeps_each_partition_in_order_and_loses_nothing(
        shares in shares(any_share()),
        ops in ops(Kinds { reshare: true, ..PLAIN }, any_share()),
        at in 0_usize..60,
    ) {
        let mut game = Game::new(Tagging::All, &shares);
        game.play_checked(&with(&ops, at, Op::Unflatten));
        game.drain();
        game.check_empty();
        assert_eq!(by_partition(&game, game.served.iter().map(|(id, _)| id)), by_partition(&game, ids(&game)));
    }
}

#[test]
fn flatten_tags_more_than_one_step_takes() {
    let mut world = World::head();
    for partition in ["A", "B", "C"] {
        world.backlog(partition, 900);
    }
    let mut twin = World { state: world.state.clone(), queue: world.queue.clone(), now_ms: world.now_ms };
    let command = world.queue.flatten();
    assert_eq!(world.run(command).unwrap().in_lanes, 0);
    assert_eq!(world.see().tags.len(), 2_700);
    for _ in 0..3 {
        assert_eq!(world.serve(900), twin.serve(900));
    }
}

#[test]
fn until_its_old_tags_are_gone_a_partition_gets_no_head() {
    let mut world = World::new(Tagging::All);
    world.enqueue("A", &[("a1", 1), ("a2", 1)]);
    let command = world.queue.unflatten();
    world.run(command).unwrap();
    world.queue = vtrr_queue::Queue::new("fair").unwrap();
    world.enqueue("A", &[("a0", 1)]);
    world.add("B", [plain(5)]);
    assert_eq!((world.tag("a0"), world.see().lanes["A"].as_slice()), (None, ["a0".to_owned()].as_slice()));
    world.cancel(&["a1"]);
    assert_eq!((world.tag("a2"), world.tag("a0")), (Some(2.0), None), "a cancel frees no old tag");
    world.serve(2);
    assert_eq!(world.tag("a0"), Some(3.0));
}
