//! The rules R1 to R11 of docs/protocol.md written down as they are said, with lists that are searched from end to
//! end: slow, short, and sharing no line with the crate. There are no gates (R8).

use std::collections::BTreeMap;

/// A queued task.
#[derive(Debug, Clone)]
pub(crate) struct Queued {
    pub(crate) id: String,
    pub(crate) partition: String,
    pub(crate) weight: u32,
    pub(crate) paid: bool,
    /// The tag it was served at and how many were served before it, if it was served before.
    pub(crate) served: (f64, u64),
}

#[derive(Debug)]
struct Tag {
    start: f64,
    task: Queued,
    /// Given in mode `all`: no head.
    old: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Oracle {
    /// Mode `all`.
    all: bool,
    /// Never forgets an idle partition: no R6.
    pub(crate) remembers: bool,
    pub(crate) v: f64,
    pub(crate) finish: BTreeMap<String, f64>,
    share: BTreeMap<String, f64>,
    tags: Vec<Tag>,
    /// Front first.
    lanes: BTreeMap<String, Vec<Queued>>,
}

impl Oracle {
    pub(crate) fn new(all: bool, remembers: bool, share: BTreeMap<String, f64>) -> Self {
        Self { all, remembers, share, ..Self::default() }
    }

    pub(crate) fn share_of(&self, partition: &str) -> f64 {
        self.share.get(partition).copied().unwrap_or(1.0)
    }

    fn queued<'a>(&'a self, partition: &'a str) -> impl Iterator<Item = &'a Queued> {
        let waiting = self.lanes.values().flatten();
        self.tags.iter().map(|tag| &tag.task).chain(waiting).filter(move |task| task.partition == partition)
    }

    pub(crate) fn has_unpaid(&self, partition: &str) -> bool {
        self.queued(partition).any(|task| !task.paid)
    }

    fn is_tagged(&self, partition: &str, old: bool) -> bool {
        self.tags.iter().any(|tag| tag.task.partition == partition && tag.old == old)
    }

    /// R1.
    fn arrive(&mut self, partition: &str) {
        let entry = self.v + 1.0 / self.share_of(partition);
        let finish = self.finish.entry(partition.to_owned()).or_insert(entry);
        *finish = finish.max(entry);
    }

    /// R2 and R3; R9 for a paid one.
    fn tag(&mut self, task: Queued, old: bool) {
        let mut start = self.v;
        if !task.paid {
            start = self.finish.get(&task.partition).map_or(self.v, |finish| finish.max(self.v));
            let finish = start + f64::from(task.weight) / self.share_of(&task.partition);
            self.finish.insert(task.partition.clone(), finish.max(start.next_up()));
        }
        self.tags.push(Tag { start, task, old });
    }

    fn promote(&mut self, partition: &str) {
        if self.is_tagged(partition, true) || self.is_tagged(partition, false) {
            return;
        }
        if let Some(lane) = self.lanes.get_mut(partition).filter(|lane| !lane.is_empty()) {
            let task = lane.remove(0);
            self.tag(task, false);
        }
    }

    /// Takes the head's tag back: R9, R11. Answers its task.
    fn untag_head(&mut self, partition: &str) -> Option<Queued> {
        let at = self.tags.iter().position(|tag| tag.task.partition == partition && !tag.old)?;
        let Tag { start, task, .. } = self.tags.remove(at);
        if !task.paid {
            self.finish.insert(partition.to_owned(), start);
        }
        Some(task)
    }

    /// New tasks of one partition.
    pub(crate) fn enqueue(&mut self, partition: &str, tasks: Vec<Queued>) {
        if self.all || !self.has_unpaid(partition) {
            self.arrive(partition);
        }
        for task in tasks {
            if self.all {
                self.tag(task, true);
            } else {
                self.lanes.entry(partition.to_owned()).or_default().push(task);
            }
        }
        if !self.all {
            self.promote(partition);
        }
    }

    /// R9, several at once: latest S first; of equal ones, all paid for one moment, the one served last.
    pub(crate) fn give_back(&mut self, mut tasks: Vec<Queued>) {
        tasks.sort_by(|a, b| b.served.partial_cmp(&a.served).unwrap());
        for task in tasks {
            self.place(task);
        }
    }

