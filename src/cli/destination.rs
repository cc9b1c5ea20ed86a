//! Checks the destination of messages that a user sends. Refuses a destination without a consumer.

use std::time::Duration;

use crate::exit::{Exit, Failure, Result};
use crate::host;
use hostler_config::{Config, Consumer, alike};
use hostler_types::channel::Channel;

/// Longest delay of a message that every queue supports, even a queue that is not set up for long delays.
const KEPT: Duration = Duration::from_secs(15 * 60);

/// Maximum number of channels that an error message names.
const NAMED: usize = 12;

/// Returns the channel to send to. If `channel` is the bare name of an exchange in the config, returns the channel of
/// one of the exchange's consumers. Otherwise, returns `channel` unchanged.
///
/// The replacement avoids a mix-up: the service may contain a queue with the same name as the exchange, and a message
/// to the bare name would reach only that queue.
pub(super) fn of<'a>(config: &'a Config, channel: &'a Channel) -> &'a Channel {
    let mut consumed = config.with_channels().map(|consumer| &consumer.channel);
    if channel.exchange().is_some() || consumed.clone().any(|known| known.queue() == channel.queue()) {
        return channel;
    }
    consumed.find(|known| known.exchange() == Some(channel.queue())).unwrap_or(channel)
}

/// Refuses a channel that is neither in the config nor in `stored`. `stored` contains the destinations that exist in the queue
/// service. Without this check, a mistyped name would create a queue without a consumer, or an exchange without subscriptions,
/// which drops all messages.
pub(super) fn check(config: &Config, stored: &[Channel], channel: &Channel) -> Result<()> {
    let known: Vec<Channel> = named(config).chain(stored.iter().cloned()).collect();
    if takes(&known, channel) {
        return Ok(());
    }
    if let Some(refusal) = refusal_of_jobs(config, channel) {
        return Err(Failure::new(Exit::QueueUnreachable, refusal));
    }
    let queue = host::driver(config).file(config).map(|file| format!(" {}", host::full(file.path).display()));
    let text = format!(
        "no consumer receives from `{channel}`: it is neither in the config nor in the queue{}{}",
        queue.unwrap_or_default(),
        cure(&known, channel)
    );
    Err(Failure::new(Exit::QueueUnreachable, text))
}

/// Returns the reason why a command cannot use a channel whose name is that of a consumer of jobs, or of their type. `None`: it
/// is neither, or is a channel, too.
pub(super) fn refusal_of_jobs(config: &Config, channel: &Channel) -> Option<String> {
    let name = channel.to_string();
    if config.with_channels().any(|consumer| consumer.channel.queue() == channel.queue()) {
        return None;
    }
    let of_jobs = config.consumers.iter().filter_map(|consumer| Some((consumer, consumer.job.as_ref()?)));
    let (consumer, kind) = of_jobs.into_iter().find(|(consumer, kind)| consumer.name == name || **kind == name)?;
    Some(format!(
        "`{name}` is no queue: consumers.{} processes the items of jobs of type `{kind}`, which the job service keeps\n  \
         use `hostler jobs`, or the HTTP API at {}",
        consumer.name, config.jobs.url
    ))
}

/// Refuses a delay that the consumer of this channel cannot keep: a delay beyond 15 minutes that exceeds the consumer's
/// `longest_delay`. The consumer's queue is not set up for such a delay, and would dead-letter or drop the message
/// before the delay ends.
pub(super) fn check_delay(config: &Config, channel: &Channel, delay: Duration) -> Result<()> {
    let short =
        config.with_channels().find(|consumer| reaches(channel, consumer) && delay > consumer.longest_delay.max(KEPT));
    let Some(consumer) = short else { return Ok(()) };
    let (name, known, delay) = (&consumer.name, consumer.longest_delay, humantime::format_duration(delay));
    let text = format!(
        "a delay of {delay} is longer than consumers.{name}.longest_delay, {}: its queue would not keep the message for so long\n  \
         raise `longest_delay`, and run `hostler provision`",
        humantime::format_duration(known)
    );
    Err(Failure::new(Exit::Usage, text))
}

