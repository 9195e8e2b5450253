//! A server whose scripts take their time from a key, and everything that stands in a queue as text.

use std::collections::BTreeMap;

use redis::{Connection, RedisResult};
use vtrr_queue::{Call, Command, Result, Step, Value};

use crate::server::{Kind, Server};

/// Each key of a queue, without its prefix: field → text.
pub(crate) type Dump = BTreeMap<String, BTreeMap<String, String>>;

/// A connection to a server; the clock of the scripts is replaced in their text, nothing else.
pub(crate) struct Clocked {
    client: redis::Client,
    pub(crate) connection: Connection,
    hashes: BTreeMap<&'static str, String>,
    _server: Option<Server>,
}

impl Clocked {
    /// On a server of its own: it has one clock, and may be flushed.
    pub(crate) fn new(kind: Kind) -> Self {
        let server = Server::start(kind);
        let clocked = Self::at(&server.url());
        Self { _server: Some(server), ..clocked }
    }

    pub(crate) fn at(url: &str) -> Self {
        let client = redis::Client::open(url).unwrap();
        let connection = client.get_connection().unwrap();
        Self { client, connection, hashes: BTreeMap::new(), _server: None }
    }

    pub(crate) fn reconnect(&mut self) {
        self.connection = self.client.get_connection().unwrap();
    }

    pub(crate) fn set_clock(&mut self, now_us: u64) {
        let (seconds, rest) = (now_us / 1_000_000, now_us % 1_000_000);
        redis::pipe().del("clock").rpush("clock", &[seconds, rest]).exec(&mut self.connection).unwrap();
    }

    /// One call; the error is the server's or the connection's.
    pub(crate) fn send(&mut self, call: &Call) -> RedisResult<redis::Value> {
        let hash = self.hashes.entry(call.script.name).or_insert_with(|| {
            let source = call.script.source.replace("redis.call('TIME')", "redis.call('LRANGE', 'clock', 0, 1)");
            assert_ne!(source, call.script.source, "the clock of {} was not found", call.script.name);
            redis::cmd("SCRIPT").arg("LOAD").arg(source).query(&mut self.connection).unwrap()
        });
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(&*hash).arg(call.keys.len()).arg(&*call.keys).arg(&call.args);
        cmd.query(&mut self.connection)
    }

    pub(crate) fn run<C: Command>(&mut self, mut command: C) -> Result<C::Reply> {
        loop {
            let call = command.call();
            let answer = self.send(&call).unwrap_or_else(|error| panic!("{}: {error}", call.script.name));
            match command.decode(convert(answer)) {
                Ok(Step::Done(reply)) => return Ok(reply),
                Ok(Step::Again) => {}
                Err(error) => return Err(command.interrupted(error)),
            }
        }
    }

    /// Every key of the queue as it is.
    pub(crate) fn keys(&mut self, name: &str) -> Dump {
        let prefix = format!("vtrr:{name}:");
        let keys: Vec<String> = redis::cmd("KEYS").arg(format!("{prefix}*")).query(&mut self.connection).unwrap();
        keys.into_iter().map(|key| (key[prefix.len()..].to_owned(), self.key(&key))).collect()
    }

    fn key(&mut self, key: &str) -> BTreeMap<String, String> {
        let kind: String = redis::cmd("TYPE").arg(key).query(&mut self.connection).unwrap();
        match kind.as_str() {
            "hash" => redis::cmd("HGETALL").arg(key).query(&mut self.connection).unwrap(),
            "zset" => {
                let members: Vec<(String, f64)> =
                    redis::cmd("ZRANGE").arg(key).arg(0).arg(-1).arg("WITHSCORES").query(&mut self.connection).unwrap();
                members.into_iter().map(|(member, score)| (member, format!("{score:?}"))).collect()
            }
            "list" => {
                let list: Vec<String> = redis::cmd("LRANGE").arg(key).arg(0).arg(-1).query(&mut self.connection).unwrap();
                list.into_iter().enumerate().map(|(i, entry)| (format!("{i:06}"), entry)).collect()
            }
            _ => BTreeMap::from([(String::new(), redis::cmd("GET").arg(key).query(&mut self.connection).unwrap())]),
        }
    }

    /// Every key of the queue, as `State::dump` tells it.
    pub(crate) fn dump(&mut self, name: &str) -> Dump {
        let mut dump = self.keys(name);
        for (key, fields) in &mut dump {
            for value in fields.values_mut() {
                normalise(key, value);
            }
        }
        dump.entry("current_virtual_time".into()).or_insert_with(|| BTreeMap::from([(String::new(), "0.0".into())]));
        let meta = dump.entry("meta".into()).or_default();
        meta.retain(|field, _| field != "version" && !field.starts_with("sweep_"));
        for counter in ["serial", "token"] {
            meta.entry(counter.into()).or_insert_with(|| "0".into());
        }
        dump
    }
}

/// Doubles as Rust writes them.
fn normalise(key: &str, value: &mut String) {
    let double = |text: &str| format!("{:?}", text.parse::<f64>().unwrap());
    match key {
        "partition_virtual_time" | "share" | "current_virtual_time" => *value = double(value),
        "held" => {
            let mut parts: Vec<_> = value.splitn(10, ' ').map(ToOwned::to_owned).collect();
            parts[7] = double(&parts[7]);
            *value = parts.join(" ");
        }
        _ => {}
    }
}

pub(crate) fn convert(value: redis::Value) -> Value {
    match value {
        redis::Value::Int(n) => Value::Int(n),
        redis::Value::BulkString(bytes) => Value::Bytes(bytes),
        redis::Value::SimpleString(text) => Value::Bytes(text.into_bytes()),
        redis::Value::Array(list) => Value::List(list.into_iter().map(convert).collect()),
        _ => Value::Nil,
    }
}
