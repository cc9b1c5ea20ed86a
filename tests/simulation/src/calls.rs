//! Judges calls: the requests of a process to its queue, and the answers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hostler_health::ConsumerReport;
use tokio::time::Instant;

use super::dispositions::allowed;
use super::judge::{Judge, LATE};
use super::order::Behind;
use super::record::{Delivery, Fate, State};
use super::runs::{Beat, Settling, fault_of_settlement, may_bury};
use super::scenario::End;
use super::settling::Kind;

/// Maximum delay of a settlement before its call is sent. A settlement may wait behind calls that hang until they time out.
const OWED: Duration = Duration::from_secs(40);
/// Window in which failed receives are counted, see [`MOST_FAILED`]. Receives that fail are repeated with delays.
const REST: Duration = Duration::from_secs(10);
/// Maximum number of failed receives per [`REST`]. Several receives may run at once. Each is repeated once immediately, and then
/// with growing delays.
const MOST_FAILED: usize = 40;

/// Content of a call, as far as the promises depend on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    Receive,
    Delete(Vec<String>),
    /// Receipts, each with the number of seconds from now: a heartbeat, or, in an SQS call, possibly a release.
    Change(Vec<(String, u64)>),
    /// Receipts, each with the number of seconds from now: certainly a release.
    Release(Vec<(String, u64)>),
    /// Names of messages to copy to the dead-letter queue.
    Bury(Vec<String>),
    /// Receipts of messages to move to the dead-letter queue. The copy and the removal are one step.
    Move(Vec<String>),
    Other,
}

/// Result of one entry of a call, as its caller saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answered {
    Done,
    Stale,
    Failed,
    /// The change can never be made.
    Unfit,
}

/// Returns true if a handler has ended, or may not have run because of the message's key.
fn is_over(one: &Delivery) -> bool {
    one.ended.is_some() || one.of_key.refusals.are_any()
}

/// Returns true if a process still waited for the copy of a message, although the lease of the message has ended.
fn is_late_copy(deliveries: &BTreeMap<String, Delivery>, life: usize, name: &str, now: Instant) -> bool {
    let is_it = |one: &&Delivery| one.life == life && one.name == name && is_over(one) && !one.settled;
    let last = deliveries.values().filter(is_it).max_by_key(|one| one.number);
    last.is_some_and(|one| now > one.until + LATE)
}

