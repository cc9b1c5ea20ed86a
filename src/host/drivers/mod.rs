//! Queue drivers of this build. Each driver has its own file and an entry in [`DRIVERS`].

#[cfg(feature = "embedded")]
mod embedded;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
#[cfg(feature = "sqs")]
mod sqs;
mod untagged;

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;

use hostler_config::{Config, Consumer, Driver};
use hostler_queue::{Disposal, Inventory, Provisioner, QueueError};
#[cfg(feature = "sqs")]
pub use sqs::options as sqs_options;
use untagged::Untagged;

/// A queue driver. Connects to the queue service. Also answers questions about the service, such as which file stores
/// the queue. These answers need no connection.
#[async_trait]
pub trait QueueDriver: Send + Sync + 'static {
    /// Connects to the service that the config names.
    ///
    /// # Errors
    /// [`QueueError`] if the service cannot be reached, or if this build lacks the driver.
    async fn connect(&self, config: &Config) -> Result<Arc<dyn Provisioner>, QueueError>;

    /// Connects for a command that only reads. Creates no queue. A missing queue counts as empty.
    ///
    /// # Errors
    /// Same as for [`Self::connect`].
    async fn connect_to_look(&self, config: &Config) -> Result<Arc<dyn Provisioner>, QueueError> {
        self.connect(config).await
    }

    /// Returns the inventory of the service's queues and their owners. On a service without tags, hostler counts as the owner of
    /// every queue.
    ///
    /// # Errors
    /// Same as for [`Self::connect`].
    async fn inventory(&self, config: &Config) -> Result<Arc<dyn Inventory>, QueueError> {
        // Fails early if the service cannot be reached.
        self.connect_to_look(config).await?;
        Ok(Arc::new(Untagged::new(config)))
    }

    /// Returns an interface to the queues, topics and stored bodies of the service. The interface lists when each resource was
    /// last used, and removes resources.
    ///
    /// # Errors
    /// [`QueueError::Refused`] if the service does not record when its resources were last used.
    async fn disposal(&self, config: &Config) -> Result<Arc<dyn Disposal>, QueueError>;

    /// Returns the value of `messaging.system`, as defined by OpenTelemetry's semantic conventions.
    fn system(&self) -> &'static str;

    /// Returns the file that stores the queue. The hardened process may access the file, but guests may not. `None`: the driver
    /// stores no file.
    fn file<'a>(&self, config: &'a Config) -> Option<QueueFile<'a>> {
        let _ = config;
        None
    }

    /// Returns the files that say which server to use and whom to trust, each with its config key. The
    /// hardened process may read them, as the driver does when it connects. Guests may not write to them.
    fn trusted_files<'a>(&self, config: &'a Config) -> Vec<(&'static str, &'a Path)> {
        let _ = config;
        Vec::new()
    }

    /// Returns true if opening a queue or sending a message creates missing resources.
    fn makes_what_is_missing(&self, config: &Config) -> bool {
        let _ = config;
        true
    }

    /// Returns true if the driver calls AWS. In that case, the hardened process may read the files of the AWS SDK.
    fn uses_aws(&self) -> bool {
        false
    }

    /// Returns true if the driver stores large messages in the bucket of `[payload]`.
    fn uses_payload(&self) -> bool {
        false
    }

    /// Returns what the service counts for a message that a command receives and gives back, for people. `None`: it counts
    /// nothing, or commands see messages without receiving them.
    fn cost_of_a_look(&self) -> Option<&'static str> {
        None
    }

    /// Returns the name of the service in texts for people.
    fn title(&self) -> &'static str {
        "the queue"
    }

    /// Returns true if hostler implements a delay beyond 15 minutes by receiving the message repeatedly. In that case, the queue
    /// must be set up for the `longest_delay` of its consumer.
    fn receives_to_wait(&self) -> bool {
        false
    }

    /// Returns true if the service uses the groups of unordered queues. SQS keeps one group of such a queue from delaying the
    /// messages of others (fair queues).
    fn has_fair_queues(&self) -> bool {
        false
    }

    /// Returns a warning if the service by default takes back messages that this consumer may still hold. `None`: it does not.
    fn takes_back_early(&self, consumer: &Consumer) -> Option<String> {
        let _ = consumer;
        None
    }

    /// Returns the number of threads that the driver starts in a host.
    fn threads(&self) -> usize {
        0
    }

    /// Closes the files of all connections of this process. Called at the end of the process.
    fn close(&self) {}

    /// Returns the permissions that users of the service need for this config, for people. `None`: the service has no permissions
    /// that hostler could name.
    fn permissions(&self, config: &Config) -> Option<String> {
        let _ = config;
        None
    }

    /// Returns what the service does not list, so that `provision` cannot tell whether it has changed it, for people. `None`: it lists
    /// everything.
    fn unlisted(&self, config: &Config) -> Option<&'static str> {
        let _ = config;
        None
    }

    /// Returns advice for a user who lacks a permission.
    fn cure_of_a_denial(&self) -> &'static str {
        "give hostler's user the permission"
    }

    /// Returns advice that is appended to the error message of a refused receive call.
    fn cure_of_a_refusal(&self) -> &'static str {
        ""
    }
}

