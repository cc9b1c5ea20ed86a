//! The judge's knowledge of calls that settle and extend: since when those of a kind fail, and when one last went well.

use std::time::Duration;

use tokio::time::Instant;

use super::record::Life;
use super::scenario::Scenario;

const SECOND: Duration = Duration::from_secs(1);

/// Calls that fail and succeed together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Of what was acked.
    Removal,
    /// To the dead-letter queue, and the removal after it.
    Copy,
    Release,
    Extension,
}

/// The fate of the calls of a kind.
#[derive(Debug, Clone, Copy, Default)]
pub struct Calls {
    pub done_at: Option<Instant>,
    pub failed_at: Option<Instant>,
    /// From the first to the last that certainly counts as a failure, with no success between and no long rest.
    run: Option<(Instant, Instant)>,
}

impl Calls {
    pub fn done(&mut self) {
        (self.done_at, self.run) = (Some(Instant::now()), None);
    }

    /// A call that went well, of this kind or another.
    pub fn may_be_done(&mut self) {
        self.run = None;
    }

    /// A call that failed. `counts`: the consumer has to count it.
    pub fn failed(&mut self, counts: bool, scenario: &Scenario) {
        let now = Instant::now();
        self.failed_at = Some(now);
        if counts {
            let rest = scenario.lease + 10 * SECOND;
            let since = self.run.filter(|(_, last)| now <= *last + rest).map_or(now, |(since, _)| since);
            self.run = Some((since, now));
        }
    }
}

impl Life {
    /// Tells if it may say that a kind of call fails, and nothing of it succeeds. The file shows a success a moment after it.
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

    /// The kind of call that has failed for so long that it has to say so, and how long.
    pub fn fails_to_settle(&self, scenario: &Scenario, limit: Duration, now: Instant) -> Option<(Kind, Duration)> {
        // What hangs is known to fail only once it is given up; a copy, once its lease is over. Leases of a few seconds do not tell a
        // release from a heartbeat.
        let fails_for = |kind: &Kind| {
            let slack = 30 * SECOND + if *kind == Kind::Copy { scenario.lease } else { Duration::ZERO };
            let (since, last) = self.calls[*kind as usize].run?;
            let has_to_show = last > since + limit + slack && now < last + 10 * SECOND && now > last + SECOND;
            (has_to_show && !scenario.is_short).then_some((*kind, last - since))
        };
        [Kind::Removal, Kind::Copy, Kind::Release, Kind::Extension].iter().find_map(fails_for)
    }
}
