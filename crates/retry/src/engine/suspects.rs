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

use super::{Engine, Observer};
use crate::requests;
use crate::scheduler::{Answer, Millis, millis};

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

impl<O: Observer> Engine<O> {
    /// Ends the requests whose connection is lost.
    pub(super) fn lose(&mut self, now: Millis) {
        self.probed_at = None;
        let lost = self.requests.lost();
        let subjects: HashSet<_> = lost.iter().map(|ended| Arc::clone(&ended.subject)).collect();
        let verdicts = self.suspects.lost(&subjects, fastrand::f64());
        for requests::Ended { place, subject } in lost {
            let costs_retry = verdicts.get(&subject).is_some_and(|verdict| verdict.costs_retry);
            let answer = if costs_retry {
                let reason = "the connection to NATS was lost in each of its last deliveries: its receiver may send replies \
                              that are not valid";
                Answer::NoAck(reason.to_owned())
            } else {
                Answer::Unsent
            };
            self.scheduler.answered(now, place, answer, fastrand::f64());
        }
        for (subject, verdict) in verdicts {
            if let Some(wait) = verdict.wait {
                tracing::warn!(
                    subject = &*subject,
                    wait_seconds = wait.as_secs_f64(),
                    "the connection to NATS was lost again while a receiver had messages of this subject; the subject waits: \
                     look at the replies of its receivers"
                );
                self.scheduler.restore_closed(now, &subject, now.saturating_add(millis(wait)));
            }
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
