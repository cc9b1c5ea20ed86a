//! From the config to a queue service.

use std::sync::Arc;

use super::channel_spec;
use crate::config::{Config, Driver, Provision};
use crate::queue::{Broker, QueueError};

/// Connects to the queue service that the config names.
///
/// # Errors
/// [`QueueError`] when it cannot be reached, or when this build has no driver for it.
pub async fn connect(config: &Config) -> Result<Arc<dyn Broker>, QueueError> {
    match config.queue.driver {
        #[cfg(feature = "embedded")]
        Driver::Embedded => {
            let path = &config.queue.embedded.path;
            create_folder(path)?;
            Ok(Arc::new(crate::queue::embedded::EmbeddedBroker::open(path)?))
        }
        #[cfg(not(feature = "embedded"))]
        Driver::Embedded => Err(no_driver("embedded")),
        #[cfg(feature = "sqs")]
        Driver::Sqs => Ok(Arc::new(crate::queue::sqs::SqsBroker::connect(sqs_options(config)).await?)),
        #[cfg(not(feature = "sqs"))]
        Driver::Sqs => Err(no_driver("sqs")),
    }
}

/// Opens every channel that the config consumes, so that what is sent next is kept for its consumers. Where channels are
/// not made by use, there is nothing to open: a producer needs no right to other queues.
///
/// # Errors
/// The first channel that cannot be opened.
pub async fn declare(broker: &dyn Broker, config: &Config) -> Result<(), QueueError> {
    if config.queue.driver == Driver::Sqs && config.queue.sqs.provision == Provision::Check {
        return Ok(());
    }
    for consumer in &config.consumers {
        broker.open(&channel_spec(consumer)).await?;
    }
    Ok(())
}

/// What the config says of SQS.
#[cfg(feature = "sqs")]
pub fn sqs_options(config: &Config) -> crate::queue::sqs::Options {
    let (sqs, payload) = (&config.queue.sqs, &config.payload);
    crate::queue::sqs::Options {
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
fn create_folder(path: &std::path::Path) -> Result<(), QueueError> {
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
