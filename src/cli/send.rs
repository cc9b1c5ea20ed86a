//! `hostler send`.

use std::time::Duration;

use super::lines::Batch;
use super::progress::progress;
use super::source::{self, BodyArgs, Input};
use super::{ConfigArg, block_on, print};
use crate::channel::Channel;
use crate::config::Config;
use crate::duration;
use crate::exit::{Exit, Failure, Result};
use crate::host;
use crate::message::Outgoing;
use crate::queue::{Producer, SendError};
use crate::telemetry::{self, Resource, traces::Traces};

/// How long the command waits for its span to reach the collector.
const FLUSH: Duration = Duration::from_secs(1);

/// Send a message, or one per line of the input
///
/// Prints the message's id once it is durably in the queue. To a channel <exchange>.<queue> means: to its exchange, and
/// so to every subscribed queue whose filter lets the routing key pass.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// `<queue>`, `<exchange>.<queue>`, or an exchange of the config
    channel: Channel,
    #[command(flatten)]
    body: BodyArgs,
    /// One message per line of the input; blank lines are passed over
    #[arg(long)]
    lines: bool,
    /// Decides which subscribed queues of an exchange get the message
    #[arg(long, value_name = "KEY")]
    routing_key: Option<String>,
    /// An attribute; may be given up to 10 times
    #[arg(long, value_name = "NAME=VALUE", value_parser = source::attribute)]
    attr: Vec<(String, String)>,
    /// Deliver no sooner than this from now; at most 15m
    #[arg(long, value_name = "DURATION", default_value = "0s", hide_default_value = true, value_parser = duration::parse)]
    delay: Duration,
    /// The FIFO group, on an ordered channel
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// A second message with this key within 5 minutes is dropped
    #[arg(long, value_name = "KEY", conflicts_with = "lines")]
    dedupe: Option<String>,
    #[command(flatten)]
    config: ConfigArg,
}

pub(super) fn run(args: &Args) -> Result {
    let config = args.config.load()?.config;
    let input = args.body.open()?;
    block_on(async {
        let unreachable = |error| Failure::new(Exit::QueueUnreachable, error);
        let broker = host::connect(&config).await.map_err(unreachable)?;
        // So that a message which is sent before its consumers first run is kept for them.
        host::declare(&*broker, &config).await.map_err(unreachable)?;
        if !is_known(&config, &args.channel) {
            eprintln!("hostler: note: no consumer of this config listens on {}", args.channel);
        }
        let traces = traces(&config);
        let producer = Producer::new(broker, traces.clone());
        let result = match args.lines {
            true => send_lines(args, &producer, input).await,
            false => send_one(args, &producer, input).await,
        };
        if let Some(traces) = traces {
            traces.finish(FLUSH).await;
        }
        result
    })
}

/// Where spans go, if the config says so.
fn traces(config: &Config) -> Option<Traces> {
    let endpoint = config.telemetry.otlp_endpoint.as_deref()?;
    telemetry::show_warnings();
    Traces::start(endpoint, &Resource::new()).unwrap_or_else(|error| {
        eprintln!("hostler: warning: {error}");
        None
    })
}

async fn send_one(args: &Args, producer: &Producer, input: Input) -> Result {
    let message = outgoing(args, input.read_all()?);
    match producer.send(&args.channel, vec![message]).await.pop() {
        Some(Ok(sent)) => {
            if sent.queues == Some(0) {
                eprintln!("hostler: note: it reached no queue: a duplicate, or no subscription lets it pass");
            }
            print(sent.id);
            Ok(Exit::Ok)
        }
        Some(Err(error)) => Err(failure(&error)),
        None => Err(Failure::new(Exit::Internal, "the queue did not answer")),
    }
}

async fn send_lines(args: &Args, producer: &Producer, mut input: Input) -> Result {
    let progress = progress(input.size);
    let (mut sent, mut number) = (0_u64, 0_u64);
    while let Some(Batch { bodies, numbers, read }) = input.next_lines(&mut number)? {
        let batch = bodies.into_iter().map(|body| outgoing(args, body)).collect();
        for (result, line) in producer.send(&args.channel, batch).await.into_iter().zip(numbers) {
            if let Err(error) = result {
                progress.abandon();
                let failure = failure(&error);
                let message =
                    format!("line {line} was not sent: {}\n  {sent} messages before it were", failure.message);
                return Err(Failure::new(failure.exit, message));
            }
            sent += 1;
        }
        progress.inc(read);
        progress.set_message(format!("{sent} sent"));
    }
    progress.finish_and_clear();
    print(format!("{sent} message{} sent to {}", if sent == 1 { "" } else { "s" }, args.channel));
    Ok(Exit::Ok)
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

fn failure(error: &SendError) -> Failure {
    let exit = match error {
        SendError::Invalid(_) => Exit::Usage,
        SendError::Queue(_) => Exit::QueueUnreachable,
    };
    Failure::new(exit, error)
}

/// Whether some consumer of the config gets what is sent there.
fn is_known(config: &Config, channel: &Channel) -> bool {
    config.consumers.iter().any(|consumer| {
        let known = &consumer.channel;
        known == channel
            || known.exchange() == channel.exchange().or(Some(channel.queue()))
            || channel.exchange().is_none() && channel.queue() == known.queue()
    })
}
