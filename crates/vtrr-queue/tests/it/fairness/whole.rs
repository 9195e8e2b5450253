//! The rules as a whole: every step of random lists of operations.

use std::collections::BTreeMap;

use proptest::prelude::*;
use vtrr_queue::Tagging;

use super::game::Game;
use super::ops::{Kinds, Ops, any_share, exact_share, ops, shares};
use super::{EVERYTHING, PLAIN, cases};

fn against_oracle(tagging: Tagging, shares: &[f64], ops: &Ops, exact: bool) {
    let mut game = Game::new(tagging, shares).with_oracle(false);
    game.exact = exact;
    game.play_checked(&ops.0);
    game.drain();
    game.check_empty();
}

proptest! {
    #![proptest_config(cases(600))]

    #[test]
    fn in_mode_head_every_step_is_as_the_rules_say(shares in shares(exact_share()), ops in ops(EVERYTHING, exact_share())) {
        against_oracle(Tagging::Head, &shares, &ops, true);
    }

    #[test]
    fn with_any_shares_every_step_is_as_the_rules_say(
        shares in shares(any_share()),
        ops in ops(Kinds { trouble: true, ..PLAIN }, any_share()),
    ) {
        against_oracle(Tagging::Head, &shares, &ops, false);
    }

    #[test]
    fn in_mode_all_every_step_is_as_the_rules_say(shares in shares(exact_share()), ops in ops(EVERYTHING, exact_share())) {
        against_oracle(Tagging::All, &shares, &ops, true);
    }

    #[test]
    fn through_changes_of_the_mode_every_step_is_as_the_rules_say(
        shares in shares(exact_share()),
        ops in ops(Kinds { modes: true, ..EVERYTHING }, exact_share()),
    ) {
        against_oracle(Tagging::Head, &shares, &ops, true);
    }

    #[test]
    fn forgetting_idle_partitions_changes_no_order(shares in shares(exact_share()), ops in ops(EVERYTHING, exact_share())) {
        let mut game = Game::new(Tagging::Head, &shares).with_oracle(true);
        game.play_checked(&ops.0);
        game.drain();
    }

    #[test]
    fn nothing_is_lost_or_stuck_and_v_never_goes_back(
        shares in shares(any_share()),
        ops in ops(EVERYTHING, any_share()),
        all in any::<bool>(),
    ) {
        let mut game = Game::new(if all { Tagging::All } else { Tagging::Head }, &shares);
        game.play_checked(&ops.0);
        game.drain();
        game.check_empty();
    }

    #[test]
    fn nothing_is_lost_or_stuck_through_changes_of_the_mode(
        shares in shares(any_share()),
        ops in ops(Kinds { modes: true, ..EVERYTHING }, any_share()),
    ) {
        let mut game = Game::new(Tagging::Head, &shares);
        game.play_checked(&ops.0);
        game.drain();
        game.check_empty();
    }

    #[test]
    fn a_partition_is_first_in_first_out_whatever_the_ids(
        shares in shares(any_share()),
        ops in ops(Kinds { reshare: true, ..PLAIN }, any_share()),
        all in any::<bool>(),
    ) {
        let mut game = Game::new(if all { Tagging::All } else { Tagging::Head }, &shares);
        game.play_all(&ops.0);
        game.drain();
        assert_eq!(by_partition(&game, game.served.iter().map(|(id, _)| id)), by_partition(&game, ids(&game)));
    }
}

pub(super) fn ids(game: &Game) -> impl Iterator<Item = &String> {
    game.enqueued.iter().map(|(id, _)| id)
}

/// These ids, by partition.
pub(super) fn by_partition<'a>(game: &Game, ids: impl Iterator<Item = &'a String>) -> BTreeMap<String, Vec<String>> {
    let partitions: BTreeMap<_, _> = game.enqueued.iter().cloned().collect();
    let mut lists: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for id in ids {
        lists.entry(partitions[id].clone()).or_default().push(id.clone());
    }
    lists
}
