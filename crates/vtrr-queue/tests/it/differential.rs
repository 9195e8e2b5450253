//! The memory runner against a real server: random lists of operations, time as an input; every answer equal, and the
//! whole state equal at the end. The clock of the scripts is replaced in their text, nothing else.

use std::fmt::Debug;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use vtrr_queue::{Cause, Command, Dequeue, Enqueue, Released, Result, State, Step};

use crate::clocked::Clocked;
use crate::server::Kind;
use crate::world::{self, Op, Seen};

/// Both sides of the comparison.
struct Twins<'a> {
    server: &'a mut Clocked,
    state: State,
    now_us: u64,
    seen: Seen,
    last_enqueue: Option<Enqueue>,
    last_dequeue: Option<Dequeue>,
}

impl Twins<'_> {
    fn both<C: Command + Clone>(&mut self, command: C) -> std::result::Result<Option<C::Reply>, TestCaseError>
    where
        C::Reply: Debug,
    {
        let ours = apply(command.clone(), &mut self.state, self.now_us);
        self.server.set_clock(self.now_us);
        let theirs = self.server.run(command);
        let (a, b) = (format!("{ours:?}"), format!("{theirs:?}"));
        prop_assert_eq!(a, b, "memory, then server");
        Ok(ours.ok())
    }

    fn step(&mut self, name: &str, op: &Op) -> std::result::Result<(), TestCaseError> {
        let queue = world::queue(name, 9);
        match op {
            Op::Enqueue { partition, weights, ids, tagging, bounds } => {
                let tasks = world::tasks(weights, *ids, self.seen.ids.len());
                let queue = world::bounded(world::queue(name, *tagging), *bounds);
                let command = queue.enqueue(world::partition(*partition), tasks).unwrap();
                self.last_enqueue = Some(command.clone());
                if let Some(enqueued) = self.both(command)? {
                    self.seen.ids.extend(enqueued.ids);
                }
            }
            Op::EnqueueAgain => {
                if let Some(command) = self.last_enqueue.clone() {
                    self.both(command)?;
                }
            }
            Op::Dequeue { n, lease_s, max_deliveries, owner, keep, settle } => {
                let mut command = queue.dequeue(usize::from(*n)).unwrap().lease(world::seconds(*lease_s)).unwrap();
                command = command.max_deliveries(u32::from(*max_deliveries)).unwrap();
                command = command.settle(self.seen.settlements(settle)).unwrap();
                if let Some(i) = owner {
                    let recent = self.seen.deliveries.iter().rev().take(8).enumerate();
                    let holding = recent.filter(|(i, _)| keep >> i & 1 == 1).map(|(_, delivery)| delivery.id.clone());
                    command = command.owner(world::owner(*i), holding.collect());
                }
                self.last_dequeue = Some(command.clone());
                if let Some(dequeued) = self.both(command)? {
                    self.seen.deliveries.extend(dequeued.deliveries);
                }
            }
            Op::DequeueAgain => {
                if let Some(command) = self.last_dequeue.clone() {
                    self.both(command)?;
                }
            }
            Op::Settle(picks) => {
                let settlements = self.seen.settlements(picks);
                if !settlements.is_empty() {
                    self.both(queue.settle(settlements).unwrap())?;
                }
            }
            Op::SettleOwner { owner, ending } => {
                let owner = world::owner(*owner);
                match ending {
                    world::Ending::Fail => self.both(queue.fail_owner(owner, Cause::Failed, "stopped"))?,
                    _ => self.both(queue.release_owner(owner, Released::Unrun))?,
                };
            }
            Op::Extend { picks, lease_s } => {
                let deliveries: Vec<_> = picks.iter().filter_map(|i| self.seen.delivery(*i)).cloned().collect();
                if !deliveries.is_empty() {
                    self.both(queue.extend(&deliveries, world::seconds(*lease_s)).unwrap())?;
                }
            }
            Op::ExtendOwner { owner, lease_s } => {
                self.both(queue.extend_owner(world::owner(*owner), world::seconds(*lease_s)).unwrap())?;
            }
            Op::Claim { pick, owner, lease_s } => {
                if let Some(delivery) = self.seen.delivery(*pick).cloned() {
                    let lease = world::seconds(*lease_s);
                    let command = queue.claim(delivery.id, delivery.token, world::owner(*owner), lease).unwrap();
                    if let Some(Some(claimed)) = self.both(command)? {
                        self.seen.deliveries.push(claimed);
                    }
                }
            }
            Op::Sweep => drop(self.both(queue.sweep())?),
            Op::Cancel(ids) => {
                let ids: Vec<_> = ids.iter().map(|i| self.seen.id(*i)).collect();
                self.both(queue.cancel(ids).unwrap())?;
            }
            Op::Purge(Some(partition)) => drop(self.both(queue.purge(world::partition(*partition)).unwrap())?),
            Op::Purge(None) => drop(self.both(queue.purge_all())?),
            Op::Share { partition, share } => {
                self.both(queue.set_share(world::partition(*partition), world::share(*share)).unwrap())?;
            }
            Op::Flatten => drop(self.both(queue.flatten())?),
            Op::Unflatten => drop(self.both(queue.unflatten())?),
            Op::DeadLetters { offset, limit } => {
                self.both(queue.dead_letters(usize::from(*offset), usize::from(*limit)).unwrap())?;
            }
            Op::Redrive(ids) => {
                let ids: Vec<_> = ids.iter().map(|i| self.seen.id(*i)).collect();
                self.both(queue.redrive(ids).unwrap())?;
            }
            Op::Discard(ids) => {
                let ids: Vec<_> = ids.iter().map(|i| self.seen.id(*i)).collect();
                self.both(queue.discard(ids).unwrap())?;
            }
            Op::Stats => drop(self.both(queue.stats())?),
            Op::Partitions => drop(self.both(queue.partitions())?),
            Op::Peek(n) => drop(self.both(queue.peek(usize::from(*n)).unwrap())?),
            Op::Find(i) => drop(self.both(queue.find(self.seen.id(*i)))?),
            Op::Tick(s) => self.now_us += u64::from(*s) * 1_000_000 + 137,
        }
        Ok(())
    }
}

