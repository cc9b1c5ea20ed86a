//! A model of SQS with all its faults. It delivers messages twice and out of order, redelivers removed messages, and guarantees
//! nothing but leases.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use fastrand::Rng;
use hostler_health::Timestamp;
use hostler_types::message::AttributeValue;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::super::calls::Asked;
use super::super::judge::Judge;
use super::super::progress::wall;
use super::super::record::TURN;
use super::super::scenario::{Denied, Planned, Scenario};
use super::super::site::until;

const SECOND: Duration = Duration::from_secs(1);

/// Maximum lease of a message, counted from its receive (AWS limit: 12 h).
const MAX_LEASE: Duration = Duration::from_secs(12 * 3600);

/// Result of one entry of a batch.
pub type Entry = Result<(), &'static str>;

/// Error code: the message is no longer leased with this receipt.
pub const NOT_IN_FLIGHT: &str = "AWS.SimpleQueueService.MessageNotInflight";
/// Error code: the receipt is invalid.
pub const INVALID_RECEIPT: &str = "ReceiptHandleIsInvalid";
/// Error code: a parameter is out of range.
pub const INVALID: &str = "InvalidParameterValue";

#[derive(Debug)]
struct Stored {
    name: String,
    body: String,
    attributes: Value,
    id: String,
    group: Option<String>,
    visible_at: Instant,
    receives: u32,
    /// Time of the first receive, and the due time.
    first_received_at: Option<Instant>,
    not_before: Option<Instant>,
    /// Receipt of the last receive.
    receipt: Option<String>,
    removed_at: Option<Instant>,
}

#[derive(Debug)]
struct Lease {
    index: usize,
    received_at: Instant,
}

#[derive(Debug)]
struct State {
    rng: Rng,
    stored: Vec<Stored>,
    leases: BTreeMap<String, Lease>,
    /// Time until which every call fails.
    out_until: Instant,
    /// Kind of calls that are refused, and the end of the refusal.
    denied: Option<(Denied, Instant)>,
    /// Receives of an ordered queue by attempt id: the received messages, each with its number of receives at that time.
    attempts: BTreeMap<String, (Instant, Vec<(usize, u32)>)>,
}

/// The queue and its dead-letter queue.
#[derive(Debug)]
pub struct Service {
    scenario: Arc<Scenario>,
    judge: Arc<Judge>,
    started_at: Instant,
    state: Mutex<State>,
    changed: Notify,
}

impl Service {
    pub fn new(scenario: Arc<Scenario>, judge: Arc<Judge>) -> Self {
        let state = State {
            rng: Rng::with_seed(!scenario.key.seed),
            stored: Vec::new(),
            leases: BTreeMap::new(),
            attempts: BTreeMap::new(),
            out_until: Instant::now(),
            denied: None,
        };
        Self { scenario, judge, started_at: Instant::now(), state: Mutex::new(state), changed: Notify::new() }
    }

    /// Returns true while faults occur.
    pub fn is_wild(&self) -> bool {
        self.started_at.elapsed() < self.scenario.calm_at
    }

    /// Returns true at random, with this probability. Always false after the faults have ended.
    pub fn is_struck(&self, rate: f64) -> bool {
        self.is_wild() && rate > 0.0 && self.state.lock().unwrap().rng.f64() < rate
    }

    /// Makes all calls fail for this duration.
    pub fn fail_for(&self, outage: Duration) {
        self.state.lock().unwrap().out_until = Instant::now() + outage;
    }

    /// Refuses calls of this kind for this duration.
    pub fn deny(&self, denied: Denied, denial: Duration) {
        self.state.lock().unwrap().denied = Some((denied, Instant::now() + denial));
    }

    /// Returns true if the call is refused. A change to exactly the lease counts as a heartbeat.
    pub fn denies(&self, asked: &Asked) -> bool {
        let denied = self.state.lock().unwrap().denied.filter(|(_, until)| Instant::now() < *until);
        let lease = self.scenario.lease.as_secs();
        match (asked, denied.map(|(denied, _)| denied)) {
            (Asked::Delete(_), Some(Denied::Removals))
            | (Asked::Bury(_), Some(Denied::Copies))
            | (Asked::Change(_), Some(Denied::Changes)) => true,
            (Asked::Change(entries), Some(Denied::Extensions)) => entries.iter().all(|(_, seconds)| *seconds == lease),
            _ => false,
        }
    }

    /// Returns true while all calls fail.
    pub fn is_out(&self) -> bool {
        Instant::now() < self.state.lock().unwrap().out_until
    }

    /// Returns a random number from 0 to 1.
    pub fn random(&self) -> f64 {
        self.state.lock().unwrap().rng.f64()
    }

