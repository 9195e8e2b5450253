//! Tasks, deliveries and the payload that stores them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, shown};
use crate::keys::{self, text};
use crate::layout::Layout;
use crate::tag::Weight;

/// Longest payload of one task, in bytes, with its prefix: 4 MiB.
pub const MAX_PAYLOAD_BYTES: usize = 4 << 20;

/// Most tasks that one script call takes; longer calls go in chunks.
pub const MAX_TASKS_PER_CALL: usize = 1_000;

macro_rules! text_type {
    ($(#[$doc:meta])* $name:ident, $argument:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String")]
        pub struct $name(String);

        impl $name {
            /// Checks it: text of 1 to 512 bytes without NUL.
            pub fn new(value: impl Into<String>) -> Result<Self> {
                let value = text($argument, value.into())?;
                if $argument == "owner" && (value == "-" || value.contains(char::is_whitespace)) {
                    return Err(Error::invalid("owner", format_args!("{value:?}"), "text without white space, other than \"-\""));
                }
                Ok(Self(value))
            }
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
            #[allow(dead_code)]
            pub(crate) fn trusted(value: String) -> Self {
                Self(value)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = Error;
            fn try_from(value: String) -> Result<Self> {
                Self::new(value)
            }
        }
    };
}

text_type! {
    /// The flow that gets a fair share: a user, tenant or customer.
    Partition, "partition"
}
text_type! {
    /// The id of a task, unique among the live tasks of a queue.
    TaskId, "id"
}
text_type! {
    /// Who holds leases: unique per process start or ticket. Without white space.
    Owner, "owner"
}

/// The right to work on one delivery. Unique for ever.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub(crate) String);

impl Token {
    /// A token that came from a delivery, as text.
    pub fn new(token: impl Into<String>) -> Result<Self> {
        let token = token.into();
        if token.is_empty() || token.len() > 64 || !token.bytes().all(|b| b.is_ascii_digit() || b == b'-') {
            return Err(Error::invalid("token", shown(token.as_bytes()), "the token of a delivery"));
        }
        Ok(Self(token))
    }
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a task carries beside partition and weight: a JSON object such as `{"task_name":…,"args":[…],"kwargs":{…}}`.
///
/// It is stored and handed out byte for byte; nothing decodes and encodes it on the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Body(Vec<u8>);

impl Body {
    /// Takes the text of a non-empty JSON object. Its inside is the caller's affair: only the braces are looked at.
    pub fn from_json(object: impl Into<Vec<u8>>) -> Result<Self> {
        const ALLOWED: &str = "the text of a JSON object with at least one field";
        let object = object.into();
        let inside = object
            .strip_prefix(b"{")
            .and_then(|rest| rest.strip_suffix(b"}"))
            .map(<[u8]>::trim_ascii)
            .ok_or_else(|| Error::invalid("body", shown(&object), ALLOWED))?;
        if !inside.starts_with(b"\"") {
            return Err(Error::invalid("body", shown(&object), ALLOWED));
        }
        if object.len() > MAX_PAYLOAD_BYTES - PREFIX_ROOM {
            let allowed = format!("at most {} bytes of JSON", MAX_PAYLOAD_BYTES - PREFIX_ROOM);
            return Err(Error::invalid("body", format_args!("{} bytes", object.len()), &allowed));
        }
        Ok(Self(object))
    }

    /// The body of a call: task name, positional and named arguments.
    ///
    /// `arguments` that serialise to a list become `args`, those that serialise to an object become `kwargs`, nothing
    /// (`()`, `None`) becomes no arguments, and any other value becomes the one positional argument. A handler of the same type
    /// gets what was given.
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid) for what would come back from JSON as something else: floats that are not finite,
    /// `Some` of nothing (`Some(())`, `Some(None)`), integers of more than 64 bits, two fields of one name.
    pub fn call(task_name: &str, arguments: &impl Serialize) -> Result<Self> {
        let Layout { args, kwargs, shape } = Layout::of(arguments)?;
        let name = json_string(&text("task_name", task_name.to_owned())?);
        let shape = shape.map_or_else(String::new, |shape| format!(",\"shape\":{}", shape.json()));
        Self::from_json(format!("{{\"task_name\":{name},\"args\":{args},\"kwargs\":{kwargs}{shape}}}"))
    }

    /// The text of the object.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes that follow the payload's prefix: the object without its opening brace.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.0[1..]
    }
}

/// Room for the longest prefix: an escaped partition of 512 bytes and three numbers.
const PREFIX_ROOM: usize = 6 * keys::MAX_NAME_BYTES + 128;

/// A task to be enqueued.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Task {
    pub(crate) id: Option<TaskId>,
    pub(crate) weight: Weight,
    pub(crate) body: Body,
}

