//! `hostler queues`.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;

use super::table::table;
use super::{ConfigArg, block_on, note_if_new, print, say};
use crate::exit::{Exit, Failure, Result};
use crate::host;
use hostler_config::Config;
use hostler_queue::{Broker, Depth, QueueError};
use hostler_types::channel::Channel;

/// Show how full each channel is
///
/// Lists every channel that the config names and every other queue there is. A dead-letter queue is counted beside its
/// channel; name it to see it by itself. Queues that cannot be read are named on standard error, and the exit code is 1.
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
    let Counted { rows, faults } = block_on(async { Ok(counted(args, &config).await?) })?;
    match args.json {
        true => print(serde_json::to_string_pretty(&rows).map_err(|error| Failure::new(Exit::Internal, error))?),
        false => print(for_people(&rows)),
    }
    for fault in &faults {
        say(format_args!("hostler: {fault}"));
    }
    Ok(if faults.is_empty() { Exit::Ok } else { Exit::Failed })
}

/// What could be counted, and a line for each channel that could not.
struct Counted {
    rows: Vec<Row>,
    faults: Vec<String>,
}

async fn counted(args: &Args, config: &Config) -> std::result::Result<Counted, QueueError> {
    note_if_new(config);
    let broker = host::connect_to_look(config).await?;
    let channels = match args.channels.is_empty() {
        true => all(config, &*broker).await?,
        false => args.channels.clone(),
    };
    sorted(&channels, broker.each_depth(&channels).await?)
}

/// One unreadable queue hides no other. If none can be read, that is an error of the service.
fn sorted(
    channels: &[Channel],
    depths: Vec<std::result::Result<Depth, QueueError>>,
) -> std::result::Result<Counted, QueueError> {
    if let Some(Err(first)) = depths.first()
        && depths.iter().all(std::result::Result::is_err)
    {
        return Err(first.clone());
    }
    let mut counted = Counted { rows: Vec::new(), faults: Vec::new() };
    for (channel, depth) in channels.iter().zip(depths) {
        match depth {
            Ok(depth) => counted.rows.push(row(channel, depth)),
            Err(error) => counted.faults.push(format!("{channel} cannot be counted: {error}")),
        }
    }
    Ok(counted)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_queue_hides_no_other() {
        let channels = ["a", "b", "c"].map(|name| name.parse().unwrap());
        let depth = |visible| Ok(Depth { visible, ..Depth::default() });
        let denied = || Err(QueueError::Refused("access denied".to_owned()));
        let counted = sorted(&channels, vec![depth(1), denied(), depth(3)]).ok().unwrap();
        let rows: Vec<_> = counted.rows.iter().map(|row| (row.channel.as_str(), row.visible)).collect();
        assert_eq!(rows, [("a", 1), ("c", 3)]);
        assert_eq!(counted.faults, ["b cannot be counted: access denied"]);
        assert!(sorted(&channels, vec![denied(), denied(), denied()]).is_err());
        assert!(sorted(&[], Vec::new()).is_ok_and(|counted| counted.faults.is_empty()));
    }
}
