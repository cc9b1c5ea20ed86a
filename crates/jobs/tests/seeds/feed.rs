//! The templates of feeds.

use serde_json::{Map, Value};

/// Fills a template: the string `"$.a.b"` stands for that part of the result, `"$"` for all of it, and `"$payload.x"` for that
/// part of the payload. A part that is missing is null.
pub fn fill(template: &Value, result: &Value, payload: &Value) -> Value {
    match template {
        Value::String(text) => part(text, result, payload),
        Value::Array(entries) => entries.iter().map(|entry| fill(entry, result, payload)).collect(),
        Value::Object(fields) => Value::Object(
            fields.iter().map(|(key, value)| (key.clone(), fill(value, result, payload))).collect::<Map<_, _>>(),
        ),
        other => other.clone(),
    }
}

fn part(text: &str, result: &Value, payload: &Value) -> Value {
    let walk = |from: &Value, path: &str| {
        let mut steps = path.split('.').filter(|step| !step.is_empty());
        steps.try_fold(from.clone(), |value, step| value.get(step).cloned()).unwrap_or(Value::Null)
    };
    if let Some(path) = text.strip_prefix("$payload") {
        walk(payload, path)
    } else if let Some(path) = text.strip_prefix('$') {
        walk(result, path)
    } else {
        Value::String(text.to_owned())
    }
}
