//! Messages in AMQP's form, and copies of them: to the delay ladder, back to a queue, and to a dead-letter queue. No I/O.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use hostler_queue::{
    ATTEMPTS_ATTRIBUTE, DEFAULT_GROUP, MAX_REASON, REASON_ATTRIBUTE, SOURCE_ATTRIBUTE, dead_letter_attributes,
};
use hostler_types::message::{AttributeValue, MAX_ATTRIBUTES, Message, Outgoing, Plain, TraceContext};
use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, FieldTable, ShortString};

use super::{frame, headers, ladder};

/// Header with the FIFO group.
const GROUP: &str = "hostler-group";
/// Header with the routing key, if AMQP's routing key is the name of a queue.
const KEY: &str = "hostler-routing-key";
/// Header with the time of sending, in milliseconds since 1970. AMQP's own timestamp has seconds.
const SENT_AT: &str = "hostler-sent-at";
/// Header with the number of attempts that ended before this copy was made.
const CARRIED: &str = "hostler-carried-attempts";
/// Header with the time before which the message is not delivered, in milliseconds since 1970.
const NOT_BEFORE: &str = "hostler-not-before";

/// Header by which a producer names further routing keys. The server removes its counterpart `BCC`.
const OTHER_KEYS: &str = "CC";

/// Header in which a quorum queue counts the deliveries that came to nothing.
const DELIVERY_COUNT: &str = "x-delivery-count";

/// Header in which servers from 4.3 on count all deliveries that came to nothing. They count a return only here.
const ACQUIRED_COUNT: &str = "x-acquired-count";

/// Headers that a dead letter does not take over: the story of an earlier one, and the attempts of the message.
const UNTOLD: [&str; 4] = [REASON_ATTRIBUTE, SOURCE_ATTRIBUTE, ATTEMPTS_ATTRIBUTE, CARRIED];

/// Number of persistent messages in AMQP (delivery mode).
const PERSISTENT: u8 = 2;

/// Longest routing key, and longest name of a header (AMQP: short string).
pub(super) const MAX_KEY: usize = 255;

/// Time that the clocks of a sender and a receiver may differ by.
const SKEW: Duration = Duration::from_secs(3600);

/// Start of the year 2000. Nothing was sent by AMQP before it.
const YEAR_2000: Duration = Duration::from_secs(946_684_800);

/// Start of the year 10,000, from which on times have no text in common formats.
const YEAR_10_000: Duration = Duration::from_secs(253_402_300_800);

/// A message to publish.
#[derive(Debug, Clone)]
pub(super) struct Parcel {
    /// Exchange. Empty: the exchange that delivers to the queue with the name `key`.
    pub(super) exchange: String,
    /// Routing key.
    pub(super) key: String,
    pub(super) properties: BasicProperties,
    pub(super) body: Bytes,
}

/// A delivered message, with all that a copy needs.
#[derive(Debug)]
pub(super) struct Mail {
    /// AMQP's number of the delivery within its channel.
    pub(super) tag: u64,
    pub(super) message: Arc<Message>,
    /// Set if the message has the time at which it was sent. Otherwise, that is the time at which it was received.
    pub(super) is_dated: bool,
    /// Exchange that the message came through. Empty: it was sent to the queue.
    pub(super) exchange: String,
    /// Number of attempts that ended before this copy of the message was made.
    pub(super) carried: u32,
    /// Set if this is a copy that went back to the queue, directly or down the delay ladder.
    pub(super) is_copy: bool,
    /// Number of deliveries of this copy that came to nothing, as the server counts them.
    pub(super) deliveries: u32,
    /// Set if the server delivers the message again.
    pub(super) redelivered: bool,
    /// Time before which the message is not handed out.
    pub(super) not_before: Option<SystemTime>,
    properties: BasicProperties,
}

