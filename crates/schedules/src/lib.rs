//! Schedules: the times at which messages are due, and which host sends them. Performs no I/O, and reads no clock.
//!
//! | file | job |
//! |---|---|
//! | `cron.rs` | cron expressions in a time zone: the next time, and what is wrong with an expression |
//! | `schedule.rs` | the definition of a schedule, its digest, its jitter |
//! | `turn.rs` | the decision what a host does next, from the stored state and the time |
//! | `world.rs` | tests: hosts that share a store in virtual time, with kills, outages, skewed clocks and a rollout |

mod cron;
mod schedule;
mod turn;
#[cfg(test)]
mod world;

pub use cron::{Cron, CronFault, zones};
pub use schedule::{Missed, Schedule};
pub use turn::{LIFE_SIGN, Notice, ON_TIME, Step, TAKE_OVER};
