//! A small random world: operations as plain numbers, so that lists of them can be generated and shrunk, and the
//! commands they stand for.

use std::time::Duration;

use proptest::prelude::*;
use vtrr_queue::{Body, Cause, Delivery, Outcome, Owner, Queue, Released, Settlement, Tagging, Task, TaskId, Token};

/// One operation. Numbers pick among what is there when it runs.
#[derive(Debug, Clone)]
pub(crate) enum Op {
    Enqueue {
        partition: u8,
        weights: Vec<u8>,
        ids: Option<u8>,
        tagging: u8,
        bounds: Bounds,
    },
    /// The last enqueue once more, as after a lost reply.
    EnqueueAgain,
    Dequeue {
        n: u8,
        lease_s: u8,
        max_deliveries: u8,
        owner: Option<u8>,
        keep: u8,
        settle: Vec<(u8, Ending)>,
    },
    /// The last dequeue once more.
    DequeueAgain,
    Settle(Vec<(u8, Ending)>),
    SettleOwner {
        owner: u8,
        ending: Ending,
    },
    Extend {
        picks: Vec<u8>,
        lease_s: u8,
    },
    ExtendOwner {
        owner: u8,
        lease_s: u8,
    },
    Claim {
        pick: u8,
        owner: u8,
        lease_s: u8,
    },
    Sweep,
    Cancel(Vec<u8>),
    Purge(Option<u8>),
    Share {
        partition: u8,
        share: u8,
    },
    Flatten,
    Unflatten,
    DeadLetters {
        offset: u8,
        limit: u8,
    },
    Redrive(Vec<u8>),
    Discard(Vec<u8>),
    Stats,
    Partitions,
    Peek(u8),
    Find(u8),
    /// Seconds pass.
    Tick(u8),
}

/// `max_queued` and `max_queued_per_partition`.
type Bounds = (Option<u8>, Option<u8>);

/// How a delivery is settled.
#[derive(Debug, Clone)]
pub(crate) enum Ending {
    Ack,
    Release {
        delay_s: u8,
        how: Released,
    },
    Retry {
        delay_s: u8,
        body: bool,
    },
    Fail,
    /// With a token that never was.
    Stale,
}

impl Ending {
    pub(crate) fn outcome(&self) -> Outcome {
        match self {
            Self::Ack | Self::Stale => Outcome::Ack,
            Self::Release { delay_s, how } => Outcome::Release { delay_ms: u64::from(*delay_s) * 1_000, how: how.clone() },
            Self::Retry { delay_s, body } => Outcome::Retry {
                delay_ms: u64::from(*delay_s) * 1_000,
                body: body.then(|| Body::from_json(r#"{"task_name":"other","args":[1e400,{}],"kwargs":{}}"#).unwrap()),
            },
            Self::Fail => Outcome::Fail { cause: Cause::Failed, error: "ValueError: no".into() },
        }
    }
}

/// Partitions with everything in them that a key, a pattern or JSON could trip over.
pub(crate) const PARTITIONS: [&str; 5] = ["a", "b:lane:=c", "\"q\\uote\",\"weight\":9", "{ü😀}%3A", "c"];
pub(crate) const IDS: [&str; 6] = ["x", "y", "zz", "x~1", "+plus", "id with spaces"];
const OWNERS: [&str; 3] = ["w1", "w2:\"", "-w"];
const SHARES: [f64; 6] = [1.0, 2.0, 0.5, 10.0, 0.001, 3.7];

pub(crate) fn owner(i: u8) -> Owner {
    Owner::new(OWNERS[usize::from(i) % OWNERS.len()]).unwrap()
}

pub(crate) fn partition(i: u8) -> &'static str {
    PARTITIONS[usize::from(i) % PARTITIONS.len()]
}

pub(crate) fn share(i: u8) -> f64 {
    SHARES[usize::from(i) % SHARES.len()]
}

/// What a run has seen so far, for operations to pick from.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) ids: Vec<TaskId>,
    pub(crate) deliveries: Vec<Delivery>,
}

impl Seen {
    pub(crate) fn id(&self, i: u8) -> TaskId {
        let all = self.ids.len() + IDS.len();
        let i = usize::from(i) % all;
        self.ids.get(i).cloned().unwrap_or_else(|| TaskId::new(IDS[i - self.ids.len()]).unwrap())
    }

    /// Mostly the latest ones: a small number is a recent delivery.
    pub(crate) fn delivery(&self, i: u8) -> Option<&Delivery> {
        let n = self.deliveries.len();
        (n > 0).then(|| &self.deliveries[n - 1 - usize::from(i) % n])
    }

    pub(crate) fn settlements(&self, picks: &[(u8, Ending)]) -> Vec<Settlement> {
        let settlement = |(i, ending): &(u8, Ending)| {
            let delivery = self.delivery(*i)?;
            let token = match ending {
                Ending::Stale => Token::new("1-1").unwrap(),
                _ => delivery.token.clone(),
            };
            Some(Settlement::new(delivery.id.clone(), token, ending.outcome()).unwrap())
        };
        picks.iter().filter_map(settlement).collect()
    }
}

