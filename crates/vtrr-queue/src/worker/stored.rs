//! The stored body of a task as workers read it, and the body that a retry stores.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::error::{Error, Result};
use crate::layout::{Layout, Shape};
use crate::task::{Body, Payload};

/// What a worker reads of a payload; the arguments stay as they were written.
#[derive(Debug, Deserialize)]
pub(super) struct Stored<'a> {
    #[serde(borrow)]
    pub(super) task_name: Cow<'a, str>,
    #[serde(borrow, default)]
    pub(super) args: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) kwargs: Option<&'a RawValue>,
    /// What the arguments were, where they do not tell; or whatever others have put there.
    #[serde(borrow, default)]
    pub(super) shape: Option<&'a RawValue>,
    /// How often it was run again by a retry.
    #[serde(default)]
    pub(super) retries: u32,
}

impl<'a> Stored<'a> {
    pub(super) fn read(payload: &'a Payload) -> serde_json::Result<Self> {
        payload.fields()
    }
}

/// Where the fields are that a retry changes.
#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    args: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    kwargs: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    shape: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    retries: Option<&'a RawValue>,
}

/// A field that is there, be it `null`.
fn present<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// The body of the next run: `retries`, and the arguments if others were given, replaced or added in place; every other
/// byte is as it was, be it UTF-8 or not. So whatever [`Stored::read`] takes has a next run.
pub(super) fn retried(payload: &Payload, retries: u32, layout: Option<&Layout>) -> Result<Body> {
    let unreadable = |error: &dyn std::fmt::Display| Error::protocol(format!("unreadable payload: {error}"));
    let mut body = payload.body().trim_ascii().to_vec();
    let fields: Fields<'_> = serde_json::from_slice(&body).map_err(|error| unreadable(&error))?;
    let retries = retries.to_string();
    let mut edits = vec![("retries", fields.retries, retries.as_str())];
    if let Some(layout) = layout {
        edits.extend([("args", fields.args, layout.args.as_str()), ("kwargs", fields.kwargs, layout.kwargs.as_str())]);
        // What others have put there stays.
        let ours = fields.shape.is_none_or(|old| old.get() == "null" || Shape::read(old.get()).is_some());
        if ours && (fields.shape.is_some() || layout.shape.is_some()) {
            edits.push(("shape", fields.shape, layout.shape.map_or("null", Shape::json)));
        }
    }
    let end = body.len() - 1;
    let mut edits: Vec<_> = edits
        .into_iter()
        .map(|(name, old, new)| match old.map(RawValue::get) {
            Some(old) => {
                let start = old.as_ptr().addr() - body.as_ptr().addr();
                (start..start + old.len(), new.to_owned())
            }
            None => (end..end, format!(",\"{name}\":{new}")),
        })
        .collect();
    // From the end, so that the earlier places stay where they are.
    edits.sort_by_key(|(place, _)| std::cmp::Reverse(place.start));
    for (place, text) in edits {
        body.splice(place, text.into_bytes());
    }
    Body::from_json(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(stored: &str, retries: u32, layout: Option<&Layout>) -> String {
        let body = retried(&Payload(stored.into()), retries, layout).unwrap();
        format!("{{{}", String::from_utf8(body.rest().to_vec()).unwrap())
    }

    #[test]
    fn a_retry_changes_nothing_but_its_count() {
        let old = r#"{"task_name": "t", "args": [1.10, 123456789012345678901234567890, "\u00df"], "kwargs": {}, "x": []}"#;
        let new = next(old, 1, None);
        assert_eq!(new, old.replace("[]}", r#"[],"retries":1}"#));
        assert_eq!(next(&new, 12, None), old.replace("[]}", r#"[],"retries":12}"#));
        assert_eq!(next(r#"{"retries":9,"task_name":"t" }"#, 10, None), r#"{"retries":10,"task_name":"t" }"#);
        assert_eq!(
            next(r#"{"task_name":"t","in":{"retries":5}}"#, 1, None),
            r#"{"task_name":"t","in":{"retries":5},"retries":1}"#
        );
    }

    #[test]
    fn what_a_worker_has_read_has_a_next_run() {
        // White space around it, and bytes that are no UTF-8 where nobody looks.
        for (stored, expected) in [
            (&b" {\"task_name\":\"t\"}\n"[..], &b"{\"task_name\":\"t\",\"retries\":1}"[..]),
            (b"{\"task_name\":\"t\",\"x\":\"\xff\"}", b"{\"task_name\":\"t\",\"x\":\"\xff\",\"retries\":1}"),
        ] {
            let payload = Payload(stored.to_vec());
            assert_eq!(Stored::read(&payload).unwrap().task_name, "t");
            assert_eq!(retried(&payload, 1, None).unwrap().as_bytes(), expected);
        }
        // A list of the same is no task.
        let payload = Payload(b"[\"t\",[],{},0]".to_vec());
        assert!(Stored::read(&payload).unwrap_err().to_string().contains("no JSON object"));
        assert!(payload.invocation().is_err());
    }

    #[test]
    fn the_prefix_of_the_queue_is_no_part_of_the_body() {
        let payload = Payload::build("p", crate::Weight::default(), 5, 6, br#""task_name":"t"}"#);
        assert_eq!(retried(&payload, 1, None).unwrap().rest(), br#""task_name":"t","retries":1}"#);
    }

    #[test]
    fn other_arguments_take_the_place_of_the_old_ones() {
        let old = r#"{"task_name":"t","kwargs":{"a":1},"args":null,"x":"}"}"#;
        let layout = |arguments: &str| Layout::of(&serde_json::from_str::<serde_json::Value>(arguments).unwrap()).unwrap();
        let expected = r#"{"task_name":"t","kwargs":{},"args":[1,2],"x":"}","retries":3}"#;
        assert_eq!(next(old, 3, Some(&layout("[1,2]"))), expected);
        let one = expected.replace("[1,2]", "[5]").replace("\"retries\"", "\"shape\":\"one\",\"retries\"");
        assert_eq!(next(old, 3, Some(&layout("5"))), one);
        assert_eq!(next(&one, 3, Some(&layout("[1,2]"))), one.replace("[5]", "[1,2]").replace("\"one\"", "null"));
        let theirs = one.replace("\"one\"", "[7]");
        assert_eq!(next(&theirs, 3, Some(&layout("6"))), theirs.replace("[5]", "[6]"));
        assert_eq!(next(&one, 3, Some(&layout("[]"))), one.replace("[5]", "[]").replace("\"one\"", "\"list\""));
        assert_eq!(next(old, 3, Some(&layout("null"))), expected.replace("[1,2]", "[]"));
        let expected = r#"{"task_name":"t","args":[],"kwargs":{"b":2},"retries":1}"#;
        assert_eq!(next(r#"{"task_name":"t"}"#, 1, Some(&layout(r#"{"b":2}"#))).len(), expected.len());
    }
}