/// Returns the properties of a message that is sent now. `id`: the message's id. `key`: set if AMQP's routing key is not the
/// message's. `not_before`: set if the message waits in its queues.
pub(super) fn outgoing(
    message: &Outgoing,
    id: &str,
    key: Option<&str>,
    not_before: Option<SystemTime>,
    now: SystemTime,
) -> BasicProperties {
    let (properties, mut headers) = headers::properties(&message.attributes);
    let mut set = |name: &str, value: AMQPValue| {
        headers.insert(name.into(), value);
    };
    set(SENT_AT, millis(now));
    if let Some(group) = &message.group {
        set(GROUP, text(group));
    }
    if let Some(key) = key {
        set(KEY, text(key));
    }
    if let Some(at) = not_before {
        set(NOT_BEFORE, millis(at));
    }
    let seconds = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let properties = properties.with_message_id(short(id)).with_timestamp(seconds);
    properties.with_delivery_mode(PERSISTENT).with_headers(headers)
}

impl Mail {
    /// Reads a delivery. `came_by_ladder` tells the exchanges of the delay ladder from others. `ordered`: messages without a
    /// group belong to a common group.
    pub(super) fn read(
        delivery: Delivery,
        came_by_ladder: impl Fn(&str) -> bool,
        ordered: bool,
        now: SystemTime,
    ) -> Self {
        let Delivery { delivery_tag, exchange, routing_key, redelivered, properties, data, .. } = delivery;
        let header = |name: &str| properties.headers().as_ref().and_then(|table| table.inner().get(name));
        let word = |name: &str| header(name).and_then(as_text);
        let number = |name: &str| header(name).and_then(as_integer).and_then(|number| u64::try_from(number).ok());
        let time = |millis: u64| UNIX_EPOCH + Duration::from_millis(millis);
        let is_plausible = |at: &SystemTime| *at < UNIX_EPOCH + YEAR_10_000;
        let sent_by_key = !exchange.as_str().is_empty() && !came_by_ladder(exchange.as_str());
        let own_key = Some(routing_key.as_str()).filter(|key| sent_by_key && !key.is_empty()).map(str::to_owned);
        let attributes = headers::attributes(&properties, is_ours);
        // Some clients stamp with milliseconds, with the time since they started, or with whatever they like.
        let stamp = properties.timestamp().map(Duration::from_secs).filter(|stamp| *stamp >= YEAR_2000);
        let stamped = stamp.and_then(|stamp| UNIX_EPOCH.checked_add(stamp));
        let sent_at = number(SENT_AT).map(time).or(stamped).filter(is_plausible);
        let message = Message {
            id: properties
                .message_id()
                .as_ref()
                .filter(|id| !id.as_str().is_empty())
                .map_or_else(|| derived_id(&properties, &data), |id| id.as_str().to_owned()),
            trace: TraceContext::of(&attributes).map(Arc::new),
            attributes,
            enqueued_at: sent_at.unwrap_or(now),
            group: word(GROUP).or(ordered.then(|| DEFAULT_GROUP.to_owned())),
            routing_key: word(KEY).or(own_key),
            claim: None,
            body: data.into(),
        };
        let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let came_again = redelivered || number(ACQUIRED_COUNT).is_some_and(|count| count > 0);
        Self {
            tag: delivery_tag,
            message: Arc::new(message),
            is_dated: sent_at.is_some(),
            exchange: if sent_by_key { exchange.as_str().to_owned() } else { String::new() },
            carried: number(CARRIED).map_or(0, small),
            is_copy: header(CARRIED).is_some(),
            // On a first delivery, the header is the producer's.
            deliveries: number(DELIVERY_COUNT).filter(|_| came_again).map_or(u32::from(redelivered), small),
            redelivered: came_again,
            // A later time is no delay of hostler's, and would hold a group forever.
            not_before: number(NOT_BEFORE).map(time).filter(|at| *at <= now + ladder::MAX_DELAY + SKEW),
            properties,
        }
    }

    /// Returns `true` if the message was delivered before, or is a copy of one that was.
    pub(super) fn came_before(&self) -> bool {
        self.redelivered || self.is_copy
    }

    /// Returns `true` if the producer named further routing keys, any of which may have led here.
    pub(super) fn has_other_keys(&self) -> bool {
        self.properties.headers().as_ref().is_some_and(|headers| headers.contains_key(OTHER_KEYS))
    }

    /// Returns a hash of the message's content: the same for all deliveries of the message and of its copies.
    pub(super) fn content_hash(&self, hashes: &RandomState) -> u64 {
        let Message { id, body, attributes, group, routing_key, .. } = &*self.message;
        let attributes: Vec<_> = attributes.iter().map(|(name, value)| (name, plain_bytes(value))).collect();
        hashes.hash_one((id, body, attributes, group, routing_key, self.properties.timestamp()))
    }

