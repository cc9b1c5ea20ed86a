//! Formats log lines as JSON objects with the time, the level, the fields of the event, and the target. Once the
//! resource attributes are set, lines contain them too.
//!
//! Lines are formatted without a serializer. Every message causes a log line, and a serializer would take as long as
//! all other work of the consumer for that message. Each value is cut to a maximum length, because a line that exceeds
//! the size of the backlog would always be dropped.

use std::fmt::{self, Write};

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::resource;
use hostler_types::Timestamp;
use hostler_types::printable::acts;

/// Maximum length of a value in bytes. JSON needs up to six bytes for each byte of a value, so a line with one value of
/// this length fits into the backlog.
const LONGEST: usize = 512 * 1024;

/// Mark that is appended to a value that was cut.
const CUT: &str = " … (cut)";

/// Formats log events as JSON lines.
pub(super) struct Json;

impl<S, N> FormatEvent<S, N> for Json
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let metadata = event.metadata();
        write!(writer, r#"{{"timestamp":"{}","level":"{}""#, Timestamp::now(), metadata.level().as_str())?;
        let mut members = Members { out: &mut writer, written: Ok(()) };
        event.record(&mut members);
        members.written?;
        writer.write_str(r#","target":"#)?;
        text(&mut writer, metadata.target())?;
        if let Some(resource) = resource::json() {
            write!(writer, r#","resource":{resource}"#)?;
        }
        writer.write_str("}\n")
    }
}

/// Writes each field as a further member of the JSON object.
struct Members<'a, W> {
    out: &'a mut W,
    written: fmt::Result,
}

impl<W: Write> Members<'_, W> {
    fn member(&mut self, field: &Field, value: impl FnOnce(&mut W) -> fmt::Result) {
        if self.written.is_ok() {
            self.written = self.named(field, value);
        }
    }

    fn named(&mut self, field: &Field, value: impl FnOnce(&mut W) -> fmt::Result) -> fmt::Result {
        self.out.write_char(',')?;
        match field.name() {
            // The line itself has members with these names. In an object, a name may occur only once.
            name @ ("timestamp" | "level" | "target" | "resource") => write!(self.out, r#""{name}_""#)?,
            name => text(self.out, name)?,
        }
        self.out.write_char(':')?;
        value(self.out)
    }
}

impl<W: Write> Visit for Members<'_, W> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.member(field, |out| text(out, value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.member(field, |out| write!(out, "{value}"));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.member(field, |out| write!(out, "{value}"));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.member(field, |out| write!(out, "{value}"));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.member(field, |out| number(out, value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.member(field, |out| {
            out.write_char('"')?;
            write!(Escaped::new(out), "{value:?}")?;
            out.write_char('"')
        });
    }
}

/// Writes a number. Writes `null` for infinity and NaN.
fn number(out: &mut impl Write, value: f64) -> fmt::Result {
    match serde_json::Number::from_f64(value) {
        Some(number) => write!(out, "{number}"),
        None => out.write_str("null"),
    }
}

/// Writes `text` as a JSON string (RFC 8259, section 7).
fn text(out: &mut impl Write, text: &str) -> fmt::Result {
    out.write_char('"')?;
    Escaped::new(out).write_str(text)?;
    out.write_char('"')
}

/// Writes the content of a JSON string, up to [`LONGEST`] bytes.
struct Escaped<'a, W> {
    out: &'a mut W,
    /// Number of bytes that may still be written before the value is cut. `None`: the value was cut.
    left: Option<usize>,
}

impl<'a, W: Write> Escaped<'a, W> {
    fn new(out: &'a mut W) -> Self {
        Self { out, left: Some(LONGEST) }
    }
}

impl<W: Write> Write for Escaped<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let Some(left) = self.left else { return Ok(()) };
        self.left = left.checked_sub(text.len());
        if self.left.is_some() {
            return escaped(self.out, text);
        }
        escaped(self.out, &text[..text.floor_char_boundary(left)])?;
        self.out.write_str(CUT)
    }
}

