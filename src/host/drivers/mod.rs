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
    /// [`QueueError`] if it cannot be reached, or if this build has no such driver.
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
        self.connect_to_look(config).await?;
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

/// Returns the driver that the config names.
pub fn driver(config: &Config) -> &'static dyn QueueDriver {
    let named = config.queue.driver;
    DRIVERS.iter().find(|(word, _)| *word == named).map_or(&Absent, |(_, driver)| *driver)
}

/// A driver that this build does not have.
struct Absent;

impl Absent {
    fn refusal(config: &Config) -> QueueError {
        QueueError::Refused(format!(
            "queue.driver: this build of hostler has no driver `{}`; it was built without that feature",
            config.queue.driver.word()
        ))
    }
}

#[async_trait]
impl QueueDriver for Absent {
    async fn connect(&self, config: &Config) -> Result<Arc<dyn Provisioner>, QueueError> {
        Err(Self::refusal(config))
    }

    async fn disposal(&self, config: &Config) -> Result<Arc<dyn Disposal>, QueueError> {
        Err(Self::refusal(config))
    }

    fn system(&self) -> &'static str {
        "hostler"
    }

    fn makes_what_is_missing(&self, _: &Config) -> bool {
        false
    }
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
