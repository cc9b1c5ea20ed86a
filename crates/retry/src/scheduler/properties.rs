//! Properties of the scheduler, by random scenarios in virtual time: producers, receivers that fail in every way, turns
//! that take time or fail, and restarts.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;

use super::model::{Number, SIZE, Store};
use super::turns::Read;
use super::{Answer, Expired, Millis, Rules, Scheduler, millis};
use crate::settings::{Growth, SHORTEST_WAIT, Settings};
use hostler_queue_embedded::{Place, Turn};
use hostler_types::Backoff;

/// Number of scenarios. `HOSTLER_SEEDS` sets another.
const SEEDS: u64 = 300;

/// Time until which messages are sent. After it, all receivers acknowledge.
const SENDING: Millis = 60_000;

/// Time by which everything must have ended: longer than the longest wait of a scenario.
const END: Millis = 3_600_000;

/// A message as the test knows it.
struct Expected {
    subject: Arc<str>,
    settings: Settings,
    sent_at: Millis,
    /// Earliest time of the next delivery.
    not_before: Millis,
    attempts: u32,
    is_flying: bool,
}

struct Flight {
    place: Place,
    number: Number,
    answer: Answer,
}

/// A turn that is being carried out.
struct Turning {
    turn: Turn,
    new: Vec<(Number, Arc<str>, Settings, bool)>,
    done_at: Millis,
}

struct Scenario {
    rng: Rng,
    rules: Rules,
    scheduler: Scheduler<Number>,
    store: Store,
    now: Millis,
    expected: HashMap<Number, Expected>,
    flights: BTreeMap<(Millis, u64), Flight>,
    turning: Option<Turning>,
    to_send: Vec<(Number, Arc<str>, Settings)>,
    gates: HashMap<Arc<str>, Millis>,
    /// Subjects of which no answer has come since their gate opened.
    on_trial: HashSet<Arc<str>>,
    /// Number of subjects that the scheduler remembers.
    remembered: usize,
    serial: u64,
    restarts: u32,
    delivered: u32,
    /// Set if the process may be restarted, and the store may be read anew. Either brings back what the scheduler has
    /// forgotten.
    has_help: bool,
}

fn rules(rng: &mut Rng) -> Rules {
    let priorities = rng.usize(1..4);
    Rules {
        weights: (0..priorities).map(|_| rng.u32(1..6)).collect(),
        in_flight: rng.usize(1..50),
        in_flight_per_subject: rng.usize(1..12),
        expired: if rng.bool() { Expired::Drop } else { Expired::DeadLetter },
        silence: Backoff::new(Duration::from_millis(100), Duration::from_secs(5)),
        window: rng.usize(8..120),
        window_bytes: rng.usize(500..20_000),
        lane: rng.usize(4..40),
    }
}

