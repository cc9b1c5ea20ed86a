use std::sync::Arc;
use std::time::SystemTime;

use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, FieldTable};

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = SECOND.saturating_mul(30);

/// A message of the first channel.
const fn key(tag: u64) -> Key {
    Key { channel: 1, tag }
}

fn keys(tags: &[u64]) -> Vec<Key> {
    tags.iter().map(|tag| key(*tag)).collect()
}

/// A message with its name as its id, in the group before the first dash of the name.
fn mail(tag: u64, name: &str, deliveries: i64) -> Mail {
    let mut delivery = Delivery::mock(tag, "".into(), "jobs".into(), deliveries > 0, name.into());
    let mut headers = FieldTable::default();
    headers.insert("x-delivery-count".into(), AMQPValue::LongLongInt(deliveries));
    if let Some((group, _)) = name.split_once('-') {
        headers.insert("hostler-group".into(), AMQPValue::LongString(group.into()));
    }
    delivery.properties = BasicProperties::default().with_message_id(name.into()).with_headers(headers);
    Mail::read(delivery, |_| false, false, SystemTime::now())
}

/// A window with these messages, tagged from 1.
fn window(ordered: bool, names: &[&str]) -> (Unacked, Instant) {
    let (mut unacked, now) = (Unacked::new(ordered), Instant::now());
    assert_eq!(unacked.begin(), []);
    for (tag, name) in (1..).zip(names) {
        unacked.delivered(mail(tag, name, 0), None, now);
    }
    (unacked, now)
}

/// Hands out all that may be, and returns the names and the attempts with the receipts.
fn take(unacked: &mut Unacked, now: Instant) -> (Vec<(String, u32)>, Vec<Receipt>) {
    let (mut names, mut receipts) = (Vec::new(), Vec::new());
    while let Some(Handed { mail, attempt, .. }) = unacked.next() {
        names.push((mail.message.id.clone(), attempt));
        let tag = mail.tag;
        receipts.push(unacked.lease(tag, now + LEASE));
    }
    (names, receipts)
}

fn named(names: &[(&str, u32)]) -> Vec<(String, u32)> {
    names.iter().map(|(name, attempt)| ((*name).to_owned(), *attempt)).collect()
}

fn is_lost<T: std::fmt::Debug>(result: &Result<T, LeaseError>) -> bool {
    matches!(result, Err(LeaseError::Lost(_)))
}

#[test]
fn messages_are_handed_out_in_order_and_settled_once() {
    let (mut unacked, now) = window(false, &["a", "b"]);
    let (names, receipts) = take(&mut unacked, now);
    assert_eq!(names, named(&[("a", 1), ("b", 1)]));
    assert_eq!(unacked.settle(&receipts[0], now), Ok(key(1)));
    assert!(is_lost(&unacked.settle(&receipts[0], now)), "a settlement is under way");
    assert!(is_lost(&unacked.extend(&receipts[0].lease(), now + LEASE, now)));
    unacked.gone(key(1));
    assert!(is_lost(&unacked.settle(&receipts[0], now)));
    assert!(!unacked.is_idle());
    unacked.settle(&receipts[1], now).unwrap();
    unacked.failed(key(2), now);
    assert_eq!(unacked.settle(&receipts[1], now), Ok(key(2)), "after a failure the lease goes on");
    unacked.gone(key(2));
    assert!(unacked.is_idle() && unacked.len() == 0 && unacked.next_due().is_none());
}

#[test]
fn a_message_whose_lease_ends_goes_back_to_the_server() {
    let (mut unacked, now) = window(false, &["a", "b"]);
    let (_, receipts) = take(&mut unacked, now);
    unacked.extend(&receipts[1].lease(), now + 2 * LEASE, now + SECOND).unwrap();
    assert_eq!((unacked.tick(now + LEASE - SECOND), unacked.next_due()), (vec![], Some(now + LEASE)));
    assert_eq!(unacked.tick(now + LEASE), [key(1)]);
    assert_eq!(take(&mut unacked, now + LEASE).0, []);
    assert!(unacked.back(key(1), true));
    assert!(unacked.expects_returns());
    assert!(is_lost(&unacked.settle(&receipts[0], now + LEASE)));
    unacked.delivered(mail(3, "a", 1), None, now + LEASE);
    assert!(!unacked.expects_returns());
    assert_eq!(take(&mut unacked, now + LEASE).0, named(&[("a", 2)]));
    assert!(
        is_lost(&unacked.extend(&receipts[1].lease(), now + 9 * LEASE, now + 2 * LEASE)),
        "ended, though unnoticed"
    );
}

