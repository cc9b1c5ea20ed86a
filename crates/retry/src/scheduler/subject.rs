//! A subject: its gate, and the number of messages that it may have in flight.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Millis;
use super::slots::Class;
use hostler_queue_embedded::Place;

/// Number of deliveries in a row without an answer after which a subject counts as unproven.
const DOUBT: u32 = 3;

/// The end of a delivery, as far as it tells something about its subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Landing {
    /// Its receiver answered.
    Answered,
    /// There was no valid answer in time.
    Unanswered,
    /// Nobody listens to the subject, or the server refuses it.
    Silent,
    /// The connection was lost.
    Lost,
}

/// A subject with messages in memory, in flight or parked, or with a closed gate.
#[derive(Debug)]
pub(super) struct Subject {
    pub(super) name: Arc<str>,
    pub(super) in_flight: usize,
    /// Maximum number of messages in flight now. It is halved by each delivery that is not answered, and is one when a gate
    /// opens. Each answer raises it by one, up to the limit of all subjects.
    pub(super) allowance: usize,
    /// Time at which the gate opens. `None`: it is open.
    pub(super) gate: Option<Millis>,
    /// Number of waits in a row because nobody listened.
    pub(super) silences: u32,
    /// Number of deliveries in a row that were not answered.
    unanswered: u32,
    /// Set if the receiver answers.
    is_proven: bool,
    /// A lane for each priority.
    pub(super) lanes: Vec<Lane>,
}

/// The messages of a subject and a priority that are due.
#[derive(Debug, Clone, Default)]
pub(super) struct Lane {
    /// Messages in memory that wait, by the time at which they were due.
    pub(super) waiting: BTreeSet<(Millis, Place)>,
    /// `Some` if the store may have parked messages of this lane that are not in memory: the number of the last change that
    /// parked one.
    pub(super) parked: Option<u64>,
    /// Set while parked messages are being read.
    pub(super) is_loading: bool,
    /// Place in the list of lanes that can deliver.
    pub(super) ready: Option<(Class, u64)>,
    /// Time for which the lane is listed among those whose parked messages are to be read.
    pub(super) reload: Option<Millis>,
    /// Set if the lane counts among those with waiting messages.
    pub(super) is_occupied: bool,
}

impl Subject {
    pub(super) fn new(name: Arc<str>, cap: usize, priorities: usize) -> Self {
        Self {
            name,
            in_flight: 0,
            allowance: cap,
            gate: None,
            silences: 0,
            unanswered: 0,
            is_proven: false,
            lanes: vec![Lane::default(); priorities],
        }
    }

    pub(super) fn class(&self) -> Class {
        Class::new(self.is_proven, self.in_flight == 0)
    }

    pub(super) fn is_proven(&self) -> bool {
        self.is_proven
    }

    /// Returns `true` if the gate is open, and a message may be delivered beside those in flight.
    pub(super) fn is_open(&self) -> bool {
        self.in_flight < self.allowance && self.gate.is_none()
    }

    /// Returns `true` if its messages should not take room in memory which others could use. `until`: a gate that opens by
    /// then does not count.
    pub(super) fn is_stuck(&self, until: Millis) -> bool {
        self.unanswered >= DOUBT || self.gate.is_some_and(|gate| gate > until)
    }

    /// Returns `true` if one message is in flight at a time at most.
    pub(super) fn is_small(&self, now: Millis) -> bool {
        self.allowance == 1 || self.is_stuck(now)
    }

    pub(super) fn landed(&mut self, landing: Landing, cap: usize) {
        self.in_flight = self.in_flight.saturating_sub(1);
        match landing {
            Landing::Answered => {
                (self.is_proven, self.unanswered, self.silences) = (true, 0, 0);
                self.allowance = (self.allowance + 1).min(cap);
            }
            Landing::Unanswered => {
                // Somebody listens, at least.
                self.silences = 0;
                self.unanswered = self.unanswered.saturating_add(1);
                self.allowance = (self.allowance / 2).max(1);
                self.is_proven &= self.unanswered < DOUBT;
            }
            Landing::Silent => self.is_proven = false,
            Landing::Lost => {}
        }
    }

    /// Opens the gate, for one message: the answer to it decides whether others follow.
    pub(super) fn half_open(&mut self) {
        (self.gate, self.allowance) = (None, 1);
    }

    /// Returns `true` if there is nothing to remember but parked messages.
    pub(super) fn is_idle(&self) -> bool {
        let is_idle = |lane: &Lane| lane.waiting.is_empty() && !lane.is_loading;
        self.in_flight == 0 && self.gate.is_none() && self.lanes.iter().all(is_idle)
    }

    /// Returns `true` if the store may have parked messages of the subject.
    pub(super) fn is_parked(&self) -> bool {
        self.lanes.iter().any(|lane| lane.parked.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject() -> Subject {
        Subject::new("a".into(), 16, 1)
    }

    #[test]
    fn a_gate_opens_for_one_message_and_its_answer_for_more() {
        let mut subject = subject();
        assert!(subject.is_open() && subject.allowance == 16);
        subject.gate = Some(9);
        assert!(!subject.is_open());
        subject.half_open();
        assert!(subject.is_open());
        subject.in_flight = 1;
        assert!(!subject.is_open(), "one is under way");
        subject.landed(Landing::Answered, 16);
        assert_eq!((subject.in_flight, subject.allowance), (0, 2));
    }

    #[test]
    fn deliveries_without_an_answer_take_the_allowance_and_the_trust() {
        let mut subject = subject();
        assert_eq!(subject.class(), Class::UnprovenIdle);
        subject.landed(Landing::Answered, 16);
        assert!(subject.is_proven() && !subject.is_stuck(0));
        let mut allowances = Vec::new();
        for _ in 0..5 {
            subject.in_flight = 1;
            subject.landed(Landing::Unanswered, 16);
            allowances.push((subject.allowance, subject.is_proven(), subject.is_stuck(0)));
        }
        let expected = [(8, true, false), (4, true, false), (2, false, true), (1, false, true), (1, false, true)];
        assert_eq!(allowances, expected);
        subject.landed(Landing::Answered, 16);
        assert!(subject.is_proven() && !subject.is_stuck(0) && subject.allowance == 2);
        subject.landed(Landing::Lost, 16);
        assert!(subject.is_proven() && subject.allowance == 2, "the connection is not its fault");
    }
}
