//! What can be known of the tasks from outside, without knowing the order: who has which, who has paid.

use std::collections::BTreeMap;

pub(crate) const LEASE_MS: u64 = 30_000;
pub(crate) const MAX_DELIVERIES: u32 = 5;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Place {
    Queued,
    Leased { until: u64 },
    Delayed { until: u64 },
    Dead,
}

/// How a delivery ends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum End {
    Ack,
    Fail,
    /// It did not run.
    Release {
        delay_ms: u64,
    },
    Ran {
        delay_ms: u64,
    },
    Lost {
        delay_ms: u64,
    },
    Unknown {
        delay_ms: u64,
    },
    Retry {
        delay_ms: u64,
    },
}

#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) partition: String,
    pub(crate) weight: u32,
    /// Its next delivery is free.
    pub(crate) paid: bool,
    pub(crate) place: Place,
    /// The tag it was served at, and how many were served before it.
    pub(crate) served: (f64, u64),
    free_used: bool,
    blames: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Books {
    pub(crate) tasks: BTreeMap<String, Known>,
    served: u64,
}

impl Books {
    pub(crate) fn add(&mut self, id: &str, partition: &str, weight: u32) {
        let known = Known {
            partition: partition.to_owned(),
            weight,
            paid: false,
            place: Place::Queued,
            served: (0.0, 0),
            free_used: false,
            blames: 0,
        };
        self.tasks.insert(id.to_owned(), known);
    }

    pub(crate) fn ids(&self, place: impl Fn(Place) -> bool) -> Vec<String> {
        self.tasks.iter().filter(|(_, known)| place(known.place)).map(|(id, _)| id.clone()).collect()
    }

    pub(crate) fn leased(&self) -> Vec<String> {
        let mut ids = self.ids(|place| matches!(place, Place::Leased { .. }));
        ids.sort_by_key(|id| self.tasks[id].served.1);
        ids
    }

    pub(crate) fn queued(&self) -> Vec<String> {
        self.ids(|place| place == Place::Queued)
    }

    pub(crate) fn dead(&self) -> Vec<String> {
        self.ids(|place| place == Place::Dead)
    }

    pub(crate) fn cancellable(&self) -> Vec<String> {
        self.ids(|place| matches!(place, Place::Queued | Place::Delayed { .. }))
    }

    /// Dead letters aside, nothing is left.
    pub(crate) fn is_drained(&self) -> bool {
        self.tasks.values().all(|known| known.place == Place::Dead)
    }

    pub(crate) fn has_queued(&self, partition: &str) -> bool {
        self.tasks.values().any(|known| known.partition == partition && known.place == Place::Queued)
    }

    /// Partitions with unpaid tasks queued.
    pub(crate) fn backlogged(&self) -> Vec<String> {
        let unpaid = self.tasks.values().filter(|known| known.place == Place::Queued && !known.paid);
        let mut partitions: Vec<_> = unpaid.map(|known| known.partition.clone()).collect();
        partitions.sort();
        partitions.dedup();
        partitions
    }

    /// The task is handed out; answers what its partition pays.
    pub(crate) fn deliver(&mut self, id: &str, start: f64, now: u64) -> u32 {
        self.served += 1;
        let known = self.tasks.get_mut(id).unwrap_or_else(|| panic!("{id:?} was handed out, but nobody queued it"));
        assert_eq!(known.place, Place::Queued, "{id:?} was handed out");
        known.place = Place::Leased { until: now + LEASE_MS };
        known.served = (start, self.served);
        if std::mem::take(&mut known.paid) { 0 } else { known.weight }
    }

    pub(crate) fn extend(&mut self, id: &str, now: u64) {
        self.tasks.get_mut(id).unwrap().place = Place::Leased { until: now + LEASE_MS };
    }

    /// All delayed tasks are queued again.
    pub(crate) fn bring_delayed(&mut self) -> Vec<String> {
        let ids = self.ids(|place| matches!(place, Place::Delayed { .. }));
        for id in &ids {
            self.tasks.get_mut(id).unwrap().place = Place::Queued;
        }
        ids
    }

    /// The delivery ends; answers whether the task is to be placed at once.
    pub(crate) fn end(&mut self, id: &str, end: End, now: u64) -> bool {
        let known = self.tasks.get_mut(id).unwrap();
        let delay_ms = match end {
            End::Ack => {
                self.tasks.remove(id);
                return false;
            }
            End::Fail => {
                known.place = Place::Dead;
                return false;
            }
            End::Retry { delay_ms } | End::Ran { delay_ms } => delay_ms,
            End::Release { delay_ms } => {
                known.paid = true;
                delay_ms
            }
            End::Lost { delay_ms } | End::Unknown { delay_ms } => {
                let is_lost = matches!(end, End::Lost { .. });
                known.paid = !is_lost || !known.free_used;
                known.free_used |= is_lost;
                known.blames += 1;
                if known.blames >= MAX_DELIVERIES {
                    known.place = Place::Dead;
                    return false;
                }
                delay_ms
            }
        };
        known.place = if delay_ms == 0 { Place::Queued } else { Place::Delayed { until: now + delay_ms } };
        delay_ms == 0
    }

    /// What is due: expired leases and delayed tasks, by time, at most `limit`. Answers what is to be placed.
    pub(crate) fn due(&mut self, now: u64, limit: usize) -> Vec<String> {
        let when = |known: &Known| match known.place {
            Place::Leased { until } => Some((until, 0)),
            Place::Delayed { until } => Some((until, 1)),
            Place::Queued | Place::Dead => None,
        };
        let mut due: Vec<_> = self.tasks.iter().filter_map(|(id, known)| Some((when(known)?, id.clone()))).collect();
        due.retain(|((until, _), _)| *until <= now);
        due.sort();
        due.truncate(limit);
        due.retain(|((_, kind), id)| {
            if *kind == 0 {
                return self.end(id, End::Lost { delay_ms: 0 }, now);
            }
            self.tasks.get_mut(id).unwrap().place = Place::Queued;
            true
        });
        due.into_iter().map(|(_, id)| id).collect()
    }
}
