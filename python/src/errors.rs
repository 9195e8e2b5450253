//! Our errors as the exceptions of `vtrr_queue.errors`.

use pyo3::exceptions::{PyRecursionError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use vtrr_queue::{Error, ErrorKind};

fn raise(py: Python<'_>, class: &str, message: String) -> PyErr {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let made = MODULE
        .get_or_try_init(py, || py.import("vtrr_queue.errors").map(Bound::unbind))
        .and_then(|module| module.bind(py).getattr(class))
        .and_then(|class| Ok(class.cast_into::<PyType>()?));
    match made {
        Ok(class) => PyErr::from_type(class, message),
        Err(error) => error,
    }
}

/// The exception for an error of the core.
pub(crate) fn from_core(py: Python<'_>, error: &Error) -> PyErr {
    let class = match error.kind() {
        ErrorKind::Invalid => "InvalidArgument",
        ErrorKind::Mode => "WrongMode",
        ErrorKind::Conflict => "IdConflict",
        ErrorKind::Full => "QueueFull",
        ErrorKind::Version => "NewerFormat",
        _ => "ProtocolError",
    };
    let raised = raise(py, class, error.to_string());
    if let Some(bound) = error.bound() {
        let name = if bound == vtrr_queue::Bound::Partition { "max_queued_per_partition" } else { "max_queued" };
        // Only a class that somebody has put in place of ours could refuse it.
        let _ = raised.value(py).setattr("bound", name);
    }
    raised
}

/// An argument of a value that is not allowed.
pub(crate) fn bad_value(py: Python<'_>, argument: &str, allowed: &str, value: &str) -> PyErr {
    raise(py, "InvalidArgument", format!("{argument} must be {allowed}, not {value}"))
}

/// An argument of a type that is not allowed.
pub(crate) fn bad_type(py: Python<'_>, argument: &str, allowed: &str, value: &Bound<'_, PyAny>) -> PyErr {
    let class = value.get_type().name().map_or_else(|_| "object".to_owned(), |name| name.to_string());
    raise(py, "InvalidArgumentType", format!("{argument} must be {allowed}, not {} ({class})", shown(value)))
}

/// A value that the encoder has refused. What the value's own methods raise passes through as it is.
pub(crate) fn bad_json(py: Python<'_>, argument: &str, value: &Bound<'_, PyAny>, error: PyErr) -> PyErr {
    let class = if error.is_instance_of::<PyTypeError>(py) {
        "InvalidArgumentType"
    } else if error.is_instance_of::<PyValueError>(py) || error.is_instance_of::<PyRecursionError>(py) {
        "InvalidArgument"
    } else {
        return error;
    };
    let message = format!("{argument} must be what JSON takes, not {}: {}", shown(value), error.value(py));
    let refused = raise(py, class, message);
    refused.set_cause(py, Some(error));
    refused
}

/// The beginning of a value's text.
pub(crate) fn shown(value: &Bound<'_, PyAny>) -> String {
    value.repr().map_or_else(|_| "?".to_owned(), |text| text.to_string_lossy().chars().take(80).collect())
}

/// A call that does not fit.
pub(crate) fn bad_call(py: Python<'_>, message: String) -> PyErr {
    raise(py, "InvalidArgumentType", message)
}
