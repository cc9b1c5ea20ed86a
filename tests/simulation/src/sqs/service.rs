//! A model of SQS at its worst: it hands messages out twice and out of order, brings removed ones back, and keeps its word
//! about leases and no other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::super::calls::Asked;
use super::super::judge::Judge;
use super::super::scenario::{Denied, Scenario};
use super::super::site::until;

const SECOND: Duration = Duration::from_secs(1);

/// The longest that a message can be leased, from its receive (AWS limit: 12 h).
const MAX_LEASE: Duration = Duration::from_secs(12 * 3600);

/// What the service says of one entry of a batch.
pub type Entry = Result<(), &'static str>;

/// A lease is no longer what it was.
pub const NOT_IN_FLIGHT: &str = "AWS.SimpleQueueService.MessageNotInflight";
/// The receipt is of no use.
pub const INVALID_RECEIPT: &str = "ReceiptHandleIsInvalid";
/// What is asked for is out of bounds.
pub const INVALID: &str = "InvalidParameterValue";

#[derive(Debug)]
struct Stored {
    name: String,
    id: String,
    group: Option<String>,
    visible_at: Instant,
    receives: u32,
    /// The last receipt that was given out.
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
    /// Until when it answers nothing but errors.
    out_until: Instant,
    /// The calls that it refuses, and until when.
    denied: Option<(Denied, Instant)>,
    /// The receives of an ordered queue by their attempt ids: what they brought, and how often that was received then.
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

    /// Whether things still go wrong.
    pub fn is_wild(&self) -> bool {
        self.started_at.elapsed() < self.scenario.calm_at
    }

    /// Whether a thing that goes wrong so often does so now.
    pub fn is_struck(&self, rate: f64) -> bool {
        self.is_wild() && rate > 0.0 && self.state.lock().unwrap().rng.f64() < rate
    }

    /// Answers nothing but errors for so long.
    pub fn fail_for(&self, outage: Duration) {
        self.state.lock().unwrap().out_until = Instant::now() + outage;
    }

    /// Refuses calls of a kind for so long.
    pub fn deny(&self, denied: Denied, denial: Duration) {
        self.state.lock().unwrap().denied = Some((denied, Instant::now() + denial));
    }

    /// Tells if it refuses a call. A change to exactly a lease is a heartbeat.
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

    /// Whether it answers nothing but errors.
    pub fn is_out(&self) -> bool {
        Instant::now() < self.state.lock().unwrap().out_until
    }

    /// A random number from 0 to 1.
    pub fn random(&self) -> f64 {
        self.state.lock().unwrap().rng.f64()
    }

    /// Takes a message in.
    pub fn put(&self, name: &str, group: Option<&str>) {
        self.judge.sent(name, group);
        let mut state = self.state.lock().unwrap();
        let id = format!("id-{name}");
        let (name, group, visible_at) = (name.to_owned(), group.map(str::to_owned), Instant::now());
        state.stored.push(Stored { name, id, group, visible_at, receives: 0, receipt: None, removed_at: None });
        drop(state);
        self.changed.notify_waiters();
    }

    /// Returns once so many messages came and all of them are gone.
    pub async fn until_empty(&self, count: usize) {
        until(&self.changed, || self.is_empty_after(count)).await;
    }

    fn is_empty_after(&self, count: usize) -> bool {
        let stored = &self.state.lock().unwrap().stored;
        stored.len() >= count && stored.iter().all(|one| one.removed_at.is_some())
    }

    /// A receive, which waits up to so many seconds for the first message.
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

    /// What can be had now; and when to look again.
    fn take(&self, life: usize, max: usize, lease: Duration, attempt: Option<&str>) -> (Vec<Value>, Option<Instant>) {
        let (now, wild) = (Instant::now(), self.is_wild());
        let mut state = self.state.lock().unwrap();
        let state = &mut *state;
        self.bury_exhausted(state, now);
        let chosen = match attempt.and_then(|attempt| state.attempts.get(attempt)) {
            // The same receive again: it brings the same, as far as nothing else happened to it, such as another receive.
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
        self.judge.leased(life, &receipt, &one.name, one.receives, until);
        let mut attributes = json!({ "ApproximateReceiveCount": one.receives.to_string(), "SentTimestamp": "1" });
        if let Some(group) = &one.group {
            attributes["MessageGroupId"] = json!(group);
        }
        let message = json!({
            "MessageId": one.id, "ReceiptHandle": receipt, "Body": one.name, "Attributes": attributes,
        });
        state.leases.insert(receipt, Lease { index, received_at: Instant::now() });
        message
    }

    /// What was received too often goes to the dead-letter queue.
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

    /// Makes a lease end so many seconds from now.
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
            // Another server of the service has given it away, or thinks so.
            one.receipt = None;
            one.visible_at = one.visible_at.min(now + SECOND);
            return Err(NOT_IN_FLIGHT);
        }
        one.visible_at = until;
        self.judge.changed(receipt, until);
        self.changed.notify_waiters();
        Ok(())
    }

    /// Removes a message. With a receipt that is no longer good, a queue without order says yes, and may or may not do it.
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

impl State {
    /// Any messages, in any order; some that are leased already, or were removed a while ago.
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

    /// Messages in the order of their groups; none of a group of which one is leased, or waits.
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
