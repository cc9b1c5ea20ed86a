//! Decisions of the scheduler one by one. The tests are named after the faults of the published service that gave the
//! idea to this one.

use std::sync::Arc;
use std::time::Duration;

use super::model::{Number, SECOND, Store, rules, settings};
use super::{Answer, Delivery, Expired, Millis, Outcome, Rules, Scheduler};
use crate::settings::{Growth, Settings};

/// A scheduler with its store. Turns take no time.
struct Bench {
    scheduler: Scheduler<Number>,
    store: Store,
    now: Millis,
}

impl Bench {
    fn new(rules: Rules) -> Self {
        let mut bench = Self { scheduler: Scheduler::new(rules), store: Store::default(), now: 1_000_000 };
        bench.turn();
        bench
    }

    fn turn(&mut self) {
        while let Some(turn) = self.scheduler.turn(self.now, false) {
            let reads = self.store.carry_out(&turn);
            self.scheduler.turned(self.now, reads, false);
        }
    }

    fn send(&mut self, number: Number, subject: &str, settings: Settings) {
        let subject: Arc<str> = subject.into();
        self.turn();
        self.scheduler.turn(self.now, true).unwrap();
        let parked = self.scheduler.parks(&subject, settings.priority);
        let message = self.store.insert(self.now, number, &subject, settings, parked);
        self.scheduler.turned(self.now, Vec::new(), false);
        self.scheduler.admit(message, self.now);
        self.turn();
    }

    fn next(&mut self) -> Option<Delivery<Number>> {
        self.turn();
        self.scheduler.next(self.now)
    }

    /// Lets the time pass until something is delivered, at most `limit`. Returns the number of the message and the seconds
    /// that have passed.
    fn wait(&mut self, limit: Duration) -> Option<(Delivery<Number>, f64)> {
        let start = self.now;
        let end = start + super::millis(limit);
        loop {
            if let Some(delivery) = self.next() {
                return Some((delivery, (self.now - start) as f64 / 1_000.0));
            }
            match self.scheduler.wake_at(self.now) {
                Some(at) if at <= end => self.now = at,
                _ => {
                    self.now = end;
                    return None;
                }
            }
        }
    }

    fn answer(&mut self, delivery: &Delivery<Number>, answer: Answer) -> Outcome {
        self.scheduler.answered(self.now, delivery.place, answer, 1.0);
        self.turn();
        self.scheduler.reports().pop().unwrap().outcome
    }
}

const HOUR: Duration = Duration::from_secs(3600);

fn no_ack() -> Answer {
    Answer::NoAck("no answer in time".to_owned())
}

#[test]
fn the_backoff_is_kept_and_not_left_to_do() {
    let mut bench = Bench::new(rules());
    bench.send(1, "a", Settings { backoff: Growth::Exponential, retries: 5, ..settings() });
    let mut waits = Vec::new();
    for attempt in 1..=6 {
        let (delivery, waited) = bench.wait(HOUR).unwrap();
        assert_eq!(delivery.attempt, attempt);
        waits.push(waited);
        bench.answer(&delivery, no_ack());
    }
    assert_eq!(waits, [0.0, 1.0, 2.0, 4.0, 8.0, 16.0], "to the millisecond, with the longest jitter");
}

#[test]
fn a_message_out_of_retries_is_dead_lettered_and_not_deleted() {
    let mut bench = Bench::new(rules());
    bench.send(7, "a", Settings { retries: 1, ..settings() });
    let first = bench.next().unwrap();
    assert!(matches!(bench.answer(&first, Answer::Nak(None)), Outcome::Retry(..)));
    let (second, _) = bench.wait(HOUR).unwrap();
    let Outcome::DeadLettered(reason) = bench.answer(&second, no_ack()) else { panic!() };
    assert_eq!(reason, "not acknowledged in 2 deliveries; the last one: no answer in time");
    assert_eq!(bench.store.dead.get(&7), Some(&reason));
    assert!(bench.store.removed.is_empty() && bench.wait(HOUR).is_none());
}

#[test]
fn a_message_without_a_ttl_never_expires() {
    let mut bench = Bench::new(rules());
    bench.send(1, "a", Settings { ttl: None, delay: HOUR * 24 * 12, ..settings() });
    assert!(bench.wait(HOUR * 24 * 11).is_none());
    assert_eq!(bench.wait(HOUR * 25).unwrap().1, 86_400.0);
}

#[test]
fn a_due_message_is_not_left_to_a_scan_every_15_seconds() {
    let mut bench = Bench::new(rules());
    for (number, seconds) in [(1, 100), (2, 3), (3, 200)] {
        bench.send(number, "a", Settings { delay: SECOND * seconds, ..settings() });
    }
    let times: Vec<_> = (0..3).map(|_| bench.wait(HOUR).unwrap()).map(|(it, waited)| (*it.content, waited)).collect();
    assert_eq!(times, [(2, 3.0), (1, 97.0), (3, 100.0)]);
}

