//! Checks the exchange in a channel that a user names. Refuses an exchange that does not feed the channel's queue.
//!
//! Commands that show, take or move messages use only the queue of a channel. Without the check, they would ignore a mistyped
//! exchange, and use a queue that the user may not have meant.

use std::collections::BTreeSet;

use hostler_config::Config;
use hostler_queue::{Provisioner, QueueError};
use hostler_types::channel::Channel;

/// Refuses a channel of the form `exchange.queue` if the queue `at` does not exist, or if the exchange does not feed the
/// channel's queue. `at` is the queue of the channel or its dead-letter queue. Called by commands that use the messages of
/// one queue.
pub(super) async fn check_source(
    broker: &dyn Provisioner,
    config: &Config,
    channel: &Channel,
    at: &Channel,
) -> Result<(), QueueError> {
    if let Some(refusal) = super::destination::refusal_of_jobs(config, channel) {
        return Err(QueueError::Refused(refusal));
    }
    if channel.exchange().is_none() {
        return Ok(());
    }
    // Runs first, because the cure for a wrong exchange names the queue.
    broker.open_stored(at).await?;
    match others(broker, config, channel).await? {
        Some(others) => Err(refusal(channel, &others)),
        None => Ok(()),
    }
}

/// Refuses a channel of the form `exchange.queue` if the queue does not exist, or if the exchange feeds it neither in the
/// config nor in the service. The exchange of a dead-letter queue is that of the queue that it belongs to.
pub(super) async fn check_exchange(
    broker: &dyn Provisioner,
    config: &Config,
    channel: &Channel,
) -> Result<(), QueueError> {
    let Some(others) = others(broker, config, channel).await? else { return Ok(()) };
    if others.names.is_empty() {
        broker.open_stored(channel).await?;
    }
    Err(refusal(channel, &others))
}

/// The exchanges that feed a queue in place of the one that a user named.
struct Others {
    names: BTreeSet<String>,
    /// Unset if the service may have more of them.
    are_complete: bool,
}

/// Returns the exchanges that feed the queue of a channel. `None`: the channel has no exchange, its exchange is one of
/// these, or the service does not tell whether it is.
async fn others(broker: &dyn Provisioner, config: &Config, channel: &Channel) -> Result<Option<Others>, QueueError> {
    let Some(exchange) = channel.exchange() else { return Ok(None) };
    let mut queues = vec![channel.alone(), owner(channel)];
    queues.dedup();
    let mut names: BTreeSet<String> = queues.iter().flat_map(|queue| configured(config, queue)).collect();
    if names.contains(exchange) {
        return Ok(None);
    }
    let found = broker.exchanges_feeding(&queues).await?;
    let are_complete = found.is_some();
    names.extend(found.into_iter().flatten());
    let is_accepted = names.contains(exchange) || !are_complete && may_exist(broker, channel).await?;
    Ok((!is_accepted).then_some(Others { names, are_complete }))
}

/// Returns the queue whose messages end in this dead-letter queue. If the channel is no dead-letter queue, returns its queue.
fn owner(channel: &Channel) -> Channel {
    channel.of_dead_letters().unwrap_or_else(|| channel.alone())
}

/// Returns the exchanges that feed a queue according to the config. The channel of a consumer takes precedence over channels
/// that handlers send to, because the exchange of the latter is only a destination.
fn configured(config: &Config, queue: &Channel) -> BTreeSet<String> {
    let is_it = |channel: &&Channel| channel.queue() == queue.queue();
    let consumed: Vec<_> = config.with_channels().map(|consumer| &consumer.channel).filter(is_it).collect();
    let channels = if consumed.is_empty() { config.destinations().filter(is_it).collect() } else { consumed };
    channels.into_iter().filter_map(Channel::exchange).map(str::to_owned).collect()
}

/// Returns false if the service reports that the exchange does not exist. A user without permission to list exchanges can
/// still use a queue.
async fn may_exist(broker: &dyn Provisioner, channel: &Channel) -> Result<bool, QueueError> {
    match broker.missing_destinations(std::slice::from_ref(channel)).await {
        Ok(missing) => Ok(missing.is_empty()),
        Err(QueueError::Refused(_)) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Returns the error for an exchange that does not feed its queue.
fn refusal(channel: &Channel, Others { names: feeding, are_complete }: &Others) -> QueueError {
    let (exchange, owner, queue) = (channel.exchange().unwrap_or_default(), owner(channel), channel.queue());
    let listed = feeding.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let known = match feeding.len() {
        0 if *are_complete => ": no exchange does".to_owned(),
        0 => String::new(),
        1 => format!(": the exchange {listed} does"),
        _ => format!(": the exchanges {listed} do"),
    };
    let named = feeding.first().map(|first| format!("write `{first}.{queue}`, or ")).unwrap_or_default();
    QueueError::Refused(format!(
        "there is no exchange `{exchange}` that feeds the queue `{owner}`{known}\n  \
         cure: {named}name the queue alone, `{queue}`; `hostler queues` lists the channels"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_what_exists() {
        let said = |channel: &str, feeding: &[&str], are_complete| {
            let names = feeding.iter().map(|name| (*name).to_owned()).collect();
            refusal(&channel.parse().unwrap(), &Others { names, are_complete }).to_string()
        };
        let list = "`hostler queues` lists the channels";
        let none = "there is no exchange `nope` that feeds the queue `jobs`";
        let alone = format!("name the queue alone, `jobs`; {list}");
        assert_eq!(said("nope.jobs", &[], true), format!("{none}: no exchange does\n  cure: {alone}"));
        assert_eq!(said("nope.jobs", &[], false), format!("{none}\n  cure: {alone}"));
        let one = format!("{none}: the exchange `news` does\n  cure: write `news.jobs`, or {alone}");
        assert_eq!(said("nope.jobs", &["news"], true), one);
        let dead = said("nope.jobs-dlq", &["a", "b"], true);
        assert!(dead.starts_with(&format!("{none}: the exchanges `a`, `b` do\n")), "{dead}");
        assert!(dead.contains("write `a.jobs-dlq`, or name the queue alone, `jobs-dlq`; "), "{dead}");
    }
}
