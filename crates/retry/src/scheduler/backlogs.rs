//! Tests of the scheduler with more messages than fit into its memory.

use std::sync::Arc;
use std::time::Duration;

use super::model::{SECOND, rules, settings};
use super::tests::{Bench, HOUR};
use super::{Answer, Expired, Rules};
use crate::settings::Settings;

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

/// Closes a subject for an hour, with a backlog that does not fit into memory.
fn closed_with_backlog(rules: Rules) -> Bench {
    let mut bench = Bench::new(Rules { window: 64, lane: 16, ..rules });
    for number in 0..200 {
        bench.send(number, "down", Settings { retries: 20, ..settings() });
    }
    let delivery = bench.next().unwrap();
    bench.answer(&delivery, Answer::Nak(Some(HOUR)));
    bench.send(900, "up", settings());
    let (delivery, _) = bench.wait(SECOND).unwrap();
    bench.answer(&delivery, Answer::Ack);
    assert!(bench.store.parked() > 100, "{}", bench.store.parked());
    bench
}

#[test]
fn a_delayed_message_of_a_subject_with_a_backlog_is_not_parked_and_holds_up_nothing() {
    let mut bench = closed_with_backlog(rules());
    let parked = bench.store.parked();
    for number in 1_000..1_200 {
        bench.send(number, "down", Settings { delay: HOUR * 24, ..settings() });
    }
    assert_eq!(bench.store.parked(), parked, "they are not yet due");
    bench.wait(SECOND * 3_590);
    let mut delivered = Vec::new();
    while let Some((delivery, _)) = bench.wait(SECOND * 60) {
        delivered.push(*delivery.content);
        bench.answer(&delivery, Answer::Ack);
    }
    delivered.sort_unstable();
    assert_eq!(delivered, (0..200).collect::<Vec<_>>());
    let (next, waited) = bench.wait(HOUR * 24).unwrap();
    assert!(*next.content >= 1_000 && waited > 3_600.0, "{waited}");
}

#[test]
fn parked_messages_come_back_in_the_order_in_which_they_were_due() {
    let mut bench = Bench::new(Rules { window: 256, lane: 16, ..rules() });
    for number in 0..200 {
        let delay = Duration::from_millis(u64::from(400 - number));
        bench.send(number, "down", Settings { delay, ..settings() });
    }
    let (delivery, _) = bench.wait(SECOND).unwrap();
    assert_eq!(*delivery.content, 199);
    bench.answer(&delivery, Answer::Nak(Some(HOUR)));
    bench.now += 2_000;
    let mut delivered = Vec::new();
    while let Some((delivery, _)) = bench.wait(HOUR * 2) {
        delivered.push(*delivery.content);
        bench.answer(&delivery, Answer::Ack);
    }
    assert!(bench.store.parks > 100);
    assert_eq!(delivered.pop(), Some(199), "the one that was refused is due last");
    assert_eq!(delivered, (0..199).rev().collect::<Vec<_>>());
}

#[test]
fn a_parked_message_expires_in_time() {
    for expired in [Expired::Drop, Expired::DeadLetter] {
        let mut bench = closed_with_backlog(Rules { expired, ..rules() });
        for number in 1_000..1_100 {
            bench.send(number, "down", Settings { ttl: Some(SECOND * 60), ..settings() });
        }
        assert!(bench.store.parked() > 200, "{}", bench.store.parked());
        assert!(bench.wait(SECOND * 59).is_none());
        assert_eq!((bench.store.removed.len(), bench.store.dead.len()), (1, 0));
        assert!(bench.wait(SECOND * 2).is_none());
        let ended = (bench.store.removed.len(), bench.store.dead.len());
        assert_eq!(ended, if expired == Expired::Drop { (101, 0) } else { (1, 100) });
    }
}

#[test]
fn a_message_that_is_parked_once_it_is_due_expires_in_time() {
    let mut bench = closed_with_backlog(rules());
    bench.send(1_000, "down", Settings { delay: SECOND * 5, ttl: Some(SECOND * 60), ..settings() });
    let (parked, parks) = (bench.store.parked(), bench.store.parks);
    assert!(bench.wait(SECOND * 59).is_none());
    assert_eq!((bench.store.parked(), bench.store.parks), (parked + 1, parks + 1), "when it was due");
    assert!(bench.wait(SECOND).is_none() && bench.next().is_none());
    assert!(bench.store.dead.contains_key(&1_000), "{:?}", bench.store.dead);
}

#[test]
fn a_message_that_expires_soon_stays_in_memory_and_expires_in_time() {
    let mut bench = Bench::new(Rules { window: 64, ..rules() });
    for number in 0..8 {
        bench.send(number, "down", Settings { ttl: Some(Duration::from_millis(800)), ..settings() });
    }
    let delivery = bench.next().unwrap();
    bench.answer(&delivery, Answer::Nak(Some(HOUR)));
    for number in 100..132 {
        // Messages in flight take the half of the room that is not for what becomes due.
        bench.send(number, &format!("hangs {number}"), settings());
        bench.next().unwrap();
    }
    assert!(bench.wait(Duration::from_millis(799)).is_none());
    assert!(bench.store.dead.is_empty());
    bench.now += 1;
    assert!(bench.next().is_none());
    assert_eq!((bench.store.dead.len(), bench.store.parks), (8, 0));
}

