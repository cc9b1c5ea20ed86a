//! Decisions of the scheduler one by one. The tests are named after the faults of the published service that gave the
//! idea to this one.

use std::sync::Arc;
use std::time::Duration;

use super::model::{Number, SECOND, Store, rules, settings};
use super::{Answer, Delivery, Expired, Millis, Outcome, Rules, Scheduler};
use crate::settings::{Growth, Settings};

/// A scheduler with its store. Turns take no time.
pub(super) struct Bench {
    pub(super) scheduler: Scheduler<Number>,
    pub(super) store: Store,
    pub(super) now: Millis,
}

impl Bench {
    pub(super) fn new(rules: Rules) -> Self {
        let mut bench = Self { scheduler: Scheduler::new(rules), store: Store::default(), now: 1_000_000 };
        bench.turn();
        bench
    }

    pub(super) fn turn(&mut self) {
        while let Some(turn) = self.scheduler.turn(self.now, false) {
            let reads = self.store.carry_out(&turn);
            self.scheduler.turned(self.now, reads, false);
        }
    }

    pub(super) fn send(&mut self, number: Number, subject: &str, settings: Settings) {
        let subject: Arc<str> = subject.into();
        self.turn();
        self.scheduler.turn(self.now, true).unwrap();
        let parked = self.scheduler.parks(&subject, settings.priority);
        let message = self.store.insert(self.now, number, &subject, settings, parked);
        self.scheduler.turned(self.now, Vec::new(), false);
        self.scheduler.admit(message, self.now);
        self.turn();
    }

    pub(super) fn next(&mut self) -> Option<Delivery<Number>> {
        self.turn();
        self.scheduler.next(self.now)
    }

    /// Lets the time pass until something is delivered, at most `limit`. Returns the number of the message and the seconds
    /// that have passed.
    pub(super) fn wait(&mut self, limit: Duration) -> Option<(Delivery<Number>, f64)> {
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

    pub(super) fn answer(&mut self, delivery: &Delivery<Number>, answer: Answer) -> Outcome {
        self.scheduler.answered(self.now, delivery.place, answer, 1.0);
        self.turn();
        self.scheduler.reports().pop().unwrap().outcome
    }
}

pub(super) const HOUR: Duration = Duration::from_secs(3600);

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
    assert!(bench.wait(SECOND).is_none(), "the gate has opened for one");
    bench.answer(&next, Answer::Ack);
    let numbers: Vec<_> = (0..2).map(|_| *bench.next().unwrap().content).collect();
    assert_eq!(numbers, [3, 1], "by the time at which they were due");
}

#[test]
fn a_closed_subject_costs_one_retry_at_each_opening() {
    let mut bench = Bench::new(Rules { in_flight_per_subject: 64, ..rules() });
    for number in 0..100 {
        bench.send(number, "a", Settings { retries: 20, ..settings() });
    }
    let mut deliveries = Vec::new();
    for _ in 0..10 {
        let (delivery, _) = bench.wait(HOUR).unwrap();
        deliveries.push(*delivery.content);
        bench.answer(&delivery, Answer::Nak(Some(SECOND * 30)));
    }
    assert_eq!(deliveries, (0..10).collect::<Vec<_>>(), "those that were due first");
}

#[test]
fn a_refusal_without_a_wait_is_no_hot_loop() {
    let mut bench = Bench::new(rules());
    bench.send(1, "a", Settings { backoff: Growth::Exponential, retries: 3, ..settings() });
    let mut waits = Vec::new();
    while let Some((delivery, waited)) = bench.wait(HOUR) {
        waits.push(waited);
        bench.answer(&delivery, Answer::Nak(Some(Duration::ZERO)));
    }
    assert_eq!(waits, [0.0, 1.0, 2.0, 4.0]);
    bench.send(2, "b", settings());
    let delivery = bench.next().unwrap();
    bench.answer(&delivery, Answer::Nak(Some(Duration::from_millis(1))));
    assert_eq!(bench.wait(HOUR).unwrap().1, 0.01);
}

#[test]
fn nobody_listening_costs_no_retry_and_waits_longer_each_time() {
    let mut bench = Bench::new(rules());
    bench.send(1, "a", Settings { retries: 0, ..settings() });
    bench.send(2, "a", Settings { retries: 0, ..settings() });
    let mut waits = Vec::new();
    for round in 0..9 {
        let (delivery, waited) = bench.wait(HOUR).unwrap();
        assert_eq!(delivery.attempt, 1);
        let second = bench.next();
        assert_eq!(second.is_some(), round == 0, "one is tried");
        waits.push(waited);
        assert_eq!(bench.answer(&delivery, Answer::NoResponders), Outcome::Waits("nobody listens to its subject"));
        if let Some(second) = second {
            // It was under way too: both together are one silence.
            bench.answer(&second, Answer::NoResponders);
        }
    }
    assert_eq!(waits, [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]);
    let (delivery, _) = bench.wait(HOUR).unwrap();
    assert_eq!(bench.answer(&delivery, Answer::Ack), Outcome::Delivered);
    let (delivery, _) = bench.wait(HOUR).unwrap();
    bench.answer(&delivery, Answer::NoResponders);
    assert_eq!(bench.wait(HOUR).unwrap().1, 1.0, "the waits start anew after somebody has answered");
}