/// Drivers of this build, each with its name in the config.
const DRIVERS: &[(Driver, &dyn QueueDriver)] = &[
    #[cfg(feature = "embedded")]
    (Driver::Embedded, &embedded::Embedded),
    #[cfg(feature = "sqs")]
    (Driver::Sqs, &sqs::Sqs),
    #[cfg(feature = "rabbitmq")]
    (Driver::RabbitMq, &rabbitmq::RabbitMq),
    #[cfg(feature = "nats")]
    (Driver::Nats, &nats::Nats),
    #[cfg(feature = "postgres")]
    (Driver::Postgres, &postgres::Postgres),
];

/// A file that stores a queue.
#[derive(Debug, Clone, Copy)]
pub struct QueueFile<'a> {
    /// Config key that names the file.
    pub key: &'static str,
    /// Path of the file.
    pub path: &'a Path,
    /// Suffixes of the companion files that the driver stores next to the file.
    pub companions: &'static [&'static str],
}

/// Returns the driver that the config names. If this build lacks the driver, returns a stand-in whose connections fail.
pub fn driver(config: &Config) -> &'static dyn QueueDriver {
    named(config.queue.driver)
}

/// Returns the driver with this name. If this build lacks the driver, returns a stand-in whose connections fail.
pub(super) fn named(named: Driver) -> &'static dyn QueueDriver {
    DRIVERS.iter().find(|(word, _)| *word == named).map_or(&Absent, |(_, driver)| *driver)
}

/// Closes the files of all drivers. Without this call, a driver's thread might end before its file is in order.
pub fn close_all() {
    DRIVERS.iter().for_each(|(_, driver)| driver.close());
}

/// Stand-in for a driver that this build lacks. Every connection fails.
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

    #[test]
    fn only_drivers_of_aws_cure_a_missing_permission_by_iam() {
        for (word, driver) in DRIVERS {
            let cure = driver.cure_of_a_denial();
            assert_eq!(cure.contains("hostler iam"), driver.uses_aws(), "{word:?}: {cure}");
        }
    }

    /// Checks the drivers of a full build. A build without a driver's Cargo feature refuses the driver's name in the config.
    #[test]
    fn a_full_build_has_a_driver_for_every_word_of_the_config() {
        let built: Vec<_> = DRIVERS.iter().map(|(word, _)| word.word()).collect();
        if cfg!(all(
            feature = "embedded",
            feature = "sqs",
            feature = "rabbitmq",
            feature = "nats",
            feature = "postgres"
        )) {
            assert_eq!(built, Driver::WORDS);
        }
    }
}
