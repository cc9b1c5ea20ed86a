//! Upkeep: what an operator does to queues beside consuming them (provision, requeue, alarms, clean, iam).
//!
//! The embedded queue provisions itself when a channel is opened, and `hostler queues` looks into it.

pub mod requeue;
