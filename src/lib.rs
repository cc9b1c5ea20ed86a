//! hostler: a complete queue worker in one process.
//!
//! `hostler run` takes messages from a queue, runs a WASM handler on each in a fresh sandbox, keeps the message leased meanwhile,
//! and settles it. This crate contains the commands and the host, which is the process that runs the consumers. Every other part
//! is a crate in `crates/`; `ARCHITECTURE.md` has the map.

// Both macros panic when the reader is gone: commands print through `cli::output`, and hosts log through `tracing`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod cli;
pub mod exit;
pub mod host;
