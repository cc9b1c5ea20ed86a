//! hostler: the whole container of a queue worker in one process.
//!
//! `hostler run` takes messages from a queue, runs a WASM handler on each in a fresh sandbox, keeps the message leased
//! while it works, and settles it. This crate has the commands and the host, the process that consumers live in; every other part is a
//! crate in `crates/`. `ARCHITECTURE.md` has the map.

// They panic where nobody reads: `cli::output` prints what commands say, and `tracing` what hosts do.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod cli;
pub mod exit;
pub mod host;
