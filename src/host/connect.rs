//! From the config to open queues, and to what is missing of them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{channel_spec, destinations, drivers};
use hostler_config::{Config, Consumer};
use hostler_queue::parallel::{side_by_side, stopping};
use hostler_queue::{Broker, Change, Finding, Provisioner, Queue, QueueError};
use hostler_types::channel::Channel;

/// A path as it counts from everywhere.
pub fn full(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// The file that the queue will be in, if nothing has created it yet: perhaps another folder is meant.
pub fn file_to_come(config: &Config) -> Option<&Path> {
    drivers::file(config).filter(|path| !path.exists())
}

/// Makes what is missing of every channel that the config consumes, so that what is sent next is kept for its consumers.
/// Where channels are not made by use, there is nothing to make: a producer needs no right to other queues.
///
/// # Errors
/// The first channel that cannot be made.
pub async fn declare(broker: &Arc<dyn Provisioner>, config: &Config) -> Result<(), QueueError> {
    if !drivers::makes_what_is_missing(config) {
        return Ok(());
    }
    let declaring = config.consumers.iter().map(|consumer| {
        let (broker, spec) = (Arc::clone(broker), channel_spec(consumer));
        async move { broker.declare(&spec).await }
    });
    side_by_side(declaring).await.into_iter().try_for_each(|declared| declared.ok_or_else(stopping)?)
}

/// What keeps a consumer from sending to its reply channel and to what it is granted. Where a send makes what is missing, nothing does.
///
/// # Errors
/// The service cannot be asked now.
pub async fn unsendable(
    service: &dyn Provisioner,
    config: &Config,
    consumer: &Consumer,
) -> Result<Vec<Finding>, QueueError> {
    if drivers::makes_what_is_missing(config) {
        return Ok(Vec::new());
    }
    let missing = match service.missing_destinations(&destinations(config, consumer)).await {
        Ok(missing) => missing,
        Err(QueueError::Refused(refusal)) => {
            let fault = format!("where it sends to cannot be looked at: {refusal}");
            let cure = "`hostler iam` prints the policy that this config needs".to_owned();
            return Ok(vec![Finding { fault, cure, fatal: false }]);
        }
        Err(error) => return Err(error),
    };
    let finding = |(channel, change): (Channel, Change)| {
        let is_reply = consumer.reply_channel.as_ref() == Some(&channel);
        let key = if is_reply { "reply_channel" } else { "allow.send" };
        let fault = format!("there is no {}, which `{key}` names", change.resource);
        let cure = "run `hostler provision`, or set queue.sqs.provision = \"auto\"".to_owned();
        Finding { fault, cure, fatal: true }
    };
    Ok(missing.into_iter().map(finding).collect())
}

/// The queues of all consumers, in the config's order, opened side by side: each takes some calls one after the other.
///
/// # Errors
/// The first channel, in that order, that cannot be opened.
pub async fn open_all(broker: &Arc<dyn Broker>, config: &Config) -> Result<Vec<Arc<dyn Queue>>, QueueError> {
    let opening = config.consumers.iter().map(|consumer| {
        let (broker, spec) = (Arc::clone(broker), channel_spec(consumer));
        async move { broker.open(&spec).await }
    });
    side_by_side(opening).await.into_iter().map(|opened| opened.ok_or_else(stopping)?).collect()
}