    /// Returns a copy for a queue, directly or down the delay ladder. `carried`: number of attempts up to now.
    pub(super) fn again(&self, exchange: String, key: String, carried: u32) -> Parcel {
        let mut headers = self.headers();
        headers.insert(CARRIED.into(), AMQPValue::LongLongInt(carried.into()));
        self.copy(exchange, key, headers)
    }

    /// Returns the copy for the dead-letter queue `queue`. A copy whose headers would have more than `most` bytes has a shorter
    /// reason, or no story, or in the end only what the original had. That may still be more than `most`.
    pub(super) fn dead_letter_within(
        &self,
        most: usize,
        queue: &str,
        reason: &str,
        source: &str,
        attempts: u32,
    ) -> Parcel {
        let letter = |reason: &str| self.dead_letter(queue.to_owned(), reason, source, attempts);
        let full = letter(reason);
        let excess = frame::size(&full.properties).saturating_sub(most);
        if excess == 0 {
            return full;
        }
        let reason = &reason[..reason.floor_char_boundary(MAX_REASON)];
        let shortened = letter(&reason[..reason.floor_char_boundary(reason.len().saturating_sub(excess))]);
        let untold = self.copy(String::new(), queue.to_owned(), self.headers_without(&UNTOLD));
        let bare = || {
            let headers = self.headers_without(&[&UNTOLD[..], &[KEY, SENT_AT]].concat());
            // An id that comes out of the content comes out of the copy's again. A quorum queue stores all messages durably.
            let (id, mode) = (self.properties.message_id().clone(), *self.properties.delivery_mode());
            Parcel { exchange: String::new(), key: queue.to_owned(), ..self.copy_of(id, mode, headers) }
        };
        let fits = |parcel: &Parcel| frame::size(&parcel.properties) <= most;
        [shortened, untold].into_iter().find(fits).unwrap_or_else(bare)
    }

    /// Returns the copy for the dead-letter queue `queue`. The attempts of the copy are counted anew.
    fn dead_letter(&self, queue: String, reason: &str, source: &str, attempts: u32) -> Parcel {
        let attributes = &self.message.attributes;
        // Messages of others may have more attributes than hostler sends.
        let most = if attributes.len() > MAX_ATTRIBUTES { usize::MAX } else { MAX_ATTRIBUTES };
        let told = dead_letter_attributes(attributes, reason, source, Some(attempts), most);
        let mut headers = self.headers_without(&UNTOLD);
        for name in [REASON_ATTRIBUTE, SOURCE_ATTRIBUTE, ATTEMPTS_ATTRIBUTE] {
            if let Some(value) = told.get(name).and_then(AttributeValue::as_text) {
                headers.insert(name.into(), text(value));
            }
        }
        self.copy(String::new(), queue, headers)
    }

    fn headers_without(&self, names: &[&str]) -> FieldTable {
        let mut headers = FieldTable::default();
        for (name, value) in self.headers().inner().iter().filter(|(name, _)| !names.contains(&name.as_str())) {
            headers.insert(name.clone(), value.clone());
        }
        headers
    }

    /// Returns the headers that a copy keeps, with those that AMQP's own fields contained.
    fn headers(&self) -> FieldTable {
        let mut headers = FieldTable::default();
        for (name, value) in self.properties.headers().iter().flat_map(|table| table.inner()) {
            // RabbitMQ drops a message whose deaths show that it was in the same queue before.
            if !is_of_the_server(name.as_str()) && name.as_str() != NOT_BEFORE {
                headers.insert(name.clone(), value.clone());
            }
        }
        let message = &self.message;
        if let Some(key) = &message.routing_key {
            headers.insert(KEY.into(), text(key));
        }
        headers.insert(SENT_AT.into(), millis(message.enqueued_at));
        headers
    }

    /// Returns a copy with the properties of the original, except those that the server would act on.
    fn copy(&self, exchange: String, key: String, headers: FieldTable) -> Parcel {
        let id = Some(short(&self.message.id));
        Parcel { exchange, key, ..self.copy_of(id, Some(PERSISTENT), headers) }
    }

