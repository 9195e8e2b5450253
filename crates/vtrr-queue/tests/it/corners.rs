//! Where two limits, two due things or two names meet. On a server and in memory, with equal answers and equal state.

use std::time::Duration;

use vtrr_queue::{Body, Cause, Command, Delivery, Queue, Released, Settled, Settlement, Step, Tagging, Task, Whereabouts};

use crate::busy::{id, task};
use crate::clocked::{Clocked, convert};
use crate::pair::{LEASE, NAME, Pair};
use crate::server::Kind;

const AT_ONCE: Duration = Duration::ZERO;

fn acks(deliveries: &[Delivery]) -> Vec<Settlement> {
    deliveries.iter().map(Settlement::ack).collect()
}

fn key(name: &str) -> String {
    format!("vtrr:{NAME}:{name}")
}

/// 60 leases and 60 delays are due in the same millisecond: the leases come back first, and a call brings back 100.
#[test]
fn leases_and_delays_that_are_due_together_come_back_in_turn() {
    let mut pair = Pair::new();
    for partition in ["a", "b"] {
        pair.enqueue(partition, 60);
    }
    let deliveries = pair.dequeue(60).deliveries;
    let later = deliveries.iter().map(|it| Settlement::retry(it, LEASE, None).unwrap()).collect();
    let command = pair.queue.settle(later).unwrap();
    pair.run(command);
    assert_eq!(pair.dequeue(60).deliveries.len(), 60);
    pair.wait(30);
    for more in [true, false] {
        assert_eq!(pair.dequeue(0).more, more);
        pair.compare();
    }
}

/// 150 leases are due, and the call that would bring back 100 of them settles the first 100.
#[test]
fn due_leases_that_a_call_settles_take_no_place_among_those_it_brings_back() {
    let mut pair = Pair::new();
    pair.enqueue("a", 150);
    let deliveries = pair.dequeue(100).deliveries;
    pair.wait(1);
    assert_eq!(pair.dequeue(50).deliveries.len(), 50);
    pair.wait(31);
    let command = pair.queue.dequeue(0).unwrap().settle(acks(&deliveries)).unwrap();
    pair.run(command);
    pair.compare();
    let found = pair.run(pair.queue.stats());
    assert_eq!((found.leased, found.queued, found.totals["reclaimed"]), (0, 50, 50));
}

#[test]
fn an_id_twice_in_one_call_is_one_task() {
    for duplicates in [1, 3] {
        let mut pair = Pair::new();
        for _ in 0..duplicates {
            let command = pair.queue.enqueue("a", [task("x"), task("y"), task("x")]).unwrap();
            pair.run(command);
            pair.compare();
        }
        assert_eq!(pair.dequeue(10).deliveries.len(), 2);
    }
}

/// V passes 40 idle partitions in a call that makes 20 of them busy: it forgets others in their place.
#[test]
fn what_a_call_makes_busy_takes_no_place_among_what_it_forgets() {
    let mut pair = Pair::new();
    for partition in 0..40 {
        let name = format!("p{partition:02}");
        let command = pair.queue.enqueue(&name, [task(&name).weight(5).unwrap()]).unwrap();
        pair.run(command);
    }
    pair.enqueue("z", 2);
    let deliveries = pair.dequeue(40).deliveries;
    pair.compare();
    let again = deliveries[..20].iter().map(|it| Settlement::retry(it, AT_ONCE, None).unwrap()).collect();
    let command = pair.queue.dequeue(3).unwrap().settle(again).unwrap();
    pair.run(command);
    pair.compare();
}

/// 200 partitions with lanes of 7, in calls of 60 and 130; half of what is served comes back, paid or not.
#[test]
fn long_calls_see_the_same_order_as_short_ones() {
    let mut pair = Pair::new();
    for partition in 0..200 {
        let tasks = (0..7).map(|n| task(&format!("p{partition:03}-{n}")).weight(1 + (partition * 7 + n) % 5).unwrap());
        let command = pair.queue.enqueue(format!("p{partition:03}"), tasks).unwrap();
        pair.run(command);
    }
    for n in [60, 130].repeat(10) {
        let deliveries = pair.dequeue(n).deliveries;
        pair.compare();
        let settle = deliveries.iter().enumerate().map(|(i, it)| match i % 4 {
            0 | 1 => Settlement::ack(it),
            2 => Settlement::release(it, AT_ONCE, Released::Unrun).unwrap(),
            _ => Settlement::retry(it, AT_ONCE, None).unwrap(),
        });
        let command = pair.queue.dequeue(7).unwrap().settle(settle.collect()).unwrap();
        pair.run(command);
        pair.compare();
    }
}

