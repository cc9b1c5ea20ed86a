//! The templates that make a child's payload of a result: JSON in which some strings stand for parts of the result or the payload.
//!
//! `"$"` is the whole result and `"$.a.b"` a part of it; `"$payload"` and `"$payload.a.b"` are the same of the payload. A step is a
//! key of an object or an index of an array. A part that is missing is `null`. Keys of objects are never replaced, nor are other
//! strings, such as `"$5"`. Parts are copied as text, so that numbers keep all their digits.

use std::collections::HashMap;

use serde_json::value::RawValue;

/// The most strings of a template that stand for parts.
pub const MAX_PARTS: usize = 100;

/// The payload would be longer than allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the payload that the feed makes is longer than {0} bytes")]
pub struct TooLong(pub usize);

/// A template, cut into pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Part { of: Source, steps: Vec<String> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Result,
    Payload,
}

impl Template {
    /// Cuts JSON text into pieces. Text that is not JSON stays as it is.
    pub fn parse(json: &str) -> Template {
        let mut pieces = Vec::new();
        let mut copied = 0;
        let mut at = 0;
        while let Some(begin) = json[at..].find('"').map(|offset| at + offset) {
            let end = string_end(json, begin);
            at = end;
            let is_key = json[end..].trim_start().starts_with(':');
            let text: Option<String> = serde_json::from_str(&json[begin..end]).ok();
            if let (false, Some(part)) = (is_key, text.as_deref().and_then(part)) {
                pieces.push(Piece::Text(json[copied..begin].to_owned()));
                pieces.push(part);
                copied = end;
            }
        }
        pieces.push(Piece::Text(json[copied..].to_owned()));
        Template { pieces }
    }

    /// The number of strings that stand for parts.
    pub fn parts(&self) -> usize {
        self.pieces.iter().filter(|piece| matches!(piece, Piece::Part { .. })).count()
    }

    /// Tells whether the template needs the payload.
    pub fn needs_payload(&self) -> bool {
        self.pieces.iter().any(|piece| matches!(piece, Piece::Part { of: Source::Payload, .. }))
    }

    /// Makes a payload of at most `most` bytes out of a result and the payload it came of. Several templates share their parsed parts.
    ///
    /// # Errors
    /// [`TooLong`] if it would be longer.
    pub fn expand(&self, result: &mut Parsed<'_>, payload: &mut Parsed<'_>, most: usize) -> Result<String, TooLong> {
        let mut made = String::new();
        for piece in &self.pieces {
            let text = match piece {
                Piece::Text(text) => text,
                Piece::Part { of: Source::Result, steps } => result.find(steps),
                Piece::Part { of: Source::Payload, steps } => payload.find(steps),
            };
            if made.len() + text.len() > most {
                return Err(TooLong(most));
            }
            made.push_str(text);
        }
        Ok(made)
    }
}

/// A JSON text whose arrays and objects are each cut into their parts at most once.
pub struct Parsed<'j> {
    json: &'j str,
    /// The arrays and objects that were cut, by the place of their text.
    levels: HashMap<usize, Level<'j>>,
}

/// The parts of a value.
enum Level<'j> {
    Object(HashMap<String, &'j RawValue>),
    Array(Vec<&'j RawValue>),
    /// A value without parts.
    Leaf,
}

impl<'j> Parsed<'j> {
    /// Takes a text. Parses nothing yet.
    pub fn new(json: &'j str) -> Self {
        Self { json: json.trim(), levels: HashMap::new() }
    }

    /// Returns the text of a part, `null` if it is missing.
    fn find(&mut self, steps: &[String]) -> &'j str {
        let mut place = self.json;
        for step in steps {
            let level = self.levels.entry(place.as_ptr().addr()).or_insert_with(|| Level::of(place));
            let next = match level {
                Level::Object(all) => all.get(step).copied(),
                Level::Array(all) => {
                    let index = step.parse::<usize>().ok().filter(|index| index.to_string() == *step);
                    index.and_then(|index| all.get(index).copied())
                }
                Level::Leaf => None,
            };
            match next {
                Some(value) => place = value.get(),
                None => return "null",
            }
        }
        place
    }
}

