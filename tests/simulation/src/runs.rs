//! Idempotency keys, as the judge sees them: which runs of the handler held the record of a key, how they ended, and what they sent.

use std::collections::BTreeMap;

use hostler_queue::{Begun, Hold, LeaseError, RecordId, RunEnd};
use hostler_types::digest::sha256;
use tokio::time::Instant;

use super::judge::{Judge, LATE};
use super::keyed::{Subject, sender_of};
use super::record::{Delivery, State};
use super::scenario::{End, Planned};
use super::settling::Kind;

/// Answers of the store after which a delivery has no run. Two deliveries of a key in one process cannot be told apart, so both get the
/// answers of either.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Refusals {
    pub busy: bool,
    /// The store did not answer in time, or refused.
    pub failed: bool,
    pub done: bool,
    pub unknown: bool,
    pub other_body: bool,
}

impl Refusals {
    pub fn are_any(self) -> bool {
        self != Self::default()
    }

    /// Returns true if the message may go back without counting the attempt.
    pub fn give_back(self) -> bool {
        self.busy || self.failed
    }

    fn bury(self) -> bool {
        self.unknown || self.other_body
    }
}

/// Extension of a run's record, beside the heartbeat of its message.
#[derive(Debug, Clone, Copy, Default)]
pub enum Beat {
    /// Nothing is under way, or the record was extended.
    #[default]
    None,
    /// The store has not answered. Contains the time until which the queue has extended the lease, once it has.
    UnderWay(Option<Instant>),
    /// The record was not extended, so the process must not rely on the heartbeat.
    Failed,
}

/// The part of a delivery that concerns its key.
#[derive(Debug, Default)]
pub struct OfKey {
    pub refusals: Refusals,
    /// Number of the run.
    pub run: Option<usize>,
    pub beat: Beat,
}

/// A run of the handler for a key.
#[derive(Debug)]
struct Run {
    receipt: String,
    subject: Subject,
    hold: Hold,
    /// Time at which the store began it.
    begun_at: Instant,
    /// Set if its handler panics because of a limit of the host, which is no result.
    panics: bool,
    /// Set once the store was asked to end it.
    is_ended: bool,
    recorded_at: Option<Instant>,
    /// Bodies of the messages that it sends.
    sends: Vec<String>,
    /// Number of arrivals of each of its messages.
    arrived: BTreeMap<String, u32>,
}

/// Keys and their runs.
#[derive(Debug, Default)]
pub struct Keys {
    runs: Vec<Run>,
    /// The last run that the store let a process begin, by process and record.
    begun: BTreeMap<(usize, RecordId), (Hold, Instant)>,
}

impl Keys {
    fn of(&mut self, hold: Hold) -> Option<(usize, &mut Run)> {
        self.runs.iter_mut().enumerate().find(|(_, run)| run.hold == hold)
    }
}

impl Run {
    /// Returns the result that the handler or its hook has given. `None`: nobody knows whether it has done its work.
    fn result<'a>(&self, one: &'a Delivery) -> Option<&'a End> {
        let (_, end) = one.ended.as_ref()?;
        let result = end.as_ref().or(one.decision.as_ref())?;
        let is_unknown = matches!(result, End::Trap | End::Stuck) || self.panics && *result == End::HostLimit;
        (!is_unknown).then_some(result)
    }

    fn has_succeeded(&self, one: &Delivery) -> bool {
        matches!(self.result(one), Some(End::Ack | End::Reply))
    }
}

impl Judge {
    /// Records the key of a message that was sent.
    pub fn keyed(&self, message: &Planned) {
        let subject = message.subject.clone();
        let mut state = self.state.lock().unwrap();
        state.fates.entry(message.name.clone()).or_default().subject = subject;
    }

    // Events of the store.

