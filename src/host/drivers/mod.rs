//! The queue drivers of this build: a file for each, and a line in [`DRIVERS`].

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

/// A queue driver: connects to its service, and tells the host the service's properties beforehand.
#[async_trait]
pub trait QueueDriver: Send + Sync + 'static {
    /// Connects to the service that the config names.
    ///
    /// # Errors
    /// [`QueueError`] if it cannot be reached.
    async fn connect(&self, config: &Config) -> Result<Arc<dyn Provisioner>, QueueError>;

    /// Connects for a command that only reads: creates nothing, and a queue that does not exist yet is empty.
    ///
    /// # Errors
    /// As [`Self::connect`].
    async fn connect_to_look(&self, config: &Config) -> Result<Arc<dyn Provisioner>, QueueError> {
        self.connect(config).await
    }

    /// Lists the queues of the service, by owner. On a service without tags, every queue is ours.
    ///
    /// # Errors
    /// As [`Self::connect`].
    async fn inventory(&self, config: &Config) -> Result<Arc<dyn Inventory>, QueueError> {
        // Fails early if the service cannot be reached.
        connect_to_look(config).await?;
        Ok(Arc::new(Untagged::new(config)))
    }

    /// Lists queues, topics and stored bodies of the service with their use, and removes them.
    ///
    /// # Errors
    /// [`QueueError::Refused`] if the service keeps no record of use.
    async fn disposal(&self, config: &Config) -> Result<Arc<dyn Disposal>, QueueError>;

    /// Returns the `messaging.system` of OpenTelemetry's conventions.
    fn system(&self) -> &'static str;

    /// Returns the file that holds the queue: no guest may have it, and the hardened process may open it.
    fn file<'a>(&self, config: &'a Config) -> Option<QueueFile<'a>> {
        let _ = config;
        None
    }

    /// Returns true if opening or sending creates what is missing.
    fn makes_what_is_missing(&self, config: &Config) -> bool {
        let _ = config;
        true
    }

    /// Returns true if the driver calls AWS: the hardened process then reaches what the AWS SDK reads.
    fn uses_aws(&self) -> bool {
        false
    }

    /// Returns true if the driver keeps large messages in the bucket of `[payload]`.
    fn uses_payload(&self) -> bool {
        false
    }

    /// Returns true if looking at messages receives them, which counts as an attempt.
    fn receives_to_look(&self) -> bool {
        false
    }

    /// Returns advice that follows the text of a refused receive.
    fn cure_of_a_refusal(&self) -> &'static str {
        ""
    }
}

/// The drivers of this build, by their word in the config.
const DRIVERS: &[(Driver, &dyn QueueDriver)] = &[
    #[cfg(feature = "embedded")]
    (Driver::Embedded, &embedded::Embedded),
    #[cfg(feature = "sqs")]
    (Driver::Sqs, &sqs::Sqs),
];

/// A file that holds a queue.
#[derive(Debug, Clone, Copy)]
pub struct QueueFile<'a> {
    /// The config key that names it.
    pub key: &'static str,
    /// Its path.
    pub path: &'a Path,
    /// Endings of the files that the driver keeps beside it.
    pub companions: &'static [&'static str],
}

/// The driver that the config names, if this build has it.
fn of(config: &Config) -> Result<&'static dyn QueueDriver, QueueError> {
    let named = config.queue.driver;
    let found = DRIVERS.iter().find(|(word, _)| *word == named).map(|(_, driver)| *driver);
    found.ok_or_else(|| {
        QueueError::Refused(format!(
            "queue.driver: this build of hostler has no driver `{}`; it was built without that feature",
            named.word()
        ))
    })
}

/// Connects to the queue service that the config names.
///
/// # Errors
/// [`QueueError`] if it cannot be reached, or if this build has no driver for it.
pub async fn connect(config: &Config) -> Result<Arc<dyn Provisioner>, QueueError> {
    of(config)?.connect(config).await
}

/// Connects for a command that only looks: nothing is created.
///
/// # Errors
/// As [`connect`].
pub async fn connect_to_look(config: &Config) -> Result<Arc<dyn Provisioner>, QueueError> {
    of(config)?.connect_to_look(config).await
}

/// Returns the inventory of the service that the config names.
///
/// # Errors
/// As [`connect`].
pub async fn inventory(config: &Config) -> Result<Arc<dyn Inventory>, QueueError> {
    of(config)?.inventory(config).await
}

/// Returns the inventory with use and removal.
///
/// # Errors
/// As [`connect`]; [`QueueError::Refused`] if the service keeps no record of use.
pub async fn disposal(config: &Config) -> Result<Arc<dyn Disposal>, QueueError> {
    of(config)?.disposal(config).await
}

/// The file that holds the queue, where it is one.
pub fn file(config: &Config) -> Option<QueueFile<'_>> {
    of(config).ok()?.file(config)
}

/// Returns true if opening or sending creates what is missing.
pub fn makes_what_is_missing(config: &Config) -> bool {
    of(config).is_ok_and(|driver| driver.makes_what_is_missing(config))
}

/// Returns true if the driver that the config names calls AWS.
pub fn uses_aws(config: &Config) -> bool {
    of(config).is_ok_and(QueueDriver::uses_aws)
}

/// Returns true if the driver that the config names keeps large messages in the bucket of `[payload]`.
pub fn uses_payload(config: &Config) -> bool {
    of(config).is_ok_and(QueueDriver::uses_payload)
}

/// The `messaging.system` of the queues that the config names.
pub fn system(config: &Config) -> &'static str {
    of(config).map_or("hostler", QueueDriver::system)
}

/// Returns true if looking at messages receives them, which counts as an attempt.
pub fn receives_to_look(config: &Config) -> bool {
    of(config).is_ok_and(QueueDriver::receives_to_look)
}

/// Returns the advice that follows the text of a refused receive.
pub fn cure_of_a_refusal(config: &Config) -> &'static str {
    of(config).map_or("", QueueDriver::cure_of_a_refusal)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the names of Cargo features: a build without one has no such driver, and its word is refused.
    #[test]
    fn a_full_build_has_a_driver_for_every_word_of_the_config() {
        let built: Vec<_> = DRIVERS.iter().map(|(word, _)| word.word()).collect();
        if cfg!(all(feature = "embedded", feature = "sqs")) {
            assert_eq!(built, Driver::WORDS);
        }
    }
}
