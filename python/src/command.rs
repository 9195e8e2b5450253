//! A command as Python sees it.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use pyo3::exceptions::PyNotImplementedError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyList, PyString, PyTuple};
use vtrr_queue::{Call, SCRIPTS, Step, Value};

use crate::errors::from_core;
use crate::reply::IntoReply;

/// A command of whatever kind.
trait Any: Send + Sync {
    fn call(&self) -> Call;
    fn decode(&mut self, py: Python<'_>, answer: Value) -> PyResult<Option<Py<PyAny>>>;
    fn known_for(&self) -> Option<f64>;
    fn repeated(&mut self);
    fn unfinished(&self) -> Option<(String, usize)>;
}

struct Typed<C>(C);

impl<C> Any for Typed<C>
where
    C: vtrr_queue::Command + Send + Sync,
    C::Reply: IntoReply,
{
    fn call(&self) -> Call {
        self.0.call()
    }

    fn decode(&mut self, py: Python<'_>, answer: Value) -> PyResult<Option<Py<PyAny>>> {
        match self.0.decode(answer) {
            Ok(Step::Done(reply)) => reply.into_reply(py).map(Some),
            Ok(Step::Again) => Ok(None),
            Err(error) => Err(from_core(py, &error)),
        }
    }

    fn known_for(&self) -> Option<f64> {
        self.0.known_for().map(|known| known.as_secs_f64())
    }

    fn repeated(&mut self) {
        self.0.repeated();
    }

    fn unfinished(&self) -> Option<(String, usize)> {
        let error = vtrr_queue::Queue::new("").err()?;
        self.0.interrupted(error).unfinished().map(|unfinished| (unfinished.request.clone(), unfinished.stored))
    }
}

/// One thing to do to a queue: `words` to send, `decode` for the answer, until that returns something else than
/// `NotImplemented`.
#[pyclass(module = "vtrr_queue._core")]
pub(crate) struct Command {
    inner: Box<dyn Any>,
    /// The keys as bytes, shared by all commands of a queue.
    keys: Py<PyTuple>,
    /// What an enqueue stores, in order.
    #[pyo3(get)]
    ids: Vec<String>,
}

impl Command {
    pub(crate) fn new<C>(command: C, keys: Py<PyTuple>) -> Self
    where
        C: vtrr_queue::Command + Send + Sync + 'static,
        C::Reply: IntoReply,
    {
        Self { inner: Box::new(Typed(command)), keys, ids: Vec::new() }
    }

    pub(crate) fn with_ids(mut self, ids: Vec<String>) -> Self {
        self.ids = ids;
        self
    }
}

#[pymethods]
impl Command {
    /// The words to send, the script by its hash; or whole, which every server understands.
    #[pyo3(signature = (*, whole = false))]
    fn words<'py>(&self, py: Python<'py>, whole: bool) -> PyResult<Bound<'py, PyTuple>> {
        let call = self.inner.call();
        let keys = self.keys.bind(py);
        let mut words: Vec<Bound<'py, PyAny>> = Vec::with_capacity(3 + keys.len() + call.args.len());
        if whole {
            words.push(PyString::intern(py, "EVAL").into_any());
            // As bytes, whatever the encoding of the client.
            words.push(PyBytes::new(py, call.script.source.as_bytes()).into_any());
        } else {
            words.push(PyString::intern(py, "EVALSHA").into_any());
            words.push(PyString::intern(py, &hash(call.script.source)).into_any());
        }
        words.push(keys.len().into_pyobject(py)?.into_any());
        words.extend(keys.iter());
        words.extend(call.args.iter().map(|word| PyBytes::new(py, word).into_any()));
        PyTuple::new(py, words)
    }

    /// Reads an answer: the reply, or `NotImplemented` if there is another step to send.
    fn decode(&mut self, py: Python<'_>, answer: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let answer = value(answer, MAX_DEPTH)?;
        Ok(self.inner.decode(py, answer)?.unwrap_or_else(|| py.NotImplemented()))
    }

    /// How many seconds the server knows the words again once they have arrived; `None`: always.
    #[getter]
    fn known_for(&self) -> Option<f64> {
        self.inner.known_for()
    }

    /// Says that the words are sent again because an answer was lost.
    fn repeated(&mut self) {
        self.inner.repeated();
    }

    /// For an enqueue: its request id, and how many of its tasks are known to be stored.
    #[getter]
    fn unfinished(&self) -> Option<(String, usize)> {
        self.inner.unfinished()
    }
}

/// The SHA-1 of a script, computed once.
fn hash(source: &'static str) -> String {
    static HASHES: LazyLock<Mutex<HashMap<usize, String>>> =
        LazyLock::new(|| Mutex::new(HashMap::with_capacity(SCRIPTS.len())));
    let mut hashes = HASHES.lock().unwrap_or_else(PoisonError::into_inner);
    hashes.entry(source.as_ptr().addr()).or_insert_with(|| sha1_smol::Sha1::from(source).hexdigest()).clone()
}

/// Lists within lists of an answer: scripts give three.
const MAX_DEPTH: usize = 16;

/// An answer as clients give it, with bytes or, where they decode, with text. At most `depth` lists within lists.
fn value(answer: &Bound<'_, PyAny>, depth: usize) -> PyResult<Value> {
    if answer.is_none() {
        return Ok(Value::Nil);
    }
    if let Ok(bytes) = answer.cast::<PyBytes>() {
        return Ok(Value::Bytes(bytes.as_bytes().to_vec()));
    }
    if let Ok(text) = answer.cast::<PyString>() {
        return Ok(Value::Bytes(text.to_str()?.as_bytes().to_vec()));
    }
    if let Ok(flag) = answer.cast::<PyBool>() {
        return Ok(Value::Int(flag.is_true().into()));
    }
    if answer.is_instance_of::<PyInt>() {
        return Ok(Value::Int(answer.extract()?));
    }
    if let Ok(list) = answer.cast::<PyList>() {
        return values(list.iter(), depth);
    }
    if let Ok(list) = answer.cast::<PyTuple>() {
        return values(list.iter(), depth);
    }
    if answer.is_instance_of::<PyFloat>() {
        return Ok(Value::Bytes(answer.extract::<f64>()?.to_string().into_bytes()));
    }
    Err(PyNotImplementedError::new_err(format!("an answer of type {}", answer.get_type().name()?)))
}

fn values<'py>(items: impl Iterator<Item = Bound<'py, PyAny>>, depth: usize) -> PyResult<Value> {
    let Some(depth) = depth.checked_sub(1) else {
        return Err(PyNotImplementedError::new_err(format!("an answer of more than {MAX_DEPTH} lists within lists")));
    };
    Ok(Value::List(items.map(|item| value(&item, depth)).collect::<PyResult<_>>()?))
}
