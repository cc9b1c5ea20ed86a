//! Attributes of a message as AMQP headers and properties, and back. A value of every AMQP type survives the round trip. No I/O.

mod nested;

use hostler_types::message::{AttributeValue, Attributes, Typed};
use lapin::BasicProperties;
use lapin::types::{AMQPValue, DecimalValue, FieldTable, ShortString};

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
        AMQPValue::FieldArray(_) | AMQPValue::FieldTable(_) => nested::json(value).to_string(),
        other => scalar(other),
    };
    typed(value, AttributeValue::Text(text))
}

/// Returns the text of a value that is not nested and not binary.
fn scalar(value: &AMQPValue) -> String {
    match value {
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
        AMQPValue::DecimalValue(value) => decimal(*value),
        AMQPValue::Timestamp(value) => value.to_string(),
        _ => String::new(),
    }
}

/// Returns the text of a decimal, with as many places as its scale says. Clients write a negative number in two's complement.
fn decimal(decimal: DecimalValue) -> String {
    let (value, scale) = (decimal.value.cast_signed(), usize::from(decimal.scale));
    let sign = if value < 0 { "-" } else { "" };
    let digits = format!("{:0>1$}", value.unsigned_abs(), scale + 1);
    let (whole, places) = digits.split_at(digits.len() - scale);
    if scale == 0 { format!("{sign}{whole}") } else { format!("{sign}{whole}.{places}") }
}

fn as_decimal(text: &str) -> Option<DecimalValue> {
    let (whole, places) = text.split_once('.').unwrap_or((text, ""));
    let value: i32 = format!("{whole}{places}").parse().ok()?;
    Some(DecimalValue { scale: u8::try_from(places.len()).ok()?, value: value.cast_unsigned() })
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
            let own = typed.data_type.strip_prefix(TYPE).and_then(|kind| match &typed.value {
                AttributeValue::Binary(bytes) if kind == "S" => Some(AMQPValue::LongString(bytes.as_slice().into())),
                value => native(kind, value.as_text()?),
            });
            own.unwrap_or_else(|| header(&typed.value))
        }
    }
}

/// Returns the value of an AMQP type that [`attribute`] wrote. `None`: the type is unknown, or the text is not of this type.
fn native(kind: &str, text: &str) -> Option<AMQPValue> {
    let scalars: [Option<AMQPValue>; 14] = [
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
        as_decimal(text).map(AMQPValue::DecimalValue),
        text.parse().ok().map(AMQPValue::Timestamp),
        text.is_empty().then_some(AMQPValue::Void),
    ];
    let is_it = |value: &AMQPValue| kind.len() == 1 && kind.starts_with(value.get_type().get_id());
    let nested = || serde_json::from_str(text).ok().and_then(|json| nested::value(&json)).filter(is_it);
    scalars.into_iter().flatten().find(is_it).or_else(nested)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use lapin::types::{ByteArray, FieldArray, LongString};

    pub(crate) fn of_every_type() -> FieldTable {
        let mut values = scalars();
        let array: FieldArray = values.clone().into();
        let mut nested = FieldTable::default();
        nested.insert("x".into(), AMQPValue::FieldArray(array.clone()));
        values.extend([AMQPValue::FieldArray(array), AMQPValue::FieldTable(nested)]);
        let mut table = FieldTable::default();
        for (n, value) in values.into_iter().enumerate() {
            table.insert(format!("h{n}").as_str().into(), value);
        }
        table
    }

    fn scalars() -> Vec<AMQPValue> {
        vec![
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
            AMQPValue::Double(f64::INFINITY),
            AMQPValue::DecimalValue(DecimalValue { scale: 2, value: 12_345 }),
            AMQPValue::DecimalValue(DecimalValue { scale: 255, value: u32::MAX }),
            AMQPValue::LongString(LongString::from("żółć")),
            AMQPValue::LongString(LongString::from(vec![0_u8, 255])),
            AMQPValue::Timestamp(1_700_000_000),
            AMQPValue::ByteArray(ByteArray::from(vec![0, 255])),
            AMQPValue::Void,
        ]
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
    fn a_decimal_is_shown_with_its_places() {
        for (scale, value, text) in
            [(2, 12_345, "123.45"), (0, 7, "7"), (3, -5, "-0.005"), (1, 0, "0.0"), (0, i32::MIN, "-2147483648")]
        {
            let number = DecimalValue { scale, value: value.cast_unsigned() };
            assert_eq!((&*decimal(number), as_decimal(text)), (text, Some(number)));
        }
        for text in ["", ".", "1.2.3", "x", "1e3", "3000000000"] {
            assert_eq!(as_decimal(text), None, "{text}");
        }
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