#[test]
fn a_lease_does_not_end_while_its_message_is_settled() {
    let (mut unacked, now) = window(false, &["a"]);
    let (_, receipts) = take(&mut unacked, now);
    unacked.settle(&receipts[0], now + LEASE - SECOND).unwrap();
    assert_eq!((unacked.next_due(), unacked.tick(now + 2 * LEASE)), (None, vec![]));
    unacked.failed(key(1), now + 2 * LEASE);
    assert_eq!(unacked.tick(now + 2 * LEASE), [key(1)]);
}

#[test]
fn a_new_channel_loses_what_is_in_hand_and_no_receipt_is_good_for_it() {
    let (mut unacked, now) = window(false, &["a", "b", "c"]);
    let (_, receipts) = take(&mut unacked, now);
    unacked.settle(&receipts[1], now).unwrap();
    unacked.gone(key(3));
    let lost = unacked.begin();
    assert_eq!(lost, [receipts[0].lease(), receipts[1].lease()]);
    unacked.delivered(mail(1, "b", 1), None, now);
    unacked.delivered(mail(2, "c", 1), None, now);
    take(&mut unacked, now);
    // A settlement of the old channel ends only now.
    assert!(unacked.get(key(2)).is_none(), "the tag is that of another message");
    unacked.gone(key(2));
    assert!(!unacked.back(key(2), true));
    unacked.keep(key(2), SECOND, true, now);
    unacked.failed(key(2), now);
    assert_eq!((unacked.len(), unacked.waiting()), (2, (0, 0)), "both are handed out, as they were");
    assert!(is_lost(&unacked.settle(&receipts[0], now)), "the tag is that of another message");
    assert_eq!(Receipt::new("no receipt").as_str(), "no receipt");
    assert!(is_lost(&unacked.settle(&Receipt::new("no receipt"), now)));
}

#[test]
fn what_goes_back_unprocessed_counts_for_nothing() {
    let (mut unacked, now) = window(false, &["a", "b", "c"]);
    let tag = unacked.next().unwrap().mail.tag;
    let receipt = unacked.lease(tag, now + LEASE);
    assert_eq!(unacked.waiting(), (2, 2));
    assert_eq!(unacked.rest(), keys(&[2, 3]), "what is in hand stays");
    assert!(unacked.back(key(2), false));
    assert!(unacked.back(key(3), false));
    assert_eq!(unacked.len(), 1);
    unacked.settle(&receipt, now).unwrap();
    assert!(unacked.back(key(1), true));
    for (tag, name) in [(4, "a"), (5, "b"), (6, "c")] {
        unacked.delivered(mail(tag, name, 1), None, now);
    }
    assert_eq!(take(&mut unacked, now).0, named(&[("a", 2), ("b", 1), ("c", 1)]));
}

#[test]
fn messages_that_a_lost_connection_had_ahead_count_for_nothing() {
    let (mut unacked, now) = window(false, &["a", "b"]);
    let tag = unacked.next().unwrap().mail.tag;
    unacked.lease(tag, now + LEASE);
    unacked.begin();
    unacked.delivered(mail(1, "a", 1), None, now);
    unacked.delivered(mail(2, "b", 1), None, now);
    assert_eq!(take(&mut unacked, now).0, named(&[("a", 2), ("b", 1)]));
}

#[test]
fn an_ordered_queue_hands_out_one_of_a_group_and_keeps_its_order() {
    let (mut unacked, now) = window(true, &["a-1", "a-2", "b-1", "a-3"]);
    let (names, receipts) = take(&mut unacked, now);
    assert_eq!(names, named(&[("a-1", 1), ("b-1", 1)]));
    assert_eq!(unacked.waiting(), (2, 0));
    unacked.settle(&receipts[0], now).unwrap();
    assert_eq!(take(&mut unacked, now).0, [], "until it is settled");
    unacked.keep(key(1), 5 * SECOND, true, now);
    assert_eq!(take(&mut unacked, now + SECOND).0, [], "held, and its group with it");
    assert!(unacked.tick(now + 5 * SECOND).is_empty());
    let (names, again) = take(&mut unacked, now + 5 * SECOND);
    assert_eq!(names, named(&[("a-1", 2)]));
    assert!(is_lost(&unacked.settle(&receipts[0], now)), "the receipt of the first time");
    unacked.settle(&again[0], now + 5 * SECOND).unwrap();
    unacked.gone(key(1));
    assert_eq!(take(&mut unacked, now + 5 * SECOND).0, named(&[("a-2", 1)]));
}

#[test]
fn an_ordered_queue_hands_a_message_out_again_when_its_lease_ends() {
    let (mut unacked, now) = window(true, &["a-1", "a-2"]);
    take(&mut unacked, now);
    assert!(unacked.tick(now + LEASE).is_empty(), "it does not go back");
    assert_eq!(take(&mut unacked, now + LEASE).0, named(&[("a-1", 2)]));
}