/// Returns true if a message to this channel reaches a queue that the config declares as ordered. The dead-letter queue of a
/// consumer is as ordered as the consumer's queue. `None`: the config does not name the channel.
pub(super) fn is_ordered(config: &Config, channel: &Channel) -> Option<bool> {
    let is_dead_letter =
        |one: &Consumer| channel.exchange().is_none() && one.channel.dead_letter_queue() == channel.queue();
    let reached = config.with_channels().filter(|consumer| reaches(channel, consumer) || is_dead_letter(consumer));
    reached.map(|consumer| consumer.ordered).reduce(|one, other| one || other)
}

/// Returns true if a message to this channel, as [`of`] returns it, may reach the consumer.
fn reaches(channel: &Channel, consumer: &Consumer) -> bool {
    let known = &consumer.channel;
    match channel.exchange() {
        None => known.queue() == channel.queue(),
        exchange => known.exchange() == exchange,
    }
}

/// Returns the channels that the config names: those of its consumers, their dead-letter queues, and their destinations.
fn named(config: &Config) -> impl Iterator<Item = Channel> {
    let consumed = config.with_channels().flat_map(|consumer| {
        let dead_letters = consumer.channel.dead_letter_queue().parse().ok().filter(|_| consumer.dead_letter);
        dead_letters.into_iter().chain([consumer.channel.clone()])
    });
    config.destinations().cloned().chain(consumed)
}

/// Returns true if a message to `channel` reaches one of the `known` channels. A bare name can be the name of a queue or of an
/// exchange.
fn takes(known: &[Channel], channel: &Channel) -> bool {
    known.iter().any(|one| {
        let bare = channel.exchange().is_none();
        one == channel || bare && [Some(one.queue()), one.exchange()].contains(&Some(channel.queue()))
    })
}

/// Formats the end of the error message: a similar name, the known names, and how to create a channel.
fn cure(known: &[Channel], channel: &Channel) -> String {
    let mut names: Vec<String> = known.iter().map(Channel::to_string).collect();
    names.sort_unstable();
    names.dedup();
    let wanted = channel.to_string();
    let meant = alike(&wanted, names.iter().map(String::as_str)).map(|name| format!("; did you mean `{name}`?"));
    let more = names.len().saturating_sub(NAMED);
    let more = (more > 0).then(|| format!(" and {more} more; see `hostler queues`"));
    let listed = names.iter().take(NAMED).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let listed = if listed.is_empty() { "none".to_owned() } else { listed };
    format!(
        "{}\n  known channels: {listed}{}\n  a new channel comes with its consumer: add that to the config, \
         or name its config with --config",
        meant.unwrap_or_default(),
        more.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channels<const N: usize>(names: [&str; N]) -> Vec<Channel> {
        names.iter().map(|name| name.parse().unwrap()).collect()
    }

    #[test]
    fn a_bare_name_is_a_queue_or_an_exchange() {
        let known = channels(["jobs", "news.mobile"]);
        for (name, expected) in [
            ("jobs", true),
            ("mobile", true),
            ("news", true),
            ("news.mobile", true),
            ("news.desk", false),
            ("old.mobile", false),
            ("jobs.mobile", false),
            ("jbos", false),
        ] {
            assert_eq!(takes(&known, &name.parse().unwrap()), expected, "{name}");
        }
    }

    #[test]
    fn a_refusal_names_what_may_be_meant() {
        let said = cure(&channels(["jobs", "jobs", "news.mobile"]), &"news.mobil".parse().unwrap());
        assert!(said.starts_with("; did you mean `news.mobile`?\n  known channels: `jobs`, `news.mobile`\n"), "{said}");
        assert!(cure(&[], &"jobs".parse().unwrap()).starts_with("\n  known channels: none\n"));
        let many: Vec<Channel> = (10..30).map(|n| format!("q{n}").parse().unwrap()).collect();
        assert!(cure(&many, &"jobs".parse().unwrap()).contains("`q21` and 8 more; see `hostler queues`"));
    }
}
