//! Cleaning: what nobody uses, by its tags ours and by the service's record of use idle; and removing it.
//!
//! | file | job | I/O |
//! |---|---|---|
//! | `class` | what a queue is, by how it was used | none |
//! | `survey` | one look at everything | looks |
//! | `removal` | what two looks agree on; removing it | removes |
//! | `report` | what people and programs are told of it | none |
//!
//! Nothing is removed that this config names, that is not hostler's by its tags, that holds a message, that a topic delivers to,
//! or that takes the dead letters of something that stays.

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

/// From when on something counts as unused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// A queue, by CloudWatch's record and its age.
    pub queues: Duration,
    /// A topic.
    pub topics: Duration,
    /// A stored body, by its age since it was stored or renewed.
    pub bodies: Duration,
}

impl Windows {
    /// The shortest age of a body: the longest that SQS keeps a message.
    pub const LEAST_BODIES: Duration = DAY.saturating_mul(14);
}

impl Default for Windows {
    /// 35 days, one day, and 90 days. A queue is kept for longer than the pause of a job that runs once a month. A message lives for 14 days, and its body is renewed with each copy that hostler makes of it. A
    /// move by the service itself gives it as many days more without that: this allows for five.
    fn default() -> Self {
        Self { queues: DAY * 35, topics: DAY, bodies: DAY * 90 }
    }
}
