//! Judges the health, the pauses, the breaker and the rate of a consumer, second by second.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hostler_health::process::ProcessInfo;
use hostler_health::{BreakerState, ConsumerReport, Reason, Report, SCHEMA, StartPeriod, Timestamp, verdict};
use tokio::time::Instant;

use super::judge::{Judge, LATE};
use super::record::{Life, State};
use super::scenario::Scenario;

const SECOND: Duration = Duration::from_secs(1);

/// Returns the wall-clock time at an instant of a run that began at `origin`.
pub fn wall(origin: Instant, at: Instant) -> Timestamp {
    let begin: SystemTime = UNIX_EPOCH + 1_000_000_000 * SECOND;
    Timestamp::from(begin).plus(at.saturating_duration_since(origin))
}

impl Judge {
    /// Records that the service fails for this duration.
    pub fn outage(&self, by: Duration) {
        let mut state = self.see(|| format!("the service fails for {by:?}"));
        let now = Instant::now();
        state.outage = Some((now, now + by));
    }

    /// Records that an operator pauses or resumes a process.
    pub fn held(&self, life: usize, held: bool) {
        let mut state = self.see(|| format!("process {life} {}", if held { "is paused" } else { "is resumed" }));
        let life = &mut state.lives[life];
        life.held_since = held.then(Instant::now);
        life.resumed_at = (!held).then(Instant::now);
        life.changed_at = Some(Instant::now());
    }

    /// Checks the health file of a process, and what the service has sent ahead to it, if known. Returns true while the process runs.
    pub fn looked(&self, life: usize, report: ConsumerReport, ahead: Option<usize>) -> bool {
        let mut state = self.state.lock().unwrap();
        let now = Instant::now();
        if state.lives[life].over {
            return false;
        }
        let rests = report.rests();
        let is_probing = report.breaker == Some(BreakerState::Probing);
        let limit = report.healthcheck_timeout;
        let reasons = judged(report, wall(self.started_at, now));
        let since = if rests { state.lives[life].resting_since.or(Some(now)) } else { None };
        state.lives[life].resting_since = since;
        let broken = faults_of_health(&self.scenario, &state, &state.lives[life], &reasons, limit, now);
        let may_keep = !state.lives[life].may_receive_nothing(is_probing, state.paused_at, now);
        if let Some(ahead) = ahead.filter(|ahead| *ahead > 0 && !may_keep) {
            state
                .violations
                .push(format!("process {life} keeps {ahead} that were sent ahead, and may receive nothing"));
        }
        drop(state);
        if let Some(broken) = broken {
            let reasons = reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            self.see(|| "the health check".into()).violations.push(format!("9: process {life}: {broken}: {reasons}"));
        }
        true
    }
}

/// Returns the reasons for which the health check would report the process as unhealthy.
fn judged(report: ConsumerReport, now: Timestamp) -> Vec<Reason> {
    let report = Report {
        schema: SCHEMA,
        pid: 1,
        pid_namespace: None,
        started_at: now,
        written_at: now,
        consumers: vec![report],
        others: Vec::new(),
        queue_link: None,
    };
    let start_period = StartPeriod { limit: Duration::ZERO, pid1_started_at: None };
    verdict(Ok(&report), Some(ProcessInfo { started_at: None, since_boot: None }), now, start_period).reasons
}

fn faults_of_health(
    scenario: &Scenario,
    state: &State,
    life: &Life,
    reasons: &[Reason],
    limit: Duration,
    now: Instant,
) -> Option<String> {
    // Shortly after a freeze, the process cannot report its health correctly.
    if life.drained_at.is_some() || state.paused_at.is_some_and(|at| now < at + 5 * SECOND) {
        return None;
    }
    let within = |at: Option<Instant>, time: Duration| at.is_some_and(|at| now < at + time);
    let outage_over = state.outage.is_none_or(|(_, until)| now > until + limit + 120 * SECOND);
    let stall_over = state.paused_at.is_none_or(|at| now > at + limit + 120 * SECOND);
    let calm = scenario.is_fair()
        || (now > state.began_at() + scenario.calm_at + limit + 120 * SECOND && outage_over && stall_over);
    for reason in reasons {
        let is_wrong = match reason {
            Reason::NotPolling { .. } => calm || within(life.polled_at.max(life.resumed_at), limit - 2 * SECOND),
            Reason::NotSettling { .. } => {
                let waits = within(life.store_failed_at, 2 * limit + scenario.lease + 60 * SECOND);
                !waits && !life.may_fail_to_settle(scenario, limit, now)
            }
            // No handler runs longer than its processing timeout.
            Reason::Stuck { .. } => stall_over,
            _ => true,
        };
        if is_wrong {
            return Some("it is called unhealthy, and is not".into());
        }
    }
    let unsettled = life.fails_to_settle(scenario, limit, now).filter(|_| reasons.is_empty());
    if let Some((kind, time)) = unsettled {
        return Some(format!("it is called healthy, and each {kind:?} has failed for {time:?}"));
    }
    // During an outage, the process must not appear healthy for long, unless the consumer is not supposed to poll.
    let (out_since, _) = state.outage.filter(|(_, until)| now < *until)?;
    let last = [Some(out_since), life.polled_at, life.born_at, life.changed_at, state.paused_at];
    let last = last.into_iter().flatten().max()?;
    let slack = scenario.lease + 60 * SECOND;
    let is_due = now > last + limit + slack && life.held_since.is_none() && life.running == 0;
    let is_missed = is_due && scenario.breaker.is_none() && reasons.is_empty();
    is_missed.then(|| format!("it is called healthy, and has polled nothing for {:?}", now - last))
}

