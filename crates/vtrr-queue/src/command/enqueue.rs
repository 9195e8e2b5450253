//! enqueue: adds tasks of one partition.

use std::collections::HashSet;
use std::ops::Range;
use std::time::Duration;

use super::{Command, Step, Tagging, Target, script, wrong_mode};
use crate::call::{Call, Script, Value, arg};
use crate::error::{Bound, Error, ErrorKind, Result, Unfinished};
use crate::keys::{QueueName, text};
use crate::state::{Head, Place, REQUEST_MS, State};
use crate::task::{MAX_PAYLOAD_BYTES, MAX_TASKS_PER_CALL, Partition, Payload, Task, TaskId, json_string};

pub(crate) const SCRIPT: Script = script!("enqueue", "order", "commit", "lease");

/// Stores tasks of one partition, in order; all or nothing for up to 1,000 tasks and 4 MiB, else in such chunks.
///
/// Errors: [`Mode`](ErrorKind::Mode) if the queue is in the other tagging mode than asked for,
/// [`Conflict`](ErrorKind::Conflict) if an id is live in another partition, [`Full`](ErrorKind::Full) over a bound,
/// [`Server`](ErrorKind::Server) when memory is full. [`Error::unfinished`] tells how far a longer call got, and
/// [`resume`](Enqueue::resume) stores the rest and charges nothing twice. O(1) per task in mode `head`, O(log tasks) in mode `all`.
#[derive(Debug, Clone)]
#[must_use = "a command does nothing until a runner runs it"]
pub struct Enqueue {
    target: Target,
    partition: Partition,
    tasks: Vec<(TaskId, Task)>,
    tagging: Option<Tagging>,
    bounds: Bounds,
    request: String,
    chunks: Vec<Range<usize>>,
    at: usize,
    /// Whether a chunk before this one has stored tasks, and with them was let in what follows.
    admitted: bool,
    duplicates: Vec<TaskId>,
}

/// How many tasks may be queued once a call is stored; none: any number.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Bounds {
    /// In all partitions together.
    pub(crate) all: Option<u64>,
    /// In the partition of the call.
    pub(crate) partition: Option<u64>,
}

/// A bound on queued tasks.
pub(crate) fn bound(argument: &str, most: u64) -> Result<u64> {
    if most == 0 { Err(Error::invalid(argument, most, "at least 1")) } else { Ok(most) }
}

/// What an enqueue stored.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Enqueued {
    /// The ids of all tasks of the call, in order.
    pub ids: Vec<TaskId>,
    /// Those of them that were live already (or twice in the call) and were left as they are.
    pub duplicates: Vec<TaskId>,
}

impl Enqueue {
    /// `ids` are for the tasks that bring none, in order.
    pub(crate) fn new(
        target: Target,
        partition: Partition,
        tasks: Vec<Task>,
        request: String,
        mut fresh_id: impl FnMut() -> TaskId,
    ) -> Result<Self> {
        if tasks.is_empty() {
            return Err(Error::invalid("tasks", "empty", "at least one task"));
        }
        let tasks: Vec<_> = tasks.into_iter().map(|task| (task.id.clone().unwrap_or_else(&mut fresh_id), task)).collect();
        let chunks = chunks(&tasks);
        let (tagging, bounds, duplicates) = (None, Bounds::default(), Vec::new());
        Ok(Self { target, partition, tasks, tagging, bounds, request, chunks, at: 0, admitted: false, duplicates })
    }

    pub(crate) fn with_defaults(mut self, tagging: Option<Tagging>, bounds: Bounds) -> Self {
        self.tagging = tagging;
        self.bounds = bounds;
        self
    }

    /// Goes on where an earlier call of the same tasks broke off: with its request id and its tasks' ids, behind the chunks that
    /// it is known to have stored. Only of the next one is it not known whether it is stored: the server knows for 60 s after it
    /// came, and the earlier call may have tried on for 50 s; later, its tasks are known by their ids as long as they live.
    ///
    /// [`Invalid`](ErrorKind::Invalid) for other tasks than those of the earlier call.
    pub fn resume(mut self, unfinished: &Unfinished) -> Result<Self> {
        let same =
            self.tasks.iter().zip(&unfinished.ids).all(|((_, task), id)| task.id.as_ref().is_none_or(|own| own == id));
        let at = self.chunks.iter().position(|chunk| chunk.start == unfinished.stored);
        let (true, Some(at)) = (same && self.tasks.len() == unfinished.ids.len(), at) else {
            let allowed = format!("the {} of the call that broke off", unfinished.ids.len());
            return Err(Error::invalid("tasks", format_args!("{} others", self.tasks.len()), &allowed));
        };
        for ((id, task), known) in self.tasks.iter_mut().zip(&unfinished.ids) {
            id.clone_from(known);
            task.id = Some(known.clone());
        }
        self.request.clone_from(&unfinished.request);
        (self.at, self.admitted) = (at, at > 0);
        Ok(self)
    }

