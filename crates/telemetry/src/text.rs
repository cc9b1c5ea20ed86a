//! Formats the fields of log lines as text, as tracing-subscriber does, but with control characters escaped.

use std::fmt::{self, Write as _};

use tracing::field::{Field, Visit};
use tracing_subscriber::field::{RecordFields, VisitOutput as _};
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{DefaultVisitor, Writer};

use hostler_types::printable::Escaping;

/// Formats the fields of an event.
pub(super) struct Text;

impl<'writer> FormatFields<'writer> for Text {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut visitor = DefaultVisitor::new(writer, true);
        fields.record(&mut Shown(&mut visitor));
        visitor.finish()
    }
}

/// Escapes each value and passes it to the default visitor.
struct Shown<'a, 'writer>(&'a mut DefaultVisitor<'writer>);

impl Visit for Shown<'_, '_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.record_debug(field, &format_args!("{value}")),
            _ => self.record_debug(field, &value),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.record_debug(field, &Printed(value));
    }
}

struct Printed<'a>(&'a dyn fmt::Debug);

impl fmt::Debug for Printed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping(f), "{:?}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lines::Lines;

    #[test]
    fn no_text_of_others_moves_the_cursor() {
        let odd = "a\rb\u{1b}[2J\u{9b}\u{7f}c";
        let layer = |lines| tracing_subscriber::fmt::layer().fmt_fields(Text).with_ansi(false).with_writer(lines);
        let line = Lines::of(layer, || tracing::info!(field = odd, shown = %odd, n = 7, "{odd}"));
        let shown = "a\\rb\\u{1b}[2J\\u{9b}\\u{7f}c";
        let wanted = format!("{shown} field=\"{shown}\" shown={shown} n=7\n");
        assert!(line.ends_with(&wanted), "{line:?} does not end with {wanted:?}");
    }
}
