//! Upkeep: what an operator does to queues beside consuming them, over any driver.
//!
//! | folder, file | job | I/O |
//! |---|---|---|
//! | `requeue/` | moving messages out of dead-letter queues | yes |
//! | `alarms/` | which queues are too full, and when to say so | looks |
//! | `clean/` | what nobody uses, and removing it | yes |
//! | `notice` | what people are told, in the forms that they are told it in | none |
//! | `delivery` | telling them, again where it may work the next time | yes |
//! | `webhook` | one way to tell them | yes |
//!
//! What only one service has is the driver's: provisioning is behind [`Provisioner::plan`](hostler_queue::Provisioner::plan) and its
//! neighbours, what there is and its removal behind [`Inventory`](hostler_queue::Inventory) and
//! [`Disposal`](hostler_queue::Disposal).

pub mod alarms;
pub mod clean;
pub mod delivery;
mod look;
pub mod notice;
pub mod requeue;
pub mod webhook;

pub use look::{Look, Looked, look};
