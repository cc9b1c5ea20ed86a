//! The queue contract: the operations of a queue, and the guarantees that every driver must give.
//!
//! A driver implements [`Queue`] (one queue for its consumer) and three traits of the service around it: [`Broker`]
//! (opens channels, sends), [`Admin`] (inspects and moves) and [`Provisioner`] (creates and compares). The drivers and
//! the fake pass the conformance suite in `tests/conformance`.
//!
//! Semantics that hold for every driver:
//!
//! * **At least once.** A message is delivered until it is acked or dead-lettered; a duplicate can happen, a loss cannot.
//! * **Lease.** A received message is invisible to other receivers for the lease asked for. When that passes
//!   without an extension, it becomes visible again and the old receipt is dead: extending or settling with it
//!   answers `Lost` and changes nothing.
//! * **Attempts** are counted by the queue at each receive; the first is 1.
//! * **Order.** In an ordered queue, a group's messages are handed out in the order they were sent, and none is
//!   handed out while an earlier one of its group is leased or waits for its release to pass. Only within one receive
//!   may several of a group come at once, in their order, where the service does so (SQS).
//! * **Independence.** In a batch call, every entry has its own result, in the order of the entries.

mod admin;
mod broker;
mod error;
pub mod fake;
mod inventory;
mod origin;
pub mod parallel;
mod provision;
mod queue;
mod receipt;
mod settlement;

use std::time::Duration;

pub use admin::{Admin, Depth, Redriven};
pub use broker::{Broker, ChannelSpec, Sent};
pub use error::{QueueError, SendError, no_queue};
pub use inventory::{
    Body, Disposal, Inventory, Listing, ManagedQueue, ManagedTopic, QueueUse, Removal, StoredBodies, Unread, tag,
};
pub use origin::Origin;
pub use provision::{Action, Change, Finding, Provisioner};
pub use queue::{Delivery, Limits, Queue, Receive};
pub use receipt::{LeaseHandle, Receipt};
pub use settlement::{
    ATTEMPTS_ATTRIBUTE, LeaseError, MAX_REASON, ORIGINAL_ID_ATTRIBUTE, REASON_ATTRIBUTE, SOURCE_ATTRIBUTE, Settlement,
    Unsettled, dead_letter_attributes,
};

/// The time for which a dedupe key is remembered (AWS: the 5-minute deduplication interval).
pub const DEDUPE_WINDOW: Duration = Duration::from_secs(5 * 60);

/// The group of messages that were sent to an ordered channel without a group.
pub const DEFAULT_GROUP: &str = "default";
