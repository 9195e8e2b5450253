//! The bounds that docs/protocol.md promises: between two backlogged partitions, and before a newcomer.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use vtrr_queue::Tagging;

use super::game::{Event, Game};
use super::ops::{Kinds, Op, Ops, any_share, ops, shares};
use super::{EVERYTHING, PLAIN, cases};

/// What doubles may add.
const SLACK: f64 = 1.0 + 1e-6;

/// A service, or the end of an operation, as two partitions see it.
struct Seen {
    /// Which of the two was served, and what it was charged.
    charged: Option<(usize, f64)>,
    /// Whether both were backlogged, with the shares of that moment.
    both: bool,
    shares: [f64; 2],
}

fn as_seen_by(log: &[Event], pair: [&String; 2]) -> Vec<Seen> {
    let mut seen = Vec::new();
    let mut shares = [1.0; 2];
    for event in log {
        let (charged, both) = match event {
            Event::Share { partition, share } => {
                let Some(which) = pair.iter().position(|name| *name == partition) else { continue };
                shares[which] = *share;
                (None, false)
            }
            Event::Served { partition, charged, busy } => {
                let which = pair.iter().position(|name| *name == partition);
                (which.map(|which| (which, f64::from(*charged))), pair.iter().all(|name| busy.contains(name)))
            }
            Event::Ended { busy } => (None, pair.iter().all(|name| busy.contains(name))),
            Event::Empty | Event::Newcomer(_) => continue,
        };
        seen.push(Seen { charged, both, shares });
    }
    seen
}

/// In every interval in which both are backlogged and no share changes, the share-normalised weight charged to them
/// differs by at most wmax/share of the one and of the other. wmax is over what they were charged, the last before the
/// interval included, and at least 1, which is what an arrival waits: less than the promise, which is over all tasks.
fn check_bound(log: &[Event], pair: [&String; 2]) {
    let seen = as_seen_by(log, pair);
    let mut last = [1.0; 2];
    for from in 0..seen.len() {
        let (mut ahead, mut most) = (0.0, last);
        for service in seen[from..].iter().take_while(|service| service.both) {
            let shares = service.shares;
            if let Some((which, charged)) = service.charged {
                ahead += if which == 0 { charged } else { -charged } / shares[which];
                most[which] = f64::max(most[which], charged);
            }
            let bound = most[0] / shares[0] + most[1] / shares[1];
            assert!(f64::abs(ahead) <= bound * SLACK, "{pair:?}: {ahead} where {bound} is allowed, from {from}");
        }
        if let Some((which, charged)) = seen[from].charged.filter(|(_, charged)| *charged > 0.0) {
            last[which] = charged;
        }
    }
}

fn check_bounds(game: &Game) {
    for (i, one) in game.names.iter().enumerate() {
        for other in &game.names[i + 1..] {
            check_bound(&game.log, [one, other]);
        }
    }
}

/// Before a newcomer's first task, at most the sum of `share_g/share_f + 1` unpaid tasks over the partitions g busy
/// until then.
fn check_newcomers(log: &[Event]) {
    let mut shares: BTreeMap<&String, f64> = BTreeMap::new();
    for (at, event) in log.iter().enumerate() {
        match event {
            Event::Share { partition, share } => drop(shares.insert(partition, *share)),
            Event::Newcomer(newcomer) => check_newcomer(&log[at + 1..], newcomer, &shares),
            Event::Served { .. } | Event::Ended { .. } | Event::Empty => {}
        }
    }
}

fn check_newcomer(log: &[Event], newcomer: &String, shares: &BTreeMap<&String, f64>) {
    let share = |name: &String| shares.get(name).copied().unwrap_or(1.0);
    let (mut others, mut before) = (BTreeSet::new(), 0);
    for event in log {
        match event {
            Event::Share { .. } | Event::Empty => return,
            // Taken out again.
            Event::Ended { busy } if !busy.contains(newcomer) => return,
            Event::Ended { .. } | Event::Newcomer(_) => {}
            Event::Served { partition, charged, busy } => {
                others.extend(busy.iter().filter(|name| *name != newcomer));
                if partition == newcomer {
                    break;
                }
                before += u32::from(*charged > 0);
            }
        }
    }
    let allowed: f64 = others.iter().map(|other| share(other) / share(newcomer) + 1.0).sum();
    assert!(f64::from(before) <= allowed * SLACK, "{before} before {newcomer}, where {allowed} are allowed");
}

fn play(tagging: Tagging, shares: &[f64], ops: &[Op]) -> Game {
    let mut game = Game::new(tagging, shares);
    game.play_all(ops);
    game.drain();
    game
}

fn kept(ops: Ops, keep: impl Fn(&Op) -> bool) -> Vec<Op> {
    ops.0.into_iter().filter(keep).collect()
}

proptest! {
    #![proptest_config(cases(600))]

    #[test]
    fn backlogged_partitions_get_their_shares_within_the_bound(
        shares in shares(any_share()),
        ops in ops(EVERYTHING, any_share()),
    ) {
        check_bounds(&play(Tagging::Head, &shares, &ops.0));
    }

    #[test]
    fn in_mode_all_backlogged_partitions_get_their_shares_within_the_bound(
        shares in shares(any_share()),
        ops in ops(Kinds { trouble: true, ..PLAIN }, any_share()),
    ) {
        let ops = kept(ops, |op| !matches!(op, Op::Cancel(_) | Op::Purge(_)));
        check_bounds(&play(Tagging::All, &shares, &ops));
    }

    #[test]
    fn a_newcomer_waits_for_few_whatever_the_backlog(
        shares in shares(any_share()),
        ops in ops(EVERYTHING, any_share()),
    ) {
        check_newcomers(&play(Tagging::Head, &shares, &ops.0).log);
    }
}

#[test]
fn a_newcomer_waits_for_twice_the_busy_partitions_and_not_for_their_backlogs() {
    let mut game = Game::new(Tagging::Head, &[1.0; 9]);
    for partition in 0..8 {
        for _ in 0..40 {
            game.play(&Op::Enqueue { partition, weights: vec![1; 50], salt: partition });
        }
    }
    game.play(&Op::Dequeue { settle: Vec::new(), n: 100 });
    game.play(&Op::Enqueue { partition: 8, weights: vec![1; 3], salt: 999 });
    game.play(&Op::Dequeue { settle: Vec::new(), n: 17 });
    let newest = &game.served[100..];
    assert!(newest.iter().any(|(id, _)| game.books.tasks[id].partition == "P8"), "{newest:?}");
    check_newcomers(&game.log);
    check_bounds(&game);
}
