//! Generates the JSON Schema of the configuration file from the table of keys.

use serde_json::{Map, Value, json};

use super::keys::{CONSUMER_NAME, DefaultValue, Key, NAMED, Node, child, joined, keys, names};
use super::kind::Kind;
use super::units::{DURATION_UNITS, SIZE_UNITS};

/// Returns the JSON Schema, draft 2020-12. The schema checks the syntax of each value. It does not check the limits of
/// durations and sizes, but its descriptions state them.
pub fn schema() -> Value {
    let mut root = table("");
    let head = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "hostler.toml",
        "description": "Configuration of hostler",
    });
    if let (Value::Object(head), Value::Object(body)) = (head, &mut root) {
        *body = head.into_iter().chain(std::mem::take(body)).collect();
    }
    root
}

fn table(pattern: &str) -> Value {
    let mut properties = Map::new();
    for name in names(pattern) {
        if name == "*" {
            return named(pattern);
        }
        let below = match child(pattern, name) {
            Node::Key(key) => property(key),
            Node::Table(pattern) => table(&pattern),
            Node::Unknown => continue,
        };
        properties.insert(name.to_owned(), below);
    }
    let required = |key: &&Key| {
        key.preset == DefaultValue::Required && key.path.rsplit_once('.').is_some_and(|(table, _)| table == pattern)
    };
    let required: Vec<_> = keys().filter(required).filter_map(|key| key.path.rsplit('.').next()).collect();
    let mut object = json!({ "type": "object", "properties": properties, "additionalProperties": false });
    if let (Value::Object(object), false) = (&mut object, required.is_empty()) {
        object.insert("required".to_owned(), json!(required));
    }
    object
}

/// Returns the schema of a table whose names the user chooses.
fn named(pattern: &str) -> Value {
    let names = match pattern {
        table if NAMED.contains(&table) => pattern_of(CONSUMER_NAME),
        _ => Some("^[^=]+$".to_owned()),
    };
    let below = match child(pattern, "*") {
        Node::Key(key) => property(key),
        _ => table(&joined(pattern, "*")),
    };
    json!({ "type": "object", "propertyNames": { "pattern": names }, "additionalProperties": below })
}

fn property(key: &Key) -> Value {
    let mut schema = form(key.kind);
    let optional = matches!(key.preset, DefaultValue::Unset | DefaultValue::Derived(_));
    let description = match key.preset {
        DefaultValue::Derived(text) => format!("{} Accepts {}. Default: {text}.", key.meaning, key.kind.accepts()),
        _ => format!("{} Accepts {}.", key.meaning, key.kind.accepts()),
    };
    if let Value::Object(schema) = &mut schema {
        schema.insert("description".to_owned(), json!(description));
        if let DefaultValue::Value(text) = key.preset {
            let value = key.kind.value(text);
            schema.insert("default".to_owned(), serde_json::to_value(value).unwrap_or_default());
        }
        // An empty text unsets an optional key.
        if let (true, Some(Value::String(pattern))) = (optional, schema.get_mut("pattern")) {
            *pattern = format!("^$|{pattern}");
        }
        if let (true, Some(Value::Array(words))) = (optional, schema.get_mut("enum")) {
            words.push(json!(""));
        }
        let number = schema.get("type").and_then(Value::as_str).filter(|kind| ["integer", "number"].contains(kind));
        if let (true, Some(number)) = (optional, number) {
            schema.insert("type".to_owned(), json!([number, "string"]));
            schema.insert("maxLength".to_owned(), json!(0));
        }
    }
    schema
}

