//! Rest rule: decides when the queue is told that nothing will be received for a while, although the consumer is not paused.
//! Other receivers then get the messages that the service sent ahead. No I/O.

use tokio::time::{Duration, Instant};

/// Minimum time without a receive for which the queue is told to rest. For a shorter time, messages that the service sent
/// ahead would go back and come again for nothing.
const LONG: Duration = Duration::from_secs(10);

/// Reason why nothing is received for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lull {
    /// No reason, a receive call is in progress, or the queue was already told by the event loop.
    None,
    /// The rate limit permits no message until this time.
    Until(Instant),
    /// The breaker waits for the result of its probe. The service may have sent other messages ahead, which would be kept until the
    /// probe ends: before the breaker opened, or for a probe that had to pass over many messages.
    Probe,
}

/// State of the rule.
#[derive(Debug, Default)]
pub(super) struct RestRule {
    /// Set from the moment at which the queue is told until the next receive.
    rests: bool,
}

impl RestRule {
    /// Returns `true` if the queue must be told now to rest. Returns `true` once for each rest.
    pub(super) fn begins(&mut self, lull: Lull, now: Instant) -> bool {
        let is_long = match lull {
            Lull::None => false,
            Lull::Until(at) => at >= now + LONG,
            Lull::Probe => true,
        };
        is_long && !std::mem::replace(&mut self.rests, true)
    }

    /// Records that a receive begins, which ends the rest.
    pub(super) fn ends(&mut self) {
        self.rests = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_lull_is_a_rest_and_a_short_one_is_not() {
        let now = Instant::now();
        let begins = |lull| RestRule::default().begins(lull, now);
        assert!(begins(Lull::Until(now + LONG)));
        assert!(!begins(Lull::Until(now + LONG - Duration::from_millis(1))));
        assert!(begins(Lull::Probe), "nobody knows how long the probe takes");
        assert!(!begins(Lull::None));
    }

    #[test]
    fn a_rest_begins_once_after_each_receive() {
        let (mut rule, now) = (RestRule::default(), Instant::now());
        assert_eq!([(); 2].map(|()| rule.begins(Lull::Probe, now)), [true, false]);
        assert!(!rule.begins(Lull::None, now) && !rule.begins(Lull::Until(now + LONG), now), "it rests already");
        rule.ends();
        assert!(rule.begins(Lull::Until(now + LONG), now));
    }
}