    /// Records the answer to a process that begins a run. `None`: there was none. `at`: time at which the store began it.
    pub fn begun(&self, life: usize, hold: Hold, body: [u8; 32], answer: Option<&Begun>, at: Instant) {
        let mut state = self.see(|| format!("process {life} begins a run of {:?}: {answer:?}", hold.record));
        let State { deliveries, fates, lives, keys, violations, .. } = &mut *state;
        lives[life].changed_at = Some(Instant::now());
        match answer {
            Some(Begun::Started | Begun::TakenOver) => {
                keys.begun.insert((life, hold.record), (hold, at));
                return;
            }
            Some(Begun::Unknown) if self.scenario.keyed.is_some_and(|keyed| keyed.runs_again) => {
                violations.push("a run is refused, although one without a result is followed by another".into());
            }
            _ => {}
        }
        for one in deliveries.values_mut().filter(|one| one.life == life && one.started_at.is_none() && !one.settled) {
            let Some(fate) = fates.get_mut(&one.name) else { continue };
            let is_it = |subject: &Subject| subject.record() == hold.record && sha256(subject.body.as_bytes()) == body;
            if !fate.subject.as_ref().is_some_and(is_it) {
                continue;
            }
            let refusals = &mut one.of_key.refusals;
            match answer {
                Some(Begun::Busy(_)) => refusals.busy = true,
                Some(Begun::Unknown) => refusals.unknown = true,
                Some(Begun::OtherBody) => refusals.other_body = true,
                Some(Begun::Done(_)) => {
                    refusals.done = true;
                    fate.acked = true;
                    lives[life].acked.insert(one.name.clone());
                }
                _ => {
                    refusals.failed = true;
                    lives[life].store_failed_at = Some(Instant::now());
                }
            }
        }
    }

    /// Records that a process asks to extend the records of its runs.
    pub fn extending(&self, holds: &[Hold]) {
        let mut state = self.see(|| format!("extends {} records", holds.len()));
        let State { deliveries, keys, .. } = &mut *state;
        for hold in holds {
            if let Some(one) = keys.of(*hold).and_then(|(_, run)| deliveries.get_mut(&run.receipt)) {
                one.of_key.beat = Beat::UnderWay(None);
            }
        }
    }

    /// Records the answer to [`Self::extending`] for one record.
    pub fn extended(&self, hold: Hold, error: Option<&LeaseError>) {
        let mut state = self.see(|| format!("extended {:?}: {error:?}", hold.record));
        let State { deliveries, fates, keys, lives, .. } = &mut *state;
        let now = Instant::now();
        let Some(one) = keys.of(hold).and_then(|(_, run)| deliveries.get_mut(&run.receipt)) else {
            // A run that took long to begin is extended before its handler starts.
            let begun = keys.begun.iter().find(|(_, (other, _))| *other == hold).filter(|_| error.is_some());
            let Some((&(life, record), _)) = begun else { return };
            lives[life].store_failed_at = Some(now);
            let waits = |one: &&mut Delivery| one.life == life && one.started_at.is_none() && !one.settled;
            for one in deliveries.values_mut().filter(waits) {
                let subject = fates.get(&one.name).and_then(|fate| fate.subject.as_ref());
                one.of_key.refusals.failed |= subject.is_some_and(|subject| subject.record() == record);
            }
            return;
        };
        match (one.of_key.beat, error) {
            (Beat::UnderWay(until), None) => {
                if let Some(until) = until.filter(|_| one.ours_until >= Some(now)) {
                    one.ours_until = Some(until);
                }
                one.of_key.beat = Beat::None;
            }
            (_, None) => {}
            (_, Some(error)) => {
                one.of_key.beat = Beat::Failed;
                lives[one.life].store_failed_at = Some(now);
                lives[one.life].calls[Kind::Extension as usize].failed(false, &self.scenario);
                if matches!(error, LeaseError::Lost(_)) {
                    one.lost_at = Some(now);
                }
            }
        }
    }

    /// Like [`Self::recorded`], with the bytes of a record in a file.
    pub fn recorded_in(&self, record: &[u8], token: i64) {
        let is_it = |run: &&Run| run.hold.token == token && run.hold.record.as_bytes() == record;
        let hold = self.state.lock().unwrap().keys.runs.iter().find(is_it).map(|run| run.hold);
        match hold {
            Some(hold) => self.recorded(hold),
            None => self.break_promise("K: a success is recorded of a run that never began".into()),
        }
    }

    /// Records that the store has recorded a success.
    pub fn recorded(&self, hold: Hold) {
        let mut state = self.see(|| format!("the success of {:?} is recorded", hold.record));
        let State { deliveries, keys, violations, .. } = &mut *state;
        let Some((number, run)) = keys.of(hold) else {
            violations.push("K: a success is recorded of a run that never began".into());
            return;
        };
        if run.recorded_at.is_some() {
            return;
        }
        run.recorded_at = Some(Instant::now());
        if !run.has_succeeded(&deliveries[&run.receipt]) {
            violations.push(format!("K: run {number} is recorded as a success, and has not succeeded"));
        }
        let (record, begun_at) = (hold.record, run.begun_at);
        let is_later = |other: &Run| other.hold.record == record && other.begun_at > begun_at;
        if let Some(other) = keys.runs.iter().position(is_later) {
            violations.push(format!("K: run {number} is recorded as a success, and run {other} had taken over"));
        }
    }

