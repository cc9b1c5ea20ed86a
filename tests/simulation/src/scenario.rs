//! A scenario: all events of one simulation run, generated from its seed.

use std::time::Duration;

use fastrand::Rng;
use hostler_config::{Batch, Breaker, OnProcessingTimeout, Rate, Retry, Share};
use hostler_queue::ChannelSpec;

use super::cancels;
use super::key::{Key, Kind};
use super::keyed::{Keyed, Subject};

const SECOND: Duration = Duration::from_secs(1);

/// Maximum delay of a release, except in scenarios with an intentionally small limit (AWS limit: 12 h).
const LONGEST_RELEASE: Duration = Duration::from_secs(12 * 3600);

/// Minimum lease in seconds, except in scenarios with intentionally short leases.
pub const SHORTEST_LEASE: u64 = 12;

/// Maximum lag of a process's view of the time of SQS: answers tell whole seconds, and are late by up to eight. What it hides, it
/// hides for a second more.
const UNSURE: Duration = Duration::from_secs(12);

/// Rate of each fault, from 0 to 1.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rates {
    pub lost_requests: f64,
    pub lost_answers: f64,
    pub refusals: f64,
    pub entries: f64,
    pub latency: f64,
    pub duplicates: f64,
    pub stale: f64,
}

/// Calls that the service refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denied {
    Removals,
    /// Copies to the dead-letter queue.
    Copies,
    /// Heartbeats and releases, which use the same call.
    Changes,
    /// Heartbeats only.
    Extensions,
    /// Everything that a push broker has to publish: copies to the dead-letter queue, releases with a delay, and replies.
    Publishes,
}

/// Events that happen to the process or its world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// SIGTERM, with this grace.
    Drain(Duration),
    /// SIGKILL.
    Crash,
    /// The process or the machine freezes for this duration.
    Pause(Duration),
    /// An operator pauses the consumer for this duration.
    Hold(Duration),
    /// The service does not answer, or answers with errors, for this duration.
    Outage(Duration),
    /// The service refuses calls of this kind for this duration, as with a missing permission.
    Denial(Denied, Duration),
    /// The connection to a push broker is lost.
    Cut,
    /// The machine reboots.
    Boot,
    /// The wall clock is changed by this number of seconds.
    Clock(i64),
}

/// An operator lists what is in flight, and cancels one of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cancel {
    /// The time since the last one, or since the start of the process.
    pub after: Duration,
    /// The place in the list, modulo its length.
    pub pick: usize,
    /// The time from the list to the cancel.
    pub hesitates: Duration,
}

/// A message that is sent at a planned time.
#[derive(Debug, Clone)]
pub struct Planned {
    pub name: String,
    pub group: Option<String>,
    pub sent_at: Duration,
    /// Earliest start, in whole seconds from the start of the run.
    pub not_before: Option<Duration>,
    /// The key, if the consumer has idempotency.
    pub subject: Option<Subject>,
}

/// Result of a handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    Ack,
    Reply,
    Retry,
    Delay(Duration),
    DeadLetter,
    Fail,
    Trap,
    /// The host reached one of its limits.
    HostLimit,
    /// The handler never ends.
    Stuck,
}

/// Behaviour of a handler on one attempt.
#[derive(Debug, Clone)]
pub struct Behaviour {
    pub work: Duration,
    pub end: End,
    /// Set if the handler decides but does not return. It is then stopped, and its decision counts.
    pub lingers: bool,
    /// Duration of the processing-timeout hook. `decision`: the decision of the hook.
    pub hook: Duration,
    pub decision: Option<End>,
}

