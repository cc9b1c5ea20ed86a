//! Messages in NATS's form, and copies of them. No I/O.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_nats::{HeaderMap, Message as NatsMessage, Subject};
use bytes::Bytes;
use hostler_queue::{
    ATTEMPTS_ATTRIBUTE, DEFAULT_GROUP, MAX_REASON, REASON_ATTRIBUTE, SOURCE_ATTRIBUTE, dead_letter_attributes,
};
use hostler_types::message::{Attributes, Invalid, MAX_ATTRIBUTES, MAX_DELAY, Message, Outgoing, TraceContext};

use super::headers::{self, GROUP, ID, KEY, NATS_ID, NATS_STREAM, NOT_BEFORE, SENT_AT};
use super::names::{Names, decoded_key, key_tokens};
use super::stamp::Stamp;

/// Bytes of the server's limit that are left for hostler's own headers.
pub const OWN_HEADERS: usize = 4096;

/// Longest routing key in bytes.
pub(crate) const MAX_KEY: usize = 255;

/// Bytes that a message takes in memory beside its body and its attributes, roughly.
const MESSAGE: usize = 1024;

/// Bytes that an attribute takes in memory beside its name and its value, roughly.
const ATTRIBUTE: usize = 64;

/// Time that the clocks of a sender and a receiver may differ by.
const SKEW: Duration = Duration::from_secs(3600);

/// A message to publish.
#[derive(Debug, Clone)]
pub(crate) struct Parcel {
    pub(crate) subject: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Parcel {
    /// Returns the number of bytes that count against the server's limit.
    fn size(&self) -> usize {
        headers::size(&self.headers) + self.body.len()
    }
}

/// Place that a message is published to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place<'a> {
    Queue(&'a str),
    Exchange(&'a str),
}

impl Place<'_> {
    /// Returns the name of the stream.
    pub(crate) fn stream(self, names: &Names) -> String {
        match self {
            Self::Queue(queue) => names.queue(queue),
            Self::Exchange(exchange) => names.exchange(exchange),
        }
    }

    fn subject(self, names: &Names, key: Option<&str>, group: Option<&str>) -> String {
        match self {
            Self::Queue(queue) => names.subject(queue, group),
            Self::Exchange(exchange) => names.published(exchange, key),
        }
    }
}

/// A delivered or stored message, with all that a copy needs.
#[derive(Debug, Clone)]
pub(crate) struct Mail {
    pub(crate) message: Arc<Message>,
    pub(crate) stamp: Stamp,
    /// Subject under which the message is stored.
    pub(crate) subject: Subject,
    /// Time before which the message is not handed out.
    pub(crate) not_before: Option<SystemTime>,
    /// Set if the message came with an id.
    pub(crate) has_id: bool,
}

impl Mail {
    /// Reads a message. `exchange`: the exchange whose stream the message is from. `ordered`: messages without a group belong to
    /// a common group.
    pub(crate) fn read(
        names: &Names,
        message: NatsMessage,
        subject: Subject,
        stamp: Stamp,
        exchange: Option<&str>,
        ordered: bool,
        now: SystemTime,
    ) -> Self {
        let headers = message.headers.unwrap_or_default();
        let word = |name: &str| headers.get(name).map(|value| value.as_str());
        let number = |name: &str| word(name).and_then(|text| text.parse::<u64>().ok());
        let stored_at = UNIX_EPOCH + Duration::from_nanos(stamp.stored_at);
        let attributes = headers::attributes(&headers);
        let id = word(ID).or_else(|| word(NATS_ID)).map(str::to_owned);
        let own_key = || exchange.and_then(|exchange| names.key_of(exchange, &subject));
        // Another client may only have chosen the subject.
        let own_group = || exchange.is_none().then(|| names.group_of(&subject)).flatten();
        let group = word(GROUP).map(decoded_key).or_else(own_group).or(ordered.then(|| DEFAULT_GROUP.to_owned()));
        let has_id = id.is_some();
        let due = number(NOT_BEFORE).map(|millis| UNIX_EPOCH + Duration::from_millis(millis));
        Self {
            not_before: due.filter(|at| *at <= now + MAX_DELAY + SKEW),
            message: Arc::new(Message {
                id: id.unwrap_or_else(|| format!("nats-{:x}-{}", stamp.stored_at, stamp.sequence)),
                trace: TraceContext::of(&attributes).map(Arc::new),
                attributes,
                enqueued_at: number(SENT_AT).map_or(stored_at, |nanos| UNIX_EPOCH + Duration::from_nanos(nanos)),
                group,
                routing_key: word(KEY).map(decoded_key).or_else(own_key),
                claim: None,
                body: message.payload,
            }),
            stamp,
            subject,
            has_id,
        }
    }

