//! Command `hostler retry`.

use super::ConfigArg;
use crate::exit::Result;

const HELP: &str = "\
Examples:
  hostler retry
  hostler retry --config retry.toml

Producers send a message for `webhooks.a` to `retry.webhooks.a`, and get its id once it is stored. The first signal \
    drains, a second one ends the process at once.";

/// Redeliver messages of NATS until they are acknowledged
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    #[command(flatten)]
    config: ConfigArg,
}

pub(super) fn run(args: &Args) -> Result {
    crate::host::retry(args.config.config.as_deref())
}
