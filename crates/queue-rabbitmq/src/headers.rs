//! Attributes of a message as AMQP headers and properties, and back. A value of every AMQP type survives the round trip. No I/O.

use hostler_types::message::{AttributeValue, Attributes, Typed};
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};

/// Beginning of the data type of an attribute that was neither text nor bytes in AMQP. The rest is the type's character in the
/// encoding of a table.
const TYPE: &str = "amqp:";

/// Sets a property.
pub(super) type Set = fn(BasicProperties, ShortString) -> BasicProperties;

/// A property that is shown as an attribute.
struct Property {
    name: &'static str,
    get: fn(&BasicProperties) -> &Option<ShortString>,
    set: Set,
}

const PROPERTIES: [Property; 6] = [
    Property {
        name: hostler_types::message::CONTENT_TYPE,
        get: BasicProperties::content_type,
        set: BasicProperties::with_content_type,
    },
    Property {
        name: "content-encoding",
        get: BasicProperties::content_encoding,
        set: BasicProperties::with_content_encoding,
    },
    Property {
        name: "correlation-id",
        get: BasicProperties::correlation_id,
        set: BasicProperties::with_correlation_id,
    },
    Property { name: "reply-to", get: BasicProperties::reply_to, set: BasicProperties::with_reply_to },
    Property { name: "type", get: BasicProperties::kind, set: BasicProperties::with_type },
    Property { name: "app-id", get: BasicProperties::app_id, set: BasicProperties::with_app_id },
];

/// Returns the attributes of a message. Leaves out the headers for which `is_ours` returns `true`. A header takes precedence
/// over a property with the same name.
pub(super) fn attributes(properties: &BasicProperties, is_ours: impl Fn(&str) -> bool) -> Attributes {
    let shown = PROPERTIES.iter().filter_map(|property| {
        let value = (property.get)(properties).as_ref()?;
        Some((property.name.to_owned(), AttributeValue::Text(value.as_str().to_owned())))
    });
    let headers = properties.headers().iter().flat_map(|table| table.inner());
    let headers = headers.filter(|(name, _)| !is_ours(name.as_str()));
    shown.chain(headers.map(|(name, value)| (name.as_str().to_owned(), attribute(value)))).collect()
}

/// Returns properties and headers with these attributes.
pub(super) fn properties(attributes: &Attributes) -> (BasicProperties, FieldTable) {
    let (mut properties, mut headers) = (BasicProperties::default(), FieldTable::default());
    for (name, value) in attributes {
        let property = PROPERTIES.iter().find(|property| property.name == name);
        match (property, value) {
            (Some(property), AttributeValue::Text(text)) if let Ok(short) = ShortString::try_new(text.as_str()) => {
                properties = (property.set)(properties, short);
            }
            _ => {
                // A send with a longer name was refused before.
                if let Ok(name) = ShortString::try_new(name.as_str()) {
                    headers.insert(name, header(value));
                }
            }
        }
    }
    (properties, headers)
}

fn attribute(value: &AMQPValue) -> AttributeValue {
    let text = match value {
        AMQPValue::LongString(bytes) => match std::str::from_utf8(bytes.as_bytes()) {
            Ok(text) => return AttributeValue::Text(text.to_owned()),
            Err(_) => return typed(value, AttributeValue::Binary(bytes.as_bytes().to_vec())),
        },
        AMQPValue::ByteArray(bytes) => return AttributeValue::Binary(bytes.as_slice().to_vec()),
        AMQPValue::ShortString(text) => text.as_str().to_owned(),
        AMQPValue::Boolean(value) => value.to_string(),
        AMQPValue::ShortShortInt(value) => value.to_string(),
        AMQPValue::ShortShortUInt(value) => value.to_string(),
        AMQPValue::ShortInt(value) => value.to_string(),
        AMQPValue::ShortUInt(value) => value.to_string(),
        AMQPValue::LongInt(value) => value.to_string(),
        AMQPValue::LongUInt(value) => value.to_string(),
        AMQPValue::LongLongInt(value) => value.to_string(),
        AMQPValue::Float(value) => value.to_string(),
        AMQPValue::Double(value) => value.to_string(),
        AMQPValue::Timestamp(value) => value.to_string(),
        AMQPValue::Void => String::new(),
        nested => serde_json::to_string(nested).unwrap_or_default(),
    };
    typed(value, AttributeValue::Text(text))
}

fn typed(value: &AMQPValue, shown: AttributeValue) -> AttributeValue {
    let data_type = format!("{TYPE}{}", value.get_type().get_id());
    AttributeValue::Typed(Box::new(Typed { data_type, value: shown }))
}

/// Returns the header for an attribute. A data type of another service is dropped, because AMQP has types of its own.
fn header(value: &AttributeValue) -> AMQPValue {
    match value {
        AttributeValue::Text(text) => AMQPValue::LongString(text.as_str().into()),
        AttributeValue::Binary(bytes) => AMQPValue::ByteArray(bytes.as_slice().into()),
        AttributeValue::Typed(typed) => {
            let kind = typed.data_type.strip_prefix(TYPE);
            kind.and_then(|kind| native(kind, &typed.value)).unwrap_or_else(|| header(&typed.value))
        }
    }
}

