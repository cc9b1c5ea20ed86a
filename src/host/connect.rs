//! From the config to a queue service.

use std::sync::Arc;

use super::channel_spec;
use crate::config::{Config, Driver, QueueConfig};
use crate::queue::{Broker, QueueError};

/// Connects to the queue service that the config names.
///
/// # Errors
/// [`QueueError`] when it cannot be reached, or when this build has no driver for it.
pub async fn connect(config: &QueueConfig) -> Result<Arc<dyn Broker>, QueueError> {
    match config.driver {
        #[cfg(feature = "embedded")]
        Driver::Embedded => {
            let path = &config.embedded.path;
            create_folder(path)?;
            Ok(Arc::new(crate::queue::embedded::EmbeddedBroker::open(path)?))
        }
        #[cfg(not(feature = "embedded"))]
        Driver::Embedded => Err(no_driver("embedded")),
        Driver::Sqs => Err(no_driver("sqs")),
    }
}

/// Opens every channel that the config consumes, so that what is sent next is kept for its consumers.
///
/// # Errors
/// The first channel that cannot be opened.
pub async fn declare(broker: &dyn Broker, config: &Config) -> Result<(), QueueError> {
    for consumer in &config.consumers {
        broker.open(&channel_spec(consumer)).await?;
    }
    Ok(())
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

fn no_driver(name: &str) -> QueueError {
    QueueError::Refused(format!("queue.driver: this build of hostler has no driver `{name}`; set it to \"embedded\""))
}
