//! `hostler queues`.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;

use super::table::table;
use super::{ConfigArg, block_on, note_if_new, print};
use crate::channel::Channel;
use crate::config::Config;
use crate::exit::{Exit, Failure, Result};
use crate::host;
use crate::queue::{Broker, Depth, QueueError};

/// Show how full each channel is
///
/// Lists every channel that the config names and every other queue there is. A dead-letter queue is counted beside its
/// channel; name it to see it by itself.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Only these channels
    channels: Vec<Channel>,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArg,
}

/// A channel, as `--json` prints it.
#[derive(Serialize)]
struct Row {
    channel: String,
    visible: u64,
    delayed: u64,
    in_flight: u64,
    dead_lettered: u64,
    oldest_age_seconds: Option<u64>,
}

pub(super) fn run(args: &Args) -> Result {
    let config = args.config.load()?.config;
    let rows = block_on(async { Ok(rows(args, &config).await?) })?;
    match args.json {
        true => print(serde_json::to_string_pretty(&rows).map_err(|error| Failure::new(Exit::Internal, error))?),
        false => print(for_people(&rows)),
    }
    Ok(Exit::Ok)
}

async fn rows(args: &Args, config: &Config) -> std::result::Result<Vec<Row>, QueueError> {
    note_if_new(config);
    let broker = host::connect_to_look(config).await?;
    let channels = match args.channels.is_empty() {
        true => all(config, &*broker).await?,
        false => args.channels.clone(),
    };
    let depths = broker.depths(&channels).await?;
    Ok(channels.iter().zip(depths).map(|(channel, depth)| row(channel, depth)).collect())
}

/// The channels of the config, then the queues beside them that are nobody's dead-letter queue.
async fn all(config: &Config, broker: &dyn Broker) -> std::result::Result<Vec<Channel>, QueueError> {
    let mut channels: Vec<Channel> = config.consumers.iter().map(|consumer| consumer.channel.clone()).collect();
    for consumer in &config.consumers {
        let outgoing = consumer.reply_channel.iter().chain(&consumer.allow.send);
        for channel in outgoing {
            if !channels.iter().any(|known| known.queue() == channel.queue()) {
                channels.push(channel.clone());
            }
        }
    }
    let existing = broker.channels().await?;
    let dead_letters: BTreeSet<String> = existing.iter().chain(&channels).map(Channel::dead_letter_queue).collect();
    for channel in existing {
        let known = channels.iter().any(|known| known.queue() == channel.queue());
        if !known && !dead_letters.contains(channel.queue()) {
            channels.push(channel);
        }
    }
    Ok(channels)
}

fn row(channel: &Channel, depth: Depth) -> Row {
    Row {
        channel: channel.to_string(),
        visible: depth.visible,
        delayed: depth.delayed,
        in_flight: depth.in_flight,
        dead_lettered: depth.dead_lettered,
        oldest_age_seconds: depth.oldest_age.map(|age| age.as_secs()),
    }
}

fn for_people(rows: &[Row]) -> String {
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let age = row
                .oldest_age_seconds
                .map_or("-".into(), |seconds| humantime::format_duration(Duration::from_secs(seconds)).to_string());
            let counts = [row.visible, row.delayed, row.in_flight, row.dead_lettered].map(|count| count.to_string());
            std::iter::once(row.channel.clone()).chain(counts).chain([age]).collect()
        })
        .collect();
    table(&["CHANNEL", "VISIBLE", "DELAYED", "IN FLIGHT", "DEAD-LETTERED", "OLDEST"], &cells)
}
