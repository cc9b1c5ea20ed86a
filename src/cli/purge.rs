//! Command `hostler purge`.
//!
//! Receives and removes messages in batches, even on SQS. SQS's own PurgeQueue would need only one call, but has disadvantages.
//! PurgeQueue also removes messages in flight, and does not report the number of removed messages. PurgeQueue is limited to one
//! call in 60 s, and needs a separate permission. Other queue services have no such call.

use std::io::{self, IsTerminal as _};
use std::time::SystemTime;

use super::dlq::{dropped, ended_well, stop_on_signal};
use super::exchange::check_source;
use super::output::{confirm, counted};
use super::{ConfigArg, block_on, print};
use crate::exit::{Exit, Failure, Result};
use hostler_ops::requeue::{Ended, MoveRequest, Report};
use hostler_queue::{Admin, Depth};
use hostler_telemetry as telemetry;
use hostler_types::channel::Channel;

const HELP: &str = "\
Examples:
  hostler purge orders-dlq
  hostler purge orders-dlq --yes --json

Asks for confirmation on a terminal; elsewhere --yes is required. Receives and removes the messages that are visible \
    at the start. Delayed messages, those in flight and those sent meanwhile stay, and so do bodies in S3, until the \
    bucket's lifecycle rule removes them. Ctrl-C finishes the current batch and exits with 0. Exits with 1 if a message \
    could not be removed, or if the answer is no.";

/// Remove all messages of a queue for good
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// The channel whose messages to remove
    channel: Channel,
    /// Skip the confirmation; removed messages cannot be recovered
    #[arg(long)]
    yes: bool,
    /// Print the counts as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArg,
}

pub(super) fn run(args: &Args) -> Result {
    telemetry::show_warnings();
    let at = &args.channel;
    if !args.yes && !io::stdin().is_terminal() {
        let text = format!(
            "purge removes messages for good, and standard input is not a terminal on which to confirm that\n  \
             cure: `hostler peek {at}` shows what is there; then add --yes"
        );
        return Err(Failure::new(Exit::Usage, text));
    }
    let config = args.config.load()?.config;
    let purged = block_on(async {
        super::check_unscheduled(&config, at)?;
        let broker = super::connect_to_take(&config).await?;
        check_source(&*broker, &config, at, at).await?;
        if !args.yes && !confirmed(&*broker, at).await? {
            return Ok(None);
        }
        let stop = stop_on_signal()?;
        let began = SystemTime::now();
        let (to, conditions, max, rate) = (None, Vec::new(), None, None);
        let order = MoveRequest { from: at.clone(), to, conditions, max, rate, dry_run: false, began };
        dropped(&*broker, order, &stop).await.map(Some)
    })?;
    let Some((report, ended)) = purged else {
        return Err(Failure::new(Exit::Failed, format!("nothing was removed from {at}")));
    };
    let stopped = ended == Ended::Stopped;
    print(if args.json { counts(&report, stopped) } else { summary(&report, stopped, at) });
    ended_well(ended)?;
    Ok(if report.failed > 0 { Exit::Failed } else { Exit::Ok })
}

/// Shows the number of messages, and asks the user to confirm their removal.
async fn confirmed(broker: &dyn Admin, at: &Channel) -> Result<bool> {
    broker.open_stored(at).await?;
    let Depth { visible, delayed, in_flight, .. } =
        broker.depths(std::slice::from_ref(at)).await?.pop().unwrap_or_default();
    let count = |count: Option<u64>| count.map_or("an unknown number".to_owned(), |count| count.to_string());
    let question = format!(
        "{at} has {}, and {} delayed and {} in flight that stay. Remove {} for good?",
        counted(visible, "message"),
        count(delayed),
        count(in_flight),
        if visible == 1 { "it" } else { "them" }
    );
    confirm(&question).map_err(|error| Failure::new(Exit::Internal, format!("cannot read the answer: {error}")))
}

fn counts(report: &Report, stopped: bool) -> String {
    let Report { moved, failed, not_looked_at, .. } = report;
    serde_json::json!({ "removed": moved, "failed": failed, "not_looked_at": not_looked_at, "stopped": stopped })
        .to_string()
}

fn summary(report: &Report, stopped: bool, at: &Channel) -> String {
    let Report { moved, failed, not_looked_at, .. } = *report;
    let mut text = if stopped { "stopped: ".to_owned() } else { String::new() };
    text += &format!("{} removed from {at}", counted(moved, "message"));
    if failed > 0 {
        text += &format!(", {failed} failed");
    }
    if not_looked_at > 0 {
        let why = if stopped { "" } else { " (delayed, or in flight)" };
        text += &format!(", {not_looked_at} not inspected{why}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_names_what_is_not_nothing() {
        let line = |report: Report, stopped| summary(&report, stopped, &"orders".parse().unwrap());
        let all = Report { moved: 2, failed: 4, not_looked_at: 5, ..Report::default() };
        assert_eq!(line(Report { moved: 1, ..Report::default() }, false), "1 message removed from orders");
        let whole = "2 messages removed from orders, 4 failed, 5 not inspected";
        assert_eq!(line(all, false), format!("{whole} (delayed, or in flight)"));
        assert_eq!(line(all, true), format!("stopped: {whole}"));
    }
}
