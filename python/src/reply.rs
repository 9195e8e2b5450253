//! What commands answer, as Python objects.

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use vtrr_queue::{
    Cancelled, DeadLetter, Dequeued, Enqueued, Flattened, Found, PartitionStats, Peeked, Purged, Settled, Swept, Tagging,
    TaskId, Totals, Whereabouts,
};

/// A reply as a Python object.
pub(crate) trait IntoReply {
    fn into_reply(self, py: Python<'_>) -> PyResult<Py<PyAny>>;
}

/// A task in a worker's hands.
#[pyclass(module = "vtrr_queue._core", frozen, get_all)]
pub(crate) struct Delivery {
    id: String,
    token: String,
    /// How often the task was handed out, this time included.
    deliveries: u32,
    /// How many of the earlier ones count against it.
    blames: u32,
    /// How many of them lost their worker or lease, since the task last ended one itself.
    losses: u32,
    /// None for a task that 0.1.0 stored.
    partition: Option<String>,
    /// The task as stored, JSON.
    payload: Py<PyBytes>,
}

/// So that a worker's main process can hand it to another process.
#[pymethods]
impl Delivery {
    #[new]
    fn new(
        id: String,
        token: String,
        deliveries: u32,
        blames: u32,
        losses: u32,
        partition: Option<String>,
        payload: Py<PyBytes>,
    ) -> Self {
        Self { id, token, deliveries, blames, losses, partition, payload }
    }

    #[allow(clippy::type_complexity)]
    fn __getnewargs__(&self, py: Python<'_>) -> (String, String, u32, u32, u32, Option<String>, Py<PyBytes>) {
        (
            self.id.clone(),
            self.token.clone(),
            self.deliveries,
            self.blames,
            self.losses,
            self.partition.clone(),
            self.payload.clone_ref(py),
        )
    }
}

fn delivery(py: Python<'_>, delivery: &vtrr_queue::Delivery) -> Delivery {
    Delivery {
        id: delivery.id.to_string(),
        token: delivery.token.to_string(),
        deliveries: delivery.deliveries,
        blames: delivery.blames,
        losses: delivery.losses,
        partition: delivery.payload.partition().map(|partition| partition.to_string()),
        payload: PyBytes::new(py, delivery.payload.as_bytes()).unbind(),
    }
}

fn settled(settled: Settled) -> &'static str {
    match settled {
        Settled::Done => "done",
        Settled::Gone => "gone",
        Settled::Lost => "lost",
    }
}