impl Judge {
    /// Records that a call begins. `again`: the SDK repeats the call.
    pub fn asked(&self, life: usize, asked: &Asked, again: bool, shown: Option<&ConsumerReport>) {
        let mut state = self.see(|| format!("process {life} asks: {asked:?}{}", if again { " again" } else { "" }));
        let now = Instant::now();
        let unpaused = state.paused_at.is_none_or(|at| now > at + OWED);
        // An answer that was under way while all stood still tells a time that is long past.
        let knows_the_time = state.paused_at.is_none_or(|at| now > at + Duration::from_secs(60));
        let State { deliveries, violations, lives, fates, keys, .. } = &mut *state;
        let this = &mut lives[life];
        if let (Asked::Receive, false) = (asked, again) {
            this.failed_polls.retain(|at| now < *at + REST);
            if this.failed_polls.len() > MOST_FAILED {
                violations.push(format!("{} receives failed within {REST:?}", this.failed_polls.len()));
            }
            if this.drained_at.is_some_and(|at| now > at) {
                violations.push("6: a receive begins after SIGTERM".into());
            }
            let held = deliveries.values().filter(|one| one.life == life && one.takes_slot(now)).count();
            if held >= self.scenario.places() {
                violations.push(format!("a receive begins while {held} messages wait or run"));
            }
            violations.extend(this.faults_of_intake("a receive", shown, now));
            let shown = shown.map(|shown| shown.in_flight as usize);
            let is_settled = this.changed_at.is_none_or(|at| now > at + LATE);
            if let Some(shown) =
                shown.filter(|shown| is_settled && *shown != this.running && !self.is_looking_up(*shown, this.running))
            {
                violations.push(format!("9: it shows {shown} in flight, and {} are", this.running));
            }
        }
        for (receipt, delivery) in
            deliveries.iter_mut().filter(|(_, one)| one.life == life && one.ours_until > Some(now))
        {
            if unpaused && delivery.lost_at.is_none() && delivery.owed.is_some_and(|since| now > since + OWED) {
                violations.push(format!("2: {} ({receipt}) is done, and not settled", delivery.name));
                delivery.owed = None;
            }
        }
        let entries: Vec<(&String, Option<u64>)> = match asked {
            Asked::Delete(receipts) => receipts.iter().map(|receipt| (receipt, None)).collect(),
            Asked::Change(changes) | Asked::Release(changes) => {
                changes.iter().map(|(receipt, seconds)| (receipt, Some(*seconds))).collect()
            }
            Asked::Bury(names) => {
                violations.extend(names.iter().filter_map(|name| self.fault_of_burial(deliveries, life, name)));
                return;
            }
            Asked::Move(receipts) => {
                let names = receipts.iter().filter_map(|receipt| Some(&deliveries.get(receipt)?.name));
                violations.extend(names.filter_map(|name| self.fault_of_burial(deliveries, life, name)));
                receipts.iter().map(|receipt| (receipt, None)).collect()
            }
            Asked::Receive | Asked::Other => return,
        };
        let moves = matches!(asked, Asked::Move(_));
        let behind: BTreeMap<String, Behind> =
            entries.iter().filter_map(|(receipt, _)| Behind::of(receipt, &entries, deliveries, fates, this)).collect();
        let spoilt =
            |receipt: &String| Some((receipt.clone(), self.spoilt_before(deliveries, deliveries.get(receipt)?)));
        let spoilt: BTreeMap<String, (u32, u32)> = entries.iter().filter_map(|(receipt, _)| spoilt(receipt)).collect();
        for (receipt, seconds) in entries {
            let Some(delivery) = deliveries.get_mut(receipt) else { continue };
            delivery.calls += 1;
            // A call that the SDK repeats is the same call.
            if !again {
                delivery.settling = match asked {
                    Asked::Change(_) if self.scenario.is_exact() => false,
                    Asked::Release(_) => true,
                    _ => delivery.is_settling(seconds, &self.scenario),
                };
                delivery.called_at = now;
                delivery.called_for = Duration::from_secs(seconds.unwrap_or(0));
                let drained = lives[life].drained_at.is_some();
                let behind = behind.get(receipt).copied().unwrap_or_default();
                let counted = counted(delivery.attempt, spoilt.get(receipt).copied().unwrap_or_default());
                let fate = (!moves).then(|| &fates[&delivery.name]);
                if seconds.is_none() {
                    delivery.removal = self.kind_of_removal(delivery, counted, moves, drained);
                }
                let mut broken = self.faults_of_call(delivery, counted, fate, seconds, drained);
                let wait = seconds
                    .filter(|_| knows_the_time)
                    .and_then(|seconds| delivery.fault_of_wait(seconds, &self.scenario));
                broken.extend(wait);
                if self.scenario.keyed.is_some() && (delivery.settling || seconds.is_none()) {
                    let (name, copies) = (&delivery.name, fates[&delivery.name].copies);
                    let is_finished = lives[life].acked.contains(name);
                    let settling = Settling { delay: seconds, moves, copies, is_finished };
                    broken.extend(fault_of_settlement(keys, delivery, settling));
                }
                broken.extend(seconds.and_then(|seconds| behind.fault(delivery, seconds)));
                violations.extend(broken.into_iter().map(|broken| format!("{} ({receipt}): {broken}", delivery.name)));
            }
            let is_unclear = seconds.is_some_and(|seconds| delivery.is_unclear(seconds, &self.scenario));
            if delivery.settling || is_unclear {
                delivery.asked += 1;
                delivery.owed = None;
            }
        }
    }

