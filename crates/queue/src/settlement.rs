//! Settlements of deliveries, and the errors of settlements.

use std::sync::Arc;
use std::time::Duration;

use crate::receipt::Receipt;
use hostler_types::message::{AttributeValue, Attributes, Message};

/// A way to settle a delivery.
#[derive(Debug)]
pub enum Settlement {
    /// Removes the message, because it was processed.
    Ack(Receipt),
    /// Makes the message visible again after a delay. If the delay is zero, the message becomes visible at once. On
    /// SQS, the delay must end within 12 hours after the message was received (AWS limit).
    Release(Receipt, Duration),
    /// Releases the message without counting the attempt. Equivalent to [`Self::Release`] if the queue cannot decrease
    /// the count of attempts.
    GiveBack(Receipt, Duration),
    /// Writes a durable copy of the message to the dead-letter queue, and then removes the original. The copy has the
    /// same body, attributes, group and routing key. See [`dead_letter_attributes`] for the attributes that are added
    /// to the copy.
    DeadLetter {
        /// The right to settle the delivery.
        receipt: Receipt,
        /// The message to copy.
        message: Arc<Message>,
        /// The reason, stored with the copy.
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

    /// Shortens the delay of a release to `max`.
    #[must_use]
    pub fn within(self, max: Duration) -> Self {
        match self {
            Self::Release(receipt, delay) => Self::Release(receipt, delay.min(max)),
            Self::GiveBack(receipt, delay) => Self::GiveBack(receipt, delay.min(max)),
            other => other,
        }
    }

    /// Returns the name of the settlement in logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Ack(_) => "ack",
            Self::Release(..) | Self::GiveBack(..) => "release",
            Self::DeadLetter { .. } => "dead-letter",
        }
    }
}

/// Name of the attribute with the reason for dead-lettering a message.
pub const REASON_ATTRIBUTE: &str = "hostler-dead-letter-reason";
/// Name of the attribute with the channel that a dead-lettered message came from.
pub const SOURCE_ATTRIBUTE: &str = "hostler-source";
/// Name of the attribute with the number of times that a message was delivered before it was dead-lettered.
pub const ATTEMPTS_ATTRIBUTE: &str = "hostler-attempts";

/// Maximum length in bytes of the reason in a dead-lettered message. A longer reason is cut. A handler's reason may
/// already have been cut to a smaller limit and end with a note about the cut. This limit leaves room for the note.
pub const MAX_REASON: usize = 17 * 1024;

/// Returns the attributes for the copy of a message in the dead-letter queue. The copy has the original attributes and
/// the attributes [`REASON_ATTRIBUTE`], [`SOURCE_ATTRIBUTE`] (channel) and [`ATTEMPTS_ATTRIBUTE`]. Leaves out an
/// attribute that would exceed a total of `most` attributes. Replaces the values of an earlier dead-lettering.
/// `attempts` is `None` if the queue does not know the number of attempts.
pub fn dead_letter_attributes(
    original: &Attributes,
    reason: &str,
    source: &str,
    attempts: Option<u32>,
    most: usize,
) -> Attributes {
    let reason = &reason[..reason.floor_char_boundary(MAX_REASON)];
    let story = [
        (REASON_ATTRIBUTE, Some(reason.to_owned())),
        (SOURCE_ATTRIBUTE, Some(source.to_owned())),
        (ATTEMPTS_ATTRIBUTE, attempts.map(|count| count.to_string())),
    ];
    let mut attributes = original.clone();
    for (name, text) in story {
        let is_known = attributes.remove(name).is_some();
        if let Some(text) = text
            && (is_known || attributes.len() < most)
        {
            attributes.insert(name.to_owned(), AttributeValue::Text(text));
        }
    }
    attributes
}

/// A failed settlement, returned so that the caller can retry the settlement.
#[derive(Debug)]
pub struct Unsettled {
    /// The settlement.
    pub settlement: Settlement,
    /// The error, which decides whether the caller can retry.
    pub error: LeaseError,
}

/// The reason why a lease was not extended or a delivery was not settled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// The lease has ended: the message is visible again, leased by another receiver, or removed. The caller must not
    /// make another call for this delivery.
    #[error("the lease is lost: {0}")]
    Lost(String),
    /// The call failed temporarily. The caller may retry until the lease ends.
    #[error("{0}")]
    Retry(String),
    /// The queue does not support the settlement. Nothing has changed, and the lease is still valid.
    #[error("{0}")]
    Refused(String),
    /// The queue can never perform this settlement for this message, for example because the dead-letter queue does not
    /// accept the message. The lease is still valid, and no other message is affected.
    #[error("{0}")]
    Unfit(String),
}

impl LeaseError {
    /// Returns the name of the variant, for the `error.type` of a span.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Lost(_) => "lease-lost",
            Self::Retry(_) => "unavailable",
            Self::Refused(_) => "refused",
            Self::Unfit(_) => "invalid",
        }
    }

    /// Returns `true` if another attempt cannot succeed.
    pub fn is_final(&self) -> bool {
        !matches!(self, Self::Retry(_))
    }
}
