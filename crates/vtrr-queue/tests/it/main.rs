//! The integration tests: one binary, on real servers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod answers;
mod bounds;
mod busy;
mod clocked;
mod corners;
mod costs;
mod crash;
mod differential;
mod errors;
mod eviction;
mod examples;
mod fairness;
mod full;
mod fuzzed;
mod given_back;
mod hostile;
mod lost_replies;
mod outages;
mod pair;
mod proxy;
mod reference;
mod resp;
mod rights;
mod runners;
mod secrets;
mod server;
mod sweeping;
mod torn;
mod worker;
mod world;
