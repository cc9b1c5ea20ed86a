//! Trees, items and JSON as a client writes them.

use hostler_jobs::json::RawJson;
use hostler_jobs::types::{NewItem, NewJob};
use serde_json::Value;

/// Reads a tree as a client writes it.
pub fn tree(value: &Value) -> NewJob {
    serde_json::from_str(&value.to_string()).unwrap()
}

/// Reads an item as a client writes it.
pub fn item(value: &Value) -> NewItem {
    serde_json::from_str(&value.to_string()).unwrap()
}

/// JSON text of a value.
pub fn raw(value: &Value) -> RawJson {
    RawJson::parse(value.to_string()).unwrap()
}
