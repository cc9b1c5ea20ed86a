//! The judge: observes all events of a run, and checks them against the promises.
//!
//! The judge knows the state of the queue, the actions of the handlers and the calls, but nothing of the consumer's internals.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::Instant;

use hostler_health::{BreakerState, ConsumerReport};

use super::record::{Delivery, Fate, Life, State};
use super::runs::OfKey;
use super::scenario::{End, Scenario};
use super::settling::Kind;

/// Maximum delay of an event after its due time. The clock of the simulation has no load.
pub const LATE: Duration = Duration::from_millis(100);
/// Maximum time by which a lease of the embedded queue may end early. The embedded queue rounds times down to milliseconds.
const TICK: Duration = Duration::from_millis(2);

/// Returns the receipt of the delivery on which a process runs a handler or a hook. This is the last matching delivery, because
/// an attempt that was given back is followed by another with the same number.
pub(super) fn receipt_of(state: &State, life: usize, name: &str, attempt: u32) -> Option<String> {
    let is_it = |one: &Delivery| (one.life, one.name.as_str(), one.attempt) == (life, name, attempt);
    let found = state.deliveries.iter().filter(|(_, one)| is_it(one)).max_by_key(|(_, one)| one.number);
    found.map(|(receipt, _)| receipt.clone())
}

fn delivery<'a>(state: &'a mut State, life: usize, name: &str, attempt: u32) -> Option<&'a mut Delivery> {
    let receipt = receipt_of(state, life, name, attempt)?;
    state.deliveries.get_mut(&receipt)
}

/// Observes the events of a run and checks them.
#[derive(Debug)]
pub struct Judge {
    pub(super) scenario: Arc<Scenario>,
    pub(super) started_at: Instant,
    pub(super) state: Mutex<State>,
}

impl Judge {
    pub fn new(scenario: Arc<Scenario>, keeps_trace: bool) -> Self {
        let began_at = Some(Instant::now());
        let state = Mutex::new(State { keeps_trace, began_at, ..State::default() });
        Self { scenario, started_at: Instant::now(), state }
    }

