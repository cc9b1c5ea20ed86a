//! `hostler run`.

use super::ConfigArg;
use crate::exit::Result;

/// Consume until SIGTERM or SIGINT
///
/// The first signal drains: nothing more is taken, what has not started goes back at once, and what runs has until
/// host.shutdown_grace. A second signal ends the process at once.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    config: ConfigArg,
}

pub(super) fn run(args: &Args) -> Result {
    crate::host::run(args.config.config.as_deref())
}
