//! Lateness: the time from which a message is due until it is delivered, in virtual time, with 5,000 messages due a second
//! and subjects that are closed, do not answer, or have a backlog.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;

use super::model::{Number, Store, rules, settings};
use super::turns::Read;
use super::{Answer, Millis, Rules, Scheduler};
use crate::settings::Settings;
use hostler_queue_embedded::{Place, Turn};

/// Time at which the service starts.
const START: Millis = 1_000_000;

/// Duration of a scenario, and the end of its beginning, which is not measured.
const LENGTH: Millis = 12_000;
const SETTLED: Millis = 2_000;

/// Messages of subjects that work, per millisecond.
const RATE: u32 = 5;

/// Wait for an answer.
const TIMEOUT: Millis = 5_000;

/// A time until which nothing is to be done for long.
const CLOSED: Duration = Duration::from_secs(3_600);

/// The order in which messages are stored.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Order {
    /// They are stored shortly before they are due, with short and long delays.
    Mixed,
    /// They are due in the order in which they were stored, long before.
    Sorted,
    /// The last that was stored is due first.
    Reversed,
    /// They are stored long before, in any order.
    Shuffled,
}

/// A turn that is being carried out.
struct Turning {
    turn: Turn,
    new: Vec<(Number, Arc<str>, Settings, bool)>,
    done_at: Millis,
}