    pub(super) fn see(&self, event: impl FnOnce() -> String) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap();
        if state.keeps_trace {
            let broken: Vec<_> =
                state.violations.iter().skip(state.told).map(|broken| format!("!! {broken}")).collect();
            state.told = state.violations.len();
            state.trace.extend(broken);
            let line = format!("{:>10.3}  {}", self.started_at.elapsed().as_secs_f64(), event());
            state.trace.push(line);
        }
        state
    }

    /// Records an event that no promise concerns.
    pub fn note(&self, event: impl FnOnce() -> String) {
        drop(self.see(event));
    }

    /// Records that a promise is broken.
    pub fn break_promise(&self, what: String) {
        self.see(|| "a promise is broken".into()).violations.push(what);
    }

    /// Returns the broken promises and the trace of all events.
    pub fn verdict(&self) -> (Vec<String>, Vec<String>) {
        let mut state = self.state.lock().unwrap();
        (std::mem::take(&mut state.violations), std::mem::take(&mut state.trace))
    }

    // Events of the queue.

    pub fn sent(&self, name: &str, group: Option<&str>, not_before: Option<Instant>) {
        let waits = not_before.map(|at| format!("for {:?} from now", at.saturating_duration_since(Instant::now())));
        let mut state = self.see(|| format!("sent {name} {}{}", group.unwrap_or(""), waits.unwrap_or_default()));
        state.order.push(name.to_owned());
        let fate = Fate { group: group.map(str::to_owned), not_before, ..Fate::default() };
        state.fates.insert(name.to_owned(), fate);
    }

    pub fn leased(&self, life: usize, receipt: &str, name: &str, attempt: u32, until: Instant) {
        let mut state = self.see(|| format!("queue leases {name} attempt {attempt} to process {life} as {receipt}"));
        let now = Instant::now();
        let holds = |one: &Delivery| one.name == name && one.until > now + TICK && !one.settled;
        if self.scenario.is_exact() && state.deliveries.values().any(holds) {
            state.violations.push(format!("3: {name} is leased while it is leased"));
        }
        let broken = self.fault_of_attempt(&state, life, name, attempt);
        state.violations.extend(broken);
        let waits_until =
            state.fates.get(name).and_then(|fate| fate.not_before).filter(|at| *at + self.scenario.unsure() > now);
        let delivery = Delivery {
            number: state.deliveries.len(),
            name: name.to_owned(),
            attempt,
            life,
            until,
            received_at: Instant::now(),
            waits_until,
            ours_until: None,
            called_at: Instant::now(),
            called_for: Duration::ZERO,
            started_at: None,
            ended: None,
            deciding: false,
            decision: None,
            decided_at: None,
            is_probe: false,
            calls: 0,
            settling: false,
            removal: None,
            heartbeat_failed: false,
            answered_at: None,
            asked: 0,
            settled: false,
            released: false,
            lost_at: None,
            taken_at: None,
            owed: None,
            is_cancelled: false,
            of_key: OfKey::default(),
        };
        state.deliveries.insert(receipt.to_owned(), delivery);
    }

    /// Checks the attempt number of a receive. An exact queue counts every receive, except those given back because no
    /// handler ran or the host was at a limit, and those before the message's time. A receive just before a kill may be unknown to
    /// the judge.
    fn fault_of_attempt(&self, state: &State, life: usize, name: &str, attempt: u32) -> Option<String> {
        let same = |one: &&Delivery| one.name == name && self.scenario.is_exact();
        let last = state.deliveries.values().filter(same).max_by_key(|one| one.number)?;
        let is_given_back = last.released && (last.started_at.is_none() || last.end() == Some(&End::HostLimit));
        let is_early = last.waits_until.is_some() && !last.released;
        let expected = last.attempt + u32::from(!is_given_back && !is_early);
        // One that was stopped while its key was looked up counts.
        if self.scenario.keyed.is_some() && last.started_at.is_none() && attempt == last.attempt + 1 {
            return None;
        }
        (last.life == life && attempt != expected).then(|| format!("attempt {attempt} of {name} comes, not {expected}"))
    }

    /// Records that a lease now ends at `until`.
    pub fn changed(&self, receipt: &str, until: Instant) {
        let mut state = self.see(|| format!("queue lets {receipt} end in {:?}", until - Instant::now()));
        let broken = state.deliveries.get_mut(receipt).and_then(|delivery| {
            // At the limit of 12 h, a change that arrives late may have set a lease some seconds longer.
            let is_shorter = delivery.until > until + Duration::from_secs(10);
            let is_shorter = is_shorter && delivery.ended.is_none() && delivery.started_at.is_some();
            delivery.until = until;
            delivery.released |= delivery.settling;
            // The embedded queue has no limit of 12 h.
            (!self.scenario.is_exact() && until > delivery.received_at + Duration::from_secs(12 * 3600))
                .then_some("leased for more than 12 h")
                .or(is_shorter.then_some("a lease was shortened under a running handler"))
        });
        state.violations.extend(broken.map(|broken| format!("{receipt}: {broken}")));
    }

    /// Records that the service takes leases back before their ends. It may deliver the messages to others from now on.
    pub fn taken_back(&self, receipts: &[String]) {
        let mut state = self.see(|| format!("queue takes {receipts:?} back"));
        let now = Instant::now();
        let State { deliveries, lives, .. } = &mut *state;
        for receipt in receipts {
            let Some(delivery) = deliveries.get_mut(receipt) else { continue };
            (delivery.until, delivery.taken_at) = (now, Some(now));
            (delivery.ours_until, delivery.owed) = (None, None);
            lives[delivery.life].changed_at = Some(now);
        }
    }

    pub fn copied(&self, name: &str) {
        let mut state = self.see(|| format!("queue has a copy of {name} in the dead-letter queue"));
        state.fates.entry(name.to_owned()).or_default().copies += 1;
    }

    pub fn replied(&self, name: &str) {
        self.see(|| format!("queue has a reply to {name}")).fates.entry(name.to_owned()).or_default().replied = true;
    }

    /// Checks promise 1: a message is removed only after an ack, or after its copy.
    pub fn removed(&self, name: &str) {
        let mut state = self.see(|| format!("queue removes {name}"));
        let fate = state.fates.entry(name.to_owned()).or_default();
        fate.removed = true;
        if self.scenario.keyed.is_some() {
            let broken = state.fault_of_keyed_removal(name);
            state.violations.extend(broken);
        } else if !fate.acked && fate.copies == 0 {
            state.violations.push(format!("1: {name} was removed without an ack, and without a copy"));
        }
    }

    // Events of the process.

    /// Records the start of a process. Returns the number of the process.
    pub fn born(&self) -> usize {
        let mut state = self.see(|| "a process starts".into());
        state.lives.push(Life { born_at: Some(Instant::now()), ..Life::default() });
        state.lives.len() - 1
    }

    pub fn draining(&self, life: usize) {
        self.see(|| format!("process {life} gets SIGTERM")).lives[life].drained_at = Some(Instant::now());
    }

    pub fn grace_over(&self, life: usize) {
        self.see(|| format!("the grace of process {life} is over")).lives[life].deadline_at = Some(Instant::now());
    }

    pub fn paused(&self, by: Duration) {
        self.see(|| format!("all stands still for {by:?}")).paused_at = Some(Instant::now());
    }

    /// Records a reboot of the machine. After the reboot, the wall clock determines when leases end.
    pub fn booted(&self) {
        let mut state = self.see(|| "the machine starts anew".into());
        state.deliveries.values_mut().for_each(|delivery| delivery.until = Instant::now());
    }

    /// Records that a process was killed, together with all its handlers.
    pub fn crashed(&self, life: usize) {
        let mut state = self.see(|| format!("process {life} is killed"));
        state.lives[life].over = true;
        let now = Instant::now();
        for delivery in state.deliveries.values_mut().filter(|delivery| delivery.life == life) {
            delivery.owed = None;
            if delivery.started_at.is_some() {
                delivery.ended.get_or_insert((now, None));
            }
        }
    }

    /// Checks promises 2 and 6: an exiting process leaves no work behind. `ahead`: number of messages that the service has sent ahead
    /// to the process, if known.
    pub fn exited(&self, life: usize, in_flight: usize, in_hand: usize, ahead: Option<usize>) {
        let mut state = self.see(|| format!("process {life} exits"));
        state.lives[life].over = true;
        if let Some(ahead) = ahead.filter(|ahead| *ahead > 0) {
            state.violations.push(format!("6: process {life} exits, and keeps {ahead} that were sent ahead"));
        }
        if (in_flight, in_hand) != (0, 0) {
            state
                .violations
                .push(format!("9: process {life} exits and shows {in_flight} in flight, {in_hand} in hand"));
        }
        let (now, paused_at) = (Instant::now(), state.paused_at);
        let State { deliveries, violations, .. } = &mut *state;
        for (receipt, delivery) in deliveries.iter_mut().filter(|(_, delivery)| delivery.life == life) {
            delivery.owed = None;
            let is_ours = delivery.ours_until.is_some_and(|until| until > now) && delivery.lost_at.is_none();
            // If all stood still while a record was extended, all heartbeats of that call may have come too late.
            let is_unsure = self.scenario.keyed.is_some() && paused_at.is_some_and(|at| now < at + self.scenario.lease);
            let is_ours = is_ours && !is_unsure;
            if is_ours && delivery.asked == 0 {
                violations.push(format!("6: {} ({receipt}) was left behind, unsettled", delivery.name));
            }
        }
    }

    /// Records that a handler starts on a delivery.
    pub fn started(&self, life: usize, name: &str, attempt: u32, shown: Option<&ConsumerReport>) -> String {
        let mut state = self.see(|| format!("process {life} starts {name} attempt {attempt}"));
        let now = Instant::now();
        let mut broken = self.faults_of_start(&state, life, name, attempt, now);
        if self.scenario.keyed.is_none() {
            broken.extend(state.lives[life].faults_of_intake("a handler", shown, now));
        }
        broken.extend(state.lives[life].faults_of_breaker(&self.scenario, shown, now));
        state.violations.extend(broken);
        let is_probe = shown.is_some_and(|shown| shown.breaker == Some(BreakerState::Probing));
        state.lives[life].probes += usize::from(is_probe);
        state.lives[life].running += 1;
        state.lives[life].changed_at = Some(now);
        state.fates.entry(name.to_owned()).or_default().starts += 1;
        let receipt = receipt_of(&state, life, name, attempt).expect("a handler starts on what the queue has leased");
        let delivery = state.deliveries.get_mut(&receipt).unwrap();
        delivery.started_at = Some(now);
        delivery.is_probe = is_probe;
        receipt
    }

    /// Returns the number by which a handler looks up its behaviour: the attempt number or, if the queue may not count an
    /// attempt, the number of starts.
    pub fn turn(&self, name: &str, attempt: u32) -> u32 {
        if !self.scenario.is_exact() {
            return attempt;
        }
        self.state.lock().unwrap().fates.get(name).map_or(attempt, |fate| fate.starts)
    }

    fn faults_of_start(&self, state: &State, life: usize, name: &str, attempt: u32, now: Instant) -> Vec<String> {
        let mut broken = Vec::new();
        let this = &state.lives[life];
        if this.running >= self.scenario.places() {
            broken.push(format!("more than {} at once", self.scenario.places()));
        }
        if this.drained_at.is_some_and(|at| now > at + self.scenario.patience()) {
            broken.push(format!("6: {name} starts after SIGTERM"));
        }
        // One that came before, by a fault of the queue, may still have waited for its batch or key.
        let came_at = receipt_of(state, life, name, attempt).map(|receipt| state.deliveries[&receipt].received_at);
        let may_wait = self.scenario.batch.is_some() || self.scenario.keyed.is_some();
        let has_waited = may_wait && came_at < this.removed.get(name).copied();
        if this.has_finished(name, now) && !has_waited {
            broken.push(format!("{name} is processed again after it was removed"));
        }
        if let Some(at) = state.fates.get(name).and_then(|fate| fate.not_before).filter(|at| *at > now) {
            broken.push(format!("{name} starts {:?} before its time", at - now));
        }
        let mine = receipt_of(state, life, name, attempt).map(|receipt| &state.deliveries[&receipt]);
        // After a freeze, the handler of a message whose key was looked up starts, and is stopped at once.
        let was_frozen = self.scenario.keyed.is_some() && state.paused_at == Some(now);
        if !was_frozen && mine.is_none_or(|delivery| delivery.until <= now && delivery.taken_at != Some(now)) {
            broken.push(format!("3: {name} starts without a lease"));
        }
        let Some(group) = state.fates.get(name).and_then(|fate| fate.group.as_ref()) else { return broken };
        let in_group = |other: &&String| state.fates[*other].group.as_ref() == Some(group);
        let earlier = state.order.iter().take_while(|other| *other != name).filter(in_group);
        for other in earlier {
            let fate = &state.fates[other];
            if !fate.acked && fate.copies == 0 {
                broken.push(format!("7: {name} starts before {other} of its group is done"));
            }
        }
        let runs = |delivery: &&Delivery| delivery.started_at.is_some() && delivery.ended.is_none();
        for delivery in state.deliveries.values().filter(runs).filter(|delivery| delivery.life == life) {
            if state.fates.get(&delivery.name).is_some_and(|fate| fate.group.as_ref() == Some(group)) {
                broken.push(format!("7: {name} starts while {} of its group runs", delivery.name));
            }
        }
        broken
    }

    /// Records that the handler of a delivery has ended. Checks promises 3 and 5.
    pub fn ended(&self, receipt: &str, end: Option<End>) {
        let mut state = self.see(|| format!("handler of {receipt} ends: {end:?}"));
        let now = Instant::now();
        let paused_at = state.paused_at;
        let State { deliveries, violations, lives, fates, .. } = &mut *state;
        let Some(delivery) = deliveries.get_mut(receipt) else { return };
        if delivery.ended.is_some() || lives[delivery.life].over {
            return;
        }
        lives[delivery.life].running -= 1;
        lives[delivery.life].changed_at = Some(now);
        let started_at = delivery.started_at.unwrap_or(now);
        let this = &mut lives[delivery.life];
        this.probes -= usize::from(delivery.is_probe);
        match &end {
            // After the end of the lease, the consumer ignores the result of the handler.
            _ if delivery.ours_until.is_none_or(|until| until < now + Duration::from_secs(2)) => {}
            Some(end) => this.ends.push_back((now, matches!(end, End::Fail | End::Trap))),
            // A stop at the timeout may coincide with the end of the lease, which does not count as a failure.
            None => {}
        }
        if this.ends.len() > 100 {
            this.ends.pop_front();
        }
        if paused_at.is_none_or(|at| at < started_at) {
            let name = &delivery.name;
            // Stopping a real guest takes up to 60 ms. Stopping a simulated guest takes no time.
            let stopping = if end.is_none() { Duration::from_millis(60) } else { Duration::ZERO };
            if now + stopping > delivery.until && delivery.taken_at.is_none() {
                violations.push(format!("3: {name} ({receipt}) ran on after its lease, or to its very end"));
            }
            if delivery.lost_at.max(delivery.taken_at).is_some_and(|at| now > at + LATE) {
                violations.push(format!("3: {name} ({receipt}) ran on after its lease was known to be lost"));
            }
            if now > started_at + self.scenario.processing_timeout + LATE {
                violations.push(format!("5: {name} ran for {:?}", now - started_at));
            }
        }
        if matches!(end, Some(End::Ack | End::Reply)) {
            fates.entry(delivery.name.clone()).or_default().acked = true;
            this.acked.insert(delivery.name.clone());
        }
        // The handler was stopped before its timeout because its lease ended.
        let is_early = now + LATE < started_at + self.scenario.processing_timeout && this.drained_at.is_none();
        if end.is_none() && is_early && delivery.heartbeat_failed && !delivery.is_cancelled {
            this.calls[Kind::Extension as usize].failed(self.scenario.keyed.is_none(), &self.scenario);
        }
        delivery.ended = Some((now, end));
        delivery.owed = Some(now);
    }

    /// Records that the processing-timeout hook begins.
    pub fn deciding(&self, life: usize, name: &str, attempt: u32) {
        let mut state = self.see(|| format!("process {life}: its hook begins on {name} attempt {attempt}"));
        if let Some(delivery) = delivery(&mut state, life, name, attempt) {
            delivery.deciding = true;
        }
    }

    /// Records that the processing-timeout hook has ended. `None`: the hook made no decision, or was stopped.
    pub fn decided(&self, life: usize, name: &str, attempt: u32, end: Option<End>) {
        let mut state = self.see(|| format!("process {life}: its hook decides on {name} attempt {attempt}: {end:?}"));
        if state.lives[life].over {
            return;
        }
        if matches!(end, Some(End::Ack | End::Reply)) {
            state.fates.entry(name.to_owned()).or_default().acked = true;
            state.lives[life].acked.insert(name.to_owned());
        }
        if let Some(delivery) = delivery(&mut state, life, name, attempt) {
            (delivery.deciding, delivery.decision) = (false, end);
            delivery.owed = Some(Instant::now());
            delivery.decided_at = delivery.owed;
        }
    }

    /// Checks that at the end of the run every message is acked or dead-lettered, and removed from the queue.
    pub fn close(&self) {
        let mut state = self.see(|| "the end".into());
        let State { fates, violations, .. } = &mut *state;
        for (name, fate) in fates.iter() {
            if !fate.removed || (!fate.acked && fate.copies == 0) {
                violations.push(format!("{name} is neither acked nor dead-lettered in the end: {fate:?}"));
            }
        }
    }
}