#[test]
fn an_expired_message_is_dropped_or_dead_lettered_and_not_delivered() {
    for expired in [Expired::Drop, Expired::DeadLetter] {
        let mut bench = Bench::new(Rules { expired, ..rules() });
        let ttl = Some(SECOND * 5);
        bench.send(1, "a", Settings { ttl, delay: SECOND * 60, ..settings() });
        bench.send(2, "b", Settings { ttl, ..settings() });
        bench.send(3, "c", Settings { ttl, ..settings() });
        let second = bench.next().unwrap();
        assert_eq!(*second.content, 2);
        let third = bench.next().unwrap();
        bench.answer(&second, Answer::Nak(Some(SECOND * 60)));
        assert!(bench.wait(SECOND * 6).is_none());
        let (Outcome::DeadLettered(_) | Outcome::Dropped) = bench.answer(&third, Answer::Nak(None)) else { panic!() };
        assert!(bench.wait(HOUR).is_none());
        let ended = (bench.store.removed.len(), bench.store.dead.len(), bench.store.rows.len());
        assert_eq!(ended, if expired == Expired::Drop { (3, 0, 0) } else { (0, 3, 0) });
    }
}

#[test]
fn an_acknowledged_message_is_removed_even_if_its_ttl_has_passed() {
    let mut bench = Bench::new(rules());
    bench.send(1, "a", Settings { ttl: Some(SECOND), ..settings() });
    let delivery = bench.next().unwrap();
    bench.now += 5_000;
    assert_eq!(bench.answer(&delivery, Answer::Ack), Outcome::Delivered);
    assert_eq!(bench.store.removed, [1]);
}

#[test]
fn a_wait_that_the_receiver_asks_for_is_exact_and_closes_its_subject_alone() {
    let mut bench = Bench::new(rules());
    for number in 1..=3 {
        bench.send(number, "a", settings());
    }
    let first = bench.next().unwrap();
    bench.answer(&first, Answer::Nak(Some(Duration::from_millis(7_003))));
    bench.send(4, "b", settings());
    assert_eq!(*bench.next().unwrap().content, 4, "another subject goes on");
    let (next, waited) = bench.wait(HOUR).unwrap();
    assert_eq!((*next.content, waited), (2, 7.003));
    let numbers: Vec<_> = (0..2).map(|_| *bench.next().unwrap().content).collect();
    assert_eq!(numbers, [3, 1], "by the time at which they were due");
}

#[test]
fn nobody_listening_costs_no_retry_and_waits_longer_each_time() {
    let mut bench = Bench::new(rules());
    bench.send(1, "a", Settings { retries: 0, ..settings() });
    bench.send(2, "a", Settings { retries: 0, ..settings() });
    let mut waits = Vec::new();
    for _ in 0..9 {
        let (delivery, waited) = bench.wait(HOUR).unwrap();
        assert_eq!(delivery.attempt, 1);
        // The second message was under way too: both together are one silence.
        let second = bench.next();
        waits.push(waited);
        assert_eq!(bench.answer(&delivery, Answer::NoResponders), Outcome::Waits("nobody listens to its subject"));
        bench.answer(&second.unwrap(), Answer::NoResponders);
    }
    assert_eq!(waits, [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]);
    let (delivery, _) = bench.wait(HOUR).unwrap();
    assert_eq!(bench.answer(&delivery, Answer::Ack), Outcome::Delivered);
    let (delivery, _) = bench.wait(HOUR).unwrap();
    bench.answer(&delivery, Answer::NoResponders);
    assert_eq!(bench.wait(HOUR).unwrap().1, 1.0, "the waits start anew after somebody has answered");
}

#[test]
fn a_lost_connection_costs_no_retry() {
    let mut bench = Bench::new(rules());
    bench.send(1, "a", Settings { retries: 0, ..settings() });
    for _ in 0..3 {
        let delivery = bench.next().unwrap();
        assert_eq!(delivery.attempt, 1);
        assert!(matches!(bench.answer(&delivery, Answer::Unsent), Outcome::Waits(_)));
    }
}

#[test]
fn a_receiver_can_refuse_for_good() {
    let mut bench = Bench::new(rules());
    bench.send(1, "a", settings());
    let delivery = bench.next().unwrap();
    bench.answer(&delivery, Answer::Term("no such order".to_owned()));
    assert_eq!(bench.store.dead[&1], "refused for good by its receiver: no such order");
}

#[test]
fn a_subject_has_no_more_in_flight_than_it_may() {
    let mut bench = Bench::new(Rules { in_flight_per_subject: 2, in_flight: 3, ..rules() });
    for number in 1..=5 {
        bench.send(number, "a", settings());
    }
    bench.send(6, "b", settings());
    bench.send(7, "c", settings());
    let flying: Vec<_> = std::iter::from_fn(|| bench.next()).collect();
    assert_eq!(flying.iter().map(|it| *it.content).collect::<Vec<_>>(), [1, 2, 6], "7 exceeds the whole limit");
    bench.answer(&flying[0], Answer::Ack);
    assert_eq!(*bench.next().unwrap().content, 3);
    assert!(bench.next().is_none());
}

