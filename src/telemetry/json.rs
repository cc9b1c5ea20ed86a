//! JSON log lines that carry the resource, once it is known.

use std::fmt;

use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::resource;

/// A form of lines that are JSON objects, with `"resource":{…}` as their last member.
pub(super) struct WithResource<F>(pub(super) F);

impl<S, N, F> FormatEvent<S, N> for WithResource<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let Some(resource) = resource::json() else { return self.0.format_event(context, writer, event) };
        let mut line = String::new();
        self.0.format_event(context, Writer::new(&mut line), event)?;
        append(&mut writer, &line, resource)
    }
}

/// Writes a line that is a JSON object with members, and one more member.
fn append(writer: &mut impl fmt::Write, line: &str, resource: &str) -> fmt::Result {
    match line.trim_end().strip_suffix('}') {
        Some(open) => writeln!(writer, r#"{open},"resource":{resource}}}"#),
        None => writer.write_str(line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resource_is_the_last_member() {
        let mut text = String::new();
        append(&mut text, "{\"level\":\"INFO\",\"of\":{\"a\":1}}\n", r#"{"service.name":"hostler"}"#).unwrap();
        assert_eq!(text, "{\"level\":\"INFO\",\"of\":{\"a\":1},\"resource\":{\"service.name\":\"hostler\"}}\n");
    }
}
