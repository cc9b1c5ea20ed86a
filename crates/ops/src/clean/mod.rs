//! Cleaning: finds unused resources and deletes them. Considers only resources that hostler owns, according to their
//! tags. Judges their use by the service's usage records.
//!
//! | file | job | I/O |
//! |---|---|---|
//! | `class` | classifies a queue by its use | none |
//! | `survey` | surveys all resources once | reads |
//! | `removal` | deletes the resources that two surveys agree on | deletes |
//! | `report` | creates the reports for people and for programs | none |
//!
//! A queue is kept if the config names it, if its tags do not mark it as hostler's, if it contains a message, if a
//! topic delivers to it, or if it is the dead-letter queue of a queue that is kept.

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

/// Periods after which resources count as unused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// A queue counts as unused if it was not used for this long before the survey. A queue that is younger than this
    /// is not deleted.
    pub queues: Duration,
    /// A topic counts as unused if nothing was published to it for this long before the survey.
    pub topics: Duration,
    /// A stored body counts as unused if it was stored, or last renewed, longer ago than this.
    pub bodies: Duration,
}

impl Windows {
    /// Minimum value of `bodies`: the maximum retention of a message on SQS.
    pub const LEAST_BODIES: Duration = DAY.saturating_mul(14);
}

impl Default for Windows {
    /// Returns 35 days for queues, one day for topics, and 90 days for bodies.
    ///
    /// A period of 35 days exceeds the interval of a monthly job, so a queue that only such a job uses is not deleted.
    /// The 90 days for bodies follow from the maximum retention of messages, 14 days. If hostler copies a message, it
    /// renews the body. If the service moves a message, the retention restarts, but the body is not renewed. 90 days
    /// are enough for five moves by the service.
    fn default() -> Self {
        Self { queues: DAY * 35, topics: DAY, bodies: DAY * 90 }
    }
}
