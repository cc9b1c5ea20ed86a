//! Alarms: which queues hold too much, and telling people so without repeating it.
//!
//! | file | job | I/O |
//! |---|---|---|
//! | `level` | how full each queue is against its threshold | none |
//! | `watch` | what is news from one look to the next | none |
//! | `report` | what people are told of it | none |
//! | `rounds` | looking again and again | looks, tells |

mod level;
mod report;
mod rounds;
mod watch;

pub use level::{Level, levels};
pub use report::notice;
pub use rounds::{Order, Seen, Step, look, rounds};
pub use watch::{Bulletin, Change, Look, News, Sight, Watch};
