//! The resources of a service: queues and topics with their tags and their use, and stored bodies.
//!
//! [`Inventory`] only reads, so every driver can implement it. [`Disposal`] removes resources. Only a service that records
//! the use of its resources can implement [`Disposal`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;

use super::QueueError;

/// Names of the tags that `provision` sets.
pub mod tag {
    use std::collections::BTreeMap;

    /// Tag with the value `true` on every resource that hostler has created.
    pub const MANAGED: &str = "hostler:managed";
    /// Tag with the name of the consumer that uses a queue.
    pub const CONSUMER: &str = "hostler:consumer";
    /// Tag with the owner of a queue.
    pub const OWNER: &str = "hostler:owner";
    /// Tag with the value `true` if the alarms on a queue are critical, otherwise `false`.
    pub const CRITICAL: &str = "hostler:critical";
    /// Tag with the alarm threshold of a queue: the minimum number of messages for an alarm. A dead-letter queue has
    /// the tag of its source queue too, but there it is ignored.
    pub const ALARM_THRESHOLD: &str = "hostler:alarm-threshold";
    /// Tag with the alarm threshold of a dead-letter queue: the minimum number of messages for an alarm.
    pub const DEAD_LETTER_ALARM_THRESHOLD: &str = "hostler:dead-letter-alarm-threshold";

    /// Returns `true` if the tags show that a resource belongs to hostler.
    pub fn is_owned(tags: &BTreeMap<String, String>) -> bool {
        tags.get(MANAGED).is_some_and(|managed| managed == "true")
            || tags.contains_key(CONSUMER)
            || tags.contains_key(OWNER)
    }
}

/// A queue that belongs to hostler according to its tags. The message counts are those of the service (SQS: approximate).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ManagedQueue {
    /// Name of the queue on the service. On SQS, with prefix and `.fifo`.
    pub name: String,
    /// Name of the queue in its channel.
    pub queue: String,
    /// All tags of the queue.
    pub tags: BTreeMap<String, String>,
    /// Number of messages that are ready to be received.
    pub visible: u64,
    /// Number of messages that were sent or released with a delay that has not yet passed. `None`: the service does not
    /// report it.
    pub delayed: Option<u64>,
    /// Number of leased messages. `None`: the service does not report it.
    pub in_flight: Option<u64>,
    /// Creation time. `None`: the service does not report the creation time.
    pub created: Option<SystemTime>,
}

impl ManagedQueue {
    /// Returns the number of all messages in the queue that the service reports.
    pub fn messages(&self) -> u64 {
        [self.delayed, self.in_flight].into_iter().flatten().fold(self.visible, u64::saturating_add)
    }

    /// Returns the name of the queue that this dead-letter queue belongs to. `None`: this queue is not a dead-letter
    /// queue.
    pub fn dead_letters_of(&self) -> Option<&str> {
        self.queue.strip_suffix("-dlq").filter(|name| !name.is_empty())
    }
}

/// A topic that belongs to hostler according to its tags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagedTopic {
    /// Name of the topic on the service. On SNS, with prefix and `.fifo`.
    pub name: String,
    /// Name of the exchange.
    pub exchange: String,
}

/// A resource that could not be read, so it is unknown whether it belongs to hostler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unread {
    /// Name of the resource on the service.
    pub name: String,
    /// Error message of the service.
    pub reason: String,
    /// Set if hostler lacks the permission. Otherwise, the next attempt may succeed.
    pub denied: bool,
}

/// The result of listing the resources whose names start with the configured prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing<T> {
    /// Resources that belong to hostler.
    pub found: Vec<T>,
    /// Resources that could not be read.
    pub unread: Vec<Unread>,
}

impl<T> Default for Listing<T> {
    fn default() -> Self {
        Self { found: Vec::new(), unread: Vec::new() }
    }
}

/// The use of a queue over a period.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueUse {
    /// Number of messages sent to the queue (CloudWatch: `NumberOfMessagesSent`).
    pub sent: u64,
    /// Number of messages received from the queue (CloudWatch: `NumberOfMessagesReceived`).
    pub received: u64,
    /// Number of receive calls that returned no message (CloudWatch: `NumberOfEmptyReceives`). Such calls show that a
    /// consumer polls.
    pub empty_receives: u64,
}

