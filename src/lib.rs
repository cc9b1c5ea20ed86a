//! hostler: the whole container of a queue worker in one process.
//!
//! `hostler run` takes messages from a queue, runs a WASM handler on each in a fresh sandbox, keeps the message leased
//! while it works, and settles it. `ARCHITECTURE.md` has the map; in short, arrows run one way:
//!
//! ```text
//! cli → host → consumer → handler, queue, channel → message        leaves: cause, children, digest, duration, exit, health,
//!                                                                          printable
//! ```

// They panic where nobody reads: `cli::output` prints what commands say, and `tracing` what hosts do.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod cli;
pub mod exit;
pub mod host;

/// The queue contract and its drivers.
pub mod queue {
    pub use hostler_queue::*;
    #[cfg(feature = "embedded")]
    pub use hostler_queue_embedded as embedded;
    #[cfg(feature = "sqs")]
    pub use hostler_queue_sqs as sqs;
    pub use hostler_queue_telemetry::*;
}

pub use hostler_types::{channel, digest, message};
pub use {hostler_config as config, hostler_health as health, hostler_telemetry as telemetry};

/// Handlers.
pub mod handler {
    pub use hostler_handler::*;
    pub use hostler_wasm::*;
}

pub use {hostler_consumer as consumer, hostler_ops as upkeep};