impl<'j> Level<'j> {
    fn of(json: &'j str) -> Self {
        let cut = match json.as_bytes().first() {
            Some(b'{') => serde_json::from_str(json).ok().map(Level::Object),
            Some(b'[') => serde_json::from_str(json).ok().map(Level::Array),
            _ => None,
        };
        cut.unwrap_or(Level::Leaf)
    }
}

/// Returns the place after a string that begins at a quotation mark.
fn string_end(json: &str, begin: usize) -> usize {
    let mut escaped = false;
    for (offset, byte) in json.bytes().enumerate().skip(begin + 1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return offset + 1,
            _ => {}
        }
    }
    json.len()
}

/// Reads a string that stands for a part.
fn part(text: &str) -> Option<Piece> {
    let (of, rest) = match text.strip_prefix("$payload") {
        Some(rest) => (Source::Payload, rest),
        None => (Source::Result, text.strip_prefix('$')?),
    };
    let steps = match rest.strip_prefix('.') {
        Some(path) => path.split('.').map(str::to_owned).collect(),
        None if rest.is_empty() => Vec::new(),
        None => return None,
    };
    Some(Piece::Part { of, steps })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expand(template: &str, result: &str, payload: &str) -> String {
        Template::parse(template).expand(&mut Parsed::new(result), &mut Parsed::new(payload), 1000).unwrap()
    }

    #[test]
    fn strings_stand_for_parts_anywhere() {
        let result = r#"{"a":{"b":[1,{"c":12345678901234567890.5}]},"s":"x"}"#;
        let payload = r#"{"x": {"y": true}}"#;
        for (template, expected) in [
            (r#""$""#, result),
            (r#""$.a.b""#, r#"[1,{"c":12345678901234567890.5}]"#),
            (r#"{"n":["$.a.b.1.c",1.50,"$.a.b.0"]}"#, r#"{"n":[12345678901234567890.5,1.50,1]}"#),
            (r#""$payload.x.y""#, "true"),
            (r#"["$payload","$.s"]"#, r#"[{"x": {"y": true}},"x"]"#),
            (r#"{"$.s":"$.s", "$" : 1}"#, r#"{"$.s":"x", "$" : 1}"#),
            (r#"["$5","$$","$payloads","a$.s","\u0024.s"]"#, r#"["$5","$$","$payloads","a$.s","x"]"#),
            (r#"{"a\"b":"say \"$.s\"","c":"\\"}"#, r#"{"a\"b":"say \"$.s\"","c":"\\"}"#),
            ("17", "17"),
        ] {
            assert_eq!(expand(template, result, payload), expected, "{template}");
        }
    }

    #[test]
    fn missing_parts_are_null() {
        for template in ["$.b", "$.a.x", "$.a.2", "$.a.01", "$.a.-1", "$.n.x", "$.", "$.a.", "$payload.q.r"] {
            assert_eq!(expand(&format!("\"{template}\""), r#"{"a":[1,2],"n":null}"#, "null"), "null", "{template}");
        }
        assert_eq!(expand(r#""$.""#, r#"{"":1}"#, "null"), "1");
    }

    #[test]
    fn payloads_are_bounded() {
        let template = Template::parse(r#"["$","$"]"#);
        assert_eq!(template.parts(), 2);
        let expand = |most| template.expand(&mut Parsed::new("12345"), &mut Parsed::new("null"), most);
        assert_eq!(expand(12), Err(TooLong(12)));
        assert_eq!(expand(13).as_deref(), Ok("[12345,12345]"));
    }

    #[test]
    fn each_level_is_cut_once_for_all_templates() {
        let (mut result, mut payload) = (Parsed::new(r#" {"a":{"b":[1,2]},"c":3}"#), Parsed::new("null"));
        for (template, expected) in [("\"$.a.b.0\"", "1"), ("\"$.a.b.1\"", "2"), ("\"$.a.x\"", "null")] {
            let template = Template::parse(template);
            assert_eq!(template.expand(&mut result, &mut payload, 10).as_deref(), Ok(expected));
            assert!(!template.needs_payload());
        }
        assert_eq!(result.levels.len(), 3);
        assert!(Template::parse("[\"$payload.a\"]").needs_payload());
    }
}
