//! Deliveries, leases and what becomes of them, on the state in memory.

use super::{Held, MAX_DEAD, Place, State, Tagged, as_ms};
use crate::command::{Cause, Outcome, Released, Settled, Settlement};
use crate::task::{Delivery, Payload, TaskId, Token};

/// A task to be placed in the order again, with the tag it was served at and the number of its last delivery.
#[derive(Debug)]
pub(crate) struct GivenBack {
    start: f64,
    number: u64,
    id: String,
    paid: bool,
}

impl GivenBack {
    pub(crate) fn new(id: &str, held: &Held, paid: bool) -> Self {
        let number = held.token.split_once('-').and_then(|(_, number)| number.parse().ok()).unwrap_or_default();
        Self { start: held.start, number, id: id.to_owned(), paid }
    }
}

impl State {
    pub(crate) fn fresh_token(&mut self) -> String {
        self.token += 1;
        format!("{}-{}", self.now_us, self.token)
    }

    /// Makes a delivery of a tagged task. None if it had no payload: then it is a dead letter.
    pub(crate) fn deliver(&mut self, tagged: Tagged, lease_ms: u64, max_deliveries: u32, owner: &str) -> Option<Delivery> {
        let Tagged { mut id, start, payload, partition } = tagged;
        let Some(payload) = payload else {
            let mut held = self.held.remove(&id).unwrap_or_else(|| new_held(max_deliveries));
            held.token = "-".into();
            self.held.insert(id.clone(), held);
            self.bury(&id, &Cause::Missing, "lost: the task was queued but its payload is missing");
            return None;
        };
        let token = self.fresh_token();
        // An id that 0.1.0 queued while ours was busy: both run.
        let busy = self.held.get(&id).is_some_and(|held| !matches!(held.place, Place::Queued | Place::QueuedPaid));
        if busy || (partition.is_none() && self.waiting.contains_key(&id)) {
            id = format!("{id}~{token}");
        }
        let held = self.held.entry(id.clone()).or_insert_with(|| new_held(max_deliveries));
        held.place = Place::Leased;
        held.token = token;
        held.deliveries += 1;
        held.max_deliveries = max_deliveries;
        held.start = start;
        owner.clone_into(&mut held.owner);
        held.payload = payload;
        self.lease.insert(&id, self.now_ms().saturating_add(lease_ms) as f64);
        if let Some(partition) = partition {
            *self.running.entry(partition).or_default() += 1;
        }
        self.count("delivered", 1);
        self.delivery(&id)
    }

    /// A task that is in somebody's hands, as its holder has it.
    pub(crate) fn delivery(&self, id: &str) -> Option<Delivery> {
        let held = self.held.get(id).filter(|held| held.place == Place::Leased)?;
        Some(Delivery {
            id: TaskId::trusted(id.to_owned()),
            token: Token(held.token.clone()),
            deliveries: held.deliveries,
            blames: held.blames,
            losses: held.losses,
            payload: held.payload.clone(),
        })
    }

    /// Ends the lease of a task: its deadline, slot and owner's entry are gone.
    fn end_lease(&mut self, id: &str) {
        self.lease.remove(id);
        let Some(held) = self.held.get(id) else { return };
        if let Some(partition) = Self::partition_of(&held.payload)
            && let Some(running) = self.running.get_mut(&partition)
        {
            *running -= 1;
            if *running == 0 {
                self.running.remove(&partition);
            }
        }
        if let Some(holding) = self.owner.get_mut(&held.owner) {
            holding.ids.retain(|(held, _)| held != id);
            if holding.ids.is_empty() {
                self.owner.remove(&held.owner);
            }
        }
    }

    /// A dead letter, with its reason. The oldest ones beyond the bound are dropped.
    pub(crate) fn bury(&mut self, id: &str, cause: &Cause, error: &str) {
        if let Some(held) = self.held.get_mut(id) {
            held.place = Place::Dead;
        }
        self.dead.insert(id, self.now_ms() as f64);
        self.error.insert(id.to_owned(), cause.with(error));
        self.count("dead", 1);
        while self.dead.len() > MAX_DEAD {
            let Some((_, oldest)) = self.dead.first() else { return };
            let oldest = oldest.to_owned();
            self.forget_dead(&oldest);
        }
    }

    pub(crate) fn forget_dead(&mut self, id: &str) -> Option<Held> {
        self.dead.remove(id)?;
        self.error.remove(id);
        self.held.remove(id)
    }

    /// How the holder of this token stands to the task.
    pub(crate) fn standing(&self, id: &str, token: &str) -> Settled {
        match self.held.get(id) {
            None => Settled::Gone,
            Some(held) if held.token != token => Settled::Lost,
            Some(held) if held.place != Place::Leased => Settled::Gone,
            Some(_) => Settled::Done,
        }
    }

    /// Settles deliveries, in order.
    pub(crate) fn settle(&mut self, settlements: &[Settlement]) -> Vec<Settled> {
        let mut given_back = Vec::new();
        let answers = settlements
            .iter()
            .map(|settlement| {
                let id = settlement.id.as_str();
                let standing = self.standing(id, settlement.token.as_str());
                if standing == Settled::Done {
                    self.settle_one(id, &settlement.outcome, &mut given_back);
                }
                standing
            })
            .collect();
        self.place_all(given_back);
        answers
    }

