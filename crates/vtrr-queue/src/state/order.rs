//! The order: rules R1 to R11 of docs/protocol.md on the state in memory.

use super::{Entry, Head, Kind, Place, State};
use crate::tag::{self, Weight};
use crate::task::Payload;

/// A tagged task that was just taken off the order.
#[derive(Debug)]
pub(crate) struct Tagged {
    pub(crate) id: String,
    pub(crate) start: f64,
    /// None when somebody else removed it.
    pub(crate) payload: Option<Payload>,
    pub(crate) partition: Option<String>,
}

impl State {
    fn touch(&mut self, partition: &str) -> &mut Head {
        if !self.touched.contains(partition) {
            self.touched.insert(partition.to_owned());
        }
        self.head.entry(partition.to_owned()).or_default()
    }

    /// R1.
    fn arrive(&mut self, partition: &str) {
        let finish = tag::arrival(self.finish.get(partition).copied(), self.virtual_time, self.share_of(partition));
        self.finish.insert(partition.to_owned(), finish);
    }

    /// R2 and R3: the next start tag of the partition, paid for.
    fn charge(&mut self, partition: &str, weight: Weight) -> f64 {
        let start = self.next_start(partition);
        self.finish.insert(partition.to_owned(), tag::finish_tag(start, weight, self.share_of(partition)));
        start
    }

    fn next_start(&self, partition: &str) -> f64 {
        tag::start_tag(self.finish.get(partition).copied(), self.virtual_time)
    }

    fn put_tag(&mut self, id: &str, start: f64, payload: Payload) {
        if let (Some(place), Some(theirs)) = (self.queue.score(id), self.task.remove(id)) {
            // 0.1.0 queued a task of its own under this id: it keeps its place, under an id derived from it.
            self.put_tag(&format!("{id}~{}", self.now_us), place, theirs);
        }
        self.queue.insert(id, start);
        self.task.insert(id.to_owned(), payload);
    }

    /// Adds new tasks of one partition, in order: an arrival if the partition has no unpaid task queued, and in mode
    /// `all` at every call. O(log partitions) and O(1) per task in mode `head`, O(log tasks) per task in mode `all`.
    pub(crate) fn add(&mut self, partition: &str, tasks: Vec<(String, Payload)>) {
        self.placed = true;
        let all = self.is_mode_all();
        if all || self.touch(partition).unpaid() == 0 {
            self.arrive(partition);
        }
        for (id, payload) in tasks {
            if all {
                let start = self.charge(partition, payload.weight());
                self.put_tag(&id, start, payload);
                self.touch(partition).old += 1;
            } else {
                let serial = payload.prefix().map_or(0, |prefix| prefix.serial);
                self.lane.entry(partition.to_owned()).or_default().push_back(Entry { serial, id: id.clone() });
                self.waiting.insert(id, payload);
                self.touch(partition).lane += 1;
            }
        }
        self.promote(partition);
    }

    /// Adds a task whose partition is unknown: one that 0.1.0 stored.
    pub(crate) fn add_unknown(&mut self, id: &str, payload: Payload) {
        self.placed = true;
        self.put_tag(id, self.virtual_time + 1.0, payload);
    }

    /// Gives the partition a head, if it may have one and has none.
    pub(crate) fn promote(&mut self, partition: &str) {
        let head = self.touch(partition);
        if head.kind != Kind::None || head.old > 0 {
            return;
        }
        loop {
            let head = self.touch(partition);
            let paid = head.paid > 0;
            if !paid && head.lane == 0 {
                return;
            }
            let list = if paid { &mut self.paid } else { &mut self.lane };
            let Some(entry) = list.get_mut(partition).and_then(std::collections::VecDeque::pop_front) else {
                return;
            };
            if self.is_live(&entry) {
                let head = self.touch(partition);
                *(if paid { &mut head.paid } else { &mut head.lane }) -= 1;
                self.drop_empty_lanes(partition);
                let Some(payload) = self.waiting.remove(&entry.id) else { return };
                let start = if paid { self.virtual_time } else { self.charge(partition, payload.weight()) };
                self.put_tag(&entry.id, start, payload);
                self.touch(partition).kind = if paid { Kind::Paid } else { Kind::Unpaid };
                self.touch(partition).id = entry.id;
                return;
            }
            self.skips = self.skips.saturating_sub(1);
            if self.skips == 0 {
                let start = if paid { self.virtual_time } else { self.next_start(partition) };
                self.queue.insert(&ghost(partition), start);
                self.touch(partition).kind = Kind::Ghost;
                return;
            }
        }
    }

    pub(crate) fn is_live(&self, entry: &Entry) -> bool {
        self.waiting.get(&entry.id).and_then(Payload::prefix).is_some_and(|prefix| prefix.serial == entry.serial)
    }