/// Returns the schema of the values of this kind. The schema contains neither a description nor a default.
fn form(kind: Kind) -> Value {
    match kind {
        Kind::Bool => json!({ "type": "boolean" }),
        Kind::Integer { min, max } => json!({ "type": "integer", "minimum": min, "maximum": max }),
        Kind::Share => json!({ "type": "number", "minimum": 0, "exclusiveMaximum": 1 }),
        Kind::Choice(words) => json!({ "type": "string", "enum": words }),
        Kind::Channels
        | Kind::Subjects
        | Kind::Texts
        | Kind::Paths
        | Kind::Origins
        | Kind::Networks
        | Kind::Servers => {
            let item = match kind {
                Kind::Channels => form(Kind::Channel),
                Kind::Subjects => form(Kind::Subject),
                Kind::Texts | Kind::Paths => json!({ "type": "string", "minLength": 1 }),
                Kind::Origins => json!({ "type": "string", "pattern": "^[hH][tT][tT][pP][sS]?://[^/?#@\\s]+$" }),
                Kind::Servers => server(),
                _ => json!({ "type": "string" }),
            };
            json!({ "type": "array", "items": item })
        }
        Kind::Variable => variable(),
        Kind::Dirs => json!({ "type": "array", "items": {
            "type": "object",
            "properties": {
                "host": { "type": "string", "minLength": 1 },
                "guest": { "type": "string", "pattern": "^/" },
                "mode": { "type": "string", "enum": ["ro", "rw"], "default": "ro" },
            },
            "required": ["host", "guest"],
            "additionalProperties": false,
        } }),
        _ => match pattern_of(kind) {
            Some(pattern) => json!({ "type": "string", "pattern": pattern }),
            None => json!({ "type": "string" }),
        },
    }
}

/// Returns the schema of a TCP server: its address, or a table with the address and TLS.
fn server() -> Value {
    let address = r"^[^\s:/@]+:[0-9]+$|^\[[0-9a-fA-F:.]+\]:[0-9]+$";
    json!({
        "type": ["string", "object"],
        "pattern": address,
        "properties": {
            "to": { "type": "string", "pattern": address },
            "tls": { "type": "string", "enum": ["direct", "postgres"] },
            "ca": { "type": "string", "minLength": 1 },
        },
        "required": ["to"],
        "additionalProperties": false,
    })
}

/// Returns the schema of a variable of the guest's environment: its value, or a table with a reference to a secret.
fn variable() -> Value {
    let reference = "^file:/[\\s\\S]*[^/]$|^arn:aws(-cn|-us-gov)?:secretsmanager:[a-z0-9-]+:[0-9]{12}:secret:[^:]+(:[^:]*:[^:]*:[^:]*)?$";
    json!({
        "type": ["string", "object"],
        "properties": { "secret": { "type": "string", "pattern": reference } },
        "required": ["secret"],
        "additionalProperties": false,
    })
}

/// Returns a regular expression that matches every valid string of this kind, and some invalid ones. `None`: there is
/// no regular expression for this kind.
fn pattern_of(kind: Kind) -> Option<String> {
    Some(match kind {
        Kind::Duration { .. } => format!(r"^(\s*[0-9][0-9.\s]*({}))+\s*$", DURATION_UNITS.join("|")),
        Kind::Size { .. } => format!(r"^[0-9.]+\s*({})$", SIZE_UNITS.join("|")),
        Kind::Word { also, min, max } => {
            let also: String =
                also.chars().flat_map(|char| if char == '-' { vec!['\\', char] } else { vec![char] }).collect();
            format!("^[A-Za-z0-9{also}]{{{min},{max}}}$")
        }
        Kind::Path | Kind::Command | Kind::Handler => r"^[\s\S]+$".to_owned(),
        Kind::AmqpUrl => r"^amqps?://\S+$".to_owned(),
        Kind::Token => "^[!-~]{1,512}$".to_owned(),
        Kind::NatsUrl => r"^(nats|tls)://\S+$".to_owned(),
        Kind::PostgresUrl => r"^postgres(ql)?://\S+$".to_owned(),
        Kind::Url { .. } | Kind::SecretUrl => r"^[hH][tT][tT][pP][sS]?://[^/?#@\s]+([/?#]\S*)?$".to_owned(),
        Kind::Address => r"^\S+:[0-9]+$".to_owned(),
        Kind::Rate => r"^\s*\+?0*[1-9][0-9]*\s*/\s*[smh]\s*$".to_owned(),
        Kind::Sha256 => "^[0-9A-Fa-f]{64}$".to_owned(),
        Kind::Subject => r"^[^\s.$_*>][^\s.*>]*(\.[^\s.]+)*$".to_owned(),
        Kind::Channel => {
            let name = r"[A-Za-z0-9_\-]{1,71}(-dlq)?";
            format!(r"^{name}(\.{name})?$")
        }
        _ => return None,
    })
}
