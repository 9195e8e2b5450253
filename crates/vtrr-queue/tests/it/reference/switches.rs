//! Switching between 0.1.0 and mode `head`, and what 0.1.0 workers take from a queue in mode `head`.

use std::time::Duration;

use vtrr_queue::Released;

use super::{Job, Ours, Random, theirs_dequeue, theirs_enqueue};

const NOW: Duration = Duration::ZERO;

fn jobs(first: usize, n: usize) -> Vec<Job> {
    (first..first + n).map(Job::new).collect()
}

fn bodies(numbers: impl IntoIterator<Item = usize>) -> Vec<String> {
    numbers.into_iter().map(|number| Job::new(number).body()).collect()
}

#[test]
fn a_flattened_backlog_is_drained_by_0_1_0_in_the_order_we_would_have_used() {
    let (mut head, mut random, mut number) = (Ours::new("flatten"), Random(3), 0);
    for round in 0..40 {
        let weight = [1, 1, 2, 5][random.below(4)];
        let some: Vec<_> = jobs(number, 1 + random.below(40)).into_iter().map(|job| Job { weight, ..job }).collect();
        number += some.len();
        head.enqueue(["a", "b", "c", "d:%"][random.below(4)], &some);
        head.work(random.below(3));
        // Some come back: at once and after a retry, as paid ones and as charged ones.
        if round % 4 == 1 {
            let delivery = head.next();
            head.run(head.queue.release(&delivery, NOW, Released::Unrun).unwrap());
        } else if round % 4 == 2 {
            let delivery = head.next();
            head.run(head.queue.retry(&delivery, NOW).unwrap());
        }
    }
    let mut flat = head.copy("flatten-flat");
    let flattened = flat.run(flat.queue.flatten());
    assert_eq!((flattened.in_lanes, flattened.leased), (0, 0));
    let wanted = head.drain();
    assert!(wanted.len() > 500, "{}", wanted.len());
    assert_eq!(theirs_dequeue("flatten-flat", None), wanted);
    flat.run(flat.queue.sweep());
    flat.assert_clean();
    head.assert_clean();
}

#[test]
fn after_unflatten_partitions_stay_in_order_while_0_1_0_workers_take_old_tags() {
    for seed in 0..10 {
        let (mut ours, mut random, mut number) = (Ours::new(&format!("unflatten-{seed}")), Random(seed), 0);
        let (partitions, mut wanted, mut ran) = (["a", "b", "c"], vec![Vec::new(); 3], Vec::new());
        ours.run(ours.queue.flatten());
        for step in 0..80 {
            if step == 20 {
                ours.run(ours.queue.unflatten());
            }
            match random.below(4) {
                0 => {
                    let (partition, some) = (random.below(3), jobs(number, 1 + random.below(4)));
                    number += some.len();
                    wanted[partition].extend(some.iter().map(Job::body));
                    ours.enqueue(partitions[partition], &some);
                }
                1 => ran.extend(theirs_dequeue(&ours.name, Some(random.below(4)))),
                2 => ran.extend(ours.work(random.below(3))),
                _ => drop(ours.run(ours.queue.sweep())),
            }
        }
        ours.run(ours.queue.sweep());
        ran.extend(ours.drain());
        assert_eq!(ran.len(), number, "seed {seed}");
        for wanted in wanted {
            let ran: Vec<_> = ran.iter().filter(|body| wanted.contains(body)).collect();
            assert_eq!(ran, wanted.iter().collect::<Vec<_>>(), "seed {seed}");
        }
        ours.run(ours.queue.sweep());
        ours.assert_clean();
    }
}

/// Others are always busy and their tags equal, so that the counts are never right by chance.
#[test]
fn one_sweep_heals_a_partition_whose_old_tags_0_1_0_workers_took() {
    let mut ours = Ours::new("old-tags");
    ours.run(ours.queue.flatten());
    ours.enqueue("p", &jobs(0, 2));
    for (i, partition) in ["q1", "q2", "q3", "q4"].into_iter().enumerate() {
        ours.enqueue(partition, &jobs(100 * (i + 1), 20));
    }
    ours.run(ours.queue.unflatten());
    assert_eq!(theirs_dequeue("old-tags", Some(6)), bodies([0, 100, 200, 300, 400, 1]));
    ours.enqueue("p", &jobs(2, 2));
    assert_eq!(ours.run(ours.queue.sweep()).healed, 1);
    let ran = ours.work(8);
    assert!(ran.contains(&Job::new(2).body()), "{ran:?}");
    // Old tags that are still there are waited for.
    assert_eq!(ours.run(ours.queue.sweep()).healed, 0);
    assert_eq!(ours.drain().len(), 84 - 6 - 8);
    ours.assert_clean();
}