/// Between the steps of a purge, tasks are added to a partition that it is in and to one that it has not reached.
#[test]
fn a_purge_leaves_what_comes_after_it_began() {
    for partition in [None, Some("a")] {
        let mut pair = Pair::new();
        pair.enqueue("a", 1_500);
        pair.enqueue("b", 300);
        let mut purge = match partition {
            Some(partition) => pair.queue.purge(partition).unwrap(),
            None => pair.queue.purge_all(),
        };
        let mut steps = 0;
        let purged = loop {
            let answer = pair.clocked.send(&purge.call()).unwrap();
            match purge.decode(convert(answer)).unwrap() {
                Step::Done(purged) => break purged.purged,
                Step::Again => steps += 1,
            }
            if steps == 1 {
                for partition in ["a", "b"] {
                    let tasks = (0..5).map(|n| task(&format!("{partition}-after-{n}")));
                    pair.clocked.run(pair.queue.enqueue(partition, tasks).unwrap()).unwrap();
                }
            }
        };
        let (gone, left) = if partition.is_none() { (1_800, 10) } else { (1_500, 310) };
        assert_eq!(purged, gone);
        let deliveries = pair.clocked.run(pair.queue.dequeue(1_000).unwrap()).unwrap().deliveries;
        assert_eq!(deliveries.len(), left);
        assert_eq!(deliveries.iter().filter(|it| it.id.as_str().contains("after")).count(), 10);
        pair.clocked.run(pair.queue.settle(acks(&deliveries)).unwrap()).unwrap();
        assert_eq!(pair.keys(), ["meta"]);
    }
}

/// The oldest dead letters beyond 10,000 go, with all that was known of them.
#[test]
fn more_dead_letters_than_are_kept() {
    let mut pair = Pair::new();
    let fail = |it: &Delivery| Settlement::fail(it, Cause::Failed, "no");
    for batch in 0..11 {
        let tasks = (0..1_000).map(|n| task(&format!("{batch:02}-{n:03}")));
        let command = pair.queue.enqueue("a", tasks).unwrap();
        pair.run(command);
        let deliveries = pair.dequeue(1_000).deliveries;
        pair.wait(1);
        let command = pair.queue.settle(deliveries.iter().map(fail).collect()).unwrap();
        pair.run(command);
    }
    pair.compare();
    assert_eq!(pair.run(pair.queue.stats()).dead, 10_000);
    for (name, dead) in [("00-999", false), ("01-000", true)] {
        let found = pair.run(pair.queue.find(id(name)));
        assert_eq!(matches!(found.map(|it| it.whereabouts), Some(Whereabouts::Dead { .. })), dead, "{name}");
    }
}

/// The last live task behind a place of cancelled ones is cancelled too: the place goes with it.
#[test]
fn no_place_is_kept_for_cancelled_tasks_alone() {
    let mut pair = Pair::new();
    pair.enqueue("a", 1_002);
    let command = pair.queue.cancel((1..=1_000).map(|n| id(&format!("a{n}")))).unwrap();
    pair.run(command);
    let deliveries = pair.dequeue(1).deliveries;
    assert!(pair.keys().contains(&"queue".to_owned()));
    let command = pair.queue.cancel([id("a1001")]).unwrap();
    pair.run(command);
    pair.compare();
    let command = pair.queue.settle(acks(&deliveries)).unwrap();
    pair.run(command);
    assert_eq!(pair.keys(), ["meta"]);
}

/// Tags whose payloads somebody deleted: each becomes a dead letter, 100 more than were asked for in a call.
#[test]
fn tags_without_payloads_are_buried_in_bounded_calls() {
    let mut server = Clocked::new(Kind::Redis);
    server.set_clock(1_800_000_000_000_000);
    let queue = Queue::new(NAME).unwrap().tagging(Tagging::All);
    server.run(queue.enqueue("a", (0..150).map(|n| task(&format!("a{n}")))).unwrap()).unwrap();
    redis::cmd("DEL").arg(key("task")).exec(&mut server.connection).unwrap();
    for (dead, more) in [(101, true), (150, false)] {
        let dequeued = server.run(queue.dequeue(1).unwrap()).unwrap();
        assert_eq!((dequeued.deliveries.len(), dequeued.more), (0, more));
        assert_eq!(server.run(queue.stats()).unwrap().dead, dead);
    }
    // There is nothing to run: it stays where it can be seen.
    assert_eq!(server.run(queue.redrive([id("a7")]).unwrap()).unwrap(), [false]);
    assert_eq!(server.run(queue.stats()).unwrap().dead, 150);
}