impl Task {
    /// A call of the task `task_name`; see [`Body::call`] for how arguments are laid out. Weight 1, a generated id.
    pub fn new(task_name: &str, arguments: &impl Serialize) -> Result<Self> {
        Ok(Self::with_body(Body::call(task_name, arguments)?))
    }

    /// A task with a body made elsewhere.
    pub fn with_body(body: Body) -> Self {
        Self { id: None, weight: Weight::default(), body }
    }

    /// Uses up `weight` of its partition's time instead of 1: an integer from 1 to 1,000,000.
    pub fn weight(mut self, weight: i64) -> Result<Self> {
        self.weight = Weight::new(weight)?;
        Ok(self)
    }

    /// Gives the task an id of the caller's choice. While a task with this id is live, the same partition's next one
    /// is reported as a duplicate and not stored.
    pub fn id(mut self, id: TaskId) -> Self {
        self.id = Some(id);
        self
    }

    /// The id of the caller's choice, if there is one.
    pub fn given_id(&self) -> Option<&TaskId> {
        self.id.as_ref()
    }

    /// What the task carries.
    pub fn body(&self) -> &Body {
        &self.body
    }
}

/// A task in somebody's hands: the right to work on it until the lease runs out.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Delivery {
    /// The task's id. For an id that 0.1.0 queued while ours was busy: a fresh one derived from it.
    pub id: TaskId,
    /// To settle or extend this delivery.
    pub token: Token,
    /// How often the task has been delivered, this time included.
    pub deliveries: u32,
    /// How many of the earlier ones count against the task: its worker was lost, or gave it back with blame.
    pub blames: u32,
    /// How many earlier ones ended with their worker or their lease, since the task last asked for a retry or gave itself back:
    /// if any, this may be a second run of what has run before.
    pub losses: u32,
    /// The task as stored.
    pub payload: Payload,
}

/// The stored form of a task.
///
/// `{"partition_key":"u_1","weight":1,"at":1700000000000,"serial":7,"task_name":…}`; what 0.1.0 stored has none of the
/// first four fields.
#[derive(Clone, PartialEq, Eq)]
pub struct Payload(pub(crate) Vec<u8>);

/// The fields that the queue itself put in front of a payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Prefix {
    pub(crate) partition: String,
    pub(crate) weight: Weight,
    pub(crate) at: u64,
    pub(crate) serial: u64,
    /// Where the rest starts.
    pub(crate) end: usize,
}

/// What workers read of a payload.
#[derive(Debug, Clone, Deserialize)]
#[non_exhaustive]
pub struct Invocation {
    /// The name the handler is registered under.
    pub task_name: String,
    /// Positional arguments.
    #[serde(default)]
    pub args: serde_json::Value,
    /// Named arguments.
    #[serde(default)]
    pub kwargs: serde_json::Value,
    /// How often the task has been run again by `retry`.
    #[serde(default)]
    pub retries: u32,
}

impl Payload {
    pub(crate) fn build(partition: &str, weight: Weight, at: u64, serial: u64, rest: &[u8]) -> Self {
        let mut bytes = format!(
            "{{\"partition_key\":{},\"weight\":{},\"at\":{at},\"serial\":{serial},",
            json_string(partition),
            weight.get()
        )
        .into_bytes();
        bytes.extend_from_slice(rest);
        Self(bytes)
    }

    /// The same task with another body: what `retry` with a new payload stores.
    pub(crate) fn with_rest(&self, rest: &[u8]) -> Self {
        let before = self.prefix().map_or(b"{".as_slice(), |prefix| &self.0[..prefix.end]);
        Self([before, rest].concat())
    }

    pub(crate) fn prefix(&self) -> Option<Prefix> {
        const AFTER: &[u8] = b"\",\"weight\":";
        fn digits(bytes: &[u8], at: &mut usize) -> Option<u64> {
            let start = *at;
            while bytes.get(*at).is_some_and(u8::is_ascii_digit) {
                *at += 1;
            }
            std::str::from_utf8(&bytes[start..*at]).ok()?.parse().ok()
        }
        fn expect(bytes: &[u8], at: &mut usize, what: &[u8]) -> Option<()> {
            bytes[*at..].starts_with(what).then(|| *at += what.len())
        }
        let bytes = self.0.as_slice();
        let mut at = 0;
        expect(bytes, &mut at, b"{\"partition_key\":")?;
        // An unescaped quote ends the string, so the first `","weight":` after the opening quote is the real one.
        let length = bytes[at..].windows(AFTER.len()).position(|window| window == AFTER)?;
        let partition: String = serde_json::from_slice(&bytes[at..=at + length]).ok()?;
        at += length + AFTER.len();
        let weight = digits(bytes, &mut at)?;
        expect(bytes, &mut at, b",\"at\":")?;
        let enqueued = digits(bytes, &mut at)?;
        expect(bytes, &mut at, b",\"serial\":")?;
        let serial = digits(bytes, &mut at)?;
        expect(bytes, &mut at, b",")?;
        let weight = Weight::new(i64::try_from(weight).ok()?).ok()?;
        Some(Prefix { partition, weight, at: enqueued, serial, end: at })
    }

