//! Deliveries that do not count as attempts, because the message went back unprocessed, and attempts that ended here and that no
//! copy carries on. No I/O.
//!
//! Servers before 4.3 count each return of a message to its queue (`x-delivery-count`). This process knows the returns that it
//! made itself, and subtracts them. Another process counts several returns as one attempt.
//!
//! AMQP has no name for a message that outlasts a channel, and the message id is the producer's, which may use one for several
//! messages. So a message is known by all of its content. Messages with the same content share a note, which a message that was
//! never delivered before does not read.

use std::collections::{HashMap, VecDeque};
use std::hash::RandomState;

use super::envelope::Mail;

/// Maximum number of messages to remember. The oldest is forgotten first.
const MOST: usize = 10_000;

/// Returns of messages that do not count.
#[derive(Debug, Default)]
pub(super) struct Uncounted {
    /// Hashes the content of messages, for this process alone.
    hashes: RandomState,
    notes: HashMap<u64, Note>,
    order: VecDeque<u64>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Note {
    /// The server's count at the last return.
    last: u32,
    /// Number of counted deliveries that do not count.
    total: u32,
    /// Set from a return to the next delivery.
    is_back: bool,
    /// Number of attempts that have ended.
    ended: u32,
}

impl Uncounted {
    /// Notes that a message goes back unprocessed.
    pub(super) fn note(&mut self, mail: &Mail) {
        let note = self.entry(mail);
        (note.last, note.is_back) = (mail.deliveries, true);
    }

    /// Notes that a message goes back after this number of attempts.
    pub(super) fn note_ended(&mut self, mail: &Mail, attempts: u32) {
        self.entry(mail).ended = attempts;
    }

    /// Returns the number of attempts that have ended here.
    pub(super) fn ended(&self, mail: &Mail) -> u32 {
        self.key(mail).and_then(|key| self.notes.get(&key)).map_or(0, |note| note.ended)
    }

    fn entry(&mut self, mail: &Mail) -> &mut Note {
        let key = mail.content_hash(&self.hashes);
        if !self.notes.contains_key(&key) {
            self.order.push_back(key);
            while self.order.len() > MOST {
                self.order.pop_front().map(|oldest| self.notes.remove(&oldest));
            }
        }
        self.notes.entry(key).or_default()
    }

    /// Returns the key of the message's note. `None`: there is no note about it.
    fn key(&self, mail: &Mail) -> Option<u64> {
        let may_be_known = !self.notes.is_empty() && mail.came_before();
        may_be_known.then(|| mail.content_hash(&self.hashes))
    }

    /// Returns the number of deliveries among the server's count that do not count.
    pub(super) fn of(&mut self, mail: &Mail) -> u32 {
        let Some(note) = self.key(mail).and_then(|key| self.notes.get_mut(&key)) else { return 0 };
        // Later servers do not count a return.
        note.total += u32::from(note.is_back && mail.deliveries > note.last);
        note.is_back = false;
        note.total.min(mail.deliveries)
    }

    /// Forgets a message that is settled for good.
    pub(super) fn forget(&mut self, mail: &Mail) {
        if let Some(key) = self.key(mail)
            && self.notes.remove(&key).is_some()
        {
            self.order.retain(|other| *other != key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use lapin::BasicProperties;
    use lapin::message::Delivery;
    use lapin::types::{AMQPValue, FieldTable};

    use super::*;

    /// A message of a producer that gives all its messages one id. `deliveries`: the server's count.
    fn mail(body: &str, redelivered: bool, deliveries: u32) -> Mail {
        let mut delivery = Delivery::mock(1, "".into(), "jobs".into(), redelivered, body.into());
        let mut headers = FieldTable::default();
        headers.insert("x-delivery-count".into(), AMQPValue::LongLongInt(deliveries.into()));
        delivery.properties = BasicProperties::default().with_message_id("id".into()).with_headers(headers);
        Mail::read(delivery, |_| false, false, SystemTime::now())
    }

    #[test]
    fn only_the_returns_that_the_server_counted_are_subtracted() {
        let mut uncounted = Uncounted::default();
        let a = |deliveries| mail("a", true, deliveries);
        assert_eq!(uncounted.of(&a(3)), 0);
        uncounted.note(&a(0));
        assert_eq!(uncounted.of(&a(1)), 1, "counted by the server");
        assert_eq!(uncounted.of(&a(2)), 1, "this one was an attempt");
        uncounted.note(&a(2));
        assert_eq!(uncounted.of(&a(2)), 1, "not counted by the server");
        uncounted.note(&a(2));
        assert_eq!(uncounted.of(&a(3)), 2);
        uncounted.forget(&a(3));
        assert_eq!(uncounted.of(&a(3)), 0);
    }

    #[test]
    fn messages_with_one_id_are_told_apart() {
        let mut uncounted = Uncounted::default();
        uncounted.note_ended(&mail("a", false, 0), 2);
        uncounted.note(&mail("b", false, 0));
        let (a, b) = (mail("a", true, 1), mail("b", true, 1));
        assert_eq!((uncounted.ended(&a), uncounted.ended(&b)), (2, 0));
        assert_eq!((uncounted.of(&a), uncounted.of(&b)), (0, 1));
        uncounted.forget(&b);
        assert_eq!(uncounted.ended(&a), 2);
    }

    #[test]
    fn a_note_is_not_read_by_a_twin_that_was_never_delivered_before() {
        let mut uncounted = Uncounted::default();
        uncounted.note_ended(&mail("a", false, 0), 2);
        let twin = mail("a", false, 0);
        assert_eq!((uncounted.ended(&twin), uncounted.of(&twin)), (0, 0));
        uncounted.forget(&twin);
        assert_eq!(uncounted.ended(&mail("a", true, 1)), 2);
    }

    #[test]
    fn the_oldest_is_forgotten_first() {
        let mut uncounted = Uncounted::default();
        for n in 0..=MOST {
            uncounted.note(&mail(&n.to_string(), false, 0));
        }
        let (oldest, next) = (mail("0", true, 1), mail("1", true, 1));
        assert_eq!((uncounted.of(&oldest), uncounted.of(&next), uncounted.notes.len()), (0, 1, MOST));
    }
}
