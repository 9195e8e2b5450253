//! Makes commands from Python arguments.

use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use vtrr_queue::{Body, Cause, Outcome, Owner, Released, Settlement, Tagging, TaskId, Token};

use crate::command::Command;
use crate::errors::{bad_value, from_core};
use crate::prepare::{Function, Prepared, name, prepare};

/// A settlement as Python gives it: id, token, outcome, delay in seconds, and the outcome's text (a reason, an error or
/// the body of a retry). The outcome is `ack`; `release` (it did not run), `stopped`, `ran`, `lost`, `unknown`; `retry`; or the cause of
/// a dead letter.
type Settling = (String, String, String, f64, Option<Vec<u8>>);

/// A queue by name: makes commands; does no IO.
#[pyclass(module = "vtrr_queue._core", frozen)]
pub(crate) struct Queue {
    queue: vtrr_queue::Queue,
    keys: Py<PyTuple>,
}

fn or_raise<T>(py: Python<'_>, result: vtrr_queue::Result<T>) -> PyResult<T> {
    result.map_err(|error| from_core(py, &error))
}

fn seconds(py: Python<'_>, argument: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| bad_value(py, argument, "from 0 s to 10 years", &format!("{seconds} s")))
}

fn settlement(py: Python<'_>, (id, token, outcome, delay, text): Settling) -> PyResult<Settlement> {
    let delay_ms = u64::try_from(seconds(py, "delay", delay)?.as_millis()).unwrap_or(u64::MAX);
    let lossy = |text: Option<Vec<u8>>| String::from_utf8_lossy(&text.unwrap_or_default()).into_owned();
    let outcome = match outcome.as_str() {
        "ack" => Outcome::Ack,
        "release" => Outcome::Release { delay_ms, how: Released::Unrun },
        "stopped" => Outcome::Release { delay_ms, how: Released::Stopped },
        "ran" => Outcome::Release { delay_ms, how: Released::Ran },
        "lost" => Outcome::Release { delay_ms, how: Released::lost(lossy(text)) },
        "unknown" => Outcome::Release { delay_ms, how: Released::unknown(lossy(text)) },
        "retry" => {
            let body = text.map(|text| or_raise(py, Body::from_json(text))).transpose()?;
            Outcome::Retry { delay_ms, body }
        }
        word => Outcome::Fail { cause: cause(py, word)?, error: lossy(text) },
    };
    or_raise(py, Settlement::new(or_raise(py, TaskId::new(id))?, or_raise(py, Token::new(token))?, outcome))
}

fn cause(py: Python<'_>, word: &str) -> PyResult<Cause> {
    match Cause::from_word(word) {
        Cause::Other(word) => {
            Err(bad_value(py, "outcome", "ack, release, stopped, ran, lost, unknown, retry or a cause", &word))
        }
        cause => Ok(cause),
    }
}

fn ids(ids: Vec<Bound<'_, PyAny>>) -> PyResult<Vec<TaskId>> {
    ids.iter().map(|id| or_raise(id.py(), TaskId::new(name("id", id)?))).collect()
}

#[pymethods]
impl Queue {
    #[new]
    #[pyo3(signature = (name, tagging = None))]
    fn new(py: Python<'_>, name: &str, tagging: Option<&str>) -> PyResult<Self> {
        let mut queue = or_raise(py, vtrr_queue::Queue::new(name))?;
        queue = match tagging {
            None => queue,
            Some("head") => queue.tagging(Tagging::Head),
            Some("all") => queue.tagging(Tagging::All),
            Some(other) => return Err(bad_value(py, "tagging", "\"head\" or \"all\"", &format!("{other:?}"))),
        };
        let keys = vtrr_queue::Command::call(&queue.stats()).keys;
        let keys = PyTuple::new(py, keys.iter().map(|key| PyBytes::new(py, key.as_bytes())))?.unbind();
        Ok(Self { queue, keys })
    }

    /// A name that no one else has: for owners, requests and nonces.
    #[staticmethod]
    fn fresh() -> String {
        vtrr_queue::Queue::fresh_owner().to_string()
    }