    /// The request id of an earlier call that failed half way, to make it again from its start; its ids must be given to the tasks
    /// again. [`resume`](Self::resume) does both, and does not rely on what the server remembers of the first chunks.
    pub fn request(mut self, request: impl Into<String>) -> Result<Self> {
        self.request = text("request", request.into())?;
        Ok(self)
    }

    /// Refuses to store in a queue that is in another mode; sets the mode of a new queue.
    pub fn tagging(mut self, tagging: Tagging) -> Self {
        self.tagging = Some(tagging);
        self
    }

    /// Refuses the whole call, with [`Full`](ErrorKind::Full), if more than `most` tasks (1 or more) would be queued then, in
    /// all partitions: as [`Totals::queued`](crate::Totals::queued) counts them, so without leased, delayed and dead ones.
    /// Duplicates are not counted. O(1).
    ///
    /// A call of several chunks is let in or refused as one, by the first chunk that stores anything. What other calls and
    /// retries bring in between comes on top. Retries, releases, reclaims and redrives are never refused.
    pub fn max_queued(mut self, most: u64) -> Result<Self> {
        self.bounds.all = Some(bound("max_queued", most)?);
        Ok(self)
    }

    /// The same for the tasks queued in the call's own partition, whatever is queued in others.
    pub fn max_queued_per_partition(mut self, most: u64) -> Result<Self> {
        self.bounds.partition = Some(bound("max_queued_per_partition", most)?);
        Ok(self)
    }

    /// The ids the tasks have or get, in order.
    pub fn ids(&self) -> impl Iterator<Item = &TaskId> {
        self.tasks.iter().map(|(id, _)| id)
    }

    fn chunk(&self) -> &[(TaskId, Task)] {
        self.chunks.get(self.at).map_or(&[], |chunk| &self.tasks[chunk.clone()])
    }

    fn chunk_request(&self) -> String {
        format!("{}:{}", self.request, self.at)
    }

    /// The bounds that the chunk is to keep, and how many tasks come after it.
    fn admission(&self) -> (Bounds, usize) {
        let later = self.chunks.get(self.at).map_or(0, |chunk| self.tasks.len() - chunk.end);
        (if self.admitted { Bounds::default() } else { self.bounds }, later)
    }

    /// Takes the answer of one chunk: the positions of its duplicates.
    fn advance(&mut self, duplicates: impl IntoIterator<Item = usize>) -> Step<Enqueued> {
        let chunk = self.chunk();
        let duplicates: Vec<_> = duplicates.into_iter().filter_map(|i| chunk.get(i).map(|(id, _)| id.clone())).collect();
        self.admitted |= duplicates.len() < chunk.len();
        self.duplicates.extend(duplicates);
        self.at += 1;
        if self.at < self.chunks.len() {
            return Step::Again;
        }
        Step::Done(Enqueued { ids: self.ids().cloned().collect(), duplicates: std::mem::take(&mut self.duplicates) })
    }
}

/// At most 1,000 tasks and 4 MiB each.
fn chunks(tasks: &[(TaskId, Task)]) -> Vec<Range<usize>> {
    let mut chunks = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (i, (_, task)) in tasks.iter().enumerate() {
        let length = task.body.rest().len();
        if i > start && (i - start == MAX_TASKS_PER_CALL || bytes + length > MAX_PAYLOAD_BYTES) {
            chunks.push(start..i);
            (start, bytes) = (i, 0);
        }
        bytes += length;
    }
    chunks.push(start..tasks.len());
    chunks
}

impl Command for Enqueue {
    type Reply = Enqueued;

    fn queue(&self) -> &QueueName {
        &self.target.name
    }

    fn call(&self) -> Call {
        let chunk = self.chunk();
        let given = chunk.iter().any(|(_, task)| task.id.is_some());
        let mut args = Vec::with_capacity(11);
        args.push(arg(self.tagging.map_or("", Tagging::as_str)));
        args.push(arg(self.chunk_request()));
        args.push(arg(&self.partition));
        args.push(arg(json_string(self.partition.as_str())));
        args.push(arg(u8::from(given)));
        args.push(arg(REQUEST_MS));
        args.push(arg(chunk.len()));
        let mut text =
            Vec::with_capacity(chunk.iter().map(|(id, task)| 24 + id.as_str().len() + task.body.rest().len()).sum());
        for (id, task) in chunk {
            let (id, rest) = (id.as_str().as_bytes(), task.body.rest());
            text.extend_from_slice(format!("{} {} {} ", id.len(), task.weight.get(), rest.len()).as_bytes());
            text.extend_from_slice(id);
            text.extend_from_slice(rest);
        }
        args.push(text);
        let (bounds, later) = self.admission();
        args.push(bounds.all.map_or_else(Vec::new, arg));
        args.push(bounds.partition.map_or_else(Vec::new, arg));
        args.push(arg(later));
        self.target.call(SCRIPT, args)
    }