impl Life {
    /// Records `count` received messages. Returns the fault if the rate since the start exceeds the rate limit.
    pub fn fault_of_rate(&mut self, scenario: &Scenario, count: usize, now: Instant) -> Option<String> {
        self.received += count;
        let rate = scenario.rate_limit?;
        let allowed = f64::from(rate.permits) / rate.per.as_secs_f64() * (now - self.born_at?).as_secs_f64();
        (self.received as f64 > allowed + 1.0).then(|| format!("{} came where {allowed:.1} may", self.received))
    }

    /// Returns the faults of a receive or a handler start that begins now, with regard to pauses and the breaker. `what` names
    /// the event.
    pub fn faults_of_intake(&self, what: &str, shown: Option<&ConsumerReport>, now: Instant) -> Vec<String> {
        let long_ago = |since: Option<Instant>| since.is_some_and(|since| now > since + LATE);
        let mut broken = Vec::new();
        if long_ago(self.held_since) {
            broken.push(format!("{what} begins while an operator has paused it"));
        }
        if long_ago(self.resting_since) && shown.is_some_and(ConsumerReport::rests) {
            broken.push(format!("{what} begins while it says that it rests"));
        }
        broken
    }

    /// Returns true if the process knows that it may receive nothing for a while: it is paused, its breaker is open, or its breaker
    /// has its probe.
    fn may_receive_nothing(&self, is_probing: bool, paused_at: Option<Instant>, now: Instant) -> bool {
        let long_ago = |since: Option<Instant>| since.is_some_and(|since| now > since + LATE);
        let is_smooth = [self.changed_at, paused_at].into_iter().flatten().all(|at| now > at + SECOND);
        let is_shut = long_ago(self.held_since) || long_ago(self.resting_since);
        self.drained_at.is_none() && is_smooth && (is_shut || (is_probing && self.probes > 0))
    }

    /// Returns the faults of a handler that starts while the breaker has this state.
    pub fn faults_of_breaker(&self, scenario: &Scenario, shown: Option<&ConsumerReport>, now: Instant) -> Vec<String> {
        let (Some(breaker), Some(shown)) = (scenario.breaker, shown) else { return Vec::new() };
        let mut broken = Vec::new();
        if shown.breaker == Some(BreakerState::Probing) && self.probes > 0 {
            broken.push("two messages are tried at once while the breaker probes".into());
        }
        // Requires that all handlers failed, for every possible extent of the breaker's window.
        let recent = |ends: &VecDeque<(Instant, bool)>, part: f64| {
            let from = now.checked_sub(breaker.over.mul_f64(part));
            ends.iter().filter(|(at, _)| from.is_none_or(|from| *at > from)).copied().collect::<Vec<_>>()
        };
        let (wide, narrow) = (recent(&self.ends, 1.1), recent(&self.ends, 0.9));
        let all_failed = wide.iter().all(|(_, failed)| *failed) && narrow.len() >= breaker.min as usize;
        // A timeout is final only after the hook has decided. If a receipt becomes stale meanwhile, the timeout does not count as
        // a failure.
        let is_known = narrow.last().is_some_and(|(at, _)| now > *at + 2 * SECOND) && scenario.rates.stale == 0.0;
        if all_failed && is_known && shown.breaker.is_none() {
            broken.push(format!("a handler starts after {} failures in a row, with the breaker closed", narrow.len()));
        }
        broken
    }
}

#[cfg(test)]
mod tests {
    use hostler_types::Rate;

    use super::super::key::Key;
    use super::*;

    #[test]
    fn the_rate_limit_counts_what_came() {
        let scenario = Scenario { rate_limit: Some(Rate { permits: 1, per: SECOND }), ..Scenario::of(&Key::default()) };
        let born_at = Instant::now();
        let mut life = Life { born_at: Some(born_at), ..Life::default() };
        let mut came = |count| life.fault_of_rate(&scenario, count, born_at + SECOND);
        assert_eq!([came(2), came(0)], [None, None]);
        assert_eq!(came(1).as_deref(), Some("3 came where 1.0 may"));
    }
}
