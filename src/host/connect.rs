//! From the config to a queue service.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{channel_spec, destinations};
use hostler_config::{Config, Consumer, Driver, Provision};
use hostler_queue::parallel::{side_by_side, stopping};
use hostler_queue::{Broker, Change, Finding, Provisioner, Queue, QueueError};
use hostler_types::channel::Channel;

/// Connects to the queue service that the config names.
///
/// # Errors
/// [`QueueError`] when it cannot be reached, or when this build has no driver for it.
pub async fn connect(config: &Config) -> Result<Arc<dyn Provisioner>, QueueError> {
    match config.queue.driver {
        #[cfg(feature = "embedded")]
        Driver::Embedded => {
            let path = &config.queue.embedded.path;
            let is_new = !path.exists();
            create_folder(path)?;
            let broker = hostler_queue_embedded::EmbeddedBroker::open(path)?;
            if is_new {
                tracing::info!(path = %full(path).display(), "created the embedded queue");
            }
            Ok(Arc::new(broker))
        }
        #[cfg(not(feature = "embedded"))]
        Driver::Embedded => Err(no_driver("embedded")),
        #[cfg(feature = "sqs")]
        Driver::Sqs => Ok(Arc::new(hostler_queue_sqs::SqsBroker::connect(sqs_options(config)).await?)),
        #[cfg(not(feature = "sqs"))]
        Driver::Sqs => Err(no_driver("sqs")),
    }
}

/// The same, for who only looks: nothing is created for it, and nothing is there where nothing was created yet.
///
/// # Errors
/// As [`connect`].
pub async fn connect_to_look(config: &Config) -> Result<Arc<dyn Provisioner>, QueueError> {
    #[cfg(feature = "embedded")]
    if config.queue.driver == Driver::Embedded {
        let path = &config.queue.embedded.path;
        return Ok(Arc::new(hostler_queue_embedded::EmbeddedBroker::open_to_look(path)?));
    }
    connect(config).await
}

/// A path as it counts from everywhere.
pub fn full(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// The file that the queue will be in, if nothing has created it yet: perhaps another folder is meant.
pub fn file_to_come(config: &Config) -> Option<&Path> {
    let path = &config.queue.embedded.path;
    (config.queue.driver == Driver::Embedded && !path.exists()).then_some(path)
}

/// Makes what is missing of every channel that the config consumes, so that what is sent next is kept for its consumers.
/// Where channels are not made by use, there is nothing to make: a producer needs no right to other queues.
///
/// # Errors
/// The first channel that cannot be made.
pub async fn declare(broker: &Arc<dyn Provisioner>, config: &Config) -> Result<(), QueueError> {
    if config.queue.driver == Driver::Sqs && config.queue.sqs.provision == Provision::Check {
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
    if config.queue.driver == Driver::Sqs && config.queue.sqs.provision == Provision::Auto {
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

/// What the config says of SQS.
#[cfg(feature = "sqs")]
pub fn sqs_options(config: &Config) -> hostler_queue_sqs::Options {
    let (sqs, payload) = (&config.queue.sqs, &config.payload);
    hostler_queue_sqs::Options {
        region: sqs.region.clone(),
        endpoint_url: sqs.endpoint_url.clone(),
        credentials: None,
        prefix: sqs.prefix.clone(),
        create_missing: sqs.provision == Provision::Auto,
        kms_key: sqs.kms_key.clone(),
        bucket: payload.bucket.clone(),
        threshold: usize::try_from(payload.threshold).unwrap_or(usize::MAX),
        http: None,
    }
}

/// The folder of a first run's queue need not exist.
#[cfg(feature = "embedded")]
fn create_folder(path: &Path) -> Result<(), QueueError> {
    let Some(folder) = path.parent() else { return Ok(()) };
    std::fs::create_dir_all(folder).map_err(|error| {
        let folder = folder.display();
        QueueError::Refused(format!("queue.embedded.path: cannot create the folder {folder}: {error}"))
    })
}

#[cfg(not(all(feature = "embedded", feature = "sqs")))]
fn no_driver(name: &str) -> QueueError {
    QueueError::Refused(format!(
        "queue.driver: this build of hostler has no driver `{name}`; it was built without that feature"
    ))
}
