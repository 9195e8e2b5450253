//! A task of 0.1.0 in every operation: it has no partition and weight 1, and comes back at V + 1.

use std::time::Duration;

use vtrr_queue::{Body, Cancelled, Cause, Delivery, Released, Settled, Settlement, TaskId, Whereabouts};

use super::{Job, Ours, body, theirs_dequeue, theirs_enqueue};

const NOW: Duration = Duration::ZERO;
const SOON: Duration = Duration::from_millis(1);
const LATER: Duration = Duration::from_secs(3_600);

fn job(number: usize) -> Job {
    Job { weight: 3, ..Job::new(number) }
}

/// Queues of every mode with the tasks 1, 2 and 3 of 0.1.0 in them: at 1, 4 and 7.
fn backlogs(name: &str) -> impl Iterator<Item = Ours> {
    ["new", "head", "all"].into_iter().map(move |mode| {
        let mut ours = Ours::new(&format!("{name}-{mode}"));
        match mode {
            "new" => {}
            "head" => ours.run(ours.queue.unflatten()),
            _ => drop(ours.run(ours.queue.flatten())),
        }
        theirs_enqueue(&ours.name, "p", &[job(1), job(2), job(3)]);
        ours
    })
}

/// The same, with task 1 delivered: V = 1.
fn delivered(name: &str) -> impl Iterator<Item = (Ours, Delivery)> {
    backlogs(name).map(|mut ours| {
        let delivery = ours.next();
        assert_eq!((delivery.id.as_str(), body(&delivery), delivery.deliveries), ("id-1", job(1).body(), 1));
        assert_eq!((delivery.payload.partition(), delivery.payload.weight().get()), (None, 1));
        (ours, delivery)
    })
}

/// Task 1 is queued again, at `start`, and 0.1.0 gets it first.
fn assert_back(mut ours: Ours, start: f64, wanted: &str) {
    let found = ours.find("id-1").expect("it is there");
    assert_eq!(found.0, Whereabouts::Tagged { start }, "{}", ours.name);
    assert_eq!(theirs_dequeue(&ours.name, None), [wanted.to_owned(), job(2).body(), job(3).body()]);
    ours.run(ours.queue.sweep());
    ours.assert_clean();
}

/// Task 1 is gone, and the others are not.
fn assert_gone(mut ours: Ours) {
    assert_eq!(ours.find("id-1"), None);
    assert_eq!(ours.drain(), [job(2).body(), job(3).body()]);
    ours.assert_clean();
}

/// Sweeps until so many tasks have come back.
fn sweep_until_back(ours: &mut Ours, n: u64) {
    let mut back = 0;
    while back < n {
        let swept = ours.run(ours.queue.sweep());
        back += swept.reclaimed + swept.due;
    }
}

#[test]
fn a_task_of_0_1_0_is_acked_and_extended() {
    for (mut ours, delivery) in delivered("acked") {
        let extend = ours.queue.extend(std::slice::from_ref(&delivery), LATER).unwrap();
        assert_eq!(ours.run(extend), [Settled::Done]);
        ours.ack(&[delivery]);
        assert_gone(ours);
    }
}

#[test]
fn a_task_of_0_1_0_is_released() {
    for (mut ours, delivery) in delivered("released") {
        ours.run(ours.queue.release(&delivery, NOW, Released::Unrun).unwrap());
        assert_back(ours, 2.0, &job(1).body());
    }
    for (mut ours, delivery) in delivered("blamed") {
        ours.run(ours.queue.settle(vec![Settlement::release(&delivery, NOW, Released::lost("blamed")).unwrap()]).unwrap());
        assert_back(ours, 2.0, &job(1).body());
    }
    for (mut ours, delivery) in delivered("delayed") {
        ours.run(ours.queue.release(&delivery, SOON, Released::Unrun).unwrap());
        sweep_until_back(&mut ours, 1);
        assert_back(ours, 2.0, &job(1).body());
    }
}

#[test]
fn a_task_of_0_1_0_is_retried_with_its_own_and_with_other_arguments() {
    for (mut ours, delivery) in delivered("retried") {
        ours.run(ours.queue.retry(&delivery, NOW).unwrap());
        assert_back(ours, 2.0, &job(1).body());
    }
    for (mut ours, delivery) in delivered("retried-later") {
        let other = r#"{"task_name": "other", "args": [1e400], "kwargs": {"a": []}}"#.replace("1e400", "Infinity");
        let other_body = Some(Body::from_json(other.as_str()).unwrap());
        ours.run(ours.queue.settle(vec![Settlement::retry(&delivery, SOON, other_body).unwrap()]).unwrap());
        sweep_until_back(&mut ours, 1);
        assert_back(ours, 2.0, &other);
    }
}

#[test]
fn a_task_of_0_1_0_whose_lease_runs_out_is_reclaimed() {
    for mut ours in backlogs("reclaimed") {
        ours.run(ours.queue.dequeue(1).unwrap().lease(SOON).unwrap());
        sweep_until_back(&mut ours, 1);
        assert_back(ours, 2.0, &job(1).body());
    }
    for mut ours in backlogs("poison") {
        ours.run(ours.queue.dequeue(1).unwrap().lease(SOON).unwrap().max_deliveries(1).unwrap());
        sweep_until_back(&mut ours, 1);
        let letters = ours.run(ours.queue.dead_letters(0, 10).unwrap());
        assert!(letters[0].error.starts_with("poison") && letters.len() == 1, "{letters:?}");
        ours.run(ours.queue.discard([TaskId::new("id-1").unwrap()]).unwrap());
        assert_gone(ours);
    }
}

