//! Command `hostler queues`.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;

use super::exchange::check_exchange;
use super::output::pretty_json;
use super::table::table;
use super::{ConfigArg, block_on, note_if_new, print, say};
use crate::exit::{Exit, Result};
use crate::host;
use hostler_config::{Config, Consumer};
use hostler_queue::{Depth, Provisioner, QueueError, no_queue};
use hostler_types::channel::Channel;

const HELP: &str = "\
Examples:
  hostler queues
  hostler queues orders orders-dlq --json

Lists the channels of the config and all other existing queues; `-` marks a channel without a queue. Dead letters are \
    counted beside their channel. Exits with 1 if a queue cannot be read, and with 69 if a named channel neither exists \
    nor is in the config.";

/// Count the messages of each channel
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// Count only these channels
    channels: Vec<Channel>,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArg,
}

/// A channel, as `--json` prints it. Counts are null if the channel has no queue, or if the service does not report them.
#[derive(Serialize)]
struct Row {
    channel: String,
    visible: Option<u64>,
    delayed: Option<u64>,
    in_flight: Option<u64>,
    dead_lettered: Option<u64>,
    oldest_age_seconds: Option<u64>,
    /// Set if the channel has no queue. Printed only if set.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    missing: bool,
}

pub(super) fn run(args: &Args) -> Result {
    let config = args.config.load()?.config;
    let Counted { rows, faults } = block_on(counted(args, &config))?;
    if args.json {
        print(pretty_json(&rows)?)
    } else {
        print(for_people(&rows))
    }
    for fault in &faults {
        say(format_args!("hostler: {fault}"));
    }
    Ok(if faults.is_empty() { Exit::Ok } else { Exit::Failed })
}

/// Counts of all channels, and an error message for each channel that could not be counted.
struct Counted {
    rows: Vec<Row>,
    faults: Vec<String>,
}

async fn counted(args: &Args, config: &Config) -> Result<Counted> {
    let are_all = args.channels.is_empty();
    let mut counted = if are_all && !config.consumers.is_empty() && !host::needs_queue(config) {
        Counted { rows: Vec::new(), faults: Vec::new() }
    } else {
        counted_queues(args, config).await?
    };
    if are_all && host::needs_jobs(config) {
        add_jobs(config, &mut counted).await;
    }
    Ok(counted)
}

/// Adds the items of the types of jobs that the consumers process.
#[cfg(feature = "jobs")]
async fn add_jobs(config: &Config, counted: &mut Counted) {
    let kinds: BTreeSet<&str> = config.consumers.iter().filter_map(|consumer| consumer.job.as_deref()).collect();
    let service = match host::connect_to_jobs(config).await {
        Ok(service) => service,
        Err(error) => return counted.faults.push(error.to_string()),
    };
    for kind in kinds {
        match service.depth(kind).await {
            Ok(Depth { visible, delayed, in_flight, .. }) => counted.rows.push(Row {
                channel: kind.to_owned(),
                visible: Some(visible),
                delayed,
                in_flight,
                dead_lettered: None,
                oldest_age_seconds: None,
                missing: false,
            }),
            Err(error) => counted.faults.push(error.to_string()),
        }
    }
}

/// Says that this build cannot count items of jobs.
#[cfg(not(feature = "jobs"))]
async fn add_jobs(_: &Config, counted: &mut Counted) {
    counted.faults.push("this build of hostler has no consumers of jobs".to_owned());
}

async fn counted_queues(args: &Args, config: &Config) -> Result<Counted> {
    note_if_new(config);
    let broker = super::connect_to_look(config).await?;
    let channels = if args.channels.is_empty() { all(config, &*broker).await? } else { args.channels.clone() };
    let depths = broker.each_depth(&channels).await?;
    // A channel of the config may have no queue before the first run. Any other missing name is probably a typing error.
    let is_missing = |depth: &std::result::Result<Depth, QueueError>| depth.as_ref().is_ok_and(|depth| depth.missing);
    let named = args.channels.iter().zip(&depths);
    let unknown =
        named.filter(|(channel, depth)| is_missing(depth) && !is_of(config, channel)).map(|(channel, _)| channel);
    if let Some(channel) = unknown.collect::<Vec<_>>().first() {
        return Err(no_queue(channel).into());
    }
    for channel in &args.channels {
        check_exchange(&*broker, config, channel).await?;
    }
    let missing = channels.iter().zip(&depths).filter(|(_, depth)| is_missing(depth)).map(|(channel, _)| channel);
    let topics = if args.channels.is_empty() {
        exchanges_among(&*broker, config, missing.cloned().collect()).await
    } else {
        Vec::new()
    };
    let (channels, depths): (Vec<_>, Vec<_>) =
        channels.into_iter().zip(depths).filter(|(channel, _)| !topics.contains(channel)).unzip();
    Ok(sorted(&channels, depths)?)
}

