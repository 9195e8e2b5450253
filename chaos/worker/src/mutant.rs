//! Builds that are wrong on purpose, to see that the checker sees it: the scripts with a line changed.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use vtrr_queue::Script;
use vtrr_queue::worker::BoxError;

#[derive(Clone, Copy)]
pub(crate) enum Mutant {
    /// A settle is done whoever holds the task.
    SkipAckCheck,
    /// A task that ends stays counted among those of its partition that run, and no sweep mends that.
    ForgetRunning,
    /// A retry that is due is not placed.
    DropDueRetry,
    /// What ran and gave itself back is free, as if it had not run.
    FreeReturns,
}

impl Mutant {
    pub(crate) fn parse(name: &str) -> Result<Self, BoxError> {
        Ok(match name {
            "skip-ack-check" => Self::SkipAckCheck,
            "forget-running" => Self::ForgetRunning,
            "drop-due-retry" => Self::DropDueRetry,
            "free-returns" => Self::FreeReturns,
            _ => return Err(format!("no mutant {name:?}").into()),
        })
    }

    /// What stands in the scripts, and what it becomes.
    fn changes(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::SkipAckCheck => &[("if theirs ~= token then return 2 end", "")],
            Self::ForgetRunning => &[
                ("running.new[partition] = n > 0 and n or false", ""),
                ("if tonumber(counted[i + 1]) ~= n then put(plan.running, counted[i], n) end", ""),
            ],
            Self::FreeReturns => &[("local paid = how ~= 'ran'", "local paid = true")],
            Self::DropDueRetry => &[(
                "if h and SET_OF[h.place] == 'delayed' then",
                "if h and h.place == 'r' then put(plan.held, id, nil) elseif h and SET_OF[h.place] == 'delayed' then",
            )],
        }
    }

    /// The script as this build has it.
    pub(crate) fn of(self, script: Script) -> Script {
        static CHANGED: OnceLock<Mutex<HashMap<&'static str, &'static str>>> = OnceLock::new();
        let all = CHANGED.get_or_init(Mutex::default);
        let source = *all.lock().unwrap_or_else(PoisonError::into_inner).entry(script.name).or_insert_with(|| {
            let changes = self.changes().iter();
            changes.fold(script.source.to_owned(), |source, (from, to)| source.replace(from, to)).leak()
        });
        Script { source, ..script }
    }
}