#[test]
fn a_task_of_0_1_0_is_given_back_or_failed_with_all_that_its_owner_holds() {
    for by in ["release", "fail"] {
        for mut ours in backlogs(&format!("{by}-owner")) {
            let owner = vtrr_queue::Queue::fresh_owner();
            ours.run(ours.queue.dequeue(1).unwrap().owner(owner.clone(), Vec::new()));
            if by == "release" {
                assert_eq!(ours.run(ours.queue.release_owner(owner, Released::Unrun)).len(), 1);
                assert_back(ours, 2.0, &job(1).body());
            } else {
                assert_eq!(ours.run(ours.queue.fail_owner(owner, Cause::Failed, "gone")).len(), 1);
                assert_eq!(ours.run(ours.queue.redrive([TaskId::new("id-1").unwrap()]).unwrap()).len(), 1);
                assert_back(ours, 2.0, &job(1).body());
            }
        }
    }
}

#[test]
fn a_task_of_0_1_0_is_failed_redriven_and_discarded() {
    for (mut ours, delivery) in delivered("failed") {
        ours.run(ours.queue.fail(&delivery, "ValueError: no").unwrap());
        let letters = ours.run(ours.queue.dead_letters(0, 10).unwrap());
        assert_eq!((letters.len(), letters[0].error.as_str()), (1, "ValueError: no"));
        assert_eq!(letters[0].payload.body(), job(1).body().as_bytes());
        ours.run(ours.queue.redrive([delivery.id.clone()]).unwrap());
        assert_eq!(ours.find("id-1"), Some((Whereabouts::Tagged { start: 2.0 }, 0)));
        // It has an own life again, which ends.
        let again = ours.next();
        assert_eq!((&again.id, again.deliveries, body(&again)), (&delivery.id, 1, job(1).body()));
        ours.run(ours.queue.fail(&again, "no").unwrap());
        ours.run(ours.queue.discard([again.id]).unwrap());
        assert_gone(ours);
    }
}

#[test]
fn a_task_of_0_1_0_is_cancelled_unless_it_is_leased() {
    let id = TaskId::new("id-1").unwrap();
    for mut ours in backlogs("cancelled") {
        assert_eq!(ours.run(ours.queue.cancel([id.clone()]).unwrap()), [Cancelled::Done]);
        assert_gone(ours);
    }
    for (mut ours, delivery) in delivered("cancelled-late") {
        assert_eq!(ours.run(ours.queue.cancel([id.clone()]).unwrap()), [Cancelled::Leased]);
        ours.run(ours.queue.release(&delivery, LATER, Released::Unrun).unwrap());
        assert_eq!(ours.run(ours.queue.cancel([id.clone()]).unwrap()), [Cancelled::Done]);
        assert_gone(ours);
    }
}

#[test]
fn tasks_of_0_1_0_are_seen_and_counted() {
    for mut ours in backlogs("seen") {
        let peeked = ours.run(ours.queue.peek(2).unwrap());
        let peeked: Vec<_> = peeked.iter().map(|task| (task.id.as_str(), task.start)).collect();
        assert_eq!(peeked, [("id-1", 1.0), ("id-2", 4.0)]);
        assert_eq!(ours.find("id-2"), Some((Whereabouts::Tagged { start: 4.0 }, 0)));
        let stats = ours.run(ours.queue.stats());
        assert_eq!((stats.queued, stats.leased, stats.partitions), (3, 0, 0));
        assert!(ours.run(ours.queue.partitions()).is_empty(), "whose they are, nobody knows");
        let delivery = ours.next();
        let stats = ours.run(ours.queue.stats());
        assert_eq!((stats.queued, stats.leased, stats.virtual_time), (2, 1, 1.0));
        assert!(matches!(ours.find("id-1"), Some((Whereabouts::Leased { .. }, 1))));
        ours.ack(&[delivery]);
        assert_gone(ours);
    }
}

#[test]
fn tasks_of_0_1_0_are_purged_with_all_and_with_no_partition() {
    for (mut ours, delivery) in delivered("purged") {
        let purged = ours.run(ours.queue.purge("p").unwrap());
        assert_eq!((purged.purged, purged.leased), (0, 0), "whose they are, nobody knows");
        let purged = ours.run(ours.queue.purge_all());
        assert_eq!((purged.purged, purged.leased), (2, 1));
        ours.ack(&[delivery]);
        ours.assert_clean();
    }
}

#[test]
fn a_delayed_task_of_0_1_0_is_brought_in_by_flatten() {
    for (mut ours, delivery) in delivered("flattened") {
        ours.run(ours.queue.release(&delivery, LATER, Released::Unrun).unwrap());
        let flattened = ours.run(ours.queue.flatten());
        assert_eq!((flattened.in_lanes, flattened.leased), (0, 0));
        assert_back(ours, 2.0, &job(1).body());
    }
}
