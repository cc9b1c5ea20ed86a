//! Operations on queues other than consuming, for any queue driver.
//!
//! | folder, file | job | I/O |
//! |---|---|---|
//! | `requeue/` | moves messages out of dead-letter queues, or drops them | yes |
//! | `alarms/` | finds queues with too many messages, and decides when to notify | reads |
//! | `clean/` | finds unused resources and deletes them | yes |
//! | `peek` | shows messages of a queue without removing them | yes |
//! | `receive` | hands messages out, then removes them or gives them back | yes |
//! | `identity` | recognizes messages that are received again | extends leases |
//! | `notice` | notices, and their format for each receiver | none |
//! | `delivery` | delivers notices, with bounded retries | yes |
//! | `webhook` | delivers notices by HTTP | yes |
//!
//! Operations that only one service offers are implemented in the driver of that service, behind traits: provisioning
//! behind [`Provisioner`](hostler_queue::Provisioner), inventory behind [`Inventory`](hostler_queue::Inventory), and
//! deletion behind [`Disposal`](hostler_queue::Disposal).

pub mod alarms;
pub mod clean;
pub mod delivery;
mod identity;
pub mod notice;
mod peek;
mod receive;
#[cfg(test)]
mod repeats;
pub mod requeue;
pub mod webhook;

pub use peek::{Look, Looked, look};
pub use receive::{Outlet, ReceiveEnd, ReceiveReport, ReceiveRequest, receive};