/// Parameters of one run.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub key: Key,
    pub ordered: bool,
    /// Number of handler calls at the same time.
    pub concurrency: usize,
    pub batch: Option<Batch>,
    pub keyed: Option<Keyed>,
    pub lease: Duration,
    /// Set if leases last a few seconds.
    pub is_short: bool,
    /// Set if a message is delayed for the maximum time of the queue.
    pub is_far: bool,
    pub processing_timeout: Duration,
    pub rate_limit: Option<Rate>,
    pub breaker: Option<Breaker>,
    pub retry: Retry,
    pub on_processing_timeout: OnProcessingTimeout,
    /// Number of receives after which the queue itself dead-letters a message.
    pub max_receives: u32,
    /// Number of messages that a push broker sends ahead.
    pub window: usize,
    /// Maximum delay of a release.
    pub max_release: Duration,
    pub messages: Vec<Planned>,
    pub rates: Rates,
    /// Events, each with the time since the previous event.
    pub turns: Vec<(Duration, Turn)>,
    /// An operator's cancels in the life of each process.
    pub cancels: Vec<Cancel>,
    /// Time after which no fault occurs.
    pub calm_at: Duration,
}

pub(super) fn up_to(rng: &mut Rng, most: Duration) -> Duration {
    most.mul_f64(rng.f64())
}

pub(super) fn between(rng: &mut Rng, least: u64, most: u64) -> Duration {
    SECOND * u32::try_from(rng.u64(least..=most)).unwrap()
}

impl Scenario {
    pub fn of(key: &Key) -> Self {
        let rng = &mut Rng::with_seed(key.seed);
        let long = rng.u32(0..100) == 0;
        // Parameters that were added later use a separate generator. Existing seeds then still generate the same scenarios.
        let more = &mut Rng::with_seed(key.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5eed);
        let is_short = !long && more.u32(0..8) == 0;
        let is_far = !long && !is_short && more.u32(0..50) == 0;
        let ordered = rng.u32(0..3) == 0 && !is_short;
        let lease = if long { between(rng, 3600, 14_400) } else { between(rng, SHORTEST_LEASE, 40) };
        let lease = if is_short { between(more, 1, 3) } else { lease };
        let processing_timeout = if long { between(rng, 30_000, 70_000) } else { between(rng, 2, 60) };
        let retry = Retry {
            requeues: rng.u32(0..=2),
            requeue_delay: SECOND,
            delays: rng.u32(0..=2),
            delay: between(rng, 2, 5),
            max_delay: 6 * SECOND,
        };
        let on_processing_timeout =
            if rng.bool() { OnProcessingTimeout::Retry } else { OnProcessingTimeout::DeadLetter };
        let busy = if long { 60_000 * SECOND } else { between(rng, 30, 200) };
        let count = if long { rng.usize(1..=3) } else { rng.usize(1..=24) };
        let (concurrency, max_receives) = (rng.usize(1..=8), rng.u32(4..=12));
        let messages = planned(rng, count, ordered, busy.min(100 * SECOND));
        let mut scenario = Self {
            key: key.clone(),
            ordered,
            concurrency,
            batch: None,
            keyed: None,
            lease,
            is_short,
            is_far,
            processing_timeout,
            rate_limit: (!long && more.u32(0..4) == 0).then(|| rate_limit(more)),
            breaker: (!long && more.u32(0..4) == 0).then(|| breaker(more)),
            retry,
            on_processing_timeout,
            max_receives,
            window: concurrency,
            max_release: LONGEST_RELEASE,
            messages,
            rates: rates(rng),
            turns: turns(rng, busy),
            cancels: cancels::draw(&mut Rng::with_seed(key.seed.wrapping_mul(0xd605_1f4b_9e1c_7a35) ^ 0xca), busy),
            calm_at: busy,
        };
        if !long {
            scenario.add_turns(more);
        }
        match key.kind {
            Kind::Embedded | Kind::OwnKeys => {
                scenario.suit_embedded(&mut Rng::with_seed(key.seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0xeb));
            }
            Kind::Push | Kind::Nats => {
                scenario.suit_push(&mut Rng::with_seed(key.seed.wrapping_mul(0x9fb2_1c65_1e98_df25) ^ 0xa39));
            }
            Kind::Batch => {
                scenario.suit_batches(&mut Rng::with_seed(key.seed.wrapping_mul(0xaf25_1af3_b0f0_25b5) ^ 0xba7));
            }
            Kind::Sqs | Kind::Keys if long => {}
            Kind::Sqs | Kind::Keys => {
                scenario.put_off(&mut Rng::with_seed(key.seed.wrapping_mul(0xd134_2543_de82_ef95) ^ 0xdef));
            }
        }
        if matches!(key.kind, Kind::Keys | Kind::OwnKeys) {
            scenario.suit_keys(&mut Rng::with_seed(key.seed.wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ 0x1de));
        }
        scenario.shrink();
        scenario
    }

