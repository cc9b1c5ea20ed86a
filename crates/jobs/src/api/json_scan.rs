//! One pass over a JSON text for the things that its parser lets through and PostgreSQL refuses.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

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

/// Returns the JSON pointer of the first string or key that holds a NUL character. Keeps no more of the text than one string.
///
/// # Errors
/// If the text is not JSON, which includes half of a surrogate pair.
pub fn find_nul(text: &[u8]) -> Result<Option<String>, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let found = NulSearch.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(found)
}

/// Searches a value for a NUL character, and returns the pointer from the value to it.
struct NulSearch;

impl<'de> DeserializeSeed<'de> for NulSearch {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<String>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for NulSearch {
    type Value = Option<String>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Option<String>, E> {
        Ok(None)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Option<String>, E> {
        Ok(None)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Option<String>, E> {
        Ok(None)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Option<String>, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Option<String>, E> {
        Ok(None)
    }

    fn visit_str<E>(self, text: &str) -> Result<Option<String>, E> {
        Ok(text.contains('\0').then(String::new))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Option<String>, A::Error> {
        let (mut found, mut index) = (None, 0_usize);
        while let Some(below) = parts.next_element_seed(NulSearch)? {
            found = found.or_else(|| Some(format!("/{index}{}", below?)));
            index += 1;
        }
        Ok(found)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut parts: A) -> Result<Option<String>, A::Error> {
        let mut found = None;
        while let Some(key) = parts.next_key::<String>()? {
            let below = parts.next_value_seed(NulSearch)?;
            let below = if key.contains('\0') { Some(String::new()) } else { below };
            found = found.or_else(|| Some(format!("/{}{}", escape(&key), below?)));
        }
        Ok(found)
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
        let find = |text: &str| find_nul(text.as_bytes()).unwrap();
        assert_eq!(find(r#"{"a":[1,{"b/c":"x\u0000","d":"\u0000"}]}"#).as_deref(), Some("/a/1/b~1c"));
        assert_eq!(find(r#"{"a":"\ud83d\ude00","b":[null,true,1.5,-1]}"#), None);
        assert_eq!(find(r#"{"a\u0000":"b"}"#).as_deref(), Some("/a\u{fffd}"));
        assert!(find_nul(br#"["\ud83d"]"#).is_err() && find_nul(b"[1").is_err() && find_nul(b"1 2").is_err());
    }

    #[test]
    fn paths_become_pointers() {
        assert_eq!(pointer("items[0].payload"), "/items/0/payload");
        assert_eq!(pointer("children[2].children[0]"), "/children/2/children/0");
        assert_eq!(pointer("."), "");
        assert_eq!(pointer("?"), "");
    }
}
