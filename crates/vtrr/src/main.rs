//! The `vtrr` command: one verb, one file. A verb has an `Args` that clap reads and a `run` that does it.
//!
//! Modules: `demo` shows what fairness is; `server` is the server that verbs work on. Built for fuzzing, it reads command lines
//! only (`fuzzed`).
#![allow(clippy::print_stderr, reason = "a command says on stderr why it failed")]
#![cfg_attr(fuzzing, no_main)]

mod demo;
#[cfg(all(unix, any(test, fuzzing)))]
mod fuzzed;
mod server;

use std::io;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A fair task queue from the command line.
#[derive(Debug, Parser)]
#[command(name = "vtrr", version, about, subcommand_required = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

/// What it can do.
#[derive(Debug, Subcommand)]
enum Verb {
    /// Watch a fair queue beside an unfair one: three users, two workers, no server needed
    Demo(demo::Args),
}

/// Any error: its text is shown, and the exit code is 1.
type Failure = Box<dyn std::error::Error + Send + Sync>;

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzzed::words(input));

#[cfg_attr(fuzzing, allow(dead_code, reason = "the fuzzer has its own"))]
#[tokio::main]
async fn main() -> ExitCode {
    let done = match Cli::parse().verb {
        Verb::Demo(args) => demo::run(args).await,
    };
    done.unwrap_or_else(|failure| {
        // Whoever reads our output has seen enough.
        if failure.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
            return ExitCode::SUCCESS;
        }
        eprintln!("vtrr: {failure}");
        ExitCode::FAILURE
    })
}
