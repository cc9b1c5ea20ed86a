//! The queue drivers of this build, as the host knows them: a file for each, and a line in [`of`].

#[cfg(feature = "embedded")]
mod embedded;
#[cfg(feature = "sqs")]
mod sqs;
mod untagged;

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;

use hostler_config::{Config, Driver};
use hostler_queue::{Disposal, Inventory, Provisioner, QueueError};
#[cfg(feature = "sqs")]
pub use sqs::options as sqs_options;
use untagged::Untagged;

/// A queue driver: connects, and answers what the host has to know of it beforehand.
#[async_trait]
pub trait QueueDriver: Send + Sync + 'static {
    /// Connects to the service that the config names.
    ///
    /// # Errors
    /// [`QueueError`] when it cannot be reached.
    async fn connect(&self, config: &Config) -> Result<Arc<dyn Provisioner>, QueueError>;

    /// Connects for a command that only looks: nothing is created, and where nothing was created yet there is nothing.
    ///
    /// # Errors
    /// As [`Self::connect`].
    async fn connect_to_look(&self, config: &Config) -> Result<Arc<dyn Provisioner>, QueueError> {
        self.connect(config).await
    }

    /// Lists what there is on the service, by owner. On one without tags, every queue is ours.
    ///
    /// # Errors
    /// As [`Self::connect`].
    async fn inventory(&self, config: &Config) -> Result<Arc<dyn Inventory>, QueueError> {
        // A service that cannot be reached is refused at once.
        connect_to_look(config).await?;
        Ok(Arc::new(Untagged::new(config)))
    }

    /// Lists what there is with its use, and removes it.
    ///
    /// # Errors
    /// [`QueueError::Refused`] on a service that keeps no record of use.
    async fn disposal(&self, config: &Config) -> Result<Arc<dyn Disposal>, QueueError>;

    /// The `messaging.system` of OpenTelemetry's conventions.
    fn system(&self) -> &'static str;

    /// The file that holds the queue: granted to no guest, and open to the hardened process.
    fn file<'a>(&self, config: &'a Config) -> Option<&'a Path> {
        let _ = config;
        None
    }

    /// Whether opening or sending makes what is missing.
    fn makes_what_is_missing(&self, config: &Config) -> bool {
        let _ = config;
        true
    }

    /// Follows the text of a refused receive: what a person can do.
    fn cure_of_a_refusal(&self) -> &'static str {
        ""
    }
}

/// The driver that the config names, if this build has it.
fn of(config: &Config) -> Result<&'static dyn QueueDriver, QueueError> {
    match config.queue.driver {
        #[cfg(feature = "embedded")]
        Driver::Embedded => Ok(&embedded::Embedded),
        #[cfg(feature = "sqs")]
        Driver::Sqs => Ok(&sqs::Sqs),
        #[cfg(not(all(feature = "embedded", feature = "sqs")))]
        other => Err(QueueError::Refused(format!(
            "queue.driver: this build of hostler has no driver `{}`; it was built without that feature",
            Driver::WORDS[other as usize]
        ))),
    }
}

/// Connects to the queue service that the config names.
///
/// # Errors
/// [`QueueError`] when it cannot be reached, or when this build has no driver for it.
pub async fn connect(config: &Config) -> Result<Arc<dyn Provisioner>, QueueError> {
    of(config)?.connect(config).await
}

/// The same by [`QueueDriver::connect_to_look`].
///
/// # Errors
/// As [`connect`].
pub async fn connect_to_look(config: &Config) -> Result<Arc<dyn Provisioner>, QueueError> {
    of(config)?.connect_to_look(config).await
}

/// What there is on the service that the config names.
///
/// # Errors
/// As [`connect`].
pub async fn inventory(config: &Config) -> Result<Arc<dyn Inventory>, QueueError> {
    of(config)?.inventory(config).await
}

/// What there is, with its use and its removal.
///
/// # Errors
/// As [`connect`]; [`QueueError::Refused`] where the service keeps no record of use.
pub async fn disposal(config: &Config) -> Result<Arc<dyn Disposal>, QueueError> {
    of(config)?.disposal(config).await
}

/// The file that holds the queue, where it is one.
pub fn file(config: &Config) -> Option<&Path> {
    of(config).ok()?.file(config)
}

/// Whether opening or sending makes what is missing.
pub fn makes_what_is_missing(config: &Config) -> bool {
    of(config).is_ok_and(|driver| driver.makes_what_is_missing(config))
}

/// The `messaging.system` of the queues that the config names.
pub fn system(config: &Config) -> &'static str {
    of(config).map_or("hostler", QueueDriver::system)
}

/// What follows the text of a refused receive.
pub fn cure_of_a_refusal(config: &Config) -> &'static str {
    of(config).map_or("", QueueDriver::cure_of_a_refusal)
}
