//! One order: what either side enqueues, both drain alike.

use vtrr_queue::Tagging;

use super::{Job, Ours, Random, theirs_dequeue, theirs_enqueue};

/// Who does what in a queue that both sides use.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mode {
    /// A queue of 0.1.0: it enqueues, both dequeue.
    Untouched,
    /// Both enqueue and dequeue.
    All,
    /// Both enqueue, in partitions of their own; only we dequeue, since 0.1.0 does not see lanes.
    Head,
}

const PARTITIONS: [&str; 6] = ["a", "b", "\"quoted\", \\ ü 😀", "x", "b:lane:=x", "{y}%3A"];

/// The next few tasks of one partition. Ids in no order at all, since they decide where tags are equal.
fn jobs(random: &mut Random, number: &mut usize, least_weight: usize) -> Vec<Job> {
    let n = 1 + random.below(6);
    let job = |_| {
        *number += 1;
        let id = format!("{:03}-{number}", random.below(1_000));
        let weight = u32::try_from(least_weight.max(random.below(6))).unwrap();
        Job { id, weight, ..Job::new(*number) }
    };
    (0..n).map(job).collect()
}

/// The same steps on two queues: on the one by either side, on the other by 0.1.0 alone.
fn steps_by_either_give_the_order_of_0_1_0_alone(mode: Mode) {
    for seed in 0..8 {
        let (shared, alone) = (format!("{mode:?}-shared-{seed}"), format!("{mode:?}-alone-{seed}"));
        let mut ours = Ours::new(&shared);
        match mode {
            Mode::Untouched => {}
            Mode::All => drop(ours.run(ours.queue.flatten())),
            Mode::Head => ours.run(ours.queue.unflatten()),
        }
        let (mut random, mut number, mut got, mut wanted) = (Random(seed), 0, Vec::new(), Vec::new());
        for _ in 0..60 {
            let (we, n) = (random.below(2) == 0, 1 + random.below(5));
            if random.below(5) < 2 {
                let (first, we) = match mode {
                    Mode::Untouched => (random.below(6), false),
                    Mode::All => (random.below(6), we),
                    Mode::Head => (if we { 3 } else { 0 } + random.below(3), we),
                };
                // 0.1.0 takes a weight of 0, which puts the next task at the same place.
                let (partition, jobs) = (PARTITIONS[first], jobs(&mut random, &mut number, usize::from(we)));
                theirs_enqueue(&alone, partition, &jobs);
                if we { ours.enqueue(partition, &jobs) } else { theirs_enqueue(&shared, partition, &jobs) }
            } else {
                wanted.extend(theirs_dequeue(&alone, Some(n)));
                let by_us = we || mode == Mode::Head;
                got.extend(if by_us { ours.work(n) } else { theirs_dequeue(&shared, Some(n)) });
                assert_eq!(got, wanted, "{mode:?}, seed {seed}");
            }
        }
        wanted.extend(theirs_dequeue(&alone, None));
        got.extend(ours.drain());
        assert_eq!((&got, got.len()), (&wanted, number), "{mode:?}, seed {seed}");
        ours.assert_clean();
    }
}

#[test]
fn both_dequeue_a_queue_of_0_1_0_in_its_order() {
    steps_by_either_give_the_order_of_0_1_0_alone(Mode::Untouched);
}

#[test]
fn both_enqueue_and_dequeue_a_queue_in_mode_all_in_the_order_of_0_1_0() {
    steps_by_either_give_the_order_of_0_1_0_alone(Mode::All);
}

#[test]
fn both_enqueue_in_mode_head_in_the_order_of_0_1_0() {
    steps_by_either_give_the_order_of_0_1_0_alone(Mode::Head);
}

#[test]
fn a_backlog_of_0_1_0_is_drained_in_its_order_in_either_mode() {
    let mut random = Random(7);
    let mut untouched = Ours::new("backlog-untouched");
    let mut number = 0;
    for _ in 0..60 {
        let partition = PARTITIONS[random.below(6)];
        theirs_enqueue("backlog-untouched", partition, &jobs(&mut random, &mut number, 0));
        theirs_dequeue("backlog-untouched", Some(random.below(3)));
    }
    assert!(untouched.run(untouched.queue.stats()).virtual_time > 0.0, "0.1.0 has dequeued");
    let (mut head, mut all) = (untouched.copy("backlog-head"), untouched.copy("backlog-all"));
    untouched.copy("backlog-alone");
    head.run(head.queue.unflatten());
    all.run(all.queue.flatten());
    let wanted = theirs_dequeue("backlog-alone", None);
    assert!(wanted.len() > 100, "{}", wanted.len());
    for mut ours in [untouched, head, all] {
        // Peeking shows it beforehand.
        let peeked = ours.run(ours.queue.peek(1_000).unwrap());
        let peeked: Vec<_> = peeked.iter().map(|task| String::from_utf8(task.payload.body()).unwrap()).collect();
        assert_eq!(peeked, wanted, "{}", ours.name);
        assert_eq!(ours.drain(), wanted, "{}", ours.name);
        ours.assert_clean();
    }
}

#[test]
fn what_we_enqueue_in_mode_all_is_drained_by_0_1_0_in_our_order() {
    let (mut all, mut head) = (Ours::new("enqueued-all"), Ours::new("enqueued-head"));
    all.queue = all.queue.tagging(Tagging::All);
    head.queue = head.queue.tagging(Tagging::Head);
    let (mut random, mut number) = (Random(8), 0);
    for _ in 0..60 {
        let (partition, jobs, n) = (PARTITIONS[random.below(6)], jobs(&mut random, &mut number, 1), random.below(3));
        all.enqueue(partition, &jobs);
        head.enqueue(partition, &jobs);
        assert_eq!(all.work(n), head.work(n));
    }
    let mut copy = all.copy("enqueued-all-copy");
    let wanted = all.drain();
    assert!(wanted.len() > 100, "{}", wanted.len());
    assert_eq!(theirs_dequeue("enqueued-all-copy", None), wanted);
    assert_eq!(head.drain(), wanted);
    // What 0.1.0 leaves behind is gone with the next sweep.
    copy.run(copy.queue.sweep());
    for mut ours in [all, head, copy] {
        ours.assert_clean();
    }
}
