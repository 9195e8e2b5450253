//! Plays operations on the state in memory, keeps the books, and, if asked, holds the state against the oracle.

use std::collections::BTreeMap;
use std::time::Duration;

use vtrr_queue::{Cause, Delivery, Released, Settlement, Tagging};

use super::books::{Books, End, Known};
use super::ops::Op;
use super::oracle::{Oracle, Queued};
use super::world::{World, id_of, task};

/// What the bounds are about.
#[derive(Debug)]
pub(crate) enum Event {
    /// A task was handed out while these partitions had unpaid tasks queued.
    Served {
        partition: String,
        charged: u32,
        busy: Vec<String>,
    },
    /// A partition with nothing queued, and no F that R1 would look at, got something.
    Newcomer(String),
    Share {
        partition: String,
        share: f64,
    },
    /// An operation has ended, and these partitions have unpaid tasks queued.
    Ended {
        busy: Vec<String>,
    },
    /// Nothing was queued any more.
    Empty,
}

pub(crate) struct Game {
    pub(crate) world: World,
    pub(crate) books: Books,
    pub(crate) oracle: Option<Oracle>,
    /// Whether doubles reckon exactly with the shares used: then records too are held against the oracle's.
    pub(crate) exact: bool,
    pub(crate) log: Vec<Event>,
    /// Ids in order of service, with V.
    pub(crate) served: Vec<(String, f64)>,
    /// Ids with their partition, in order of enqueue.
    pub(crate) enqueued: Vec<(String, String)>,
    /// How partitions are called.
    pub(crate) names: Vec<String>,
    /// What the `n`th id is, for a salt.
    pub(crate) name_id: fn(usize, usize) -> String,
    pub(crate) share: BTreeMap<String, f64>,
    pub(crate) all: bool,
    pub(crate) switched: bool,
    held: BTreeMap<String, Delivery>,
}

/// Ids that sort in any order.
fn salted(salt: usize, n: usize) -> String {
    format!("{:03}-{n:05}", (salt * 7_919 + n * 104_729) % 1_000)
}

impl Game {
    pub(crate) fn new(tagging: Tagging, shares: &[f64]) -> Self {
        Self::named(tagging, shares, |i| format!("P{i}"), salted)
    }

    pub(crate) fn named(
        tagging: Tagging,
        shares: &[f64],
        name: impl Fn(usize) -> String,
        name_id: fn(usize, usize) -> String,
    ) -> Self {
        let mut game = Self {
            world: World::new(tagging),
            books: Books::default(),
            oracle: None,
            exact: false,
            log: Vec::new(),
            served: Vec::new(),
            enqueued: Vec::new(),
            names: (0..shares.len()).map(name).collect(),
            name_id,
            share: BTreeMap::new(),
            all: tagging == Tagging::All,
            switched: false,
            held: BTreeMap::new(),
        };
        for (i, share) in shares.iter().enumerate() {
            game.set_share(i, *share);
        }
        game
    }

    /// Holds every step against the oracle.
    pub(crate) fn with_oracle(mut self, remembers: bool) -> Self {
        let share = self.share.clone();
        self.oracle = Some(Oracle::new(self.all, remembers, share));
        self
    }

    pub(crate) fn play_all(&mut self, ops: &[Op]) {
        for op in ops {
            self.play(op);
        }
    }

    pub(crate) fn play(&mut self, op: &Op) {
        match op {
            Op::Enqueue { partition, weights, salt } => self.enqueue(*partition, weights, *salt),
            Op::Dequeue { settle, n } => self.dequeue(settle, *n),
            Op::Settle(ends) => self.settle(ends),
            Op::Extend(pick) => self.extend(*pick),
            Op::Tick { ms } => self.world.now_ms += ms,
            Op::Cancel(picks) => self.cancel(picks),
            Op::Purge(partition) => self.purge(*partition),
            Op::Share(partition, share) => self.set_share(*partition, *share),
            Op::Redrive(pick) => self.redrive(*pick),
            Op::Sweep => self.sweep(),
            Op::Flatten => self.flatten(),
            Op::Unflatten => self.unflatten(),
        }
        if let Some(oracle) = &mut self.oracle {
            oracle.end();
        }
        self.log.push(Event::Ended { busy: self.books.backlogged() });
        if self.books.queued().is_empty() {
            self.log.push(Event::Empty);
        }
    }

    pub(crate) fn share_of(&self, partition: &str) -> f64 {
        self.share.get(partition).copied().unwrap_or(1.0)
    }

    fn enqueue(&mut self, partition: usize, weights: &[u32], salt: usize) {
        let partition = self.names[partition].clone();
        self.note_newcomer(&partition);
        let mut tasks = Vec::new();
        for weight in weights {
            let id = (self.name_id)(salt, self.enqueued.len());
            tasks.push(task(id.clone(), *weight));
            self.books.add(&id, &partition, *weight);
            self.enqueued.push((id, partition.clone()));
        }
        self.world.add(&partition, tasks);
        let ids: Vec<_> = self.enqueued.iter().rev().take(weights.len()).rev().map(|(id, _)| id.clone()).collect();
        let tasks = self.queued(&ids);
        if let Some(oracle) = &mut self.oracle {
            oracle.enqueue(&partition, tasks);
        }
    }