    /// Removes network faults, and adds events of a machine.
    fn suit_embedded(&mut self, rng: &mut Rng) {
        let Rates { refusals, entries, latency, .. } = self.rates;
        self.rates = Rates { refusals, entries, latency, ..Rates::default() };
        self.turns.retain(|(_, turn)| !matches!(turn, Turn::Denial(..)));
        for _ in 0..rng.usize(0..=3) {
            let place = rng.usize(0..=self.turns.len());
            let turn = match rng.u32(0..3) {
                0 => Turn::Boot,
                1 => Turn::Clock(rng.i64(-20..20)),
                _ => Turn::Clock(rng.i64(-7200..7200)),
            };
            self.turns.insert(place, (up_to(rng, 20 * SECOND), turn));
        }
    }

    /// Returns true if the queue delivers each message to one receiver at a time, counts each receive, and can undo the count.
    pub fn is_exact(&self) -> bool {
        !matches!(self.key.kind, Kind::Sqs | Kind::Batch | Kind::Keys)
    }

    /// Returns true if the service sends messages ahead.
    pub fn pushes(&self) -> bool {
        matches!(self.key.kind, Kind::Push | Kind::Nats)
    }

    /// Returns true if leases outlive the connection.
    pub fn keeps_leases(&self) -> bool {
        self.key.kind == Kind::Nats
    }

    /// Returns the maximum lag of a process's view of the service's time. A push broker tells the due time of a message by the clock of
    /// the process.
    pub fn unsure(&self) -> Duration {
        if self.pushes() { Duration::ZERO } else { UNSURE }
    }

    /// Returns the channel that is consumed.
    pub fn channel(&self) -> ChannelSpec {
        ChannelSpec {
            ordered: self.ordered,
            max_receives: Some(self.max_receives),
            window: self.window,
            ..ChannelSpec::new("work".parse().unwrap())
        }
    }

    /// Returns the maximum time that the consumer may make no progress.
    pub fn healthcheck_timeout(&self) -> Duration {
        self.processing_timeout + 30 * SECOND
    }

    /// Returns true if the network and the service never fail.
    pub fn is_fair(&self) -> bool {
        let Rates { lost_requests, lost_answers, refusals, entries, latency, stale, .. } = self.rates;
        let faults = [lost_requests, lost_answers, refusals, entries, latency, stale];
        let strikes = |(_, turn): &(Duration, Turn)| matches!(turn, Turn::Outage(_) | Turn::Pause(_) | Turn::Cut);
        faults.iter().all(|rate| *rate == 0.0) && !self.turns.iter().any(strikes)
    }

    fn add_turns(&mut self, more: &mut Rng) {
        if more.u32(0..5) == 0 {
            let place = more.usize(0..=self.turns.len());
            let hold = up_to(more, 2 * self.healthcheck_timeout());
            self.turns.insert(place, (up_to(more, 20 * SECOND), Turn::Hold(hold)));
        }
        if more.u32(0..8) == 0 {
            let place = more.usize(0..=self.turns.len());
            let long = self.healthcheck_timeout() + self.lease + 100 * SECOND;
            let outage = if more.bool() { long } else { up_to(more, 60 * SECOND) };
            self.turns.insert(place, (up_to(more, 20 * SECOND), Turn::Outage(outage)));
        }
        if more.u32(0..8) == 0 {
            let place = more.usize(0..=self.turns.len());
            let denied = [Denied::Removals, Denied::Copies, Denied::Changes, Denied::Extensions][more.usize(0..4)];
            let long = self.healthcheck_timeout() + self.lease + 100 * SECOND;
            let denial = if more.bool() { long } else { up_to(more, 60 * SECOND) };
            self.turns.insert(place, (up_to(more, 10 * SECOND), Turn::Denial(denied, denial)));
        }
    }

