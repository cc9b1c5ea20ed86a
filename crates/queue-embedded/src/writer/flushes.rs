//! Durable commands, which wait for the next flush to the disk.

use std::collections::VecDeque;
use std::time::Duration;

use super::Command;

/// Minimum interval between two flushes to the disk while the worker has other work, as a multiple of the last flush's
/// duration.
const BETWEEN_FLUSHES: u32 = 5;

/// Maximum time that the worker waits for another request before a flush. If no request arrives in this time, the
/// worker flushes.
const IDLE: Duration = Duration::from_micros(200);

/// Durable commands that wait for the next flush. Without the wait, a sender of single messages would cause a flush for
/// each message, and all other commands would wait for the disk.
#[derive(Default)]
pub(super) struct Flushes {
    pub(super) held: VecDeque<Box<dyn Command>>,
    /// Earliest time of the next flush while there is other work, by the monotonic clock. `None`: no flush yet.
    not_before: Option<Duration>,
}

impl Flushes {
    /// Returns the maximum time to wait for another request before the next flush. `None`: no command is waiting for a
    /// flush.
    pub(super) fn patience(&self, now: Duration) -> Option<Duration> {
        let until = self.not_before.map_or(Duration::ZERO, |at| at.saturating_sub(now));
        (!self.held.is_empty()).then(|| until.min(IDLE))
    }

    /// Records a flush that started at `started` and ended at `now`.
    pub(super) fn flushed(&mut self, started: Duration, now: Duration) {
        self.not_before = Some(now + now.saturating_sub(started) * BETWEEN_FLUSHES);
    }

    /// Returns `true` if commands wait for a flush and must be flushed now. `idle` is set if the worker has no other
    /// work.
    pub(super) fn are_due(&self, idle: bool, now: Duration) -> bool {
        !self.held.is_empty() && (idle || self.not_before.is_none_or(|at| at <= now))
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::super::Call;
    use super::*;
    use crate::clock::Session;

    #[test]
    fn a_flush_waits_while_others_work_and_no_longer() {
        let (reply, _) = oneshot::channel();
        let call = Call { work: |_: &Session<'_>| Ok(()), answer: None, reply };
        let (now, soon) = (Duration::from_secs(10), Duration::from_secs(11));
        let mut flushes = Flushes::default();
        assert!(flushes.patience(now).is_none() && !flushes.are_due(true, now), "nothing is held");
        flushes.held.push_back(Box::new(call));
        assert!(flushes.are_due(false, now), "the first one waits for nobody");
        flushes.not_before = Some(soon);
        assert!(!flushes.are_due(false, now) && flushes.patience(now) == Some(IDLE), "others go on");
        assert!(flushes.are_due(true, now), "nothing else is there to do");
        assert!(flushes.are_due(false, soon) && flushes.patience(soon) == Some(Duration::ZERO), "they had their time");
    }
}
