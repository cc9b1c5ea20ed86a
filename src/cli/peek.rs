//! Command `hostler peek`.

use std::sync::Arc;
use std::time::SystemTime;

use super::dlq::{dead_letters, found, stop_on_signal};
use super::exchange::check_source;
use super::output::pretty_json;
use super::picked::Picked;
use super::shown::Shown;
use super::{ConfigArg, block_on, print, say};
use crate::exit::Result;
use crate::host;
use hostler_ops::Look;
use hostler_queue::{Admin, QueueError};
use hostler_telemetry as telemetry;
use hostler_types::channel::Channel;
use hostler_types::message::Message;

const HELP: &str = "\
Examples:
  hostler peek orders --max 3 --filter body~Ada
  hostler peek orders --dead-letters --json

Prints bodies and attributes. The embedded queue is only read. SQS and RabbitMQ show a message only to a receiver: \
    each is received, hidden from consumers, and given back at the end. On SQS, this counts as an attempt; on RabbitMQ \
    before 4.3, from the fourth delivery on. An ordered queue shows the first ten (SQS) or the first (RabbitMQ) of each \
    group. With --id or --filter, all messages are received; exits with 1 if one of those that could not be inspected may \
    match.";

/// Show messages without consuming them
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// The channel whose messages to show
    channel: Channel,
    /// Show at most N messages
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = super::source::count)]
    max: u64,
    #[command(flatten)]
    picked: Picked,
    /// Show the channel's dead letters instead
    #[arg(long)]
    dead_letters: bool,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArg,
}

pub(super) fn run(args: &Args) -> Result {
    telemetry::show_warnings();
    let at = if args.dead_letters { dead_letters(&args.channel)? } else { args.channel.clone() };
    let config = args.config.load()?.config;
    let driver = host::driver(&config);
    let stop = stop_on_signal()?;
    let began = SystemTime::now();
    let wanted = Look { at: at.clone(), conditions: args.picked.conditions(), max: args.max, began };
    let (messages, looked) = block_on(async {
        let broker = super::connect_to_look(&config).await?;
        check_source(&*broker, &config, &args.channel, &at).await?;
        if let Some(cost) = driver.cost_of_a_look() {
            say(format_args!(
                "hostler: note: messages are received to be shown, and hidden from consumers meanwhile: {cost}"
            ));
        }
        let (messages, looked) = found(&*broker, wanted, &stop, Message::clone).await?;
        Ok((with_bodies(&*broker, &at, messages).await?, looked))
    })?;
    let shown: Vec<_> = messages.iter().map(|message| Shown::of(message, None, began)).collect();
    match args.json {
        true => print(pretty_json(&shown)?),
        false if shown.is_empty() => print(format_args!("no messages in {at}")),
        false => print(shown.iter().map(Shown::page).collect::<Vec<_>>().join("\n\n")),
    }
    args.picked.looked(shown.len() as u64, args.max, &looked, &at, driver.title())
}

/// Loads the bodies that are stored in S3. If a body cannot be loaded, prints the reason, and returns the message without its
/// body.
async fn with_bodies(
    broker: &dyn Admin,
    at: &Channel,
    messages: Vec<Message>,
) -> std::result::Result<Vec<Arc<Message>>, QueueError> {
    let mut whole = Vec::with_capacity(messages.len());
    for message in messages.into_iter().map(Arc::new) {
        if message.claim.is_none() {
            whole.push(message);
            continue;
        }
        match broker.open_stored(at).await?.load(&message).await {
            Ok(loaded) => whole.push(loaded),
            Err(reason) => {
                say(format_args!("hostler: message {} is shown without its body: {reason}", message.id));
                whole.push(message);
            }
        }
    }
    Ok(whole)
}
