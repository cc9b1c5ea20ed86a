//! Command `hostler send`.

mod request;

use std::thread;
use std::time::Duration;

use indicatif::ProgressBar;
use tokio::sync::mpsc::{Receiver, channel};
use tokio_util::sync::CancellationToken;

use super::lines::Batch;
use super::output::counted;
use super::progress::progress;
use super::source::{self, BodyArgs, Input};
use super::{ConfigArg, block_on, destination, print, say};
use crate::exit::{Exit, Failure, Result};
use crate::host;
use hostler_config::Config;
use hostler_queue::{Provisioner, SendError, Sent};
use hostler_queue_telemetry::Producer;
use hostler_telemetry::{self as telemetry, Resource, traces::Traces};
use hostler_types::channel::Channel;
use hostler_types::duration;
use hostler_types::message::Outgoing;
use request::RequestArgs;

/// Maximum time that the command waits at its end until the collector has received its span.
const FLUSH: Duration = Duration::from_secs(1);

/// Maximum number of unsent lines that an error message names.
const NAMED: usize = 10;

const HELP: &str = "\
Examples:
  hostler send orders --body '{\"id\": 7}' --attr locale=de
  hostler send uploads.thumbnails --file picture.jpg --routing-key MOBILE.ios
  hostler send orders --lines --file orders.jsonl
  hostler send --subject webhooks.a --request --fallback retry --file view.json

Prints the message's id once it is durably in the queue. A message to <exchange>.<queue> goes to every subscribed \
    queue whose filter passes its routing key. With --lines, Ctrl-C finishes the current batch, prints the number of \
    sent lines, and exits with 1. With --subject, prints the fate of each message: accepted, handed to the retry service, \
    or failed, which exits with 1.";

/// Send a message, or one per line of the input
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// A queue, <exchange>.<queue>, or an exchange of the config
    #[arg(required_unless_present = "subject")]
    channel: Option<Channel>,
    #[command(flatten)]
    body: BodyArgs,
    /// Send one message per line that is not blank
    #[arg(long)]
    lines: bool,
    /// The routing key that the filters of queues match
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    routing_key: Option<String>,
    /// An attribute; may be given up to 10 times
    #[arg(long, value_name = "NAME=VALUE", value_parser = source::attribute)]
    attr: Vec<(String, String)>,
    /// Deliver no sooner than this from now; at most 13d, on SQS 15m or the `longest_delay` of its consumer
    #[arg(long, value_name = "DURATION", default_value = "0s", hide_default_value = true, value_parser = duration::parse)]
    delay: Duration,
    /// The FIFO group, or on SQS that of a fair queue
    #[arg(long, value_name = "GROUP", allow_hyphen_values = true)]
    group: Option<String>,
    /// Drop it if one with this key was sent in the last 5 minutes; not on RabbitMQ
    #[arg(long, value_name = "KEY", allow_hyphen_values = true, conflicts_with = "lines")]
    dedupe: Option<String>,
    #[command(flatten)]
    request: RequestArgs,
    #[command(flatten)]
    config: ConfigArg,
}

pub(super) fn run(args: &Args) -> Result {
    let config = args.config.load()?.config;
    let input = args.body.open()?;
    match &args.channel {
        Some(_) if args.request.is_given() => {
            let text = "--request and --fallback need --subject: a channel has no receivers that acknowledge";
            Err(Failure::new(Exit::Usage, text))
        }
        Some(named) => send(args, &config, named, input),
        None => request::run(args, &config, input),
    }
}

