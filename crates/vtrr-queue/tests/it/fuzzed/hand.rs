//! A worker with one task in its hands, and a queue that is not there.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use vtrr_queue::worker::{BoxError, Options, Summary, WorkerBuilder};
use vtrr_queue::{Command, Context, Listener, Memory, Queue, Result, Retry, Runner, Step, Value, Worker};

/// What became of the task.
#[derive(Debug)]
pub enum Ending {
    Acked,
    /// The next body without its opening brace.
    Retried(Vec<u8>),
    Failed(String),
    /// No handler has that name.
    Unknown,
}

/// Lets a worker run this payload; answers how it settled the task and what arguments its handler got.
///
/// The task's name picks the type of the arguments. A handler asks for a retry if there was none yet, then for one with
/// the arguments that it got, and then is content.
pub fn attend(payload: &[u8]) -> (Ending, Option<String>) {
    let hand = Arc::new(Hand { payload: Mutex::new(Some(payload.to_vec())), ..Hand::default() });
    let seen = Seen::default();
    let worker = worker(Arc::clone(&hand), &seen);
    let settled = async { hand.settled.notified().await };
    let summary = run(worker, settled).unwrap();
    assert_eq!(summary.succeeded + summary.failed + summary.retried + summary.released, 1, "{summary:?}");
    let ending = hand.ending.lock().unwrap().take().unwrap();
    let seen = seen.lock().unwrap().take();
    (ending, seen)
}

/// What the last handler got.
pub(super) type Seen = Arc<Mutex<Option<String>>>;

/// A worker with a handler for every kind of arguments.
pub(super) fn worker<R: Runner>(runner: R, seen: &Seen) -> Worker<R> {
    let builder = Worker::builder(Queue::new("q").unwrap(), runner).sweep_interval(Duration::from_secs(1));
    let builder = register::<serde_json::Value, R>(builder, "any", seen);
    let builder = register::<(), R>(builder, "none", seen);
    let builder = register::<(String, i64), R>(builder, "pair", seen);
    let builder = register::<(u8, BTreeMap<String, f64>), R>(builder, "rest", seen);
    let builder = register::<Resize, R>(builder, "resize", seen);
    let builder = register::<Shape, R>(builder, "shape", seen);
    let builder = register::<Option<f64>, R>(builder, "maybe", seen);
    let builder = register::<Vec<Vec<u8>>, R>(builder, "lists", seen);
    let builder = register::<BTreeMap<String, Option<bool>>, R>(builder, "map", seen);
    let builder = register::<String, R>(builder, "text", seen);
    builder.build().unwrap()
}

/// Lets it work until `stop`, on a clock that goes on when nothing else happens. It must end.
pub(super) fn run<R: Runner>(worker: Worker<R>, stop: impl Future<Output = ()> + Send) -> Result<Summary> {
    // Of delays that are drawn.
    fastrand::seed(7);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let hour = Duration::from_secs(3_600);
    runtime.block_on(async { tokio::time::timeout(hour, worker.run_until(stop)).await }).expect("a worker that ends")
}

#[derive(Debug, Serialize, Deserialize)]
struct Resize {
    path: String,
    width: u32,
    #[serde(default)]
    force: bool,
}

#[derive(Debug, Serialize, Deserialize)]
enum Shape {
    Point,
    Circle { radius: u8 },
    Line(i8, i8),
}

fn register<A, R>(builder: WorkerBuilder<R>, name: &str, seen: &Seen) -> WorkerBuilder<R>
where
    R: Runner,
    A: Debug + Serialize + DeserializeOwned + Send + Sync + 'static,
{
    let seen = Arc::clone(seen);
    builder.register_with(name, Options::new().retry_forever(), move |context: Context, arguments: A| {
        *seen.lock().unwrap() = Some(format!("{arguments:?}"));
        async move {
            match context.retries() {
                0 => Err(BoxError::from(Retry::after(Duration::ZERO))),
                1 => Err(Retry::after(Duration::from_secs(1)).args(&arguments)?.into()),
                _ => Ok(()),
            }
        }
    })
}

/// Hands out one payload, once, and keeps what it is settled with.
#[derive(Default)]
struct Hand {
    payload: Mutex<Option<Vec<u8>>>,
    ending: Mutex<Option<Ending>>,
    settled: Notify,
    memory: Memory,
}

impl Runner for Hand {
    async fn run<C: Command>(&self, mut command: C) -> Result<C::Reply> {
        let call = command.call();
        let answer = match call.script.name {
            "dequeue" => self.dequeue(&call.args),
            "extend" => Value::List(vec![Value::List(vec![Value::Int(0)])]),
            _ => Value::List(vec![Value::Int(0); 7]),
        };
        match command.decode(answer)? {
            Step::Done(reply) => Ok(reply),
            Step::Again => unreachable!("a worker's commands have one step"),
        }
    }

    async fn listen(&self, queue: &Queue) -> Result<Listener> {
        self.memory.listen(queue).await
    }
}

impl Hand {
    /// Takes `n lease max_deliveries owner request holding settlements`, the ids it holds, and five words a settlement.
    fn dequeue(&self, args: &[Vec<u8>]) -> Value {
        let number = |word: &[u8]| std::str::from_utf8(word).unwrap().parse::<usize>().unwrap();
        let settlements: Vec<_> = args[7 + number(&args[5])..].chunks(5).collect();
        assert_eq!(settlements.len(), number(&args[6]));
        let settled = settlements.iter().map(|settlement| self.settle(settlement)).collect();
        let payload = if number(&args[0]) > 0 { self.payload.lock().unwrap().take() } else { None };
        let bytes = |text: &str| Value::Bytes(text.into());
        let delivery = |payload| {
            Value::List(vec![bytes("a"), bytes("1-1"), Value::Int(1), Value::Int(0), Value::Int(0), Value::Bytes(payload)])
        };
        let deliveries = payload.into_iter().map(delivery).collect();
        Value::List(vec![Value::List(settled), Value::Int(-1), Value::Int(0), Value::List(deliveries)])
    }

    fn settle(&self, settlement: &[Vec<u8>]) -> Value {
        let [id, token, kind, _, text] = settlement else { unreachable!("five words") };
        assert_eq!((id.as_slice(), token.as_slice()), (&b"a"[..], &b"1-1"[..]));
        let ending = match kind.as_slice() {
            b"ack" => Ending::Acked,
            b"retry" => Ending::Retried(text.clone()),
            b"unknown" => Ending::Unknown,
            b"fail" => {
                let text = String::from_utf8(text.clone()).unwrap();
                Ending::Failed(text.split_once(' ').unwrap().1.to_owned())
            }
            _ => unreachable!("{kind:?}"),
        };
        assert!(self.ending.lock().unwrap().replace(ending).is_none(), "settled twice");
        self.settled.notify_one();
        Value::Int(0)
    }
}
