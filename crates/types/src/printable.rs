//! Makes text from outside hostler safe for output on a terminal: escapes the characters that a terminal would
//! interpret.

use std::borrow::Cow;
use std::fmt::{self, Write};

/// Displays a string. Escapes characters that a terminal interprets, except line ends and tabs.
#[derive(Debug, Clone, Copy)]
pub struct Printable<'a>(pub &'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Escaping(f).write_str(self.0)
    }
}

/// A writer that forwards text. Escapes characters that a terminal interprets, except line ends and tabs.
#[derive(Debug)]
pub struct Escaping<W>(pub W);

impl<W: Write> Write for Escaping<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        escape(&mut self.0, text, |char| acts(char) && char != '\n' && char != '\t')
    }
}

/// Returns `text` on one line. Escapes only the characters that a terminal interprets ([`acts`]), including line ends
/// and tabs. Does not escape quotes and backslashes.
pub fn on_one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    // Writing to a string does not fail.
    let _ = escape(&mut line, text, acts);
    line
}

/// Takes a JSON document, and replaces the characters that a terminal would interpret with JSON escapes. The meaning of
/// the document does not change.
pub fn in_json(text: &str) -> Cow<'_, str> {
    // Unescaped line ends and tabs occur only between the values of a JSON text. Other ASCII control characters must be
    // escaped in JSON.
    let is_odd = |char: char| char != '\n' && char != '\t' && acts(char);
    if !text.contains(is_odd) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 32);
    for char in text.chars() {
        if is_odd(char) {
            // All of these characters are in the basic multilingual plane. Writing to a string does not fail.
            _ = write!(escaped, "\\u{:04x}", u32::from(char));
        } else {
            escaped.push(char);
        }
    }
    Cow::Owned(escaped)
}

/// Shortens a string that is longer than `most` bytes: returns at most the first `most` bytes, followed by a note with
/// the full length. Returns any other string unchanged.
pub fn shortened(text: &str, most: usize) -> Cow<'_, str> {
    if text.len() <= most {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("{}… (cut, of {} bytes)", &text[..text.floor_char_boundary(most)], text.len()))
}

fn escape(to: &mut impl Write, text: &str, is_odd: fn(char) -> bool) -> fmt::Result {
    let mut rest = text;
    while let Some(at) = rest.find(is_odd) {
        let (plain, odd) = rest.split_at(at);
        to.write_str(plain)?;
        let mut chars = odd.chars();
        if let Some(char) = chars.next() {
            write!(to, "{}", char.escape_default())?;
        }
        rest = chars.as_str();
    }
    to.write_str(rest)
}

/// Returns `true` if a terminal interprets the character instead of displaying it. This is the case for control
/// characters, line and paragraph separators, and invisible characters that hide text or change the writing direction.
/// Zero-width joiners count as ordinary text, because some letters and emoji need them.
pub fn acts(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_shown() {
        let text = "plain ü\n\tnext\r\u{1b}[2J\u{7}\u{9b}1m\u{202e}end\0\u{2028}";
        let shown = "plain ü\n\tnext\\r\\u{1b}[2J\\u{7}\\u{9b}1m\\u{202e}end\\u{0}\\u{2028}";
        assert_eq!(Printable(text).to_string(), shown);
    }

    #[test]
    fn on_one_line_only_what_a_terminal_acts_on_is_escaped() {
        for (text, line) in [
            (r#"can't "do" C:\x"#, r#"can't "do" C:\x"#),
            ("Zoë, \u{65}\u{301}, 名前 🎉 👨\u{200d}👩", "Zoë, \u{65}\u{301}, 名前 🎉 👨\u{200d}👩"),
            ("a\nb\tc\r\0", "a\\nb\\tc\\r\\u{0}"),
            ("\u{1b}[31mred\u{9b}0m\u{7f}", "\\u{1b}[31mred\\u{9b}0m\\u{7f}"),
            ("\u{202e}txt\u{2028}\u{feff}", "\\u{202e}txt\\u{2028}\\u{feff}"),
        ] {
            assert_eq!(on_one_line(text), line);
        }
    }

    #[test]
    fn a_json_text_says_the_same_in_characters_that_a_terminal_shows() {
        let value = serde_json::json!({ "a\u{7f}": ["\u{9b}1m\u{202e}\u{2066}x\u{feff}", "ü\n\u{1b}\t\u{200d}"] });
        let text = serde_json::to_string_pretty(&value).unwrap();
        let shown = in_json(&text);
        assert!(!shown.chars().any(|char| acts(char) && char != '\n'), "{shown}");
        assert!(shown.contains("\\u009b1m\\u202e\\u2066x\\ufeff") && shown.contains("ü"), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
        assert!(matches!(in_json("{\n\t\"a\": \"ü\"}"), Cow::Borrowed(_)));
    }

    #[test]
    fn a_long_text_is_cut_between_characters_and_says_so() {
        assert_eq!(shortened("äöü", 6), "äöü");
        assert_eq!(shortened("äöü", 5), "äö… (cut, of 6 bytes)");
    }
}
