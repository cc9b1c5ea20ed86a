//! One pass over a JSON text for the things that its parser lets through and PostgreSQL refuses.

/// Maximum nesting of arrays and objects in a request: that of the deepest tree of jobs, and that of a value in it.
pub const NESTING: usize = 200;

/// A property of a text that needs a closer look or a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finding {
    /// Nothing to object to.
    Clean,
    /// Arrays and objects nested deeper than [`NESTING`].
    TooDeep,
    /// An escaped NUL character or surrogate somewhere: only a full parse tells whether it is a fault.
    Suspicious,
}

/// Scans `text`. Says nothing about its syntax otherwise.
pub fn scan(text: &[u8]) -> Finding {
    let (mut depth, mut quoted, mut at, mut suspicious) = (0_usize, false, 0, false);
    while let Some(byte) = text.get(at) {
        match (quoted, byte) {
            (_, b'"') => quoted = !quoted,
            (true, b'\\') => {
                suspicious |= is_special(&text[at + 1..]);
                at += 1;
            }
            (false, b'[' | b'{') => {
                depth += 1;
                if depth > NESTING {
                    return Finding::TooDeep;
                }
            }
            (false, b']' | b'}') => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
    }
    if suspicious { Finding::Suspicious } else { Finding::Clean }
}

/// Tells whether an escape (without its backslash) is NUL or half of a surrogate pair.
fn is_special(escape: &[u8]) -> bool {
    match escape {
        [b'u', b'0', b'0', b'0', b'0', ..] => true,
        [b'u', b'd' | b'D', digit, ..] => matches!(digit, b'8'..=b'9' | b'a'..=b'f' | b'A'..=b'F'),
        _ => false,
    }
}

/// Returns the JSON pointer of the first string or key that holds a NUL character.
pub fn find_nul(value: &serde_json::Value) -> Option<String> {
    use serde_json::Value;
    match value {
        Value::String(text) => text.contains('\0').then(String::new),
        Value::Array(parts) => {
            parts.iter().enumerate().find_map(|(index, part)| Some(format!("/{index}{}", find_nul(part)?)))
        }
        Value::Object(parts) => parts.iter().find_map(|(key, part)| {
            let below = if key.contains('\0') { String::new() } else { find_nul(part)? };
            Some(format!("/{}{below}", escape(key)))
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => None,
    }
}

/// Escapes a key for a JSON pointer.
fn escape(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1").replace('\0', "\u{fffd}")
}

/// Turns the path of a faulty value, as axum's JSON reports it (`items[0].payload`), into a JSON pointer.
pub fn pointer(path: &str) -> String {
    let mut pointer = String::new();
    for part in path.split(['.', '[']).filter(|part| !part.is_empty() && *part != "?") {
        pointer.push('/');
        pointer.push_str(&escape(part.trim_end_matches(']')));
    }
    pointer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nesting_is_counted_outside_of_strings() {
        let deep = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        assert_eq!(scan(deep(NESTING).as_bytes()), Finding::Clean);
        assert_eq!(scan(deep(NESTING + 1).as_bytes()), Finding::TooDeep);
        assert_eq!(scan(format!("\"{}\"", deep(500)).as_bytes()), Finding::Clean);
        assert_eq!(scan(format!("\"\\\"{}\"", deep(500)).as_bytes()), Finding::Clean);
        assert_eq!(scan("[],".repeat(500).as_bytes()), Finding::Clean);
    }

    #[test]
    fn escapes_of_nul_and_surrogates_are_suspicious() {
        assert_eq!(scan(br#"{"a":"\u0000"}"#), Finding::Suspicious);
        assert_eq!(scan(br#"{"a":"\uD800"}"#), Finding::Suspicious);
        assert_eq!(scan(br#"{"a":"\\u0000"}"#), Finding::Clean);
        assert_eq!(scan(br#"{"a":"\u00e9\n"}"#), Finding::Clean);
        assert_eq!(scan(br#"{"a":"\"#), Finding::Clean);
    }

    #[test]
    fn the_pointer_of_a_nul_names_the_place() {
        let value = serde_json::json!({ "a": [1, { "b/c": "x\u{0}" }] });
        assert_eq!(find_nul(&value).as_deref(), Some("/a/1/b~1c"));
        assert_eq!(find_nul(&serde_json::json!({ "a": "b" })), None);
        assert_eq!(find_nul(&serde_json::json!({ "a\u{0}": "b" })).as_deref(), Some("/a\u{fffd}"));
    }

    #[test]
    fn paths_become_pointers() {
        assert_eq!(pointer("items[0].payload"), "/items/0/payload");
        assert_eq!(pointer("children[2].children[0]"), "/children/2/children/0");
        assert_eq!(pointer("."), "");
        assert_eq!(pointer("?"), "");
    }
}