pub(crate) fn tasks(weights: &[u8], ids: Option<u8>, body: usize) -> Vec<Task> {
    weights
        .iter()
        .enumerate()
        .map(|(i, weight)| {
            let args = format!(r#"{{"task_name":"t","args":[{body},123456789012345678901234567890,[],{{}}]}}"#);
            let task = Task::with_body(Body::from_json(args).unwrap()).weight(i64::from(*weight).max(1)).unwrap();
            match ids {
                // From the fourth on an id of the same call again.
                Some(first) => task.id(TaskId::new(IDS[(usize::from(first) + i % 3) % IDS.len()]).unwrap()),
                None => task,
            }
        })
        .collect()
}

pub(crate) fn queue(name: &str, tagging: u8) -> Queue {
    let queue = Queue::new(name).unwrap();
    match tagging % 8 {
        0 => queue.tagging(Tagging::Head),
        1 => queue.tagging(Tagging::All),
        _ => queue,
    }
}

pub(crate) fn bounded(queue: Queue, (all, partition): Bounds) -> Queue {
    let queue = all.map_or(Ok(queue.clone()), |most| queue.max_queued(most.into())).unwrap();
    partition.map_or(Ok(queue.clone()), |most| queue.max_queued_per_partition(most.into())).unwrap()
}

pub(crate) fn seconds(s: u8) -> Duration {
    Duration::from_secs(u64::from(s))
}

fn released() -> impl Strategy<Value = Released> {
    prop_oneof![
        2 => Just(Released::Unrun),
        1 => Just(Released::Ran),
        1 => Just(Released::Stopped),
        2 => Just(Released::lost("a reason")),
        1 => Just(Released::unknown("no handler")),
    ]
}

fn ending() -> impl Strategy<Value = Ending> {
    let delay = prop_oneof![3 => Just(0_u8), 1 => Just(5), 1 => Just(40)];
    prop_oneof![
        4 => Just(Ending::Ack),
        5 => (delay.clone(), released()).prop_map(|(delay_s, how)| Ending::Release { delay_s, how }),
        3 => (delay, any::<bool>()).prop_map(|(delay_s, body)| Ending::Retry { delay_s, body }),
        1 => Just(Ending::Fail),
        1 => Just(Ending::Stale),
    ]
}

fn endings() -> impl Strategy<Value = Vec<(u8, Ending)>> {
    prop::collection::vec((0..8_u8, ending()), 1..4)
}

pub(crate) fn op() -> impl Strategy<Value = Op> {
    let weights = prop::collection::vec(prop_oneof![3 => Just(1_u8), 1 => 2..9_u8], 1..6);
    let bounds = (prop::option::weighted(0.2, 5..30_u8), prop::option::weighted(0.2, 1..10_u8));
    let settle = prop_oneof![1 => Just(Vec::new()), 1 => endings()];
    prop_oneof![
        10 => (0..5_u8, weights, prop::option::weighted(0.3, 0..6_u8), 0..16_u8, bounds).prop_map(
            |(partition, weights, ids, tagging, bounds)| Op::Enqueue { partition, weights, ids, tagging, bounds }),
        1 => Just(Op::EnqueueAgain),
        10 => (0..7_u8, 1..40_u8, 1..4_u8, prop::option::of(0..3_u8), any::<u8>(), settle).prop_map(
            |(n, lease_s, max_deliveries, owner, keep, settle)| Op::Dequeue { n, lease_s, max_deliveries, owner, keep, settle }),
        1 => Just(Op::DequeueAgain),
        6 => endings().prop_map(Op::Settle),
        1 => (0..3_u8, ending()).prop_map(|(owner, ending)| Op::SettleOwner { owner, ending }),
        1 => (prop::collection::vec(0..8_u8, 1..4), 1..40_u8).prop_map(|(picks, lease_s)| Op::Extend { picks, lease_s }),
        1 => (0..3_u8, 1..40_u8).prop_map(|(owner, lease_s)| Op::ExtendOwner { owner, lease_s }),
        3 => (0..5_u8, 0..3_u8, 1..40_u8).prop_map(|(pick, owner, lease_s)| Op::Claim { pick, owner, lease_s }),
        2 => Just(Op::Sweep),
        3 => prop::collection::vec(any::<u8>(), 1..4).prop_map(Op::Cancel),
        1 => prop::option::of(0..5_u8).prop_map(Op::Purge),
        2 => (0..5_u8, 0..6_u8).prop_map(|(partition, share)| Op::Share { partition, share }),
        1 => Just(Op::Flatten),
        1 => Just(Op::Unflatten),
        1 => (0..3_u8, 1..5_u8).prop_map(|(offset, limit)| Op::DeadLetters { offset, limit }),
        1 => prop::collection::vec(any::<u8>(), 1..4).prop_map(Op::Redrive),
        1 => prop::collection::vec(any::<u8>(), 1..4).prop_map(Op::Discard),
        1 => Just(Op::Stats),
        1 => Just(Op::Partitions),
        2 => (1..12_u8).prop_map(Op::Peek),
        2 => any::<u8>().prop_map(Op::Find),
        5 => prop_oneof![Just(1_u8), Just(10), Just(31), Just(70)].prop_map(Op::Tick),
    ]
}
