//! What fuzzing does with an input. `fuzz/` makes a library of this file for its targets; here the inputs that are kept in
//! `fuzz/corpus` go through the same functions, without libFuzzer.
//!
//! They need no more than the crate shows to everybody.
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub, reason = "also the root of a library that may panic")]

mod hand;
mod payload;
#[cfg(test)]
mod replay;
mod replies;
mod worker;

pub use payload::payload;
pub use replies::replies;
pub use worker::worker;
