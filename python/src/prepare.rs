//! Checks the arguments of `.queue()` and encodes its tasks, before anything is sent.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyMapping, PyString, PyTuple};
use vtrr_queue::{Body, Error, Partition, Task, TaskId, Weight};

use crate::errors::{bad_call, bad_json, bad_type, bad_value, from_core, shown};
use crate::json::body;

const TEXT: &str = "text of 1 to 512 bytes without NUL";

/// Tasks of one call, checked and encoded.
#[pyclass(module = "vtrr_queue._core", frozen)]
pub(crate) struct Prepared {
    #[pyo3(get)]
    partition: String,
    tasks: Vec<Task>,
}

impl Prepared {
    pub(crate) fn partition(&self) -> &str {
        &self.partition
    }

    pub(crate) fn tasks(&self) -> Vec<Task> {
        self.tasks.clone()
    }
}

#[pymethods]
impl Prepared {
    /// The id that was given and the body, of each task.
    fn items<'py>(&self, py: Python<'py>) -> Vec<(Option<&str>, Bound<'py, PyBytes>)> {
        let body = |task: &Task| PyBytes::new(py, task.body().as_bytes());
        self.tasks.iter().map(|task| (task.given_id().map(TaskId::as_str), body(task))).collect()
    }

    fn __len__(&self) -> usize {
        self.tasks.len()
    }
}

/// A name: text as it is, a whole number as its decimal text, a UUID as its usual text.
pub(crate) fn name(argument: &str, value: &Bound<'_, PyAny>) -> PyResult<String> {
    let py = value.py();
    let allowed = format!("{TEXT}, an int or a UUID");
    let text = if let Ok(text) = value.cast::<PyString>() {
        match text.to_str() {
            Ok(text) => text.to_owned(),
            Err(_) => return Err(bad_value(py, argument, TEXT, "text with a lone surrogate")),
        }
    } else if value.is_instance_of::<PyBool>() {
        return Err(bad_type(py, argument, &allowed, value));
    } else if value.is_instance_of::<PyInt>() {
        // Not as `str` has it: for an IntEnum that may be its name. And it refuses very large numbers.
        match py.get_type::<PyInt>().call_method1("__repr__", (value,)) {
            Ok(text) => text.cast::<PyString>()?.to_str()?.to_owned(),
            Err(_) => return Err(bad_value(py, argument, TEXT, "a number of thousands of digits")),
        }
    } else if is_uuid(value) {
        value.str()?.to_str()?.to_owned()
    } else {
        return Err(bad_type(py, argument, &allowed, value));
    };
    match Partition::new(text) {
        Ok(text) => Ok(text.as_str().to_owned()),
        Err(error) => Err(from_core(py, &error.about(argument))),
    }
}

fn is_uuid(value: &Bound<'_, PyAny>) -> bool {
    let py = value.py();
    py.import("uuid").and_then(|uuid| uuid.getattr("UUID")).and_then(|class| value.is_instance(&class)).unwrap_or(false)
}

/// An integer; also as text, or as a float without fraction.
fn weight(argument: &str, value: &Bound<'_, PyAny>) -> PyResult<i64> {
    const ALLOWED: &str = "an integer from 1 to 1,000,000";
    let py = value.py();
    let number = if value.is_instance_of::<PyBool>() {
        return Err(bad_value(py, argument, ALLOWED, &shown(value)));
    } else if value.is_instance_of::<PyInt>() {
        value.extract::<i64>().ok()
    } else if let Ok(float) = value.cast::<PyFloat>() {
        let float = float.extract::<f64>()?;
        #[allow(clippy::cast_possible_truncation, reason = "checked")]
        (float.fract() == 0.0 && float.abs() < 1e15).then_some(float as i64)
    } else if let Ok(text) = value.cast::<PyString>() {
        text.to_str().ok().and_then(|text| text.trim().parse::<i64>().ok())
    } else {
        return Err(bad_type(py, argument, ALLOWED, value));
    };
    match number {
        Some(number) if Weight::new(number).is_ok() => Ok(number),
        _ => Err(bad_value(py, argument, ALLOWED, &shown(value))),
    }
}

/// How tasks of one function are checked and encoded.
pub(crate) struct Function<'a, 'py> {
    pub(crate) name: &'a str,
    /// Raises `TypeError` for arguments that do not fit the function.
    pub(crate) check: Option<&'a Bound<'py, PyAny>>,
    /// Whether the task's own id may stand in front of the arguments.
    pub(crate) takes_id: bool,
    pub(crate) dumps: &'a Bound<'py, PyAny>,
    pub(crate) extra: &'a str,
}

