//! Command `hostler receive`.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;

use super::dlq::stop_on_signal;
use super::exchange::check_source;
use super::output::{counted, hand_over, is_closed, json, unwritten};
use super::shown::{Shown, body_line};
use super::{ConfigArg, block_on, say};
use crate::exit::{Exit, Failure, Result};
use crate::host::{self, QueueDriver};
use hostler_ops::{Outlet, ReceiveEnd, ReceiveReport, ReceiveRequest, receive};
use hostler_telemetry as telemetry;
use hostler_types::channel::Channel;
use hostler_types::duration;
use hostler_types::message::Message;

const HELP: &str = "\
Examples:
  hostler receive thumbnails-done
  hostler receive thumbnails-done --ack --max 1 --wait 20s

Prints a body per line, with control characters escaped and binary bodies in Base64; --json keeps every character. \
    Without --ack, the messages go back to the queue at the end. On SQS, each receive counts as an attempt; on RabbitMQ \
    before 4.3, from the fourth delivery on. With --ack, a message is removed once it is written and, in a pipe, read. If \
    the reader goes away, no message is lost; if the command is killed, some are repeated. --ack is refused if standard \
    output is closed. Exits with 1 if no message came, or if one could not be removed.";

/// Error message for `--ack` if no one can read standard output.
const UNSEEN: &str = "standard output is closed or cannot be written to: --ack would remove messages unread\n  \
    cure: open standard output; to remove messages without reading them, use `hostler purge`";

/// Receive messages and print their bodies
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// The channel to receive from
    channel: Channel,
    /// Remove printed messages; without it, an ordered group shows only its first ones
    #[arg(long)]
    ack: bool,
    /// Receive at most N messages
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = super::source::count)]
    max: u64,
    /// Maximum wait for the first message
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration::parse)]
    wait: Duration,
    /// Print a JSON object per line, with id, attempt and attributes
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArg,
}

pub(super) fn run(args: &Args) -> Result {
    telemetry::show_warnings();
    if args.ack && is_closed() {
        return Err(Failure::new(Exit::Internal, UNSEEN));
    }
    let config = args.config.load()?.config;
    let stop = stop_on_signal()?;
    let request = ReceiveRequest { from: args.channel.clone(), ack: args.ack, max: args.max, wait: args.wait };
    let (report, end) = block_on(async {
        super::check_unscheduled(&config, &args.channel)?;
        let broker = super::connect_to_take(&config).await?;
        check_source(&*broker, &config, &args.channel, &args.channel).await?;
        let mut printer = Printer { json: args.json };
        Ok(receive(&*broker, request, &stop, &mut printer).await?)
    })?;
    tell(args, &report, host::driver(&config));
    let has_failed = !report.unremoved.is_empty() || !report.unread.is_empty();
    let is_empty = report.handed_out == 0;
    match end {
        ReceiveEnd::Broken(error) => Err(error.into()),
        ReceiveEnd::Unwritten(error) if error.kind() != ErrorKind::BrokenPipe => Err(unwritten(&error)),
        ReceiveEnd::Done if is_empty && !has_failed => Err(Failure::new(Exit::Failed, nothing_came(args))),
        ReceiveEnd::Done | ReceiveEnd::Stopped if is_empty => Ok(Exit::Failed),
        _ if has_failed => Ok(Exit::Failed),
        _ => Ok(Exit::Ok),
    }
}

/// Prints each message. If standard output is a pipe, waits until the program at the other end has read the message.
struct Printer {
    json: bool,
}

#[async_trait]
impl Outlet for Printer {
    async fn put(&mut self, message: &Arc<Message>, attempt: u32) -> io::Result<()> {
        let text = if self.json {
            json(&Shown::of(message, Some(attempt), SystemTime::now()))
                .map_err(|failure| io::Error::other(failure.message))?
        } else {
            body_line(message)
        };
        // A write to a full pipe blocks.
        tokio::task::spawn_blocking(move || hand_over(&text)).await?
    }
}

/// Tells the user which messages were removed, which were given back to the channel, and which were not printed.
fn tell(args: &Args, report: &ReceiveReport, driver: &dyn QueueDriver) {
    let ReceiveReport { removed, unremoved, given_back, unread, .. } = report;
    let at = &args.channel;
    for (id, reason) in unread {
        say(format_args!("hostler: message {id} is not printed and stays in {at}: cannot read its body: {reason}"));
    }
    for (id, reason) in unremoved {
        say(format_args!("hostler: message {id} is printed and was not removed from {at}: {reason}"));
    }
    if *removed > 0 {
        say(format_args!("hostler: {} removed from {at}", counted(*removed, "message")));
    }
    if *given_back > 0 {
        let cure = if args.ack { "" } else { "; --ack removes what is printed" };
        let cost = driver.cost_of_a_look().map(|cost| format!("; {cost}")).unwrap_or_default();
        say(format_args!("hostler: {} given back to {at}{cost}{cure}", counted(*given_back, "message")));
    }
}

fn nothing_came(args: &Args) -> String {
    let at = &args.channel;
    let wait = humantime::format_duration(args.wait);
    format!(
        "no message came from {at} within {wait}\n  cure: wait longer by --wait; `hostler queues {at}` counts what is there"
    )
}
