//! Text of others for people to read: control characters are shown, and never obeyed by a terminal.

use std::fmt::{self, Write};

/// Displays a text with its control characters escaped, but for line ends and tabs.
#[derive(Debug, Clone, Copy)]
pub struct Printable<'a>(pub &'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Escaping(f).write_str(self.0)
    }
}

/// Writes on what is written to it, with control characters escaped in the same way.
#[derive(Debug)]
pub struct Escaping<W>(pub W);

impl<W: Write> Write for Escaping<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some(at) = rest.find(is_odd) {
            let (plain, odd) = rest.split_at(at);
            self.0.write_str(plain)?;
            let mut chars = odd.chars();
            if let Some(char) = chars.next() {
                write!(self.0, "{}", char.escape_default())?;
            }
            rest = chars.as_str();
        }
        self.0.write_str(rest)
    }
}

/// Whether a terminal would obey it: the controls of C0 and C1 and DEL, and the marks that turn the direction of what follows.
fn is_odd(char: char) -> bool {
    (char.is_control() && char != '\n' && char != '\t')
        || matches!(char, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_shown() {
        let text = "plain ü\n\tnext\r\u{1b}[2J\u{7}\u{9b}1m\u{202e}end\0";
        let shown = "plain ü\n\tnext\\r\\u{1b}[2J\\u{7}\\u{9b}1m\\u{202e}end\\u{0}";
        assert_eq!(Printable(text).to_string(), shown);
    }
}