    /// Whether all keys fall into one slot of a Redis Cluster.
    #[getter]
    fn is_one_slot(&self) -> bool {
        self.queue.name().is_one_slot()
    }

    #[getter]
    fn wake_channel(&self) -> String {
        self.queue.name().wake_channel()
    }

    #[getter]
    fn sweeper_key(&self) -> String {
        self.queue.name().sweeper_key()
    }

    #[getter]
    fn told_key(&self) -> String {
        self.queue.name().told_key()
    }

    /// The full names of the keys, in the order of keys.rs.
    #[getter]
    fn keys(&self, py: Python<'_>) -> Py<PyTuple> {
        self.keys.clone_ref(py)
    }

    /// Checks and encodes the tasks of one call of `.queue()`.
    #[pyo3(signature = (partition_key, tasks, *, task_name, dumps, check = None, takes_id = false, extra = ""))]
    #[staticmethod]
    fn prepare(
        partition_key: &Bound<'_, PyAny>,
        tasks: &Bound<'_, PyAny>,
        task_name: &str,
        dumps: &Bound<'_, PyAny>,
        check: Option<&Bound<'_, PyAny>>,
        takes_id: bool,
        extra: &str,
    ) -> PyResult<Prepared> {
        prepare(partition_key, tasks, &Function { name: task_name, check, takes_id, dumps, extra })
    }

    #[pyo3(signature = (prepared, request = None, *, max_queued = None, max_queued_per_partition = None))]
    fn enqueue(
        &self,
        py: Python<'_>,
        prepared: &Prepared,
        request: Option<&str>,
        max_queued: Option<u64>,
        max_queued_per_partition: Option<u64>,
    ) -> PyResult<Command> {
        let mut command = or_raise(py, self.queue.enqueue(prepared.partition(), prepared.tasks()))?;
        if let Some(most) = max_queued {
            command = or_raise(py, command.max_queued(most))?;
        }
        if let Some(most) = max_queued_per_partition {
            command = or_raise(py, command.max_queued_per_partition(most))?;
        }
        if let Some(request) = request {
            command = or_raise(py, command.request(request))?;
        }
        let ids = command.ids().map(ToString::to_string).collect();
        Ok(Command::new(command, self.keys.clone_ref(py)).with_ids(ids))
    }

    #[pyo3(signature = (n, *, owner, lease, max_deliveries, settle = vec![]))]
    fn dequeue(
        &self,
        py: Python<'_>,
        n: usize,
        owner: String,
        lease: f64,
        max_deliveries: u32,
        settle: Vec<Settling>,
    ) -> PyResult<Command> {
        let settlements = settle.into_iter().map(|it| settlement(py, it)).collect::<PyResult<Vec<_>>>()?;
        let holding = settlements.iter().map(|settlement| settlement.id().clone()).collect();
        let command = self.queue.dequeue(n).and_then(|command| command.max_deliveries(max_deliveries));
        let command = or_raise(py, command)?.owner(or_raise(py, Owner::new(owner))?, holding);
        let command = or_raise(py, command.lease(seconds(py, "lease", lease)?).and_then(|it| it.settle(settlements)))?;
        Ok(self.command(py, command))
    }

    fn settle(&self, py: Python<'_>, settle: Vec<Settling>) -> PyResult<Command> {
        let settlements = settle.into_iter().map(|it| settlement(py, it)).collect::<PyResult<Vec<_>>>()?;
        Ok(self.command(py, or_raise(py, self.queue.settle(settlements))?))
    }

    /// Gives back all that an owner holds; with a reason, as lost with its worker.
    #[pyo3(signature = (owner, reason = None))]
    fn release_owner(&self, py: Python<'_>, owner: String, reason: Option<String>) -> PyResult<Command> {
        let how = reason.map_or(Released::Unrun, Released::lost);
        Ok(self.command(py, self.queue.release_owner(or_raise(py, Owner::new(owner))?, how)))
    }