    /// Same as [`Self::copy`], with this id and this delivery mode, and without an address.
    fn copy_of(&self, id: Option<ShortString>, mode: Option<u8>, headers: FieldTable) -> Parcel {
        let old = &self.properties;
        let mut new = BasicProperties::default().with_headers(headers);
        if let Some(id) = id {
            new = new.with_message_id(id);
        }
        if let Some(mode) = mode {
            new = new.with_delivery_mode(mode);
        }
        let texts: [(_, headers::Set); 7] = [
            (old.content_type(), BasicProperties::with_content_type),
            (old.content_encoding(), BasicProperties::with_content_encoding),
            (old.correlation_id(), BasicProperties::with_correlation_id),
            (old.reply_to(), BasicProperties::with_reply_to),
            (old.kind(), BasicProperties::with_type),
            (old.app_id(), BasicProperties::with_app_id),
            (old.cluster_id(), BasicProperties::with_cluster_id),
        ];
        for (value, set) in texts {
            if let Some(value) = value {
                new = set(new, value.clone());
            }
        }
        if let Some(priority) = *old.priority() {
            new = new.with_priority(priority);
        }
        if let Some(timestamp) = *old.timestamp() {
            new = new.with_timestamp(timestamp);
        }
        Parcel { exchange: String::new(), key: String::new(), properties: new, body: self.message.body.clone() }
    }
}

/// Returns `true` if the header belongs to the driver or the server, and is not an attribute.
fn is_ours(name: &str) -> bool {
    [GROUP, KEY, SENT_AT, CARRIED, NOT_BEFORE].contains(&name) || is_of_the_server(name)
}

/// Returns `true` if the server sets the header: counts, and the history of dead-lettering.
fn is_of_the_server(name: &str) -> bool {
    let is_death =
        |rest: &str| rest.starts_with("death") || rest.starts_with("first-death") || rest.starts_with("last-death");
    [DELIVERY_COUNT, ACQUIRED_COUNT].contains(&name) || name.strip_prefix("x-").is_some_and(is_death)
}

fn plain_bytes(value: &AttributeValue) -> &[u8] {
    match value.plain() {
        Plain::Text(text) => text.as_bytes(),
        Plain::Binary(bytes) => bytes,
    }
}

/// Returns an id for a message without one: the same for all deliveries of the message.
fn derived_id(properties: &BasicProperties, body: &[u8]) -> String {
    // FNV-1a, 64 bits. The hashers of the standard library differ between releases.
    let hash = |seed: u64, bytes: &[u8]| {
        bytes.iter().fold(seed, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
    };
    let stamp = properties.timestamp().unwrap_or_default().to_be_bytes();
    let correlation = properties.correlation_id().as_ref().map_or("", |id| id.as_str());
    let hash = [&stamp[..], correlation.as_bytes(), body].into_iter().fold(0xcbf2_9ce4_8422_2325, hash);
    format!("amqp-{hash:016x}")
}

/// Returns AMQP's form of a short text. A longer text is cut; only ids of others can be longer.
fn short(text: &str) -> ShortString {
    ShortString::from(&text[..text.floor_char_boundary(MAX_KEY)])
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

fn millis(at: SystemTime) -> AMQPValue {
    let millis = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    AMQPValue::LongLongInt(i64::try_from(millis).unwrap_or(i64::MAX))
}

fn as_text(value: &AMQPValue) -> Option<String> {
    match value {
        AMQPValue::LongString(bytes) => std::str::from_utf8(bytes.as_bytes()).ok().map(str::to_owned),
        AMQPValue::ShortString(text) => Some(text.as_str().to_owned()),
        _ => None,
    }
}

fn as_integer(value: &AMQPValue) -> Option<i64> {
    match *value {
        AMQPValue::ShortShortInt(value) => Some(value.into()),
        AMQPValue::ShortShortUInt(value) => Some(value.into()),
        AMQPValue::ShortInt(value) => Some(value.into()),
        AMQPValue::ShortUInt(value) => Some(value.into()),
        AMQPValue::LongInt(value) => Some(value.into()),
        AMQPValue::LongUInt(value) => Some(value.into()),
        AMQPValue::LongLongInt(value) => Some(value),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
