//! Answers that no script gives are refused as a whole, in few words, not read in part.

use std::time::Duration;

use vtrr_queue::{
    Command, Delivery, ErrorKind, Outcome, Owner, Purged, Queue, Settlement, Step, Task, TaskId, Token, Value,
};

fn text(text: &str) -> Value {
    Value::Bytes(text.into())
}

fn int(n: i64) -> Value {
    Value::Int(n)
}

fn list(values: impl IntoIterator<Item = Value>) -> Value {
    Value::List(values.into_iter().collect())
}

fn queue() -> Queue {
    Queue::new("q").unwrap()
}

fn ids() -> [TaskId; 2] {
    ["a", "b"].map(|id| TaskId::new(id).unwrap())
}

fn token() -> Token {
    Token::new("1-1").unwrap()
}

fn delivery() -> Delivery {
    let [id, _] = ids();
    let mut claim = queue().claim(id, token(), Owner::new("o").unwrap(), Duration::from_secs(1)).unwrap();
    let answer = list([text("a"), text("1-1"), int(1), int(0), int(0), text("{}")]);
    let Step::Done(Some(delivery)) = claim.decode(answer).unwrap() else { panic!("one step, one delivery") };
    delivery
}

#[track_caller]
fn refused<C: Command>(mut command: C, answer: Value, words: &str) {
    let Err(error) = command.decode(answer) else { panic!("it was read") };
    assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
    let error = error.to_string();
    assert!(error.contains(words) && error.len() < 300, "{error}");
}

#[test]
fn one_answer_for_each_that_was_asked_about() {
    let ack = |id| Settlement::new(id, token(), Outcome::Ack).unwrap();
    let settlements = || ids().map(ack).to_vec();
    for codes in [vec![], vec![int(0)], vec![int(0); 3]] {
        let words = format!("about {} of the 2", codes.len());
        let answer = || list([list(codes.clone())]);
        refused(queue().settle(settlements()).unwrap(), answer(), &words);
        refused(queue().cancel(ids()).unwrap(), answer(), &words);
        refused(queue().redrive(ids()).unwrap(), answer(), &words);
        refused(queue().discard(ids()).unwrap(), answer(), &words);
        let both = [delivery(), delivery()];
        refused(queue().extend(&both, Duration::from_secs(1)).unwrap(), answer(), &words);
        let dequeued = list([list(codes.clone()), int(-1), int(0), list([])]);
        refused(queue().dequeue(1).unwrap().settle(settlements()).unwrap(), dequeued, &words);
    }
}

#[test]
fn an_entry_of_another_kind_is_not_the_end_of_a_list() {
    let stats = [text("head"), int(0), int(0), int(0), int(0), int(0), text("0"), int(-1)];
    for odd in [int(7), text("7"), Value::Nil] {
        refused(queue().peek(5).unwrap(), list([odd.clone()]), "expected a list");
        refused(queue().dead_letters(0, 5).unwrap(), list([odd.clone()]), "expected a list");
        refused(queue().partitions(), list([text(""), list([odd.clone()])]), "expected a list");
        let dequeued = list([list([]), int(-1), int(0), list([odd.clone()])]);
        refused(queue().dequeue(5).unwrap(), dequeued, "expected a list");
        let totals = if odd == text("7") { vec![text("acked")] } else { vec![odd, int(1)] };
        let answer = list(stats.iter().cloned().chain([list(totals)]));
        let Err(error) = queue().stats().decode(answer) else { panic!("it was read") };
        assert_eq!(error.kind(), ErrorKind::Protocol);
    }
}

#[test]
fn duplicates_stand_at_positions_of_the_call() {
    for positions in ["2", "x", "-1", "0,0", "1,0", "0,", ",", " 0"] {
        let tasks = ["t", "u"].map(|name| Task::new(name, &()).unwrap());
        refused(queue().enqueue("p", tasks).unwrap(), list([text(positions)]), "positions of duplicates");
    }
}

#[test]
fn a_stored_share_out_of_range_is_not_the_callers_fault() {
    let entry = list([text("p"), int(1), int(0), text("0"), int(-1)]);
    refused(queue().partitions(), list([text(""), list([entry])]), "expected a share");
}

#[test]
fn a_large_answer_is_shown_in_few_words() {
    let large = "x".repeat(4 << 20);
    refused(queue().peek(5).unwrap(), text(&large), "xxx");
    let [id, _] = ids();
    refused(queue().find(id), list([text(&large), int(0), text("")]), "expected whereabouts");
    let nested = (0..90).fold(text(&large), |value, _| list([value]));
    refused(queue().sweep(), list([nested]), "a list of 1");
}

#[test]
fn counts_of_many_steps_have_room() {
    let mut purge = queue().purge_all();
    let step = |cursor: &str| list([text(cursor), int(i64::MAX), int(0), int(0), int(0)]);
    for _ in 0..3 {
        assert!(matches!(purge.decode(step("more")).unwrap(), Step::Again));
    }
    let Step::Done(Purged { purged, .. }) = purge.decode(step("")).unwrap() else { panic!("it was the last") };
    assert_eq!(purged, u64::MAX);
}
