//! Opens the queues of the config and detects missing destinations.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{channel_spec, destinations, driver};
use hostler_config::{Config, Consumer};
use hostler_queue::parallel::{side_by_side, stopping};
use hostler_queue::{Broker, Change, Finding, Provisioner, Queue, QueueError};
use hostler_types::channel::Channel;

/// Returns the absolute path. Returns a path unchanged if it cannot be made absolute.
pub fn full(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Returns the path of the queue file if the file does not exist yet. Commands use this to warn that another folder may be
/// intended.
pub fn file_to_come(config: &Config) -> Option<&Path> {
    driver(config).file(config).map(|file| file.path).filter(|path| !path.exists())
}

/// Creates the missing queues of every channel that the config consumes. Messages that are sent from now on then reach the
/// consumers. Does nothing if the driver does not create missing channels on use, so that a producer needs no rights to other
/// queues.
///
/// # Errors
/// The error of the first channel, in the order of the config, that cannot be created.
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

/// Returns the reasons why a consumer cannot send to its reply channel or its granted channels. Empty if sending creates missing
/// channels.
///
/// # Errors
/// The lookup fails without a refusal by the service, for example because the service cannot be reached.
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

/// Opens the queues of all consumers, in the order of the config. Queues are opened concurrently, because each queue needs
/// several calls in sequence.
///
/// # Errors
/// The error of the first channel, in the order of the config, that cannot be opened.
pub async fn open_all(broker: &Arc<dyn Broker>, config: &Config) -> Result<Vec<Arc<dyn Queue>>, QueueError> {
    let opening = config.consumers.iter().map(|consumer| {
        let (broker, spec) = (Arc::clone(broker), channel_spec(consumer));
        async move { broker.open(&spec).await }
    });
    side_by_side(opening).await.into_iter().map(|opened| opened.ok_or_else(stopping)?).collect()
}
