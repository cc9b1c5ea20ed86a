//! Command `hostler requeue`.

use std::time::{Duration, SystemTime};

use indicatif::ProgressBar;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::dead_letter::MAX_LISTED;
use super::dlq::dead_letters;
use super::exchange::check_exchange;
use super::output::counted;
use super::picked::Picked;
use super::progress::progress;
use super::{ConfigArg, block_on, print, say};
use crate::exit::{Exit, Failure, Result};
use crate::host;
use hostler_config::Config;
use hostler_ops::requeue::{self, Ended, MAX_HELD, MoveRequest, Note, Report};
use hostler_queue::{Admin, Provisioner, REASON_ATTRIBUTE, Redriven};
use hostler_telemetry as telemetry;
use hostler_types::Rate;
use hostler_types::channel::Channel;
use hostler_types::message::{AttributeValue, Message};
use hostler_types::printable::{on_one_line, shortened};

const HELP: &str = "\
Examples:
  hostler requeue --from orders-dlq --dry-run
  hostler requeue --from orders-dlq --filter \"reason~no customer\" --rate 50
  hostler requeue --from orders-dlq --to orders-slow --max 100

A message keeps its body and attributes; its id becomes the attribute hostler-original-id if there is room. It is sent \
    before it is removed, so none is lost. A dry run on SQS and RabbitMQ receives the messages and gives them back, which \
    counts as an attempt (on RabbitMQ before 4.3, from the fourth delivery on), and sees only the first of each group of an \
    ordered queue. Ctrl-C finishes the current batch and exits with 0; a second one ends at once. Exits with 1 if a message did not move.";

/// Move dead letters or other messages to another queue
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// The queue to empty; without --to, `orders` also means `orders-dlq`
    #[arg(long, value_name = "QUEUE")]
    from: Channel,
    /// The queue to fill [default: the one that the dead letters came from]
    #[arg(long, value_name = "CHANNEL")]
    to: Option<Channel>,
    /// Move at most N messages
    #[arg(long, value_name = "N", value_parser = super::source::count)]
    max: Option<u64>,
    #[command(flatten)]
    picked: Picked,
    /// Move at most N messages per second
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: Option<u32>,
    /// Print the messages that would move, and move none
    #[arg(long)]
    dry_run: bool,
    /// Let SQS move all messages: faster, without hostler-original-id
    #[arg(long, conflicts_with_all = ["filter", "id", "max", "dry_run"])]
    native: bool,
    /// Print the counts as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArg,
}

/// Counts, as `--json` prints them.
#[derive(Serialize)]
struct Counts {
    moved: u64,
    left: u64,
    failed: u64,
    doubled: u64,
    not_looked_at: u64,
    stopped: bool,
    dry_run: bool,
}

pub(super) fn run(args: &Args) -> Result {
    telemetry::show_warnings();
    let (from, to) = ends(args)?;
    let config = args.config.load()?.config;
    let stop = host::stop_on_signal().map_err(|error| Failure::new(Exit::Internal, error))?;
    block_on(async {
        super::check_unscheduled(&config, &from)?;
        let broker = connect(args, &config, &to).await?;
        if args.native {
            redrive(args, &*broker, (&from, &to), &stop).await
        } else {
            requeue(args, &*broker, (from, to), &stop).await
        }
    })
}

/// Returns the source and the target. Without `--to`, the source is the channel's dead-letter queue, and the target is the
/// channel itself. In that case, `--from` may name either the channel or its dead-letter queue.
fn ends(args: &Args) -> std::result::Result<(Channel, Channel), Failure> {
    let (from, to) = match &args.to {
        Some(to) => (args.from.clone(), to.clone()),
        None => {
            let from = dead_letters(&args.from)?;
            let to = args.from.of_dead_letters().unwrap_or_else(|| args.from.clone());
            (from, to)
        }
    };
    if to.queue() == from.queue() {
        return Err(Failure::new(
            Exit::Usage,
            format!(
                "--from and --to are the same queue, `{}`\n  cure: name another queue by --to, or leave it out to move dead \
                 letters back to their queue",
                to.queue()
            ),
        ));
    }
    Ok((from, to))
}

/// Connects to the queue service. Refuses a wrong exchange in the channels that the user named. If a consumer of the config uses
/// the target queue, creates the queue if it is missing.
async fn connect(args: &Args, config: &Config, to: &Channel) -> Result<std::sync::Arc<dyn Provisioner>> {
    let broker = super::connect(config).await?;
    for named in std::iter::once(&args.from).chain(&args.to) {
        check_exchange(&*broker, config, named).await?;
    }
    if let Some(consumer) = config.with_channels().find(|consumer| consumer.channel.queue() == to.queue()) {
        broker.declare(&host::channel_spec(consumer)).await?;
    }
    Ok(broker)
}

