use std::sync::Arc;

use hostler_types::message::Message;

use super::surplus::away;
use super::*;
use crate::stamp::Stamp;

const LEASE: Duration = Duration::from_secs(30);
const SERVER: Duration = Duration::from_secs(32);
const SECOND: Duration = Duration::from_secs(1);

fn mail(sequence: u64, deliveries: u32, group: &str) -> Mail {
    Mail {
        message: Arc::new(Message::new(sequence.to_string(), "x")),
        stamp: Stamp { sequence, deliveries, stored_at: 0 },
        subject: group.into(),
        not_before: None,
        has_id: false,
    }
}

fn arrive(hand: &mut Hand, sequence: u64, deliveries: u32, group: &str, now: Instant) -> Option<LeaseHandle> {
    hand.arrived(mail(sequence, deliveries, group), "reply".into(), now)
}

fn plain(now: Instant) -> (Hand, Receipt) {
    let mut hand = Hand::new(false, SERVER);
    arrive(&mut hand, 1, 1, "jobs", now);
    hand.sort(now);
    let ready = hand.ready(10);
    let (receipt, _) = hand.lease(ready[0].key, LEASE, now).unwrap();
    (hand, receipt)
}

fn sequences(handed: &[Handed]) -> Vec<u64> {
    handed.iter().map(|one| one.key.sequence).collect()
}

#[test]
fn a_lease_ends_by_its_own_clock_and_gives_no_right_after() {
    let now = Instant::now();
    let (mut hand, receipt) = plain(now);
    assert_eq!(hand.next_due(), Some(now + LEASE));
    assert!(hand.expired(now + LEASE - SECOND).is_empty());
    assert!(hand.extend(&receipt.lease(), now + 2 * LEASE, now + LEASE).is_err(), "the server would extend it");
    assert!(hand.settle(&receipt, now + LEASE).is_err());
    let ended = hand.expired(now + LEASE);
    assert_eq!(sequences(&ended), [1]);
    hand.went_back(ended[0].key, Some(now + LEASE), now + LEASE);
    assert_eq!(hand.visible(now + LEASE), 1);
    arrive(&mut hand, 1, 2, "jobs", now + LEASE);
    hand.count(Key { sequence: 1, deliveries: 2 }, Some(0), now);
    hand.sort(now);
    assert_eq!(hand.ready(1)[0].attempt, 2);
}

#[test]
fn an_extension_counts_from_now_and_the_server_is_kept_waiting_for_long_leases() {
    let now = Instant::now();
    let (mut hand, receipt) = plain(now);
    let later = now + 10 * SECOND;
    assert_eq!(hand.extend(&receipt.lease(), later + 2 * LEASE, later), Ok(()));
    assert_eq!(hand.begin_touching(later + 15 * SECOND), []);
    let due = later + 16 * SECOND;
    assert_eq!((hand.next_due(), hand.begin_touching(due).len()), (Some(due), 1));
    // The server does not answer: it delivers the message again before the lease would end.
    assert_eq!(sequences(&hand.expired(later + SERVER)), [1]);
    let (mut hand, receipt) = plain(now);
    assert_eq!(hand.extend(&receipt.lease(), later + 2 * LEASE, later), Ok(()));
    hand.touched(Key { sequence: 1, deliveries: 1 }, due);
    assert!(hand.expired(later + SERVER).is_empty());
}

#[test]
fn a_message_that_the_server_delivers_again_loses_its_lease() {
    let now = Instant::now();
    let (mut hand, receipt) = plain(now);
    assert_eq!(arrive(&mut hand, 1, 2, "jobs", now + SECOND), Some(receipt.lease()));
    assert!(hand.settle(&receipt, now + SECOND).is_err());
    assert_eq!(arrive(&mut hand, 1, 1, "jobs", now + SECOND), None, "an earlier delivery that comes late is nothing");
    assert_eq!(hand.uncounted(now + SECOND), [(Key { sequence: 1, deliveries: 2 }, 0)]);
}

#[test]
fn a_settlement_that_failed_keeps_the_lease() {
    let now = Instant::now();
    let (mut hand, receipt) = plain(now);
    let (handed, until) = hand.settle(&receipt, now).unwrap();
    assert!(hand.settle(&receipt, now).is_err(), "it is being settled");
    hand.failed(handed.key, until);
    assert!(hand.settle(&receipt, now).is_ok());
    hand.removed(handed.key);
    assert_eq!((hand.next_due(), hand.waiting().0), (None, 0));
}