#[test]
fn a_message_that_is_early_holds_its_group() {
    let (mut unacked, now) = window(true, &[]);
    unacked.delivered(mail(1, "a-1", 0), Some(2 * SECOND), now);
    unacked.delivered(mail(2, "a-2", 0), Some(8 * SECOND), now);
    unacked.delivered(mail(3, "b-1", 0), None, now);
    assert_eq!(take(&mut unacked, now).0, named(&[("b-1", 1)]));
    unacked.tick(now + 2 * SECOND);
    let (names, receipts) = take(&mut unacked, now + 2 * SECOND);
    assert_eq!(names, named(&[("a-1", 1)]));
    unacked.settle(&receipts[0], now + 2 * SECOND).unwrap();
    unacked.gone(key(1));
    assert_eq!(take(&mut unacked, now + 7 * SECOND).0, []);
    unacked.tick(now + 8 * SECOND);
    assert_eq!(take(&mut unacked, now + 8 * SECOND).0, named(&[("a-2", 1)]));
}

#[test]
fn returns_of_other_hosts_tell_of_one_attempt_and_many_deliveries_of_more() {
    let (mut unacked, now) = window(false, &[]);
    for (tag, count) in (1..).zip([0, 1, 3, 4, 5, 9]) {
        unacked.delivered(mail(tag, &format!("m{count}"), count), None, now);
    }
    let certain: Vec<_> = (1..=6).filter_map(|tag| unacked.get(key(tag))).map(|message| message.certain).collect();
    let attempts: Vec<_> = take(&mut unacked, now).0.into_iter().map(|(_, attempt)| attempt).collect();
    assert_eq!((certain, attempts), (vec![0, 0, 0, 1, 2, 6], vec![1, 2, 2, 2, 3, 7]));
    let (mut unacked, now) = window(true, &[]);
    unacked.delivered(mail(1, "a", 15), None, now);
    assert!(!unacked.is_worn());
    unacked.delivered(mail(2, "b", 32), None, now);
    assert!(unacked.is_worn());
    unacked.delivered(mail(3, "c", 36), None, now);
    assert_eq!(
        take(&mut unacked, now).0,
        named(&[("a", 2), ("b", 2), ("c", 5)]),
        "an ordered queue gives back by no copy"
    );
}

/// Commands look at dead letters, and each look counts as a delivery.
#[test]
fn looks_at_a_dead_letter_are_no_attempts_at_it() {
    let (unacked, now) = window(false, &[]);
    let mut unacked = unacked.ignore_count();
    unacked.delivered(mail(1, "a", 900), None, now);
    unacked.begin();
    let mut copy = mail(2, "b", 7);
    copy.carried = 2;
    unacked.delivered(copy, None, now);
    unacked.delivered(mail(1, "a", 901), None, now);
    let (names, receipts) = take(&mut unacked, now);
    assert_eq!(names, named(&[("a", 1), ("b", 3)]));
    let key = unacked.settle(&receipts[0], now).unwrap();
    assert!(unacked.back(key, true));
    unacked.delivered(mail(3, "a", 902), None, now);
    assert_eq!(take(&mut unacked, now).0, named(&[("a", 2)]), "attempts of this process count");
}

/// The breaker opens after each failure, and the queue rests.
#[test]
fn attempts_that_ended_here_are_known_on_the_next_channel() {
    let (mut unacked, now) = window(true, &["a-1"]);
    for attempt in 1..=5 {
        let (names, receipts) = take(&mut unacked, now);
        assert_eq!(names, named(&[("a-1", attempt)]));
        let key = unacked.settle(&receipts[0], now).unwrap();
        if attempt % 2 == 0 {
            unacked.keep(key, SECOND, true, now);
        }
        unacked.begin();
        unacked.delivered(mail(1, "a-1", i64::from(attempt)), None, now);
    }
    let (mut unacked, now) = window(false, &["a"]);
    take(&mut unacked, now);
    let key = unacked.tick(now + LEASE).remove(0);
    assert!(unacked.back(key, true));
    unacked.delivered(mail(2, "a", 1), None, now);
    assert_eq!(unacked.get(Key { tag: 2, ..key }).unwrap().certain, 1);
}

#[test]
fn a_settlement_that_fails_is_begun_again_later_and_later() {
    let (mut unacked, now) = window(false, &["a"]);
    let mut at = now;
    for delay in [1, 2, 4] {
        let tag = unacked.next().unwrap().mail.tag;
        let key = unacked.set_aside(tag);
        unacked.failed(key, at);
        assert!(unacked.next().is_none(), "it would fail at once");
        at += delay * SECOND;
        assert_eq!(unacked.next_due(), Some(at));
        unacked.tick(at);
    }
    assert_eq!(take(&mut unacked, at).0, named(&[("a", 1)]));
}