fn send(args: &Args, config: &Config, named: &Channel, input: Input) -> Result {
    let channel = destination::of(config, named);
    if host::driver(config).receives_to_wait() {
        destination::check_delay(config, channel, args.delay)?;
    }
    block_on(async {
        if host::file_to_come(config).is_some() {
            // Checks the channel before any queue is created.
            destination::check(config, &[], named)?;
        }
        let broker = super::connect(config).await?;
        // Creates the missing queues of all consumers. A queue then stores the message even if its consumer has never run.
        host::declare(&broker, config).await?;
        if let Some(stored) = broker.destinations().await? {
            destination::check(config, &stored, named)?;
        }
        if !is_known(config, named) {
            say(format_args!("hostler: note: no consumer of this config listens on {named}"));
        }
        if args.group.is_some()
            && !host::driver(config).has_fair_queues()
            && !is_ordered(&*broker, config, channel).await
        {
            say(format_args!(
                "hostler: note: {named} is not ordered: messages of a group may overtake each other; `ordered = true` of its \
                 consumer keeps their order"
            ));
        }
        let traces = traces(config);
        let producer = Producer::new(broker, traces.clone());
        let result = if args.lines {
            send_lines(args, (named, channel), &producer, input).await
        } else {
            send_one(args, channel, &producer, input).await
        };
        if let Some(traces) = traces {
            traces.finish(FLUSH).await;
        }
        result
    })
}

/// Starts the export of spans. `None`: the config has no endpoint, or the export cannot start.
fn traces(config: &Config) -> Option<Traces> {
    let endpoint = config.telemetry.otlp_endpoint.as_deref()?;
    telemetry::show_warnings();
    Traces::start(endpoint, &Resource::new()).unwrap_or_else(|error| {
        say(format_args!("hostler: warning: {error}"));
        None
    })
}

async fn send_one(args: &Args, channel: &Channel, producer: &Producer, input: Input) -> Result {
    let message = outgoing(args, input.read_message()?);
    match producer.send(channel, vec![message]).await.pop() {
        Some(Ok(sent)) => {
            if sent.queues == Some(0) {
                say("hostler: note: it reached no queue: a duplicate, or no subscription lets it pass");
            }
            print(sent.id);
            Ok(Exit::Ok)
        }
        Some(Err(error)) => Err(Failure::new(exit(&error), error)),
        None => Err(Failure::new(Exit::Internal, "the queue did not answer")),
    }
}

/// Sends each line. `named`: the channel as the user named it, for the result.
async fn send_lines(args: &Args, (named, channel): (&Channel, &Channel), producer: &Producer, input: Input) -> Result {
    let progress = progress(input.size);
    let mut tally = Tally::default();
    let stop = host::stop_on_signal().map_err(|error| Failure::new(Exit::Internal, error))?;
    let ended = send_batches(args, channel, producer, read_ahead(input)?, &stop, &progress, &mut tally).await;
    match ended {
        Ok(_) => progress.finish_and_clear(),
        Err(_) => progress.abandon(),
    }
    let Tally { sent, unreached } = tally;
    if unreached > 0 {
        let unreached = counted(unreached, "message");
        say(format_args!("hostler: note: {unreached} reached no queue: no subscription lets the routing key pass"));
    }
    let sent = format!("{} sent", counted(sent, "message"));
    let in_all = |failure: Failure| Failure::new(failure.exit, format!("{}\n  {sent} in all", failure.message));
    if !ended.map_err(in_all)? {
        print(format_args!("stopped: {sent} to {named}"));
        return Ok(Exit::Failed);
    }
    print(format_args!("{sent} to {named}"));
    Ok(Exit::Ok)
}

/// Reads the input on a separate thread, one batch ahead of the caller. While the command waits for input, a signal can
/// therefore still stop the command.
fn read_ahead(input: Input) -> Result<Receiver<Result<Batch>>> {
    let (batches, read) = channel(1);
    let thread = thread::Builder::new().name("hostler-input".into());
    let reading = thread.spawn(move || {
        for batch in input.lines() {
            if batches.blocking_send(batch).is_err() {
                return;
            }
        }
    });
    reading.map(|_| read).map_err(|error| Failure::new(Exit::Internal, error))
}

/// Counts of sent lines.
#[derive(Default)]
struct Tally {
    sent: u64,
    /// Number of sent lines for which the service reported that they reached no queue.
    unreached: u64,
}