#[test]
fn priorities_have_their_shares_and_none_starves() {
    let mut bench = Bench::new(Rules { weights: vec![4, 2, 1], window: 4_000, lane: 1_000, ..rules() });
    for number in 0..300 {
        let priority = usize::try_from(number % 3).unwrap();
        bench.send(number, "a", Settings { priority, ..settings() });
    }
    let mut counts = [0; 3];
    for _ in 0..140 {
        let delivery = bench.next().unwrap();
        counts[delivery.place.queue] += 1;
        bench.answer(&delivery, Answer::Ack);
    }
    assert_eq!(counts, [80, 40, 20]);
}

#[test]
fn a_closed_subject_with_many_messages_keeps_out_no_other() {
    let rules = Rules { window: 64, lane: 16, ..rules() };
    let mut bench = Bench::new(rules);
    for number in 0..500 {
        bench.send(number, "down", settings());
    }
    let delivery = bench.next().unwrap();
    bench.answer(&delivery, Answer::Nak(Some(HOUR)));
    for number in 1_000..1_100 {
        bench.send(number, "up", settings());
    }
    for number in 1_000..1_100 {
        let (delivery, waited) = bench.wait(SECOND).unwrap();
        assert_eq!((*delivery.content, &*delivery.subject), (number, "up"));
        assert!(waited < 0.5, "{number}: {waited}");
        bench.answer(&delivery, Answer::Ack);
    }
    assert!(bench.wait(SECOND * 3_590).is_none(), "the gate is closed");
    let mut numbers = Vec::new();
    while let Some((delivery, _)) = bench.wait(SECOND * 20) {
        numbers.push(*delivery.content);
        bench.answer(&delivery, Answer::Ack);
    }
    numbers.sort_unstable();
    assert_eq!(numbers, (0..500).collect::<Vec<_>>());
    assert!(bench.store.rows.is_empty());
}

#[test]
fn a_failed_turn_is_repeated() {
    let mut bench = Bench::new(rules());
    bench.send(1, "a", settings());
    let delivery = bench.next().unwrap();
    bench.scheduler.answered(bench.now, delivery.place, Answer::Ack, 0.5);
    assert!(bench.scheduler.turn(bench.now, false).is_some());
    bench.scheduler.turn_failed(bench.now);
    assert!(bench.store.removed.is_empty() && !bench.scheduler.is_written());
    assert!(bench.next().is_none(), "a message that was delivered is not delivered again");
    assert_eq!((bench.store.removed.as_slice(), bench.scheduler.is_written()), ([1].as_slice(), true));
}

#[test]
fn a_wait_that_ends_within_a_read_that_is_under_way_is_not_missed() {
    let mut bench = Bench::new(rules());
    bench.send(1, "a", Settings { base: Duration::from_millis(1_500), ..settings() });
    let delivery = bench.next().unwrap();
    bench.now += 1_100;
    let turn = bench.scheduler.turn(bench.now, false).unwrap();
    assert_eq!(turn.loads.len(), 1, "it is time to read on");
    bench.scheduler.answered(bench.now, delivery.place, no_ack(), 1.0);
    let reads = bench.store.carry_out(&turn);
    bench.scheduler.turned(bench.now, reads, false);
    assert_eq!(bench.wait(HOUR).map(|(_, waited)| waited), Some(1.5));
}

#[test]
fn a_message_that_another_process_puts_back_is_found() {
    let mut bench = Bench::new(rules());
    bench.turn();
    bench.store.insert(bench.now, 1, &"a".into(), settings(), false);
    assert!(bench.next().is_none(), "the scheduler has read past its time");
    bench.now += 1_500;
    let turn = bench.scheduler.turn(bench.now, true).unwrap();
    let reads = bench.store.carry_out(&turn);
    bench.scheduler.turned(bench.now, reads, true);
    assert_eq!(*bench.next().unwrap().content, 1);
}

#[test]
fn the_window_is_bounded() {
    let mut bench = Bench::new(Rules { window: 100, lane: 50, ..rules() });
    for number in 0..3_000 {
        let subject: Arc<str> = format!("s{}", number % 300).into();
        bench.store.insert(bench.now, number, &subject, settings(), false);
    }
    bench.scheduler.reread();
    let mut delivered = 0;
    while let Some((delivery, _)) = bench.wait(SECOND) {
        assert!(bench.scheduler.known.len() <= 200, "{}", bench.scheduler.known.len());
        bench.answer(&delivery, Answer::Ack);
        delivered += 1;
    }
    assert_eq!(delivered, 3_000);
}
