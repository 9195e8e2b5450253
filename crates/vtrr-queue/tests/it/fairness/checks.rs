//! What must hold after every operation.

use std::collections::BTreeMap;

use super::books::Place;
use super::game::Game;
use super::ops::Op;
use super::world::{Seen, lane_key};

impl Game {
    /// Plays, and checks after every operation.
    pub(crate) fn play_checked(&mut self, ops: &[Op]) {
        for op in ops {
            let v = self.world.v();
            self.play(op);
            let seen = self.world.see();
            Self::check_v(v, &seen);
            self.check_places(&seen);
            if self.all || !self.switched {
                self.check_heads(&seen);
            }
            if self.oracle.is_some() {
                self.check_against_oracle(&seen);
            }
        }
    }

    /// V never goes back, except to 0 when nothing is queued; no tag lies behind it.
    fn check_v(before: f64, seen: &Seen) {
        if seen.tags.is_empty() {
            assert!(seen.v == 0.0, "V = {} in an empty queue", seen.v);
        } else {
            assert!(seen.v >= before, "V went back from {before} to {}", seen.v);
        }
        assert!(seen.tags.values().all(|start| *start >= seen.v && start.is_finite()), "a tag behind V: {seen:?}");
    }

    /// Every task is in exactly one place, and it is the right one.
    fn check_places(&self, seen: &Seen) {
        let mut queued: Vec<_> = seen.tags.keys().chain(seen.lanes.values().flatten()).cloned().collect();
        queued.sort();
        assert_eq!(queued, self.books.queued(), "queued");
        let ids = |key: &str| seen.dump.get(key).into_iter().flat_map(BTreeMap::keys).cloned().collect::<Vec<_>>();
        assert_eq!(ids("lease"), self.books.ids(|place| matches!(place, Place::Leased { .. })), "leased");
        assert_eq!(ids("delayed"), self.books.ids(|place| matches!(place, Place::Delayed { .. })), "delayed");
        assert_eq!(ids("dead"), self.books.ids(|place| place == Place::Dead), "dead");
    }

    /// Mode `head`: one tag for every partition with tasks. Mode `all`: a tag for every task.
    fn check_heads(&self, seen: &Seen) {
        if self.all {
            assert!(seen.lanes.is_empty(), "{:?}", seen.lanes);
            return;
        }
        for name in &self.names {
            let tags = seen.tags.keys().filter(|id| self.books.tasks[*id].partition == *name).count();
            assert_eq!(tags, usize::from(self.books.has_queued(name)), "tags of {name:?}");
        }
    }

    fn check_against_oracle(&self, seen: &Seen) {
        let oracle = self.oracle.as_ref().unwrap();
        assert_eq!(seen.v, oracle.v, "V");
        assert_eq!(seen.tags, oracle.tags(), "start tags");
        let lanes: BTreeMap<_, _> = oracle.lanes().into_iter().map(|(name, ids)| (lane_key(&name), ids)).collect();
        assert_eq!(seen.lanes, lanes, "lanes");
        if self.exact && !oracle.remembers {
            assert_eq!(seen.finish, oracle.finish, "F");
        }
        for name in &self.names {
            // What R1 makes of F, where R1 comes first.
            let entry = if oracle.has_unpaid(name) { f64::MIN } else { oracle.v + 1.0 / oracle.share_of(name) };
            let finish = |finish: &BTreeMap<String, f64>| finish.get(name).copied().unwrap_or(f64::MIN).max(entry);
            assert_eq!(finish(&seen.finish), finish(&oracle.finish), "F of {name:?}");
        }
    }

    /// After a drain: dead letters aside there is no key left.
    pub(crate) fn check_empty(&mut self) {
        let dead = self.books.dead();
        if !dead.is_empty() {
            let ids = dead.iter().map(|id| vtrr_queue::TaskId::new(id.as_str()).unwrap());
            let command = self.world.queue.discard(ids).unwrap();
            self.world.run(command).unwrap();
        }
        let seen = self.world.see();
        assert!(seen.left_over().is_empty(), "left over: {:?}", seen.dump);
        assert_eq!(seen.v, 0.0);
    }
}