/// Delivers a message without retries four times, which costs none. Returns the bench.
fn waits_longer_each_time(answer: &Answer, is_expected: impl Fn(&Outcome) -> bool) -> Bench {
    let mut bench = Bench::new(rules());
    bench.send(1, "a", Settings { retries: 0, ..settings() });
    for wanted in [0.0, 1.0, 2.0, 4.0] {
        let (delivery, waited) = bench.wait(HOUR).unwrap();
        assert_eq!((delivery.attempt, waited), (1, wanted));
        let outcome = bench.answer(&delivery, answer.clone());
        assert!(is_expected(&outcome), "{outcome:?}");
    }
    bench
}

#[test]
fn a_refused_subject_costs_no_retry_and_waits_longer_each_time() {
    let mut bench = waits_longer_each_time(&Answer::Denied, |outcome| *outcome == Outcome::Denied);
    let (delivery, _) = bench.wait(HOUR).unwrap();
    assert_eq!(bench.answer(&delivery, Answer::Ack), Outcome::Delivered);
}

#[test]
fn a_lost_connection_costs_no_retry_and_waits_longer_each_time() {
    // Longer, because the message itself may be the reason.
    let mut bench = waits_longer_each_time(&Answer::Unsent, |outcome| matches!(outcome, Outcome::Waits(_)));
    bench.send(2, "a", settings());
    assert_eq!(*bench.next().unwrap().content, 2, "others do not wait for it");
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
    let mut bench = Bench::new(Rules { in_flight_per_subject: 2, in_flight: 8, ..rules() });
    for number in 1..=5 {
        bench.send(number, "a", settings());
    }
    bench.send(6, "b", settings());
    bench.send(7, "c", settings());
    let flying: Vec<_> = std::iter::from_fn(|| bench.next()).collect();
    assert_eq!(flying.iter().map(|it| *it.content).collect::<Vec<_>>(), [1, 6, 7], "subjects take turns");
    bench.answer(&flying[0], Answer::Ack);
    let more: Vec<_> = std::iter::from_fn(|| bench.next()).map(|it| *it.content).collect();
    assert_eq!((more, bench.scheduler.in_flight()), (vec![2, 3], 4), "and no more to this one");
}

#[test]
fn receivers_that_do_not_answer_leave_room_for_those_that_do() {
    let mut bench = Bench::new(Rules { in_flight_per_subject: 16, in_flight: 64, ..rules() });
    for number in 0..1_600 {
        let subject = format!("hangs {}", number % 16);
        bench.send(number, &subject, settings());
    }
    let hanging: Vec<_> = std::iter::from_fn(|| bench.next()).collect();
    assert!(hanging.len() <= 32, "{} slots are taken", hanging.len());
    for number in 2_000..2_100 {
        bench.send(number, "works", settings());
    }
    let first = bench.next().unwrap();
    assert_eq!((*first.content, bench.next().is_some()), (2_000, false), "nobody knows yet that it works");
    bench.answer(&first, Answer::Ack);
    let working: Vec<_> = std::iter::from_fn(|| bench.next()).map(|it| *it.content).collect();
    assert_eq!(working, (2_001..2_017).collect::<Vec<_>>(), "its whole allowance");
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
    bench.send(1, "a", Settings { base: Duration::from_millis(900), ..settings() });
    let delivery = bench.next().unwrap();
    bench.now += 600;
    let turn = bench.scheduler.turn(bench.now, false).unwrap();
    assert_eq!(turn.loads.len(), 1, "it is time to read on");
    bench.scheduler.answered(bench.now, delivery.place, no_ack(), 1.0);
    let reads = bench.store.carry_out(&turn);
    bench.scheduler.turned(bench.now, reads, false);
    assert_eq!(bench.wait(HOUR).map(|(_, waited)| waited), Some(0.9));
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
fn what_was_removed_is_on_the_disk_within_a_second() {
    let mut bench = Bench::new(rules());
    bench.send(1, "a", settings());
    let delivery = bench.next().unwrap();
    bench.answer(&delivery, Answer::Ack);
    let acked_at = bench.now;
    let flushed = loop {
        bench.now = bench.scheduler.wake_at(bench.now).unwrap();
        if let Some(turn) = bench.scheduler.turn(bench.now, false) {
            let reads = bench.store.carry_out(&turn);
            bench.scheduler.turned(bench.now, reads, false);
            if turn.flush {
                break bench.now;
            }
        }
    };
    assert_eq!(flushed - acked_at, 1_000);
    for _ in 0..10 {
        bench.now = bench.scheduler.wake_at(bench.now).unwrap();
        if let Some(turn) = bench.scheduler.turn(bench.now, false) {
            assert!(!turn.flush, "nothing is left to flush");
            let reads = bench.store.carry_out(&turn);
            bench.scheduler.turned(bench.now, reads, false);
        }
    }
}

#[test]
fn a_gate_opens_for_one_although_all_messages_wait_in_the_store() {
    let mut bench = Bench::new(rules());
    for number in 0..10 {
        bench.send(number, "a", settings());
    }
    let flying: Vec<_> = std::iter::from_fn(|| bench.next()).collect();
    assert_eq!(flying.len(), 10);
    for delivery in &flying {
        bench.answer(delivery, Answer::Nak(Some(HOUR)));
    }
    let (delivery, waited) = bench.wait(HOUR).unwrap();
    assert_eq!((waited, bench.next().is_some()), (3_600.0, false));
    bench.answer(&delivery, Answer::Ack);
    assert!(bench.next().is_some() && bench.next().is_some());
}
