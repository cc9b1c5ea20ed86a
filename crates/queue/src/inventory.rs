//! A service's resources for operations: queues and topics by their tags, their use, and stored bodies.
//!
//! [`Inventory`] only reads, and every driver can offer it. [`Disposal`] removes, and only a service that keeps a
//! record of use can offer it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;

use super::QueueError;

/// The tags that `provision` sets.
pub mod tag {
    use std::collections::BTreeMap;

    /// `true` on everything that hostler has created.
    pub const MANAGED: &str = "hostler:managed";
    /// The consumer that uses a queue.
    pub const CONSUMER: &str = "hostler:consumer";
    /// The owner of a queue.
    pub const OWNER: &str = "hostler:owner";
    /// `true` if alarms on a queue are critical, otherwise `false`.
    pub const CRITICAL: &str = "hostler:critical";
    /// Number of messages in a queue that raises an alarm. Its dead-letter queue also has this tag and ignores it.
    pub const ALARM_THRESHOLD: &str = "hostler:alarm-threshold";
    /// Number of messages in a dead-letter queue that raises an alarm.
    pub const DEAD_LETTER_ALARM_THRESHOLD: &str = "hostler:dead-letter-alarm-threshold";

    /// Reports `true` if these tags mark a resource of hostler's.
    pub fn is_owned(tags: &BTreeMap<String, String>) -> bool {
        tags.get(MANAGED).is_some_and(|managed| managed == "true")
            || tags.contains_key(CONSUMER)
            || tags.contains_key(OWNER)
    }
}

/// A queue that its tags mark as hostler's, with its message counts by the service (SQS: approximate).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ManagedQueue {
    /// Its name on the service; on SQS with prefix and `.fifo`.
    pub name: String,
    /// The name of the queue in its channel.
    pub queue: String,
    /// All of its tags.
    pub tags: BTreeMap<String, String>,
    /// Ready to be received.
    pub visible: u64,
    /// Sent or released with a delay that has not passed.
    pub delayed: u64,
    /// Leased.
    pub in_flight: u64,
    /// Creation time; `None` where the service does not report it.
    pub created: Option<SystemTime>,
}

impl ManagedQueue {
    /// Counts all messages in the queue.
    pub fn messages(&self) -> u64 {
        self.visible.saturating_add(self.delayed).saturating_add(self.in_flight)
    }

    /// Returns the name of the queue whose dead letters go here; `None`: this is no dead-letter queue.
    pub fn dead_letters_of(&self) -> Option<&str> {
        self.queue.strip_suffix("-dlq").filter(|name| !name.is_empty())
    }
}

/// A topic that its tags mark as hostler's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagedTopic {
    /// Its name on the service; on SNS with prefix and `.fifo`.
    pub name: String,
    /// The name of the exchange.
    pub exchange: String,
}

/// A resource that could not be read. Nothing is known of it, not even its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unread {
    /// Its name on the service.
    pub name: String,
    /// The answer of the service.
    pub reason: String,
    /// Set if we lack the permission; otherwise the next attempt may succeed.
    pub denied: bool,
}

/// The result of listing everything under our prefix.
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
    /// Messages sent to it (CloudWatch: `NumberOfMessagesSent`).
    pub sent: u64,
    /// Messages received from it (`NumberOfMessagesReceived`).
    pub received: u64,
    /// Receives that returned no message (`NumberOfEmptyReceives`), a sign of a listening consumer.
    pub empty_receives: u64,
}

/// A message's body in the payload bucket.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Body {
    /// Its key.
    pub key: String,
    /// Time of storage, in seconds since 1970.
    pub stored_at: u64,
    /// Its size in bytes.
    pub bytes: u64,
}

/// Bodies in the payload bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredBodies {
    /// The bucket.
    pub bucket: String,
    /// The bodies that match the request, up to its limit.
    pub bodies: Vec<Body>,
    /// Set if more bodies match.
    pub more: bool,
}

/// The result of a removal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Removal {
    /// The resource is gone.
    Removed,
    /// The resource stays, for this reason.
    Kept(String),
}

/// A service that can list its queues.
#[async_trait]
pub trait Inventory: Send + Sync {
    /// Lists every queue under our prefix that its tags mark as hostler's.
    ///
    /// # Errors
    /// [`QueueError`] if the queues cannot be listed. A queue that cannot be read is in [`Listing::unread`] instead.
    async fn queues(&self) -> Result<Listing<ManagedQueue>, QueueError>;
}

/// A service that records the use of its resources and can remove them.
#[async_trait]
pub trait Disposal: Inventory {
    /// Lists every topic under our prefix that its tags mark as hostler's.
    ///
    /// # Errors
    /// [`QueueError`] if the topics cannot be listed.
    async fn topics(&self) -> Result<Listing<ManagedTopic>, QueueError>;

    /// Returns the names on the service of all queues that a topic delivers to. Covers the subscriptions of this
    /// account and region.
    ///
    /// # Errors
    /// [`QueueError`] if the subscriptions cannot be listed.
    async fn subscribed(&self) -> Result<BTreeSet<String>, QueueError>;

    /// Returns the use of each of these queues over the last `over`, in their order; `None` where there is no record.
    ///
    /// # Errors
    /// [`QueueError`] if a part of the record cannot be read.
    async fn queue_use(&self, names: &[String], over: Duration) -> Result<Vec<Option<QueueUse>>, QueueError>;

    /// Counts the messages published to each of these topics over the last `over`, in their order; `None` where there
    /// is no record.
    ///
    /// # Errors
    /// [`QueueError`] if a part of the record cannot be read.
    async fn published(&self, names: &[String], over: Duration) -> Result<Vec<Option<u64>>, QueueError>;

    /// Lists up to `most` bodies that were stored before `time`; `None` where bodies are not stored separately.
    ///
    /// # Errors
    /// [`QueueError`] if they cannot be listed.
    async fn stored_before(&self, time: SystemTime, most: usize) -> Result<Option<StoredBodies>, QueueError>;

    /// Removes one of our queues. Checks first that it is still ours, is empty, and is the dead-letter queue only of
    /// queues in `gone` (names on the service).
    ///
    /// # Errors
    /// [`QueueError`]: the queue still exists, as far as is known.
    async fn remove_queue(&self, name: &str, gone: &BTreeSet<String>) -> Result<Removal, QueueError>;

    /// Removes stored bodies and returns how many are gone.
    ///
    /// # Errors
    /// [`QueueError`] at the first call that fails; some of the bodies may be gone.
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
