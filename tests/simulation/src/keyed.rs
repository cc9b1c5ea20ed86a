//! Idempotency in a scenario: the keys of messages, the settings of the consumer, and the faults of the store of records.

use std::time::Duration;

use fastrand::Rng;
use hostler_queue::RecordId;
use hostler_types::KeySource;
use hostler_types::message::{AttributeValue, Attributes, Message};

use super::scenario::{Planned, Scenario, Turn, between};

const SECOND: Duration = Duration::from_secs(1);

/// Maximum delay in seconds of a message whose key is taken, or whose record cannot be reached.
pub const MAX_REST: u64 = 60;

/// Maximum of [`Scenario::patience`].
const PATIENCE: Duration = Duration::from_secs(10);

/// Name under which the keys are kept.
pub const SCOPE: &str = "work";

const NAME: &str = "name";
const KEY: &str = "key";

/// The key of a message. Messages with the same key may have different bodies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    pub key: String,
    pub body: String,
}

impl Subject {
    /// Returns the id of the key's record.
    pub fn record(&self) -> RecordId {
        RecordId::new(SCOPE, &self.key)
    }
}

/// Settings of the consumer's idempotency, and rates of faults of its store.
#[derive(Debug, Clone, Copy)]
pub struct Keyed {
    /// Time for which a success is remembered.
    pub ttl: Duration,
    /// Set if a run without a result is followed by another.
    pub runs_again: bool,
    /// Rate of calls to the store that fail, half of them after their change.
    pub failures: f64,
    /// Rate of calls to the store that take seconds.
    pub hangs: f64,
}

/// Returns the place of the key in a message.
pub fn source() -> KeySource {
    KeySource::Attribute(KEY.to_owned())
}

/// Returns the name of a message: an attribute of a message that has a key, and the body of others.
pub fn name_of(message: &Message) -> String {
    match message.attributes.get(NAME) {
        Some(AttributeValue::Text(name)) => name.clone(),
        _ => String::from_utf8_lossy(&message.body).into_owned(),
    }
}

/// Returns the bodies of the messages that a run sends. `run`: number of the run.
pub fn sends_of(run: usize) -> Vec<String> {
    (0..run % 3).map(|place| format!("run {run}, message {place}")).collect()
}

/// Returns the number of the run that sends a message with this body.
pub fn sender_of(body: &str) -> Option<usize> {
    body.strip_prefix("run ")?.split(',').next()?.parse().ok()
}

impl Planned {
    /// Returns the body.
    pub fn body(&self) -> &str {
        self.subject.as_ref().map_or(&self.name, |subject| &subject.body)
    }

    /// Returns the attributes.
    pub fn attributes(&self) -> Attributes {
        let text = |name: &str, value: &str| (name.to_owned(), AttributeValue::Text(value.to_owned()));
        let keyed = self.subject.iter().map(|subject| [text(NAME, &self.name), text(KEY, &subject.key)]);
        keyed.flatten().collect()
    }
}

impl Scenario {
    /// Returns the maximum time from the start of a delivery to the start of its handler, while the store is asked.
    pub fn patience(&self) -> Duration {
        self.keyed.map_or(Duration::ZERO, |_| PATIENCE.min(self.processing_timeout / 2))
    }

    /// Gives the messages keys, most of them shared, and the consumer idempotency.
    pub(super) fn suit_keys(&mut self, rng: &mut Rng) {
        let is_long = self.lease >= 3600 * SECOND;
        (self.ordered, self.breaker, self.is_far) = (false, None, false);
        if !is_long {
            self.calm_at *= 3;
            if rng.bool() {
                self.processing_timeout = between(rng, 60, 300);
            }
        }
        if !is_long && !self.is_exact() {
            // A release for as long as a lease could not be told from a heartbeat.
            (self.is_short, self.lease) = (false, between(rng, MAX_REST + 1, 90));
        }
        // A message whose key is taken comes again and again.
        if rng.u32(0..4) > 0 {
            self.max_receives = 1000;
        }
        let has_clocks = self.turns.iter().any(|(_, turn)| matches!(turn, Turn::Boot | Turn::Clock(_)));
        let is_brief = !has_clocks && rng.u32(0..4) == 0;
        let mut rate = |most: f64| if rng.bool() { rng.f64() * most } else { 0.0 };
        let (failures, hangs) = (rate(0.4), rate(0.3));
        let ttl = if is_brief { between(rng, 20, 300) } else { 60 * 86_400 * SECOND };
        self.keyed = Some(Keyed { ttl, runs_again: rng.u32(0..3) > 0, failures, hangs });
        let keys = rng.usize(1..=self.messages.len().div_ceil(2));
        for message in &mut self.messages {
            let key = format!("k{}", rng.usize(0..keys));
            let body = format!("{key} {}", if rng.u32(0..8) == 0 { "other" } else { "same" });
            (message.group, message.not_before) = (None, None);
            message.subject = Some(Subject { key, body });
        }
    }
}