/// Returns the value of an AMQP type that [`attribute`] wrote. `None`: the type is unknown, or the text is not of this type.
fn native(kind: &str, value: &AttributeValue) -> Option<AMQPValue> {
    if let (AttributeValue::Binary(bytes), "S") = (value, kind) {
        return Some(AMQPValue::LongString(bytes.as_slice().into()));
    }
    let text = value.as_text()?;
    let scalars: [Option<AMQPValue>; 13] = [
        ShortString::try_new(text).ok().map(AMQPValue::ShortString),
        text.parse().ok().map(AMQPValue::Boolean),
        text.parse().ok().map(AMQPValue::ShortShortInt),
        text.parse().ok().map(AMQPValue::ShortShortUInt),
        text.parse().ok().map(AMQPValue::ShortInt),
        text.parse().ok().map(AMQPValue::ShortUInt),
        text.parse().ok().map(AMQPValue::LongInt),
        text.parse().ok().map(AMQPValue::LongUInt),
        text.parse().ok().map(AMQPValue::LongLongInt),
        text.parse().ok().map(AMQPValue::Float),
        text.parse().ok().map(AMQPValue::Double),
        text.parse().ok().map(AMQPValue::Timestamp),
        text.is_empty().then_some(AMQPValue::Void),
    ];
    let is_it = |value: &AMQPValue| kind.len() == 1 && kind.starts_with(value.get_type().get_id());
    let nested = || serde_json::from_str(text).ok().filter(is_it);
    scalars.into_iter().flatten().find(is_it).or_else(nested)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use lapin::types::{ByteArray, DecimalValue, FieldArray, LongString};

    pub(crate) fn of_every_type() -> FieldTable {
        let mut nested = FieldTable::default();
        nested.insert("x".into(), AMQPValue::LongLongInt(-1));
        let array: FieldArray =
            vec![AMQPValue::Boolean(true), AMQPValue::ByteArray(ByteArray::from(vec![0, 255]))].into();
        let values = [
            AMQPValue::Boolean(false),
            AMQPValue::ShortShortInt(-128),
            AMQPValue::ShortShortUInt(255),
            AMQPValue::ShortInt(-32_768),
            AMQPValue::ShortUInt(65_535),
            AMQPValue::LongInt(i32::MIN),
            AMQPValue::LongUInt(u32::MAX),
            AMQPValue::LongLongInt(i64::MIN),
            AMQPValue::Float(0.1),
            AMQPValue::Double(0.1),
            AMQPValue::DecimalValue(DecimalValue { scale: 2, value: 12_345 }),
            AMQPValue::LongString(LongString::from("żółć")),
            AMQPValue::LongString(LongString::from(vec![0_u8, 255])),
            AMQPValue::FieldArray(array),
            AMQPValue::Timestamp(1_700_000_000),
            AMQPValue::FieldTable(nested),
            AMQPValue::ByteArray(ByteArray::from(vec![0, 255])),
            AMQPValue::Void,
        ];
        let mut table = FieldTable::default();
        for (n, value) in values.into_iter().enumerate() {
            table.insert(format!("h{n}").as_str().into(), value);
        }
        table
    }

    #[test]
    fn headers_of_every_type_and_properties_survive_a_round_trip() {
        let sent = BasicProperties::default()
            .with_headers(of_every_type())
            .with_content_type("text/plain".into())
            .with_correlation_id("c".into())
            .with_type("t".into());
        let shown = attributes(&sent, |_| false);
        assert_eq!(shown["content-type"].as_text(), Some("text/plain"));
        assert_eq!((shown["h0"].as_text(), shown["h7"].as_text()), (Some("false"), Some("-9223372036854775808")));
        let (properties, headers) = properties(&shown);
        assert_eq!(properties.with_headers(headers), sent);
    }

    #[test]
    fn a_name_that_amqp_cannot_encode_is_left_out() {
        let named = |length: usize| ("n".repeat(length), AttributeValue::Text("x".to_owned()));
        let (_, headers) = properties(&[named(255), named(256)].into());
        assert_eq!(headers.inner().keys().map(|name| name.as_str().len()).collect::<Vec<_>>(), [255]);
    }

    #[test]
    fn values_of_other_services_become_text_and_bytes() {
        let number = AttributeValue::Typed(Box::new(Typed {
            data_type: "Number".to_owned(),
            value: AttributeValue::Text("7".to_owned()),
        }));
        assert_eq!(header(&number), AMQPValue::LongString("7".into()));
        let long = AttributeValue::Text("x".repeat(300));
        let (properties, headers) = properties(&[("content-type".to_owned(), long)].into());
        assert!(properties.content_type().is_none() && headers.contains_key("content-type"), "no short string");
    }
}
