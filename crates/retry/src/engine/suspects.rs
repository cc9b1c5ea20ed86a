//! Subjects whose receivers may be why the connection was lost.
//!
//! A receiver can send a reply that the client of NATS cannot read, such as a header that is not UTF-8. The client then
//! closes the connection, and the message would be sent again at once, and so for ever. So a subject that was in flight
//! each time the connection was lost, without a reply in between, waits longer each time. Finally, its deliveries count
//! as not acknowledged.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use hostler_types::Backoff;

/// Waits of a subject that was in flight in several losses in a row, from the second one.
const WAITS: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// Number of losses in a row that cost no retry.
const FREE: u32 = 3;

/// The consequence of a loss for a subject.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Verdict {
    /// Wait before the next delivery to the subject. `None`: it need not wait.
    pub(super) wait: Option<Duration>,
    /// Set if the deliveries count as not acknowledged.
    pub(super) costs_retry: bool,
}

/// Counts the losses of each subject.
#[derive(Debug, Default)]
pub(super) struct Suspects {
    losses: HashMap<Arc<str>, u32>,
}

impl Suspects {
    /// Records that the connection was lost while these subjects had messages in flight. `random`: a number from 0 to 1.
    pub(super) fn lost(&mut self, subjects: &HashSet<Arc<str>>, random: f64) -> HashMap<Arc<str>, Verdict> {
        let verdict = |subject: &Arc<str>| {
            let losses = self.losses.entry(Arc::clone(subject)).or_default();
            *losses = losses.saturating_add(1);
            let wait = losses.checked_sub(2).map(|before| WAITS.rest(before, random));
            (Arc::clone(subject), Verdict { wait, costs_retry: *losses > FREE })
        };
        subjects.iter().map(verdict).collect()
    }

    /// Records that a receiver replied, or did not reply in time, while the connection worked.
    pub(super) fn clear(&mut self, subject: &str) {
        if !self.losses.is_empty() {
            self.losses.remove(subject);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_that_is_always_in_flight_waits_and_then_pays() {
        let (mut suspects, all) = (Suspects::default(), HashSet::from(["bad".into(), "good".into()]));
        let verdicts: Vec<_> = (0..5)
            .map(|_| {
                let verdicts = suspects.lost(&all, 1.0);
                suspects.clear("good");
                assert_eq!(verdicts["good"], Verdict::default());
                (verdicts["bad"].wait.map(|wait| wait.as_secs()), verdicts["bad"].costs_retry)
            })
            .collect();
        assert_eq!(verdicts, [(None, false), (Some(1), false), (Some(2), false), (Some(4), true), (Some(8), true)]);
        suspects.clear("bad");
        assert_eq!(suspects.lost(&all, 1.0)["bad"], Verdict::default());
    }
}
