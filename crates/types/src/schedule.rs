//! The state of a schedule, as the hosts that share it store it.

use crate::timestamp::Timestamp;

/// The state of a schedule. All hosts with the schedule share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleState {
    /// Digest of the schedule's definition. A host with another definition does not send by this state.
    pub definition: String,
    /// Each due time up to this time, inclusive, is settled: its message was sent, or the due time was skipped.
    pub handled: Timestamp,
    /// Due time of the last message that was sent. `None`: no message was sent yet.
    pub sent: Option<Timestamp>,
    /// Last time at which a host with this definition wrote the state.
    pub seen: Timestamp,
}

impl ScheduleState {
    /// Returns `true` if no due time was settled between the two states. The time of the last write does not matter.
    pub fn is_same_turn(&self, other: &Self) -> bool {
        self.definition == other.definition && self.handled == other.handled
    }
}