    /// Gives back all that an owner holds, whose worker is stopped.
    fn stop_owner(&self, py: Python<'_>, owner: String) -> PyResult<Command> {
        Ok(self.command(py, self.queue.release_owner(or_raise(py, Owner::new(owner))?, Released::Stopped)))
    }

    fn fail_owner(&self, py: Python<'_>, owner: String, cause: &str, error: String) -> PyResult<Command> {
        let cause = self::cause(py, cause)?;
        Ok(self.command(py, self.queue.fail_owner(or_raise(py, Owner::new(owner))?, cause, error)))
    }

    fn extend_owner(&self, py: Python<'_>, owner: String, lease: f64) -> PyResult<Command> {
        let owner = or_raise(py, Owner::new(owner))?;
        Ok(self.command(py, or_raise(py, self.queue.extend_owner(owner, seconds(py, "lease", lease)?))?))
    }

    /// Sweeps, if this one leads or nobody does; for so many seconds from now on it leads then.
    fn sweep(&self, py: Python<'_>, leader: String, span: f64) -> PyResult<Command> {
        let leader = or_raise(py, Owner::new(leader))?;
        Ok(self.command(py, or_raise(py, self.queue.sweep().leader(leader, seconds(py, "span", span)?))?))
    }

    /// At most 1,000 ids.
    fn cancel(&self, py: Python<'_>, ids: Vec<Bound<'_, PyAny>>) -> PyResult<Command> {
        Ok(self.command(py, or_raise(py, self.queue.cancel(self::ids(ids)?))?))
    }

    #[pyo3(signature = (partition_key = None))]
    fn purge(&self, py: Python<'_>, partition_key: Option<Bound<'_, PyAny>>) -> PyResult<Command> {
        let purge = match partition_key {
            None => self.queue.purge_all(),
            Some(partition) => or_raise(py, self.queue.purge(name("partition_key", &partition)?))?,
        };
        Ok(self.command(py, purge))
    }

    fn stats(&self, py: Python<'_>) -> Command {
        self.command(py, self.queue.stats())
    }

    fn partitions(&self, py: Python<'_>) -> Command {
        self.command(py, self.queue.partitions())
    }

    fn peek(&self, py: Python<'_>, n: usize) -> PyResult<Command> {
        Ok(self.command(py, or_raise(py, self.queue.peek(n))?))
    }

    fn find(&self, py: Python<'_>, id: Bound<'_, PyAny>) -> PyResult<Command> {
        Ok(self.command(py, self.queue.find(or_raise(py, TaskId::new(name("id", &id)?))?)))
    }

    fn set_share(&self, py: Python<'_>, partition_key: Bound<'_, PyAny>, share: f64) -> PyResult<Command> {
        let command = self.queue.set_share(name("partition_key", &partition_key)?, share);
        Ok(self.command(py, or_raise(py, command)?))
    }

    fn dead_letters(&self, py: Python<'_>, offset: usize, limit: usize) -> PyResult<Command> {
        Ok(self.command(py, or_raise(py, self.queue.dead_letters(offset, limit))?))
    }

    fn redrive(&self, py: Python<'_>, ids: Vec<Bound<'_, PyAny>>) -> PyResult<Command> {
        Ok(self.command(py, or_raise(py, self.queue.redrive(self::ids(ids)?))?))
    }

    fn discard(&self, py: Python<'_>, ids: Vec<Bound<'_, PyAny>>) -> PyResult<Command> {
        Ok(self.command(py, or_raise(py, self.queue.discard(self::ids(ids)?))?))
    }

    fn flatten(&self, py: Python<'_>) -> Command {
        self.command(py, self.queue.flatten())
    }

    fn unflatten(&self, py: Python<'_>) -> Command {
        self.command(py, self.queue.unflatten())
    }
}

impl Queue {
    fn command<C>(&self, py: Python<'_>, command: C) -> Command
    where
        C: vtrr_queue::Command + Sync + 'static,
        C::Reply: crate::reply::IntoReply,
    {
        Command::new(command, self.keys.clone_ref(py))
    }
}
