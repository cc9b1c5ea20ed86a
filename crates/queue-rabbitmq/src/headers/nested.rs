//! Arrays and tables of AMQP as JSON, and back, without loss. No I/O.
//!
//! Text, booleans and null are themselves. A number has the type that most clients choose for it: 32 bits, or else 64. A value of
//! any other type is an object with the type's character, for example `{"amqp:D": "0.5"}`.

use lapin::types::{AMQPValue, ByteArray, FieldTable, ShortString};
use serde_json::{Map, Value};

use super::{TYPE, native, scalar};

/// Returns a value as JSON.
pub(super) fn json(value: &AMQPValue) -> Value {
    match value {
        AMQPValue::Void => Value::Null,
        AMQPValue::Boolean(value) => Value::Bool(*value),
        AMQPValue::LongInt(value) => Value::from(*value),
        AMQPValue::LongLongInt(value) if i32::try_from(*value).is_err() => Value::from(*value),
        AMQPValue::LongString(bytes) => match std::str::from_utf8(bytes.as_bytes()) {
            Ok(text) => Value::from(text),
            Err(_) => tagged(value, Value::from(bytes.as_bytes())),
        },
        AMQPValue::ByteArray(bytes) => tagged(value, Value::from(bytes.as_slice())),
        AMQPValue::FieldArray(values) => values.as_slice().iter().map(json).collect(),
        AMQPValue::FieldTable(table) => {
            let fields: Map<_, _> =
                table.inner().iter().map(|(name, value)| (name.as_str().to_owned(), json(value))).collect();
            let may_be_taken_for_a_tag = tag(&fields).is_some();
            if may_be_taken_for_a_tag { tagged(value, Value::Object(fields)) } else { Value::Object(fields) }
        }
        scalar_value => tagged(value, scalar(scalar_value).into()),
    }
}

/// Returns the value that [`json`] wrote. `None`: the JSON is not of this form.
pub(super) fn value(json: &Value) -> Option<AMQPValue> {
    Some(match json {
        Value::Null => AMQPValue::Void,
        Value::Bool(value) => AMQPValue::Boolean(*value),
        Value::Number(number) => {
            let number = number.as_i64()?;
            i32::try_from(number).map_or(AMQPValue::LongLongInt(number), AMQPValue::LongInt)
        }
        Value::String(text) => AMQPValue::LongString(text.as_str().into()),
        Value::Array(values) => AMQPValue::FieldArray(values.iter().map(value).collect::<Option<Vec<_>>>()?.into()),
        Value::Object(fields) => match tag(fields) {
            Some(("F", Value::Object(fields))) => table(fields)?,
            Some(("x", bytes)) => AMQPValue::ByteArray(ByteArray::from(octets(bytes)?)),
            Some(("S", bytes)) => AMQPValue::LongString(octets(bytes)?.into()),
            Some((kind, text)) => native(kind, text.as_str()?)?,
            None => table(fields)?,
        },
    })
}

fn table(fields: &Map<String, Value>) -> Option<AMQPValue> {
    let mut table = FieldTable::default();
    for (name, field) in fields {
        table.insert(ShortString::try_new(name.as_str()).ok()?, value(field)?);
    }
    Some(AMQPValue::FieldTable(table))
}

fn tagged(value: &AMQPValue, shown: Value) -> Value {
    let name = format!("{TYPE}{}", value.get_type().get_id());
    Value::Object(Map::from_iter([(name, shown)]))
}

/// Returns the type's character and the value of an object that [`tagged`] may have written.
fn tag(fields: &Map<String, Value>) -> Option<(&str, &Value)> {
    let (name, value) = fields.iter().next().filter(|_| fields.len() == 1)?;
    Some((name.strip_prefix(TYPE)?, value))
}

fn octets(json: &Value) -> Option<Vec<u8>> {
    let octet = |value: &Value| value.as_u64().and_then(|value| u8::try_from(value).ok());
    json.as_array()?.iter().map(octet).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(fields: Vec<(&str, AMQPValue)>) -> AMQPValue {
        let mut table = FieldTable::default();
        for (name, value) in fields {
            table.insert(name.into(), value);
        }
        AMQPValue::FieldTable(table)
    }

    #[test]
    fn what_json_has_is_shown_as_it_is() {
        let array = vec![
            AMQPValue::LongString("ż".into()),
            AMQPValue::LongInt(-1),
            AMQPValue::LongLongInt(1 << 40),
            AMQPValue::Void,
            of(vec![("a", AMQPValue::Boolean(true)), ("b", of(Vec::new()))]),
        ];
        let array = AMQPValue::FieldArray(array.into());
        let text = r#"["ż",-1,1099511627776,null,{"a":true,"b":{}}]"#;
        assert_eq!(json(&array).to_string(), text);
        assert_eq!(value(&serde_json::from_str(text).unwrap()), Some(array));
    }

    #[test]
    fn a_table_that_looks_like_a_tag_survives() {
        for name in ["amqp:l", "amqp:F", "amqp:", "amqp"] {
            let table = of(vec![(name, AMQPValue::LongString("5".into()))]);
            assert_eq!(value(&json(&table)), Some(table), "{name}");
        }
    }

    #[test]
    fn json_of_another_form_is_nothing() {
        for text in ["1.5", r#"{"amqp:l":"x"}"#, r#"{"amqp:l":5}"#, r#"{"amqp:x":[256]}"#, r#"{"amqp:x":"x"}"#, "[1.5]"]
        {
            assert_eq!(value(&serde_json::from_str(text).unwrap()), None, "{text}");
        }
    }
}
