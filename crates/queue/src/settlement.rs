//! The ways in which a delivery ends, and why one did not.

use std::sync::Arc;
use std::time::Duration;

use crate::receipt::Receipt;
use hostler_types::message::{AttributeValue, Attributes, Message};

/// How one delivery ends on the queue.
#[derive(Debug)]
pub enum Settlement {
    /// The message is done: remove it.
    Ack(Receipt),
    /// Visible again after this long; zero means at once (AWS limit: 12 h from the receive).
    Release(Receipt, Duration),
    /// The same, but the attempt is not to count. A queue that can take its count back does; on others this is a release.
    GiveBack(Receipt, Duration),
    /// A durable copy goes to the dead-letter queue, then the original is removed; never the other way round.
    /// The copy keeps body, attributes, group and routing key, and gains `hostler-dead-letter-reason`,
    /// `hostler-source` (channel) and `hostler-attempts` as attributes where there is room.
    DeadLetter {
        /// The right to settle it.
        receipt: Receipt,
        /// What is copied.
        message: Arc<Message>,
        /// Why, for the person who will look at the dead-letter queue.
        reason: String,
    },
}

impl Settlement {
    /// The receipt that it consumes.
    pub fn receipt(&self) -> &Receipt {
        match self {
            Self::Ack(receipt)
            | Self::Release(receipt, _)
            | Self::GiveBack(receipt, _)
            | Self::DeadLetter { receipt, .. } => receipt,
        }
    }

    /// Its name in logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Ack(_) => "ack",
            Self::Release(..) | Self::GiveBack(..) => "release",
            Self::DeadLetter { .. } => "dead-letter",
        }
    }
}

/// The attribute of a dead-lettered message that says why.
pub const REASON_ATTRIBUTE: &str = "hostler-dead-letter-reason";
/// The attribute of a dead-lettered message that names the channel it came from.
pub const SOURCE_ATTRIBUTE: &str = "hostler-source";
/// The attribute of a dead-lettered message that counts its deliveries.
pub const ATTEMPTS_ATTRIBUTE: &str = "hostler-attempts";
/// The attribute of a requeued message that holds the id which it had before it was first moved.
pub const ORIGINAL_ID_ATTRIBUTE: &str = "hostler-original-id";

/// The longest reason that a dead-lettered message carries, in bytes; what is beyond is cut. As much as is kept of a handler's,
/// and more, so that what says that it is cut is not.
pub const MAX_REASON: usize = 17 * 1024;

/// The attributes of a message's copy in the dead-letter queue: the original ones, and what tells its story as far
/// as there is room for `most` in all. What an earlier dead-lettering left is replaced.
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

/// A settlement that did not happen, given back so that it can be tried again.
#[derive(Debug)]
pub struct Unsettled {
    /// What was asked for.
    pub settlement: Settlement,
    /// What to do next.
    pub error: LeaseError,
}

/// Why a lease was not extended, or a delivery not settled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// The lease is no longer ours: the message is visible again, taken by another, or gone. Do nothing more.
    #[error("the lease is lost: {0}")]
    Lost(String),
    /// The queue did not do it this time. Try again while the lease lasts.
    #[error("{0}")]
    Retry(String),
    /// The queue cannot do this, however often it is asked; nothing has changed and the lease still holds.
    #[error("{0}")]
    Refused(String),
    /// The message itself cannot be settled so, however often it is tried: its dead-letter queue takes no such message, say. The
    /// lease still holds, and no other message is affected.
    #[error("{0}")]
    Unfit(String),
}

impl LeaseError {
    /// Which of them, in a word: the `error.type` of a span.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Lost(_) => "lease-lost",
            Self::Retry(_) => "unavailable",
            Self::Refused(_) => "refused",
            Self::Unfit(_) => "invalid",
        }
    }

    /// Whether trying again is in vain.
    pub fn is_final(&self) -> bool {
        !matches!(self, Self::Retry(_))
    }
}
