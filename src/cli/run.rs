//! Command `hostler run`.

use super::ConfigArg;
use crate::exit::Result;

/// Consume until SIGTERM or SIGINT
///
/// The first signal drains: the host takes no new messages, releases those that have not started, and gives running ones until
/// host.shutdown_grace. A second signal ends the process at once.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    config: ConfigArg,
}

pub(super) fn run(args: &Args) -> Result {
    crate::host::run(args.config.config.as_deref())
}
