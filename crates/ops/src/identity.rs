//! Tells the messages of a queue from one another, also where producers give several messages the same id.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use hostler_queue::{LeaseError, LeaseHandle, Queue};
use hostler_types::message::{AttributeValue, Message, Plain};

/// Recognizes messages that are received again.
#[derive(Debug, Clone)]
pub(crate) struct Identities {
    /// Set if several messages may have the same id.
    ids_repeat: bool,
    hashes: RandomState,
}

impl Identities {
    pub(crate) fn new(queue: &dyn Queue) -> Self {
        Self { ids_repeat: queue.ids_repeat(), hashes: RandomState::new() }
    }

    /// Returns the text by which a message is recognized: its id or, if ids repeat, the id and a hash of the content. Two messages with
    /// the same text are equal, so either may be taken for the other.
    pub(crate) fn of(&self, message: &Message) -> String {
        let Message { id, body, attributes, group, routing_key, .. } = message;
        if !self.ids_repeat {
            return id.clone();
        }
        let attributes: Vec<_> = attributes.iter().map(|(name, value)| (name, plain_bytes(value))).collect();
        format!("{id} {:016x}", self.hashes.hash_one((body, attributes, group, routing_key)))
    }

    /// Returns `true` if a received message is the one that was leased before by `lease`, which has ended. Otherwise, it is another one
    /// with the same identity, and the lease is extended by `by`.
    pub(crate) async fn came_again(&self, queue: &Arc<dyn Queue>, lease: LeaseHandle, by: Duration) -> bool {
        if !self.ids_repeat {
            return true;
        }
        let extended = queue.extend(&[lease], by).await;
        extended.iter().any(|result| matches!(result, Err(LeaseError::Lost(_))))
    }
}

fn plain_bytes(value: &AttributeValue) -> &[u8] {
    match value.plain() {
        Plain::Text(text) => text.as_bytes(),
        Plain::Binary(bytes) => bytes,
    }
}
