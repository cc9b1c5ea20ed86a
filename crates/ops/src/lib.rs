//! Operations on queues beside consuming them, over any driver.
//!
//! | folder, file | job | I/O |
//! |---|---|---|
//! | `requeue/` | moves messages out of dead-letter queues | yes |
//! | `alarms/` | finds queues that are too full, and decides when to notify | reads |
//! | `clean/` | finds unused resources and removes them | yes |
//! | `peek` | shows messages of a queue and leaves them there | yes |
//! | `receive` | hands messages out, then removes them or gives them back | yes |
//! | `notice` | notices, and their forms for each receiver | none |
//! | `delivery` | delivers notices, with bounded retries | yes |
//! | `webhook` | delivers notices by HTTP | yes |
//!
//! Operations that only one service offers belong to its driver: provisioning is behind
//! [`Provisioner::plan`](hostler_queue::Provisioner::plan) and its neighbours, inventory and removal behind
//! [`Inventory`](hostler_queue::Inventory) and [`Disposal`](hostler_queue::Disposal).

pub mod alarms;
pub mod clean;
pub mod delivery;
pub mod notice;
mod peek;
mod receive;
pub mod requeue;
pub mod webhook;

pub use peek::{Look, Looked, look};
pub use receive::{Outlet, ReceiveEnd, ReceiveReport, ReceiveRequest, receive};