pub(crate) fn prepare<'py>(
    partition: &Bound<'py, PyAny>,
    tasks: &Bound<'py, PyAny>,
    function: &Function<'_, 'py>,
) -> PyResult<Prepared> {
    const LIST: &str = "a list of dicts";
    let py = tasks.py();
    let partition = name("partition_key", partition)?;
    if tasks.is_instance_of::<PyString>() || tasks.is_instance_of::<PyBytes>() || tasks.cast::<PyMapping>().is_ok() {
        return Err(bad_type(py, "tasks", LIST, tasks));
    }
    let Ok(iterator) = tasks.try_iter() else { return Err(bad_type(py, "tasks", LIST, tasks)) };
    let empty = (PyList::empty(py).into_any(), PyDict::new(py).into_any());
    let mut checked = Vec::with_capacity(tasks.len().unwrap_or(0));
    for (i, task) in iterator.enumerate() {
        checked.push(one(i, &task?, function, &empty)?);
    }
    Ok(Prepared { partition, tasks: checked })
}

fn one<'py>(
    i: usize,
    task: &Bound<'py, PyAny>,
    function: &Function<'_, 'py>,
    empty: &(Bound<'py, PyAny>, Bound<'py, PyAny>),
) -> PyResult<Task> {
    let py = task.py();
    let at = || format!("tasks[{i}]");
    let dict = match task.cast::<PyDict>() {
        Ok(dict) => dict.clone(),
        Err(_) if task.cast::<PyMapping>().is_ok() => {
            let dict = PyDict::new(py);
            dict.update(task.cast::<PyMapping>()?)?;
            dict
        }
        Err(_) => return Err(bad_type(py, &at(), "a dict", task)),
    };
    let (mut args, mut kwargs) = empty.clone();
    let (mut weighs, mut id) = (1, None);
    for (key, value) in dict.iter() {
        match key.extract::<&str>().unwrap_or_default() {
            "args" if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() => args = value,
            "args" => return Err(bad_type(py, &format!("{}[\"args\"]", at()), "a list or tuple", &value)),
            "kwargs" => match value.cast::<PyDict>() {
                Ok(dict) if dict.keys().iter().all(|key| key.is_instance_of::<PyString>()) => kwargs = value,
                _ => return Err(bad_type(py, &format!("{}[\"kwargs\"]", at()), "a dict with text as keys", &value)),
            },
            "weight" => weighs = weight(&format!("{}[\"weight\"]", at()), &value)?,
            "id" if value.is_none() => {}
            "id" => id = Some(name(&format!("{}[\"id\"]", at()), &value)?),
            _ => {
                let shown = key.repr()?.to_string_lossy().into_owned();
                return Err(bad_call(
                    py,
                    format!("{} has the key {shown}; allowed are \"id\", \"weight\", \"args\", \"kwargs\"", at()),
                ));
            }
        }
    }
    check(&at, &args, &kwargs, function)?;
    let bytes = body(function.name, &args, &kwargs, function.dumps, function.extra).map_err(|(field, error)| {
        let value = if field == "args" { &args } else { &kwargs };
        bad_json(py, &format!("{}[\"{field}\"]", at()), value, error)
    })?;
    let wrong = |error: Error| from_core(py, &error.about(at()));
    let mut ready = Task::with_body(Body::from_json(bytes).map_err(wrong)?);
    ready = ready.weight(weighs).map_err(wrong)?;
    if let Some(id) = id {
        ready = ready.id(TaskId::new(id).map_err(wrong)?);
    }
    Ok(ready)
}

/// Whether the function takes these arguments.
fn check<'py>(
    at: &impl Fn() -> String,
    args: &Bound<'py, PyAny>,
    kwargs: &Bound<'py, PyAny>,
    function: &Function<'_, 'py>,
) -> PyResult<()> {
    let Some(header) = function.check else { return Ok(()) };
    let py = args.py();
    let args =
        args.cast::<PyTuple>().map_or_else(|_| args.cast::<PyList>().map(PyListMethods::to_tuple), |it| Ok(it.clone()))?;
    let kwargs = kwargs.cast::<PyDict>()?;
    let Err(error) = header.call(args.clone(), Some(kwargs)) else { return Ok(()) };
    if !error.is_instance_of::<PyTypeError>(py) {
        return Err(error);
    }
    if function.takes_id {
        let with_id = std::iter::once(PyString::new(py, "id").into_any()).chain(args.iter()).collect::<Vec<_>>();
        if header.call(PyTuple::new(py, with_id)?, Some(kwargs)).is_ok() {
            return Ok(());
        }
    }
    let message = error.value(py).to_string();
    Err(bad_call(py, format!("{} does not fit {}: {message}", at(), function.name)))
}
