//! The escalation policy: what the host does about an outcome.

use std::time::Duration;

use hostler_config::{OnProcessingTimeout, Retry};
use hostler_handler::Outcome;
use hostler_types::Backoff;

/// The longest release that a queue takes (AWS: the 12-hour visibility timeout).
const MAX_RELEASE: Duration = Duration::from_secs(12 * 60 * 60);

/// Rests of a message after the host was at a limit.
const REST: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// The host's decision about a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Disposition {
    /// Remove it.
    Ack,
    /// Make it visible again after this long.
    Release(Duration),
    /// A release whose attempt was the host's failure, and is not to count.
    GiveBack(Duration),
    /// Move it to the dead-letter queue, with this reason.
    DeadLetter(String),
    /// Nothing: it is no longer ours.
    None,
}

impl Disposition {
    /// Its name in logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Ack => "ack",
            Self::Release(_) | Self::GiveBack(_) => "release",
            Self::DeadLetter(_) => "dead-letter",
            Self::None => "none",
        }
    }

    /// The time for which the message stays invisible, if it is released.
    pub(super) fn delay(&self) -> Option<Duration> {
        match self {
            Self::Release(delay) | Self::GiveBack(delay) => Some(*delay),
            Self::Ack | Self::DeadLetter(_) | Self::None => None,
        }
    }
}

/// The policy of one consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// The escalation of failures.
    pub retry: Retry,
    /// The consequence of a processing timeout.
    pub on_processing_timeout: OnProcessingTimeout,
    /// True if there is a dead-letter queue.
    pub dead_letter: bool,
}

impl Policy {
    /// The number of attempts that a message gets.
    pub fn attempts(&self) -> u32 {
        self.retry.requeues.saturating_add(self.retry.delays).saturating_add(1)
    }

    /// Decides about the outcome of the `attempt`-th delivery (1 is the first). `jitter` is a random number from 0
    /// to 1, which spreads the delays (full jitter).
    pub fn disposition(&self, outcome: &Outcome, attempt: u32, jitter: f64) -> Disposition {
        let reason = || outcome.reason().unwrap_or_else(|| "the handler asked for a retry".into());
        match outcome {
            Outcome::Ack | Outcome::Reply(_) => Disposition::Ack,
            Outcome::Retry(_) | Outcome::Failed(_) | Outcome::Trapped(_) => self.escalate(reason(), attempt, jitter),
            Outcome::Delay(delay) if attempt < self.attempts() => Disposition::Release((*delay).min(MAX_RELEASE)),
            Outcome::Delay(_) => self.give_up("the handler asked for another delay".into(), attempt),
            Outcome::DeadLetter(reason) => self.dead_letter(reason.clone()),
            Outcome::TimedOut(_) => match self.on_processing_timeout {
                OnProcessingTimeout::DeadLetter => self.dead_letter(reason()),
                OnProcessingTimeout::Retry | OnProcessingTimeout::Exit => self.escalate(reason(), attempt, jitter),
            },
            Outcome::HostLimit(..) => Self::give_back(0, jitter),
            Outcome::LeaseLost => Disposition::None,
            Outcome::Shutdown => Disposition::Release(Duration::ZERO),
        }
    }

    /// Decides after the host was at a limit, and had been so for this message so often in a row before. Jitter takes up to half
    /// of the rest, so that not all come back at once.
    pub fn give_back(times: u32, jitter: f64) -> Disposition {
        Disposition::GiveBack(REST.rest(times, jitter))
    }

    /// Requeues first, then delays that double, then the dead-letter queue.
    fn escalate(&self, reason: String, attempt: u32, jitter: f64) -> Disposition {
        let retry = &self.retry;
        if attempt <= retry.requeues {
            return Disposition::Release(retry.requeue_delay);
        }
        if attempt < self.attempts() {
            let delays = Backoff::new(retry.delay, retry.max_delay);
            return Disposition::Release(delays.spread(attempt - retry.requeues - 1, jitter));
        }
        self.give_up(reason, attempt)
    }

    fn give_up(&self, reason: String, attempt: u32) -> Disposition {
        let times = if attempt == 1 { "attempt" } else { "attempts" };
        self.dead_letter(format!("{reason} (gave up after {attempt} {times})"))
    }

