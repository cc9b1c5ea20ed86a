//! The queue contract: the operations of a queue, and the guarantees that every driver must give.
//!
//! A driver implements [`Queue`] (one queue for its consumer) and three traits for the service: [`Broker`] (opens channels and
//! sends), [`Admin`] (inspects queues and moves messages) and [`Provisioner`] (creates resources and compares settings). All
//! drivers and the fake pass the conformance suite in `tests/conformance`.
//!
//! Every driver guarantees:
//!
//! * **At least once.** A message is delivered until it is acked or dead-lettered. Duplicates are possible; losses are not.
//! * **Lease.** A received message is invisible to other receivers for the requested lease. When the lease ends without
//!   an extension, the message becomes visible again and the old receipt becomes invalid. Extending or settling with an
//!   invalid receipt returns `Lost` and changes nothing.
//! * **Attempts.** The queue counts how often it delivers a message. The first delivery is attempt 1.
//! * **Order.** An ordered queue delivers the messages of a group in the order of sending. A message is not delivered
//!   while an earlier message of the group is leased, or was released with a delay that has not passed. A single
//!   receive call may return several messages of a group, in order, if the service supports this (SQS).
//! * **Independence.** In a batch call, every entry has its own result, in the order of the entries.

mod admin;
mod broker;
mod change;
mod commit;
mod error;
pub mod fake;
mod inventory;
mod origin;
pub mod parallel;
mod provision;
mod queue;
mod receipt;
mod records;
pub mod request;
mod schedules;
mod sent;
mod settlement;

use std::time::Duration;

pub use admin::{Admin, Depth, Redriven};
pub use broker::{Broker, ChannelSpec, Link, SubjectSpec};
pub use change::{Action, Change};
pub use commit::{Commit, Finish, Hold, RecordId};
pub use error::{QueueError, SendError, no_queue};
pub use inventory::{
    Body, Disposal, Inventory, Listing, ManagedQueue, ManagedTopic, QueueUse, Removal, StoredBodies, Unread, tag,
};
pub use origin::Origin;
pub use provision::{Finding, Provisioner};
pub use queue::{Delivery, Limits, Queue, Receive};
pub use receipt::{LeaseHandle, Receipt, Report};
pub use records::{Begin, Begun, Done, MAX_LABEL, Records, RunEnd};
pub use request::{Request, Requested};
pub use schedules::{Advance, Advanced, Agreement, Schedules};
pub use sent::Sent;
pub use settlement::{
    ATTEMPTS_ATTRIBUTE, LeaseError, MAX_REASON, REASON_ATTRIBUTE, SOURCE_ATTRIBUTE, Settlement, Unsettled,
    dead_letter_attributes,
};

pub use hostler_types::message::ORIGINAL_ID_ATTRIBUTE;

/// Period in which a second message with the same deduplication key is a duplicate (AWS: the 5-minute deduplication
/// interval).
pub const DEDUPE_WINDOW: Duration = Duration::from_secs(5 * 60);

/// Name of the group that an ordered channel assigns to messages without a group.
pub const DEFAULT_GROUP: &str = "default";