    /// Returns the number of bytes that the message takes in memory, roughly.
    pub(crate) fn size(&self) -> usize {
        let attributes: usize =
            self.message.attributes.iter().map(|(name, value)| name.len() + value.len() + ATTRIBUTE).sum();
        self.message.body.len() + attributes + MESSAGE
    }

    /// Returns the copy for a queue that an exchange feeds. A copy of more than `most` bytes has fewer headers.
    pub(crate) fn forwarded(&self, names: &Names, exchange: &str, queue: &str, most: usize) -> Parcel {
        let mut copy = self.copy(names, queue, &self.message.attributes);
        if let Some(at) = self.not_before {
            copy.headers.insert(NOT_BEFORE, millis(at).as_str());
        }
        self.once(&mut copy, &names.exchange(exchange), queue, names);
        if copy.size() <= most { copy } else { self.bare(names, queue) }
    }

    /// Returns the copy for the dead-letter queue. `stream`: the stream that the message is from. A copy of more than `most` bytes
    /// has a shorter reason, or no story, or fewer headers.
    pub(crate) fn dead_letter(
        &self,
        names: &Names,
        (stream, queue): (&str, &str),
        (reason, source, attempts): (&str, &str, u32),
        most: usize,
    ) -> Parcel {
        let attributes = &self.message.attributes;
        // Messages of others may have more attributes than hostler sends.
        let room = if attributes.len() > MAX_ATTRIBUTES { usize::MAX } else { MAX_ATTRIBUTES };
        let letter = |reason: &str| {
            let told = dead_letter_attributes(attributes, reason, source, Some(attempts), room);
            let mut copy = self.copy(names, queue, &told);
            self.once(&mut copy, stream, queue, names);
            copy
        };
        let full = letter(reason);
        let excess = full.size().saturating_sub(most);
        if excess == 0 {
            return full;
        }
        let reason = &reason[..reason.floor_char_boundary(MAX_REASON)];
        let shortened = letter(&reason[..reason.floor_char_boundary(reason.len().saturating_sub(excess))]);
        if shortened.size() <= most {
            return shortened;
        }
        let mut untold = attributes.clone();
        for name in [REASON_ATTRIBUTE, SOURCE_ATTRIBUTE, ATTEMPTS_ATTRIBUTE] {
            untold.remove(name);
        }
        let mut copy = self.copy(names, queue, &untold);
        self.once(&mut copy, stream, queue, names);
        if copy.size() <= most { copy } else { self.bare(names, queue) }
    }

    /// Returns the copy of a message for which the headers of copies are too much: it has only those that the original had, so it
    /// has no more bytes. The server does not know a second copy of it, its time is that of the copy, and its key is lost.
    fn bare(&self, names: &Names, queue: &str) -> Parcel {
        let message = &self.message;
        let mut headers = headers::of(&message.attributes);
        if self.has_id {
            headers.insert(ID, one_line(&message.id).as_str());
        }
        Parcel { subject: names.subject(queue, message.group.as_deref()), headers, body: message.body.clone() }
    }

    /// Returns a copy for a queue, with the id and the time of the original.
    fn copy(&self, names: &Names, queue: &str, attributes: &Attributes) -> Parcel {
        let message = &self.message;
        let mut headers = named(attributes, &message.id, message.group.as_deref(), message.routing_key.as_deref());
        let sent_at = message.enqueued_at.duration_since(UNIX_EPOCH).unwrap_or_default();
        headers.insert(SENT_AT, sent_at.as_nanos().to_string().as_str());
        Parcel { subject: names.subject(queue, message.group.as_deref()), headers, body: message.body.clone() }
    }

