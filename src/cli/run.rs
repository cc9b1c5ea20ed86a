//! Command `hostler run`.

use super::ConfigArg;
use crate::exit::{Exit, Failure, Result};

const HELP: &str = "\
Examples:
  hostler run
  hostler run --config config/hostler.toml

The first signal drains: the host takes no new messages, releases those that have not started, and gives running ones \
    until host.shutdown_grace. A second signal ends the process at once.";

/// Consume until SIGTERM or SIGINT
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// The parent process with which this one ends; `hostler dev` sets it
    #[arg(long, value_name = "PID", hide = true)]
    end_with: Option<i32>,
    #[command(flatten)]
    config: ConfigArg,
}

pub(super) fn run(args: &Args) -> Result {
    if let Some(parent) = args.end_with {
        crate::host::end_with(parent).map_err(|error| Failure::new(Exit::Internal, error))?;
    }
    crate::host::run(args.config.config.as_deref())
}
