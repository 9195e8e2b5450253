//! Random lists of operations.

use std::fmt;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::Union;

use super::books::End;

pub(crate) const PARTITIONS: usize = 5;

/// An operation; what it acts on is picked, modulo what there is, when it is played.
#[derive(Debug, Clone)]
pub(crate) enum Op {
    /// Tasks of these weights; `salt` decides how their ids sort.
    Enqueue {
        partition: usize,
        weights: Vec<u32>,
        salt: usize,
    },
    /// Settles, brings back what is due, takes.
    Dequeue {
        settle: Vec<(usize, End)>,
        n: usize,
    },
    Settle(Vec<(usize, End)>),
    Extend(usize),
    Tick {
        ms: u64,
    },
    Cancel(Vec<usize>),
    Purge(usize),
    Share(usize, f64),
    Redrive(usize),
    Sweep,
    Flatten,
    Unflatten,
}

/// A list of operations, shown one a line.
#[derive(Clone)]
pub(crate) struct Ops(pub(crate) Vec<Op>);

impl fmt::Debug for Ops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|op| write!(f, "\n  {op:?}"))
    }
}

/// What happens in a list.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Kinds {
    /// Releases, blames, retries, time that passes, cancels, purges, failures, sweeps.
    pub(crate) trouble: bool,
    /// Shares that change on the way.
    pub(crate) reshare: bool,
    /// Changes of the mode.
    pub(crate) modes: bool,
}

fn end(trouble: bool) -> BoxedStrategy<End> {
    if !trouble {
        return Just(End::Ack).boxed();
    }
    let delay = || prop_oneof![3 => Just(0_u64), 1 => Just(5_000), 1 => Just(40_000)];
    prop_oneof![
        2 => Just(End::Ack),
        1 => Just(End::Fail),
        2 => delay().prop_map(|delay_ms| End::Release { delay_ms }),
        2 => delay().prop_map(|delay_ms| End::Lost { delay_ms }),
        1 => delay().prop_map(|delay_ms| End::Unknown { delay_ms }),
        2 => delay().prop_map(|delay_ms| End::Ran { delay_ms }),
        3 => delay().prop_map(|delay_ms| End::Retry { delay_ms }),
    ]
    .boxed()
}

/// Shares with which doubles reckon exactly, so that equal tags are equal in every way of reckoning.
pub(crate) fn exact_share() -> BoxedStrategy<f64> {
    prop::sample::select(vec![1.0, 2.0, 0.5, 4.0, 0.25, 128.0, 0.125]).boxed()
}

/// Shares as people set them.
pub(crate) fn any_share() -> BoxedStrategy<f64> {
    prop_oneof![
        prop::sample::select(vec![1.0, 2.0, 3.0, 10.0, 0.001, 1_000.0, 1.0 / 3.0]),
        (1_u32..=1_000, prop::sample::select(vec![1.0, 3.0, 10.0, 1_000.0])).prop_map(|(a, b)| f64::from(a) / b),
    ]
    .boxed()
}

/// A share for every partition: in half of the lists all are 1.
pub(crate) fn shares(share: BoxedStrategy<f64>) -> impl Strategy<Value = Vec<f64>> {
    prop_oneof![Just(vec![1.0; PARTITIONS]), vec(share, PARTITIONS)]
}

pub(crate) fn ops(kinds: Kinds, share: BoxedStrategy<f64>) -> impl Strategy<Value = Ops> {
    let weight_max = prop::sample::select(vec![1_u32, 3, 10, 100, 1_000, 1_000_000]);
    weight_max.prop_flat_map(move |max| vec(op(kinds, max, share.clone()), 1..60).prop_map(Ops))
}

fn op(kinds: Kinds, weight_max: u32, share: BoxedStrategy<f64>) -> impl Strategy<Value = Op> {
    let partition = || 0..PARTITIONS;
    let pick = || 0_usize..50;
    let settle = || vec((pick(), end(kinds.trouble)), 0..4);
    let mut all: Vec<(u32, BoxedStrategy<Op>)> = vec![
        (
            6,
            (partition(), vec(1..=weight_max, 1..7), 0_usize..1_000)
                .prop_map(|(partition, weights, salt)| Op::Enqueue { partition, weights, salt })
                .boxed(),
        ),
        (6, (settle(), 0_usize..9).prop_map(|(settle, n)| Op::Dequeue { settle, n }).boxed()),
        (4, settle().prop_map(Op::Settle).boxed()),
        (1, pick().prop_map(Op::Extend).boxed()),
    ];
    if kinds.trouble {
        all.push((2, prop::sample::select(vec![1_000, 10_000, 31_000]).prop_map(|ms| Op::Tick { ms }).boxed()));
        all.push((1, vec(pick(), 1..4).prop_map(Op::Cancel).boxed()));
        all.push((1, pick().prop_map(Op::Redrive).boxed()));
        all.push((1, prop_oneof![4 => Just(Op::Sweep), 1 => partition().prop_map(Op::Purge)].boxed()));
    }
    if kinds.reshare {
        all.push((1, (partition(), share).prop_map(|(partition, share)| Op::Share(partition, share)).boxed()));
    }
    if kinds.modes {
        all.push((1, prop_oneof![Just(Op::Flatten), Just(Op::Unflatten)].boxed()));
    }
    Union::new_weighted(all)
}
