//! Converts times, attributes and filters to and from columns of the file.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rusqlite::types::{FromSqlError, ValueRef};
use rusqlite::{ErrorCode, Row};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use hostler_types::channel::Filter;
use hostler_types::message::{AttributeValue, Attributes, MAX_DELAY, Plain};

/// Returns a duration in whole milliseconds, for a column of the file. A duration that is too long for the column
/// becomes the maximum value of the column.
pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// Returns the time after this delay, counted from `now`. A longer delay than [`MAX_DELAY`] is shortened to that.
pub(super) fn due_after(now: i64, delay: Duration) -> i64 {
    now.saturating_add(millis(delay.min(MAX_DELAY)))
}

/// Returns the latest time at which a message may become visible. Only a damaged row contains a later time. Is later than
/// the results of [`due_after`], because the times of processes in different containers may differ.
pub(super) fn latest_due(now: i64) -> i64 {
    now.saturating_add(millis(MAX_DELAY * 2))
}

pub(super) fn to_system_time(at: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(u64::try_from(at).unwrap_or(0))
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Value {
    Text(String),
    Binary { base64: String },
}

/// Returns the attributes as JSON, which is readable with the `sqlite3` tool. `None`: the message has no attributes.
pub(super) fn write_attributes(attributes: &Attributes) -> rusqlite::Result<Option<String>> {
    if attributes.is_empty() {
        return Ok(None);
    }
    let values: BTreeMap<&str, Value> = attributes.iter().map(|(name, value)| (name.as_str(), stored(value))).collect();
    to_json(&values).map(Some)
}

/// Converts an attribute to its stored form. Drops a data type that the producer has set, because only SQS has data
/// types.
fn stored(value: &AttributeValue) -> Value {
    match value.plain() {
        Plain::Text(text) => Value::Text(text.to_owned()),
        Plain::Binary(bytes) => Value::Binary { base64: STANDARD.encode(bytes) },
    }
}

pub(super) fn read_attributes(json: Option<&str>) -> rusqlite::Result<Attributes> {
    let Some(json) = json else { return Ok(Attributes::new()) };
    let values: BTreeMap<String, Value> = from_json(json, "attributes", "a JSON object of texts and {\"base64\": …}")?;
    values
        .into_iter()
        .map(|(name, value)| match value {
            Value::Text(text) => Ok((name, AttributeValue::Text(text))),
            Value::Binary { base64 } => {
                let bytes = STANDARD.decode(base64).map_err(|error| {
                    unreadable(
                        "attributes",
                        format_args!("holds a binary value, `{name}`, that is not base64 ({error})"),
                    )
                })?;
                Ok((name, AttributeValue::Binary(bytes)))
            }
        })
        .collect()
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum StoredFilter {
    All,
    Exact(Vec<String>),
    Prefix(Vec<String>),
    Exclude(Vec<String>),
}

pub(super) fn write_filter(filter: &Filter) -> rusqlite::Result<String> {
    to_json(&match filter.clone() {
        Filter::All => StoredFilter::All,
        Filter::Exact(keys) => StoredFilter::Exact(keys),
        Filter::Prefix(prefixes) => StoredFilter::Prefix(prefixes),
        Filter::Exclude(keys) => StoredFilter::Exclude(keys),
    })
}

pub(super) fn read_filter(json: &str) -> rusqlite::Result<Filter> {
    Ok(match from_json(json, "filter", "\"all\" or a JSON object with the kind of the filter")? {
        StoredFilter::All => Filter::All,
        StoredFilter::Exact(keys) => Filter::Exact(keys),
        StoredFilter::Prefix(prefixes) => Filter::Prefix(prefixes),
        StoredFilter::Exclude(keys) => Filter::Exclude(keys),
    })
}

/// Returns the code of an SQLite error. `None`: the error concerns a stored value that cannot be converted.
pub(super) fn sqlite_code(error: &rusqlite::Error) -> Option<ErrorCode> {
    match error {
        rusqlite::Error::SqlInputError { error, .. } => Some(error.code),
        error => error.sqlite_error_code(),
    }
}

fn to_json(value: &impl Serialize) -> rusqlite::Result<String> {
    serde_json::to_string(value).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
}

/// Reads a column that must contain JSON. `expected` describes the valid values.
fn from_json<T: DeserializeOwned>(json: &str, column: &str, expected: &str) -> rusqlite::Result<T> {
    serde_json::from_str(json).map_err(|error| {
        let (line, place) = (error.line(), error.column());
        unreadable(column, format_args!("is not {expected} (line {line}, column {place} of the text)"))
    })
}

/// Returns the error for a stored value that hostler did not write. `fault` follows the name of the column: the value,
/// and what hostler expected instead.
pub(super) fn unreadable(column: &str, fault: impl fmt::Display) -> rusqlite::Error {
    FromSqlError::Other(format!("its column `{column}` {fault}").into()).into()
}

/// Reads a column that must contain text.
pub(super) fn text(row: &Row<'_>, at: usize, column: &str) -> rusqlite::Result<String> {
    optional_text(row, at, column)?.ok_or_else(|| unreadable(column, "is empty instead of text"))
}

/// Reads a column that contains text or nothing.
pub(super) fn optional_text(row: &Row<'_>, at: usize, column: &str) -> rusqlite::Result<Option<String>> {
    match row.get_ref(at)? {
        ValueRef::Null => Ok(None),
        ValueRef::Text(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Some(text.to_owned())),
            Err(_) => Err(unreadable(column, "holds bytes instead of UTF-8 text")),
        },
        other => Err(unreadable(column, format_args!("holds {} instead of text", kind(&other)))),
    }
}

/// Reads a column that must contain bytes.
pub(super) fn bytes(row: &Row<'_>, at: usize, column: &str) -> rusqlite::Result<Vec<u8>> {
    match row.get_ref(at)? {
        ValueRef::Blob(bytes) => Ok(bytes.to_vec()),
        other => Err(unreadable(column, format_args!("holds {} instead of bytes", kind(&other)))),
    }
}

/// Reads a column that contains bytes or nothing.
pub(super) fn optional_bytes(row: &Row<'_>, at: usize, column: &str) -> rusqlite::Result<Option<Vec<u8>>> {
    if row.get_ref(at)? == ValueRef::Null { Ok(None) } else { bytes(row, at, column).map(Some) }
}

/// Reads a column that must contain an integer.
pub(super) fn integer(row: &Row<'_>, at: usize, column: &str) -> rusqlite::Result<i64> {
    match row.get_ref(at)? {
        ValueRef::Integer(number) => Ok(number),
        other => Err(unreadable(column, format_args!("holds {} instead of an integer", kind(&other)))),
    }
}

fn kind(value: &ValueRef<'_>) -> &'static str {
    match value {
        ValueRef::Null => "nothing",
        ValueRef::Integer(_) | ValueRef::Real(_) => "a number",
        ValueRef::Text(_) => "text",
        ValueRef::Blob(_) => "bytes",
    }
}