    /// Returns the kind of a removal, judged by the outcome of the message. `None`: the outcome leaves the kind open, for example
    /// after a reply that may have failed.
    fn kind_of_removal(&self, one: &Delivery, counted: (u32, u32), moves: bool, drained: bool) -> Option<Kind> {
        if moves {
            return Some(Kind::Copy);
        }
        let allowed = allowed(&self.scenario, one, counted, drained)?;
        match (allowed.ack, allowed.bury) {
            (true, false) => Some(Kind::Removal),
            (false, true) => Some(Kind::Copy),
            _ => None,
        }
    }

    /// Checks promises 2, 4 and 6, and the policy. `fate`: the fate of the message, if the message is not moved to the
    /// dead-letter queue.
    fn faults_of_call(
        &self,
        one: &Delivery,
        counted: (u32, u32),
        fate: Option<&Fate>,
        seconds: Option<u64>,
        drained: bool,
    ) -> Vec<String> {
        let mut broken = Vec::new();
        if one.calls > 1 {
            broken.push("4: two calls at once".into());
        }
        if one.settled {
            broken.push("2: asked for again after it was settled".into());
        }
        if one.lost_at.is_some() || one.taken_at.is_some_and(|at| Instant::now() > at + LATE) {
            broken.push("2: asked for after its lease was lost".into());
        }
        let Some(seconds) = seconds else {
            if one.started_at.is_some() && one.ended.is_none() {
                broken.push("2: removed while its handler runs".into());
            }
            let Some(fate) = fate else { return broken };
            let replies = self.scenario.keyed.is_none() && matches!(one.ended, Some((_, Some(End::Reply))));
            if replies && !fate.replied && fate.copies == 0 {
                broken.push("its reply was not sent before its removal".into());
            }
            if fate.copies == 0
                && !fate.acked
                && allowed(&self.scenario, one, counted, drained).is_some_and(|allowed| !allowed.ack)
            {
                broken.push(format!("1: removed after attempt {}, which came to {:?}", one.attempt, one.end()));
            }
            return broken;
        };
        // Neither is it settled before its success is recorded, and what its handler has sent is sent.
        let records = |end: &End| self.scenario.keyed.is_some() && *end == End::Ack;
        match &one.ended {
            // While a reply is sent, and while a hook decides about a stopped handler, the lease is extended. The hook begins
            // after the consumer knows that the guest has ended.
            Some((at, None))
                if !one.settling
                    && !one.deciding
                    && one.decision != Some(End::Reply)
                    && !one.decision.as_ref().is_some_and(records)
                    && Instant::now() > *at + LATE
                    && one.decided_at != Some(Instant::now()) =>
            {
                broken.push("4: a heartbeat too many after a stop".into());
            }
            Some((at, Some(end))) if !one.settling && *end != End::Reply && !records(end) && Instant::now() > *at => {
                broken.push("4: a heartbeat too many".into());
            }
            _ if !one.settling => {}
            Some((_, ended)) => {
                let release = allowed(&self.scenario, one, counted, drained).and_then(|allowed| allowed.release);
                if !release.is_some_and(|(least, most)| (least..=most).contains(&seconds)) {
                    broken.push(format!("released for {seconds} s, not {release:?}: attempt {counted:?}, {ended:?}"));
                }
            }
            _ => {}
        }
        broken
    }

    /// Checks that a copy goes to the dead-letter queue only if the policy allows this for a delivery of the message.
    fn fault_of_burial(&self, deliveries: &BTreeMap<String, Delivery>, life: usize, name: &str) -> Option<String> {
        let is_wrong = |one: &Delivery| {
            let counted = counted(one.attempt, self.spoilt_before(deliveries, one));
            allowed(&self.scenario, one, counted, true).is_some_and(|allowed| !allowed.bury)
        };
        let ended = |one: &&Delivery| one.life == life && one.name == name && one.ended.is_some() && !one.settled;
        let mut ended = deliveries.values().filter(ended).peekable();
        let refused =
            |one: &Delivery| one.life == life && one.name == name && one.started_at.is_none() && may_bury(one);
        if self.scenario.keyed.is_some() && deliveries.values().any(refused) {
            return None;
        }
        let first = ended.peek()?;
        let (attempt, end) = (first.attempt, format!("{:?}", first.end()));
        ended.all(is_wrong).then(|| format!("{name} is dead-lettered after attempt {attempt}, which came to {end}"))
    }

