//! Spared attempts: attempts that ended because of a host limit, and therefore do not count toward the maximum number
//! of attempts of their messages. No I/O.

use std::collections::{HashMap, VecDeque};

/// Maximum number of messages whose attempts are remembered. Beyond this number, the oldest message is forgotten.
const MOST: usize = 10_000;

/// Attempts of one message that ended because of a host limit.
#[derive(Debug, Default)]
struct Spoilt {
    /// Numbers of the spared attempts, as counted by the queue.
    attempts: Vec<u32>,
    /// Number of consecutive spared attempts.
    times: u32,
}

/// Spared attempts of one consumer.
#[derive(Debug, Default)]
pub(super) struct Spared {
    messages: HashMap<String, Spoilt>,
    order: VecDeque<String>,
}

impl Spared {
    /// Returns `true` if no attempts are recorded.
    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Records an attempt that ended because of a host limit.
    pub(super) fn note(&mut self, message_id: &str, attempt: u32) {
        if !self.messages.contains_key(message_id) {
            self.order.push_back(message_id.to_owned());
            if self.order.len() > MOST {
                self.order.pop_front().map(|oldest| self.messages.remove(&oldest));
            }
        }
        let spoilt = self.messages.entry(message_id.to_owned()).or_default();
        spoilt.times = spoilt.times.saturating_add(1);
        if !spoilt.attempts.contains(&attempt) {
            spoilt.attempts.push(attempt);
        }
    }

    /// Returns two numbers: the number of this attempt, not counting the spared attempts before it, and the number of
    /// attempts in a row directly before it that reached a host limit. If the queue can undo an attempt, it delivers
    /// the message again with the same number. Therefore, only spared attempts with a lower number are subtracted.
    pub(super) fn counted(&mut self, message_id: &str, attempt: u32) -> (u32, u32) {
        if self.messages.is_empty() {
            return (attempt, 0);
        }
        let Some(spoilt) = self.messages.get_mut(message_id) else { return (attempt, 0) };
        spoilt.attempts.retain(|spoilt| *spoilt < attempt);
        let spared = u32::try_from(spoilt.attempts.len()).unwrap_or(u32::MAX);
        (attempt.saturating_sub(spared).max(1), spoilt.times)
    }

    /// Records an attempt that did not reach a host limit. The message's spared attempts stay recorded, because the
    /// message may be redelivered, for example if the lease is lost before the ack.
    pub(super) fn ended(&mut self, message_id: &str) {
        if let Some(spoilt) = self.messages.get_mut(message_id) {
            spoilt.times = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spoilt_attempt_is_not_counted_whether_or_not_the_queue_takes_it_back() {
        // SQS: the queue's count increases.
        let mut sqs = Spared::default();
        assert_eq!(sqs.counted("a", 1), (1, 0));
        sqs.note("a", 1);
        assert_eq!(sqs.counted("a", 2), (1, 1));
        sqs.note("a", 2);
        assert_eq!(sqs.counted("a", 3), (1, 2));
        assert_eq!(sqs.counted("b", 3), (3, 0));
        sqs.ended("a");
        assert_eq!(sqs.counted("a", 4), (2, 0));
        // Embedded queue: the queue delivers the same number again.
        let mut embedded = Spared::default();
        embedded.note("a", 2);
        assert_eq!(embedded.counted("a", 2), (2, 1));
        embedded.ended("a");
        assert_eq!(embedded.counted("a", 3), (3, 0));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut spared = Spared::default();
        for number in 0..=MOST {
            spared.note(&number.to_string(), 1);
        }
        assert_eq!((spared.messages.len(), spared.order.len()), (MOST, MOST));
        assert_eq!(spared.counted("0", 2), (2, 0));
    }
}
