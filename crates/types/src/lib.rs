//! Types that all parts of hostler share, for example messages, channels, rates, states and times. This crate depends
//! on no other crate of hostler, performs no I/O, and requires no runtime.

mod backoff;
mod boxed;
pub mod channel;
pub mod digest;
pub mod duration;
pub mod endpoint;
pub mod error_chain;
pub mod job;
pub mod message;
mod message_key;
pub mod metadata;
mod outbox;
mod outcome;
pub mod printable;
mod rate;
mod schedule;
pub mod secret;
mod state;
pub mod tcp_grant;
mod timestamp;

pub use backoff::Backoff;
pub use boxed::BoxFuture;
pub use message_key::KeySource;
pub use outbox::{Outbox, OutboxError};
pub use outcome::OutcomeKind;
pub use rate::{Bucket, Rate};
pub use schedule::ScheduleState;
pub use state::State;
pub use timestamp::Timestamp;
