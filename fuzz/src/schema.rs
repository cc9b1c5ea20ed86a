//! Checks a value against a JSON Schema, as far as `hostler schema` uses JSON Schema.

use std::cell::RefCell;
use std::collections::HashMap;

use regex_lite::Regex;
use serde_json::{Map, Value};

/// Returns the path of the first part of `value` that does not fit. An unknown keyword of the schema is an error too.
pub fn misfit(schema: &Value, value: &Value) -> Option<String> {
    let schema = schema.as_object().expect("a schema is an object");
    schema.iter().find_map(|(word, wanted)| {
        let fits = match word.as_str() {
            "$schema" | "title" | "description" | "default" => true,
            "type" => is_of(wanted, value),
            "enum" => wanted.as_array().is_some_and(|all| all.contains(value)),
            "minimum" => value.as_f64().is_none_or(|number| number >= wanted.as_f64().unwrap_or(f64::NAN)),
            "maximum" => value.as_f64().is_none_or(|number| number <= wanted.as_f64().unwrap_or(f64::NAN)),
            "exclusiveMaximum" => value.as_f64().is_none_or(|number| number < wanted.as_f64().unwrap_or(f64::NAN)),
            "maxLength" => {
                value.as_str().is_none_or(|text| text.chars().count() as u64 <= wanted.as_u64().unwrap_or(0))
            }
            "minLength" => {
                value.as_str().is_none_or(|text| text.chars().count() as u64 >= wanted.as_u64().unwrap_or(u64::MAX))
            }
            "pattern" => value.as_str().is_none_or(|text| fits(wanted, text)),
            "required" => {
                let has = |name: &Value| value.get(name.as_str().unwrap_or_default()).is_some();
                !value.is_object() || wanted.as_array().is_some_and(|all| all.iter().all(has))
            }
            "propertyNames" => {
                let names = value.as_object().into_iter().flat_map(Map::keys);
                return names.map(|name| Value::from(name.as_str())).find_map(|name| misfit(wanted, &name));
            }
            "items" => {
                let mut items = value.as_array().into_iter().flatten().enumerate();
                return items.find_map(|(index, item)| Some(format!("[{index}]{}", misfit(wanted, item)?)));
            }
            "properties" => {
                let mut known = wanted.as_object().into_iter().flatten();
                return known.find_map(|(name, below)| Some(format!(".{name}{}", misfit(below, value.get(name)?)?)));
            }
            "additionalProperties" => {
                let known = schema.get("properties").and_then(Value::as_object);
                let mut others = value.as_object().into_iter().flatten();
                return others.find_map(|(name, below)| match wanted {
                    _ if known.is_some_and(|known| known.contains_key(name)) => None,
                    Value::Bool(false) => Some(format!(".{name}: is not known")),
                    wanted => Some(format!(".{name}{}", misfit(wanted, below)?)),
                });
            }
            unknown => return Some(format!(": the schema says `{unknown}`, which is not known here")),
        };
        (!fits).then(|| format!(": {value} does not fit {word} {wanted}"))
    })
}

fn is_of(kind: &Value, value: &Value) -> bool {
    if let Some(kinds) = kind.as_array() {
        return kinds.iter().any(|kind| is_of(kind, value));
    }
    match kind.as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("number") => value.is_number(),
        // 3.0 is an integer, says JSON Schema.
        Some("integer") => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        _ => false,
    }
}

/// The blanks that ECMAScript's `\s` knows and that of regex-lite does not; and U+0085, which is one to Rust alone.
const BLANKS: &str = "\\s\u{85}\u{a0}\u{1680}\u{2000}-\u{200a}\u{2028}\u{2029}\u{202f}\u{205f}\u{3000}\u{feff}";

thread_local! {
    static PATTERNS: RefCell<HashMap<String, Regex>> = RefCell::default();
}

fn fits(pattern: &Value, text: &str) -> bool {
    let pattern = pattern.as_str().unwrap_or_default();
    PATTERNS.with_borrow_mut(|known| {
        let compile = || {
            let within = pattern.replace("@\\s", &format!("@{BLANKS}")).replace(".\\s]", &format!(".{BLANKS}]"));
            let spelt = within.replace("\\s*", &format!("[{BLANKS}]*"));
            Regex::new(&spelt).expect("a pattern")
        };
        known.entry(pattern.to_owned()).or_insert_with(compile).is_match(text)
    })
}
