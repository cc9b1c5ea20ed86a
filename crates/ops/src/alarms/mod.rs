//! Alarms: finds queues with too many messages, and notifies people without repeating itself.
//!
//! | file | job | I/O |
//! |---|---|---|
//! | `level` | the message count of each queue against its threshold | none |
//! | `watch` | the changes from one poll to the next | none |
//! | `report` | the notice of these changes | none |
//! | `poll_loop` | the poll loop | reads, notifies |

mod level;
mod poll_loop;
mod report;
mod watch;

pub use level::{Level, levels};
pub use poll_loop::{Schedule, Seen, Step, look, poll_loop};
pub use report::notice;
pub use watch::{AlarmDelta, Change, Look, News, PollHealth, Watch};
