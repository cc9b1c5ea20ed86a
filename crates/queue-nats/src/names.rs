//! Names of streams and consumers, and the subjects of messages. No I/O.

use hostler_queue::DEFAULT_GROUP;
use hostler_types::channel::Channel;

/// Name of the durable consumer that all receivers of a queue share.
pub(crate) const CONSUMER: &str = "hostler";

/// End of the name of an exchange's stream. No queue has such a name.
const EXCHANGE: &str = "~exchange";

/// End of the first token in the subjects of messages with a group.
const GROUP: &str = "~group";

/// Name of the stream that counts deliveries which are no attempts, after the prefix.
const NOTES: &str = "hostler~notes";

/// Name of the stream with the states of schedules, after the prefix.
const SCHEDULES: &str = "hostler~schedules";

/// Token that stands for a missing routing key.
const NO_KEY: &str = "=none";

/// Longest token for a group or the name of a schedule. A longer text has the token of its hash.
const MAX_TOKEN: usize = 128;

/// Names of one installation: each begins with the prefix of the config.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    prefix: String,
}

impl Names {
    pub(crate) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    /// Returns the name of a queue's stream, which is also the subject of messages without a group.
    pub(crate) fn queue(&self, queue: &str) -> String {
        format!("{}{queue}", self.prefix)
    }

    /// Returns the name of an exchange's stream.
    pub(crate) fn exchange(&self, exchange: &str) -> String {
        format!("{}{exchange}{EXCHANGE}", self.prefix)
    }

    /// Returns the queue that has this stream. `None`: the stream is not a queue's.
    pub(crate) fn queue_of(&self, stream: &str) -> Option<Channel> {
        stream.strip_prefix(&self.prefix)?.parse().ok().filter(|channel: &Channel| channel.exchange().is_none())
    }

    /// Returns the exchange that has this stream. `None`: the stream is not an exchange's.
    pub(crate) fn exchange_of(&self, stream: &str) -> Option<String> {
        let name = stream.strip_prefix(&self.prefix)?.strip_suffix(EXCHANGE)?;
        name.parse::<Channel>().is_ok_and(|channel| channel.exchange().is_none()).then(|| name.to_owned())
    }

    /// Returns the subjects of a queue's stream.
    pub(crate) fn queue_subjects(&self, queue: &str) -> [String; 2] {
        [self.queue(queue), format!("{}{queue}{GROUP}.*", self.prefix)]
    }

    /// Returns the subject of a message to a queue.
    pub(crate) fn subject(&self, queue: &str, group: Option<&str>) -> String {
        match group {
            None | Some(DEFAULT_GROUP) => self.queue(queue),
            Some(group) => format!("{}{queue}{GROUP}.{}", self.prefix, token(group)),
        }
    }

    /// Returns the group in the subject of a message to a queue. `None`: the subject has none, or only its hash.
    pub(crate) fn group_of(&self, subject: &str) -> Option<String> {
        let (_, token) = subject.strip_prefix(&self.prefix)?.split_once(GROUP)?;
        let token = token.strip_prefix('.')?;
        if token == "=" { Some(String::new()) } else { decoded(token) }
    }

    /// Returns the subject of all messages to an exchange.
    pub(crate) fn exchange_subjects(&self, exchange: &str) -> String {
        format!("{}{exchange}.>", self.prefix)
    }

    /// Returns the subject of a message to an exchange.
    pub(crate) fn published(&self, exchange: &str, key: Option<&str>) -> String {
        format!("{}{exchange}.{}", self.prefix, key.map_or_else(|| NO_KEY.to_owned(), key_tokens))
    }

    /// Returns the subjects of messages to an exchange whose keys begin with this prefix, which ends in a dot.
    pub(crate) fn published_below(&self, exchange: &str, prefix: &str) -> String {
        format!("{}{exchange}.{}.>", self.prefix, key_tokens(prefix.trim_end_matches('.')))
    }

    /// Returns the routing key of a message that was published to an exchange.
    pub(crate) fn key_of(&self, exchange: &str, subject: &str) -> Option<String> {
        let tokens = subject.strip_prefix(&self.prefix)?.strip_prefix(exchange)?.strip_prefix('.')?;
        (tokens != NO_KEY).then(|| decoded_key(tokens))
    }

    /// Returns the name of the stream that counts deliveries which are no attempts.
    pub(crate) fn notes(&self) -> String {
        format!("{}{NOTES}", self.prefix)
    }

    /// Returns the subject of all notes.
    pub(crate) fn note_subjects(&self) -> String {
        format!("{}.>", self.notes())
    }

    /// Returns the subject of the note about a message.
    pub(crate) fn note(&self, stream: &str, sequence: u64) -> String {
        format!("{}.{stream}.{sequence}", self.notes())
    }

    /// Returns the name of the stream with the states of schedules.
    pub(crate) fn schedules(&self) -> String {
        format!("{}{SCHEDULES}", self.prefix)
    }

    /// Returns the subjects of all states of schedules.
    pub(crate) fn schedule_subjects(&self) -> String {
        format!("{}.>", self.schedules())
    }

    /// Returns the subject of a schedule's state.
    pub(crate) fn schedule(&self, name: &str) -> String {
        format!("{}.{}", self.schedules(), token(name))
    }
}

