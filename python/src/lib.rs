//! The extension of the Python package: names, validation, encoding, decoding and the scripts. It does no IO: Python sends
//! what [`command::Command`] asks for through the caller's own Redis client, and hands the answer back.
//!
//! | file | what it does |
//! |---|---|
//! | `queue` | makes commands from Python arguments |
//! | `command` | a command as Python sees it: words to send, answers to read |
//! | `prepare` | checks the arguments of `.queue()` and encodes its tasks |
//! | `json` | encodes what JSON has natively |
//! | `reply` | what commands answer, as Python objects |
//! | `errors` | our errors as Python exceptions |

#![allow(clippy::unnecessary_wraps, clippy::needless_pass_by_value, reason = "shapes that PyO3 asks for")]

mod command;
mod errors;
mod json;
mod prepare;
mod queue;
mod reply;

use pyo3::prelude::*;

/// The core of `vtrr_queue`.
#[pymodule]
mod _core {
    #[pymodule_export]
    use crate::command::Command;
    #[pymodule_export]
    use crate::json::encode_call;
    #[pymodule_export]
    use crate::prepare::Prepared;
    #[pymodule_export]
    use crate::queue::Queue;
    #[pymodule_export]
    use crate::reply::Delivery;

    use super::{Bound, PyModule, PyModuleMethods, PyResult};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
