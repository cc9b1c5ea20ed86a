//! Escalation policy: maps the outcome of a message to its disposition.

use std::time::Duration;

use hostler_config::{OnProcessingTimeout, Retry};
use hostler_handler::Outcome;
use hostler_types::Backoff;

/// Maximum delay that a handler can ask for. A queue may allow less: see [`Limits`](hostler_queue::Limits).
const MAX_RELEASE: Duration = Duration::from_secs(12 * 60 * 60);

/// Delays before a message is redelivered after a host limit ended its attempt.
const REST: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// Disposition of a message on its queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Disposition {
    /// Remove the message.
    Ack,
    /// Make the message visible again after this delay.
    Release(Duration),
    /// Make the message visible again after this delay. The attempt does not count, because the handler is not at
    /// fault.
    GiveBack(Duration),
    /// Report the failure to the service, which decides about retries itself.
    Fail {
        /// The reason.
        reason: String,
        /// Delay that the handler asks for. `None`: the service chooses the delay.
        retry_in: Option<Duration>,
    },
    /// Move the message to the dead-letter queue, with this reason.
    DeadLetter(String),
    /// Do not settle the message, because its lease is lost or its settlement failed.
    None,
}

impl Disposition {
    /// Returns the name of the disposition in logs, metrics and spans.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Ack => "ack",
            Self::Release(_) | Self::GiveBack(_) | Self::Fail { .. } => "release",
            Self::DeadLetter(_) => "dead-letter",
            Self::None => "none",
        }
    }

    /// Returns the delay before the message becomes visible again. `None`: the message is not released, or the service
    /// chooses the delay.
    pub(super) fn delay(&self) -> Option<Duration> {
        match self {
            Self::Release(delay) | Self::GiveBack(delay) => Some(*delay),
            Self::Fail { retry_in, .. } => *retry_in,
            Self::Ack | Self::DeadLetter(_) | Self::None => None,
        }
    }
}

/// Escalation policy of one consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Settings for the escalation of failed attempts.
    pub retry: Retry,
    /// Action after a processing timeout.
    pub on_processing_timeout: OnProcessingTimeout,
    /// Set if the consumer has a dead-letter queue.
    pub dead_letter: bool,
}

impl Policy {
    /// Returns the maximum number of attempts per message.
    pub fn attempts(&self) -> u32 {
        self.retry.requeues.saturating_add(self.retry.delays).saturating_add(1)
    }

    /// Returns the disposition for the outcome of this attempt; attempt 1 is the first. `jitter`: random number from 0
    /// to 1, which spreads a retry's delay between zero and the maximum (full jitter).
    pub fn disposition(&self, outcome: &Outcome, attempt: u32, jitter: f64) -> Disposition {
        let reason = || reason_of(outcome);
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

    /// Returns the disposition for the outcome of a message whose service decides about retries itself. Nothing is dead-lettered
    /// unless the handler asks for it, and an attempt that the handler did not end by itself does not count.
    pub fn reported(outcome: &Outcome) -> Disposition {
        match outcome {
            Outcome::Ack | Outcome::Reply(_) => Disposition::Ack,
            Outcome::Retry(_) | Outcome::Failed(_) | Outcome::Trapped(_) | Outcome::TimedOut(_) => {
                Disposition::Fail { reason: reason_of(outcome), retry_in: None }
            }
            Outcome::Delay(delay) => {
                let reason = "the handler asked for a delay".to_owned();
                Disposition::Fail { reason, retry_in: Some((*delay).min(MAX_RELEASE)) }
            }
            Outcome::DeadLetter(reason) => Disposition::DeadLetter(reason.clone()),
            Outcome::HostLimit(..) => Self::give_back(0, 1.0),
            Outcome::LeaseLost => Disposition::None,
            Outcome::Shutdown => Disposition::GiveBack(Duration::ZERO),
        }
    }

    /// Returns the disposition of a message whose attempt ended because of a host limit. `times`: number of preceding
    /// attempts in a row that also reached a host limit. Jitter shortens the delay by up to half, so that messages do
    /// not all return at once.
    pub fn give_back(times: u32, jitter: f64) -> Disposition {
        Disposition::GiveBack(REST.rest(times, jitter))
    }

    /// Returns the disposition after a failed attempt. The first attempts lead to a release with a fixed delay, and the
    /// next attempts to a release with a delay that doubles. The last attempt leads to a move to the dead-letter queue.
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

    /// Returns [`Disposition::DeadLetter`] with this reason. If there is no dead-letter queue, returns a release with
    /// the maximum delay of the escalation policy.
    fn dead_letter(&self, reason: String) -> Disposition {
        if self.dead_letter { Disposition::DeadLetter(reason) } else { Disposition::Release(self.retry.max_delay) }
    }
}

/// Returns the reason for which an attempt failed.
fn reason_of(outcome: &Outcome) -> String {
    outcome.reason().unwrap_or_else(|| "the handler asked for a retry".into())
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
    fn a_service_that_decides_is_told_of_each_failure_and_nothing_is_dead_lettered_unasked() {
        let failed = |reason: &str| Disposition::Fail { reason: reason.into(), retry_in: None };
        let asked = |seconds: u32| Disposition::Fail {
            reason: "the handler asked for a delay".into(),
            retry_in: Some(seconds * SECOND),
        };
        for (outcome, expected) in [
            (Outcome::Ack, Disposition::Ack),
            (Outcome::Reply(vec![7]), Disposition::Ack),
            (Outcome::Retry(None), failed("the handler asked for a retry")),
            (Outcome::Retry(Some("busy".into())), failed("busy")),
            (Outcome::Failed("boom".into()), failed("boom")),
            (Outcome::Trapped("unreachable".into()), failed("unreachable")),
            (Outcome::TimedOut(SECOND), failed("processing timeout after 1.000 s")),
            (Outcome::Delay(7 * SECOND), asked(7)),
            (Outcome::Delay(Duration::MAX), asked(12 * 3600)),
            (Outcome::DeadLetter("bad row".into()), Disposition::DeadLetter("bad row".into())),
            (Outcome::HostLimit(hostler_handler::Limit::Pool, "full".into()), Disposition::GiveBack(SECOND)),
            (Outcome::LeaseLost, Disposition::None),
            (Outcome::Shutdown, Disposition::GiveBack(Duration::ZERO)),
        ] {
            assert_eq!(Policy::reported(&outcome), expected, "{outcome:?}");
        }
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