    /// Records the answer to a process that asked to record a success.
    pub fn finished(&self, hold: Hold, error: Option<&LeaseError>) {
        let mut state = self.see(|| format!("finished {:?}: {error:?}", hold.record));
        let State { deliveries, keys, lives, .. } = &mut *state;
        let Some(one) = keys.of(hold).and_then(|(_, run)| deliveries.get_mut(&run.receipt)) else { return };
        one.owed = Some(Instant::now());
        if let Some(error) = error {
            lives[one.life].store_failed_at = one.owed;
            lives[one.life].calls[Kind::Removal as usize].failed(false, &self.scenario);
            if matches!(error, LeaseError::Lost(_)) {
                one.lost_at = one.owed;
            }
        }
    }

    /// Records that a process asks to end a run without a success. Checks that it says how the handler has ended.
    pub fn ending(&self, hold: Hold, how: RunEnd) {
        let mut state = self.see(|| format!("ends {:?}: {how:?}", hold.record));
        let State { deliveries, keys, violations, .. } = &mut *state;
        let expected = match keys.of(hold) {
            None => RunEnd::Forget,
            Some((_, run)) => {
                run.is_ended = true;
                let one = &deliveries[&run.receipt];
                if run.result(one).is_some() && !run.has_succeeded(one) { RunEnd::Forget } else { RunEnd::Lapse }
            }
        };
        if how != expected {
            violations.push(format!("K: a run ends by {how:?}, not by {expected:?}"));
        }
    }

    /// Records that a message of a run has arrived.
    pub fn arrived(&self, body: &str) {
        let mut state = self.see(|| format!("queue has {body}"));
        let State { keys, violations, .. } = &mut *state;
        let Some(run) = sender_of(body).and_then(|number| keys.runs.get_mut(number)) else {
            violations.push(format!("K: nobody sent {body:?}"));
            return;
        };
        let count = run.arrived.entry(body.to_owned()).or_default();
        *count += 1;
        if *count > 1 && self.scenario.is_exact() {
            violations.push(format!("K: {body} has arrived {count} times"));
        }
        if run.recorded_at.is_none() {
            violations.push(format!("K: {body} has arrived, and its run has no recorded success"));
        }
    }

    /// Records that a process has an answer to a send, after which it can go on to settle.
    pub fn has_sent(&self, life: usize, is_done: bool) {
        if self.scenario.keyed.is_none() {
            return;
        }
        let mut state = self.state.lock().unwrap();
        let State { deliveries, lives, .. } = &mut *state;
        let now = Instant::now();
        if !is_done {
            lives[life].store_failed_at = Some(now);
            lives[life].calls[Kind::Removal as usize].failed(false, &self.scenario);
        }
        let waits = |one: &&mut Delivery| one.life == life && one.of_key.run.is_some() && one.owed.is_some();
        deliveries.values_mut().filter(waits).for_each(|one| one.owed = Some(now));
    }

    // Events of the process.

    /// Records that the handler starts on a delivery, as a run of its key. Returns the number of the run.
    pub fn run_started(&self, receipt: &str) -> usize {
        let mut state = self.see(|| format!("{receipt} is a run"));
        let now = Instant::now();
        let just_paused = state.paused_at.is_some_and(|at| now <= at + LATE);
        let State { deliveries, fates, keys, lives, violations, .. } = &mut *state;
        let number = keys.runs.len();
        let one = &deliveries[receipt];
        let subject = fates[&one.name].subject.clone().expect("a message with a key");
        let Some((hold, begun_at)) = keys.begun.remove(&(one.life, subject.record())) else {
            violations.push(format!("K: run {number} of {} starts, and holds no record", subject.key));
            return number;
        };
        let Some(keyed) = self.scenario.keyed else { return number };
        for (other, run) in keys.runs.iter().enumerate().filter(|(_, run)| run.subject.key == subject.key) {
            let before = &deliveries[&run.receipt];
            let is_recent = |at: Instant| begun_at < at + keyed.ttl;
            let is_running = (before.ended.is_none() || before.deciding) && !lives[before.life].over;
            if run.recorded_at.is_some_and(|at| is_recent(at) && at <= begun_at) {
                violations.push(format!("K: run {number} starts, and run {other} of its key has succeeded"));
            }
            if is_running && !just_paused {
                violations.push(format!("K: run {number} starts while run {other} of its key runs"));
            }
            let is_unknown = run.recorded_at.is_none() && (run.result(before).is_none() || run.has_succeeded(before));
            if is_unknown && !keyed.runs_again && is_recent(run.begun_at) {
                violations.push(format!("K: run {number} starts, and run {other} of its key has no known result"));
            }
        }
        let run = Run {
            receipt: receipt.to_owned(),
            subject,
            hold,
            begun_at,
            panics: false,
            is_ended: false,
            recorded_at: None,
            sends: Vec::new(),
            arrived: BTreeMap::new(),
        };
        keys.runs.push(run);
        if let Some(one) = deliveries.get_mut(receipt) {
            one.of_key = OfKey { run: Some(number), ..OfKey::default() };
        }
        number
    }

