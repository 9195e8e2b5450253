//! A worker and a producer for `make chaos` (see `chaos/` beside this crate): they do what a user's would, and write down
//! what they see, in files that no fault touches. All settings come from the environment.

mod hand;
mod ledger;
mod mutant;
mod produce;
mod settings;
mod stopping;
mod watched;
mod work;

use std::error::Error;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    match std::env::args().nth(1).as_deref() {
        Some("work") => work::run().await,
        Some("hand") => hand::run().await,
        Some("produce") => produce::run().await,
        other => Err(format!("the first argument must be `work`, `hand` or `produce`, not {other:?}").into()),
    }
}
