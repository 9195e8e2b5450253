//! Names are only names: what partitions and tasks are called changes no more than ties.

use proptest::prelude::*;
use vtrr_queue::Tagging;

use super::game::Game;
use super::ops::{Kinds, Ops, PARTITIONS, any_share, exact_share, ops, shares};
use super::{EVERYTHING, PLAIN, cases};

const NASTY: [&str; PARTITIONS] = ["{a}:lane:=b", "%3A\"%25", "A\n\",\"weight\":9", "}{ 😀 ~\u{1}", "\\"];

fn nasty(i: usize) -> String {
    if i == 4 { "\u{10ffff}".repeat(128) } else { NASTY[i].to_owned() }
}

fn plain_id(salt: usize, n: usize) -> String {
    format!("{:03}-{n:05}", (salt * 31 + n * 7) % 1_000)
}

/// Sorts as `plain_id` does.
fn nasty_id(salt: usize, n: usize) -> String {
    format!("{:03}{} 😀\u{1} :%{{{n:05}}}~\"\\", (salt * 31 + n * 7) % 1_000, "-")
}

/// Sorts the other way round.
fn opposite_id(salt: usize, n: usize) -> String {
    format!("{:03}-{:05}", 999 - (salt * 31 + n * 7) % 1_000, 99_999 - n)
}

/// The positions at which tasks were enqueued in order of service, and V after each call.
fn play(shares: &[f64], ops: &Ops, name: fn(usize) -> String, name_id: fn(usize, usize) -> String) -> Vec<(usize, f64)> {
    let mut game = Game::named(Tagging::Head, shares, name, name_id);
    game.play_all(&ops.0);
    game.drain();
    let position = |id: &String| game.enqueued.iter().position(|(enqueued, _)| enqueued == id).unwrap();
    game.served.iter().map(|(id, v)| (position(id), *v)).collect()
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn names_that_sort_alike_give_the_same_order(shares in shares(any_share()), ops in ops(Kinds { trouble: false, ..EVERYTHING }, any_share())) {
        let plain = play(&shares, &ops, |i| format!("P{i}"), plain_id);
        assert_eq!(plain, play(&shares, &ops, nasty, nasty_id));
    }

    #[test]
    fn ids_decide_ties_and_nothing_else(shares in shares(exact_share()), ops in ops(PLAIN, exact_share())) {
        let one = play(&shares, &ops, |i| format!("P{i}"), plain_id);
        let other = play(&shares, &ops, |i| format!("P{i}"), opposite_id);
        let times = |served: &[(usize, f64)]| served.iter().map(|(_, v)| *v).collect::<Vec<_>>();
        assert_eq!(times(&one), times(&other));
    }

    #[test]
    fn with_nasty_names_every_step_is_as_the_rules_say(shares in shares(exact_share()), ops in ops(EVERYTHING, exact_share())) {
        let mut game = Game::named(Tagging::Head, &shares, nasty, nasty_id).with_oracle(false);
        game.exact = true;
        game.play_checked(&ops.0);
        game.drain();
        game.check_empty();
    }
}
