//! Numbers that the server gives to a delivery, in the subject of its acknowledgement. No I/O.

/// Numbers of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// Sequence number of the message in its stream.
    pub(crate) sequence: u64,
    /// Number of deliveries of the message, with this one.
    pub(crate) deliveries: u32,
    /// Time at which the server stored the message, in nanoseconds since 1970.
    pub(crate) stored_at: u64,
}

impl Stamp {
    /// Reads the subject of an acknowledgement. `None`: the subject is another one.
    ///
    /// Servers before 2.11 write `$JS.ACK.<stream>.<consumer>.<numbers>`. Later ones may add the domain and the account in front
    /// of the stream, and a token behind.
    pub(crate) fn read(reply: &str) -> Option<Self> {
        let tokens: Vec<_> = reply.strip_prefix("$JS.ACK.")?.split('.').collect();
        let numbers = match tokens.len() {
            7 => &tokens[2..],
            9.. => &tokens[4..],
            _ => return None,
        };
        let number = |place: usize| numbers.get(place)?.parse::<u64>().ok();
        Some(Self {
            deliveries: u32::try_from(number(0)?).unwrap_or(u32::MAX),
            sequence: number(1)?,
            stored_at: number(3)?,
        })
    }

    /// Returns the subject of an acknowledgement, for a message whose delivery did not come. `delivery`: number of a delivery of the
    /// consumer that is not behind those of the message.
    pub(crate) fn reply(self, stream: &str, consumer: &str, delivery: u64) -> String {
        let Self { sequence, deliveries, stored_at } = self;
        format!("$JS.ACK.{stream}.{consumer}.{deliveries}.{sequence}.{delivery}.{stored_at}.0")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_that_is_made_is_read() {
        let stamp = Stamp { sequence: 21, deliveries: 1, stored_at: 1_700_000_000_000_000_001 };
        assert_eq!(Stamp::read(&stamp.reply("jobs", "hostler", 40)), Some(stamp));
    }

    #[test]
    fn both_forms_are_read() {
        let expected = Some(Stamp { sequence: 21, deliveries: 3, stored_at: 1_700_000_000_000_000_001 });
        for subject in [
            "$JS.ACK.jobs.hostler.3.21.40.1700000000000000001.5",
            "$JS.ACK._.hash.jobs.hostler.3.21.40.1700000000000000001.5",
            "$JS.ACK.hub.hash.jobs.hostler.3.21.40.1700000000000000001.5.random",
        ] {
            assert_eq!(Stamp::read(subject), expected, "{subject}");
        }
        for other in ["", "_INBOX.x", "$JS.ACK.jobs", "$JS.ACK.jobs.hostler.a.21.40.1.5"] {
            assert_eq!(Stamp::read(other), None, "{other}");
        }
    }
}
