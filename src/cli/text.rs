//! Text of others (reasons, attributes, bodies) as people are shown it.

/// The text on one line. What moves the cursor, colours the screen or turns the direction of writing is escaped, and nothing
/// else: quotes and backslashes stay as they are.
pub(super) fn on_one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for char in text.chars() {
        if acts(char) {
            line.extend(char.escape_default());
        } else {
            line.push(char);
        }
    }
    line
}

/// Whether a terminal does something else with it than to show it: control characters, and invisible ones of Unicode that format
/// (general categories Cc, Zl, Zp, and of Cf those that reorder or join).
fn acts(char: char) -> bool {
    let formats = ['\u{200b}'..='\u{200f}', '\u{2028}'..='\u{202e}', '\u{2060}'..='\u{206f}', '\u{feff}'..='\u{feff}'];
    char.is_control() || formats.iter().any(|range| range.contains(&char))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_terminal_acts_on_is_escaped() {
        for (text, line) in [
            (r#"can't "do" C:\x"#, r#"can't "do" C:\x"#),
            ("Zoë, \u{65}\u{301}, 名前 🎉", "Zoë, \u{65}\u{301}, 名前 🎉"),
            ("a\nb\tc\r\0", "a\\nb\\tc\\r\\u{0}"),
            ("\u{1b}[31mred\u{9b}0m\u{7f}", "\\u{1b}[31mred\\u{9b}0m\\u{7f}"),
            ("\u{202e}txt\u{2028}\u{feff}", "\\u{202e}txt\\u{2028}\\u{feff}"),
        ] {
            assert_eq!(on_one_line(text), line);
        }
    }
}