struct World {
    rng: Rng,
    rules: Rules,
    scheduler: Scheduler<Number>,
    store: Store,
    now: Millis,
    /// Subject of each message, by its number.
    subjects: Vec<Arc<str>>,
    new: Vec<(Number, Arc<str>, Settings)>,
    turning: Option<Turning>,
    flights: BTreeMap<(Millis, Number), (Place, Answer)>,
    lateness: Vec<Millis>,
    /// Set if all receivers answer.
    is_well: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let rules = Rules {
            weights: vec![4, 2, 1],
            in_flight: 1_024,
            in_flight_per_subject: 64,
            window: 16_000,
            window_bytes: 20 << 20,
            lane: 512,
            ..rules()
        };
        Self {
            rng: Rng::with_seed(seed),
            scheduler: Scheduler::new(rules.clone()),
            rules,
            store: Store::default(),
            now: START,
            subjects: Vec::new(),
            new: Vec::new(),
            turning: None,
            flights: BTreeMap::new(),
            lateness: Vec::new(),
            is_well: false,
        }
    }

    fn number(&mut self, subject: &str) -> (Number, Arc<str>) {
        let subject: Arc<str> = subject.into();
        self.subjects.push(Arc::clone(&subject));
        (Number::try_from(self.subjects.len() - 1).unwrap(), subject)
    }

    fn working_subject(&mut self) -> String {
        // One of them has half of the messages.
        if self.rng.bool() { "works".to_owned() } else { format!("works.{}", self.rng.u32(..200)) }
    }

    /// Stores a message before the start of the service.
    fn store(&mut self, subject: &str, due: Millis) {
        let (number, subject) = self.number(subject);
        let (at, priority) = (START - 100_000, self.rng.usize(..3));
        let delay = Duration::from_millis(u64::try_from(due - at).unwrap());
        self.store.insert(at, number, &subject, Settings { delay, priority, ..settings() }, false);
    }

    fn store_working(&mut self, order: Order) {
        let mut dues: Vec<_> = (0..LENGTH).flat_map(|at| (0..RATE).map(move |_| START + at)).collect();
        match order {
            Order::Mixed => return,
            Order::Sorted => {}
            Order::Reversed => dues.reverse(),
            Order::Shuffled => self.rng.shuffle(&mut dues),
        }
        for due in dues {
            let subject = self.working_subject();
            self.store(&subject, due);
        }
    }

    /// Stores messages that would make others late.
    fn store_trouble(&mut self) {
        for number in 0..20_000 {
            self.store("closed", START - 50_000 + number);
            self.store("backlog", START - 50_000 + number);
        }
        for number in 0..8_000 {
            let subject = format!("hangs.{}", self.rng.u32(..100));
            self.store(&subject, START - 10_000 + number * 2);
        }
        for number in 0..2_000 {
            let subject = format!("silent.{}", self.rng.u32(..50));
            self.store(&subject, START - 5_000 + number * 5);
        }
        for number in 0..LENGTH {
            self.store("closed", START + number);
        }
    }

    fn send(&mut self, order: Order) {
        if order == Order::Mixed {
            for _ in 0..RATE {
                let subject = self.working_subject();
                let (number, subject) = self.number(&subject);
                let delay = Duration::from_millis([0, 30, 700, 1_500, 4_000][self.rng.usize(..5)]);
                self.new.push((number, subject, Settings { delay, priority: self.rng.usize(..3), ..settings() }));
            }
        } else if self.rng.u32(..2) == 0 {
            // Producers go on, with messages for later.
            let (number, subject) = self.number("works.later");
            self.new.push((number, subject, Settings { delay: CLOSED, ..settings() }));
        }
    }

    fn begin_turn(&mut self) {
        if self.turning.is_some() {
            return;
        }
        let Some(turn) = self.scheduler.turn(self.now, !self.new.is_empty()) else { return };
        let parks = |(number, subject, settings): (Number, Arc<str>, Settings)| {
            let parked = self.scheduler.parks(&subject, settings.priority);
            (number, subject, settings, parked)
        };
        let new: Vec<_> = std::mem::take(&mut self.new).into_iter().map(parks).collect();
        // A write takes 15 microseconds, a read 5, and a flush 4 milliseconds.
        let rows: usize = turn.loads.iter().map(|load| load.max.min(500)).sum();
        let micros = 200 + 15 * (turn.steps.len() + 2 * new.len()) + 5 * rows;
        let flush = if turn.flush || !new.is_empty() { 4 } else { 0 };
        let takes = Millis::try_from(micros).unwrap() / 1_000 + flush;
        self.turning = Some(Turning { turn, new, done_at: self.now + takes });
    }

    fn end_turn(&mut self) {
        let Some(turning) = self.turning.take_if(|turning| turning.done_at <= self.now) else { return };
        let Turning { turn, new, .. } = turning;
        let (store, now) = (&mut self.store, self.now);
        let stored: Vec<_> = new
            .into_iter()
            .map(|(number, subject, settings, parked)| store.insert(now, number, &subject, settings, parked))
            .collect();
        let reads: Vec<Read<Number>> = store.carry_out(&turn);
        self.scheduler.turned(now, reads, false);
        for message in stored {
            self.scheduler.admit(message, now);
        }
    }

    fn deliver(&mut self) {
        while let Some(delivery) = self.scheduler.next(self.now) {
            let number = *delivery.content;
            let works = delivery.subject.starts_with("works");
            if works && self.now >= START + SETTLED && delivery.attempt == 1 {
                self.lateness.push(self.now - delivery.due);
            }
            let (lands, answer) = match &*delivery.subject {
                _ if works || self.is_well => (self.rng.i64(1..12), Answer::Ack),
                "backlog" => (self.rng.i64(1..12), Answer::Ack),
                "closed" => (2, Answer::Nak(Some(CLOSED))),
                subject if subject.starts_with("silent") => (1, Answer::NoResponders),
                _ => (TIMEOUT, Answer::NoAck("no answer in time".to_owned())),
            };
            self.flights.insert((self.now + lands, number), (delivery.place, answer));
        }
    }

    fn tick(&mut self) {
        while let Some(entry) = self.flights.first_entry()
            && entry.key().0 <= self.now
        {
            let (place, answer) = entry.remove();
            let random = self.rng.f64();
            self.scheduler.answered(self.now, place, answer, random);
        }
        self.end_turn();
        self.scheduler.advance(self.now);
        self.begin_turn();
        self.deliver();
        self.begin_turn();
        self.scheduler.reports();
        for window in &self.scheduler.windows {
            assert!(window.held.messages <= self.rules.window + 600, "{:?}", window.held);
        }
    }

    fn run(mut self, order: Order) -> Vec<Millis> {
        while self.now < START + LENGTH {
            self.send(order);
            self.tick();
            self.now += 1;
        }
        self.drain();
        self.lateness.sort_unstable();
        self.lateness
    }

    /// Lets all receivers answer, and sees that everything is delivered.
    fn drain(&mut self) {
        self.is_well = true;
        let end = self.now + 3 * 3_600_000;
        while !self.store.rows.is_empty() || !self.scheduler.is_written() {
            self.tick();
            let flight = self.flights.keys().next().map(|(at, _)| *at);
            let turn = self.turning.as_ref().map(|turning| turning.done_at);
            let next = [flight, turn, self.scheduler.wake_at(self.now)].into_iter().flatten().min().unwrap();
            self.now = next.max(self.now + 1);
            assert!(self.now < end, "{} messages are stuck", self.store.rows.len());
        }
        assert!(self.store.dead.is_empty() || self.subjects.iter().any(|subject| subject.starts_with("hangs")));
    }
}

/// Plays a scenario. Returns the lateness in milliseconds that one of a hundred messages exceeds.
pub fn p99(seed: u64, has_trouble: bool) -> Millis {
    let order = [Order::Mixed, Order::Sorted, Order::Reversed, Order::Shuffled][usize::try_from(seed % 4).unwrap()];
    let mut world = World::new(seed);
    world.store_working(order);
    if has_trouble {
        world.store_trouble();
    }
    let lateness = world.run(order);
    assert!(lateness.len() > 40_000, "{order:?}: {}", lateness.len());
    lateness[lateness.len() * 99 / 100]
}

#[test]
fn messages_are_in_time_in_whatever_order_they_were_stored() {
    for seed in 0..4 {
        let late = p99(seed, false);
        assert!(late < 20, "seed {seed}: {late} ms");
    }
}

#[test]
fn messages_are_in_time_beside_subjects_that_are_closed_hang_or_have_a_backlog() {
    for seed in 0..4 {
        let late = p99(seed, true);
        assert!(late < 20, "seed {seed}: {late} ms");
    }
}