#[test]
fn a_partition_whose_head_a_0_1_0_worker_took_is_healed_by_enqueue_or_by_sweep() {
    for by in ["enqueue", "sweep"] {
        let mut ours = Ours::new(&format!("healed-by-{by}"));
        ours.enqueue("p", &jobs(0, 2));
        ours.enqueue("q", &jobs(10, 2));
        assert_eq!(theirs_dequeue(&ours.name, Some(1)), bodies([0]));
        if by == "enqueue" {
            ours.enqueue("p", &jobs(2, 1));
            assert_eq!(ours.run(ours.queue.sweep()).healed, 0, "nothing is left to heal");
        } else {
            assert_eq!(ours.run(ours.queue.sweep()).healed, 1);
            ours.enqueue("p", &jobs(2, 1));
        }
        assert_eq!(ours.drain(), bodies([10, 1, 11, 2]));
        ours.assert_clean();
    }
}

/// 0.1.0 then deletes `task` and `partition_virtual_time`, and sets V to 0.
#[test]
fn nothing_is_lost_when_a_0_1_0_worker_takes_the_last_tag() {
    for by in ["enqueue", "sweep", "dequeue"] {
        let mut ours = Ours::new(&format!("drained-by-0-1-0-{by}"));
        let partitions = ["p", "q", "r"];
        for (i, partition) in partitions.into_iter().enumerate() {
            ours.enqueue(partition, &jobs(10 * i, 3));
        }
        // Two come back: one waits as paid.
        let deliveries = ours.dequeue(2);
        for delivery in &deliveries {
            ours.run(ours.queue.release(delivery, NOW, Released::Unrun).unwrap());
        }
        assert_eq!(theirs_dequeue(&ours.name, None).len(), 3);
        assert!(!ours.keys().contains(&"task".to_owned()));
        match by {
            "enqueue" => {
                for (i, partition) in partitions.into_iter().enumerate() {
                    ours.enqueue(partition, &jobs(10 * i + 3, 1));
                }
                assert_eq!(ours.drain().len(), 9);
            }
            "sweep" => {
                assert_eq!(ours.run(ours.queue.sweep()).healed, 3);
                assert_eq!(ours.drain().len(), 6);
            }
            _ => assert_eq!(ours.drain().len(), 6),
        }
        ours.run(ours.queue.sweep());
        ours.assert_clean();
    }
}

#[test]
fn a_place_of_cancelled_tasks_that_a_0_1_0_worker_took_is_healed() {
    let mut ours = Ours::new("ghost");
    let enqueued = ours.run(ours.queue.enqueue("p", jobs(0, 1_102).iter().map(Job::for_us)).unwrap());
    ours.run(ours.queue.cancel(enqueued.ids[1..1_000].to_vec()).unwrap());
    ours.run(ours.queue.cancel(enqueued.ids[1_000..1_100].to_vec()).unwrap());
    ours.enqueue("q", &jobs(2_000, 5));
    assert_eq!(ours.work(2), bodies([0, 2_000]));
    // 0.1.0 cannot make anything of it.
    assert!(super::ask(r#"{"queue":"ghost","n":1}"#)["error"].is_string());
    assert_eq!(ours.run(ours.queue.sweep()).healed, 1);
    let ran = ours.drain();
    assert_eq!(ran.len(), 6);
    ours.assert_clean();
}

/// 0.1.0 workers take what was given back; what we remember of it goes with the next sweep.
#[test]
fn what_is_remembered_of_tasks_that_0_1_0_workers_took_is_dropped() {
    let mut ours = Ours::new("remembered");
    theirs_enqueue("remembered", "p", &jobs(0, 2));
    ours.enqueue("q", &jobs(10, 2));
    for _ in 0..3 {
        let delivery = ours.next();
        ours.run(ours.queue.release(&delivery, NOW, Released::Unrun).unwrap());
    }
    let taken = theirs_dequeue("remembered", None);
    assert_eq!(taken.len(), 3);
    let swept = ours.run(ours.queue.sweep());
    assert!(swept.dropped > 0 && swept.healed == 1, "{swept:?}");
    assert_eq!(ours.drain(), bodies([11]));
    ours.assert_clean();
}
