//! The `vtrr` command.

fn main() {}
