//! Commands `hostler pause` and `hostler resume`.

use std::path::PathBuf;

use super::{ConfigArg, print};
use crate::exit::{Exit, Failure, Result};
use hostler_config as config;
use hostler_health::{self as health, Pauses};

/// Text at the end of the help of `pause`.
pub(super) const PAUSE_HELP: &str = "\
Examples:
  hostler pause thumbnails
  hostler pause --all

The host notices within 2 seconds. A file beside the health file records the pause, so it outlasts restarts of the \
    host in this container, until `resume`.";

/// Text at the end of the help of `resume`.
pub(super) const RESUME_HELP: &str = "\
Examples:
  hostler resume thumbnails
  hostler resume --all";

// Arguments of `pause` and `resume`. The enum `Command` contains the help texts of both commands.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The consumers, by their names in the config
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    consumers: Vec<String>,
    /// All consumers of the host
    #[arg(long)]
    all: bool,
    /// The host's health file [default: host.health_file]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    config: ConfigArg,
}

/// Runs `hostler pause`.
pub(super) fn pause(args: &Args) -> Result {
    for (consumer, changed) in change(args, Pauses::add)? {
        print(format_args!("{consumer}: {}", if changed { "pauses" } else { "is already paused" }));
    }
    Ok(Exit::Ok)
}

/// Runs `hostler resume`.
pub(super) fn resume(args: &Args) -> Result {
    for (consumer, changed) in change(args, Pauses::remove)? {
        print(format_args!("{consumer}: {}", if changed { "goes on" } else { "is not paused" }));
    }
    Ok(Exit::Ok)
}

/// Calls `make` to pause or resume each consumer that the arguments select. Returns the names of these consumers, each with a
/// flag that is true if `make` has paused or resumed the consumer.
fn change(
    args: &Args,
    make: impl Fn(&Pauses, &str) -> std::result::Result<bool, health::FolderError>,
) -> Result<Vec<(String, bool)>> {
    let file = args.file.clone();
    let file = file.unwrap_or_else(|| config::health_file(args.config.config.as_deref(), std::env::vars_os()));
    let pauses = Pauses::beside(&file);
    let known = match health::read(&file) {
        Ok(report) => {
            super::warn_of_variables();
            report.consumers.into_iter().map(|consumer| consumer.name).collect()
        }
        // The health file cannot be read, for example because no host has run here yet. The next host then reads the change
        // when it starts.
        Err(_) => args.config.load()?.config.consumers.into_iter().map(|consumer| consumer.name).collect::<Vec<_>>(),
    };
    if let Some(unknown) = args.consumers.iter().find(|name| !known.contains(name)) {
        let meant = config::alike(unknown, known.iter().map(String::as_str));
        let meant = meant.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default();
        let text = format!("there is no consumer `{unknown}`{meant}\n  known consumers: {}", known.join(", "));
        return Err(Failure::new(Exit::Usage, text));
    }
    let meant = if args.all { known } else { args.consumers.clone() };
    let changed = meant.into_iter().map(|consumer| {
        let changed = make(&pauses, &consumer).map_err(|error| Failure::new(Exit::Failed, error))?;
        Ok((consumer, changed))
    });
    changed.collect()
}
