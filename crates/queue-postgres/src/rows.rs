//! Converts messages, attributes and filters to and from columns.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hostler_postgres::Row;
use hostler_types::channel::Filter;
use hostler_types::message::{AttributeValue, Attributes, MAX_DELAY, Message, Plain, TraceContext};
use serde::{Deserialize, Serialize};

/// Columns that [`message`] reads, of the table `content` as `c`.
pub(super) const MESSAGE: &str = "c.id, c.grp, c.routing_key, c.attributes, c.body, \
     (extract(epoch FROM c.enqueued_at) * 1000000)::bigint";

/// Returns a delay in milliseconds for a statement. A longer delay than [`MAX_DELAY`] is shortened to that.
pub(super) fn millis(delay: Duration) -> f64 {
    delay.min(MAX_DELAY).as_secs_f64() * 1000.0
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Value {
    Text(String),
    Binary { base64: String },
}

/// Returns the attributes as JSON, whose escapes keep NUL characters out. `None`: the message has no attributes. Drops data types,
/// which only SQS has.
pub(super) fn write_attributes(attributes: &Attributes) -> Option<String> {
    if attributes.is_empty() {
        return None;
    }
    let stored = |value: &AttributeValue| match value.plain() {
        Plain::Text(text) => Value::Text(text.to_owned()),
        Plain::Binary(bytes) => Value::Binary { base64: STANDARD.encode(bytes) },
    };
    let values: BTreeMap<&str, Value> = attributes.iter().map(|(name, value)| (name.as_str(), stored(value))).collect();
    serde_json::to_string(&values).ok()
}

/// Reads attributes. The error is for people.
pub(super) fn read_attributes(json: Option<&str>) -> Result<Attributes, String> {
    let Some(json) = json else { return Ok(Attributes::new()) };
    let values: BTreeMap<String, Value> =
        serde_json::from_str(json).map_err(|error| format!("its column `attributes` is not valid: {error}"))?;
    let read = |(name, value)| match value {
        Value::Text(text) => Ok((name, AttributeValue::Text(text))),
        Value::Binary { base64 } => {
            let bytes = STANDARD.decode(base64).map_err(|_| format!("its attribute `{name}` is not valid base64"))?;
            Ok((name, AttributeValue::Binary(bytes)))
        }
    };
    values.into_iter().map(read).collect()
}

/// Reads a message from the columns [`MESSAGE`], which begin at `at`.
pub(super) fn message(row: &Row, at: usize) -> Result<Message, String> {
    let wrong = |error: hostler_postgres::RowError| format!("it cannot be read: {error}");
    let attributes: Option<String> = row.try_get(at + 3).map_err(wrong)?;
    let attributes = read_attributes(attributes.as_deref())?;
    let body: Vec<u8> = row.try_get(at + 4).map_err(wrong)?;
    let micros: i64 = row.try_get(at + 5).map_err(wrong)?;
    Ok(Message {
        id: row.try_get(at).map_err(wrong)?,
        group: row.try_get(at + 1).map_err(wrong)?,
        routing_key: row.try_get(at + 2).map_err(wrong)?,
        trace: TraceContext::of(&attributes).map(Arc::new),
        attributes,
        body: body.into(),
        enqueued_at: system_time(micros),
        claim: None,
    })
}

/// Converts microseconds since 1970.
pub(super) fn system_time(micros: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Stored {
    All,
    Exact(Vec<String>),
    Prefix(Vec<String>),
    Exclude(Vec<String>),
}

/// Returns a filter as JSON.
pub(super) fn write_filter(filter: &Filter) -> String {
    let stored = match filter.clone() {
        Filter::All => Stored::All,
        Filter::Exact(keys) => Stored::Exact(keys),
        Filter::Prefix(keys) => Stored::Prefix(keys),
        Filter::Exclude(keys) => Stored::Exclude(keys),
    };
    serde_json::to_string(&stored).unwrap_or_default()
}

/// Reads a filter. One that hostler did not write passes nothing.
pub(super) fn read_filter(json: &str) -> Filter {
    match serde_json::from_str(json) {
        Ok(Stored::All) => Filter::All,
        Ok(Stored::Exact(keys)) => Filter::Exact(keys),
        Ok(Stored::Prefix(keys)) => Filter::Prefix(keys),
        Ok(Stored::Exclude(keys)) => Filter::Exclude(keys),
        Err(_) => Filter::Exact(Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_survive() {
        let mut attributes = Attributes::new();
        attributes.insert("t".into(), AttributeValue::Text("a\0\"b".into()));
        attributes.insert("b".into(), AttributeValue::Binary(vec![0, 255]));
        let written = write_attributes(&attributes).unwrap();
        assert!(!written.contains('\0'), "PostgreSQL stores no NUL");
        assert_eq!(read_attributes(Some(&written)), Ok(attributes));
        assert_eq!((write_attributes(&Attributes::new()), read_attributes(None)), (None, Ok(Attributes::new())));
        assert!(read_attributes(Some("{\"a\": 1}")).is_err());
    }

    #[test]
    fn filters_survive() {
        let keys = vec!["a".to_owned()];
        for filter in [Filter::All, Filter::Exact(keys.clone()), Filter::Prefix(keys.clone()), Filter::Exclude(keys)] {
            assert_eq!(read_filter(&write_filter(&filter)), filter);
        }
        assert!(!read_filter("{}").passes(Some("a")));
    }
}