fn dict<'py>(py: Python<'py>, fields: &[(&str, Bound<'py, PyAny>)]) -> PyResult<Py<PyAny>> {
    let dict = PyDict::new(py);
    for (name, value) in fields {
        dict.set_item(name, value)?;
    }
    Ok(dict.into_any().unbind())
}

/// Fields of a dict: each value as Python has it.
macro_rules! fields {
    ($py:expr, $($name:literal: $value:expr),* $(,)?) => {
        dict($py, &[$(($name, ($value).into_bound_py_any($py)?)),*])
    };
}
impl IntoReply for Enqueued {
    /// The ids of the duplicates.
    fn into_reply(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let duplicates: Vec<_> = self.duplicates.iter().map(TaskId::as_str).collect();
        duplicates.into_py_any(py)
    }
}

impl IntoReply for Dequeued {
    /// `(deliveries, settled, seconds until something is due or None, more)`.
    fn into_reply(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let deliveries = self.deliveries.iter().map(|it| Bound::new(py, delivery(py, it))).collect::<PyResult<Vec<_>>>()?;
        let settled: Vec<_> = self.settled.into_iter().map(settled).collect();
        let due = self.next_due.map(|due| due.as_secs_f64());
        (deliveries, settled, due, self.more).into_py_any(py)
    }
}

impl IntoReply for Vec<Settled> {
    fn into_reply(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.into_iter().map(settled).collect::<Vec<_>>().into_py_any(py)
    }
}

impl IntoReply for Vec<TaskId> {
    fn into_reply(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.iter().map(TaskId::as_str).collect::<Vec<_>>().into_py_any(py)
    }
}

impl IntoReply for u64 {
    fn into_reply(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.into_py_any(py)
    }
}

impl IntoReply for () {
    fn into_reply(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(py.None())
    }
}

impl IntoReply for Vec<bool> {
    fn into_reply(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.into_py_any(py)
    }
}

impl IntoReply for Swept {
    fn into_reply(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        fields!(
            py,
            "reclaimed": self.reclaimed,
            "due": self.due,
            "healed": self.healed,
            "dropped": self.dropped,
            "more": self.more,
            "unfinished": self.unfinished,
            "leading": self.leading,
        )
    }
}

impl IntoReply for Vec<Cancelled> {
    fn into_reply(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let words = self.into_iter().map(|cancelled| match cancelled {
            Cancelled::Done => "done",
            Cancelled::Gone => "gone",
            Cancelled::Leased => "leased",
            Cancelled::Dead => "dead",
        });
        Ok(PyList::new(py, words.collect::<Vec<_>>())?.into_any().unbind())
    }
}

impl IntoReply for Purged {
    fn into_reply(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        fields!(py, "purged": self.purged, "leased": self.leased, "delayed": self.delayed, "dead": self.dead)
    }
}

impl IntoReply for Totals {
    fn into_reply(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        fields!(
            py,
            "tagging": self.tagging.map(Tagging::as_str),
            "queued": self.queued,
            "leased": self.leased,
            "delayed": self.delayed,
            "dead": self.dead,
            "partitions": self.partitions,
            "virtual_time": self.virtual_time,
            "next_due": self.next_due.map(|due| due.as_secs_f64()),
            "totals": self.totals,
        )
    }
}

impl IntoReply for Option<Found> {
    fn into_reply(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let Some(found) = self else { return Ok(py.None()) };
        let (mut left, mut owner, mut cause, mut error, mut start) = (None, None, None, None, None);
        let state = match found.whereabouts {
            Whereabouts::Waiting => "waiting",
            Whereabouts::Tagged { start: tag } => {
                start = Some(tag);
                "tagged"
            }
            Whereabouts::Leased { left: time, owner: holder } => {
                (left, owner) = (Some(time.as_secs_f64()), holder);
                "leased"
            }
            Whereabouts::Delayed { left: time } => {
                left = Some(time.as_secs_f64());
                "delayed"
            }
            Whereabouts::Dead { cause: what, error: why } => {
                (cause, error) = (Some(what.to_string()), Some(why));
                "dead"
            }
            _ => "unknown",
        };
        fields!(
            py,
            "state": state,
            "deliveries": found.deliveries,
            "partition": found.payload.partition().map(|partition| partition.to_string()),
            "weight": found.payload.weight().get(),
            "payload": PyBytes::new(py, found.payload.as_bytes()),
            "start": start,
            "left": left,
            "owner": owner,
            "cause": cause,
            "error": error,
        )
    }
}

impl IntoReply for Vec<Peeked> {
    /// `(id, partition or None, start tag, payload)` each.
    fn into_reply(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let items = self.into_iter().map(|it| {
            let partition = it.payload.partition().map(|partition| partition.to_string());
            (it.id.to_string(), partition, it.start, PyBytes::new(py, it.payload.as_bytes())).into_pyobject(py)
        });
        Ok(PyList::new(py, items.collect::<PyResult<Vec<Bound<'_, PyTuple>>>>()?)?.into_any().unbind())
    }
}

impl IntoReply for Vec<DeadLetter> {
    fn into_reply(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let letters = self.into_iter().map(|it| {
            fields!(
                py,
                "id": it.id.as_str(),
                "died_at": it.died_at_ms as f64 / 1000.0,
                "deliveries": it.deliveries,
                "cause": it.cause.as_str(),
                "error": it.error,
                "partition": it.payload.partition().map(|partition| partition.to_string()),
                "payload": PyBytes::new(py, it.payload.as_bytes()),
            )
        });
        letters.collect::<PyResult<Vec<_>>>()?.into_py_any(py)
    }
}

impl IntoReply for Vec<PartitionStats> {
    fn into_reply(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let partitions = self.into_iter().map(|it| {
            fields!(
                py,
                "partition": it.partition.as_str(),
                "queued": it.queued,
                "leased": it.leased,
                "share": it.share.get(),
                "oldest": it.oldest.map(|age| age.as_secs_f64()),
            )
        });
        partitions.collect::<PyResult<Vec<_>>>()?.into_py_any(py)
    }
}

impl IntoReply for Flattened {
    fn into_reply(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        fields!(py, "in_lanes": self.in_lanes, "leased": self.leased)
    }
}
