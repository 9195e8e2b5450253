//! Errors, panics, and who is told.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use vtrr_queue::worker::{BoxError, Hooks, Options, Panicked};
use vtrr_queue::{Body, Context, Retry, Runner, Task};

use super::bed::{Bed, Working, events};

/// Retries every error, soon.
fn soon() -> Options {
    Options::new().autoretry_any().retry_backoff(Duration::from_millis(1)).retry_jitter(false)
}

pub(super) async fn an_error_is_final_unless_told_otherwise(runner: impl Runner + Clone + 'static) {
    let bed = Bed::new(runner);
    let worker = Working::start(bed.worker().register("t", |_: Context, (): ()| async { Err::<(), _>("down") }));
    bed.enqueue_call("t").await;
    let letter = bed.dead_letters(1).await.remove(0);
    assert_eq!((letter.error.as_str(), letter.deliveries), ("down", 1));
    assert_eq!(worker.stop().await.failed, 1);
}

pub(super) async fn an_error_is_retried_until_a_dead_letter(runner: impl Runner + Clone + 'static) {
    let bed = Bed::new(runner);
    let (tell, mut told) = events();
    let worker = Working::start(bed.worker().register_with("t", soon().max_retries(2), move |context: Context, (): ()| {
        tell.send((context.id().clone(), context.retries(), context.deliveries())).unwrap();
        async { Err::<(), _>(std::io::Error::other("down")) }
    }));
    let id = bed.enqueue_call("t").await;
    let runs = told.take(3).await;
    assert_eq!(runs, [(id.clone(), 0, 1), (id.clone(), 1, 2), (id.clone(), 2, 3)]);
    let letter = bed.dead_letters(1).await.remove(0);
    assert_eq!((letter.id, letter.error.as_str()), (id, "down (given up after 2 retries)"));
    let summary = worker.stop().await;
    assert_eq!((summary.retried, summary.failed, told.rest().len()), (2, 1, 0));
}

pub(super) async fn a_handler_retries_with_other_arguments(runner: impl Runner + Clone + 'static) {
    let bed = Bed::new(runner);
    let (tell, mut told) = events();
    let worker = Working::start(bed.worker().register("t", move |context: Context, (page,): (u32,)| {
        let tell = tell.clone();
        async move {
            tell.send((page, context.retries()))?;
            match page {
                0..3 => Err(Retry::after(Duration::ZERO).args(&(page + 1,))?.into()),
                3 => Err(context.retry().because("no more pages").max_retries(3).into()),
                _ => Ok::<(), BoxError>(()),
            }
        }
    }));
    bed.enqueue("p", [Task::new("t", &(0,)).unwrap()]).await;
    assert_eq!(told.take(4).await, [(0, 0), (1, 1), (2, 2), (3, 3)]);
    let letter = bed.dead_letters(1).await.remove(0);
    assert_eq!(letter.error, "no more pages (given up after 3 retries)");
    assert_eq!(worker.stop().await.retried, 3);
}

pub(super) async fn the_rest_of_the_body_stays_as_it_was(runner: impl Runner + Clone + 'static) {
    let bed = Bed::new(runner);
    let body = r#"{"task_name": "t", "args": [1.10, 1e400], "x": {"retries": 7}, "kwargs": {}}"#;
    let worker = Working::start(bed.worker().register_with(
        "t",
        soon().max_retries(1),
        |_: Context, _: [Ignored; 2]| async { Err::<(), _>("down") },
    ));
    bed.enqueue("p", [Task::with_body(Body::from_json(body).unwrap())]).await;
    let letter = bed.dead_letters(1).await.remove(0);
    let expected = body.replace("{}}", r#"{},"retries":1}"#);
    assert_eq!(String::from_utf8(letter.payload.body()).unwrap(), expected);
    worker.stop().await;
}

/// Takes anything.
struct Ignored;

impl<'de> serde::Deserialize<'de> for Ignored {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        serde::de::IgnoredAny::deserialize(deserializer).map(|_| Self)
    }
}

pub(super) async fn a_panic_is_a_failed_delivery(runner: impl Runner + Clone + 'static) {
    let bed = Bed::new(runner);
    let worker = Working::start(
        bed.worker()
            .register(
                "early",
                |_: Context, (): ()| if true { panic!("early") } else { std::future::ready(Ok::<_, BoxError>(())) },
            )
            .register("late", async |_: Context, (): ()| -> Result<(), BoxError> { panic!("{}", "late") })
            .register("well", async |_: Context, (): ()| Ok::<_, BoxError>(())),
    );
    for name in ["early", "late", "well"] {
        bed.enqueue_call(name).await;
    }
    let letters = bed.dead_letters(2).await;
    let mut errors: Vec<_> = letters.iter().map(|letter| letter.error.as_str()).collect();
    errors.sort_unstable();
    assert_eq!(errors, ["panicked: early", "panicked: late"]);
    bed.drained().await;
    let summary = worker.stop().await;
    assert_eq!((summary.failed, summary.succeeded), (2, 1));
}

pub(super) async fn a_panic_is_retried_where_errors_are(runner: impl Runner + Clone + 'static) {
    let bed = Bed::new(runner);
    let options = Options::new().autoretry_for::<Panicked>().retry_countdown(Duration::from_millis(1));
    let worker = Working::start(bed.worker().register_with("t", options, |context: Context, (): ()| async move {
        assert!(context.retries() == 2, "not yet");
        Ok::<_, BoxError>(())
    }));
    bed.enqueue_call("t").await;
    bed.drained().await;
    let summary = worker.stop().await;
    assert_eq!((summary.retried, summary.succeeded, summary.failed), (2, 1, 0));
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn push(&self, task: &Context, what: &str) {
        self.0.lock().unwrap().push(format!("{} {what}", task.task_name()));
        // What a hook does is no matter of the task's.
        assert!(task.task_name() != "well");
    }
}

impl Hooks for Log {
    fn started(&self, task: &Context) {
        self.push(task, "started");
    }
    fn succeeded(&self, task: &Context, _took: Duration) {
        self.push(task, "succeeded");
    }
    fn failed(&self, task: &Context, error: &str) {
        self.push(task, &format!("failed: {error}"));
    }
    fn retried(&self, task: &Context, error: &str, delay: Duration) {
        self.push(task, &format!("retried in {delay:?}: {error}"));
    }
}

pub(super) async fn hooks_are_told(runner: impl Runner + Clone + 'static) {
    let bed = Bed::new(runner);
    let log = Log::default();
    bed.enqueue("p", ["well", "badly"].map(|name| Task::new(name, &()).unwrap())).await;
    bed.enqueue("p", [Task::new("misfit", &(1,)).unwrap()]).await;
    let worker = Working::start(
        bed.worker()
            .concurrency(1)
            .hooks(log.clone())
            .register("well", async |_: Context, (): ()| Ok::<_, BoxError>(()))
            .register("misfit", async |_: Context, (): ()| Ok::<_, BoxError>(()))
            .register_with("badly", soon().max_retries(1), |_: Context, (): ()| async { Err::<(), _>("down") }),
    );
    bed.drained().await;
    let summary = worker.stop().await;
    assert_eq!((summary.succeeded, summary.retried, summary.failed), (1, 1, 2));
    let mut told = log.0.lock().unwrap().clone();
    told.sort();
    let misfit = "misfit failed: arguments do not fit the handler: the handler takes no arguments, not 1 positional";
    let expected = [
        "badly failed: down (given up after 1 retries)",
        "badly retried in 1ms: down",
        "badly started",
        "badly started",
        misfit,
        "well started",
        "well succeeded",
    ];
    assert_eq!(told, expected);
}