    /// Lets the server store a copy of this message only once, however often it is published.
    fn once(&self, copy: &mut Parcel, stream: &str, queue: &str, names: &Names) {
        let Stamp { sequence, stored_at, .. } = self.stamp;
        copy.headers.insert(NATS_ID, format!("copy:{stream}:{stored_at}:{sequence}").as_str());
        copy.headers.insert(NATS_STREAM, names.queue(queue).as_str());
    }
}

/// Returns a message as it is sent now. `id`: the message's id.
pub(crate) fn outgoing(names: &Names, place: Place<'_>, message: &Outgoing, id: &str, now: SystemTime) -> Parcel {
    let (key, group) = (message.routing_key.as_deref(), message.group.as_deref());
    let mut headers = named(&message.attributes, id, group, key);
    match &message.dedupe {
        // Percent signs and the like are no trouble, but line ends are.
        Some(dedupe) => headers.insert(NATS_ID, format!("key:{}", key_tokens(dedupe)).as_str()),
        None => {
            headers = renamed(headers, id);
        }
    }
    headers.insert(NATS_STREAM, place.stream(names).as_str());
    if !message.delay.is_zero() {
        headers.insert(NOT_BEFORE, millis(now + message.delay).as_str());
    }
    Parcel { subject: place.subject(names, key, group), headers, body: message.body.clone().into() }
}

/// Checks a message. `most`: the server's limit in bytes.
pub(crate) fn check(names: &Names, place: Place<'_>, message: &Outgoing, most: usize) -> Result<(), Invalid> {
    message.validate(most.saturating_sub(OWN_HEADERS))?;
    if let Some(key) = message.routing_key.as_ref().filter(|key| key.len() > MAX_KEY) {
        return Err(Invalid::Unsupported(format!(
            "the routing key has {} bytes; at most {MAX_KEY} are allowed",
            key.len()
        )));
    }
    // Headers take more room than attributes, for example for bytes in Base64.
    let size = outgoing(names, place, message, "", SystemTime::UNIX_EPOCH).size() + 128;
    if size > most {
        return Err(Invalid::TooLarge { size, max: most });
    }
    Ok(())
}

/// Returns the headers of attributes with those that each message has.
fn named(attributes: &Attributes, id: &str, group: Option<&str>, key: Option<&str>) -> HeaderMap {
    let mut headers = headers::of(attributes);
    headers.insert(ID, one_line(id).as_str());
    if let Some(group) = group {
        headers.insert(GROUP, key_tokens(group).as_str());
    }
    if let Some(key) = key {
        headers.insert(KEY, key_tokens(key).as_str());
    }
    headers
}

/// Returns the headers with the id in the server's own header alone.
fn renamed(headers: HeaderMap, id: &str) -> HeaderMap {
    let others = headers.iter().filter(|(name, _)| AsRef::<str>::as_ref(*name) != ID);
    let mut renamed: HeaderMap =
        others.filter_map(|(name, values)| Some((name.clone(), values.first()?.clone()))).collect();
    renamed.insert(NATS_ID, one_line(id).as_str());
    renamed
}

fn one_line(id: &str) -> String {
    id.chars().filter(|char| !char.is_control()).collect()
}

/// Returns a time in milliseconds since 1970. Part of a millisecond counts as a whole one, so that no message comes early.
fn millis(at: SystemTime) -> String {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().div_ceil(1_000_000).to_string()
}

#[cfg(test)]
mod tests {
    use hostler_types::message::AttributeValue;

    use super::*;

    const NOW: u64 = 1_700_000_000_000_000_000;

    fn delivered(parcel: &Parcel, exchange: Option<&str>, ordered: bool) -> Mail {
        let message = NatsMessage {
            subject: "x".into(),
            reply: None,
            payload: parcel.body.clone(),
            headers: Some(parcel.headers.clone()),
            status: None,
            description: None,
            length: 0,
        };
        let stamp = Stamp { sequence: 7, deliveries: 1, stored_at: NOW };
        let now = UNIX_EPOCH + Duration::from_nanos(NOW);
        Mail::read(&Names::new(""), message, parcel.subject.as_str().into(), stamp, exchange, ordered, now)
    }

    fn full() -> Outgoing {
        Outgoing {
            body: vec![0, 1, 255],
            attributes: [("a".to_owned(), AttributeValue::Text("line\nline".to_owned()))].into(),
            routing_key: Some("EU.clé".to_owned()),
            group: Some("tenant/1.x".to_owned()),
            ..Outgoing::default()
        }
    }

    fn sent(place: Place<'_>, message: &Outgoing) -> Parcel {
        outgoing(&Names::new(""), place, message, "id-1", UNIX_EPOCH + Duration::from_nanos(NOW))
    }

    #[test]
    fn a_message_arrives_as_it_was_sent_by_either_way() {
        for (place, exchange) in [(Place::Queue("jobs"), None), (Place::Exchange("shop"), Some("shop"))] {
            let message = full();
            let mail = delivered(&sent(place, &message), exchange, false);
            assert_eq!((&mail.message.body[..], &mail.message.attributes), (&message.body[..], &message.attributes));
            assert_eq!((&mail.message.group, &mail.message.routing_key), (&message.group, &message.routing_key));
            assert_eq!((&*mail.message.id, mail.not_before), ("id-1", None));
            let bare = delivered(&sent(place, &Outgoing::default()), exchange, false);
            assert_eq!((&bare.message.group, &bare.message.routing_key), (&None, &None));
            assert!(bare.message.attributes.is_empty());
        }
        let keyed = sent(Place::Queue("jobs"), &Outgoing { dedupe: Some("k\n1".to_owned()), ..full() });
        assert_eq!(delivered(&keyed, None, false).message.id, "id-1");
        assert_eq!(keyed.headers.get(NATS_ID).map(|id| id.as_str()), Some("key:k=0A1"));
    }

