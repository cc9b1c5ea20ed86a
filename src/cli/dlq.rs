//! Command `hostler dlq`: lists, shows and drops dead letters.

use std::time::SystemTime;

use tokio_util::sync::CancellationToken;

use super::dead_letter::{self, DeadLetter};
use super::exchange::check_source;
use super::output::{counted, pretty_json};
use super::picked::Picked;
use super::{ConfigArg, block_on, print, say};
use crate::exit::{Exit, Failure, Result};
use crate::host;
use hostler_ops::requeue::{self, Ended, MAX_HELD, MoveRequest, Note, Report};
use hostler_ops::{Look, Looked, look};
use hostler_queue::Admin;
use hostler_telemetry as telemetry;
use hostler_types::channel::Channel;
use hostler_types::message::Message;

const HELP: &str = "\
Examples:
  hostler dlq ls orders
  hostler dlq show orders 0197a4f2-9c1e-7b3d-8f65-2f1f6d3c0a11

Reads the dead-letter queue of the channel: orders and orders-dlq mean the same. `hostler requeue` moves dead letters \
    back.";

/// List, show or drop dead letters
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Ls(LsArgs),
    Show(ShowArgs),
    Drop(DropArgs),
}

const LS_HELP: &str = "\
Examples:
  hostler dlq ls orders
  hostler dlq ls orders --filter \"reason~timed out\" --max 500 --json

Consumes nothing. The embedded queue is only read. SQS and RabbitMQ show a message only to a receiver: each is \
    received and released at the end, and hidden from others meanwhile. On SQS, this counts as a receive, and on RabbitMQ \
    before 4.3 as a delivery. An ordered queue shows the first ten (SQS) or the first (RabbitMQ) of each group. Exits with \
    1 if a message that could not be inspected may match --id or --filter.";

/// List dead letters with their reasons, sources and attempts
#[derive(Debug, clap::Args)]
#[command(after_help = LS_HELP)]
struct LsArgs {
    /// The channel whose dead letters to list
    channel: Channel,
    /// List at most N messages
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = super::source::count)]
    max: u64,
    #[command(flatten)]
    picked: Picked,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArg,
}

const SHOW_HELP: &str = "\
Examples:
  hostler dlq show orders 0197a4f2-9c1e-7b3d-8f65-2f1f6d3c0a11
  hostler dlq show orders 0197a4f2-9c1e-7b3d-8f65-2f1f6d3c0a11 --body

Inspects the queue as `dlq ls` does.";

/// Show all details of one dead letter
#[derive(Debug, clap::Args)]
#[command(after_help = SHOW_HELP)]
struct ShowArgs {
    /// The channel whose dead letter to show
    channel: Channel,
    /// Its current or original id
    id: String,
    /// Show the body as well
    #[arg(long)]
    body: bool,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArg,
}

const DROP_HELP: &str = "\
Examples:
  hostler dlq drop orders --filter older:7d --dry-run
  hostler dlq drop orders --filter older:7d --yes

Requires --id or --filter, and --yes or --dry-run. Ctrl-C finishes the current batch and exits with 0. Exits with 1 if \
    a message to drop remains, or was not found.";

/// Remove dead letters for good
#[derive(Debug, clap::Args)]
#[command(after_help = DROP_HELP)]
struct DropArgs {
    /// The channel whose dead letters to drop
    channel: Channel,
    #[command(flatten)]
    picked: Picked,
    /// Drop at most N messages
    #[arg(long, value_name = "N", value_parser = super::source::count)]
    max: Option<u64>,
    /// Confirm: dropped messages cannot be recovered
    #[arg(long)]
    yes: bool,
    /// List the messages that would be dropped, and drop none
    #[arg(long)]
    dry_run: bool,
    /// Print the counts as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArg,
}

pub(super) fn run(args: &Args) -> Result {
    telemetry::show_warnings();
    match &args.command {
        Command::Ls(args) => list(args),
        Command::Show(args) => show(args),
        Command::Drop(args) => remove(args),
    }
}

/// Returns the dead-letter queue of a channel. If the channel already is a dead-letter queue, returns the channel unchanged.
pub(super) fn dead_letters(channel: &Channel) -> Result<Channel> {
    match channel.of_dead_letters() {
        Some(_) => Ok(channel.clone()),
        None => channel.dead_letter_queue().parse().map_err(|error| Failure::new(Exit::Usage, error)),
    }
}

