//! What a service holds, as upkeep sees it: queues and topics by their tags, how they were used, and stored bodies.
//!
//! [`Inventory`] only looks, and every driver can offer it; [`Disposal`] removes, and only a service that keeps a record of
//! use can.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;

use super::QueueError;

/// The tags that `provision` sets.
pub mod tag {
    use std::collections::BTreeMap;

    /// `true` on everything that hostler has made.
    pub const MANAGED: &str = "hostler:managed";
    /// The consumer that a queue is for.
    pub const CONSUMER: &str = "hostler:consumer";
    /// Who owns a queue.
    pub const OWNER: &str = "hostler:owner";
    /// Whether alarms on a queue are critical: `true` or `false`.
    pub const CRITICAL: &str = "hostler:critical";
    /// Messages in a queue from which on there is an alarm. Its dead-letter queue has the tag too, and does not go by it.
    pub const ALARM_THRESHOLD: &str = "hostler:alarm-threshold";
    /// Messages in a dead-letter queue from which on there is an alarm.
    pub const DEAD_LETTER_ALARM_THRESHOLD: &str = "hostler:dead-letter-alarm-threshold";

    /// Whether what has these tags is hostler's.
    pub fn is_owned(tags: &BTreeMap<String, String>) -> bool {
        tags.get(MANAGED).is_some_and(|managed| managed == "true")
            || tags.contains_key(CONSUMER)
            || tags.contains_key(OWNER)
    }
}

/// A queue that is hostler's by its tags, and what is in it by the service's own count (SQS: approximate).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeldQueue {
    /// Its name on the service; on SQS with prefix and `.fifo`.
    pub name: String,
    /// The name of the channel's queue that it is.
    pub queue: String,
    /// All of its tags.
    pub tags: BTreeMap<String, String>,
    /// Ready to be received.
    pub visible: u64,
    /// Sent or released with a delay that has not passed.
    pub delayed: u64,
    /// Leased.
    pub in_flight: u64,
    /// When it was made; `None` where the service does not tell.
    pub created: Option<SystemTime>,
}

impl HeldQueue {
    /// All messages in it.
    pub fn messages(&self) -> u64 {
        self.visible.saturating_add(self.delayed).saturating_add(self.in_flight)
    }

    /// The name of the queue whose dead letters it takes; `None`: it is no dead-letter queue.
    pub fn dead_letters_of(&self) -> Option<&str> {
        self.queue.strip_suffix("-dlq").filter(|name| !name.is_empty())
    }
}

/// A topic that is hostler's by its tags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldTopic {
    /// Its name on the service; on SNS with prefix and `.fifo`.
    pub name: String,
    /// The name of the exchange that it is.
    pub exchange: String,
}

/// Something that could not be looked at, so that nothing is known of it, not even whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unread {
    /// Its name on the service.
    pub name: String,
    /// What was answered.
    pub reason: String,
    /// Whether we lack the permission; otherwise it may work the next time.
    pub denied: bool,
}

/// What came of looking at everything under our prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing<T> {
    /// What is hostler's.
    pub found: Vec<T>,
    /// What could not be looked at.
    pub unread: Vec<Unread>,
}

impl<T> Default for Listing<T> {
    fn default() -> Self {
        Self { found: Vec::new(), unread: Vec::new() }
    }
}

/// How a queue was used over a time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueUse {
    /// Messages sent to it (CloudWatch: `NumberOfMessagesSent`).
    pub sent: u64,
    /// Messages received from it (`NumberOfMessagesReceived`).
    pub received: u64,
    /// Receives that brought none (`NumberOfEmptyReceives`): somebody listens.
    pub empty_receives: u64,
}

/// A message's body in the payload bucket.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Body {
    /// Its key.
    pub key: String,
    /// When it was stored, in seconds since the epoch.
    pub stored_at: u64,
    /// Its size in bytes.
    pub bytes: u64,
}

/// Bodies in the payload bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredBodies {
    /// The bucket.
    pub bucket: String,
    /// The bodies that were asked for.
    pub bodies: Vec<Body>,
    /// Whether there are more.
    pub more: bool,
}

/// What became of something that was to be removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Removal {
    /// It is gone.
    Removed,
    /// It stays, for this reason.
    Kept(String),
}

/// What there is on a service.
#[async_trait]
pub trait Inventory: Send + Sync {
    /// Every queue under our prefix that is hostler's by its tags.
    ///
    /// # Errors
    /// [`QueueError`] when the service cannot be asked which there are. A single queue that cannot be looked at is none.
    async fn queues(&self) -> Result<Listing<HeldQueue>, QueueError>;
}

/// How what there is was used, and how it is removed.
#[async_trait]
pub trait Disposal: Inventory {
    /// Every topic under our prefix that is hostler's by its tags.
    ///
    /// # Errors
    /// [`QueueError`] when the service cannot be asked which there are.
    async fn topics(&self) -> Result<Listing<HeldTopic>, QueueError>;

    /// The queues, by their names on the service, that a topic delivers to: as far as subscriptions belong to this account and region.
    ///
    /// # Errors
    /// [`QueueError`] when the service cannot be asked which there are.
    async fn subscribed(&self) -> Result<BTreeSet<String>, QueueError>;

    /// How each of these queues was used over the last `over`, in their order; `None` where there is no record at all.
    ///
    /// # Errors
    /// [`QueueError`] when a part of the record cannot be had.
    async fn queue_use(&self, names: &[String], over: Duration) -> Result<Vec<Option<QueueUse>>, QueueError>;

    /// How many messages were published to each of these topics over the last `over`; `None` where there is no record.
    ///
    /// # Errors
    /// [`QueueError`] when a part of the record cannot be had.
    async fn published(&self, names: &[String], over: Duration) -> Result<Vec<Option<u64>>, QueueError>;

    /// Bodies that were stored before this, `most` of them at most; `None` where bodies are not stored apart.
    ///
    /// # Errors
    /// [`QueueError`] when they cannot be listed.
    async fn stored_before(&self, time: SystemTime, most: usize) -> Result<Option<StoredBodies>, QueueError>;

    /// Removes a queue of ours, if at this moment it is still ours, is empty, and is the dead-letter queue of none but
    /// those in `gone` (names on the service).
    ///
    /// # Errors
    /// [`QueueError`]: it is still there, as far as is known.
    async fn remove_queue(&self, name: &str, gone: &BTreeSet<String>) -> Result<Removal, QueueError>;

    /// Removes stored bodies; how many of them are gone.
    ///
    /// # Errors
    /// [`QueueError`] at the first call that fails; a part of them may be gone.
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
        let of = |queue: &str| HeldQueue { queue: queue.into(), ..HeldQueue::default() };
        assert_eq!(of("orders-dlq").dead_letters_of(), Some("orders"));
        assert_eq!((of("orders").dead_letters_of(), of("-dlq").dead_letters_of()), (None, None));
    }
}
