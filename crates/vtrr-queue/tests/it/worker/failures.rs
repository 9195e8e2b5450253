//! Errors as Rust services return them, and which of them are retried.

use std::io;
use std::time::Duration;

use anyhow::Context as _;
use vtrr_queue::worker::{BoxError, HandlerError, Options};
use vtrr_queue::{Context, Retry, Runner, Task};

use super::bed::{Bed, Working};

fn down() -> io::Error {
    io::Error::from(io::ErrorKind::ConnectionReset)
}

/// An enum as `thiserror` makes it.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error("io")]
    Source(#[source] io::Error),
    #[error(transparent)]
    Transparent(#[from] io::Error),
    #[error(transparent)]
    Outer(#[from] Inner),
    #[error(transparent)]
    Asked(#[from] Retry),
    #[error("asked")]
    Wrapped(#[source] Retry),
}

#[derive(Debug, thiserror::Error)]
#[error("inner")]
struct Inner(#[source] io::Error);

/// Runs a task whose handler fails once so, and then does not; answers how it ended.
async fn run<E, Kind>(runner: impl Runner + Clone + 'static, options: Options, fails: fn() -> E) -> String
where
    E: HandlerError<Kind> + Sync,
    Kind: 'static,
{
    let bed = Bed::new(runner);
    let handler = move |context: Context, (): ()| {
        let ended = if context.retries() == 0 { Err(fails()) } else { Ok(()) };
        async move { ended }
    };
    let options = options.retry_countdown(Duration::ZERO).default_retry_delay(Duration::ZERO);
    let worker = Working::start(bed.worker().register_with("t", options, handler));
    bed.enqueue("p", [Task::new("t", &()).unwrap()]).await;
    bed.drained().await;
    let summary = worker.stop().await;
    match (summary.retried, summary.succeeded, summary.failed) {
        (1, 1, 0) => "retried".to_owned(),
        (0, 0, 1) => format!("dead: {}", bed.dead_letters(1).await[0].error),
        _ => format!("{summary:?}"),
    }
}

pub(super) async fn an_error_is_retried_however_it_comes(runner: impl Runner + Clone + 'static) {
    let io = || Options::new().autoretry_for::<io::Error>();
    let run_all = async {
        [
            run(runner.clone(), io(), down).await,
            run(runner.clone(), io(), || BoxError::from(down())).await,
            run(runner.clone(), io(), || anyhow::Error::from(down())).await,
            run(runner.clone(), io(), || Err::<(), _>(down()).context("reading").unwrap_err()).await,
            run(runner.clone(), io(), || Failed::Source(down())).await,
            run(runner.clone(), io(), || Failed::Outer(Inner(down()))).await,
            run(runner.clone(), io(), || anyhow::Error::from(Failed::Source(down()))).await,
            run(runner.clone(), io(), || BoxError::from(Inner(down()))).await,
            run(runner.clone(), Options::new().autoretry_for::<Failed>(), || Failed::from(down())).await,
            run(runner.clone(), Options::new().autoretry_for::<Inner>(), || anyhow::Error::from(Inner(down()))).await,
        ]
    };
    assert_eq!(run_all.await, ["retried"; 10]);
    // And no other.
    let other = || Options::new().autoretry_for::<std::fmt::Error>();
    assert_eq!(run(runner.clone(), other(), || anyhow::Error::from(down())).await, "dead: connection reset");
    assert_eq!(run(runner.clone(), io(), || anyhow::anyhow!("no")).await, "dead: no");
    assert_eq!(run(runner.clone(), io(), || "no").await, "dead: no");
    assert_eq!(run(runner, io(), || format!("no {}", 5)).await, "dead: no 5");
}

/// What a transparent variant holds nobody can see but who knows the type.
pub(super) async fn an_error_is_picked_by_the_handlers_own_type(runner: impl Runner + Clone + 'static) {
    let transparent = || Options::new().autoretry_when(|failed: &Failed| matches!(failed, Failed::Transparent(_)));
    let run_all = async {
        [
            run(runner.clone(), transparent(), || Failed::from(down())).await,
            run(runner.clone(), Options::new().autoretry_when(|error: &anyhow::Error| error.is::<io::Error>()), || {
                anyhow::Error::from(down())
            })
            .await,
            run(runner.clone(), Options::new().autoretry_when(|text: &&str| text.contains("later")), || "come later").await,
            run(runner.clone(), Options::new().autoretry_when(|error: &BoxError| error.is::<io::Error>()), || {
                BoxError::from(down())
            })
            .await,
        ]
    };
    assert_eq!(run_all.await, ["retried"; 4]);
    assert_eq!(run(runner, transparent(), || Failed::Source(down())).await, "dead: io: connection reset");
}

pub(super) async fn a_retry_is_heard_however_it_comes(runner: impl Runner + Clone + 'static) {
    let none = Options::new;
    let run_all = async {
        [
            run(runner.clone(), none(), Retry::later).await,
            run(runner.clone(), none(), || BoxError::from(Retry::later())).await,
            run(runner.clone(), none(), || anyhow::Error::from(Retry::later())).await,
            run(runner.clone(), none(), || Err::<(), _>(Retry::later()).context("reading").unwrap_err()).await,
            run(runner.clone(), none(), || Failed::from(Retry::later())).await,
            run(runner.clone(), none(), || Failed::Wrapped(Retry::later())).await,
            run(runner.clone(), none(), || anyhow::Error::from(Failed::from(Retry::later()))).await,
        ]
    };
    assert_eq!(run_all.await, ["retried"; 7]);
}

#[test]
fn options_that_ask_about_another_type_than_the_handlers_are_refused() {
    async fn fails(_: Context, (): ()) -> Result<(), Failed> {
        Err(down().into())
    }
    let bed = Bed::new(std::sync::Arc::new(vtrr_queue::Memory::new()));
    let options = Options::new().autoretry_when(|error: &io::Error| error.kind() == io::ErrorKind::ConnectionReset);
    let error = bed.worker().register_with("t", options, fails).build().unwrap_err().to_string();
    for words in ["`autoretry_when`", "std::io::error::Error`", "Failed`, which the handler of \"t\" fails with"] {
        assert!(error.contains(words), "{error}");
    }
}