fn list(args: &LsArgs) -> Result {
    let at = dead_letters(&args.channel)?;
    let wanted = Look { at: at.clone(), conditions: args.picked.conditions(), max: args.max, began: SystemTime::now() };
    let (found, looked, service) = find(&args.config, &args.channel, wanted, false)?;
    match args.json {
        true => print(pretty_json(&found)?),
        false if found.is_empty() => print(format_args!("no dead letters in {at}")),
        false => print(dead_letter::table(&found)),
    }
    args.picked.looked(found.len() as u64, args.max, &looked, &at, service)
}

fn show(args: &ShowArgs) -> Result {
    let at = dead_letters(&args.channel)?;
    let picked = Picked::of_id(&args.id);
    let wanted = Look { at: at.clone(), conditions: picked.conditions(), max: 1, began: SystemTime::now() };
    let (mut found, looked, service) = find(&args.config, &args.channel, wanted, true)?;
    let found = found.pop().ok_or_else(|| {
        if let Some(failure) = picked.unseen(0, &looked, &at, service) {
            return failure;
        }
        let text = format!("{at} shows no message {}: `hostler dlq ls {}` lists what it shows", args.id, args.channel);
        Failure::new(Exit::Failed, text)
    })?;
    let found = if args.body { found } else { found.without_body() };
    if args.json {
        print(pretty_json(&found)?)
    } else {
        print(found.page())
    }
    Ok(Exit::Ok)
}

/// Returns the matching dead letters, a report on messages that could not be inspected, and the name of the queue service.
/// `channel` is the channel that the user named. If `whole` is set, each dead letter includes its attributes and body.
fn find(
    config: &ConfigArg,
    channel: &Channel,
    wanted: Look,
    whole: bool,
) -> Result<(Vec<DeadLetter>, Looked, &'static str)> {
    let config = config.load()?.config;
    let stop = stop_on_signal()?;
    let now = wanted.began;
    let show = |message: &Message| {
        let letter = DeadLetter::of(message, now);
        if whole { letter.in_whole(message) } else { letter }
    };
    block_on(async {
        let broker = super::connect_to_look(&config).await?;
        check_source(&*broker, &config, channel, &wanted.at).await?;
        let (found, looked) = found(&*broker, wanted, &stop, show).await?;
        Ok((found, looked, host::driver(&config).title()))
    })
}

/// Returns the matching messages, each converted by `show`, and a report on messages that could not be inspected.
pub(super) async fn found<T: Send>(
    broker: &dyn Admin,
    wanted: Look,
    stop: &CancellationToken,
    mut show: impl FnMut(&Message) -> T + Send,
) -> Result<(Vec<T>, Looked)> {
    let mut found = Vec::new();
    let mut each = |message: &Message| found.push(show(message));
    let looked = look(broker, wanted, stop, &mut each).await?;
    ended_well(looked.ended.clone()).map(|()| (found, looked))
}

fn remove(args: &DropArgs) -> Result {
    let from = dead_letters(&args.channel)?;
    let usage = |text: &str| Failure::new(Exit::Usage, text);
    if args.picked.is_all() {
        return Err(usage("no messages are selected: name them by --id or --filter (--filter older:0s selects all)"));
    }
    if args.dry_run {
        return rehearse(args, &from);
    }
    if !args.yes {
        return Err(usage("dropped messages cannot be recovered: list them with --dry-run, then confirm with --yes"));
    }
    let (conditions, max) = (args.picked.conditions(), args.max);
    let began = SystemTime::now();
    let order = MoveRequest { from: from.clone(), to: None, conditions, max, rate: None, dry_run: false, began };
    let config = args.config.load()?.config;
    let stop = stop_on_signal()?;
    let (report, ended) = block_on(async {
        let broker = super::connect(&config).await?;
        check_source(&*broker, &config, &args.channel, &order.from).await?;
        dropped(&*broker, order, &stop).await
    })?;
    print(if args.json {
        counts(&report, ended == Ended::Stopped)
    } else {
        summary(&report, ended == Ended::Stopped, &from)
    });
    let stopped = ended == Ended::Stopped;
    ended_well(ended)?;
    if report.failed > 0 {
        return Ok(Exit::Failed);
    }
    // Messages beyond the maximum were not inspected.
    let all = !stopped && args.max.is_none_or(|max| report.moved < max);
    let unmet = all.then(|| args.picked.unmet(report.moved, report.not_looked_at, &from)).flatten();
    unmet.map_or(Ok(Exit::Ok), Err)
}