    /// Has some messages wait for a time, a few of them for more than one turn. An ordered queue has none that wait; where leases are
    /// short, or heartbeats denied, a release that lasts as long as a lease could not be told from a heartbeat; and the handler of
    /// one of two deliveries with the same attempt not from the other's.
    fn put_off(&mut self, rng: &mut Rng) {
        let denies = self.turns.iter().any(|(_, turn)| matches!(turn, Turn::Denial(..)));
        if rng.u32(0..4) > 0 || self.ordered || self.is_short || self.is_far || denies {
            return;
        }
        self.rates.duplicates = 0.0;
        for message in &mut self.messages {
            let ahead = match rng.u32(0..100) {
                0..=49 => continue,
                50 => between(rng, 39_000, 90_000),
                _ => between(rng, 1, 100),
            };
            message.not_before = Some(Duration::from_secs(message.sent_at.as_secs()) + ahead);
        }
    }

    fn shrink(&mut self) {
        if let Some(count) = self.key.messages {
            self.messages.truncate(count);
        }
        let rates = &mut self.rates;
        for class in &self.key.without {
            match *class {
                "lost-requests" => rates.lost_requests = 0.0,
                "lost-answers" => rates.lost_answers = 0.0,
                "refusals" => rates.refusals = 0.0,
                "entries" => rates.entries = 0.0,
                "latency" => rates.latency = 0.0,
                "duplicates" => rates.duplicates = 0.0,
                "stale" => rates.stale = 0.0,
                "drains" => self.turns.retain(|(_, turn)| !matches!(turn, Turn::Drain(_))),
                "crashes" => self.turns.retain(|(_, turn)| !matches!(turn, Turn::Crash)),
                "holds" => self.turns.retain(|(_, turn)| !matches!(turn, Turn::Hold(_))),
                "outages" => self.turns.retain(|(_, turn)| !matches!(turn, Turn::Outage(_))),
                "cuts" => self.turns.retain(|(_, turn)| !matches!(turn, Turn::Cut)),
                "denials" => self.turns.retain(|(_, turn)| !matches!(turn, Turn::Denial(..))),
                "cancels" => self.cancels.clear(),
                "breaker" => self.breaker = None,
                "rate-limit" => self.rate_limit = None,
                "clocks" => self.turns.retain(|(_, turn)| !matches!(turn, Turn::Boot | Turn::Clock(_))),
                "not-before" => self.messages.iter_mut().for_each(|message| message.not_before = None),
                "records" => {
                    self.keyed = self.keyed.map(|keyed| Keyed { failures: 0.0, hangs: 0.0, ..keyed });
                }
                "pauses" => self.turns.retain(|(_, turn)| !matches!(turn, Turn::Pause(_))),
                _ => {}
            }
        }
    }

    fn denies_heartbeats(&self) -> bool {
        let denies = |turn: &Turn| matches!(turn, Turn::Denial(Denied::Extensions | Denied::Changes, _));
        self.turns.iter().any(|(_, turn)| denies(turn))
    }

    fn has(&self, class: &str) -> bool {
        !self.key.without.contains(class)
    }

