//! Allowed dispositions of a delivery, computed independently of the consumer from the results of the handler and the hook.

use std::time::Duration;

use hostler_config::OnProcessingTimeout;

use super::keyed::MAX_REST;
use super::record::Delivery;
use super::scenario::{End, Scenario};

/// Maximum delay of a message (AWS limit: 12 h).
const LONGEST: Duration = Duration::from_secs(12 * 3600);

/// Maximum delay after a limit of the host, in seconds. The four attempts of the simulation reach no longer delay.
const LONGEST_REST: u64 = 8;

/// Dispositions that are allowed for a delivery.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Allowed {
    pub ack: bool,
    pub bury: bool,
    /// Minimum and maximum delay in seconds of an allowed release.
    pub release: Option<(u64, u64)>,
}

impl Allowed {
    fn or(self, other: Self) -> Self {
        let release = match (self.release, other.release) {
            (Some(one), Some(another)) => Some((one.0.min(another.0), one.1.max(another.1))),
            (one, another) => one.or(another),
        };
        Self { ack: self.ack || other.ack, bury: self.bury || other.bury, release }
    }
}

/// Returns the allowed dispositions of a delivery whose handler has ended. `None`: the handler never ran, or still runs.
/// `drained`: the process may have stopped the handler or the hook, because the grace ended. `attempt`: the attempt number,
/// without attempts that ended at a limit of the host: the least and the greatest that it may be.
pub fn allowed(scenario: &Scenario, one: &Delivery, attempt: (u32, u32), drained: bool) -> Option<Allowed> {
    (attempt.0..=attempt.1).filter_map(|attempt| allowed_at(scenario, one, attempt, drained)).reduce(Allowed::or)
}

fn allowed_at(scenario: &Scenario, one: &Delivery, attempt: u32, drained: bool) -> Option<Allowed> {
    let (at, end) = one.ended.as_ref()?;
    // The time in which the key is looked up counts.
    let ran_out =
        one.started_at.is_some_and(|started_at| *at + scenario.patience() >= started_at + scenario.processing_timeout);
    let back = Allowed { release: Some((0, 0)), ..Allowed::default() };
    let allowed = match (end, &one.decision) {
        (Some(End::HostLimit), _) if drained => of(scenario, &End::HostLimit, attempt).or(back),
        (Some(end), _) => of(scenario, end, attempt),
        (None, Some(decision)) => of(scenario, decision, attempt),
        (None, None) if one.is_cancelled => {
            let cancelled = failed(scenario, attempt);
            let cancelled = if ran_out { cancelled.or(timed_out(scenario, attempt)) } else { cancelled };
            if drained { cancelled.or(back) } else { cancelled }
        }
        (None, None) if ran_out && drained => timed_out(scenario, attempt).or(back),
        (None, None) if ran_out => timed_out(scenario, attempt),
        (None, None) => back,
    };
    // Its dead-letter queue may not have taken it before the grace was over.
    Some(if allowed.bury && drained { allowed.or(back) } else { allowed })
}

fn of(scenario: &Scenario, end: &End, attempt: u32) -> Allowed {
    let bury = Allowed { bury: true, ..Allowed::default() };
    let ack = Allowed { ack: true, ..Allowed::default() };
    match end {
        End::Ack => ack,
        // With a key, the reply is a part of the settlement.
        End::Reply if scenario.keyed.is_some() => ack,
        // A reply that cannot be sent counts as a failure.
        End::Reply => ack.or(failed(scenario, attempt)),
        End::Retry | End::Fail | End::Trap | End::Stuck => failed(scenario, attempt),
        End::DeadLetter => bury,
        End::HostLimit => {
            let longest = if scenario.keyed.is_some() { MAX_REST } else { LONGEST_REST };
            Allowed { release: Some((1, longest)), ..Allowed::default() }
        }
        End::Delay(_) if attempt >= scenario.attempts() => bury,
        End::Delay(delay) => {
            let most = (*delay).min(LONGEST).min(scenario.max_release);
            // The time since the receive counts towards the maximum delay.
            let least =
                if most < LONGEST - Duration::from_secs(3600) { most } else { most - Duration::from_secs(3600) };
            Allowed { release: Some((least.as_secs(), most.as_secs())), ..Allowed::default() }
        }
    }
}

fn timed_out(scenario: &Scenario, attempt: u32) -> Allowed {
    match scenario.on_processing_timeout {
        OnProcessingTimeout::DeadLetter => Allowed { bury: true, ..Allowed::default() },
        OnProcessingTimeout::Retry | OnProcessingTimeout::Exit => failed(scenario, attempt),
    }
}

fn failed(scenario: &Scenario, attempt: u32) -> Allowed {
    let retry = &scenario.retry;
    let (least, most) = if attempt <= retry.requeues {
        (retry.requeue_delay, retry.requeue_delay)
    } else if attempt < scenario.attempts() {
        (Duration::ZERO, retry.max_delay.min(retry.delay * (1 << (attempt - retry.requeues - 1).min(8))))
    } else {
        return Allowed { bury: true, ..Allowed::default() };
    };
    let seconds = |delay: Duration| delay.min(scenario.max_release).as_secs();
    Allowed { release: Some((seconds(least), seconds(most))), ..Allowed::default() }
}
