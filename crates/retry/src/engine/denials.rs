//! Subjects to which the server lets nothing be published, because the user of the service lacks the permission.
//!
//! The server says so for each request, but does not name the request. So all requests on the subject end that no receiver has
//! heard of. If the permission is withdrawn while some are on their way, their receivers get them twice.

use std::collections::HashMap;

use super::{Engine, Observer};
use crate::scheduler::{Answer, Millis};

/// Number of subjects that are remembered. Refusals of further ones are not counted.
const MOST: usize = 1_024;

/// Counts the refused deliveries of each subject.
#[derive(Debug, Default)]
pub(super) struct Denials {
    refused: HashMap<Box<str>, u64>,
}

impl Denials {
    /// Records refused deliveries. Returns `true` if the subject worked before.
    fn count(&mut self, subject: &str, deliveries: u64) -> bool {
        if let Some(refused) = self.refused.get_mut(subject) {
            *refused = refused.saturating_add(deliveries);
            return false;
        }
        let has_room = self.refused.len() < MOST;
        if has_room {
            self.refused.insert(subject.into(), deliveries);
        }
        has_room
    }

    /// Records that a receiver has replied.
    pub(super) fn end(&mut self, subject: &str) {
        if self.refused.is_empty() {
            return;
        }
        if let Some(deliveries) = self.refused.remove(subject) {
            tracing::info!(subject, deliveries, "the NATS server no longer refuses the subject");
        }
    }
}

impl<O: Observer> Engine<O> {
    /// Ends the requests on a subject that the server refuses. They cost no retry.
    pub(super) fn deny(&mut self, subject: &str, now: Millis) {
        let ended = self.requests.denied(subject);
        if ended.is_empty() {
            return;
        }
        if self.denials.count(subject, ended.len() as u64) {
            tracing::warn!(
                subject,
                "the NATS server refuses deliveries to a subject; its messages wait, and spend no retries: let the user of \
                 `retry.nats` publish to the subject"
            );
        }
        for ended in ended {
            self.suspects.clear(&ended.subject);
            self.scheduler.answered(now, ended.place, Answer::Denied, fastrand::f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_new_once_until_a_receiver_replies() {
        let mut denials = Denials::default();
        assert_eq!([denials.count("a", 3), denials.count("b", 1), denials.count("a", 1)], [true, true, false]);
        assert_eq!(denials.refused["a"], 4);
        denials.end("a");
        assert!(denials.count("a", 1));
        let new = (0..2 * MOST).filter(|number| denials.count(&format!("many.{number}"), 1)).count();
        assert_eq!(new, MOST - 2, "no producer fills the memory");
    }
}
