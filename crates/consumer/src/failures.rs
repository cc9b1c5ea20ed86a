//! Failures of queue calls for received messages. For each kind of call, stores the times of the first and the last of
//! its consecutive failures. Each kind is judged separately, because a successful release does not prove that removals
//! work. No I/O.

use tokio::time::{Duration, Instant};

use super::Spec;
use hostler_queue::Settlement;

/// Kind of call. Calls of one kind require the same permission on the queue, so they fail and succeed together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Removal of a message: an ack.
    Removal,
    /// Move to the dead-letter queue: a copy, followed by a removal. A successful ack does not prove that copies work.
    Copy,
    /// Release of a message.
    Release,
    /// Extension of a lease. A failed extension counts only if the lease then ends.
    Extension,
    /// Start of a run of an idempotency key, or the record of its success.
    Record,
}

impl Kind {
    /// Number of kinds.
    pub(super) const COUNT: usize = Self::Record as usize + 1;

    /// Returns the kind of a settlement.
    pub(super) fn of(settlement: &Settlement) -> Self {
        match settlement {
            Settlement::Ack(_) => Self::Removal,
            Settlement::DeadLetter { .. } => Self::Copy,
            Settlement::Release(..) | Settlement::GiveBack(..) => Self::Release,
        }
    }
}

/// Time for one poll, which is part of the maximum time until an unsettled message is redelivered. Always the maximum
/// poll of SQS (20 s), even if this consumer polls for a shorter time, because messages may be rare.
const RARELY: Duration = Duration::from_secs(20);

/// Consecutive failed calls of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failing {
    /// Time of the first failure.
    pub since: Instant,
    /// Time of the last failure.
    pub last: Instant,
}

/// Failures of one consumer, by kind of call. The first successful call of a kind ends the failures of that kind. If no
/// call of a kind fails for the maximum time until an unsettled message is redelivered, the failures of that kind also
/// end, because no message is left whose call could fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Failures {
    patience: Duration,
    kinds: [Option<Failing>; Kind::COUNT],
}

impl Failures {
    /// Creates an empty record of failures for a consumer with this configuration.
    pub(super) fn new(spec: &Spec) -> Self {
        let token = spec.rate_limit.map_or(Duration::ZERO, |rate| rate.per / rate.permits.max(1));
        let patience = spec.processing_timeout + 2 * spec.lease + RARELY + token;
        Self { patience, kinds: [None; Kind::COUNT] }
    }

    /// Records a failed call of this kind.
    pub(super) fn failed(&mut self, kind: Kind, now: Instant) {
        let patience = self.patience;
        let failing = &mut self.kinds[kind as usize];
        let since = failing.filter(|failing| now < failing.last + patience).map_or(now, |failing| failing.since);
        *failing = Some(Failing { since, last: now });
    }

    /// Records a successful call of this kind.
    pub(super) fn succeeded(&mut self, kind: Kind) {
        self.kinds[kind as usize] = None;
    }

    /// Returns the first and the last failure of the kind whose failures span the longest time. Ignores a kind if its
    /// last failure is too long ago: longer than `at_least`, and longer than the maximum time until an unsettled
    /// message is redelivered.
    pub fn longest(&self, now: Instant, at_least: Duration) -> Option<Failing> {
        let lasts = self.patience.max(at_least);
        let lasting = self.kinds.iter().flatten().filter(|failing| now <= failing.last + lasts);
        lasting.max_by_key(|failing| failing.last - failing.since).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn failures() -> Failures {
        Failures { patience: 60 * SECOND, ..Failures::default() }
    }

    #[test]
    fn only_a_success_of_the_same_kind_ends_failures() {
        let (mut failures, start) = (failures(), Instant::now());
        for second in 0..100 {
            failures.failed(Kind::Removal, start + second * SECOND);
            failures.failed(Kind::Release, start + second * SECOND);
            failures.succeeded(Kind::Release);
            failures.succeeded(Kind::Copy);
            failures.succeeded(Kind::Extension);
        }
        let now = start + 99 * SECOND;
        assert_eq!(failures.longest(now, SECOND), Some(Failing { since: start, last: now }));
        failures.succeeded(Kind::Removal);
        assert_eq!(failures.longest(now, SECOND), None);
    }

    /// Sending to the dead-letter queue requires a separate permission.
    #[test]
    fn acks_that_work_do_not_end_failures_of_copies() {
        use hostler_queue::Receipt;
        let message = hostler_types::message::Message {
            id: "1".into(),
            body: "".into(),
            attributes: Default::default(),
            enqueued_at: std::time::SystemTime::UNIX_EPOCH,
            group: None,
            routing_key: None,
            claim: None,
            trace: None,
        };
        let copy =
            Settlement::DeadLetter { receipt: Receipt::new("1"), message: message.into(), reason: String::new() };
        let (mut failures, start) = (failures(), Instant::now());
        failures.failed(Kind::of(&copy), start);
        failures.succeeded(Kind::of(&Settlement::Ack(Receipt::new("2"))));
        failures.failed(Kind::of(&copy), start + 50 * SECOND);
        let longest = failures.longest(start + 50 * SECOND, SECOND);
        assert_eq!(longest, Some(Failing { since: start, last: start + 50 * SECOND }));
    }

    #[test]
    fn without_a_success_failures_last_until_every_message_had_time_to_come_again() {
        let (mut failures, start) = (failures(), Instant::now());
        failures.failed(Kind::Extension, start);
        failures.failed(Kind::Extension, start + 59 * SECOND);
        let shown = |after: u32, at_least: u32| failures.longest(start + after * SECOND, at_least * SECOND).is_some();
        assert!(shown(119, 9) && !shown(120, 9), "as long as a message takes");
        assert!(shown(149, 90) && !shown(150, 90), "or as long as the health check is patient");
    }

    #[test]
    fn failures_that_lie_far_apart_are_not_one_outage() {
        let (mut failures, start) = (failures(), Instant::now());
        failures.failed(Kind::Removal, start);
        failures.failed(Kind::Removal, start + 60 * SECOND);
        let at = start + 60 * SECOND;
        assert_eq!(failures.longest(at, SECOND), Some(Failing { since: at, last: at }));
    }

    #[test]
    fn the_kind_that_fails_for_the_longest_is_shown() {
        let (mut failures, start) = (failures(), Instant::now());
        failures.failed(Kind::Removal, start);
        failures.failed(Kind::Removal, start + 50 * SECOND);
        failures.failed(Kind::Extension, start + 51 * SECOND);
        let longest = failures.longest(start + 52 * SECOND, SECOND);
        assert_eq!(longest, Some(Failing { since: start, last: start + 50 * SECOND }));
    }
}
