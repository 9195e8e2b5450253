//! The order is fair, provably: the rules R1 to R11 of docs/protocol.md on the state in memory, the bounds they
//! promise, and the traps that fair queues fall into.
//!
//! `world` is a queue at simulated time, `books` knows the tasks but not the order, `oracle` is the rules in naive
//! data structures, `game` plays the lists of `ops` on all three.

mod books;
mod bound;
mod checks;
mod controls;
mod game;
mod modes;
mod names;
mod ops;
mod oracle;
mod returns;
mod rules;
mod traps;
mod whole;
mod world;

use proptest::prelude::ProptestConfig;

use ops::Kinds;

/// enqueue, dequeue, ack, extend.
const PLAIN: Kinds = Kinds { trouble: false, reshare: false, modes: false };
/// All but changes of the mode.
const EVERYTHING: Kinds = Kinds { trouble: true, reshare: true, modes: false };

/// So many random lists; `PROPTEST_CASES` says otherwise.
pub(crate) fn cases(n: u32) -> ProptestConfig {
    let config = ProptestConfig { max_shrink_iters: 50_000, ..ProptestConfig::default() };
    if std::env::var_os("PROPTEST_CASES").is_some() { config } else { ProptestConfig { cases: n, ..config } }
}
