//! The check of a payload: JSON that the job service can store.

use serde::de::IgnoredAny;

use super::MAX_PAYLOAD;

/// Maximum depth of nested arrays and objects. The depth up to which most JSON parsers read.
const MAX_DEPTH: usize = 127;

/// Checks that bytes are JSON, not too large or too deep, and without NUL characters.
///
/// # Errors
/// The fault, to follow the name of the payload.
pub(super) fn check(payload: &[u8]) -> Result<(), String> {
    if payload.len() > MAX_PAYLOAD {
        return Err(format!("has {} bytes, of which {MAX_PAYLOAD} are the most", payload.len()));
    }
    // Does not recurse, so the depth is no danger here.
    serde_json::from_slice::<IgnoredAny>(payload).map_err(|error| format!("is not valid JSON: {error}"))?;
    if std::str::from_utf8(payload).is_err() {
        return Err("is not valid JSON: it is not UTF-8".to_owned());
    }
    let scan = scan(payload);
    if scan.has_nul {
        return Err("contains a NUL character (\\u0000), which the job service cannot store".to_owned());
    }
    if scan.depth > MAX_DEPTH {
        return Err(format!("is nested {} deep, of which {MAX_DEPTH} is the most", scan.depth));
    }
    Ok(())
}

struct Scan {
    has_nul: bool,
    depth: usize,
}

/// Reads valid JSON once.
fn scan(json: &[u8]) -> Scan {
    let (mut found, mut depth, mut in_text, mut at) = (Scan { has_nul: false, depth: 0 }, 0_usize, false, 0);
    while let Some(byte) = json.get(at) {
        at += 1;
        match byte {
            b'"' => in_text = !in_text,
            b'\\' => {
                found.has_nul |= json[at..].starts_with(b"u0000");
                at += 1; // the escaped character, which may be a quote or a backslash
            }
            b'[' | b'{' if !in_text => {
                depth += 1;
                found.depth = found.depth.max(depth);
            }
            b']' | b'}' if !in_text => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_any_json_without_nul() {
        for good in ["null", "1", "\"\"", "{\"a\": [1, \"\\\\u0000\", \"\\\"[\"]}", " [\"\u{e4}\", \"\\u0001\"] "] {
            assert_eq!(check(good.as_bytes()), Ok(()), "{good}");
        }
        for (bad, fault) in [
            ("", "is not valid JSON: EOF"),
            ("{", "is not valid JSON: EOF"),
            ("1 2", "is not valid JSON: trailing"),
            ("\"\\u0000\"", "contains a NUL character"),
            ("[\"\\\\\\u0000\"]", "contains a NUL character"),
            ("\"\0\"", "is not valid JSON"),
        ] {
            let found = check(bad.as_bytes()).unwrap_err();
            assert!(found.starts_with(fault), "{bad}: {found}");
        }
        assert!(check(b"\"\xff\"").unwrap_err().starts_with("is not valid JSON"));
    }

    #[test]
    fn a_payload_has_a_greatest_size_and_depth() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(check(nested(MAX_DEPTH).as_bytes()), Ok(()));
        assert!(check(nested(MAX_DEPTH + 1).as_bytes()).unwrap_err().contains("128 deep"));
        assert!(check(nested(MAX_PAYLOAD / 2).as_bytes()).unwrap_err().contains("deep"));
        let wide = format!("[{}0]", "[],".repeat(1000));
        assert_eq!(check(wide.as_bytes()), Ok(()));
        let text = |size: usize| format!("\"{}\"", "x".repeat(size - 2));
        assert_eq!(check(text(MAX_PAYLOAD).as_bytes()), Ok(()));
        assert!(check(text(MAX_PAYLOAD + 1).as_bytes()).unwrap_err().contains("1048577 bytes"));
    }
}