/// Sends one batch after another. Stops at a signal, or if a line cannot be sent. In the latter case, other lines of the same
/// batch may have been sent. Returns true if the whole input was sent.
async fn send_batches(
    args: &Args,
    channel: &Channel,
    producer: &Producer,
    mut input: Receiver<Result<Batch>>,
    stop: &CancellationToken,
    progress: &ProgressBar,
    tally: &mut Tally,
) -> Result<bool> {
    loop {
        let next = tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(false),
            next = input.recv() => next,
        };
        let Some(batch) = next else { return Ok(true) };
        let Batch { bodies, numbers, read } = batch?;
        let last = numbers.last().copied().unwrap_or_default();
        let messages = bodies.into_iter().map(|body| outgoing(args, body)).collect();
        let mut unsent = Vec::new();
        for (result, line) in producer.send(channel, messages).await.into_iter().zip(numbers) {
            match result {
                Ok(Sent { queues, .. }) => {
                    tally.sent += 1;
                    tally.unreached += u64::from(queues == Some(0));
                }
                Err(error) => unsent.push((line, error)),
            }
        }
        if let Some((_, first)) = unsent.first() {
            return Err(Failure::new(exit(first), describe(&unsent, last)));
        }
        progress.inc(read);
        progress.set_message(format!("{} sent", tally.sent));
    }
}

/// Formats the error message for lines that were not sent. Names the first of these lines by line number. `last` is the number of
/// the last line in the batch.
fn describe(unsent: &[(u64, SendError)], last: u64) -> String {
    let named = unsent.iter().take(NAMED).map(|(line, error)| format!("line {line} was not sent: {error}"));
    let more = unsent.len().saturating_sub(NAMED);
    let more = (more > 0).then(|| format!("and {more} more"));
    let behind = format!("no line after line {last} was tried");
    named.chain(more).chain([behind]).collect::<Vec<_>>().join("\n  ")
}

fn outgoing(args: &Args, body: Vec<u8>) -> Outgoing {
    Outgoing {
        body,
        attributes: source::attributes(&args.attr),
        routing_key: args.routing_key.clone(),
        delay: args.delay,
        group: args.group.clone(),
        dedupe: args.dedupe.clone(),
        ..Outgoing::default()
    }
}

fn exit(error: &SendError) -> Exit {
    match error {
        SendError::Invalid(_) => Exit::Usage,
        SendError::Queue(_) => Exit::QueueUnreachable,
    }
}

/// Returns true if the channel leads to an ordered queue, or if the destination is unknown. The config of a consumer comes before
/// the stored queue, because the consumer makes its queue ordered.
async fn is_ordered(broker: &dyn Provisioner, config: &Config, channel: &Channel) -> bool {
    match destination::is_ordered(config, channel) {
        Some(is_ordered) => is_ordered,
        None => broker.open_stored(channel).await.map_or(true, |queue| queue.is_ordered()),
    }
}

/// Returns true if a message to this channel reaches a consumer of the config.
fn is_known(config: &Config, channel: &Channel) -> bool {
    config.with_channels().any(|consumer| {
        let (known, name) = (&consumer.channel, channel.queue());
        known == channel
            || channel.exchange().is_none() && [Some(known.queue()), known.exchange()].contains(&Some(name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostler_queue::QueueError;

    #[test]
    fn lines_that_were_not_sent_are_named_up_to_ten() {
        let unsent = |count: u64| (1..=count).map(|n| (2 * n, QueueError::Refused("no".into()).into()));
        let said = |count| describe(&unsent(count).collect::<Vec<_>>(), 40);
        assert_eq!(said(1), "line 2 was not sent: no\n  no line after line 40 was tried");
        let lines: Vec<_> = (1..=10).map(|n| format!("line {} was not sent: no", 2 * n)).collect();
        let lines = lines.join("\n  ");
        assert_eq!(said(10), format!("{lines}\n  no line after line 40 was tried"));
        assert_eq!(said(12), format!("{lines}\n  and 2 more\n  no line after line 40 was tried"));
    }
}