    /// Records the end of a call, as its caller saw it.
    pub fn answered(&self, life: usize, asked: &Asked, result: &dyn Fn(usize) -> Answered) {
        let mut state = self.see(|| format!("process {life} is answered: {asked:?}"));
        let now = Instant::now();
        let paused_at = state.paused_at;
        let State { deliveries, lives, violations, .. } = &mut *state;
        let (receipts, removes): (Vec<&String>, bool) = match asked {
            Asked::Delete(receipts) | Asked::Move(receipts) => (receipts.iter().collect(), true),
            Asked::Change(changes) | Asked::Release(changes) => {
                (changes.iter().map(|(receipt, _)| receipt).collect(), false)
            }
            Asked::Receive => {
                match result(0) {
                    Answered::Done => lives[life].polled_at = Some(now),
                    _ => lives[life].failed_polls.push(now),
                }
                return;
            }
            Asked::Bury(names) => {
                for (index, name) in names.iter().enumerate().filter(|(index, _)| result(*index) != Answered::Done) {
                    let is_own =
                        |one: &&mut Delivery| one.life == life && one.name == *name && is_over(one) && !one.settled;
                    let mut counts = false;
                    for own in deliveries.values_mut().filter(is_own) {
                        // A message that cannot be copied is not settled. It is redelivered after its lease has ended.
                        (own.owed, own.asked) = (None, own.asked + 1);
                        counts = result(index) == Answered::Failed;
                    }
                    lives[life].calls[Kind::Copy as usize].failed(counts, &self.scenario);
                }
                let is_smooth = paused_at.is_none_or(|at| now > at + OWED);
                let late = names.iter().filter(|name| is_smooth && is_late_copy(deliveries, life, name, now));
                violations.extend(late.map(|name| format!("3: a copy of {name} is waited for after its lease")));
                return;
            }
            Asked::Other => {
                drop(state);
                self.has_sent(life, result(0) == Answered::Done);
                return;
            }
        };
        for (index, receipt) in receipts.into_iter().enumerate() {
            let Some(delivery) = deliveries.get_mut(receipt) else { continue };
            delivery.calls -= 1;
            delivery.answered_at = Some(now);
            let kind = match () {
                () if removes => delivery.removal,
                () if delivery.settling => Some(Kind::Release),
                () => Some(Kind::Extension),
            };
            // A message whose handler never started was finished by an earlier delivery. The driver removes it again, which is no
            // settlement.
            let is_own = !removes || delivery.started_at.is_some();
            // The driver removes a message that another delivery finished, instead of releasing it.
            for one in kind.map_or(vec![Kind::Removal, Kind::Copy, Kind::Release], |kind| vec![kind]) {
                let calls = &mut lives[life].calls[one as usize];
                match result(index) {
                    Answered::Done if is_own && kind.is_some() => calls.done(),
                    Answered::Done if is_own => calls.may_be_done(),
                    Answered::Done | Answered::Unfit => {}
                    Answered::Stale | Answered::Failed => {
                        calls.failed(is_own && kind.is_some_and(|kind| kind != Kind::Extension), &self.scenario);
                    }
                }
            }
            delivery.heartbeat_failed = kind == Some(Kind::Extension) && result(index) != Answered::Done;
            match result(index) {
                Answered::Done if delivery.settling => {
                    delivery.settled = true;
                    if removes {
                        lives[life].removed.insert(delivery.name.clone(), now);
                    }
                }
                // An answer that arrives after the end of the lease, by the lease's own clock, is too late to extend it. So is one
                // that arrives after the service took the lease back.
                Answered::Done if delivery.ours_until.is_none_or(|until| until < now) => {}
                Answered::Done => {
                    let until = self.ours_until(delivery.called_at, delivery.called_for);
                    match &mut delivery.of_key.beat {
                        Beat::None => delivery.ours_until = Some(until),
                        Beat::UnderWay(known) => *known = Some(until),
                        Beat::Failed => {}
                    }
                }
                Answered::Stale | Answered::Unfit => delivery.lost_at = Some(now),
                // The driver asks once for the removal of a message that it has finished before.
                Answered::Failed if delivery.settling && is_own => delivery.owed = Some(now),
                Answered::Failed => {}
            }
        }
    }

