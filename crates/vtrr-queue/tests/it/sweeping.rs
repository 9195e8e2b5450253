//! The sweep: who sweeps, how much it looks at, and what it counts anew.

use std::collections::BTreeMap;
use std::time::Duration;

use vtrr_queue::{Swept, Task};

use crate::busy::{owner, task};
use crate::pair::{LEASE, NAME, Pair};

fn sweep(pair: &mut Pair, name: &str) -> Swept {
    let command = pair.queue.sweep().leader(owner(name), Duration::from_secs(15)).unwrap();
    pair.run(command)
}

#[test]
fn of_several_sweepers_one_sweeps_until_it_has_not_for_a_while() {
    let mut pair = Pair::new();
    let command = pair.queue.enqueue("a", [task("t")]).unwrap();
    pair.run(command);
    let command = pair.queue.dequeue(1).unwrap().lease(LEASE).unwrap();
    pair.run(command);
    assert!(sweep(&mut pair, "w1").leading);
    pair.wait(10);
    assert!(!sweep(&mut pair, "w2").leading);
    assert!(sweep(&mut pair, "w1").leading);
    pair.wait(10);
    assert_eq!(sweep(&mut pair, "w2"), Swept::default(), "w1 has swept 10 s ago");
    // The server's own clock forgets the key.
    assert_eq!(redis::cmd("DEL").arg("vtrr:q:sweeper").query::<u32>(&mut pair.clocked.connection).unwrap(), 1);
    pair.wait(11);
    let swept = sweep(&mut pair, "w2");
    assert_eq!((swept.leading, swept.reclaimed), (true, 1), "now it has not for 21 s");
    assert!(!sweep(&mut pair, "w1").leading);
    assert!(pair.sweep().leading, "one without a name always does");
    assert!(!sweep(&mut pair, "w1").leading, "and takes nobody's place");
}

#[test]
fn a_sweep_that_finds_no_work_asks_for_no_more_however_many_partitions_there_are() {
    const PARTITIONS: usize = 3_000;
    let mut pair = Pair::new();
    for partition in 0..PARTITIONS {
        let tasks = [Task::new("t", &()).unwrap(), Task::new("t", &()).unwrap()];
        let command = pair.queue.enqueue(format!("p{partition}"), tasks).unwrap();
        pair.clocked.run(command).unwrap();
    }
    let mut calls = 0;
    loop {
        let swept = pair.clocked.run(pair.queue.sweep()).unwrap();
        calls += 1;
        assert!(!swept.more, "{swept:?}");
        if !swept.unfinished {
            break;
        }
    }
    assert!((PARTITIONS / 600..=PARTITIONS / 300).contains(&calls), "a round takes {calls} calls");
}

#[test]
fn a_lease_that_a_sweep_restores_is_counted_and_stays_its_owners() {
    let mut pair = Pair::new();
    let command = pair.queue.enqueue("a", [task("t")]).unwrap();
    pair.run(command);
    let command = pair.queue.dequeue(1).unwrap().lease(LEASE).unwrap().owner(owner("w1"), Vec::new());
    pair.run(command);
    let before: BTreeMap<_, _> = pair.clocked.keys(NAME);
    // Half of a transaction: the lease is lost, its record is not.
    assert_eq!(redis::cmd("DEL").arg("vtrr:q:lease").query::<u32>(&mut pair.clocked.connection).unwrap(), 1);
    assert_eq!(pair.clocked.run(pair.queue.sweep()).unwrap().healed, 1);
    let after = pair.clocked.keys(NAME);
    for key in ["running", "owner", "held"] {
        assert_eq!(after.get(key), before.get(key), "{key}");
    }
    let command = pair.queue.extend_owner(owner("w1"), LEASE).unwrap();
    assert_eq!(pair.clocked.run(command).unwrap().len(), 1);
}
