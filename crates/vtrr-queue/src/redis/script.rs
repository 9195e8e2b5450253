//! A call as commands of the server; its answers and errors as ours.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use ::redis::{Cmd, ErrorKind as Theirs, RedisError, RedisResult, ServerErrorKind};

use crate::call::{Call, Script, Value};
use crate::error::{Error, ErrorKind, Result, shown};

/// The call by the hash of its script.
pub(super) fn by_hash(call: &Call) -> Cmd {
    command(call, "EVALSHA", &hash(call.script))
}

/// The call with its whole script, which the server remembers.
pub(super) fn by_source(call: &Call) -> Cmd {
    command(call, "EVAL", call.script.source)
}

fn command(call: &Call, name: &str, script: &str) -> Cmd {
    let bytes = call.keys.iter().map(String::len).sum::<usize>() + call.args.iter().map(Vec::len).sum::<usize>();
    let mut command = Cmd::with_capacity(3 + call.keys.len() + call.args.len(), bytes + script.len() + 32);
    command.arg(name).arg(script).arg(call.keys.len()).arg(&*call.keys).arg(&call.args);
    command
}

/// The SHA-1 of a script, computed once.
fn hash(script: Script) -> Arc<str> {
    type Hashes = HashMap<(usize, usize), Arc<str>>;
    static HASHES: LazyLock<Mutex<Hashes>> = LazyLock::new(Mutex::default);
    // The source is static: while it is here, nothing else is.
    let place = (script.source.as_ptr().addr(), script.source.len());
    let mut hashes = HASHES.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(hashes.entry(place).or_insert_with(|| ::redis::Script::new(script.source).get_hash().into()))
}

/// Whether the server does not know the script: nothing has run.
pub(super) fn is_unknown(answer: &RedisResult<::redis::Value>) -> bool {
    answer.as_ref().is_err_and(|error| error.kind() == Theirs::Server(ServerErrorKind::NoScript))
}

/// An answer in our few types. RESP3's others become what RESP2 has for them.
pub(super) fn answer(answer: ::redis::Value) -> Result<Value> {
    use ::redis::Value as Answer;
    Ok(match answer {
        Answer::Nil => Value::Nil,
        Answer::Int(n) => Value::Int(n),
        Answer::Boolean(yes) => Value::Int(yes.into()),
        Answer::BulkString(bytes) | Answer::BigNumber(bytes) => Value::Bytes(bytes),
        Answer::SimpleString(text) | Answer::VerbatimString { text, .. } => Value::Bytes(text.into_bytes()),
        Answer::Okay => Value::Bytes(b"OK".to_vec()),
        Answer::Double(number) => Value::Bytes(number.to_string().into_bytes()),
        Answer::Array(list) | Answer::Set(list) => Value::List(list.into_iter().map(self::answer).collect::<Result<_>>()?),
        Answer::Map(pairs) => {
            let list = pairs.into_iter().flat_map(|(key, value)| [key, value]);
            Value::List(list.map(self::answer).collect::<Result<_>>()?)
        }
        Answer::Attribute { data, .. } => self::answer(*data)?,
        other => {
            let other = shown(format!("{other:?}").as_bytes());
            return Err(Error::protocol(format!("the server's answer is of a kind that no script returns: {other}")));
        }
    })
}

/// An error of the client or the server as ours: who must act, and whether repeating makes sense. `follows`: whether the
/// client knows the nodes of a cluster and has given up following a slot for now.
pub(super) fn failure(error: RedisError, follows: bool) -> Error {
    let kind = match error.kind() {
        Theirs::Server(ServerErrorKind::Moved | ServerErrorKind::Ask) if follows => ErrorKind::Unavailable,
        Theirs::Parse | Theirs::UnexpectedReturnType => ErrorKind::Protocol,
        Theirs::AuthenticationFailed | Theirs::RESP3NotSupported => ErrorKind::Server,
        Theirs::InvalidClientConfig | Theirs::EmptySentinelList | Theirs::Server(ServerErrorKind::CrossSlot) => {
            ErrorKind::Invalid
        }
        Theirs::Server(_) | Theirs::Extension => match code(&error) {
            "LOADING" | "READONLY" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" | "NOREPLICAS" | "BUSY" => {
                ErrorKind::Unavailable
            }
            _ => ErrorKind::Server,
        },
        _ => ErrorKind::Unavailable,
    };
    let text = match error.code() {
        Some(code) => format!("{code} {}", error.detail().unwrap_or_default()),
        None if error.is_timeout() => "no answer in time".to_owned(),
        None => error.to_string(),
    };
    let message = match (kind, error.kind()) {
        (ErrorKind::Server, Theirs::Server(ServerErrorKind::Moved | ServerErrorKind::Ask)) => {
            format!("the server is a node of a Redis Cluster, connect to it as such: {text}")
        }
        (_, Theirs::Server(ServerErrorKind::CrossSlot)) => {
            format!(
                "on Redis Cluster the queue's name must be in braces, like \"{{files}}\", so that its keys share a slot: {text}"
            )
        }
        (ErrorKind::Unavailable, _) => format!("the server is not available: {text}"),
        // The second is what it says to a command of more than ten words.
        (ErrorKind::Server, _) if text.starts_with("NOAUTH") || text.contains("unauthenticated") => {
            format!("the server wants a password: {text}")
        }
        (ErrorKind::Server, _) => format!("the server refused: {text}"),
        (ErrorKind::Protocol, _) => format!("the server's answer cannot be read: {text}"),
        _ => text,
    };
    Error::new(kind, message).with_origin(error)
}