/// Returns the channels in `missing` that are in fact exchanges. In the config, a consumer names an exchange as a
/// destination by its bare name, which looks like the name of a queue. An exchange contains no messages to count.
async fn exchanges_among(broker: &dyn Provisioner, config: &Config, missing: Vec<Channel>) -> Vec<Channel> {
    let is_consumed = |channel: &Channel| {
        let is_it = |consumer: &Consumer| {
            consumer.channel.queue() == channel.queue() || consumer.channel.dead_letter_queue() == channel.queue()
        };
        config.with_channels().any(is_it)
    };
    let mut sent: Vec<Channel> = missing.into_iter().filter(|channel| !is_consumed(channel)).collect();
    if sent.is_empty() {
        return sent;
    }
    match broker.destinations().await {
        Ok(Some(stored)) => sent.retain(|channel| {
            channel.exchange().is_none() && stored.iter().any(|one| one.exchange() == Some(channel.queue()))
        }),
        Ok(None) => match broker.missing_destinations(&sent).await {
            Ok(nowhere) => sent.retain(|channel| !nowhere.iter().any(|(missing, _)| leads_alike(missing, channel))),
            // If the service cannot answer, all channels remain in the list.
            Err(_) => sent.clear(),
        },
        Err(_) => sent.clear(),
    }
    sent
}

/// Returns true if messages to both channels have the same destination. All channels of one exchange have the same destination,
/// because the exchange sends each message to all its queues.
fn leads_alike(one: &Channel, other: &Channel) -> bool {
    one == other || one.exchange().is_some() && one.exchange() == other.exchange()
}

/// Returns true if the config names this queue as a consumer's queue, as a dead-letter queue, or as a destination.
fn is_of(config: &Config, channel: &Channel) -> bool {
    let queue = channel.queue();
    let is_consumed = config.with_channels().any(|consumer| {
        consumer.channel.queue() == queue || consumer.dead_letter && consumer.channel.dead_letter_queue() == queue
    });
    let is_sent_to = || config.destinations().any(|sent| sent.queue() == queue);
    is_consumed || is_sent_to() && !exchanges(config).contains(queue)
}

/// Returns the exchanges that the config names. In the config, a bare name that equals one of them is not a queue.
fn exchanges(config: &Config) -> BTreeSet<&str> {
    let consumed = config.with_channels().map(|consumer| &consumer.channel);
    consumed.chain(config.destinations()).filter_map(Channel::exchange).collect()
}

/// Separates counts from errors, so that an unreadable queue does not hide the counts of other queues. If no queue can be read,
/// returns the first error.
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

/// Returns the channels of the config. Then adds all other queues of the service, except the dead-letter queues of channels that
/// are already in the result.
async fn all(config: &Config, broker: &dyn Provisioner) -> std::result::Result<Vec<Channel>, QueueError> {
    let mut channels: Vec<Channel> = config.with_channels().map(|consumer| consumer.channel.clone()).collect();
    let exchanges = exchanges(config);
    for channel in config.destinations() {
        let is_exchange = channel.exchange().is_none() && exchanges.contains(channel.queue());
        if !is_exchange && !channels.iter().any(|known| known.queue() == channel.queue()) {
            channels.push(channel.clone());
        }
    }
    let existing = broker.channels().await?;
    // A dead-letter queue may itself have a dead-letter queue, for unreadable dead letters. No row of another queue includes the
    // count of this second queue. Therefore, the second queue has a separate row.
    let with_dead_letters = existing.iter().chain(&channels).filter(|channel| channel.of_dead_letters().is_none());
    let dead_letters: BTreeSet<String> = with_dead_letters.map(Channel::dead_letter_queue).collect();
    for channel in existing {
        let known = channels.iter().any(|known| known.queue() == channel.queue());
        if !known && !dead_letters.contains(channel.queue()) {
            channels.push(channel);
        }
    }
    Ok(channels)
}

fn row(channel: &Channel, depth: Depth) -> Row {
    let count = |count: u64| (!depth.missing).then_some(count);
    Row {
        channel: channel.to_string(),
        visible: count(depth.visible),
        delayed: depth.delayed.and_then(count),
        in_flight: depth.in_flight.and_then(count),
        // Dead letters may remain after their channel's queue was removed.
        dead_lettered: count(depth.dead_lettered).or(Some(depth.dead_lettered).filter(|count| *count > 0)),
        missing: depth.missing,
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
            let counts = [row.visible, row.delayed, row.in_flight, row.dead_lettered];
            let counts = counts.map(|count| count.map_or("-".into(), |count| count.to_string()));
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
        assert_eq!(rows, [("a", Some(1)), ("c", Some(3))]);
        assert_eq!(counted.faults, ["b cannot be counted: access denied"]);
        assert!(sorted(&channels, vec![denied(), denied(), denied()]).is_err());
        assert!(sorted(&[], Vec::new()).is_ok_and(|counted| counted.faults.is_empty()));
    }
}
