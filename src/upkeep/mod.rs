//! Upkeep: what an operator does to queues beside consuming them, over any driver.
//!
//! What only one service has is the driver's: provisioning is behind [`Broker::plan`](crate::queue::Broker::plan) and its
//! neighbours, because what there is to provision differs.

mod look;
pub mod requeue;

pub use look::{Look, look};