/// The body of a message in the payload bucket.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Body {
    /// Key of the object in the bucket.
    pub key: String,
    /// Time at which the body was stored, in seconds since the Unix epoch.
    pub stored_at: u64,
    /// Size in bytes.
    pub bytes: u64,
}

/// A list of bodies in the payload bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredBodies {
    /// Name of the bucket.
    pub bucket: String,
    /// The bodies that match the request, up to the requested maximum.
    pub bodies: Vec<Body>,
    /// Set if the bucket contains further matching bodies.
    pub more: bool,
}

/// The result of a removal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Removal {
    /// The resource was removed.
    Removed,
    /// The resource was not removed. The field is the reason.
    Kept(String),
}

/// A service that can list its queues.
#[async_trait]
pub trait Inventory: Send + Sync {
    /// Lists all queues under the configured prefix that belong to hostler according to their tags.
    ///
    /// # Errors
    /// [`QueueError`] if the queues cannot be listed. A queue that cannot be read is in [`Listing::unread`] instead.
    async fn queues(&self) -> Result<Listing<ManagedQueue>, QueueError>;
}

/// A service that records the use of its resources and can remove resources.
#[async_trait]
pub trait Disposal: Inventory {
    /// Lists all topics under the configured prefix that belong to hostler according to their tags.
    ///
    /// # Errors
    /// [`QueueError`] if the topics cannot be listed.
    async fn topics(&self) -> Result<Listing<ManagedTopic>, QueueError>;

    /// Returns the names, on the service, of all queues that are subscribed to any topic of this account and region.
    ///
    /// # Errors
    /// [`QueueError`] if the subscriptions cannot be listed.
    async fn subscribed(&self) -> Result<BTreeSet<String>, QueueError>;

    /// Returns the use of each queue during the last period of length `over`, in the order of `names`. The result of a
    /// queue is `None` if the service has no record of the queue.
    ///
    /// # Errors
    /// [`QueueError`] if a part of the record cannot be read.
    async fn queue_use(&self, names: &[String], over: Duration) -> Result<Vec<Option<QueueUse>>, QueueError>;

    /// Returns the number of messages published to each topic during the last period of length `over`, in the order of
    /// `names`. The result of a topic is `None` if the service has no record of the topic.
    ///
    /// # Errors
    /// [`QueueError`] if a part of the record cannot be read.
    async fn published(&self, names: &[String], over: Duration) -> Result<Vec<Option<u64>>, QueueError>;

    /// Lists up to `most` bodies that were stored before `time`. `None`: the service does not store bodies separately.
    ///
    /// # Errors
    /// [`QueueError`] if the bodies cannot be listed.
    async fn stored_before(&self, time: SystemTime, most: usize) -> Result<Option<StoredBodies>, QueueError>;

    /// Removes a queue that belongs to hostler. Checks first that the queue still belongs to hostler and is empty. A
    /// dead-letter queue is removed only if all queues that use it as their dead-letter queue are in `gone`, which
    /// contains the service's names of removed queues.
    ///
    /// # Errors
    /// [`QueueError`] if the removal failed. The queue probably still exists.
    async fn remove_queue(&self, name: &str, gone: &BTreeSet<String>) -> Result<Removal, QueueError>;

    /// Removes stored bodies and returns the number of removed bodies.
    ///
    /// # Errors
    /// [`QueueError`] at the first call that fails. Some bodies may have been removed by then.
    async fn remove_bodies(&self, bodies: &[Body]) -> Result<usize, QueueError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_carries_our_tags_is_ours() {
        let tags = |tags: &[(&str, &str)]| tags.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        for ours in [(tag::MANAGED, "true"), (tag::CONSUMER, "orders"), (tag::OWNER, "shop")] {
            assert!(tag::is_owned(&tags(&[ours])), "{ours:?}");
        }
        for others in [&[][..], &[("hostler:managed", "false")], &[("owner", "shop"), ("team", "hostler:owner")]] {
            assert!(!tag::is_owned(&tags(others)), "{others:?}");
        }
    }

    #[test]
    fn a_dead_letter_queue_is_known_by_its_name() {
        let of = |queue: &str| ManagedQueue { queue: queue.into(), ..ManagedQueue::default() };
        assert_eq!(of("orders-dlq").dead_letters_of(), Some("orders"));
        assert_eq!((of("orders").dead_letters_of(), of("-dlq").dead_letters_of()), (None, None));
    }
}