#[test]
fn a_message_that_is_parked_during_a_read_of_its_lane_is_delivered() {
    let mut bench = Bench::new(Rules { in_flight_per_subject: 1, ..rules() });
    bench.send(2, "a", Settings { delay: SECOND / 2, ..settings() });
    bench.store.insert(bench.now, 1, &"a".into(), settings(), true);
    bench.store.restore(&mut bench.scheduler, bench.now);
    let turn = bench.scheduler.turn(bench.now, false).unwrap();
    bench.now += 500;
    assert!(bench.scheduler.next(bench.now).is_none(), "it is parked behind the one that is being read");
    let reads = bench.store.carry_out(&turn);
    bench.scheduler.turned(bench.now, reads, false);
    for number in [1, 2] {
        let delivered = bench.wait(HOUR).map(|(delivery, _)| {
            bench.answer(&delivery, Answer::Ack);
            *delivery.content
        });
        assert_eq!((delivered, bench.store.parks), (Some(number), 1));
    }
}

#[test]
fn a_backlog_does_not_delay_what_becomes_due() {
    let mut bench = Bench::new(Rules { window: 64, in_flight: 1_000, ..rules() });
    bench.send(0, "soon", Settings { delay: Duration::from_millis(1_200), ..settings() });
    for number in 1..=200 {
        bench.store.insert(bench.now - 9_000, number, &format!("old {number}").into(), settings(), false);
    }
    bench.scheduler.reread();
    // Both the backlog and what becomes due within the next second are to be read now.
    bench.now += 600;
    let old = std::iter::from_fn(|| bench.next()).count();
    assert!(old > 0, "the backlog is read too");
    bench.now += 600;
    let mut delivered = std::iter::from_fn(|| bench.next()).map(|delivery| *delivery.content);
    assert!(delivered.any(|number| number == 0), "it is late");
}

#[test]
fn subjects_that_do_not_fit_into_memory_are_found_again() {
    let mut bench = Bench::new(Rules { window: 64, lane: 16, ..rules() });
    bench.scheduler.lanes.remembered = 10;
    for number in 0..2_000 {
        let subject: Arc<str> = format!("s{}", number % 500).into();
        bench.store.insert(bench.now, number, &subject, Settings { retries: 0, ..settings() }, true);
    }
    bench.store.restore(&mut bench.scheduler, bench.now);
    assert!(bench.scheduler.lanes.len() <= 11, "{}", bench.scheduler.lanes.len());
    let (mut delivered, mut silent) = (0, 0);
    while let Some((delivery, _)) = bench.wait(SECOND * 100) {
        let known = bench.scheduler.lanes.len();
        assert!(known <= 10 + 64 + 2, "{known} subjects");
        if silent < 1_000 {
            silent += 1;
            bench.answer(&delivery, Answer::NoResponders);
        } else {
            delivered += 1;
            bench.answer(&delivery, Answer::Ack);
        }
    }
    assert_eq!((delivered, bench.store.rows.len()), (2_000, 0));
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
        assert!(bench.scheduler.windows[0].held.messages <= 100, "{:?}", bench.scheduler.windows[0].held);
        bench.answer(&delivery, Answer::Ack);
        delivered += 1;
    }
    assert_eq!(delivered, 3_000);
}

#[test]
fn what_is_behind_does_not_starve_although_others_take_the_room() {
    for is_parked in [true, false] {
        let mut bench = Bench::new(Rules { window: 64, lane: 16, ..rules() });
        for number in 0..40 {
            bench.send(number, &format!("new {number}"), settings());
        }
        let subject: Arc<str> = "old".into();
        bench.store.insert(bench.now - 9_000, 999_999, &subject, settings(), is_parked);
        bench.store.restore(&mut bench.scheduler, bench.now);
        bench.scheduler.reread();
        let mut number = 40;
        let waited = loop {
            bench.now += 10;
            let delivery = bench.next().unwrap();
            if *delivery.subject == *subject {
                break number * 10;
            }
            bench.answer(&delivery, Answer::Ack);
            bench.send(number, &format!("new {number}"), settings());
            number += 1;
            assert!(number < 1_000, "it starves");
        };
        assert!(waited < 2_000, "{waited} ms");
    }
}

#[test]
fn messages_behind_one_that_cannot_be_delivered_are_found() {
    let mut bench = Bench::new(rules());
    for number in 0..3 {
        bench.store.insert(bench.now, number, &"a".into(), settings(), true);
    }
    // As after too many subjects to remember them all.
    bench.scheduler.lanes.note_forgotten(0);
    let mut delivered = Vec::new();
    for _ in 0..20 {
        bench.now += 1_000;
        while let Some(turn) = bench.scheduler.turn(bench.now, false) {
            let mut reads = bench.store.carry_out(&turn);
            let damaged: Vec<_> = reads
                .iter_mut()
                .flat_map(|read| read.messages.extract_if(.., |message| *message.content == 0))
                .map(|message| message.place)
                .collect();
            bench.scheduler.turned(bench.now, reads, false);
            damaged.into_iter().for_each(|place| bench.scheduler.refuse(place, 0, "damaged".to_owned()));
        }
        while let Some(delivery) = bench.scheduler.next(bench.now) {
            delivered.push(*delivery.content);
            bench.scheduler.answered(bench.now, delivery.place, Answer::Ack, 1.0);
        }
    }
    assert_eq!((delivered, bench.store.dead.len()), (vec![1, 2], 1));
}
