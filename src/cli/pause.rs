//! Commands `hostler pause` and `hostler resume`.

use std::path::{Path, PathBuf};

use super::{ConfigArg, print};
use crate::exit::{Exit, Failure, Result};
use hostler_config as config;
use hostler_health::{self as health, FolderError, Pauses, Presence};

/// Text at the end of the help of `pause`.
pub(super) const PAUSE_HELP: &str = "\
Examples:
  hostler pause thumbnails
  hostler pause --all

The host notices within 2 seconds; if none is running, the next one starts paused. A file beside the health file \
    records the pause, so it outlasts restarts of the host in this container, until `resume`.";

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

/// Change of a consumer's state that a command requests.
#[derive(Debug, Clone, Copy)]
enum PauseChange {
    Pause,
    Resume,
}

/// Runs `hostler pause`.
pub(super) fn pause(args: &Args) -> Result {
    run(args, PauseChange::Pause)
}

/// Runs `hostler resume`.
pub(super) fn resume(args: &Args) -> Result {
    run(args, PauseChange::Resume)
}

/// Pauses or resumes each consumer that the arguments select.
fn run(args: &Args, change: PauseChange) -> Result {
    let file = args.file.clone();
    let file = file.unwrap_or_else(|| config::health_file(args.config.config.as_deref(), std::env::vars_os()));
    let pauses = Pauses::beside(&file);
    let report = health::read_in_turn(&file);
    let host = health::presence(report.as_ref());
    let known = match report {
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
    for consumer in meant {
        let changed = change.make(&pauses, &consumer).map_err(|error| Failure::new(Exit::Failed, error))?;
        print(format_args!("{consumer}: {}", change.effect(changed, &host, &file)));
    }
    Ok(Exit::Ok)
}

impl PauseChange {
    /// Pauses or resumes a consumer. Returns `false` if the consumer was already in the requested state.
    fn make(self, pauses: &Pauses, consumer: &str) -> std::result::Result<bool, FolderError> {
        match self {
            Self::Pause => pauses.add(consumer),
            Self::Resume => pauses.remove(consumer),
        }
    }

    /// Returns a text that tells the user how the consumer reacts. `changed` is the result of [`Self::make`].
    fn effect(self, changed: bool, host: &Presence, file: &Path) -> String {
        let text = match (self, host) {
            (Self::Pause, Presence::Absent) => "starts paused",
            (Self::Pause, _) if !changed => "is already paused",
            (Self::Resume, _) if !changed => "is not paused",
            (Self::Resume, Presence::Absent) => "no longer starts paused",
            (Self::Pause, Presence::Running) => "pauses",
            (Self::Resume, Presence::Running) => "goes on",
            (Self::Pause, Presence::Silent(_)) => "pauses as soon as the host notices",
            (Self::Resume, Presence::Silent(_)) => "goes on as soon as the host notices",
        };
        match host {
            Presence::Running => text.to_owned(),
            Presence::Silent(reason) => format!("{text}; {reason}"),
            Presence::Absent => format!("{text}; no host is running at `{}`", file.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_effect_depends_on_the_host() {
        let effects = |host: &Presence| {
            let effect = |change: PauseChange, changed| change.effect(changed, host, Path::new("/h"));
            [
                (PauseChange::Pause, true),
                (PauseChange::Pause, false),
                (PauseChange::Resume, true),
                (PauseChange::Resume, false),
            ]
            .map(|(change, changed)| effect(change, changed))
        };
        assert_eq!(effects(&Presence::Running), ["pauses", "is already paused", "goes on", "is not paused"]);
        let absent = ["starts paused", "starts paused", "no longer starts paused", "is not paused"];
        assert_eq!(effects(&Presence::Absent), absent.map(|text| format!("{text}; no host is running at `/h`")));
        let silent = Presence::Silent(health::Reason::Stale { age: Duration::from_secs(12) });
        assert_eq!(
            effects(&silent)[0],
            "pauses as soon as the host notices; the host has written nothing for 12s; it should write every 2s"
        );
    }
}
