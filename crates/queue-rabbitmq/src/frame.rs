//! Size of the frame with a message's properties, and the sizes that fit. No I/O.
//!
//! AMQP sends all properties and headers of a message in one frame. A server closes the connection of a client that sends a
//! larger frame than both agreed on, with everything else that is on its way.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};

/// Maximum size of a frame in bytes if there is no connection yet (default of RabbitMQ's `frame_max`).
pub(super) const DEFAULT_MAX: u32 = 131_072;

/// Bytes that the server adds to a message in its queue: the counts of its deliveries.
const COUNTS: usize = 256;

/// Bytes of a frame around its contents: type, channel, size and end.
const AROUND: usize = 8;

/// Bytes by which a frame may exceed the limit: the server counts its contents only.
const TOLERATED: usize = AROUND;

/// Bytes before the properties: class, weight, size of the body, and the list of the properties that are set.
const BEFORE: usize = 14;

/// Limits to the frames with the properties of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameLimits(usize);

impl FrameLimits {
    /// `max`: the size of a frame that client and server agreed on.
    pub(super) fn new(max: u32) -> Self {
        Self(usize::try_from(max).unwrap_or(usize::MAX))
    }

    /// Returns the limit to any message. A frame of the server may be as large, so the copy of a message may have to be.
    pub(super) fn any(self) -> usize {
        self.0.saturating_add(TOLERATED)
    }

    /// Returns the limit to a message that is sent now. Half of a frame stays free for what the server and later copies add.
    pub(super) fn sent(self) -> usize {
        self.0 / 2
    }

    /// Returns the limit to a copy that goes down the delay ladder. Each level that holds it adds an entry to its `x-death`.
    pub(super) fn delayed(self) -> usize {
        self.0 / 4 * 3
    }

    /// Returns the limit to a copy that goes to a queue.
    pub(super) fn copied(self) -> usize {
        self.0.saturating_sub(COUNTS)
    }
}

/// Returns the size of the frame with these properties.
pub(super) fn size(properties: &BasicProperties) -> usize {
    let texts = [
        properties.content_type(),
        properties.content_encoding(),
        properties.correlation_id(),
        properties.reply_to(),
        properties.expiration(),
        properties.message_id(),
        properties.kind(),
        properties.user_id(),
        properties.app_id(),
        properties.cluster_id(),
    ];
    let texts: usize = texts.into_iter().flatten().map(short).sum();
    let bytes = [*properties.delivery_mode(), *properties.priority()].into_iter().flatten().count();
    let stamp = properties.timestamp().map_or(0, |_| 8);
    AROUND + BEFORE + texts + bytes + stamp + properties.headers().as_ref().map_or(0, table)
}

/// Returns the size of a table. Does not recurse, because a producer decides how deep a table is.
fn table(table: &FieldTable) -> usize {
    let mut size = 4;
    let mut open = Vec::new();
    let entries = |table: &FieldTable| table.inner().keys().map(short).sum::<usize>();
    size += entries(table);
    open.extend(table.inner().values());
    while let Some(value) = open.pop() {
        size += 1 + match value {
            AMQPValue::Void => 0,
            AMQPValue::Boolean(_) | AMQPValue::ShortShortInt(_) | AMQPValue::ShortShortUInt(_) => 1,
            AMQPValue::ShortInt(_) | AMQPValue::ShortUInt(_) => 2,
            AMQPValue::LongInt(_) | AMQPValue::LongUInt(_) | AMQPValue::Float(_) => 4,
            AMQPValue::DecimalValue(_) => 5,
            AMQPValue::LongLongInt(_) | AMQPValue::Double(_) | AMQPValue::Timestamp(_) => 8,
            AMQPValue::ShortString(text) => short(text),
            AMQPValue::LongString(text) => 4 + text.as_bytes().len(),
            AMQPValue::ByteArray(bytes) => 4 + bytes.len(),
            AMQPValue::FieldArray(array) => {
                open.extend(array.as_slice());
                4
            }
            AMQPValue::FieldTable(table) => {
                open.extend(table.inner().values());
                4 + entries(table)
            }
        };
    }
    size
}

fn short(text: &ShortString) -> usize {
    1 + text.as_str().len()
}

#[cfg(test)]
mod tests {
    use lapin::protocol::basic::gen_properties;

    use super::*;
    use crate::headers::tests::of_every_type;

    /// The size as the client library encodes it.
    fn encoded(properties: &BasicProperties) -> usize {
        let written = gen_properties::<Vec<u8>>(properties)(Vec::<u8>::new().into()).unwrap();
        // The list of the properties is among them.
        AROUND + BEFORE - 2 + written.into_inner().0.len()
    }

    #[test]
    fn the_size_is_that_of_the_frame() {
        let mut nested = of_every_type();
        nested.insert("table".into(), AMQPValue::FieldTable(of_every_type()));
        nested.insert("array".into(), AMQPValue::FieldArray(vec![AMQPValue::FieldTable(of_every_type())].into()));
        let plain = BasicProperties::default().with_message_id("id".into()).with_delivery_mode(2).with_priority(1);
        let full = plain.clone().with_timestamp(7).with_app_id("app".into()).with_headers(nested);
        for properties in [BasicProperties::default(), plain, full] {
            assert_eq!(size(&properties), encoded(&properties), "{properties:?}");
        }
    }

    #[test]
    fn a_deep_header_is_measured() {
        let mut value = AMQPValue::Void;
        for _ in 0..1000 {
            value = AMQPValue::FieldArray(vec![value].into());
        }
        let mut headers = FieldTable::default();
        headers.insert("h".into(), value);
        assert_eq!(table(&headers), 4 + 2 + 1000 * 5 + 1);
    }

    #[test]
    fn what_is_sent_has_room_to_grow() {
        let limits = FrameLimits::new(DEFAULT_MAX);
        assert!(limits.sent() + 20 * 1024 < limits.delayed() && limits.delayed() + 20 * 1024 < limits.copied());
        assert!(limits.copied() < limits.any());
    }
}