    /// Returns the time until which a process may rely on a lease that was requested at `asked_at`. The last part of the lease is
    /// excluded, because a handler is stopped in this time.
    fn ours_until(&self, asked_at: Instant, asked_for: Duration) -> Instant {
        asked_at + asked_for.saturating_sub((self.scenario.lease / 20).clamp(LATE, Duration::from_secs(1)) + LATE)
    }

    /// Records that a process received these deliveries. The process requested them at `asked_at`.
    pub fn received(&self, life: usize, receipts: &BTreeSet<String>, asked_at: Instant) {
        let mut state = self.see(|| format!("process {life} receives {receipts:?}"));
        state.lives[life].changed_at = Some(Instant::now());
        let now = Instant::now();
        // A message that is not due goes back, and counts for nothing.
        let due =
            receipts.iter().filter_map(|receipt| state.deliveries.get(receipt)).filter(|one| one.waits_until.is_none());
        let count = due.filter(|one| !state.is_done(life, &one.name, now)).count();
        let broken = state.lives[life].fault_of_rate(&self.scenario, count, now);
        state.violations.extend(broken);
        if state.lives[life].over {
            state.violations.push(format!("6: process {life} has exited, and {receipts:?} came for it"));
        }
        for receipt in receipts {
            if let Some(delivery) = state.deliveries.get_mut(receipt).filter(|one| one.taken_at.is_none()) {
                delivery.ours_until = Some(self.ours_until(asked_at, self.scenario.lease));
            }
        }
        // A finished message is removed by the driver, and occupies no slot.
        let is_own = |one: &&Delivery| one.life == life && !state.is_done(life, &one.name, now);
        let held = state.deliveries.values().filter(is_own).filter(|one| one.takes_slot(now)).count();
        if held > self.scenario.places() {
            state.violations.push(format!("{held} messages wait or run in {} places", self.scenario.places()));
        }
    }

    /// Returns the number of earlier attempts of a delivery's message that ended at a limit of the host, as far as the process
    /// can know, and the number of those whose key may have been taken. Attempts that were given back to a queue that does not count them
    /// are excluded.
    fn spoilt_before(&self, deliveries: &BTreeMap<String, Delivery>, one: &Delivery) -> (u32, u32) {
        let is_exact = self.scenario.is_exact();
        let is_before = |other: &&Delivery| {
            let is_same = (other.life, &other.name) == (one.life, &one.name);
            is_same && other.attempt < one.attempt && !(is_exact && other.released)
        };
        let is_spoilt =
            |other: &&Delivery| matches!(other.ended, Some((at, Some(End::HostLimit))) if at <= one.received_at);
        let is_refused = |other: &&Delivery| other.started_at.is_none() && other.of_key.refusals.give_back();
        let before = || deliveries.values().filter(is_before);
        let spoilt: BTreeSet<u32> = before().filter(is_spoilt).map(|other| other.attempt).collect();
        let refused: BTreeSet<u32> = before().filter(is_refused).map(|other| other.attempt).collect();
        let count = |attempts: usize| u32::try_from(attempts).unwrap();
        (count(spoilt.len()), count(refused.difference(&spoilt).count()))
    }

    /// Returns true if the consumer may show more in flight than handlers run, because it looks up keys.
    fn is_looking_up(&self, shown: usize, running: usize) -> bool {
        self.scenario.keyed.is_some() && shown >= running
    }
}

/// Returns the least and the greatest number that an attempt counts as. `spoilt`: numbers of attempts that do not count, and that may
/// not count.
fn counted(attempt: u32, spoilt: (u32, u32)) -> (u32, u32) {
    (attempt.saturating_sub(spoilt.0 + spoilt.1).max(1), attempt - spoilt.0)
}
