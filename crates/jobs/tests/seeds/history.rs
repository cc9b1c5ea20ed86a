//! The record of a run: every call with its answer, and what is left at the end.

use crate::call::{Answer, Operation, Snapshot, Time};

/// A point of a run. Calls that overlap have interleaved orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    pub order: usize,
    pub time: Time,
}

/// A call.
#[derive(Clone, Debug)]
pub struct Call {
    pub operation: Operation,
    /// `None`: the answer was lost, and it is unknown whether the call was carried out.
    pub answer: Option<Answer>,
    pub sent: Moment,
    /// The time of the answer, or of giving up.
    pub done: Moment,
}

impl Call {
    /// Returns true if this call was answered before another was sent.
    pub fn is_before(&self, other: &Call) -> bool {
        self.answer.is_some() && self.done.order < other.sent.order
    }

    /// Returns true if this call may have been carried out before another one was.
    pub fn may_precede(&self, other: &Call) -> bool {
        self.sent.order < other.done.order
    }
}

/// A run.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub calls: Vec<Call>,
    /// The items and assignments left at the end, when nothing was running any more.
    pub end: Snapshot,
    /// Milliseconds.
    pub heartbeat: Time,
    /// The difference that clocks and rounding may make, in milliseconds.
    pub slack: Time,
    /// The longest delay before a next attempt that the service chooses, in milliseconds.
    pub longest_backoff: Time,
    /// Each answer shows one state of the service, in which nothing is left to do in the background.
    pub is_strict: bool,
}
