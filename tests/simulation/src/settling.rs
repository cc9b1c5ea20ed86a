//! Judges calls that settle or extend: since when each kind of call fails, and when a call of each kind last succeeded.

use std::time::Duration;

use tokio::time::Instant;

use super::record::Life;
use super::scenario::Scenario;

const SECOND: Duration = Duration::from_secs(1);

/// Kinds of calls. Calls of one kind fail and succeed together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Removal of an acked message.
    Removal,
    /// Copy to the dead-letter queue, and the removal after the copy.
    Copy,
    Release,
    Extension,
}

/// Results of the calls of one kind.
#[derive(Debug, Clone, Copy, Default)]
pub struct Calls {
    pub done_at: Option<Instant>,
    pub failed_at: Option<Instant>,
    /// First and last failure of a series. Only failures that certainly count are included. A success or a long pause ends the
    /// series.
    run: Option<(Instant, Instant)>,
}

impl Calls {
    pub fn done(&mut self) {
        (self.done_at, self.run) = (Some(Instant::now()), None);
    }

    /// Records a successful call that may be of this kind.
    pub fn may_be_done(&mut self) {
        self.run = None;
    }

    /// Records a failed call. `counts`: the consumer must count the failure.
    pub fn failed(&mut self, counts: bool, scenario: &Scenario) {
        let now = Instant::now();
        self.failed_at = Some(now);
        if counts {
            let most = if scenario.keyed.is_some() { 40 * SECOND } else { scenario.lease };
            let rest = scenario.lease.min(most) + 10 * SECOND;
            let since = self.run.filter(|(_, last)| now <= *last + rest).map_or(now, |(since, _)| since);
            self.run = Some((since, now));
        }
    }
}

impl Life {
    /// Returns true if the consumer may report that a kind of call fails while none succeeds. The health file shows a success
    /// slightly late.
    pub fn may_fail_to_settle(&self, scenario: &Scenario, limit: Duration, now: Instant) -> bool {
        let within = |at: Option<Instant>, time: Duration| at.is_some_and(|at| now < at + time);
        let token = scenario.rate_limit.map_or(Duration::ZERO, |rate| rate.per / rate.permits);
        let again = scenario.processing_timeout + 3 * scenario.lease + 60 * SECOND + limit + token;
        let may_fail = |calls: &Calls| {
            let is_well = within(calls.done_at, limit - 2 * SECOND) && !within(calls.done_at, 2 * SECOND);
            within(calls.failed_at, again) && !is_well
        };
        self.calls.iter().any(may_fail)
    }

    /// Returns the kind of call that has failed long enough that the consumer must report it, with the duration.
    pub fn fails_to_settle(&self, scenario: &Scenario, limit: Duration, now: Instant) -> Option<(Kind, Duration)> {
        // A hanging call is known to fail only when it times out, and a copy only when its lease has ended. With leases of a few
        // seconds, a release cannot be distinguished from a heartbeat.
        let fails_for = |kind: &Kind| {
            let slack = 30 * SECOND + if *kind == Kind::Copy { scenario.lease } else { Duration::ZERO };
            let (since, last) = self.calls[*kind as usize].run?;
            let has_to_show = last > since + limit + slack && now < last + 10 * SECOND && now > last + SECOND;
            (has_to_show && !scenario.is_short).then_some((*kind, last - since))
        };
        [Kind::Removal, Kind::Copy, Kind::Release, Kind::Extension].iter().find_map(fails_for)
    }
}
