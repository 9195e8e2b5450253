//! partitions: who waits, who is served.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Command, Step, Target, script};
use crate::call::{Call, Script, Value, arg};
use crate::error::Result;
use crate::keys::QueueName;
use crate::state::{Kind, MAX_STEP, State};
use crate::tag::Share;
use crate::task::{Partition, Payload};

pub(crate) const SCRIPT: Script = script!("partitions", "order");

/// Every partition with queued or leased tasks, by name; about 1,000 a step, so partitions that come and go meanwhile
/// may be missing. Changes nothing. O(partitions), whatever the backlog.
#[derive(Debug, Clone)]
#[must_use = "a command does nothing until a runner runs it"]
pub struct Partitions {
    target: Target,
    cursor: String,
    found: BTreeMap<String, PartitionStats>,
}

/// One partition.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PartitionStats {
    /// The partition.
    pub partition: Partition,
    /// Tasks that could run now.
    pub queued: u64,
    /// Tasks being worked on.
    pub leased: u64,
    /// Its share.
    pub share: Share,
    /// How long its next task has been in the queue; none in mode `all` and with nothing queued.
    pub oldest: Option<Duration>,
}

impl Partitions {
    pub(crate) fn new(target: Target) -> Self {
        Self { target, cursor: "head 0".into(), found: BTreeMap::new() }
    }
}

/// What is stored was checked: anything else is not ours.
fn share(value: &Value) -> Result<Share> {
    Share::new(value.float()?).map_err(|_| value.unreadable("a share"))
}

impl Command for Partitions {
    type Reply = Vec<PartitionStats>;

    fn queue(&self) -> &QueueName {
        &self.target.name
    }

    fn call(&self) -> Call {
        self.target.call(SCRIPT, vec![arg(&self.cursor), arg(MAX_STEP)])
    }

    fn decode(&mut self, answer: Value) -> Result<Step<Self::Reply>> {
        let mut fields = answer.answer()?;
        self.cursor = fields.text()?;
        for entry in fields.fields()? {
            let mut entry = entry.fields()?;
            let partition = entry.text()?;
            let stats = PartitionStats {
                queued: entry.count()?,
                leased: entry.count()?,
                share: share(&entry.value()?)?,
                oldest: u64::try_from(entry.int()?).ok().map(Duration::from_millis),
                partition: Partition::trusted(partition.clone()),
            };
            self.found.insert(partition, stats);
        }
        if self.cursor.is_empty() {
            return Ok(Step::Done(std::mem::take(&mut self.found).into_values().collect()));
        }
        Ok(Step::Again)
    }

    fn apply(&mut self, state: &mut State) -> Result<Step<Self::Reply>> {
        let names: std::collections::BTreeSet<_> = state.head.keys().chain(state.running.keys()).collect();
        let partitions = names.into_iter().map(|name| {
            let head = state.head.get(name).cloned().unwrap_or_default();
            let at = match head.kind {
                Kind::Unpaid | Kind::Paid => state.task.get(&head.id).and_then(Payload::enqueued_at_ms),
                Kind::None | Kind::Ghost => None,
            };
            PartitionStats {
                partition: Partition::trusted(name.clone()),
                queued: head.queued(),
                leased: state.running.get(name).copied().unwrap_or_default(),
                share: state.share_of(name),
                oldest: at.map(|at| Duration::from_millis(state.now_ms().saturating_sub(at))),
            }
        });
        Ok(Step::Done(partitions.collect()))
    }
}