/// Returns the token of a group, or of the name of a schedule.
fn token(text: &str) -> String {
    let token = encoded(text, |byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    if token.is_empty() {
        return "=".to_owned();
    }
    if token.len() <= MAX_TOKEN { token } else { format!("=hash{:016x}", fnv(text.as_bytes())) }
}

/// Returns the tokens of a routing key: its parts between dots.
pub(crate) fn key_tokens(key: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b".*>=".contains(&byte);
    let token = |part: &str| if part.is_empty() { "=".to_owned() } else { encoded(part, is_plain) };
    key.split('.').map(token).collect::<Vec<_>>().join(".")
}

/// Returns the routing key with these tokens. A token that no sender of hostler makes stays as it is.
pub(crate) fn decoded_key(tokens: &str) -> String {
    let part =
        |token: &str| if token == "=" { String::new() } else { decoded(token).unwrap_or_else(|| token.to_owned()) };
    tokens.split('.').map(part).collect::<Vec<_>>().join(".")
}

/// Writes each byte that is not plain as `=` with two hexadecimal digits.
pub(crate) fn encoded(text: &str, is_plain: impl Fn(u8) -> bool) -> String {
    let mut token = String::with_capacity(text.len());
    for byte in text.bytes() {
        if is_plain(byte) {
            token.push(char::from(byte));
        } else {
            token.push_str(&format!("={byte:02X}"));
        }
    }
    token
}

/// Reads the form that [`encoded`] writes. `None`: it does not write this.
pub(crate) fn decoded(token: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::new(), token.as_bytes());
    while let Some((first, others)) = rest.split_first() {
        if *first != b'=' {
            bytes.push(*first);
            rest = others;
            continue;
        }
        let (digits, others) = others.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = others;
    }
    String::from_utf8(bytes).ok()
}

/// FNV-1a, 64 bits. The hashers of the standard library differ between releases, and hosts of several releases may share a
/// queue.
pub(crate) fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_exchanges_and_notes_are_told_apart() {
        let names = Names::new("prod-");
        assert_eq!(names.queue_of(&names.queue("orders")), "orders".parse().ok());
        assert_eq!(names.exchange_of(&names.exchange("shop")).as_deref(), Some("shop"));
        for other in [names.exchange("shop"), names.notes(), names.schedules(), "orders".to_owned(), "KV_x".to_owned()]
        {
            assert_eq!(names.queue_of(&other), None, "{other}");
        }
        assert_eq!(names.exchange_of(&names.queue("shop")), None);
    }

    #[test]
    fn every_group_has_a_token_of_its_own() {
        let names = Names::new("");
        let subject = |group: &str| names.subject("jobs", Some(group));
        assert_eq!(subject("tenant-1"), "jobs~group.tenant-1");
        assert_eq!(subject("tenant/1 *"), "jobs~group.tenant=2F1=20=2A");
        assert_eq!([subject(""), subject("é")], ["jobs~group.=", "jobs~group.=C3=A9"]);
        assert_eq!((subject(DEFAULT_GROUP), names.subject("jobs", None)), ("jobs".to_owned(), "jobs".to_owned()));
        for group in ["tenant-1", "tenant/1 *", "", "é"] {
            assert_eq!(names.group_of(&subject(group)).as_deref(), Some(group));
        }
        assert_eq!((names.group_of("jobs"), names.group_of(&subject(&"x".repeat(201)))), (None, None));
        let long = [subject(&"x".repeat(200)), subject(&"x".repeat(201))];
        assert!(long[0] != long[1] && long[0].len() < 200, "{long:?}");
    }

    #[test]
    fn every_schedule_has_a_subject_of_its_own() {
        let names = Names::new("p-");
        let subjects = ["nightly", "a.b", "a b", "*", ">", "", "é"].map(|name| names.schedule(name));
        let tokens = ["nightly", "a=2Eb", "a=20b", "=2A", "=3E", "=", "=C3=A9"];
        assert_eq!(subjects, tokens.map(|token| format!("p-hostler~schedules.{token}")));
        let long = ["x".repeat(5_000), "x".repeat(5_001)].map(|name| names.schedule(&name));
        assert!(long[0] != long[1] && long[0].len() < 200, "{long:?}");
    }

    #[test]
    fn a_routing_key_survives_its_subject() {
        let names = Names::new("p-");
        for key in ["EU.order", "clé", "", ".", "a..b.", "*", "a.>", "=none", "a b\n", "=", "100%"] {
            let subject = names.published("shop", Some(key));
            assert_eq!(names.key_of("shop", &subject).as_deref(), Some(key), "{subject}");
            assert!(
                subject.split('.').all(|token| !token.is_empty() && !token.contains([' ', '*', '>', '\n'])),
                "{subject}"
            );
        }
        assert_eq!(names.published("shop", Some("EU.order")), "p-shop.EU.order");
        assert_eq!(names.key_of("shop", &names.published("shop", None)), None);
        assert_eq!(names.key_of("shop", "p-shop.50=off").as_deref(), Some("50=off"));
        assert_eq!(names.published_below("shop", "EU.west."), "p-shop.EU.west.>");
    }
}
