//! What a command asks of a server, and what it gets back, without naming any client library.

use std::borrow::Cow;

use crate::error::{Bound, Error, ErrorKind, Result, shown};

/// One script call: run `script` with these keys and arguments, as one atomic step.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// The script.
    pub script: Script,
    /// KEYS of the script.
    pub keys: std::sync::Arc<[String]>,
    /// ARGV of the script.
    pub args: Vec<Vec<u8>>,
}

/// A script: a name and its whole source. Send it by `EVALSHA`, and by `EVAL` when the server does not know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Script {
    /// The command's name.
    pub name: &'static str,
    /// The Lua source.
    pub source: &'static str,
}

/// An answer of a server, in the few types that scripts return.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Nothing.
    Nil,
    /// An integer.
    Int(i64),
    /// A string of bytes.
    Bytes(Vec<u8>),
    /// A list.
    List(Vec<Value>),
}

/// An argument as bytes.
#[allow(clippy::needless_pass_by_value, reason = "reads better where it is called")]
pub(crate) fn arg(value: impl ToString) -> Vec<u8> {
    value.to_string().into_bytes()
}

impl Value {
    /// Turns a script's refusal `{"ERR", kind, message}` into an error; hands every other list on.
    pub(crate) fn answer(self) -> Result<Fields> {
        let list = self.list()?;
        if let [Value::Bytes(mark), kind, message] = list.as_slice()
            && mark == b"ERR"
        {
            let message = message.text()?.into_owned();
            return Err(match kind.text()?.as_ref() {
                "mode" => Error::new(ErrorKind::Mode, message),
                "conflict" => Error::new(ErrorKind::Conflict, message),
                "full" => Error::full(Bound::Queue, message),
                "full_partition" => Error::full(Bound::Partition, message),
                "version" => Error::new(ErrorKind::Version, message),
                _ => Error::protocol(message),
            });
        }
        Ok(Fields(list.into_iter()))
    }

    pub(crate) fn list(self) -> Result<Vec<Value>> {
        match self {
            Value::List(list) => Ok(list),
            other => Err(other.unreadable("a list")),
        }
    }

    pub(crate) fn fields(self) -> Result<Fields> {
        Ok(Fields(self.list()?.into_iter()))
    }

    pub(crate) fn bytes(self) -> Result<Vec<u8>> {
        match self {
            Value::Bytes(bytes) => Ok(bytes),
            other => Err(other.unreadable("bytes")),
        }
    }

    pub(crate) fn text(&self) -> Result<Cow<'_, str>> {
        match self {
            Value::Bytes(bytes) => Ok(String::from_utf8_lossy(bytes)),
            other => Err(other.unreadable("text")),
        }
    }

    pub(crate) fn int(&self) -> Result<i64> {
        match self {
            Value::Int(n) => Ok(*n),
            Value::Bytes(_) => self.text()?.parse().map_err(|_| self.unreadable("an integer")),
            other => Err(other.unreadable("an integer")),
        }
    }

    pub(crate) fn float(&self) -> Result<f64> {
        match self {
            Value::Int(n) => Ok(*n as f64),
            other => other.text()?.parse().map_err(|_| other.unreadable("a number")),
        }
    }

    /// However large it is, the message is short.
    pub(crate) fn unreadable(&self, expected: &str) -> Error {
        let found = match self {
            Value::Nil => "nothing".to_owned(),
            Value::Int(n) => n.to_string(),
            Value::Bytes(bytes) => shown(bytes),
            Value::List(list) => format!("a list of {}", list.len()),
        };
        Error::protocol(format!("expected {expected} in the server's answer, found {found}"))
    }
}

/// The fields of an answer, read one after the other; of a list, its entries.
pub(crate) struct Fields(std::vec::IntoIter<Value>);

impl IntoIterator for Fields {
    type Item = Value;
    type IntoIter = std::vec::IntoIter<Value>;

    fn into_iter(self) -> Self::IntoIter {
        self.0
    }
}

impl Fields {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.len() == 0
    }
    pub(crate) fn value(&mut self) -> Result<Value> {
        self.0.next().ok_or_else(|| Error::protocol("the server's answer is too short"))
    }
    pub(crate) fn list(&mut self) -> Result<Vec<Value>> {
        self.value()?.list()
    }
    pub(crate) fn fields(&mut self) -> Result<Fields> {
        self.value()?.fields()
    }
    pub(crate) fn bytes(&mut self) -> Result<Vec<u8>> {
        self.value()?.bytes()
    }
    pub(crate) fn text(&mut self) -> Result<String> {
        Ok(self.value()?.text()?.into_owned())
    }
    pub(crate) fn int(&mut self) -> Result<i64> {
        self.value()?.int()
    }
    /// A count, a time or anything else that is never negative.
    pub(crate) fn count(&mut self) -> Result<u64> {
        let n = self.int()?;
        u64::try_from(n).map_err(|_| Error::protocol(format!("{n} where a count was expected")))
    }
    pub(crate) fn float(&mut self) -> Result<f64> {
        self.value()?.float()
    }
    pub(crate) fn flag(&mut self) -> Result<bool> {
        Ok(self.int()? != 0)
    }
}
