//! Plays the operations that are not the daily ones: shares, cancels, redrives, sweeps, changes of the mode.

use vtrr_queue::{Queue, TaskId};

use super::books::Known;
use super::game::{Event, Game};
use super::oracle::Oracle;

impl Game {
    pub(crate) fn cancel(&mut self, picks: &[usize]) {
        let mut ids = Vec::new();
        for pick in picks {
            let candidates = self.books.cancellable();
            if !candidates.is_empty() {
                ids.push(candidates[pick % candidates.len()].clone());
                self.books.tasks.remove(&ids[ids.len() - 1]);
            }
        }
        if ids.is_empty() {
            return;
        }
        let command = self.world.queue.cancel(ids.iter().map(|id| TaskId::new(id.as_str()).unwrap())).unwrap();
        self.world.run(command).unwrap();
        self.forget(&ids);
    }

    pub(crate) fn purge(&mut self, partition: usize) {
        let partition = self.names[partition].clone();
        let command = self.world.queue.purge(partition.as_str()).unwrap();
        self.world.run(command).unwrap();
        let mut ids = self.books.queued();
        ids.retain(|id| self.books.tasks[id].partition == partition);
        for id in &ids {
            self.books.tasks.remove(id);
        }
        // The head last, so that no other becomes one on the way.
        let tags = self.oracle.as_ref().map(Oracle::tags).unwrap_or_default();
        ids.sort_by_key(|id| tags.contains_key(id));
        self.forget(&ids);
    }

    fn forget(&mut self, ids: &[String]) {
        if let Some(oracle) = &mut self.oracle {
            for id in ids {
                oracle.cancel(id);
            }
        }
    }

    pub(crate) fn set_share(&mut self, partition: usize, share: f64) {
        let partition = self.names[partition].clone();
        self.world.share(&partition, share);
        if let Some(oracle) = &mut self.oracle {
            oracle.set_share(&partition, share);
        }
        self.share.insert(partition.clone(), share);
        self.log.push(Event::Share { partition, share });
    }

    pub(crate) fn redrive(&mut self, pick: usize) {
        let dead = self.books.dead();
        if dead.is_empty() {
            return;
        }
        let id = &dead[pick % dead.len()];
        let Known { partition, weight, .. } = self.books.tasks[id].clone();
        self.note_newcomer(&partition);
        let command = self.world.queue.redrive([TaskId::new(id.as_str()).unwrap()]).unwrap();
        assert_eq!(self.world.run(command).unwrap(), [true]);
        self.books.add(id, &partition, weight);
        let tasks = self.queued(std::slice::from_ref(id));
        if let Some(oracle) = &mut self.oracle {
            oracle.enqueue(&partition, tasks);
        }
    }

    pub(crate) fn sweep(&mut self) {
        let due = self.books.due(self.world.now_ms, 1_000);
        self.give_back(&due);
        let command = self.world.queue.sweep();
        self.world.run(command).unwrap();
    }

    pub(crate) fn flatten(&mut self) {
        if !self.all {
            let delayed = self.books.bring_delayed();
            self.give_back(&delayed);
            if let Some(oracle) = &mut self.oracle {
                oracle.flatten();
            }
            let command = self.world.queue.flatten();
            assert_eq!(self.world.run(command).unwrap().in_lanes, 0);
            self.switch(true);
        }
    }

    pub(crate) fn unflatten(&mut self) {
        if self.all {
            if let Some(oracle) = &mut self.oracle {
                oracle.unflatten();
            }
            let command = self.world.queue.unflatten();
            self.world.run(command).unwrap();
            self.switch(false);
        }
    }

    fn switch(&mut self, all: bool) {
        self.world.queue = Queue::new("fair").unwrap();
        (self.all, self.switched) = (all, true);
    }
}