    /// Accepts a message.
    pub fn put(&self, message: &Planned) {
        let Planned { name, group, not_before, .. } = message.clone();
        let not_before = not_before.map(|after| self.started_at + after);
        self.judge.sent(&name, group.as_deref(), not_before);
        self.judge.keyed(message);
        let text = |value: &AttributeValue| json!({ "DataType": "String", "StringValue": value.as_text() });
        let attributes = message.attributes();
        let attributes = attributes.iter().map(|(name, value)| (name.clone(), text(value))).collect();
        let body = message.body().to_owned();
        let mut state = self.state.lock().unwrap();
        let (id, visible_at) = (format!("id-{name}"), Instant::now());
        let (first_received_at, receipt, removed_at) = (None, None, None);
        let receives = 0;
        let stored = Stored {
            name,
            body,
            attributes,
            id,
            group,
            visible_at,
            receives,
            first_received_at,
            not_before,
            receipt,
            removed_at,
        };
        state.stored.push(stored);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Returns when `count` messages have been sent and none is left.
    pub async fn until_empty(&self, count: usize) {
        until(&self.changed, || self.is_empty_after(count)).await;
    }

    fn is_empty_after(&self, count: usize) -> bool {
        let stored = &self.state.lock().unwrap().stored;
        stored.len() >= count && stored.iter().all(|one| one.removed_at.is_some())
    }

    /// Receives messages. Waits up to `wait` seconds for the first message.
    pub async fn receive(&self, life: usize, max: usize, wait: u64, lease: u64, attempt: Option<&str>) -> Vec<Value> {
        let deadline = Instant::now() + SECOND * u32::try_from(wait).unwrap();
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let (taken, next) = self.take(life, max, SECOND * u32::try_from(lease).unwrap(), attempt);
            if !taken.is_empty() || Instant::now() >= deadline {
                return taken;
            }
            tokio::select! {
                biased;
                () = changed => {}
                () = sleep_until(next.map_or(deadline, |next| next.min(deadline))) => {}
            }
        }
    }

    /// Receives the available messages. Also returns the time of the next attempt.
    fn take(&self, life: usize, max: usize, lease: Duration, attempt: Option<&str>) -> (Vec<Value>, Option<Instant>) {
        let (now, wild) = (Instant::now(), self.is_wild());
        let mut state = self.state.lock().unwrap();
        let state = &mut *state;
        self.bury_exhausted(state, now);
        let chosen = match attempt.and_then(|attempt| state.attempts.get(attempt)) {
            // A repeated receive returns the same messages, except messages that were removed or received again meanwhile.
            Some((at, brought)) if now < *at + 300 * SECOND => {
                let is_same = |(index, receives): &&(usize, u32)| {
                    let one = &state.stored[*index];
                    one.removed_at.is_none() && one.receives == *receives
                };
                brought.iter().filter(is_same).map(|(index, _)| *index).collect()
            }
            _ if self.scenario.ordered => state.choose_ordered(max, now),
            _ => state.choose(max, now, if wild { self.scenario.rates.duplicates } else { 0.0 }),
        };
        if let (Some(attempt), false) = (attempt, chosen.is_empty()) {
            let brought = chosen.iter().map(|index| (*index, state.stored[*index].receives + 1)).collect();
            state.attempts.insert(attempt.to_owned(), (now, brought));
        }
        let taken = chosen.into_iter().map(|index| self.lease(state, life, index, now + lease)).collect();
        let waiting = state.stored.iter().filter(|one| one.removed_at.is_none() && one.visible_at > now);
        (taken, waiting.map(|one| one.visible_at).min())
    }

    fn lease(&self, state: &mut State, life: usize, index: usize, until: Instant) -> Value {
        let receipt = format!("r{}", state.leases.len());
        let one = &mut state.stored[index];
        one.receives += 1;
        one.receipt = Some(receipt.clone());
        if one.removed_at.is_none() {
            one.visible_at = until;
        }
        let first = *one.first_received_at.get_or_insert_with(Instant::now);
        let (first, due) = (self.millis(first), one.not_before.map(|at| self.millis(at)));
        self.judge.leased(life, &receipt, &one.name, attempt(one.receives, first, due), until);
        let mut attributes = json!({
            "ApproximateReceiveCount": one.receives.to_string(), "SentTimestamp": "1",
            "ApproximateFirstReceiveTimestamp": first.to_string(),
        });
        if let Some(group) = &one.group {
            attributes["MessageGroupId"] = json!(group);
        }
        let mut message = json!({
            "MessageId": one.id, "ReceiptHandle": receipt, "Body": one.body, "Attributes": attributes,
            "MessageAttributes": one.attributes,
        });
        if let Some(at) = one.not_before {
            let stamp = json!({ "DataType": "String", "StringValue": self.wall(at).to_string() });
            message["MessageAttributes"]["hostler-not-before"] = stamp;
        }
        state.leases.insert(receipt, Lease { index, received_at: Instant::now() });
        message
    }

