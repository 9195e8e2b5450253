//! Settlements on their way to the queue: kept until the queue has answered.

use std::collections::VecDeque;

use super::Summary;
use crate::command::{Outcome, Settled, Settlement};
use crate::task::{MAX_PAYLOAD_BYTES, MAX_TASKS_PER_CALL, TaskId};

#[derive(Debug)]
pub(super) struct Unsettled {
    waiting: VecDeque<Pending>,
    under_way: Vec<Pending>,
    /// Most that go with one call.
    most: usize,
}

#[derive(Debug)]
struct Pending {
    settlement: Settlement,
    /// Whether it was sent in a call that was not answered: then it may be settled already.
    repeated: bool,
}

impl Unsettled {
    pub(super) fn new() -> Self {
        Self { waiting: VecDeque::new(), under_way: Vec::new(), most: MAX_TASKS_PER_CALL }
    }

    pub(super) fn push(&mut self, settlement: Settlement) {
        self.waiting.push_back(Pending { settlement, repeated: false });
    }

    /// Whether none waits to be sent.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether none waits for an answer either.
    pub(super) fn is_done(&self) -> bool {
        self.waiting.is_empty() && self.under_way.is_empty()
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = &TaskId> {
        self.waiting.iter().chain(&self.under_way).map(|pending| &pending.settlement.id)
    }

    /// Those that go with the next call: bounded in number and bytes.
    pub(super) fn send(&mut self) -> Vec<Settlement> {
        let mut bytes = 0;
        while self.under_way.len() < self.most && bytes < MAX_PAYLOAD_BYTES {
            let Some(pending) = self.waiting.pop_front() else { break };
            if let Outcome::Retry { body: Some(body), .. } = &pending.settlement.outcome {
                bytes += body.rest().len();
            }
            self.under_way.push(pending);
        }
        self.under_way.iter().map(|pending| pending.settlement.clone()).collect()
    }

    /// The call was answered. What the queue refused to settle is somebody else's now.
    pub(super) fn answered(&mut self, answers: &[Settled], summary: &mut Summary) {
        self.most = (2 * self.most + 1).min(MAX_TASKS_PER_CALL);
        for (index, Pending { settlement, repeated }) in self.under_way.drain(..).enumerate() {
            let answer = answers.get(index).copied().unwrap_or(Settled::Gone);
            if answer != Settled::Done && !repeated {
                tracing::warn!(task = %settlement.id, ?answer, "the lease was lost before the task was settled: it may run twice");
                summary.lost += 1;
                continue;
            }
            match settlement.outcome {
                Outcome::Ack => summary.succeeded += 1,
                Outcome::Release { .. } => summary.released += 1,
                Outcome::Retry { .. } => summary.retried += 1,
                Outcome::Fail { .. } => summary.failed += 1,
            }
        }
    }

    /// The call was not answered: all go again.
    pub(super) fn unanswered(&mut self) {
        for mut pending in self.under_way.drain(..).rev() {
            pending.repeated = true;
            self.waiting.push_front(pending);
        }
    }

    /// The call was refused, perhaps for one of these: fewer go next time, down to none. After each success more do. So
    /// one bad settlement holds up neither the others nor the dequeue.
    pub(super) fn refused(&mut self) {
        self.most = self.under_way.len() / 2;
        if let [_] = self.under_way.as_slice() {
            self.waiting.extend(self.under_way.drain(..));
        }
        for pending in self.under_way.drain(..).rev() {
            self.waiting.push_front(pending);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Token;

    fn settlement(n: usize) -> Settlement {
        Settlement::trusted(TaskId::new(n.to_string()).unwrap(), Token::new("1-1").unwrap(), Outcome::Ack)
    }

    #[test]
    fn one_bad_settlement_does_not_hold_up_the_others() {
        let (mut unsettled, mut summary) = (Unsettled::new(), Summary::default());
        (0..100).for_each(|n| unsettled.push(settlement(n)));
        let (mut calls, mut empty) = (0, 0);
        while summary.succeeded < 99 {
            calls += 1;
            let sent = unsettled.send();
            empty += usize::from(sent.is_empty());
            if sent.iter().any(|settlement| settlement.id.as_str() == "37") {
                unsettled.refused();
            } else {
                unsettled.answered(&vec![Settled::Done; sent.len()], &mut summary);
            }
            assert!(calls < 100, "{summary:?}");
        }
        assert!(empty >= 1);
        assert_eq!(unsettled.ids().map(TaskId::as_str).collect::<Vec<_>>(), ["37"]);
    }

    #[test]
    fn a_repeated_settlement_that_is_gone_was_done() {
        let (mut unsettled, mut summary) = (Unsettled::new(), Summary::default());
        unsettled.push(settlement(1));
        assert_eq!(unsettled.send().len(), 1);
        unsettled.unanswered();
        unsettled.push(settlement(2));
        assert_eq!(unsettled.send().iter().map(|settlement| settlement.id.as_str()).collect::<Vec<_>>(), ["1", "2"]);
        unsettled.answered(&[Settled::Gone, Settled::Gone], &mut summary);
        assert_eq!((summary.succeeded, summary.lost, unsettled.is_done()), (1, 1, true));
    }
}