    /// With no live task left, what stands in a lane are entries of cancelled tasks.
    fn drop_empty_lanes(&mut self, partition: &str) {
        let head = self.touch(partition);
        let (no_lane, no_paid) = (head.lane == 0, head.paid == 0);
        if no_lane {
            self.lane.remove(partition);
        }
        if no_paid {
            self.paid.remove(partition);
        }
    }

    /// The head's tag taken back: R9, R11. The task itself goes back to the front of where it came from.
    fn take_back(&mut self, partition: &str) {
        let head = self.touch(partition);
        let (kind, id) = (head.kind, std::mem::take(&mut head.id));
        head.kind = Kind::None;
        match kind {
            Kind::None => {}
            Kind::Ghost => {
                self.queue.remove(&ghost(partition));
            }
            Kind::Unpaid | Kind::Paid => {
                let Some(start) = self.queue.remove(&id) else { return };
                let Some(payload) = self.task.remove(&id) else { return };
                let serial = payload.prefix().map_or(0, |prefix| prefix.serial);
                self.waiting.insert(id.clone(), payload);
                let list = if kind == Kind::Paid {
                    self.touch(partition).paid += 1;
                    &mut self.paid
                } else {
                    self.touch(partition).lane += 1;
                    self.finish.insert(partition.to_owned(), start);
                    &mut self.lane
                };
                list.entry(partition.to_owned()).or_default().push_front(Entry { serial, id });
            }
        }
    }

    /// R9: puts a delivery that was given back into the order again; paid or, for a retry, charged once more.
    pub(crate) fn place(&mut self, id: &str, paid: bool) {
        self.placed = true;
        let Some(held) = self.held.get_mut(id) else { return };
        held.place = if paid { Place::QueuedPaid } else { Place::Queued };
        let payload = std::mem::replace(&mut held.payload, Payload(Vec::new()));
        let Some(prefix) = payload.prefix() else {
            self.add_unknown(id, payload);
            return;
        };
        let partition = prefix.partition.as_str();
        let entry = Entry { serial: prefix.serial, id: id.to_owned() };
        if paid && (self.is_mode_all() || self.touch(partition).old > 0) {
            self.put_tag(id, self.virtual_time, payload);
            let record = self.touch(partition);
            record.old += 1;
            record.old_paid += 1;
            return;
        }
        if paid {
            self.take_back(partition);
            self.paid.entry(partition.to_owned()).or_default().push_front(entry);
            self.touch(partition).paid += 1;
        } else if self.is_mode_all() {
            self.arrive(partition);
            let start = self.charge(partition, prefix.weight);
            self.put_tag(id, start, payload);
            self.touch(partition).old += 1;
            return;
        } else {
            if self.touch(partition).unpaid() == 0 {
                self.arrive(partition);
            }
            self.lane.entry(partition.to_owned()).or_default().push_front(entry);
            self.touch(partition).lane += 1;
        }
        self.waiting.insert(id.to_owned(), payload);
        self.promote(partition);
    }

    /// R4: takes the smallest start tag off the order, V = that tag, and promotes. None if there is nothing to take
    /// now: an empty order, or a place of more cancelled tasks than this call may skip.
    pub(crate) fn take(&mut self) -> Option<Tagged> {
        loop {
            let (start, id) = self.queue.first().map(|(start, id)| (start, id.to_owned()))?;
            if let Some(partition) = id.strip_prefix('\0') {
                if self.skips == 0 {
                    return None;
                }
                self.queue.remove(&id);
                self.touch(partition).kind = Kind::None;
                self.promote(partition);
                continue;
            }
            self.queue.remove(&id);
            self.virtual_time = self.virtual_time.max(start);
            let payload = self.task.remove(&id);
            let partition = payload.as_ref().and_then(Self::partition_of);
            if let Some(partition) = &partition {
                self.untagged(partition, &id);
                self.promote(partition);
            }
            return Some(Tagged { id, start, payload, partition });
        }
    }

    /// Keeps the partition's counts when one of its tags is gone.
    fn untagged(&mut self, partition: &str, id: &str) {
        let paid = self.held.get(id).is_some_and(|held| held.place == Place::QueuedPaid);
        let head = self.touch(partition);
        if matches!(head.kind, Kind::Unpaid | Kind::Paid) && head.id == id {
            head.kind = Kind::None;
            head.id.clear();
        } else if head.old > 0 {
            head.old -= 1;
            head.old_paid -= u64::from(paid && head.old_paid > 0);
        }
    }

    /// Takes a queued task out of the queue for good: R11. Answers whether it was there.
    pub(crate) fn remove_queued(&mut self, id: &str) -> bool {
        if let Some(payload) = self.waiting.remove(id) {
            let Some(partition) = Self::partition_of(&payload) else { return true };
            let paid = self.held.remove(id).is_some_and(|held| held.place == Place::QueuedPaid);
            let head = self.touch(&partition);
            *(if paid { &mut head.paid } else { &mut head.lane }) -= 1;
            self.drop_empty_lanes(&partition);
            self.promote(&partition);
            self.drop_lone_ghost(&partition);
            return true;
        }
        let Some(start) = self.queue.remove(id) else { return false };
        if let Some(partition) = self.task.remove(id).as_ref().and_then(Self::partition_of) {
            let head = self.touch(&partition);
            if head.kind == Kind::Unpaid && head.id == id && head.old == 0 {
                self.finish.insert(partition.clone(), start);
            }
            self.untagged(&partition, id);
            self.promote(&partition);
        }
        self.held.remove(id);
        true
    }