fn escaped(out: &mut impl Write, text: &str) -> fmt::Result {
    let mut rest = text;
    // Characters that JSON escapes, and the first bytes of characters that control a terminal.
    let is_odd = |byte: u8| (byte < b' ') | matches!(byte, b'"' | b'\\' | 0x7f) | matches!(byte, 0xc2 | 0xe2 | 0xef);
    // Most strings need no escaping. A loop without an early exit can check many bytes in one step.
    if !text.bytes().fold(false, |odd, byte| odd | is_odd(byte)) {
        return out.write_str(text);
    }
    while let Some(at) = rest.bytes().position(is_odd) {
        let (plain, odd) = rest.split_at(at);
        out.write_str(plain)?;
        let mut chars = odd.chars();
        match chars.next() {
            Some('"') => out.write_str("\\\"")?,
            Some('\\') => out.write_str("\\\\")?,
            Some('\n') => out.write_str("\\n")?,
            Some('\r') => out.write_str("\\r")?,
            Some('\t') => out.write_str("\\t")?,
            Some(char) if acts(char) => write!(out, "\\u{:04x}", u32::from(char))?,
            Some(char) => out.write_char(char)?,
            None => {}
        }
        rest = chars.as_str();
    }
    out.write_str(rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lines::Lines;

    use serde_json::{Value, json};

    fn logged(log: impl FnOnce()) -> String {
        Lines::of(|lines| tracing_subscriber::fmt::layer().event_format(Json).with_writer(lines), log)
    }

    #[test]
    fn each_event_is_an_object_of_its_fields_in_their_order() {
        let error = std::io::Error::other("no\n\"room\"");
        let line = logged(|| {
            let none: Option<&str> = None;
            tracing::info!(target: "place", n = 7_u64, m = -7, share = 0.25, whole = 5.0, odd = f64::NAN, none, yes = true, %error,
                text = "a\\\u{1}ü", debug = ?["x"], "said {}", "it");
        });
        assert!(line.ends_with("}\n") && line.lines().count() == 1, "{line}");
        let value: Value = serde_json::from_str(&line).unwrap();
        let object = value.as_object().unwrap();
        let names: Vec<_> = object.keys().map(String::as_str).filter(|name| *name != "resource").collect();
        let wanted = "timestamp level message n m share whole odd yes error text debug target";
        assert_eq!(names, wanted.split(' ').collect::<Vec<_>>());
        assert!(humantime::parse_rfc3339(object["timestamp"].as_str().unwrap()).is_ok());
        let values: Vec<_> = names.iter().skip(1).map(|name| object[*name].clone()).collect();
        let wanted =
            json!(["INFO", "said it", 7, -7, 0.25, 5.0, null, true, "no\n\"room\"", "a\\\u{1}ü", "[\"x\"]", "place"]);
        assert_eq!(Value::from(values), wanted);
    }

    #[test]
    fn numbers_are_as_short_as_can_be() {
        let some =
            [0.0, 0.001, 0.01, 0.1, 0.12, 1.0, 5.25, 0.0005, 1.0005, 999_999_999.999, 1e9, 1e12, 1e15, -0.5, -0.0];
        let times = (0..20_000).map(|micros| f64::from(micros * 997) / 1_000.0);
        for value in some.into_iter().chain(times) {
            let mut line = String::new();
            number(&mut line, value).unwrap();
            assert_eq!(line, format!("{value:?}"));
        }
    }

    #[test]
    fn every_char_is_escaped_as_json_has_it() {
        let all: String = ('\0'..='\u{ffff}').chain(['\u{1f600}', '\u{10ffff}']).collect();
        let mut line = String::new();
        text(&mut line, &all).unwrap();
        assert_eq!(serde_json::from_str::<String>(&line).unwrap(), all);
        assert!(!line.contains(acts), "a terminal acts on it");
        assert!(["ü", "…", "\u{200d}", "名"].iter().all(|plain| line.contains(plain)), "the others stay");
    }

    #[test]
    fn no_field_is_a_second_member_of_a_name_that_the_line_has() {
        let line = logged(|| {
            tracing::info!(timestamp = 1, level = "high", target = "a door", resource = "a queue", "made");
        });
        for name in ["timestamp", "level", "target", "resource"] {
            let times = line.matches(&format!(r#""{name}":"#)).count();
            // Another test determines whether the resource is set.
            assert!(times == 1 || (name == "resource" && times == 0), "{name} in {line}");
        }
        let value: Value = serde_json::from_str(&line).unwrap();
        let own = ["timestamp_", "level_", "target_", "resource_"].map(|name| value[name].clone());
        assert_eq!(Value::from(own.to_vec()), json!([1, "high", "a door", "a queue"]));
    }

    #[test]
    fn a_value_that_is_too_long_is_cut_between_its_characters() {
        let long = format!("x{}", "ü".repeat(LONGEST / 2));
        let line = logged(|| tracing::info!(field = long.as_str(), more = ?["short"], "{long}{long}"));
        let value: Value = serde_json::from_str(&line).unwrap();
        let kept = format!("{}{CUT}", long.strip_suffix('ü').unwrap());
        assert_eq!((&value["field"], &value["message"]), (&kept.as_str().into(), &kept.as_str().into()));
        assert_eq!(value["more"], r#"["short"]"#);
    }

    #[test]
    fn a_line_of_the_oddest_characters_fits_into_the_backlog() {
        let line = logged(|| tracing::info!("{}", "\u{1}".repeat(16 * 1024 * 1024)));
        assert!(line.len() < crate::backlog::BYTES, "{} bytes", line.len());
        assert!(serde_json::from_str::<Value>(&line).is_ok());
    }
}
