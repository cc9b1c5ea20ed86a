//! Creates missing queues of the config, and detects missing destinations.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{channel_spec, destinations, driver, scheduled_destinations};
use crate::exit::{Exit, Failure};
use hostler_config::{Config, Consumer};
use hostler_queue::parallel::{side_by_side, stopping};
use hostler_queue::{Change, Finding, Provisioner, QueueError};
use hostler_types::channel::Channel;

/// Returns the absolute form of a path. If the absolute form cannot be determined, returns the path unchanged.
pub fn full(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Returns the path of the queue file if the file does not exist yet. In that case, commands warn the user, who may have meant a
/// queue file in another folder.
pub fn file_to_come(config: &Config) -> Option<&Path> {
    driver(config).file(config).map(|file| file.path).filter(|path| !path.exists())
}

/// Creates the missing queues of every channel that the config consumes. After this call, messages that are sent to
/// these channels reach the consumers.
///
/// Does nothing if the driver is not set up to create missing resources. With such a driver, a producer needs rights
/// only to the queues that it sends to.
///
/// # Errors
/// Returns the error of a channel that cannot be created. If several fail, returns the error of the first one in the
/// config.
pub async fn declare(broker: &Arc<dyn Provisioner>, config: &Config) -> Result<(), QueueError> {
    if !driver(config).makes_what_is_missing(config) {
        return Ok(());
    }
    let of_the_queue = config.consumers.iter().filter(|consumer| consumer.job.is_none());
    let declaring = of_the_queue.map(|consumer| {
        let (broker, spec) = (Arc::clone(broker), channel_spec(consumer));
        async move { broker.declare(&spec).await }
    });
    side_by_side(declaring).await.into_iter().try_for_each(|declared| declared.ok_or_else(stopping)?)
}

/// Returns the reasons why a consumer cannot send to its reply channel or to the channels in `allow.send`. If the
/// service refuses the lookup, for example because a permission is missing, returns the refusal as a reason. The result
/// is empty if the driver creates missing channels when it sends a message.
///
/// # Errors
/// The lookup failed for any reason other than a refusal. For example, the service cannot be reached.
pub async fn unsendable(
    service: &dyn Provisioner,
    config: &Config,
    consumer: &Consumer,
) -> Result<Vec<Finding>, QueueError> {
    let key = |channel: &Channel| {
        let is_reply = consumer.reply_channel.as_ref() == Some(channel);
        if is_reply { "`reply_channel`".to_owned() } else { "`allow.send`".to_owned() }
    };
    missing(service, config, &destinations(config, consumer), key).await
}

/// Returns the reasons why schedules cannot send, like [`unsendable`].
///
/// # Errors
/// Same as for [`unsendable`].
pub async fn unscheduled(service: &dyn Provisioner, config: &Config) -> Result<Vec<Finding>, QueueError> {
    let key = |channel: &Channel| {
        let of = config.schedules.iter().find(|schedule| schedule.channel == *channel);
        of.map_or_else(String::new, |schedule| format!("`schedules.{}.channel`", schedule.times.name))
    };
    missing(service, config, &scheduled_destinations(config), key).await
}

async fn missing(
    service: &dyn Provisioner,
    config: &Config,
    channels: &[Channel],
    key: impl Fn(&Channel) -> String,
) -> Result<Vec<Finding>, QueueError> {
    if channels.is_empty() || driver(config).makes_what_is_missing(config) {
        return Ok(Vec::new());
    }
    let missing = match service.missing_destinations(channels).await {
        Ok(missing) => missing,
        Err(QueueError::Refused(refusal)) => {
            let fault = format!("cannot check the destinations of its messages: {refusal}");
            let cure = driver(config).cure_of_a_denial().to_owned();
            return Ok(vec![Finding { fault, cure, fatal: false }]);
        }
        Err(error) => return Err(error),
    };
    let finding = |(channel, change): (Channel, Change)| {
        let fault = format!("there is no {}, which {} names", change.resource, key(&channel));
        let driver = config.queue.driver.word();
        let cure = format!("run `hostler provision`, or set queue.{driver}.provision = \"auto\"");
        Finding { fault, cure, fatal: true }
    };
    Ok(missing.into_iter().map(finding).collect())
}

/// Checks that the destinations of replies, of messages from handlers, and of schedules exist.
pub(super) async fn check_destinations(service: &dyn Provisioner, config: &Config) -> crate::exit::Result<()> {
    let mut fatal = Vec::new();
    for consumer in &config.consumers {
        for finding in unsendable(service, config, consumer).await? {
            if finding.fatal {
                fatal.push(format!("consumer {}: {finding}", consumer.name))
            } else {
                tracing::warn!(consumer = consumer.name, "{finding}")
            }
        }
    }
    for finding in unscheduled(service, config).await? {
        if finding.fatal { fatal.push(finding.to_string()) } else { tracing::warn!("{finding}") }
    }
    if fatal.is_empty() { Ok(()) } else { Err(Failure::new(Exit::QueueUnreachable, fatal.join("; "))) }
}
