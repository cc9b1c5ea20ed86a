//! Settlements, and the reasons that one fails.

use std::sync::Arc;
use std::time::Duration;

use crate::receipt::Receipt;
use hostler_types::message::{AttributeValue, Attributes, Message};

/// A way to settle one delivery.
#[derive(Debug)]
pub enum Settlement {
    /// Removes the message: it is done.
    Ack(Receipt),
    /// Makes the message visible again after this delay; zero means at once (AWS limit: 12 h from the receive).
    Release(Receipt, Duration),
    /// Releases the message without counting the attempt. On queues that cannot take back their count, this is a plain
    /// release.
    GiveBack(Receipt, Duration),
    /// Writes a durable copy to the dead-letter queue, then removes the original; never the other way round. The copy
    /// keeps body, attributes, group and routing key. Where there is room, it gains the attributes
    /// `hostler-dead-letter-reason`, `hostler-source` (channel) and `hostler-attempts`.
    DeadLetter {
        /// The right to settle it.
        receipt: Receipt,
        /// The message to copy.
        message: Arc<Message>,
        /// The reason, for the reader of the dead-letter queue.
        reason: String,
    },
}

impl Settlement {
    /// Returns the receipt that the settlement consumes.
    pub fn receipt(&self) -> &Receipt {
        match self {
            Self::Ack(receipt)
            | Self::Release(receipt, _)
            | Self::GiveBack(receipt, _)
            | Self::DeadLetter { receipt, .. } => receipt,
        }
    }

    /// Names the settlement for logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Ack(_) => "ack",
            Self::Release(..) | Self::GiveBack(..) => "release",
            Self::DeadLetter { .. } => "dead-letter",
        }
    }
}

/// The attribute of a dead-lettered message that holds the reason.
pub const REASON_ATTRIBUTE: &str = "hostler-dead-letter-reason";
/// The attribute of a dead-lettered message that names the channel it came from.
pub const SOURCE_ATTRIBUTE: &str = "hostler-source";
/// The attribute of a dead-lettered message that counts its deliveries.
pub const ATTEMPTS_ATTRIBUTE: &str = "hostler-attempts";
/// The attribute of a requeued message that holds its id before its first move.
pub const ORIGINAL_ID_ATTRIBUTE: &str = "hostler-original-id";

/// The longest reason that a dead-lettered message carries, in bytes; the rest is cut. It exceeds the limit of a
/// handler's own reason, so that the mark of an earlier cut is kept.
pub const MAX_REASON: usize = 17 * 1024;

/// Returns the attributes of a message's copy in the dead-letter queue: the original ones, plus reason, source and
/// attempts as long as there are at most `most` in all. Replaces the values of an earlier dead-lettering.
pub fn dead_letter_attributes(
    original: &Attributes,
    reason: &str,
    source: &str,
    attempts: u32,
    most: usize,
) -> Attributes {
    let reason = &reason[..reason.floor_char_boundary(MAX_REASON)];
    let story = [
        (REASON_ATTRIBUTE, reason.to_owned()),
        (SOURCE_ATTRIBUTE, source.to_owned()),
        (ATTEMPTS_ATTRIBUTE, attempts.to_string()),
    ];
    let mut attributes = original.clone();
    for (name, text) in story {
        if attributes.len() < most || attributes.contains_key(name) {
            attributes.insert(name.to_owned(), AttributeValue::Text(text));
        }
    }
    attributes
}

/// A settlement that failed, returned so that it can be tried again.
#[derive(Debug)]
pub struct Unsettled {
    /// The settlement.
    pub settlement: Settlement,
    /// The error, which decides what to do next.
    pub error: LeaseError,
}

/// The reason that a lease was not extended, or a delivery not settled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// The lease is no longer ours: the message is visible again, taken by another receiver, or gone. Do nothing more.
    #[error("the lease is lost: {0}")]
    Lost(String),
    /// The queue failed this time. Try again while the lease lasts.
    #[error("{0}")]
    Retry(String),
    /// The queue can never do this. Nothing has changed, and the lease still holds.
    #[error("{0}")]
    Refused(String),
    /// The message itself cannot be settled so, however often it is tried: its dead-letter queue takes no such message, say. The
    /// lease still holds, and no other message is affected.
    #[error("{0}")]
    Unfit(String),
}

impl LeaseError {
    /// Names the variant in one word, for the `error.type` of a span.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Lost(_) => "lease-lost",
            Self::Retry(_) => "unavailable",
            Self::Refused(_) => "refused",
            Self::Unfit(_) => "invalid",
        }
    }

    /// Reports `true` if another attempt cannot succeed.
    pub fn is_final(&self) -> bool {
        !matches!(self, Self::Retry(_))
    }
}
