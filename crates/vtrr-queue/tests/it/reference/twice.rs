//! Ids that are there twice, since 0.1.0 checks nothing, and payloads that are gone.

use std::time::Duration;

use vtrr_queue::{ErrorKind, Released, TaskId, Whereabouts};

use super::{Job, Ours, body, theirs_dequeue, theirs_enqueue};

fn job(id: &str, number: usize) -> Job {
    Job { id: id.into(), ..Job::new(number) }
}

/// Ours is task 1, 0.1.0's task 2; both have the id "x".
const OURS: usize = 1;
const THEIRS: usize = 2;

fn with(name: &str, jobs: &[Job]) -> Ours {
    let mut ours = Ours::new(name);
    ours.enqueue("p", jobs);
    ours
}

/// Drains the queue: both tasks run, and nothing is left.
fn assert_both_run(mut ours: Ours, before: &[String]) {
    let (mut ran, id) = (before.to_vec(), TaskId::new("x").unwrap());
    while let Some(delivery) = ours.dequeue(1).pop() {
        assert!(delivery.id == id || delivery.id.as_str().starts_with("x~"), "{delivery:?}");
        ran.push(body(&delivery));
        ours.ack(&[delivery]);
    }
    ran.sort();
    assert_eq!(ran, [job("x", OURS).body(), job("x", THEIRS).body()], "{}", ours.name);
    ours.run(ours.queue.sweep());
    ours.assert_clean();
}

#[test]
fn an_id_queued_by_0_1_0_while_ours_is_leased_runs_beside_it() {
    let mut ours = with("twice-leased", &[job("x", OURS)]);
    let leased = ours.next();
    theirs_enqueue(&ours.name, "q", &[job("x", THEIRS)]);
    let fresh = ours.next();
    assert!(fresh.id.as_str().starts_with("x~") && body(&fresh) == job("x", THEIRS).body(), "{fresh:?}");
    assert!(matches!(ours.find("x"), Some((Whereabouts::Leased { .. }, 1))));
    ours.ack(&[fresh, leased]);
    ours.assert_clean();
}

#[test]
fn an_id_queued_by_0_1_0_survives_ours_that_is_given_back() {
    for (name, delay) in [("twice-released", 0), ("twice-delayed", 1)] {
        let mut ours = with(name, &[job("x", OURS)]);
        let leased = ours.next();
        theirs_enqueue(&ours.name, "q", &[job("x", THEIRS)]);
        ours.run(ours.queue.release(&leased, Duration::from_millis(delay), Released::Unrun).unwrap());
        while ours.run(ours.queue.stats()).delayed > 0 {
            ours.run(ours.queue.sweep());
        }
        assert_both_run(ours, &[]);
    }
}

#[test]
fn an_id_queued_by_0_1_0_while_ours_is_delayed_runs_before_it() {
    let mut ours = with("twice-delayed-long", &[job("x", OURS)]);
    let leased = ours.next();
    ours.run(ours.queue.release(&leased, Duration::from_secs(3_600), Released::Unrun).unwrap());
    theirs_enqueue(&ours.name, "q", &[job("x", THEIRS)]);
    let fresh = ours.next();
    assert!(fresh.id.as_str().starts_with("x~"), "{fresh:?}");
    let ran = [body(&fresh)];
    ours.ack(&[fresh]);
    ours.run(ours.queue.flatten());
    assert_both_run(ours, &ran);
}

#[test]
fn an_id_queued_by_0_1_0_while_ours_waits_in_a_lane_runs_before_it() {
    let mut ours = with("twice-waiting", &[job("a", 3), job("b", 4), job("x", OURS)]);
    theirs_enqueue(&ours.name, "q", &[job("x", THEIRS)]);
    let mut ids = Vec::new();
    while let Some(delivery) = ours.dequeue(1).pop() {
        ids.push(delivery.id.to_string());
        ours.ack(&[delivery]);
    }
    assert!(ids.len() == 4 && ids[0] == "a" && ids[1].starts_with("x~") && ids[2..] == ["b", "x"], "{ids:?}");
    ours.assert_clean();
}

#[test]
fn an_id_queued_by_0_1_0_survives_ours_that_becomes_the_head() {
    for how in ["dequeue", "dequeue-many", "cancel", "flatten", "heal"] {
        let mut ours = with(&format!("twice-promoted-by-{how}"), &[job("a", 3), job("x", OURS)]);
        theirs_enqueue(&ours.name, "q", &[Job { weight: 5, ..job("y", 4) }, job("x", THEIRS)]);
        let mut ran = Vec::new();
        match how {
            "dequeue" => drop(ours.work(1)),
            "dequeue-many" => ran = ours.work(4),
            "cancel" => drop(ours.run(ours.queue.cancel([TaskId::new("a").unwrap()]).unwrap())),
            "flatten" => drop(ours.run(ours.queue.flatten())),
            _ => {
                assert_eq!(theirs_dequeue(&ours.name, Some(1)), [job("a", 3).body()]);
                assert_eq!(ours.run(ours.queue.sweep()).healed, 1);
            }
        }
        ran.extend(ours.drain());
        ran.retain(|ran| *ran != job("a", 3).body() && *ran != job("y", 4).body());
        assert_both_run(ours, &ran);
    }
}