/// No answer in time.
pub(super) fn silence(time: Duration) -> Error {
    let error = io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {time:.1?}"));
    Error::new(ErrorKind::Unavailable, format!("the server is not available: {error}")).with_origin(error)
}

/// The code of a server's error. Redis 6.2 puts one that a script met into the text: `ERR Error running script …: -CODE …`.
fn code(error: &RedisError) -> &str {
    let code = error.code().unwrap_or_default();
    let inner = error.detail().filter(|_| code == "ERR").and_then(|detail| detail.strip_prefix("Error running script"));
    inner.and_then(|text| text.split_once(": -")).and_then(|(_, text)| text.split(' ').next()).unwrap_or(code)
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    fn from_wire(text: &str) -> Result<Value> {
        let value = ::redis::parse_redis_value(text.as_bytes()).unwrap();
        value.extract_error().map_err(|error| failure(error, false)).and_then(answer)
    }

    fn bytes(text: &str) -> Value {
        Value::Bytes(text.into())
    }

    #[test]
    fn answers_of_both_protocols_are_read() {
        for (wire, value) in [
            ("$-1\r\n", Value::Nil),
            ("*-1\r\n", Value::Nil),
            ("_\r\n", Value::Nil),
            (":-7\r\n", Value::Int(-7)),
            ("#t\r\n", Value::Int(1)),
            ("+OK\r\n", bytes("OK")),
            ("+done\r\n", bytes("done")),
            ("$2\r\na\0\r\n", bytes("a\0")),
            (",1.5\r\n", bytes("1.5")),
            ("(36893488147419103232\r\n", bytes("36893488147419103232")),
            ("=5\r\ntxt:a\r\n", bytes("a")),
            ("*2\r\n:1\r\n*1\r\n$1\r\nx\r\n", Value::List(vec![Value::Int(1), Value::List(vec![bytes("x")])])),
            ("%1\r\n+k\r\n:1\r\n", Value::List(vec![bytes("k"), Value::Int(1)])),
            ("~1\r\n:1\r\n", Value::List(vec![Value::Int(1)])),
        ] {
            assert_eq!(from_wire(wire).unwrap(), value, "{wire:?}");
        }
    }

    #[test]
    fn an_answer_of_another_kind_is_shown_in_few_words() {
        let error = from_wire(&format!(">2\r\n+message\r\n+{}\r\n", "x".repeat(1 << 20))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol);
        assert!(error.to_string().contains("no script returns") && error.to_string().len() < 300, "{error}");
    }

    #[test]
    fn errors_say_who_must_act() {
        use ErrorKind::{Server, Unavailable};
        for (text, kind) in [
            ("LOADING Redis is loading the dataset in memory", Unavailable),
            ("READONLY You can't write against a read only replica. script: a, on @user_script:1.", Unavailable),
            ("MASTERDOWN Link with MASTER is down", Unavailable),
            ("CLUSTERDOWN The cluster is down", Unavailable),
            ("TRYAGAIN Multiple keys request during rehashing of slot", Unavailable),
            ("NOREPLICAS Not enough good replicas to write.", Unavailable),
            ("BUSY Redis is busy running a script.", Unavailable),
            ("OOM command not allowed when used memory > 'maxmemory'.", Server),
            ("NOPERM this user has no permissions to run the 'evalsha' command", Server),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", Server),
            (
                "ERR Error running script (call to f_a): @user_script:1: @user_script: 1: -READONLY You can't write",
                Unavailable,
            ),
            ("ERR Error running script (call to f_a): @user_script:1: @user_script: 1: -OOM command not allowed", Server),
        ] {
            let error = from_wire(&format!("-{text}\r\n")).unwrap_err();
            assert_eq!(error.kind(), kind, "{text}");
            assert!(error.to_string().contains(text) && error.origin().is_some() && error.source().is_none(), "{error}");
        }
    }

    #[test]
    fn a_node_of_a_cluster_is_pointed_out() {
        let error = from_wire("-MOVED 1 127.0.0.1:7000\r\n").unwrap_err();
        assert!(error.to_string().contains("node of a Redis Cluster"), "{error}");
        // To a client of the cluster it says that the slot is on its way.
        let value = ::redis::parse_redis_value(b"-MOVED 1 127.0.0.1:7000\r\n").unwrap();
        let error = failure(value.extract_error().unwrap_err(), true);
        assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("MOVED 1"), "{error}");
        let error = from_wire("-CROSSSLOT Keys in request don't hash to the same slot\r\n").unwrap_err();
        assert!(error.to_string().contains("{files}"), "{error}");
    }

    #[test]
    fn a_call_is_packed_whole() {
        let script = Script { name: "sum", source: "return 1" };
        let call = Call { script, keys: vec!["k".to_owned()].into(), args: vec![b"a\0".to_vec(), Vec::new()] };
        let packed = |command: Cmd| String::from_utf8(command.get_packed_command()).unwrap();
        let rest = "$1\r\n1\r\n$1\r\nk\r\n$2\r\na\0\r\n$0\r\n\r\n";
        assert_eq!(packed(by_source(&call)), format!("*6\r\n$4\r\nEVAL\r\n$8\r\nreturn 1\r\n{rest}"));
        let hash = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
        for _ in 0..2 {
            assert_eq!(packed(by_hash(&call)), format!("*6\r\n$7\r\nEVALSHA\r\n$40\r\n{hash}\r\n{rest}"));
        }
    }
}
