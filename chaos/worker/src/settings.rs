//! What the environment says.

use std::env;
use std::str::FromStr;
use std::time::Duration;

use vtrr_queue::worker::BoxError;
use vtrr_queue::{Queue, Redis};

use crate::mutant::Mutant;

pub(crate) fn text(name: &str) -> Result<String, BoxError> {
    env::var(name).map_err(|error| format!("{name}: {error}").into())
}

pub(crate) fn number<T: FromStr>(name: &str) -> Result<T, BoxError> {
    let text = text(name)?;
    text.parse().map_err(|_| format!("{name} must be a number, not {text:?}").into())
}

pub(crate) fn milliseconds(name: &str) -> Result<Duration, BoxError> {
    number(name).map(Duration::from_millis)
}

pub(crate) fn queue() -> Result<Queue, BoxError> {
    Ok(Queue::new(text("CHAOS_QUEUE")?)?)
}

/// How this build is wrong on purpose, if it is.
pub(crate) fn mutant() -> Result<Option<Mutant>, BoxError> {
    env::var("CHAOS_MUTANT").ok().map(|name| Mutant::parse(&name)).transpose()
}

/// `redis://…`, `sentinel:MASTER:URL,URL` or `cluster:URL,URL`.
pub(crate) fn store() -> Result<Redis, BoxError> {
    let store = text("CHAOS_STORE")?;
    Ok(if let Some(urls) = store.strip_prefix("cluster:") {
        Redis::cluster(urls.split(','))?
    } else if let Some(rest) = store.strip_prefix("sentinel:") {
        let (master, urls) = rest.split_once(':').ok_or("CHAOS_STORE must be sentinel:MASTER:URL,URL")?;
        Redis::sentinel(urls.split(','), master)?
    } else {
        Redis::connect(&store)?
    })
}
