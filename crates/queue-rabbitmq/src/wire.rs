//! Messages as the server delivers them, out of the bytes of AMQP, and their copies. For the fuzz target; the driver gets messages
//! from the client library. No I/O.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hostler_types::message::{Message, Outgoing};
use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::protocol::basic::parse_properties;

use super::envelope::{self, Mail, Parcel};

/// The exchange by which the delay ladder delivers.
const LADDER: &str = "ladder";

/// The way by which a message came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Sent to the queue.
    Direct,
    /// Through a topic exchange, by the routing key `EU.order`.
    Exchange,
    /// Down the delay ladder.
    Ladder,
}

/// A message that was delivered.
#[derive(Debug)]
pub struct Delivered(Mail);

impl Delivered {
    /// Reads a message. `properties`: the flags and the list of properties, as in a content header (AMQP 0-9-1, section 4.2.6.1).
    /// `None`: the bytes are not such a list.
    pub fn read(way: Way, properties: &[u8], body: &[u8]) -> Option<Self> {
        let (rest, properties) = parse_properties(properties).ok()?;
        let (exchange, key) = match way {
            Way::Direct => ("", "jobs"),
            Way::Exchange => ("shop", "EU.order"),
            Way::Ladder => (LADDER, "0.1.jobs"),
        };
        rest.is_empty().then(|| Self::of(exchange, key, properties, body))
    }

    fn of(exchange: &str, key: &str, properties: BasicProperties, body: &[u8]) -> Self {
        let mut delivery = Delivery::mock(1, exchange.into(), key.into(), false, body.to_vec());
        delivery.properties = properties;
        Self(Mail::read(delivery, |exchange| exchange == LADDER, false, now()))
    }

    fn copied(Parcel { exchange, key, properties, body }: Parcel) -> Self {
        Self::of(&exchange, &key, properties, &body)
    }

    /// Returns the message.
    pub fn message(&self) -> &Message {
        &self.0.message
    }

    /// Returns the number of attempts that ended before this copy was made.
    pub fn carried(&self) -> u32 {
        self.0.carried
    }

    /// Returns `true` if the message was delivered before, or is a copy of one that was.
    pub fn came_before(&self) -> bool {
        self.0.came_before()
    }

    /// Returns the copy that goes back to the queue after this number of attempts.
    pub fn again(&self, carried: u32) -> Self {
        Self::copied(self.0.again(String::new(), "jobs".to_owned(), carried))
    }

    /// Returns the copy that goes to the dead-letter queue.
    pub fn dead_letter(&self, reason: &str) -> Self {
        Self::copied(self.0.dead_letter_within(usize::MAX, "jobs-dlq", reason, "jobs", 3))
    }

    /// Returns the message as a command sends it to another queue: by its attributes alone.
    pub fn moved(&self) -> Self {
        let Message { id, body, attributes, group, routing_key, .. } = self.message();
        let outgoing = Outgoing { attributes: attributes.clone(), group: group.clone(), ..Outgoing::default() };
        let properties = envelope::outgoing(&outgoing, id, routing_key.as_deref(), None, now());
        Self::of("", "jobs", properties, body)
    }
}

/// Time of all deliveries, so that all runs have the same result.
fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_700_000_000)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_seed_of_the_fuzz_target_is_a_message() {
        let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/amqp");
        for seed in std::fs::read_dir(seeds).unwrap() {
            let path = seed.unwrap().path();
            let bytes = std::fs::read(&path).unwrap();
            for way in [Way::Direct, Way::Exchange, Way::Ladder] {
                let first = Delivered::read(way, &bytes[1..], b"a body").unwrap_or_else(|| panic!("{path:?}"));
                let again = first.again(7);
                assert_eq!((again.message(), again.carried()), (first.message(), 7), "{path:?} {way:?}");
                assert_eq!(first.dead_letter("why").message().id, first.message().id, "{path:?} {way:?}");
                assert_eq!(first.moved().message().attributes.len(), first.message().attributes.len(), "{path:?}");
            }
        }
        assert!(Delivered::read(Way::Direct, b"\x80\x00\x05text", b"").is_none());
    }
}