fn apply<C: Command>(mut command: C, state: &mut State, now_us: u64) -> Result<C::Reply> {
    loop {
        match command.apply(state.at(now_us)) {
            Ok(Step::Done(reply)) => return Ok(reply),
            Ok(Step::Again) => {}
            Err(error) => return Err(command.interrupted(error)),
        }
    }
}

fn compare(server: &mut Clocked, name: &str, ops: &[Op]) -> std::result::Result<(), TestCaseError> {
    let state = State::default();
    let now_us = 1_800_000_000_000_000;
    let mut twins = Twins { server, state, now_us, seen: Seen::default(), last_enqueue: None, last_dequeue: None };
    for op in ops {
        twins.step(name, op)?;
    }
    let (ours, theirs) = (twins.state.dump(), twins.server.dump(name));
    prop_assert_eq!(ours, theirs, "memory, then server");
    Ok(())
}

/// Lists to try: 2,000, or what `VTRR_LISTS` says.
fn lists() -> u32 {
    static LISTS: OnceLock<u32> = OnceLock::new();
    *LISTS.get_or_init(|| std::env::var("VTRR_LISTS").ok().and_then(|n| n.parse().ok()).unwrap_or(2_000))
}

fn memory_equals(kind: Kind) {
    static NAMES: AtomicU32 = AtomicU32::new(0);
    let config = Config { cases: lists(), max_shrink_iters: 20_000, failure_persistence: None, ..Config::default() };
    let server = std::cell::RefCell::new(Clocked::new(kind));
    let result = TestRunner::new(config).run(&prop::collection::vec(world::op(), 1..60), |ops| {
        let name = format!("q{}", NAMES.fetch_add(1, Ordering::Relaxed));
        let outcome = compare(&mut server.borrow_mut(), &name, &ops);
        redis::cmd("FLUSHALL").exec(&mut server.borrow_mut().connection).unwrap();
        outcome
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

#[test]
fn memory_and_redis_7_give_the_same_answers_and_state() {
    memory_equals(Kind::Redis);
}

#[test]
fn memory_and_valkey_8_give_the_same_answers_and_state() {
    memory_equals(Kind::Valkey);
}

#[test]
fn memory_and_redis_6_2_give_the_same_answers_and_state() {
    memory_equals(Kind::Redis62);
}