    #[test]
    fn copies_keep_the_message_and_are_stored_once() {
        let names = Names::new("");
        let delayed = Outgoing { delay: Duration::from_secs(5), ..full() };
        let mail = delivered(&sent(Place::Exchange("shop"), &delayed), Some("shop"), false);
        let copy = mail.forwarded(&names, "shop", "jobs", 1 << 20);
        assert_eq!(copy.subject, "jobs~group.tenant=2F1=2Ex");
        let again = delivered(&copy, None, false);
        assert_eq!((&again.message, again.not_before), (&mail.message, mail.not_before));
        let letter = again.dead_letter(&names, ("jobs", "jobs-dlq"), ("why", "shop.jobs", 3), 1 << 20);
        let dead = delivered(&letter, None, false);
        assert_eq!((&dead.message.id, dead.message.enqueued_at), (&mail.message.id, mail.message.enqueued_at));
        assert_eq!(dead.message.attributes[REASON_ATTRIBUTE].as_text(), Some("why"));
        assert_eq!(dead.not_before, None, "a dead letter waits for nothing");
        assert_eq!(letter.headers.get(NATS_ID).map(|id| id.as_str()), Some("copy:jobs:1700000000000000000:7"));
    }

    #[test]
    fn a_story_that_does_not_fit_is_cut() {
        let mail = delivered(&sent(Place::Queue("jobs"), &full()), None, false);
        let letter =
            |most| mail.dead_letter(&Names::new(""), ("jobs", "jobs-dlq"), (&"x".repeat(9000), "jobs", 3), most);
        let (whole, cut) = (letter(1 << 20).size(), letter(2000));
        assert!(whole > 9000 && cut.size() <= 2000 && cut.size() > 1900, "{whole} {}", cut.size());
        assert!(letter(100).headers.get(REASON_ATTRIBUTE).is_none());
    }

    /// A message of another client may be as large as the server lets it be.
    #[test]
    fn a_copy_is_never_larger_than_its_original_must_be() {
        let names = Names::new("");
        let mut headers = HeaderMap::new();
        headers.insert("tenant", "7");
        let parcel = Parcel { subject: "shop.EU".to_owned(), headers, body: vec![0; 10_000].into() };
        let mail = delivered(&parcel, Some("shop"), false);
        let copies = [
            mail.forwarded(&names, "shop", "jobs", parcel.size()),
            mail.dead_letter(&names, ("jobs", "jobs-dlq"), ("why", "jobs", 3), parcel.size()),
        ];
        for copy in copies {
            assert!(copy.size() <= parcel.size(), "{copy:?}");
            assert_eq!(delivered(&copy, None, false).message.attributes, mail.message.attributes);
        }
        let mut named = parcel.clone();
        named.headers.insert(NATS_ID, "order-1");
        let copy = delivered(&named, Some("shop"), false).forwarded(&names, "shop", "jobs", named.size());
        assert_eq!(delivered(&copy, None, false).message.id, "order-1");
    }

    #[test]
    fn a_group_that_another_client_names_in_the_subject_is_kept() {
        let names = Names::new("");
        let subject = names.subject("jobs", Some("tenant/1"));
        let parcel = Parcel { subject, headers: HeaderMap::new(), body: "x".into() };
        assert_eq!(delivered(&parcel, None, true).message.group.as_deref(), Some("tenant/1"));
    }

    #[test]
    fn messages_that_the_server_would_refuse_are_refused_first() {
        let names = Names::new("");
        let check = |message: &Outgoing| check(&names, Place::Queue("jobs"), message, 100_000);
        let of = |size: usize| Outgoing { body: vec![0; size], ..Outgoing::default() };
        assert_eq!(check(&of(100_000 - OWN_HEADERS)), Ok(()));
        assert!(matches!(check(&of(100_001 - OWN_HEADERS)), Err(Invalid::TooLarge { .. })));
        let bytes = AttributeValue::Binary(vec![0; 80_000]);
        let wide = Outgoing { attributes: [("a".to_owned(), bytes)].into(), ..Outgoing::default() };
        assert!(matches!(check(&wide), Err(Invalid::TooLarge { .. })), "Base64 takes a third more");
        let key = Outgoing { routing_key: Some("k".repeat(MAX_KEY + 1)), ..Outgoing::default() };
        assert!(check(&key).is_err());
    }
}