/// A task that was given back and whose payload is gone: the token of its first delivery is lost, not unknown.
#[test]
fn an_old_token_of_a_task_without_a_payload_is_lost() {
    let mut server = Clocked::new(Kind::Redis);
    server.set_clock(1_800_000_000_000_000);
    let queue = Queue::new(NAME).unwrap();
    server.run(queue.enqueue("a", [task("x")]).unwrap()).unwrap();
    let deliveries = server.run(queue.dequeue(1).unwrap()).unwrap().deliveries;
    server.run(queue.release(&deliveries[0], AT_ONCE, Released::Unrun).unwrap()).unwrap();
    redis::cmd("DEL").arg(key("task")).exec(&mut server.connection).unwrap();
    assert_eq!(server.run(queue.dequeue(1).unwrap()).unwrap().deliveries, []);
    assert_eq!(server.run(queue.settle(acks(&deliveries)).unwrap()).unwrap(), [Settled::Lost]);
}

/// What is remembered for a minute goes by itself, with no call to take it away.
#[test]
fn request_ids_and_their_answers_expire() {
    let mut pair = Pair::new();
    for _ in 0..2 {
        let command = pair.queue.enqueue("a", [task("x"), Task::new("t", &()).unwrap().id(id("y"))]).unwrap();
        pair.run(command);
    }
    for name in ["request", "answer"] {
        let left: i64 = redis::cmd("PTTL").arg(key(name)).query(&mut pair.clocked.connection).unwrap();
        assert!((1..=60_000).contains(&left), "{name}: {left}");
    }
}

/// Large calls put a member of the scripts' own into small sets and take it out again: nobody can be called like it.
#[test]
fn partitions_and_tasks_may_be_called_like_anything_a_script_writes() {
    let names: Vec<String> = (0..30).map(|n| n.to_string()).chain((60..70).map(|n| "-".repeat(n))).collect();
    let mut pair = Pair::new();
    for name in &names {
        let command = pair.queue.enqueue(name, ["", "!", "?"].map(|end| task(&format!("{name}{end}")))).unwrap();
        pair.run(command);
    }
    pair.compare();
    for _ in 0..2 {
        let deliveries = pair.dequeue(names.len()).deliveries;
        assert_eq!(deliveries.len(), names.len());
        pair.compare();
        let extend = pair.queue.extend(&deliveries, LEASE).unwrap();
        pair.run(extend);
        pair.compare();
    }
    let found = pair.run(pair.queue.stats());
    assert_eq!((found.queued, found.leased), (names.len() as u64, 2 * names.len() as u64));
    assert_eq!(pair.drain(), names.len());
}

/// In memory it cannot stand there: see `Payload::with_rest`.
#[test]
fn another_body_takes_the_place_of_whatever_stood_there() {
    let (mut clocked, queue) = (Clocked::new(Kind::Redis), Queue::new(NAME).unwrap());
    clocked.set_clock(1_800_000_000_000_000);
    for stored in ["", "[]", " {\"task_name\": \"t\"} ", "{\"task_name\": \"t\"}"] {
        let mut pipe = redis::pipe();
        pipe.zadd(key("queue"), "a", 1).hset(key("task"), "a", stored).exec(&mut clocked.connection).unwrap();
        let delivery = clocked.run(queue.dequeue(1).unwrap()).unwrap().deliveries.remove(0);
        assert_eq!(delivery.payload.as_bytes(), stored.as_bytes());
        let retry = Settlement::retry(&delivery, AT_ONCE, Some(Body::from_json("{\"b\":2}").unwrap())).unwrap();
        assert_eq!(clocked.run(queue.settle(vec![retry]).unwrap()).unwrap(), [Settled::Done]);
        let again = clocked.run(queue.dequeue(1).unwrap()).unwrap().deliveries.remove(0);
        assert_eq!(again.payload.as_bytes(), b"{\"b\":2}", "{stored}");
        assert_eq!(clocked.run(queue.ack(&again).unwrap()).unwrap(), [Settled::Done]);
    }
}