    pub(crate) fn settle_one(&mut self, id: &str, outcome: &Outcome, given_back: &mut Vec<GivenBack>) {
        self.end_lease(id);
        match outcome {
            Outcome::Ack => {
                self.held.remove(id);
                self.count("acked", 1);
            }
            Outcome::Fail { cause, error } => {
                self.count("failed", 1);
                self.bury(id, cause, error);
            }
            Outcome::Release { delay_ms, how } => {
                self.count("released", 1);
                self.give_back(id, *delay_ms, how, given_back);
            }
            Outcome::Retry { delay_ms, body } => {
                self.count("retried", 1);
                if let Some(held) = self.held.get_mut(id) {
                    held.losses = 0;
                    if let Some(body) = body {
                        held.payload = held.payload.with_rest(body.rest());
                    }
                }
                self.come_back(id, *delay_ms, false, given_back);
            }
        }
    }

    /// Gives a delivery back (R9).
    fn give_back(&mut self, id: &str, delay_ms: u64, how: &Released, given_back: &mut Vec<GivenBack>) {
        let Some(held) = self.held.get_mut(id) else { return };
        let paid = match how {
            Released::Unrun | Released::Unknown { .. } => true,
            Released::Stopped => {
                held.losses += 1;
                true
            }
            Released::Ran => {
                held.losses = 0;
                false
            }
            Released::Lost { .. } => {
                held.losses += 1;
                !std::mem::replace(&mut held.free_used, true)
            }
        };
        let (cause, reason) = match how {
            Released::Unrun | Released::Stopped | Released::Ran => return self.come_back(id, delay_ms, paid, given_back),
            Released::Lost { reason } => (Cause::Poison, reason),
            Released::Unknown { reason } => (Cause::Unknown, reason),
        };
        held.blames += 1;
        if held.blames < held.max_deliveries {
            return self.come_back(id, delay_ms, paid, given_back);
        }
        let mut error = format!("poison: {} deliveries ended without a settle", held.blames);
        if !reason.is_empty() {
            error = format!("{error}; the last one: {reason}");
        }
        self.bury(id, &cause, &error);
    }

    fn come_back(&mut self, id: &str, delay_ms: u64, paid: bool, given_back: &mut Vec<GivenBack>) {
        let due = self.now_ms().saturating_add(delay_ms) as f64;
        let Some(held) = self.held.get_mut(id) else { return };
        if delay_ms == 0 {
            held.place = Place::Queued;
            given_back.push(GivenBack::new(id, held, paid));
        } else {
            held.place = if paid { Place::DelayedPaid } else { Place::DelayedRetry };
            self.delayed.insert(id, due);
        }
    }

    /// R9: several at once go latest start tag first, so that they keep their order; where tags are equal, as those of
    /// paid tasks often are, the one delivered last goes first.
    pub(crate) fn place_all(&mut self, mut given_back: Vec<GivenBack>) {
        given_back.sort_by(|a, b| b.start.total_cmp(&a.start).then(b.number.cmp(&a.number)));
        for GivenBack { id, paid, .. } in given_back {
            self.place(&id, paid);
        }
    }

    /// Takes a lease away from its holder; its token is worth nothing from now on.
    pub(crate) fn revoke(&mut self, id: &str, how: &Released, given_back: &mut Vec<GivenBack>) {
        self.end_lease(id);
        self.give_back(id, 0, how, given_back);
        if let Some(held) = self.held.get_mut(id) {
            "-".clone_into(&mut held.token);
        }
    }

    /// Brings back what is due: expired leases and delayed tasks, by time, at most `limit`. Answers how many of each.
    pub(crate) fn bring_due(&mut self, limit: usize) -> (u64, u64) {
        let now = self.now_ms() as f64;
        let expired = self.lease.up_to(now).take(limit).map(|(at, id)| (at, 0, id.to_owned()));
        let delayed = self.delayed.up_to(now).take(limit).map(|(at, id)| (at, 1, id.to_owned()));
        let mut due: Vec<_> = expired.chain(delayed).collect();
        due.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| (a.1, &a.2).cmp(&(b.1, &b.2))));
        due.truncate(limit);
        let mut given_back = Vec::new();
        let (mut reclaimed, mut back) = (0, 0);
        for (_, kind, id) in due {
            if kind == 0 {
                reclaimed += 1;
                self.revoke(&id, &Released::lost(""), &mut given_back);
            } else {
                back += 1;
                self.delayed.remove(&id);
                if let Some(held) = self.held.get(&id) {
                    given_back.push(GivenBack::new(&id, held, held.place == Place::DelayedPaid));
                }
            }
        }
        self.count("reclaimed", reclaimed);
        self.place_all(given_back);
        (reclaimed, back)
    }

    /// Milliseconds until the next lease runs out or the next delayed task is due.
    pub(crate) fn next_due_ms(&self) -> Option<u64> {
        let first = [&self.lease, &self.delayed].into_iter().filter_map(|set| set.first().map(|(at, _)| at));
        first.min_by(f64::total_cmp).map(|at| as_ms(at).saturating_sub(self.now_ms()))
    }

    /// What the owner holds and this list does not name is given back without blame: its reply was lost.
    pub(crate) fn give_back_unnamed(&mut self, owner: &str, named: &[TaskId]) {
        let Some(holding) = self.owner.get(owner) else { return };
        let lost: Vec<_> = holding
            .ids
            .iter()
            .filter(|(id, _)| !named.iter().any(|named| named.as_str() == id))
            .map(|(id, _)| id.clone())
            .collect();
        let mut given_back = Vec::new();
        for id in lost {
            self.count("released", 1);
            self.revoke(&id, &Released::Unrun, &mut given_back);
        }
        self.place_all(given_back);
    }
}

fn new_held(max_deliveries: u32) -> Held {
    Held {
        place: Place::Queued,
        token: "-".into(),
        deliveries: 0,
        blames: 0,
        losses: 0,
        free_used: false,
        max_deliveries,
        start: 0.0,
        owner: "-".into(),
        payload: Payload(Vec::new()),
    }
}
