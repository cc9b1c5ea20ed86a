//! hostler: a complete queue worker in one process.
//!
//! `hostler run` receives messages from a queue and runs a WASM handler on each message in a fresh sandbox. Meanwhile, hostler
//! extends the lease of the message. Afterwards, hostler settles the message.
//!
//! This crate contains the commands and the host. The host is the process that runs the consumers. All other parts are crates in
//! `crates/`. `ARCHITECTURE.md` lists them.

// `println!` and `eprintln!` panic if the reader has closed the stream. Therefore, commands print through `cli::output`, and
// hosts log through `tracing`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod cli;
pub mod exit;
pub mod host;