#[test]
fn deliveries_that_no_handler_saw_are_no_attempts() {
    let now = Instant::now();
    let mut hand = Hand::new(false, SERVER);
    arrive(&mut hand, 1, 5, "jobs", now);
    hand.sort(now);
    assert!(hand.ready(1).is_empty(), "its attempts are not known yet");
    hand.count(Key { sequence: 1, deliveries: 5 }, Some(3), now);
    hand.sort(now);
    assert_eq!((hand.ready(1)[0].attempt, hand.ready(1)[0].uncounted), (2, 3));
}

#[test]
fn one_message_of_a_group_at_a_time_and_only_the_first_stored() {
    let now = Instant::now();
    let mut hand = Hand::new(true, SERVER);
    for (sequence, group) in [(2, "a"), (3, "b"), (4, "a"), (5, "b")] {
        arrive(&mut hand, sequence, 1, group, now);
    }
    let asked: Vec<_> = hand.sort(now).into_iter().map(|(key, _)| key).collect();
    assert_eq!(asked.iter().map(|key| key.sequence).collect::<Vec<_>>(), [2, 3]);
    // Another host has the first of group `a`.
    hand.first_of_group(asked[0], Some(1), false, now);
    hand.first_of_group(asked[1], Some(3), true, now);
    assert_eq!(sequences(&hand.ready(10)), [3]);
    assert!(hand.sort(now).is_empty(), "both groups wait");
    assert_eq!(hand.next_look(), Some(now + AGAIN.first));
    let (receipt, _) = hand.lease(asked[1], LEASE, now).unwrap();
    let again = now + AGAIN.first;
    assert_eq!(hand.sort(again).len(), 1, "group `a` is looked at again");
    hand.first_of_group(asked[0], Some(1), false, again);
    assert_eq!(hand.next_look(), Some(again + 2 * AGAIN.first), "less often");
    let (handed, _) = hand.settle(&receipt, now).unwrap();
    hand.removed(handed.key);
    let next: Vec<_> = hand.sort(now).into_iter().map(|(key, _)| key.sequence).collect();
    assert_eq!(next, [5], "the next of group `b`");
    // It was acked by a host that got it before.
    let last = Key { sequence: 5, deliveries: 1 };
    hand.first_of_group(last, Some(9), false, now);
    assert_eq!(hand.waiting().0, 2);
}

/// The client library leaves out white space at the end of a subject.
#[test]
fn a_message_that_is_stored_under_another_subject_than_it_came_with_is_handed_out() {
    let now = Instant::now();
    for first in [None, Some(9)] {
        let mut hand = Hand::new(true, SERVER);
        arrive(&mut hand, 5, 1, "a", now);
        let key = hand.sort(now)[0].0;
        hand.first_of_group(key, first, true, now);
        assert_eq!(sequences(&hand.ready(1)), [5], "{first:?}");
    }
}

#[test]
fn a_rest_gives_back_what_is_not_handed_out() {
    let now = Instant::now();
    let (mut hand, _receipt) = plain(now);
    arrive(&mut hand, 2, 1, "jobs", now);
    assert_eq!(sequences(&hand.give_back()), [2]);
    assert!(hand.give_back().is_empty());
    hand.went_back(Key { sequence: 2, deliveries: 1 }, Some(now), now);
    assert_eq!((hand.visible(now), hand.visible(now + RETURNED)), (1, 0));
}

#[test]
fn messages_that_went_back_for_long_are_not_remembered() {
    let now = Instant::now();
    let mut hand = Hand::new(false, SERVER);
    for (sequence, delay) in [(1, Duration::ZERO), (2, SOON), (3, SOON + SECOND), (4, 1_000 * SOON)] {
        arrive(&mut hand, sequence, 1, "jobs", now);
        hand.went_back(Key { sequence, deliveries: 1 }, Some(now + delay), now);
    }
    let mut remembered: Vec<_> = hand.returned.keys().copied().collect();
    remembered.sort_unstable();
    assert_eq!(remembered, [1, 2]);
}

/// A host that the server cannot reach, or that was stopped for a while.
#[test]
fn what_the_server_delivers_again_is_not_handed_out() {
    let now = Instant::now();
    let mut hand = Hand::new(false, SERVER);
    arrive(&mut hand, 1, 1, "jobs", now);
    arrive(&mut hand, 2, 1, "jobs", now + 20 * SECOND);
    hand.sort(now);
    let ready = hand.ready(10);
    assert_eq!(hand.next_due(), Some(now + SERVER / 2), "its timer is to begin anew");
    assert_eq!(hand.lease(ready[0].key, LEASE, now + 20 * SECOND), None, "the server did not let it begin anew");
    assert_eq!(sequences(&hand.ready(10)), [2]);
    assert!(hand.expired(now + 20 * SECOND + SERVER).is_empty(), "nothing is sent for what another host may have");
    assert_eq!((hand.waiting().0, hand.lease(ready[1].key, LEASE, now + 60 * SECOND)), (0, None));
}