async fn requeue(args: &Args, broker: &dyn Admin, (from, to): (Channel, Channel), stop: &CancellationToken) -> Result {
    let order = MoveRequest {
        from: from.clone(),
        to: Some(to.clone()),
        conditions: args.picked.conditions(),
        max: args.max,
        rate: args.rate.map(|permits| Rate { permits, per: Duration::from_secs(1) }),
        dry_run: args.dry_run,
        began: SystemTime::now(),
    };
    let began = order.began;
    let bar = progress(Some(0));
    let mut tell = |note: Note<'_>| show(&bar, &note, began, args.json);
    let (report, ended) = requeue::run(broker, order, stop, &mut tell).await?;
    bar.finish_and_clear();
    let stopped = ended == Ended::Stopped;
    print(if args.json {
        json(&report, stopped, args.dry_run)?
    } else {
        summary(&report, stopped, args.dry_run, &from, &to)
    });
    if report.doubled > 0 {
        let Report { doubled, .. } = report;
        say(format_args!("hostler: warning: {doubled} of these could not be removed from {from}, and are in both"));
    }
    // Messages beyond the maximum were not inspected.
    let all = args.max.is_none_or(|max| report.moved < max);
    let unmet = all.then(|| args.picked.unmet(report.moved + report.failed, report.not_looked_at, &from)).flatten();
    match ended {
        Ended::Broken(error) => Err(error.into()),
        Ended::Full => Err(Failure::new(
            Exit::Failed,
            format!(
                "hold limit of {MAX_HELD} messages reached; the remaining messages stay in the queue: select fewer by --max \
                 or another --filter"
            ),
        )),
        Ended::Done | Ended::Stopped if report.failed + report.doubled > 0 => Ok(Exit::Failed),
        Ended::Done => unmet.map_or(Ok(Exit::Ok), Err),
        Ended::Stopped => Ok(Exit::Ok),
    }
}

/// Shows a step on the progress bar. Prints a separate line for each failure, and for each message of a dry run.
fn show(bar: &ProgressBar, note: &Note<'_>, began: SystemTime, json: bool) {
    match note {
        Note::Began { total } => bar.set_length(*total),
        Note::Progress(report) => {
            bar.set_position(report.moved + report.left + report.failed);
            bar.set_message(format!("{} moved", report.moved));
        }
        Note::WouldMove(message) if !json => bar.suspend(|| print(would_move(message, began))),
        Note::WouldMove(_) => {}
        Note::Failed { id, reason } => bar.suspend(|| say(format_args!("hostler: message {id} stays: {reason}"))),
    }
}

/// Formats one line about a message. Leaves out the body, which may contain confidential data.
fn would_move(message: &Message, now: SystemTime) -> String {
    let age = humantime::format_duration(Duration::from_secs(message.age(now).as_secs()));
    let reason = message.attributes.get(REASON_ATTRIBUTE).and_then(AttributeValue::as_text);
    match reason {
        Some(reason) => format!("{}  {age}  {}", message.id, on_one_line(&shortened(reason, MAX_LISTED))),
        None => format!("{}  {age}", message.id),
    }
}

fn json(report: &Report, stopped: bool, dry_run: bool) -> std::result::Result<String, Failure> {
    let Report { moved, left, failed, doubled, not_looked_at } = *report;
    let counts = Counts { moved, left, failed, doubled, not_looked_at, stopped, dry_run };
    serde_json::to_string(&counts).map_err(|error| Failure::new(Exit::Internal, error))
}

fn summary(report: &Report, stopped: bool, dry_run: bool, from: &Channel, to: &Channel) -> String {
    let Report { moved, left, failed, not_looked_at, .. } = report;
    let mut text = if stopped { "stopped: ".to_owned() } else { String::new() };
    let verb = if dry_run { "would move" } else { "moved" };
    text += &format!("{} {verb} from {from} to {to}", counted(*moved, "message"));
    if *left > 0 {
        let verb = if dry_run { "would stay" } else { "left" };
        text += &format!(", {left} {verb} (did not match)");
    }
    if *failed > 0 {
        text += &format!(", {failed} failed");
    }
    if *not_looked_at > 0 {
        text += &format!(", {not_looked_at} not inspected");
    }
    text
}

async fn redrive(
    args: &Args,
    broker: &dyn Admin,
    (from, to): (&Channel, &Channel),
    stop: &CancellationToken,
) -> Result {
    let bar = progress(Some(0));
    let mut tell = |redriven: Redriven| {
        bar.set_length(redriven.total.unwrap_or(redriven.moved));
        bar.set_position(redriven.moved);
        bar.set_message(format!("{} moved", redriven.moved));
    };
    let done = broker.redrive(from, to, args.rate, stop, &mut tell).await;
    bar.finish_and_clear();
    let done = done?;
    let not_looked_at = if done.cancelled { done.total.unwrap_or(0).saturating_sub(done.moved) } else { 0 };
    let report = Report { moved: done.moved, not_looked_at, ..Report::default() };
    print(if args.json {
        json(&report, done.cancelled, false)?
    } else {
        summary(&report, done.cancelled, false, from, to)
    });
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_names_what_is_not_nothing() {
        let line = |report: Report, stopped, dry_run| {
            summary(&report, stopped, dry_run, &"orders-dlq".parse().unwrap(), &"orders".parse().unwrap())
        };
        let all = Report { moved: 25, left: 3, failed: 2, not_looked_at: 7, doubled: 0 };
        let one = Report { moved: 1, ..Report::default() };
        assert_eq!(line(one, false, false), "1 message moved from orders-dlq to orders");
        let whole = "25 messages moved from orders-dlq to orders, 3 left (did not match), 2 failed, 7 not inspected";
        assert_eq!(line(all, false, false), whole);
        assert_eq!(line(all, true, false), format!("stopped: {whole}"));
        let dry = Report { moved: 0, left: 3, ..Report::default() };
        let expected = "0 messages would move from orders-dlq to orders, 3 would stay (did not match)";
        assert_eq!(line(dry, false, true), expected);
    }
}