    /// Returns the behaviour of the handler for an attempt. If attempts do not always count, `attempt` is the number of starts.
    pub fn behaviour(&self, name: &str, attempt: u32) -> Behaviour {
        let number = name.bytes().fold(0, |sum, byte| sum * 31 + u64::from(byte));
        let rng = &mut Rng::with_seed(self.key.seed ^ (number << 20) ^ (u64::from(attempt) << 52));
        let (lease, timeout) = (self.lease, self.processing_timeout);
        let work = match rng.u32(0..20) {
            0..=10 => up_to(rng, SECOND / 20),
            11..=15 => up_to(rng, 5 * SECOND),
            16..=18 => up_to(rng, 2 * lease),
            _ => up_to(rng, 2 * timeout),
        };
        let end = match rng.u32(0..20) {
            0 => End::Retry,
            1 => End::Delay(between(rng, 1, 10)),
            2 => End::DeadLetter,
            3 | 4 => End::Fail,
            5 => End::Trap,
            6 => End::Stuck,
            7 | 8 => End::Reply,
            // Limits the number of consecutive host limits, so that the delay stays below a lease.
            9 if attempt <= 4 => End::HostLimit,
            _ => End::Ack,
        };
        let decided = match rng.u32(0..4) {
            0 => Some(End::Ack),
            1 => Some(End::Retry),
            _ => None,
        };
        let (work, lingers) = match rng.u32(0..30) {
            0 if self.has("lingering") => (timeout, false),
            1 if self.has("lingering") => (work, true),
            _ => (work, false),
        };
        let hook = if rng.bool() { up_to(rng, SECOND) } else { Duration::ZERO };
        let decision = match (decided, rng.u32(0..6)) {
            (Some(_), 0) => Some(End::Delay(between(rng, 1, 10))),
            (Some(_), 1) => Some(End::DeadLetter),
            (Some(_), 2) => Some(End::Fail),
            (Some(_), 3) => Some(End::Reply),
            (decided, _) => decided,
        };
        // With short leases, a release is distinguished from a heartbeat by its time. Replies would make the time ambiguous.
        let plain = |end: End| if self.is_short && end == End::Reply { End::Ack } else { end };
        let end =
            if self.is_far && attempt == 1 && name == "m0" { End::Delay(between(rng, 42_000, 46_000)) } else { end };
        // Ensures that every message is finished eventually.
        let fails = self.has("failures") && attempt < 20;
        let end = if fails || matches!(end, End::Reply) { end } else { End::Ack };
        // If heartbeats are denied, ensures that enough handlers need them.
        let outlasts = self.denies_heartbeats() && number.is_multiple_of(2);
        let work = if outlasts { work.max(lease * 5 / 4) } else { work };
        let work = if self.has("work") { work } else { Duration::ZERO };
        Behaviour { work, end: plain(end), lingers, hook, decision: decision.map(plain) }
    }

    /// Returns the maximum number of attempts per message.
    pub fn attempts(&self) -> u32 {
        self.retry.requeues + self.retry.delays + 1
    }
}

fn rate_limit(rng: &mut Rng) -> Rate {
    let per = if rng.bool() { SECOND } else { 60 * SECOND };
    Rate { permits: if per == SECOND { rng.u32(1..=5) } else { rng.u32(6..=60) }, per }
}

fn breaker(rng: &mut Rng) -> Breaker {
    let failures = Share::new(0.2 + 0.4 * rng.f64()).unwrap();
    Breaker { failures, over: between(rng, 10, 60), min: rng.u32(2..=4), pause: between(rng, 5, 20) }
}

fn planned(rng: &mut Rng, count: usize, ordered: bool, within: Duration) -> Vec<Planned> {
    let groups = rng.u32(1..=3);
    let mut times: Vec<_> = (0..count).map(|_| if rng.bool() { Duration::ZERO } else { up_to(rng, within) }).collect();
    times.sort();
    let message = |(number, sent_at)| Planned {
        name: format!("m{number}"),
        group: ordered.then(|| format!("g{}", rng.u32(0..groups))),
        sent_at,
        not_before: None,
        subject: None,
    };
    times.into_iter().enumerate().map(message).collect()
}

fn rates(rng: &mut Rng) -> Rates {
    let mut rate = |most: f64| if rng.u32(0..3) == 0 { rng.f64() * most } else { 0.0 };
    Rates {
        lost_requests: rate(0.2),
        lost_answers: rate(0.2),
        refusals: rate(0.3),
        entries: rate(0.3),
        latency: rate(0.3),
        duplicates: rate(0.2),
        stale: rate(1.0),
    }
}

fn turns(rng: &mut Rng, busy: Duration) -> Vec<(Duration, Turn)> {
    let count = rng.usize(0..=4);
    let turn = |_| {
        let turn = match rng.u32(0..5) {
            0 | 1 => Turn::Drain(between(rng, 0, 30)),
            2 | 3 => Turn::Crash,
            _ => Turn::Pause(up_to(rng, 60 * SECOND)),
        };
        // Half of the events happen early, while the first messages are processed.
        let after = if rng.bool() { up_to(rng, SECOND) } else { up_to(rng, busy / 3) };
        (after, turn)
    };
    (0..count).map(turn).collect()
}