#[test]
fn a_request_to_keep_a_message_is_repeated_while_it_has_no_answer() {
    let now = Instant::now();
    let mut hand = Hand::new(false, SERVER);
    arrive(&mut hand, 1, 1, "jobs", now);
    let due = now + SERVER / 2;
    assert_eq!((hand.begin_touching(due).len(), hand.begin_touching(due).len()), (1, 0));
    assert_eq!(hand.next_due(), Some(due + TOUCHING));
    assert_eq!(hand.begin_touching(due + TOUCHING).len(), 1);
    hand.touched(Key { sequence: 1, deliveries: 1 }, due);
    assert_eq!(hand.next_due(), Some(due + SERVER / 2));
}

/// Attempts that cannot be told are not guessed: the message may seem to have none left.
#[test]
fn a_message_waits_until_its_attempts_are_known() {
    let now = Instant::now();
    let mut hand = Hand::new(false, SERVER);
    arrive(&mut hand, 1, 9, "jobs", now);
    let key = hand.uncounted(now)[0].0;
    hand.count(key, None, now);
    hand.sort(now);
    assert!(hand.ready(1).is_empty() && hand.has_uncounted() && hand.uncounted(now).is_empty());
    assert_eq!(hand.next_look(), Some(now + RECOUNT));
    hand.count(hand.uncounted(now + RECOUNT)[0].0, Some(8), now + RECOUNT);
    hand.sort(now);
    assert_eq!((hand.ready(1)[0].attempt, hand.next_look()), (1, None));
}

/// Another host may have lowered the server's timer.
#[test]
fn a_shorter_timer_of_the_server_ends_leases_earlier() {
    let now = Instant::now();
    let (mut hand, receipt) = plain(now);
    hand.set_server(4 * SECOND);
    assert_eq!(hand.next_due(), Some(now + 2 * SECOND), "the lease needs its timer to begin anew");
    assert!(hand.settle(&receipt, now + 4 * SECOND).is_err());
    assert_eq!(sequences(&hand.expired(now + 4 * SECOND)), [1]);
}

#[test]
fn nothing_is_sent_shortly_before_the_server_delivers_again() {
    let now = Instant::now();
    let (mut hand, receipt) = plain(now);
    let (handed, until) = hand.settle(&receipt, now).unwrap();
    assert_eq!((until, handed.certain_until(SERVER)), (now + LEASE, now + SERVER - CERTAIN));
}

#[test]
fn the_clock_hears_of_what_is_due_earlier() {
    let now = Instant::now();
    let mut hand = Hand::new(false, SERVER);
    assert_eq!((hand.next_due(), hand.is_sooner()), (None, false));
    arrive(&mut hand, 1, 1, "jobs", now);
    assert!(hand.is_sooner() && !hand.is_sooner());
    arrive(&mut hand, 2, 1, "jobs", now + SECOND);
    assert!(!hand.is_sooner(), "it is due later");
    hand.sort(now);
    let (receipt, _) = hand.lease(Key { sequence: 2, deliveries: 1 }, SECOND, now + SECOND).unwrap();
    assert!(hand.is_sooner(), "the lease ends first");
    assert_eq!(hand.next_due(), Some(now + 2 * SECOND));
    hand.extend(&receipt.lease(), now + 9 * SECOND, now + SECOND).unwrap();
    assert!(!hand.is_sooner());
}

/// Messages of group `a` wait for an earlier one elsewhere, those of `b` for one that is leased here.
#[test]
fn messages_of_blocked_groups_make_room_for_others_but_for_a_few() {
    let now = Instant::now();
    let mut hand = Hand::new(true, SERVER);
    for sequence in 1..=60 {
        arrive(&mut hand, sequence, 1, if sequence % 2 == 0 { "a" } else { "b" }, now);
    }
    for (key, _) in hand.sort(now) {
        hand.first_of_group(key, Some(1), true, now);
    }
    hand.lease(Key { sequence: 1, deliveries: 1 }, LEASE, now).unwrap();
    assert_eq!(sequences(&hand.surplus(5)), [60, 58, 56, 54, 52], "the newest");
    assert_eq!(sequences(&hand.surplus(99)), [50, 48, 46, 44, 42, 40, 38, 36, 34], "16 of the group stay");
    assert_eq!(sequences(&hand.surplus(99)).last(), Some(&10), "four stay if there are no others");
    assert_eq!(sequences(&hand.surplus(99)), [8, 6, 4]);
    assert_eq!((sequences(&hand.surplus(99)).len(), hand.waiting().0), (0, 30), "the first ones stay");
    let again = Handed { uncounted: 2, ..handed(&hand.entries[&2]) };
    assert_eq!([away(&handed(&hand.entries[&2])), away(&again)], [5 * SECOND, 20 * SECOND]);
}
