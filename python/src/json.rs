//! Encodes what JSON has natively, exactly; leaves everything else to the caller's encoder.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

/// Deeper values are left to Python, which knows its own limit.
const MAX_DEPTH: usize = 64;

/// Writes the value; false if it holds something that is not exactly a type of JSON: then `out` is to be cut back.
fn write(value: &Bound<'_, PyAny>, out: &mut Vec<u8>, depth: usize) -> bool {
    if depth > MAX_DEPTH {
        return false;
    }
    if value.is_exact_instance_of::<PyString>() {
        return value.cast::<PyString>().is_ok_and(|text| write_text(text, out));
    }
    if value.is_none() {
        out.extend_from_slice(b"null");
    } else if let Ok(flag) = value.cast_exact::<PyBool>() {
        out.extend_from_slice(if flag.is_true() { b"true" } else { b"false" });
    } else if value.is_exact_instance_of::<PyInt>() {
        let Ok(number) = value.extract::<i64>() else { return false };
        out.extend_from_slice(number.to_string().as_bytes());
    } else if value.is_exact_instance_of::<PyFloat>() {
        // As Python writes it: the shortest text that reads back the same.
        let Ok(text) = value.repr() else { return false };
        match text.to_str() {
            Ok(text) if text.bytes().all(|byte| b"0123456789.+-e".contains(&byte)) => out.extend_from_slice(text.as_bytes()),
            _ => return false,
        }
    } else if let Ok(list) = value.cast_exact::<PyList>() {
        return write_all(list.iter(), out, depth);
    } else if let Ok(list) = value.cast_exact::<PyTuple>() {
        return write_all(list.iter(), out, depth);
    } else if let Ok(dict) = value.cast_exact::<PyDict>() {
        out.push(b'{');
        for (i, (key, value)) in dict.iter().enumerate() {
            if i > 0 {
                out.push(b',');
            }
            let Ok(key) = key.cast_exact::<PyString>() else { return false };
            if !write_text(key, out) {
                return false;
            }
            out.push(b':');
            if !write(&value, out, depth + 1) {
                return false;
            }
        }
        out.push(b'}');
    } else {
        return false;
    }
    true
}

fn write_all<'py>(items: impl Iterator<Item = Bound<'py, PyAny>>, out: &mut Vec<u8>, depth: usize) -> bool {
    out.push(b'[');
    for (i, item) in items.enumerate() {
        if i > 0 {
            out.push(b',');
        }
        if !write(&item, out, depth + 1) {
            return false;
        }
    }
    out.push(b']');
    true
}

/// False for text with lone surrogates.
fn write_text(text: &Bound<'_, PyString>, out: &mut Vec<u8>) -> bool {
    let Ok(text) = text.to_str() else { return false };
    write_str(text, out);
    true
}

fn write_str(text: &str, out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.push(b'"');
    let mut from = 0;
    for (i, byte) in text.bytes().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.extend_from_slice(&text.as_bytes()[from..i]);
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            _ => out.extend_from_slice(&[b'\\', b'u', b'0', b'0', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]),
        }
        from = i + 1;
    }
    out.extend_from_slice(&text.as_bytes()[from..]);
    out.push(b'"');
}

/// A value as JSON, by `dumps` where it has more than JSON's own types.
fn write_value(value: &Bound<'_, PyAny>, dumps: &Bound<'_, PyAny>, out: &mut Vec<u8>) -> PyResult<()> {
    let start = out.len();
    if !write(value, out, 0) {
        out.truncate(start);
        let text = dumps.call1((value,))?;
        match text.cast::<PyBytes>() {
            Ok(bytes) => out.extend_from_slice(bytes.as_bytes()),
            Err(_) => out.extend_from_slice(text.cast::<PyString>()?.to_str()?.as_bytes()),
        }
    }
    Ok(())
}

/// The body of a task. `extra` is what stands behind the arguments: `,"retries":1`, say. An error comes with the name of
/// the field that cannot be encoded.
pub(crate) fn body(
    name: &str,
    args: &Bound<'_, PyAny>,
    kwargs: &Bound<'_, PyAny>,
    dumps: &Bound<'_, PyAny>,
    extra: &str,
) -> Result<Vec<u8>, (&'static str, PyErr)> {
    let mut out = Vec::with_capacity(160);
    out.extend_from_slice(b"{\"task_name\":");
    write_str(name, &mut out);
    out.extend_from_slice(b",\"args\":");
    write_value(args, dumps, &mut out).map_err(|error| ("args", error))?;
    out.extend_from_slice(b",\"kwargs\":");
    write_value(kwargs, dumps, &mut out).map_err(|error| ("kwargs", error))?;
    out.extend_from_slice(extra.as_bytes());
    out.push(b'}');
    Ok(out)
}

/// `{"task_name":…,"args":…,"kwargs":…` and `extra`, by `dumps` where the arguments hold more than JSON's own types.
#[pyfunction]
#[pyo3(signature = (name, args, kwargs, dumps, extra = ""))]
pub(crate) fn encode_call<'py>(
    py: Python<'py>,
    name: &str,
    args: &Bound<'py, PyAny>,
    kwargs: &Bound<'py, PyAny>,
    dumps: &Bound<'py, PyAny>,
    extra: &str,
) -> PyResult<Bound<'py, PyBytes>> {
    let body = body(name, args, kwargs, dumps, extra).map_err(|(_, error)| error)?;
    Ok(PyBytes::new(py, &body))
}