    /// Records that the handler of a run sends a message.
    pub fn sends(&self, run: usize, body: &str) {
        if let Some(run) = self.state.lock().unwrap().keys.runs.get_mut(run) {
            run.sends.push(body.to_owned());
        }
    }

    /// Records that the handler of a run is about to panic.
    pub fn panics(&self, run: usize) {
        if let Some(run) = self.state.lock().unwrap().keys.runs.get_mut(run) {
            run.panics = true;
        }
    }
}

impl State {
    /// Checks the removal of a message that has no copy: its key has a recorded success, whose messages have arrived.
    pub fn fault_of_keyed_removal(&self, name: &str) -> Option<String> {
        let fate = self.fates.get(name)?;
        let subject = fate.subject.as_ref().filter(|_| fate.copies == 0)?;
        let mut recorded =
            self.keys.runs.iter().enumerate().filter(|(_, run)| run.subject == *subject && run.recorded_at.is_some());
        let Some(first) = recorded.next() else {
            return Some(format!("K: {name} was acked, and its key has no recorded success"));
        };
        let lacks = |(_, run): (usize, &Run)| {
            let missing = run.sends.iter().find(|body| !run.arrived.contains_key(*body)).cloned();
            let replies = run.result(&self.deliveries[&run.receipt]) == Some(&End::Reply);
            missing.or_else(|| (replies && !fate.replied).then(|| "its reply".to_owned()))
        };
        let missing = std::iter::once(first).chain(recorded).map(lacks).collect::<Option<Vec<_>>>()?;
        Some(format!("K: {name} was acked, and {missing:?} has not arrived"))
    }
}

/// A settlement of a delivery whose consumer has idempotency.
#[derive(Debug, Clone, Copy)]
pub struct Settling {
    /// Seconds of a release. `None`: the message is removed.
    pub delay: Option<u64>,
    /// Set if the message goes to the dead-letter queue in the same step.
    pub moves: bool,
    /// Number of copies in the dead-letter queue.
    pub copies: u32,
    /// Set if the process has acked the message before.
    pub is_finished: bool,
}

/// Checks a settlement.
pub fn fault_of_settlement(state: &Keys, one: &Delivery, settling: Settling) -> Option<String> {
    let Settling { delay, moves, copies, is_finished } = settling;
    let refusals = one.of_key.refusals;
    if let Some(run) = one.of_key.run.and_then(|number| state.runs.get(number)) {
        let is_acked = delay.is_none() && !moves && copies == 0;
        let is_removed_after_all = delay.is_none() && run.has_succeeded(one);
        return (!is_acked && !is_removed_after_all && !run.is_ended && one.ended.is_some())
            .then(|| "K: it is settled before its run was ended".into());
    }
    if one.started_at.is_some() || one.is_cancelled {
        return None;
    }
    match delay {
        None if moves => (!refusals.bury()).then(|| "K: it is dead-lettered without a run".into()),
        None if copies > 0 => None,
        None => (!refusals.done && !is_finished).then(|| "K: it is acked without a run".into()),
        Some(0) => None,
        Some(_) => (!refusals.give_back()).then(|| "K: it is delayed without a run".into()),
    }
}

/// Returns true if a delivery without a run may be dead-lettered.
pub fn may_bury(one: &Delivery) -> bool {
    one.of_key.refusals.bury() || one.is_cancelled
}
