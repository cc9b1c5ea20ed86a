//! Alarms: finds queues with too many messages, and notifies people without repeating itself.
//!
//! | file | job | I/O |
//! |---|---|---|
//! | `level` | the message count of each queue against its threshold | none |
//! | `watch` | the changes from one poll to the next | none |
//! | `report` | the notice of these changes | none |
//! | `rounds` | the poll loop | reads, notifies |

mod level;
mod report;
mod rounds;
mod watch;

pub use level::{Level, levels};
pub use report::notice;
pub use rounds::{Order, Seen, Step, look, rounds};
pub use watch::{Bulletin, Change, Look, News, Sight, Watch};
