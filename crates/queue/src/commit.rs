//! The success of a run of an idempotency key, and the changes that an ack makes in its transaction.

use std::fmt;
use std::time::Duration;

use hostler_types::channel::Channel;
use hostler_types::digest::{hex, sha256};
use hostler_types::message::Outgoing;

/// Identifies the record of a key: a digest of the key and its scope.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId([u8; 32]);

impl RecordId {
    /// Returns the id for a key. `scope`: name of what processes the key. The same key in another scope has another record.
    pub fn new(scope: &str, key: &str) -> Self {
        // The length separates the two texts.
        Self(sha256(format!("{} {scope}{key}", scope.len()).as_bytes()))
    }

    /// Returns the bytes of the digest.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns the digest as 64 hexadecimal digits.
    pub fn hex(&self) -> String {
        hex(&self.0)
    }
}

impl fmt::Debug for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.hex())
    }
}

/// The right of one run to its record. Each run has its own token, so a run whose record was taken over can change nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hold {
    /// The record.
    pub record: RecordId,
    /// Random number that identifies the run.
    pub token: i64,
}

/// The success of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finish {
    /// The record and the token of the run.
    pub hold: Hold,
    /// Time for which the record is kept from now.
    pub ttl: Duration,
    /// Reply of the handler.
    pub reply: Option<Vec<u8>>,
    /// The messages that the handler has sent and that are still to be sent, in a form that the caller knows. `None`: there are
    /// none.
    pub unsent: Option<Vec<u8>>,
}

/// The changes that a driver makes in the transaction that removes a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// The success to record. If its run does not hold the record any more, nothing is changed, and the lease counts as lost.
    /// `None`: the key was processed before.
    pub finish: Option<Finish>,
    /// The messages to send, in order.
    pub messages: Vec<(Channel, Outgoing)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_one_record_in_each_scope() {
        assert_eq!(RecordId::new("orders", "1"), RecordId::new("orders", "1"));
        let ids = [("orders", "1"), ("orders", "2"), ("refunds", "1"), ("orders1", ""), ("", "orders1"), ("1 o", "1")];
        for (place, (scope, key)) in ids.iter().enumerate() {
            for (other, other_key) in &ids[place + 1..] {
                assert_ne!(RecordId::new(scope, key), RecordId::new(other, other_key));
            }
        }
        assert_eq!(RecordId::new("a", "b").hex(), "47548bba4c84a79ef4e358ba82f55c45eb19f81188ec3c55274bdc02c91b7f8a");
    }
}