    fn decode(&mut self, answer: Value) -> Result<Step<Enqueued>> {
        let answer = answer.answer()?.value()?;
        let duplicates = positions(&answer.text()?, self.chunk().len());
        Ok(self.advance(duplicates.ok_or_else(|| answer.unreadable("positions of duplicates"))?))
    }

    fn apply(&mut self, state: &mut State) -> Result<Step<Enqueued>> {
        let mode = state.mode.unwrap_or(Tagging::Head);
        if state.mode.is_some() && self.tagging.is_some_and(|wanted| wanted != mode) {
            return Err(wrong_mode(mode));
        }
        let request = self.chunk_request();
        if state.request.contains(&request) {
            let answer = state.answer.get(&request).cloned().unwrap_or_default();
            let duplicates = positions(&answer, self.chunk().len()).unwrap_or_default();
            return Ok(self.advance(duplicates));
        }
        let mut new = HashSet::new();
        let mut duplicates = Vec::new();
        for (i, (id, _)) in self.chunk().iter().enumerate() {
            match state.live(id.as_str()).map(State::partition_of) {
                Some(partition) if partition.as_deref() == Some(self.partition.as_str()) => duplicates.push(i),
                Some(_) => return Err(conflict(id)),
                None if !new.insert(id.as_str()) => duplicates.push(i),
                None => {}
            }
        }
        let fresh = self.chunk().len() - duplicates.len();
        if fresh > 0 {
            let (bounds, later) = self.admission();
            state.admit(&self.partition, (fresh + later) as u64, bounds)?;
        }
        state.mode = Some(self.tagging.unwrap_or(mode));
        let at = state.now_ms();
        let mut tasks = Vec::new();
        for (i, (id, task)) in self.chunk().iter().enumerate() {
            if duplicates.contains(&i) {
                continue;
            }
            state.serial += 1;
            state.forget_dead(id.as_str());
            let payload = Payload::build(self.partition.as_str(), task.weight, at, state.serial, task.body.rest());
            tasks.push((id.as_str().to_owned(), payload));
        }
        state.remember_request(&request, &duplicates);
        if !tasks.is_empty() {
            state.count("enqueued", tasks.len() as u64);
            state.add(self.partition.as_str(), tasks);
        }
        state.finish(0);
        Ok(self.advance(duplicates))
    }

    fn known_for(&self) -> Option<Duration> {
        Some(Duration::from_millis(REQUEST_MS))
    }

    fn interrupted(&self, error: Error) -> Error {
        error.with_unfinished(Unfinished {
            request: self.request.clone(),
            ids: self.ids().cloned().collect(),
            stored: self.chunks.get(self.at).map_or(self.tasks.len(), |chunk| chunk.start),
        })
    }
}

/// Positions below `end`, ascending and joined by commas. None if it is something else.
fn positions(text: &str, end: usize) -> Option<Vec<usize>> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    let positions: Vec<usize> = text.split(',').map(|i| i.parse().ok()).collect::<Option<_>>()?;
    (positions.is_sorted_by(|a, b| a < b) && positions.last().is_some_and(|last| *last < end)).then_some(positions)
}

fn conflict(id: &TaskId) -> Error {
    Error::new(ErrorKind::Conflict, format!("id {id} is live in another partition"))
}

impl State {
    /// The payload of a task that is queued, delayed or leased.
    fn live(&self, id: &str) -> Option<&Payload> {
        let held = || self.held.get(id).filter(|held| held.place != Place::Dead).map(|held| &held.payload);
        self.waiting.get(id).or_else(|| self.task.get(id)).or_else(held)
    }

    /// Whether so many more tasks of the partition keep the bounds. O(1).
    fn admit(&self, partition: &Partition, more: u64, bounds: Bounds) -> Result<()> {
        let json = || json_string(partition.as_str());
        let full = |bound, message| Err(Error::full(bound, message));
        let queued = self.head.get(partition.as_str()).map_or(0, Head::queued);
        if let Some(most) = bounds.partition.filter(|most| queued + more > *most) {
            let over = format!("{queued} queued and {more} to be added are more than max_queued_per_partition, {most}");
            return full(Bound::Partition, format!("partition {} is full: {over}", json()));
        }
        let queued = self.queued();
        if let Some(most) = bounds.all.filter(|most| queued + more > *most) {
            let over = format!("{queued} queued and {more} to be added to partition {}", json());
            return full(Bound::Queue, format!("the queue is full: {over} are more than max_queued, {most}"));
        }
        Ok(())
    }

    fn remember_request(&mut self, request: &str, duplicates: &[usize]) {
        let now = self.now_ms();
        if now >= REQUEST_MS {
            let old: Vec<_> =
                self.request.up_to((now - REQUEST_MS) as f64).take(100).map(|(_, request)| request.to_owned()).collect();
            for request in old {
                self.request.remove(&request);
                self.answer.remove(&request);
            }
        }
        self.request.insert(request, now as f64);
        if !duplicates.is_empty() {
            let answer: Vec<_> = duplicates.iter().map(ToString::to_string).collect();
            self.answer.insert(request.to_owned(), answer.join(","));
        }
    }
}
