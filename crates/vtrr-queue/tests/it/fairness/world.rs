//! A queue in memory at simulated time, and what can be seen of it.

use std::collections::BTreeMap;
use std::time::Duration;

use vtrr_queue::{
    Body, Command, Delivery, Dequeue, Queue, Released, Result, Settled, Settlement, State, Step, Tagging, Task, TaskId,
};

pub(crate) struct World {
    pub(crate) state: State,
    pub(crate) queue: Queue,
    pub(crate) now_ms: u64,
}

/// The keys of the order at one moment.
#[derive(Debug)]
pub(crate) struct Seen {
    /// V.
    pub(crate) v: f64,
    /// F by partition.
    pub(crate) finish: BTreeMap<String, f64>,
    /// S by id.
    pub(crate) tags: BTreeMap<String, f64>,
    /// Ids that wait, by partition as its lane key spells it; first come first, paid ones in front.
    pub(crate) lanes: BTreeMap<String, Vec<String>>,
    pub(crate) dump: BTreeMap<String, BTreeMap<String, String>>,
}

/// A task with this id and weight.
pub(crate) fn task(id: impl Into<String>, weight: u32) -> Task {
    plain(weight).id(TaskId::new(id).unwrap())
}

/// A task with a generated id.
pub(crate) fn plain(weight: u32) -> Task {
    Task::with_body(Body::from_json(r#"{"task_name":"t"}"#).unwrap()).weight(i64::from(weight)).unwrap()
}

pub(crate) fn id_of(delivery: &Delivery) -> String {
    delivery.id.as_str().to_owned()
}

/// A partition in `Seen::lanes`.
pub(crate) fn lane_key(partition: &str) -> String {
    partition.replace('%', "%25").replace(':', "%3A")
}

impl World {
    pub(crate) fn new(tagging: Tagging) -> Self {
        let queue = Queue::new("fair").unwrap().tagging(tagging);
        Self { state: State::default(), queue, now_ms: 1_700_000_000_000 }
    }

    pub(crate) fn head() -> Self {
        Self::new(Tagging::Head)
    }

    pub(crate) fn run<C: Command>(&mut self, mut command: C) -> Result<C::Reply> {
        loop {
            if let Step::Done(reply) = command.apply(self.state.at(self.now_ms * 1_000))? {
                return Ok(reply);
            }
        }
    }

    /// Tasks named by the caller.
    pub(crate) fn enqueue(&mut self, partition: &str, tasks: &[(&str, u32)]) {
        self.add(partition, tasks.iter().map(|(id, weight)| task(*id, *weight)));
    }

    /// `n` tasks of weight 1, whose ids sort as the partitions do: b00000, b00001 …
    pub(crate) fn backlog(&mut self, partition: &str, n: usize) {
        self.add(partition, (0..n).map(|i| task(format!("{}{i:05}", partition.to_lowercase()), 1)));
    }

    pub(crate) fn add(&mut self, partition: &str, tasks: impl IntoIterator<Item = Task>) {
        let command = self.queue.enqueue(partition, tasks).unwrap();
        self.run(command).unwrap();
    }

    pub(crate) fn take(&mut self, n: usize) -> Vec<Delivery> {
        let command: Dequeue = self.queue.dequeue(n).unwrap();
        self.run(command).unwrap().deliveries
    }

    /// The ids of the next `n` tasks, which are acked at once.
    pub(crate) fn serve(&mut self, n: usize) -> Vec<String> {
        let deliveries = self.take(n);
        if !deliveries.is_empty() {
            self.settle(deliveries.iter().map(Settlement::ack).collect());
        }
        deliveries.iter().map(id_of).collect()
    }

    /// As `serve`, but the partitions.
    pub(crate) fn serve_partitions(&mut self, n: usize) -> Vec<String> {
        let deliveries = self.take(n);
        if !deliveries.is_empty() {
            self.settle(deliveries.iter().map(Settlement::ack).collect());
        }
        deliveries.iter().map(|delivery| delivery.payload.partition().unwrap().as_str().to_owned()).collect()
    }

    pub(crate) fn settle(&mut self, settlements: Vec<Settlement>) {
        let command = self.queue.settle(settlements).unwrap();
        let settled = self.run(command).unwrap();
        assert!(settled.iter().all(|settled| *settled == Settled::Done), "{settled:?}");
    }

    pub(crate) fn release(&mut self, deliveries: &[Delivery]) {
        self.give_back(deliveries, &Released::Unrun);
    }

    pub(crate) fn blame(&mut self, deliveries: &[Delivery]) {
        self.give_back(deliveries, &Released::lost("blamed"));
    }

    pub(crate) fn give_back(&mut self, deliveries: &[Delivery], how: &Released) {
        let release = |delivery| Settlement::release(delivery, Duration::ZERO, how.clone()).unwrap();
        self.settle(deliveries.iter().map(release).collect());
    }

    pub(crate) fn retry(&mut self, deliveries: &[Delivery], delay_ms: u64) {
        let retry = |delivery| Settlement::retry(delivery, Duration::from_millis(delay_ms), None).unwrap();
        self.settle(deliveries.iter().map(retry).collect());
    }

    pub(crate) fn cancel(&mut self, ids: &[&str]) {
        let command = self.queue.cancel(ids.iter().map(|id| TaskId::new(*id).unwrap())).unwrap();
        self.run(command).unwrap();
    }

    pub(crate) fn share(&mut self, partition: &str, share: f64) {
        let command = self.queue.set_share(partition, share).unwrap();
        self.run(command).unwrap();
    }

    pub(crate) fn tag(&self, id: &str) -> Option<f64> {
        self.see().tags.get(id).copied()
    }

    pub(crate) fn finish(&self, partition: &str) -> Option<f64> {
        self.see().finish.get(partition).copied()
    }

    pub(crate) fn v(&mut self) -> f64 {
        let command = self.queue.stats();
        self.run(command).unwrap().virtual_time
    }

    pub(crate) fn see(&self) -> Seen {
        let dump = self.state.dump();
        let numbers = |key: &str| -> BTreeMap<String, f64> {
            let fields = dump.get(key).cloned().unwrap_or_default();
            fields.into_iter().map(|(field, text)| (field, text.parse().unwrap())).collect()
        };
        let mut lanes: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for prefix in ["paid:=", "lane:="] {
            for (key, entries) in &dump {
                let Some(partition) = key.strip_prefix(prefix) else { continue };
                let ids = entries.values().map(|entry| entry.split_once(' ').unwrap().1.to_owned());
                let live = ids.filter(|id| dump.get("waiting").is_some_and(|waiting| waiting.contains_key(id)));
                lanes.entry(partition.to_owned()).or_default().extend(live);
            }
        }
        lanes.retain(|_, ids| !ids.is_empty());
        Seen {
            v: numbers("current_virtual_time")[""],
            finish: numbers("partition_virtual_time"),
            tags: numbers("queue"),
            lanes,
            dump,
        }
    }
}

impl Seen {
    pub(crate) fn count(&self, key: &str) -> usize {
        self.dump.get(key).map_or(0, BTreeMap::len)
    }

    /// The keys that exist because of tasks: not V, controls and what expires by itself.
    pub(crate) fn left_over(&self) -> Vec<&String> {
        let stays = ["current_virtual_time", "meta", "share", "request", "answer"];
        self.dump.keys().filter(|key| !stays.contains(&key.as_str())).collect()
    }
}