    fn place(&mut self, task: Queued) {
        let partition = task.partition.clone();
        if !task.paid && (self.all || !self.has_unpaid(&partition)) {
            self.arrive(&partition);
        }
        // No lane to stand in front of: so too behind old tags.
        if self.all || (task.paid && self.is_tagged(&partition, true)) {
            self.tag(task, true);
            return;
        }
        let head = if task.paid { self.untag_head(&partition) } else { None };
        let lane = self.lanes.entry(partition.clone()).or_default();
        if let Some(head) = head {
            lane.insert(0, head);
        }
        let behind = if task.paid { 0 } else { lane.iter().take_while(|waiting| waiting.paid).count() };
        lane.insert(behind, task);
        self.promote(&partition);
    }

    /// R4.
    pub(crate) fn dequeue(&mut self, n: usize) -> Vec<(Queued, f64)> {
        let mut served = Vec::new();
        while served.len() < n {
            let smallest = |a: &&Tag, b: &&Tag| {
                a.start.partial_cmp(&b.start).unwrap().then_with(|| a.task.id.as_bytes().cmp(b.task.id.as_bytes()))
            };
            let Some(id) = self.tags.iter().min_by(smallest).map(|tag| tag.task.id.clone()) else { break };
            let at = self.tags.iter().position(|tag| tag.task.id == id).unwrap();
            let Tag { start, task, .. } = self.tags.remove(at);
            assert!(start >= self.v, "R7");
            self.v = start;
            self.promote(&task.partition);
            served.push((task, start));
        }
        served
    }

    /// R11 for a head.
    pub(crate) fn cancel(&mut self, id: &str) {
        for lane in self.lanes.values_mut() {
            lane.retain(|task| task.id != id);
        }
        let Some(at) = self.tags.iter().position(|tag| tag.task.id == id) else { return };
        let partition = self.tags[at].task.partition.clone();
        if self.tags[at].old {
            self.tags.remove(at);
        } else {
            self.untag_head(&partition);
        }
        self.promote(&partition);
    }

    /// R10. What is said there of an F ≤ V + 1/old is for partitions without tasks.
    pub(crate) fn set_share(&mut self, partition: &str, new: f64) {
        let (v, old) = (self.v, self.share_of(partition));
        self.share.insert(partition.to_owned(), new);
        if self.all || self.is_tagged(partition, true) {
            return;
        }
        let idle = self.queued(partition).next().is_none();
        if idle && self.finish.get(partition).is_some_and(|finish| *finish <= v + 1.0 / old) {
            self.finish.remove(partition);
        }
        let heads = self.tags.iter_mut().filter(|tag| tag.task.partition == partition).map(|tag| &mut tag.start);
        for x in heads.chain(self.finish.get_mut(partition)) {
            *x = if new == old { *x } else { v + (*x - v) * old / new };
        }
    }

    /// head → all; the delayed tasks have been given back before.
    pub(crate) fn flatten(&mut self) {
        self.all = true;
        for tag in &mut self.tags {
            tag.old = true;
        }
        for task in std::mem::take(&mut self.lanes).into_values().flatten() {
            self.tag(task, true);
        }
    }

    pub(crate) fn unflatten(&mut self) {
        self.all = false;
    }

    /// The end of a command: R5, R6.
    pub(crate) fn end(&mut self) {
        self.lanes.retain(|_, lane| !lane.is_empty());
        if self.tags.is_empty() {
            assert!(self.lanes.is_empty(), "stuck");
            self.v = 0.0;
            self.finish.clear();
        } else if !self.remembers {
            let mut finish = std::mem::take(&mut self.finish);
            finish.retain(|partition, f| {
                self.queued(partition).next().is_some() || *f > self.v + 1.0 / self.share_of(partition)
            });
            self.finish = finish;
        }
    }

    /// S by id.
    pub(crate) fn tags(&self) -> BTreeMap<String, f64> {
        self.tags.iter().map(|tag| (tag.task.id.clone(), tag.start)).collect()
    }

    /// Waiting ids by partition, front first.
    pub(crate) fn lanes(&self) -> BTreeMap<String, Vec<String>> {
        let ids = |lane: &Vec<Queued>| lane.iter().map(|task| task.id.clone()).collect();
        self.lanes.iter().map(|(partition, lane)| (partition.clone(), ids(lane))).collect()
    }
}
