//! Stored tasks: whatever stands in the server is read or refused, and what we store is read back as it was.

use std::time::Duration;

use serde_json::{Map, Value as Json};
use vtrr_queue::{
    Body, Command, Delivery, Dequeued, Partition, Payload, Queue, Settlement, State, Step, Task, TaskId, Value, Weight,
};

use super::hand::{Ending, attend};

type Object = Map<String, Json>;

/// A payload. If it has two lines: also a partition and the body of a task in it.
pub fn payload(input: &[u8]) {
    if let Some(end) = input.iter().position(|byte| *byte == b'\n') {
        store(&input[..end], &input[end + 1..]);
    }
    let payload = stored(input);
    read(&payload);
    run(&payload);
}

/// What a server has stored.
pub(super) fn stored(payload: &[u8]) -> Payload {
    let bytes = |bytes: &[u8]| Value::Bytes(bytes.to_vec());
    let mut find = Queue::new("q").unwrap().find(TaskId::new("a").unwrap());
    let answer = Value::List(vec![bytes(b"waiting"), Value::Int(0), bytes(payload)]);
    done(find.decode(answer)).unwrap().payload
}

fn done<T>(step: vtrr_queue::Result<Step<T>>) -> T {
    match step.unwrap() {
        Step::Done(reply) => reply,
        Step::Again => unreachable!("one step"),
    }
}

/// What stands before the body, whose brace it opens.
fn prefix(payload: &Payload) -> &[u8] {
    match payload.partition() {
        Some(_) => &payload.as_bytes()[..payload.as_bytes().len() + 1 - payload.body().len()],
        None => b"{",
    }
}

/// The prefix says what a reader of JSON reads there.
fn read(payload: &Payload) {
    let Some(partition) = payload.partition() else {
        assert_eq!((payload.weight(), payload.enqueued_at_ms()), (Weight::default(), None));
        assert_eq!(payload.body(), payload.as_bytes());
        return;
    };
    let head = [prefix(payload), b"\"\":0}"].concat();
    // A number with a leading zero is none in JSON.
    if let Ok(head) = serde_json::from_slice::<Object>(&head) {
        assert_eq!(head["partition_key"], partition.as_str());
        assert_eq!(head["weight"], payload.weight().get());
        assert_eq!(head["at"], payload.enqueued_at_ms().unwrap());
        assert!(head["serial"].is_u64() && head.len() == 5);
    }
}

/// What is stored comes back byte for byte, before and after a retry with another body.
fn store(partition: &[u8], body: &[u8]) {
    let Ok(Ok(partition)) = std::str::from_utf8(partition).map(Partition::new) else { return };
    let body = match Body::from_json(body) {
        Ok(body) => body,
        Err(error) => return assert!(error.to_string().len() < 1_000, "{error}"),
    };
    let (queue, mut state) = (Queue::new("q").unwrap(), State::default());
    let weight = 1 + i64::try_from(body.as_bytes().len() % 1_000).unwrap();
    let task = Task::with_body(body.clone()).weight(weight).unwrap();
    done(queue.enqueue(partition.as_str(), [task]).unwrap().apply(state.at(1_000_000)));
    let mut delivery = next(&queue, &mut state);
    let other = Body::from_json("{\"task_name\":\"other\"}").unwrap();
    for body in [&body, &other] {
        let payload = &delivery.payload;
        assert_eq!(payload.partition().as_ref(), Some(&partition));
        assert_eq!((i64::from(payload.weight().get()), payload.enqueued_at_ms()), (weight, Some(1_000)));
        assert_eq!(payload.body(), body.as_bytes());
        read(payload);
        let retry = Settlement::retry(&delivery, Duration::ZERO, Some(other.clone())).unwrap();
        done(queue.settle(vec![retry]).unwrap().apply(state.at(2_000_000)));
        delivery = next(&queue, &mut state);
    }
}

fn next(queue: &Queue, state: &mut State) -> Delivery {
    let Dequeued { deliveries, .. } = done(queue.dequeue(1).unwrap().apply(state.at(1_000_000)));
    deliveries.into_iter().next().unwrap()
}

/// As JSON. The worker is content with less, as it looks at no text that it does not need.
fn object(bytes: &[u8]) -> serde_json::Result<Object> {
    serde_json::from_str(&String::from_utf8_lossy(bytes))
}

/// A worker settles it, whatever it is; a retry changes nothing but the count, and the arguments if there are others.
fn run(payload: &Payload) {
    let (ending, arguments) = attend(payload.as_bytes());
    let body = match ending {
        Ending::Failed(error) => {
            assert!(!error.contains("panicked") && !error.contains("cannot be stored"), "{error}");
            return;
        }
        Ending::Unknown => return,
        Ending::Acked => None,
        Ending::Retried(body) => Some(body),
    };
    assert!(payload.as_bytes().trim_ascii().starts_with(b"{"), "it was no object, and ran");
    let Ok(mut old) = object(payload.as_bytes()) else { return };
    let Some(body) = body else { return assert!(old["retries"].as_u64().unwrap() > 1) };
    let next = [prefix(payload), &body].concat();
    let mut new = object(&next).unwrap();
    let retries = old.remove("retries").unwrap_or_default().as_u64().unwrap_or_default();
    assert_eq!(new.remove("retries").unwrap().as_u64().unwrap(), (retries + 1).min(u32::MAX.into()));
    if retries == 1 {
        // It asked for the same arguments, which may be laid out otherwise.
        let (_, again) = attend(&next);
        assert_eq!(again, arguments);
        for field in ["args", "kwargs", "shape"] {
            old.remove(field);
            new.remove(field);
        }
    }
    assert_eq!(old, new);
}
