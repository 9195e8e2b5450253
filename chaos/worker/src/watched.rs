//! A runner that writes down what the server hands out and how it answers to settles: what went over the wire, not what the
//! worker makes of it.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use vtrr_queue::{Call, Command, Error, Listener, Queue, QueueName, Result, Runner, State, Step, Value};

use crate::ledger::{Ledger, now};
use crate::mutant::Mutant;

pub(crate) struct Watched<R> {
    runner: R,
    witness: Arc<Witness>,
}

struct Witness {
    ledger: Arc<Ledger>,
    mutant: Option<Mutant>,
    /// A file that, while there, spoils one answer to a settle; whoever deletes it has it.
    spoil: PathBuf,
}

impl<R> Watched<R> {
    pub(crate) fn new(runner: R, ledger: Arc<Ledger>, mutant: Option<Mutant>, spoil: PathBuf) -> Self {
        Self { runner, witness: Arc::new(Witness { ledger, mutant, spoil }) }
    }
}

impl<R: Runner> Runner for Watched<R> {
    async fn run<C: Command>(&self, command: C) -> Result<C::Reply> {
        self.runner.run(Seen { command, sent: AtomicI64::new(0), witness: Arc::clone(&self.witness) }).await
    }

    async fn listen(&self, queue: &Queue) -> Result<Listener> {
        self.runner.listen(queue).await
    }
}

/// A command under watch.
struct Seen<C> {
    command: C,
    sent: AtomicI64,
    witness: Arc<Witness>,
}

impl<C: Command> Command for Seen<C> {
    type Reply = C::Reply;

    fn queue(&self) -> &QueueName {
        self.command.queue()
    }

    fn call(&self) -> Call {
        let mut call = self.command.call();
        if let Some(mutant) = self.witness.mutant {
            call.script = mutant.of(call.script);
        }
        self.sent.store(now(), Ordering::Relaxed);
        call
    }

    fn decode(&mut self, answer: Value) -> Result<Step<C::Reply>> {
        let call = self.command.call();
        let settlements = settlements(&call);
        if !settlements.is_empty() && fs::remove_file(&self.witness.spoil).is_ok() {
            self.witness.ledger.note("spoiled", "");
            return self.command.decode(Value::Int(-1));
        }
        self.note(&call, settlements, &answer);
        self.command.decode(answer)
    }

    fn apply(&mut self, state: &mut State) -> Result<Step<C::Reply>> {
        self.command.apply(state)
    }

    fn known_for(&self) -> Option<Duration> {
        self.command.known_for()
    }

    fn repeated(&mut self) {
        self.command.repeated();
    }

    fn interrupted(&self, error: Error) -> Error {
        self.command.interrupted(error)
    }
}

impl<C> Seen<C> {
    fn note(&self, call: &Call, settlements: &[Vec<u8>], answer: &Value) {
        let Value::List(answer) = answer else { return };
        let ledger = &self.witness.ledger;
        let sent = self.sent.load(Ordering::Relaxed);
        if let Some(Value::List(codes)) = answer.first() {
            for (settlement, code) in settlements.chunks(5).zip(codes) {
                let [id, token, outcome, delay, _] = settlement else { continue };
                let words = [id, token, outcome, delay].map(|bytes| String::from_utf8_lossy(bytes));
                ledger.note("settled", &format!("{} {} {sent}", words.join(" "), text(code)));
            }
        }
        if call.script.name == "dequeue"
            && let Some(Value::List(deliveries)) = answer.get(3)
        {
            for delivery in deliveries {
                if let Value::List(fields) = delivery
                    && let [id, token, count, ..] = fields.as_slice()
                {
                    ledger.note("took", &format!("{} {} {} {sent}", text(id), text(token), text(count)));
                }
            }
        }
    }
}

/// What a call settles: id, token, outcome, delay and text of each, as docs/protocol.md lays them out.
fn settlements(call: &Call) -> &[Vec<u8>] {
    let number = |at: usize| call.args.get(at).and_then(|arg| std::str::from_utf8(arg).ok()?.parse::<usize>().ok());
    let (start, count) = match call.script.name {
        "dequeue" => (7 + number(5).unwrap_or(0), number(6)),
        "settle" if call.args.first().is_some_and(Vec::is_empty) => (2, number(1)),
        _ => return &[],
    };
    call.args.get(start..start + 5 * count.unwrap_or(0)).unwrap_or(&[])
}

fn text(value: &Value) -> String {
    match value {
        Value::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::Int(number) => number.to_string(),
        other => format!("{other:?}").replace(' ', ""),
    }
}

/// How long a call may take here: short, since servers are down for short.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(3);