#[test]
fn a_window_is_stuck_when_it_is_full_of_messages_that_wait_for_their_group() {
    let (mut unacked, now) = window(true, &["a-1", "a-2", "a-3"]);
    assert!(!unacked.is_stuck(0, 3), "one may be handed out");
    let (_, receipts) = take(&mut unacked, now);
    assert!(unacked.is_stuck(0, 3) && !unacked.is_stuck(0, 4), "the server may send more");
    let from = unacked.next_tag();
    assert!(from == 4 && !unacked.is_stuck(from, 3));
    unacked.delivered(mail(4, "b-1", 0), None, now);
    assert_eq!((unacked.len_from(from), unacked.len()), (1, 4));
    unacked.settle(&receipts[0], now).unwrap();
    unacked.gone(key(1));
    assert!(!unacked.is_stuck(from, 3));
}

#[test]
fn a_window_takes_no_more_once_its_bodies_are_large() {
    let (mut unacked, now) = window(true, &["a-1"]);
    take(&mut unacked, now);
    let mut large = mail(2, "a-2", 0);
    let mut message = (*large.message).clone();
    message.body = vec![0; MOST_STUCK_BYTES].into();
    large.message = Arc::new(message);
    assert!(unacked.is_stuck(0, 1));
    unacked.delivered(large, None, now);
    assert!(!unacked.is_stuck(0, 2));
}

#[test]
fn only_messages_that_may_stay_take_room_from_a_receive() {
    let (mut unacked, now) = window(false, &["a", "b", "c"]);
    assert_eq!(unacked.busy_from(0), 0, "a receive can have all of them");
    unacked.lease(1, now + LEASE);
    unacked.set_aside(2);
    assert_eq!((unacked.busy_from(0), unacked.busy_from(2)), (1, 0));
    unacked.failed(key(2), now);
    assert_eq!(unacked.busy_from(2), 1, "it is held for a while");
}

#[test]
fn a_copy_that_comes_is_no_longer_expected() {
    let (mut unacked, now) = window(false, &["a"]);
    unacked.expect_returns(1);
    unacked.delivered(mail(2, "b", 0), None, now);
    assert!(unacked.expects_returns(), "another message");
    let mut copy = mail(3, "a", 0);
    copy.is_copy = true;
    unacked.delivered(copy, None, now);
    assert!(!unacked.expects_returns());
}

#[test]
fn one_ack_is_for_all_messages_up_to_the_first_that_stays() {
    let (mut unacked, now) = window(false, &["a", "b", "c", "d", "e"]);
    let (_, receipts) = take(&mut unacked, now);
    for tag in [1, 2, 4, 5] {
        unacked.settle(&receipts[tag - 1], now).unwrap();
    }
    let ack = |tag, multiple| Ack { tag, multiple };
    assert_eq!(unacked.acks(&keys(&[5, 2, 4, 1])), [ack(2, true), ack(4, false), ack(5, false)]);
    assert_eq!(unacked.acks(&keys(&[1])), [ack(1, false)]);
    assert_eq!(unacked.acks(&keys(&[2])), [ack(2, false)], "the first is being settled otherwise");
    for key in keys(&[1, 2]) {
        unacked.gone(key);
    }
    assert_eq!(unacked.acks(&keys(&[4, 5])), [ack(4, false), ack(5, false)]);
    unacked.settle(&receipts[2], now).unwrap();
    assert_eq!(unacked.acks(&keys(&[3, 4, 5])), [ack(5, true)]);
    assert_eq!(unacked.acks(&[Key { channel: 0, tag: 3 }]), [], "of a channel that has ended");
}

#[test]
fn no_ack_is_for_a_message_whose_return_the_server_does_not_know() {
    let (mut unacked, now) = window(false, &["a", "b", "c"]);
    let (_, receipts) = take(&mut unacked, now);
    for receipt in &receipts {
        unacked.settle(receipt, now).unwrap();
    }
    assert!(unacked.back(key(1), false));
    assert!(!unacked.back(key(1), false), "the server closes the channel at a second return");
    assert_eq!(unacked.acks(&keys(&[2, 3])), [2, 3].map(|tag| Ack { tag, multiple: false }));
    unacked.left(key(1));
    assert_eq!(unacked.acks(&keys(&[2, 3])), [Ack { tag: 3, multiple: true }]);
}

#[test]
fn a_message_was_tried_once_it_was_handed_out_or_its_settlement_has_failed() {
    let (mut unacked, now) = window(false, &["a", "b"]);
    let receipt = unacked.lease(1, now + LEASE);
    unacked.settle(&receipt, now).unwrap();
    unacked.set_aside(2);
    assert!(unacked.was_tried(key(1)) && !unacked.was_tried(key(2)));
    unacked.failed(key(2), now);
    unacked.set_aside(2);
    assert!(unacked.was_tried(key(2)) && !unacked.was_tried(key(3)));
}
