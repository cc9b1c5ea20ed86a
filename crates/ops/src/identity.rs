//! Tells the messages of a queue from one another, also where producers give several messages the same id.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use hostler_queue::{LeaseError, Queue};
use hostler_types::message::{AttributeValue, Message, Plain};
use tokio::time::Instant;

use crate::requeue::LEASE;
use crate::requeue::set_aside::SetAside;

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

    /// Returns `true` if several messages may have the same id, and the same content too.
    pub(crate) fn repeat(&self) -> bool {
        self.ids_repeat
    }

    /// Returns the text by which a held message is recognized: its id or, if ids repeat, the id and a hash of the content. Of two equal
    /// messages that are held, either may be taken for the other, because both go back. A message that may have been removed must not be
    /// recognized by it.
    pub(crate) fn of(&self, message: &Message) -> String {
        let Message { id, body, attributes, group, routing_key, .. } = message;
        if !self.ids_repeat {
            return id.clone();
        }
        let attributes: Vec<_> = attributes.iter().map(|(name, value)| (name, plain_bytes(value))).collect();
        format!("{id} {:016x}", self.hashes.hash_one((body, attributes, group, routing_key)))
    }

    /// Returns `true` if a received message with this identity is one that is held, and whose lease has ended. It is then no longer
    /// held. Otherwise, it is another message. If one with the same identity is held, its lease is then extended.
    pub(crate) async fn came_again(&self, queue: &Arc<dyn Queue>, held: &mut SetAside, identity: &str) -> bool {
        let Some((number, lease)) = held.first(identity) else { return false };
        let until = Instant::now() + LEASE;
        let extended = if self.ids_repeat { queue.extend(&[lease], LEASE).await.pop() } else { None };
        match extended {
            None | Some(Err(LeaseError::Lost(_))) => return held.remove(number).is_some(),
            Some(Ok(())) => held.extended(number, until),
            Some(Err(_)) => {}
        }
        false
    }
}

fn plain_bytes(value: &AttributeValue) -> &[u8] {
    match value.plain() {
        Plain::Text(text) => text.as_bytes(),
        Plain::Binary(bytes) => bytes,
    }
}