    /// The bytes as stored.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The partition, or none for a task that 0.1.0 stored.
    pub fn partition(&self) -> Option<Partition> {
        self.prefix().map(|prefix| Partition::trusted(prefix.partition))
    }

    /// The weight; 1 for a task that 0.1.0 stored.
    pub fn weight(&self) -> Weight {
        self.prefix().map(|prefix| prefix.weight).unwrap_or_default()
    }

    /// When it was enqueued: ms since 1970 by the server's clock; none for a task that 0.1.0 stored.
    pub fn enqueued_at_ms(&self) -> Option<u64> {
        self.prefix().map(|prefix| prefix.at)
    }

    /// The rest of the object, as the producer wrote it: task name and arguments.
    pub fn body(&self) -> Vec<u8> {
        match self.prefix() {
            Some(prefix) => [b"{", &self.0[prefix.end..]].concat(),
            None => self.0.clone(),
        }
    }

    /// Task name, arguments and retry count.
    pub fn invocation(&self) -> Result<Invocation> {
        self.fields().map_err(|error| Error::protocol(format!("unreadable payload: {error}")))
    }

    /// Some of the object's fields. A list is refused, though serde would read a struct from it.
    pub(crate) fn fields<'a, T: Deserialize<'a>>(&'a self) -> serde_json::Result<T> {
        if self.0.trim_ascii_start().starts_with(b"{") {
            serde_json::from_slice(&self.0)
        } else {
            Err(serde::de::Error::custom("it is no JSON object"))
        }
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({})", String::from_utf8_lossy(&self.0))
    }
}

/// Text as a JSON string.
pub(crate) fn json_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_partition_is_read_back_from_the_payload() {
        for partition in
            ["u_1", "a\"b", "a\",\"weight\":9", "back\\slash\\", "\\\"", "tab\t newline\n", "ß 😀", "}{", "\u{1}"]
        {
            let payload = Payload::build(partition, Weight::new(7).unwrap(), 5, 6, b"\"task_name\":\"t\"}");
            let prefix = payload.prefix().unwrap();
            assert_eq!((prefix.partition.as_str(), prefix.weight.get(), prefix.at, prefix.serial), (partition, 7, 5, 6));
            assert_eq!(payload.body(), b"{\"task_name\":\"t\"}");
        }
    }

    #[test]
    fn a_payload_of_0_1_0_has_no_partition_and_weight_1() {
        let payload = Payload(br#"{"task_name": "t", "args": [1], "kwargs": {}}"#.to_vec());
        assert_eq!((payload.partition(), payload.weight().get()), (None, 1));
        assert_eq!(payload.invocation().unwrap().task_name, "t");
    }

    #[test]
    fn bodies_that_are_no_object_or_too_long_are_refused() {
        for body in ["", "{}", "[]", "null", "{ }", "\"a\"", "{"] {
            assert!(Body::from_json(body).is_err(), "{body}");
        }
        let error = Body::call("t", &"x".repeat(MAX_PAYLOAD_BYTES)).unwrap_err().to_string();
        assert!(error.contains("body") && error.contains("at most"), "{error}");
    }

    #[test]
    fn what_is_refused_is_shown_in_few_words() {
        let large = "1".repeat(MAX_PAYLOAD_BYTES);
        for error in [Body::from_json(large.as_str()).unwrap_err(), Token::new(large).unwrap_err()] {
            let error = error.to_string();
            assert!(error.contains("111") && error.len() < 300, "{} bytes", error.len());
        }
    }

    #[test]
    fn another_body_takes_the_place_of_whatever_stood_there() {
        for stored in ["", "[]", " {\"a\":1} ", "{\"a\":1}"] {
            assert_eq!(Payload(stored.into()).with_rest(b"\"b\":2}").0, b"{\"b\":2}", "{stored}");
        }
    }
}