impl Scenario {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let (rules, has_help) = (rules(&mut rng), rng.bool());
        let remembered = if rng.bool() { 1_000 } else { rng.usize(0..6) };
        let mut scheduler = Scheduler::new(rules.clone());
        scheduler.lanes.remembered = remembered;
        Self {
            scheduler,
            rng,
            rules,
            store: Store::default(),
            now: 0,
            on_trial: HashSet::new(),
            remembered,
            expected: HashMap::new(),
            flights: BTreeMap::new(),
            turning: None,
            to_send: Vec::new(),
            gates: HashMap::new(),
            serial: 0,
            restarts: 0,
            delivered: 0,
            has_help,
        }
    }

    fn random_settings(&mut self) -> Settings {
        let rng = &mut self.rng;
        let waits = [0, 0, 0, 5, 900, 2_500, 20_000];
        Settings {
            retries: rng.u32(0..6),
            ttl: rng.bool().then(|| Duration::from_millis(rng.u64(1..90_000))),
            delay: Duration::from_millis(waits[rng.usize(..waits.len())]),
            backoff: if rng.bool() { Growth::Fixed } else { Growth::Exponential },
            base: Duration::from_millis(rng.u64(10..3_000)),
            max: Duration::from_millis(rng.u64(3_000..30_000)),
            priority: rng.usize(..self.rules.weights.len()),
        }
    }

    fn random_answer(&mut self, subject: &str) -> Answer {
        let is_over = self.now > SENDING;
        // Some subjects are worse than others.
        let trouble = if is_over { 0 } else { [5, 20, 60, 95][subject.len() % 4] };
        if self.rng.u32(..100) >= trouble {
            return Answer::Ack;
        }
        match self.rng.u32(..8) {
            0 => Answer::Nak(None),
            1 | 2 => Answer::Nak(Some(Duration::from_millis(self.rng.u64(..15_000)))),
            3 => Answer::Term("no".to_owned()),
            4 => Answer::NoResponders,
            5 => Answer::Unsent,
            6 => Answer::Denied,
            _ => Answer::NoAck("no answer in time".to_owned()),
        }
    }

    fn run(mut self) -> (u32, u32) {
        let mut next_send = 0;
        let mut same = 0;
        loop {
            if self.now >= next_send && self.now <= SENDING {
                let burst = if self.rng.u32(..20) == 0 { 80 } else { self.rng.u32(..6) };
                for _ in 0..burst {
                    self.serial += 1;
                    let subject: Arc<str> = "x".repeat(self.rng.usize(1..9)).into();
                    let number = u32::try_from(self.serial).unwrap();
                    let settings = self.random_settings();
                    self.to_send.push((number, subject, settings));
                }
                next_send = self.now + self.rng.i64(1..700);
            }
            self.end_turn();
            self.land();
            if self.has_help && self.rng.u32(..2_500) == 0 && self.now <= SENDING {
                self.restart();
            }
            self.begin_turn();
            while let Some(delivery) = self.scheduler.next(self.now) {
                self.fly(&delivery);
            }
            self.begin_turn();
            self.scheduler.reports();
            let sends = (self.now <= SENDING).then_some(next_send);
            let turn = self.turning.as_ref().map(|turning| turning.done_at);
            let flight = self.flights.keys().next().map(|(at, _)| *at);
            let wake = self.scheduler.wake_at(self.now);
            assert!(wake.is_none_or(|at| at > self.now || self.turning.is_some()), "{wake:?} at {}", self.now);
            self.check_memory();
            // A subject without messages is forgotten when its gate opens.
            let lanes = &self.scheduler.lanes;
            self.on_trial.retain(|subject| lanes.knows(subject));
            let is_empty = self.store.rows.is_empty() && self.to_send.is_empty() && self.turning.is_none();
            if sends.is_none() && flight.is_none() && is_empty && self.scheduler.is_written() {
                break;
            }
            let next = [sends, turn, flight, wake].into_iter().flatten().min().unwrap();
            assert!(
                next < END,
                "{} messages are stuck: {:?}",
                self.store.rows.len(),
                self.store.rows.first_key_value()
            );
            same = if next <= self.now { same + 1 } else { 0 };
            assert!(same < 1_000, "the scheduler spins");
            self.now = self.now.max(next);
        }
        assert!(self.expected.is_empty(), "{} messages were lost", self.expected.len());
        (self.delivered, self.restarts)
    }

    /// Checks that the memory is bounded. A load that is under way may come on top.
    fn check_memory(&self) {
        for window in &self.scheduler.windows {
            let (messages, bytes) = (self.rules.window * 2, self.rules.window_bytes * 2 + SIZE * 40);
            assert!(window.held.messages <= messages, "{} messages in memory", window.held.messages);
            assert!(window.held.bytes <= bytes, "{} bytes in memory", window.held.bytes);
        }
    }

    fn begin_turn(&mut self) {
        if self.turning.is_some() {
            return;
        }
        let Some(turn) = self.scheduler.turn(self.now, !self.to_send.is_empty()) else { return };
        let parks = |(number, subject, settings): (Number, Arc<str>, Settings)| {
            let parked = self.scheduler.parks(&subject, settings.priority);
            (number, subject, settings, parked)
        };
        let new = std::mem::take(&mut self.to_send).into_iter().map(parks).collect();
        let takes = if self.rng.u32(..10) == 0 { self.rng.i64(..300) } else { self.rng.i64(..4) };
        self.turning = Some(Turning { turn, new, done_at: self.now + takes });
    }

    fn end_turn(&mut self) {
        if self.turning.as_ref().is_none_or(|turning| turning.done_at > self.now) {
            return;
        }
        let Some(turning) = self.turning.take() else { return };
        if self.rng.u32(..15) == 0 {
            // Nothing was stored, so the producers are told, and nothing is expected.
            self.scheduler.turn_failed(self.now);
            return;
        }
        let (stored, reads) = self.carry_out(turning);
        let others_wrote = self.has_help && self.rng.u32(..100) == 0;
        self.scheduler.turned(self.now, reads, others_wrote);
        for message in stored {
            self.scheduler.admit(message, self.now);
        }
    }

    fn carry_out(&mut self, turning: Turning) -> (Vec<super::Message<Number>>, Vec<Read<Number>>) {
        let mut stored = Vec::new();
        for (number, subject, settings, parked) in turning.new {
            stored.push(self.store.insert(self.now, number, &subject, settings, parked));
            let not_before = self.now + millis(settings.delay);
            let expected = Expected { subject, settings, sent_at: self.now, not_before, attempts: 0, is_flying: false };
            self.expected.insert(number, expected);
        }
        let reads = self.store.carry_out(&turning.turn);
        self.check_ended();
        (stored, reads)
    }

    /// Checks the messages that have left the store.
    fn check_ended(&mut self) {
        for number in std::mem::take(&mut self.store.removed) {
            let expected = self.expected.remove(&number).unwrap();
            if expected.attempts != u32::MAX {
                let expires = expected.sent_at + millis(expected.settings.ttl.unwrap());
                assert!(self.rules.expired == Expired::Drop && expires <= self.now, "{number} was deleted");
            }
        }
        for (number, reason) in std::mem::take(&mut self.store.dead) {
            let expected = self.expected.remove(&number).unwrap();
            if reason.starts_with("expired") {
                let expires = expected.sent_at + millis(expected.settings.ttl.unwrap());
                assert!(expires <= self.now, "{number} expired early");
            } else if reason.starts_with("not acknowledged") && self.restarts == 0 {
                assert_eq!(expected.attempts, expected.settings.retries + 1, "{number}: {reason}");
            }
        }
    }

    fn fly(&mut self, delivery: &super::Delivery<Number>) {
        let number = *delivery.content;
        let expected = self.expected.get_mut(&number).unwrap_or_else(|| panic!("{number} is delivered after its end"));
        assert!(!expected.is_flying, "{number} is delivered twice at once");
        assert!(self.now >= expected.not_before, "{number} is early: {} of {}", self.now, expected.not_before);
        assert!(expected.attempts <= expected.settings.retries, "{number} is delivered too often");
        if let Some(ttl) = expected.settings.ttl {
            assert!(self.now < expected.sent_at + millis(ttl), "{number} has expired");
        }
        let gate = self.gates.get(&expected.subject).copied().unwrap_or(0);
        assert!(self.now >= gate, "{number}: the subject is closed until {gate}, at {}", self.now);
        expected.is_flying = true;
        let subject = Arc::clone(&expected.subject);
        let answer = self.random_answer(&subject);
        self.serial += 1;
        let lands = self.now + if self.rng.u32(..8) == 0 { self.rng.i64(..5_000) } else { self.rng.i64(..30) };
        self.flights.insert((lands, self.serial), Flight { place: delivery.place, number, answer });
        let flying = |flight: &Flight| self.expected.get(&flight.number).is_some_and(|it| it.subject == subject);
        let to_subject = self.flights.values().filter(|flight| flying(flight)).count();
        assert!(to_subject <= self.rules.in_flight_per_subject && self.flights.len() <= self.rules.in_flight);
        // A subject that is forgotten for lack of room is not on trial.
        let is_on_trial = self.remembered > 10 && self.on_trial.contains(&subject);
        assert!(to_subject == 1 || !is_on_trial, "{number}: the gate has opened for one");
    }

    fn land(&mut self) {
        while let Some(entry) = self.flights.first_entry()
            && entry.key().0 <= self.now
        {
            let Flight { place, number, answer } = entry.remove();
            let expected = self.expected.get_mut(&number).unwrap();
            expected.is_flying = false;
            let shortest = expected.settings.base.min(expected.settings.max) / 2;
            match &answer {
                Answer::Ack => {
                    expected.attempts = u32::MAX;
                    self.delivered += 1;
                }
                Answer::Nak(Some(delay)) if !delay.is_zero() => {
                    expected.attempts += 1;
                    let until = self.now + millis((*delay).max(SHORTEST_WAIT));
                    expected.not_before = until;
                    let gate = self.gates.entry(Arc::clone(&expected.subject)).or_default();
                    *gate = (*gate).max(until);
                    self.on_trial.insert(Arc::clone(&expected.subject));
                }
                Answer::Nak(_) | Answer::NoAck(_) => {
                    expected.attempts += 1;
                    expected.not_before = self.now + millis(shortest);
                }
                Answer::Term(_) => expected.attempts += 1,
                Answer::NoResponders | Answer::Denied => {}
                Answer::Unsent => expected.not_before = self.now + millis(self.rules.silence.rest(0, 0.0)),
            }
            let gate = self.gates.get(&expected.subject).copied().unwrap_or(0);
            if matches!(answer, Answer::Ack | Answer::Term(_) | Answer::Nak(_)) && gate <= self.now {
                self.on_trial.remove(&expected.subject);
            }
            let random = self.rng.f64();
            self.scheduler.answered(self.now, place, answer, random);
        }
    }

    /// Ends the process at any moment, and starts it anew.
    fn restart(&mut self) {
        self.restarts += 1;
        if let Some(turning) = self.turning.take()
            && self.rng.bool()
        {
            self.carry_out(turning);
        }
        self.to_send.clear();
        self.flights.clear();
        self.gates = self.store.closed.clone().into_iter().collect();
        self.on_trial.clear();
        let rows: HashMap<_, _> = self.store.rows.values().map(|row| (row.number, row.attempts)).collect();
        for (number, expected) in &mut self.expected {
            // What was not written happens again. What was written of a wait is not known here.
            expected.is_flying = false;
            expected.attempts = rows[number];
            if expected.attempts == 0 {
                expected.not_before = expected.sent_at + millis(expected.settings.delay);
            } else {
                expected.not_before = 0;
            }
        }
        self.scheduler = Scheduler::new(self.rules.clone());
        self.scheduler.lanes.remembered = self.remembered;
        self.store.restore(&mut self.scheduler, self.now);
    }
}

/// Plays a scenario. Returns the number of deliveries that were acknowledged, and of restarts.
pub fn play(seed: u64) -> (u32, u32) {
    Scenario::new(seed).run()
}

#[test]
fn each_message_ends_once_and_no_rule_is_broken() {
    let seeds = std::env::var("HOSTLER_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS);
    let (mut delivered, mut restarts) = (0, 0);
    for seed in 0..seeds {
        let ended = std::panic::catch_unwind(|| play(seed));
        let (some, more) = ended.unwrap_or_else(|_| panic!("seed {seed}"));
        delivered += some;
        restarts += more;
    }
    assert!(delivered > 100_000 || seeds < SEEDS, "{delivered}");
    assert!(restarts > 100 || seeds < SEEDS, "{restarts}");
}
