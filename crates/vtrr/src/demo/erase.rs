//! Erases a queue that is no longer used.

use vtrr_queue::{Call, Command, Queue, QueueName, Result, Script, State, Step, Value};

/// Deletes the keys of a queue. Its lanes are not among them: purge it first.
pub(super) struct Erase {
    name: QueueName,
    call: Call,
}

impl Erase {
    pub(super) fn new(queue: &Queue) -> Self {
        // Every command names all keys of its queue.
        let keys = queue.stats().call().keys;
        let script = Script { name: "erase", source: "for _, key in ipairs(KEYS) do redis.call('DEL', key) end" };
        Self { name: queue.name().clone(), call: Call { script, keys, args: Vec::new() } }
    }
}

impl Command for Erase {
    type Reply = ();

    fn queue(&self) -> &QueueName {
        &self.name
    }

    fn call(&self) -> Call {
        self.call.clone()
    }

    fn decode(&mut self, _: Value) -> Result<Step<()>> {
        Ok(Step::Done(()))
    }

    fn apply(&mut self, state: &mut State) -> Result<Step<()>> {
        *state = State::default();
        Ok(Step::Done(()))
    }
}