    /// The time that its clock shows.
    pub fn wall(&self, at: Instant) -> Timestamp {
        wall(self.started_at, at)
    }

    fn millis(&self, at: Instant) -> u128 {
        self.wall(at).since(UNIX_EPOCH.into()).as_millis()
    }

    /// Moves messages that were received too often to the dead-letter queue.
    fn bury_exhausted(&self, state: &mut State, now: Instant) {
        for one in &mut state.stored {
            let is_due = one.removed_at.is_none() && one.visible_at <= now;
            if is_due && one.receives >= self.scenario.max_receives {
                one.removed_at = Some(now);
                self.judge.copied(&one.name);
                self.judge.removed(&one.name);
                self.changed.notify_waiters();
            }
        }
    }

    /// Makes a lease end `seconds` seconds from now.
    pub fn change(&self, receipt: &str, seconds: u64) -> Entry {
        let now = Instant::now();
        let stale = self.is_struck(self.scenario.rates.stale / 20.0);
        let mut state = self.state.lock().unwrap();
        let state = &mut *state;
        let Some(lease) = state.leases.get(receipt) else { return Err(INVALID_RECEIPT) };
        let one = &mut state.stored[lease.index];
        let is_ours = one.receipt.as_deref() == Some(receipt) && one.visible_at > now;
        if one.removed_at.is_some() || !is_ours {
            return Err(if one.removed_at.is_some() { INVALID_RECEIPT } else { NOT_IN_FLIGHT });
        }
        let until = now + Duration::from_secs(seconds);
        if until > lease.received_at + MAX_LEASE {
            self.judge.break_promise(format!("{receipt}: asked for more than 12 h from the receive"));
            return Err(INVALID);
        }
        if stale && !self.scenario.ordered {
            // Another server of the service has delivered the message, or assumes this.
            one.receipt = None;
            one.visible_at = one.visible_at.min(now + SECOND);
            return Err(NOT_IN_FLIGHT);
        }
        one.visible_at = until;
        self.judge.changed(receipt, until);
        self.changed.notify_waiters();
        Ok(())
    }

    /// Removes a message. With an outdated receipt, an unordered queue reports success, and removes the message or not.
    pub fn delete(&self, receipt: &str) -> Entry {
        let now = Instant::now();
        let mut state = self.state.lock().unwrap();
        let state = &mut *state;
        let Some(lease) = state.leases.get(receipt) else { return Err(INVALID_RECEIPT) };
        let coin = state.rng.bool();
        let one = &mut state.stored[lease.index];
        if one.removed_at.is_some() {
            return Ok(());
        }
        let is_ours = one.receipt.as_deref() == Some(receipt) && one.visible_at > now;
        match (is_ours, self.scenario.ordered) {
            (false, true) => return Err(INVALID_RECEIPT),
            (false, false) if coin => return Ok(()),
            _ => {}
        }
        one.removed_at = Some(now);
        self.judge.removed(&one.name);
        self.changed.notify_waiters();
        Ok(())
    }
}

/// The attempt that a receive counts as, of a message that was first received and is due at these times: receives before it is
/// due do not count. Nobody but its service knows the time better than to the second.
fn attempt(receives: u32, first: u128, due: Option<u128>) -> u32 {
    let waited = due.map_or(0, |due| (due + 1000).saturating_sub(first));
    let turns = u32::try_from(waited.div_ceil(TURN.as_millis())).unwrap();
    receives.saturating_sub(turns).max(1)
}

impl State {
    /// Chooses any messages in any order, including some that are leased, or that were removed recently.
    fn choose(&mut self, max: usize, now: Instant, duplicates: f64) -> Vec<usize> {
        let mut chosen = Vec::new();
        for (index, one) in self.stored.iter().enumerate() {
            let is_there = match one.removed_at {
                Some(at) => now < at + 60 * SECOND && self.rng.f64() < duplicates / 20.0,
                None => one.visible_at <= now || (one.receives > 0 && self.rng.f64() < duplicates / 20.0),
            };
            if is_there {
                chosen.push(index);
            }
        }
        self.rng.shuffle(&mut chosen);
        chosen.truncate(self.rng.usize(1..=max));
        chosen
    }

    /// Chooses messages in the order of their groups. Skips groups with a message that is leased or delayed.
    fn choose_ordered(&mut self, max: usize, now: Instant) -> Vec<usize> {
        let (mut chosen, mut blocked) = (Vec::new(), BTreeSet::new());
        let most = self.rng.usize(1..=max);
        for (index, one) in self.stored.iter().enumerate().filter(|(_, one)| one.removed_at.is_none()) {
            if blocked.contains(&one.group) || chosen.len() >= most {
                continue;
            }
            match one.visible_at <= now {
                true => chosen.push(index),
                false => _ = blocked.insert(one.group.clone()),
            }
        }
        chosen
    }
}