/// Shows the messages that would be dropped.
fn rehearse(args: &DropArgs, from: &Channel) -> Result {
    let (conditions, max) = (args.picked.conditions(), args.max.unwrap_or(u64::MAX));
    let wanted = Look { at: from.clone(), conditions, max, began: SystemTime::now() };
    let (config, stop, began) = (args.config.load()?.config, stop_on_signal()?, wanted.began);
    let mut found = Vec::new();
    let mut each = |message: &Message| found.push(DeadLetter::of(message, began));
    let (ended, unseen) = block_on(async {
        let broker = super::connect_to_look(&config).await?;
        check_source(&*broker, &config, &args.channel, from).await?;
        Ok(requeue::rehearse(&*broker, wanted, &stop, &mut each).await?)
    })?;
    ended_well(ended)?;
    let count = found.len();
    if args.json {
        print(serde_json::json!({ "dry_run": true, "dropped": count }));
    } else {
        if count > 0 {
            print(dead_letter::table(&found));
        }
        print(format_args!("{} would be dropped from {from}", counted(count as u64, "message")));
    }
    let all = args.max.is_none_or(|max| (count as u64) < max);
    let unmet = all.then(|| args.picked.unmet(count as u64, unseen, from)).flatten();
    unmet.map_or(Ok(Exit::Ok), Err)
}

/// Drops the matching messages. The report counts a matching message as failed if it could not be removed.
pub(super) async fn dropped(
    broker: &dyn Admin,
    order: MoveRequest,
    stop: &CancellationToken,
) -> Result<(Report, Ended)> {
    let mut tell = |note: Note<'_>| {
        if let Note::Failed { id, reason } = note {
            say(format_args!("hostler: message {id} stays: {reason}"));
        }
    };
    let (report, ended) = requeue::run(broker, order, stop, &mut tell).await?;
    let Report { moved, failed, doubled, .. } = report;
    Ok((Report { moved: moved.saturating_sub(doubled), failed: failed + doubled, doubled: 0, ..report }, ended))
}

fn counts(report: &Report, stopped: bool) -> String {
    let Report { moved, left, failed, not_looked_at, .. } = report;
    serde_json::json!({
        "dropped": moved, "left": left, "failed": failed, "not_looked_at": not_looked_at, "stopped": stopped,
    })
    .to_string()
}

fn summary(report: &Report, stopped: bool, from: &Channel) -> String {
    let Report { moved, left, failed, not_looked_at, .. } = report;
    let more = [(left, "left (did not match)"), (failed, "failed"), (not_looked_at, "not inspected")];
    let mut text = if stopped { "stopped: ".to_owned() } else { String::new() };
    text += &format!("{} dropped from {from}", counted(*moved, "message"));
    for (count, what) in more.into_iter().filter(|(count, _)| **count > 0) {
        text += &format!(", {count} {what}");
    }
    text
}

pub(super) fn ended_well(ended: Ended) -> Result<()> {
    match ended {
        Ended::Done | Ended::Stopped => Ok(()),
        Ended::Broken(error) => Err(error.into()),
        Ended::Full => Err(Failure::new(
            Exit::Failed,
            format!(
                "hold limit of {MAX_HELD} messages reached; the remaining messages stay in the queue: select fewer by --max \
                 or --filter"
            ),
        )),
    }
}

pub(super) fn stop_on_signal() -> Result<CancellationToken> {
    host::stop_on_signal().map_err(|error| Failure::new(Exit::Internal, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_and_its_dead_letter_queue_name_the_same() {
        for name in ["orders", "orders-dlq", "shop.orders"] {
            let at = dead_letters(&name.parse().unwrap()).unwrap();
            assert_eq!(at.to_string(), "orders-dlq", "{name}");
        }
    }

    #[test]
    fn the_last_line_names_what_is_not_nothing() {
        let line = |report: Report, stopped| summary(&report, stopped, &"orders-dlq".parse().unwrap());
        let all = Report { moved: 2, left: 3, failed: 4, not_looked_at: 5, doubled: 0 };
        assert_eq!(line(Report { moved: 1, ..Report::default() }, false), "1 message dropped from orders-dlq");
        let whole = "stopped: 2 messages dropped from orders-dlq, 3 left (did not match), 4 failed, 5 not inspected";
        assert_eq!(line(all, true), whole);
    }
}