#[test]
fn an_id_queued_by_0_1_0_while_ours_is_dead_runs_and_survives_a_redrive() {
    for redrive_first in [true, false] {
        let mut ours = with(&format!("twice-dead-{redrive_first}"), &[job("x", OURS)]);
        let leased = ours.next();
        ours.run(ours.queue.fail(&leased, "no").unwrap());
        theirs_enqueue(&ours.name, "q", &[job("x", THEIRS)]);
        let ran = if redrive_first { Vec::new() } else { ours.work(1) };
        assert!(ours.run(ours.queue.stats()).dead == 1);
        ours.run(ours.queue.redrive([leased.id]).unwrap());
        assert_both_run(ours, &ran);
    }
}

#[test]
fn an_id_that_is_queued_by_0_1_0_is_refused() {
    let mut ours = Ours::new("twice-refused");
    theirs_enqueue(&ours.name, "p", &[job("x", THEIRS)]);
    let enqueue = ours.queue.enqueue("p", [job("x", OURS).for_us()]).unwrap();
    assert_eq!(ours.runner.run(enqueue).unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(ours.drain(), [job("x", THEIRS).body()]);
    ours.assert_clean();
}

/// What 0.1.0 does to its own tasks: the second replaces the first.
#[test]
fn an_id_queued_by_0_1_0_replaces_the_tag_of_ours_and_blocks_nothing() {
    let mut ours = with("twice-tagged", &[job("x", OURS), job("y", 3)]);
    theirs_enqueue(&ours.name, "q", &[job("x", THEIRS)]);
    assert_eq!(ours.work(2), [job("x", THEIRS).body()]);
    ours.run(ours.queue.sweep());
    assert_eq!(ours.drain(), [job("y", 3).body()]);
    ours.assert_clean();
}

#[test]
fn an_id_queued_by_0_1_0_in_place_of_a_head_keeps_no_task_from_coming_back() {
    let mut ours = with("twice-head", &[job("a", 3), job("x", OURS), job("y", 4)]);
    let leased = ours.next();
    theirs_enqueue(&ours.name, "q", &[job("x", THEIRS)]);
    ours.run(ours.queue.release(&leased, Duration::ZERO, Released::Unrun).unwrap());
    let mut ran = ours.drain();
    ours.run(ours.queue.sweep());
    ran.extend(ours.drain());
    ran.sort();
    assert_eq!(ran, [job("x", THEIRS).body(), job("a", 3).body(), job("y", 4).body()]);
    ours.assert_clean();
}

#[test]
fn a_task_whose_payload_is_gone_is_a_dead_letter_and_the_next_one_runs() {
    for head in [true, false] {
        let mut ours = Ours::new(&format!("lost-{head}"));
        if !head {
            ours.run(ours.queue.flatten());
        }
        ours.enqueue("p", &[job("a", 1), job("b", 2)]);
        theirs_enqueue(&ours.name, "q", &[job("c", 3), job("d", 4)]);
        for id in ["a", "c"] {
            redis::cmd("HDEL").arg(ours.key("task")).arg(id).exec(&mut ours.redis).unwrap();
        }
        let mut ran = ours.drain();
        ours.run(ours.queue.sweep());
        ran.extend(ours.drain());
        ran.sort();
        assert_eq!(ran, [job("b", 2).body(), job("d", 4).body()]);
        let letters = ours.run(ours.queue.dead_letters(0, 10).unwrap());
        let mut letters: Vec<_> =
            letters.iter().map(|it| (it.id.as_str(), it.error.contains("payload is missing"))).collect();
        letters.sort_unstable();
        assert_eq!(letters, [("a", true), ("c", true)]);
        let ids = letters.iter().map(|(id, _)| TaskId::new(*id).unwrap()).collect::<Vec<_>>();
        ours.run(ours.queue.discard(ids).unwrap());
        ours.assert_clean();
    }
}

#[test]
fn a_task_whose_payload_is_gone_while_it_waits_in_a_lane_blocks_nothing() {
    let mut ours = with("lost-waiting", &[job("a", 1), job("b", 2), job("c", 3)]);
    for id in ["b", "c"] {
        redis::cmd("HDEL").arg(ours.key("waiting")).arg(id).exec(&mut ours.redis).unwrap();
    }
    // Another partition is busy, so that the queue is never empty.
    ours.enqueue("q", &(10..20).map(Job::new).collect::<Vec<_>>());
    assert_eq!(ours.work(1), [job("a", 1).body()]);
    ours.enqueue("p", &[job("d", 4)]);
    ours.run(ours.queue.sweep());
    let ran = ours.work(4);
    assert!(ran.contains(&job("d", 4).body()), "{ran:?}");
    ours.drain();
    ours.assert_clean();
}
