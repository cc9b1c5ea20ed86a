//! Opens the queues of the config, and finds missing destinations.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{channel_spec, destinations, driver};
use hostler_config::{Config, Consumer};
use hostler_queue::parallel::{side_by_side, stopping};
use hostler_queue::{Broker, Change, Finding, Provisioner, Queue, QueueError};
use hostler_types::channel::Channel;

/// Returns an absolute path.
pub fn full(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Returns the file that the queue will be in, if it does not exist yet: perhaps another folder is meant.
pub fn file_to_come(config: &Config) -> Option<&Path> {
    driver(config).file(config).map(|file| file.path).filter(|path| !path.exists())
}

/// Creates the missing queues of every channel that the config consumes, so that messages sent from now on are kept for its
/// consumers. Does nothing with a service where channels are not created on use: there a producer needs no rights to other
/// queues.
///
/// # Errors
/// The first channel that cannot be created.
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

/// Returns the findings that prevent a consumer from sending to its reply channel and its granted channels. There are none if
/// sending creates what is missing.
///
/// # Errors
/// The service cannot be reached now.
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

/// Opens the queues of all consumers, in the config's order, concurrently: each takes several calls in sequence.
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
