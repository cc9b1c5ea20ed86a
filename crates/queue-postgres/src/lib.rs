//! The PostgreSQL driver: queues in the tables of the schema `hostler_queue`.
//!
//! All times are by the database's clock; statements carry only durations. A receive claims messages in one statement that skips rows
//! which others have locked. Everything is durable when its call returns, receives too.

mod additions;
mod admin;
mod broker;
mod claim;
mod commit;
mod faults;
mod options;
mod provision;
mod queue;
mod records;
mod rights;
mod rows;
mod schedules;
mod schema;
mod send;
mod service;
mod settle;
mod ticket;
mod topology;
mod wake;

pub use broker::PostgresBroker;
pub use options::{MAX_MESSAGE, Options, SYSTEM};
pub use schema::PERMISSIONS;
