//! Cleaning: finds unused resources that hostler owns by their tags and that the service's record of use shows idle,
//! and removes them.
//!
//! | file | job | I/O |
//! |---|---|---|
//! | `class` | classifies a queue by its use | none |
//! | `survey` | one survey of all resources | reads |
//! | `removal` | the removals that two surveys agree on | removes |
//! | `report` | reports for people and programs | none |
//!
//! A resource stays if this config names it, if its tags do not mark it as hostler's, if it holds a message, if a topic
//! delivers to it, or if it takes the dead letters of a queue that stays.

mod class;
mod removal;
mod report;
mod survey;

pub use class::{Class, Observed, classify};
pub use removal::{Agreed, Done, agreed, remove};
pub use report::{document, notice};
pub use survey::{Named, QueueFinding, Survey, TopicFinding, survey};

use std::time::Duration;

const DAY: Duration = Duration::from_secs(86_400);

/// The times after which resources count as unused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// For a queue, by CloudWatch's record and its age.
    pub queues: Duration,
    /// For a topic.
    pub topics: Duration,
    /// For a stored body, by its age since it was stored or renewed.
    pub bodies: Duration,
}

impl Windows {
    /// The shortest time for bodies: the longest that SQS keeps a message.
    pub const LEAST_BODIES: Duration = DAY.saturating_mul(14);
}

impl Default for Windows {
    /// Returns 35 days, one day, and 90 days.
    ///
    /// A queue is kept for longer than the pause of a monthly job. A message lives for 14 days, and each copy that
    /// hostler makes of it renews its body. A move by the service itself extends its life by as many days without
    /// renewing the body: 90 days allow for five such moves.
    fn default() -> Self {
        Self { queues: DAY * 35, topics: DAY, bodies: DAY * 90 }
    }
}