    pub(crate) fn note_newcomer(&mut self, partition: &str) {
        if !self.books.has_queued(partition) {
            let entry = self.world.v() + 1.0 / self.share_of(partition);
            if self.world.finish(partition).is_none_or(|finish| finish <= entry) {
                self.log.push(Event::Newcomer(partition.to_owned()));
            }
        }
    }

    /// These tasks as the oracle takes them.
    pub(crate) fn queued(&self, ids: &[String]) -> Vec<Queued> {
        let task = |id: &String| {
            let Known { partition, weight, paid, served, .. } = self.books.tasks[id].clone();
            Queued { id: id.clone(), partition, weight, paid, served }
        };
        ids.iter().map(task).collect()
    }

    /// Ends the picked deliveries in the books and in the oracle.
    fn settlements(&mut self, ends: &[(usize, End)]) -> Vec<Settlement> {
        let mut leased = self.books.leased();
        let (mut settlements, mut back) = (Vec::new(), Vec::new());
        for (pick, end) in ends {
            if leased.is_empty() {
                break;
            }
            let id = leased.remove(pick % leased.len());
            settlements.push(settlement(&self.held[&id], *end));
            if self.books.end(&id, *end, self.world.now_ms) {
                back.push(id);
            }
        }
        self.give_back(&back);
        settlements
    }

    pub(crate) fn give_back(&mut self, ids: &[String]) {
        let tasks = self.queued(ids);
        if let Some(oracle) = &mut self.oracle {
            oracle.give_back(tasks);
        }
    }

    fn settle(&mut self, ends: &[(usize, End)]) {
        let settlements = self.settlements(ends);
        if !settlements.is_empty() {
            self.world.settle(settlements);
        }
    }

    fn dequeue(&mut self, ends: &[(usize, End)], n: usize) {
        let settlements = self.settlements(ends);
        let due = self.books.due(self.world.now_ms, 100);
        self.give_back(&due);
        let expected = self.oracle.as_mut().map(|oracle| oracle.dequeue(n));
        let command = self.world.queue.dequeue(n).unwrap().settle(settlements).unwrap();
        let deliveries = self.world.run(command).unwrap().deliveries;
        let ids: Vec<_> = deliveries.iter().map(id_of).collect();
        let mut starts = vec![0.0; ids.len()];
        if let Some(expected) = expected {
            assert_eq!(ids, expected.iter().map(|(task, _)| task.id.clone()).collect::<Vec<_>>(), "order of service");
            starts = expected.iter().map(|(_, start)| *start).collect();
        }
        let v = self.world.v();
        for (delivery, start) in deliveries.into_iter().zip(starts) {
            let id = id_of(&delivery);
            let busy = self.books.backlogged();
            let charged = self.books.deliver(&id, start, self.world.now_ms);
            let partition = self.books.tasks[&id].partition.clone();
            assert_eq!(delivery.payload.partition().unwrap().as_str(), partition);
            self.log.push(Event::Served { partition, charged, busy });
            self.served.push((id.clone(), v));
            self.held.insert(id, delivery);
        }
    }

    fn extend(&mut self, pick: usize) {
        let leased = self.books.leased();
        if leased.is_empty() {
            return;
        }
        let id = &leased[pick % leased.len()];
        let delivery = self.held[id].clone();
        self.books.extend(id, self.world.now_ms);
        let command = self.world.queue.extend(&[delivery], vtrr_queue::DEFAULT_LEASE).unwrap();
        self.world.run(command).unwrap();
    }

    /// Serves until nothing is left, however it was given back.
    pub(crate) fn drain(&mut self) {
        for _ in 0..2_000 {
            if self.books.is_drained() {
                return;
            }
            self.play(&Op::Dequeue { settle: vec![(0, End::Ack); 3], n: 3 });
            self.play(&Op::Tick { ms: if self.books.leased().is_empty() { 41_000 } else { 0 } });
        }
        panic!("stuck: {:?}", self.books.tasks);
    }
}

fn settlement(delivery: &Delivery, end: End) -> Settlement {
    let (delay_ms, how) = match end {
        End::Ack => return Settlement::ack(delivery),
        End::Fail => return Settlement::fail(delivery, Cause::Failed, "no"),
        End::Retry { delay_ms } => return Settlement::retry(delivery, Duration::from_millis(delay_ms), None).unwrap(),
        End::Release { delay_ms } => (delay_ms, Released::Unrun),
        End::Ran { delay_ms } => (delay_ms, Released::Ran),
        End::Lost { delay_ms } => (delay_ms, Released::lost("lost")),
        End::Unknown { delay_ms } => (delay_ms, Released::unknown("unknown")),
    };
    Settlement::release(delivery, Duration::from_millis(delay_ms), how).unwrap()
}
