//! Opens the queues of the config and detects missing destinations.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::assemble::channel_spec_with;
use super::resources::Share;
use super::{channel_spec, destinations, driver};
use hostler_config::{Config, Consumer};
use hostler_queue::parallel::{side_by_side, stopping};
use hostler_queue::{Broker, Change, Finding, Provisioner, Queue, QueueError};
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
    let declaring = config.consumers.iter().map(|consumer| {
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
    if driver(config).makes_what_is_missing(config) {
        return Ok(Vec::new());
    }
    let missing = match service.missing_destinations(&destinations(config, consumer)).await {
        Ok(missing) => missing,
        Err(QueueError::Refused(refusal)) => {
            let fault = format!("cannot check the destinations of its messages: {refusal}");
            let cure = driver(config).cure_of_a_denial().to_owned();
            return Ok(vec![Finding { fault, cure, fatal: false }]);
        }
        Err(error) => return Err(error),
    };
    let finding = |(channel, change): (Channel, Change)| {
        let is_reply = consumer.reply_channel.as_ref() == Some(&channel);
        let key = if is_reply { "reply_channel" } else { "allow.send" };
        let fault = format!("there is no {}, which `{key}` names", change.resource);
        let driver = config.queue.driver.word();
        let cure = format!("run `hostler provision`, or set queue.{driver}.provision = \"auto\"");
        Finding { fault, cure, fatal: true }
    };
    Ok(missing.into_iter().map(finding).collect())
}

/// Opens the queues of all consumers concurrently, because opening one queue takes several calls in sequence. `shares` are those
/// of the consumers. Returns the queues in the order of the config.
///
/// # Errors
/// Returns the error of a channel that cannot be opened. If several fail, returns the error of the first one in the config.
pub(super) async fn open_all(
    broker: &Arc<dyn Broker>,
    config: &Config,
    shares: &[Share],
) -> Result<Vec<Arc<dyn Queue>>, QueueError> {
    let opening = config.consumers.iter().zip(shares).map(|(consumer, share)| {
        let (broker, spec) = (Arc::clone(broker), channel_spec_with(consumer, share.slots));
        async move { broker.open(&spec).await }
    });
    side_by_side(opening).await.into_iter().map(|opened| opened.ok_or_else(stopping)?).collect()
}
