//! Alarms: finds queues with too many messages and notifies people, once per change.
//!
//! | file | job | I/O |
//! |---|---|---|
//! | `level` | compares message counts with thresholds | none |
//! | `watch` | finds the changes from one poll to the next | none |
//! | `report` | creates the notice about the changes | none |
//! | `poll_loop` | polls the queues at an interval | reads, notifies |

mod level;
mod poll_loop;
mod report;
mod watch;

pub use level::{Level, levels};
pub use poll_loop::{Schedule, Seen, Step, look, poll_loop};
pub use report::notice;
pub use watch::{AlarmDelta, Change, Look, News, PollHealth, Watch};
