//! Types that every part of hostler shares: messages, channels, rates, states, times and texts. A leaf of the workspace: it does
//! no I/O and knows no runtime.

mod backoff;
pub mod channel;
pub mod digest;
pub mod duration;
pub mod error_chain;
pub mod message;
mod outcome;
pub mod printable;
mod rate;
mod state;
mod timestamp;

pub use backoff::Backoff;
pub use outcome::OutcomeKind;
pub use rate::{Bucket, Rate};
pub use state::State;
pub use timestamp::Timestamp;