    /// Without a dead-letter queue the message stays, and comes again as late as the policy allows.
    fn dead_letter(&self, reason: String) -> Disposition {
        if self.dead_letter { Disposition::DeadLetter(reason) } else { Disposition::Release(self.retry.max_delay) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn policy() -> Policy {
        let retry =
            Retry { requeues: 2, requeue_delay: 5 * SECOND, delays: 3, delay: 60 * SECOND, max_delay: 200 * SECOND };
        Policy { retry, on_processing_timeout: OnProcessingTimeout::DeadLetter, dead_letter: true }
    }

    #[test]
    fn failures_escalate_from_requeues_to_doubling_delays_to_the_dead_letter_queue() {
        let policy = policy();
        let failed = Outcome::Failed("boom".into());
        let at = |attempt| policy.disposition(&failed, attempt, 1.0);
        let expected = [5, 5, 60, 120, 200].map(|seconds| Disposition::Release(seconds * SECOND));
        assert_eq!([1, 2, 3, 4, 5].map(at), expected);
        let reason = "boom (gave up after 6 attempts)".to_owned();
        assert_eq!(at(6), Disposition::DeadLetter(reason.clone()));
        assert_eq!(at(7), Disposition::DeadLetter(reason.replace('6', "7")));
    }

    #[test]
    fn the_host_s_limit_spends_no_attempt_and_the_rest_grows() {
        let outcome = Outcome::HostLimit(hostler_handler::Limit::Pool, "full".into());
        for attempt in [1, 6, 100] {
            assert_eq!(policy().disposition(&outcome, attempt, 1.0), Disposition::GiveBack(SECOND));
        }
        let rests = [0, 1, 5, 6, 100].map(|times| Policy::give_back(times, 1.0));
        assert_eq!(rests, [1, 2, 32, 60, 60].map(|seconds| Disposition::GiveBack(seconds * SECOND)));
        assert_eq!(Policy::give_back(6, 0.0), Disposition::GiveBack(30 * SECOND));
    }

    #[test]
    fn jitter_is_full() {
        let failed = Outcome::Trapped("boom".into());
        let at = |jitter| policy().disposition(&failed, 4, jitter);
        assert_eq!(at(0.0), Disposition::Release(Duration::ZERO));
        assert_eq!(at(0.5), Disposition::Release(60 * SECOND));
    }

    #[test]
    fn a_delay_is_kept_to_within_the_attempts() {
        let at = |attempt| policy().disposition(&Outcome::Delay(7 * SECOND), attempt, 1.0);
        assert_eq!(at(5), Disposition::Release(7 * SECOND));
        assert!(matches!(at(6), Disposition::DeadLetter(_)));
        let long = Outcome::Delay(Duration::from_secs(u64::from(u32::MAX)));
        assert_eq!(policy().disposition(&long, 1, 1.0), Disposition::Release(MAX_RELEASE));
    }

    #[test]
    fn a_processing_timeout_does_what_is_configured() {
        let timed_out = Outcome::TimedOut(SECOND);
        let with = |on_processing_timeout| Policy { on_processing_timeout, ..policy() }.disposition(&timed_out, 1, 1.0);
        let dead = Disposition::DeadLetter("processing timeout after 1.000 s".into());
        assert_eq!(with(OnProcessingTimeout::DeadLetter), dead);
        assert_eq!(with(OnProcessingTimeout::Retry), Disposition::Release(5 * SECOND));
        assert_eq!(with(OnProcessingTimeout::Exit), Disposition::Release(5 * SECOND));
    }

    #[test]
    fn without_a_dead_letter_queue_nothing_is_removed() {
        let policy = Policy { dead_letter: false, ..policy() };
        for outcome in [Outcome::DeadLetter("no".into()), Outcome::TimedOut(SECOND), Outcome::Failed("x".into())] {
            assert_eq!(policy.disposition(&outcome, 9, 1.0), Disposition::Release(200 * SECOND));
        }
    }

    #[test]
    fn only_success_acks_and_only_a_lost_lease_does_nothing() {
        let at = |outcome: Outcome| policy().disposition(&outcome, 1, 1.0);
        assert_eq!(at(Outcome::Ack), Disposition::Ack);
        assert_eq!(at(Outcome::Reply(vec![])), Disposition::Ack);
        assert_eq!(at(Outcome::LeaseLost), Disposition::None);
        assert_eq!(at(Outcome::Shutdown), Disposition::Release(Duration::ZERO));
        assert_eq!(at(Outcome::DeadLetter("bad row".into())), Disposition::DeadLetter("bad row".into()));
    }

    #[test]
    fn the_default_of_no_retries_gives_up_at_once() {
        let retry = Retry { requeues: 0, delays: 0, ..policy().retry };
        let at_once = Policy { retry, ..policy() }.disposition(&Outcome::Failed("x".into()), 1, 1.0);
        assert_eq!(at_once, Disposition::DeadLetter("x (gave up after 1 attempt)".into()));
    }
}
