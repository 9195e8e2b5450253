//! What a delivery carries of those before it, what a dead letter says of its end, and delays that are refused: on a server
//! and in memory, with equal answers.

use std::time::Duration;

use vtrr_queue::{Cause, Delivery, ErrorKind, Outcome, Released, Settlement, Whereabouts};

use crate::busy::{owner, task};
use crate::pair::{LEASE, Pair};

const NOW: Duration = Duration::ZERO;

fn one(pair: &mut Pair) -> Delivery {
    let command = pair.queue.dequeue(1).unwrap().lease(LEASE).unwrap();
    pair.run(command).deliveries.remove(0)
}

fn settle(pair: &mut Pair, settlement: Settlement) {
    let command = pair.queue.settle(vec![settlement]).unwrap();
    pair.run(command);
}

fn release(pair: &mut Pair, delivery: &Delivery, how: Released) {
    settle(pair, Settlement::release(delivery, NOW, how).unwrap());
}

#[test]
fn losses_are_counted_until_the_task_ends_a_delivery_itself() {
    let mut pair = Pair::new();
    let command = pair.queue.enqueue("a", [task("t")]).unwrap();
    pair.run(command);
    let delivery = one(&mut pair);
    release(&mut pair, &delivery, Released::Unrun);
    let delivery = one(&mut pair);
    assert_eq!((delivery.deliveries, delivery.losses), (2, 0), "it did not run");
    release(&mut pair, &delivery, Released::unknown("no handler"));
    let delivery = one(&mut pair);
    assert_eq!((delivery.deliveries, delivery.blames, delivery.losses), (3, 1, 0), "nor did it here");
    release(&mut pair, &delivery, Released::lost("killed"));
    let delivery = one(&mut pair);
    assert_eq!((delivery.blames, delivery.losses), (2, 1), "its worker was lost");
    release(&mut pair, &delivery, Released::Unrun);
    let delivery = one(&mut pair);
    assert_eq!(delivery.losses, 1, "what was lost before is still unknown");
    release(&mut pair, &delivery, Released::Stopped);
    let delivery = one(&mut pair);
    assert_eq!((delivery.blames, delivery.losses), (2, 2), "its worker was stopped");
    pair.wait(31);
    let delivery = one(&mut pair);
    assert_eq!((delivery.blames, delivery.losses), (3, 3), "its lease ran out");
    settle(&mut pair, Settlement::retry(&delivery, NOW, None).unwrap());
    let delivery = one(&mut pair);
    assert_eq!((delivery.blames, delivery.losses), (3, 0), "it asked for this one itself");
    release(&mut pair, &delivery, Released::lost("killed"));
    let delivery = one(&mut pair);
    release(&mut pair, &delivery, Released::Ran);
    assert_eq!(one(&mut pair).losses, 0, "and for this one");
    pair.compare();
}

#[test]
fn a_claimed_delivery_tells_of_losses_too() {
    let mut pair = Pair::new();
    let command = pair.queue.enqueue("a", [task("t")]).unwrap();
    pair.run(command);
    let delivery = one(&mut pair);
    release(&mut pair, &delivery, Released::lost("killed"));
    let delivery = one(&mut pair);
    settle(&mut pair, Settlement::release(&delivery, LEASE, Released::Unrun).unwrap());
    let claim = pair.queue.claim(delivery.id, delivery.token, owner("w1"), LEASE).unwrap();
    assert_eq!(pair.run(claim).unwrap().losses, 1);
}

#[test]
fn a_dead_letter_carries_its_cause_whatever_its_error_says() {
    let mut pair = Pair::new();
    let command = pair.queue.enqueue("a", (0..4).map(|n| task(&format!("t{n}")))).unwrap();
    pair.run(command);
    // A user's exception of such a name was taken for a lost payload.
    let error = "lostConnection: poison";
    for cause in [Cause::Failed, Cause::Timeout] {
        let delivery = one(&mut pair);
        settle(&mut pair, Settlement::fail(&delivery, cause.clone(), error));
        let command = pair.queue.find(delivery.id);
        assert_eq!(pair.run(command).unwrap().whereabouts, Whereabouts::Dead { cause, error: error.into() });
    }
    let holder = owner("w1");
    let command = pair.queue.dequeue(1).unwrap().lease(LEASE).unwrap().owner(holder.clone(), Vec::new());
    pair.run(command);
    let command = pair.queue.fail_owner(holder, Cause::Revoked, "terminated");
    pair.run(command);
    for _ in 0..5 {
        let delivery = one(&mut pair);
        release(&mut pair, &delivery, Released::lost(""));
    }
    let command = pair.queue.dead_letters(0, 9).unwrap();
    let letters: Vec<_> = pair.run(command).into_iter().map(|letter| (letter.cause, letter.error)).collect();
    let poison = "poison: 5 deliveries ended without a settle";
    assert_eq!(
        letters,
        [(Cause::Failed, error), (Cause::Timeout, error), (Cause::Revoked, "terminated"), (Cause::Poison, poison)]
            .map(|(cause, error)| (cause, error.to_owned()))
    );
    pair.compare();
}

#[test]
fn a_delay_of_more_than_ten_years_is_refused_however_it_is_given() {
    let mut pair = Pair::new();
    let command = pair.queue.enqueue("a", [task("t")]).unwrap();
    pair.run(command);
    let delivery = one(&mut pair);
    let (id, token) = (&delivery.id, &delivery.token);
    let years = |n: u64| n * 366 * 86_400_000;
    for delay_ms in [years(11), u64::MAX] {
        let delay = Duration::from_millis(delay_ms);
        let outcomes =
            [Outcome::Release { delay_ms, how: Released::Ran }, Outcome::Retry { delay_ms, body: None }].into_iter();
        let refused = outcomes.map(|outcome| Settlement::new(id.clone(), token.clone(), outcome));
        let refused = refused
            .chain([Settlement::release(&delivery, delay, Released::Unrun), Settlement::retry(&delivery, delay, None)]);
        for settlement in refused {
            let error = settlement.unwrap_err();
            assert!(
                error.kind() == ErrorKind::Invalid
                    && error.to_string().starts_with("delay must be from 0 ms to 10 years, not ")
            );
        }
    }
    settle(
        &mut pair,
        Settlement::new(id.clone(), token.clone(), Outcome::Retry { delay_ms: years(10), body: None }).unwrap(),
    );
    pair.compare();
}
