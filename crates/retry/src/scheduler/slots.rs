//! Limits of the messages in flight, so that receivers that do not answer leave room for those that do.

/// State of a subject that decides how many of all slots it may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    /// Its receiver answers, and it has no message in flight.
    ProvenIdle,
    /// Its receiver answers.
    ProvenBusy,
    /// Its receiver has not answered yet, or no longer does. It has no message in flight.
    UnprovenIdle,
    /// Its receiver has not answered yet, or no longer does.
    UnprovenBusy,
}

impl Class {
    /// All classes.
    pub(super) const ALL: [Self; 4] = [Self::ProvenIdle, Self::ProvenBusy, Self::UnprovenIdle, Self::UnprovenBusy];

    pub(super) fn new(is_proven: bool, is_idle: bool) -> Self {
        match (is_proven, is_idle) {
            (true, true) => Self::ProvenIdle,
            (true, false) => Self::ProvenBusy,
            (false, true) => Self::UnprovenIdle,
            (false, false) => Self::UnprovenBusy,
        }
    }
}

/// The slots: as many as messages may be in flight.
#[derive(Debug)]
pub(super) struct Slots {
    max: usize,
    /// Number of messages in flight.
    pub(super) used: usize,
    /// Number of messages in flight to unproven subjects.
    pub(super) unproven: usize,
}

impl Slots {
    pub(super) fn new(max: usize) -> Self {
        Self { max: max.max(1), used: 0, unproven: 0 }
    }

    /// Returns `true` if a subject of this class may use one more slot. Unproven subjects share half of the slots, and the
    /// last quarter of all is for those that have none. The last eighth of all slots is for idle subjects.
    pub(super) fn admits(&self, class: Class) -> bool {
        let free = self.max.saturating_sub(self.used);
        let limit = |part: usize| (self.max / part).max(1);
        match class {
            _ if free == 0 => false,
            Class::ProvenIdle => true,
            Class::ProvenBusy => free > self.max / 8,
            Class::UnprovenIdle => self.unproven < limit(2),
            Class::UnprovenBusy => self.unproven < limit(4),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(used: usize, unproven: usize) -> [bool; 4] {
        let slots = Slots { max: 64, used, unproven };
        Class::ALL.map(|class| slots.admits(class))
    }

    #[test]
    fn unproven_subjects_leave_half_of_the_slots_to_the_others() {
        assert_eq!(admitted(0, 0), [true; 4]);
        assert_eq!(admitted(16, 15), [true; 4]);
        assert_eq!(admitted(16, 16), [true, true, true, false]);
        assert_eq!(admitted(32, 31), [true, true, true, false]);
        assert_eq!(admitted(32, 32), [true, true, false, false]);
        assert_eq!(admitted(55, 32), [true, true, false, false]);
        assert_eq!(admitted(56, 10), [true, false, true, true], "the last eighth is for idle subjects and new ones");
        assert_eq!(admitted(63, 32), [true, false, false, false]);
        assert_eq!(admitted(64, 0), [false; 4]);
    }

    #[test]
    fn a_single_slot_is_for_all() {
        let slots = Slots { max: 1, used: 0, unproven: 0 };
        assert_eq!(Class::ALL.map(|class| slots.admits(class)), [true; 4]);
    }
}