    /// A ghost's place is kept only while live tasks wait behind it.
    fn drop_lone_ghost(&mut self, partition: &str) {
        let head = self.touch(partition);
        if head.kind == Kind::Ghost && head.lane == 0 && head.paid == 0 {
            head.kind = Kind::None;
            self.queue.remove(&ghost(partition));
        }
    }

    /// Tags one waiting task of the partition beside its head, as mode `all` has it. Answers whether there was one.
    pub(crate) fn flatten_one(&mut self, partition: &str) -> bool {
        let head = self.touch(partition);
        if matches!(head.kind, Kind::Unpaid | Kind::Paid) {
            head.old += 1;
            head.old_paid += u64::from(head.kind == Kind::Paid);
            head.id.clear();
        }
        let was_ghost = head.kind == Kind::Ghost;
        head.kind = Kind::None;
        if was_ghost {
            self.queue.remove(&ghost(partition));
        }
        loop {
            let head = self.touch(partition);
            let paid = head.paid > 0;
            let list = if paid { &mut self.paid } else { &mut self.lane };
            let Some(entry) = list.get_mut(partition).and_then(std::collections::VecDeque::pop_front) else {
                self.drop_empty_lanes(partition);
                return false;
            };
            if !self.is_live(&entry) {
                continue;
            }
            let Some(payload) = self.waiting.remove(&entry.id) else { continue };
            let start = if paid { self.virtual_time } else { self.charge(partition, payload.weight()) };
            self.put_tag(&entry.id, start, payload);
            let head = self.touch(partition);
            head.old += 1;
            head.old_paid += u64::from(paid);
            *(if paid { &mut head.paid } else { &mut head.lane }) -= 1;
            self.drop_empty_lanes(partition);
            return true;
        }
    }

    /// R10.
    pub(crate) fn reshare(&mut self, partition: &str, new: tag::Share) {
        let old = self.share_of(partition);
        let v = self.virtual_time;
        let head = self.touch(partition).clone();
        if head.queued() == 0 {
            match self.finish.get(partition).copied() {
                Some(finish) if tag::is_forgettable(finish, v, old) => {
                    self.finish.remove(partition);
                }
                Some(finish) if !self.is_mode_all() => {
                    self.finish.insert(partition.to_owned(), tag::reshare(finish, v, old, new));
                }
                _ => {}
            }
        } else if !self.is_mode_all() && head.old == 0 {
            let member = if head.kind == Kind::Ghost { ghost(partition) } else { head.id };
            if let Some(start) = self.queue.score(&member) {
                self.queue.insert(&member, tag::reshare(start, v, old, new));
            }
            if let Some(finish) = self.finish.get_mut(partition) {
                *finish = tag::reshare(*finish, v, old, new);
            }
        }
        if new == tag::Share::default() {
            self.share.remove(partition);
        } else {
            self.share.insert(partition.to_owned(), new);
        }
    }

    /// The end of a command: R5 and R6, and nothing left of partitions without tasks. `served` bounds the work for R6.
    pub(crate) fn finish(&mut self, served: usize) {
        for partition in std::mem::take(&mut self.touched) {
            self.idle.remove(&partition);
            if self.head.get(&partition).is_none_or(|head| *head == Head::default()) {
                self.head.remove(&partition);
                if let Some(finish) = self.finish.get(&partition).copied() {
                    let share = self.share_of(&partition);
                    if tag::is_forgettable(finish, self.virtual_time, share) {
                        self.finish.remove(&partition);
                    } else {
                        self.idle.insert(&partition, tag::idle_score(finish, share));
                    }
                }
            }
        }
        if self.queue.is_empty() {
            self.virtual_time = 0.0;
            self.finish.clear();
            self.idle.clear();
            if self.waiting.is_empty() {
                self.head.clear();
            }
        } else if served > 0 {
            let passed: Vec<_> =
                self.idle.up_to(self.virtual_time).take(2 * served + 8).map(|(_, partition)| partition.to_owned()).collect();
            for partition in passed {
                let share = self.share_of(&partition);
                if self.finish.get(&partition).is_none_or(|finish| tag::is_forgettable(*finish, self.virtual_time, share)) {
                    self.finish.remove(&partition);
                    self.idle.remove(&partition);
                }
            }
        }
    }
}

/// The member that keeps the place of a partition whose lane starts with cancelled tasks.
pub(crate) fn ghost(partition: &str) -> String {
    format!("\0{partition}")
}
