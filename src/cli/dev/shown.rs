//! Converts log lines of a host to the lines that `hostler dev` shows.

use serde_json::{Map, Value};

use hostler_telemetry::{GUEST, PROGRESS};

/// Fields of a log line that [`note`] does not print. Each of these fields is in every log line, is shown elsewhere, or
/// does not help a user who writes a handler.
const COMMON: [&str; 10] =
    ["timestamp", "level", "message", "target", "resource", "consumer", "message_id", "cure", "trace_id", "span_id"];

/// The part of a log line that the user sees.
#[derive(Debug, PartialEq)]
pub(super) enum Shown {
    /// The consumer is ready to receive messages.
    Ready {
        /// Name of the consumer.
        consumer: String,
    },
    /// A message was settled.
    Settled(Settled),
    /// A line of the handler's output.
    Output(String),
    /// A warning, an error or the progress of the host, or a line that is not a JSON log line.
    Note(String),
}

/// Outcome of a settled message.
#[derive(Debug, PartialEq)]
pub(super) struct Settled {
    /// Name of the consumer.
    pub(super) consumer: String,
    /// Id of the message.
    pub(super) message_id: String,
    /// Set if the handler replied.
    pub(super) has_reply: bool,
    /// Text to show: the outcome, the duration, the reason, and what happens to the message next.
    pub(super) text: String,
}

/// Returns the part of a log line that the user sees. `None`: the line is not shown.
pub(super) fn shown(line: &str) -> Option<Shown> {
    let Ok(Value::Object(event)) = serde_json::from_str(line) else {
        return Some(line.trim_end()).filter(|line| !line.is_empty()).map(|line| Shown::Note(line.to_owned()));
    };
    let message = text(&event, "message");
    if text(&event, "target") == GUEST {
        let stream = text(&event, "stream");
        let stream = if stream.is_empty() { "output" } else { stream };
        return Some(Shown::Output(format!("{stream} | {message}")));
    }
    match (text(&event, "level"), message) {
        ("INFO", "consuming") => Some(Shown::Ready { consumer: text(&event, "consumer").to_owned() }),
        (_, "settled") => Some(Shown::Settled(settled(&event))),
        ("INFO", _) if text(&event, "target") == PROGRESS => Some(Shown::Note(note("hostler", &event))),
        ("WARN", _) => Some(Shown::Note(note("warning", &event))),
        ("ERROR", _) => Some(Shown::Note(note("error", &event))),
        _ => None,
    }
}

fn settled(event: &Map<String, Value>) -> Settled {
    let (outcome, reason) = (text(event, "outcome"), text(event, "reason"));
    let mut line = outcome.to_owned();
    if let Some(took) = event.get("duration_ms").and_then(Value::as_f64) {
        line += &format!(" {} ms", rounded(took));
    }
    if let Some(attempt) = event.get("attempt").and_then(Value::as_u64).filter(|attempt| *attempt > 1) {
        line += &format!(", attempt {attempt}");
    }
    if !reason.is_empty() {
        line += &format!(": {reason}");
    }
    match text(event, "disposition") {
        "release" => match event.get("delay_seconds").and_then(Value::as_f64).filter(|delay| *delay > 0.0) {
            Some(delay) => line += &format!(" (again in {} s)", rounded(delay)),
            None => line += " (again at once)",
        },
        "dead-letter" if outcome != "dead-letter" => line += " (dead-lettered)",
        _ => {}
    }
    Settled {
        consumer: text(event, "consumer").to_owned(),
        message_id: text(event, "message_id").to_owned(),
        has_reply: outcome == "reply",
        text: line,
    }
}

/// Formats a warning, an error or a progress report: the text and the other fields of the log line, and the fix on a separate line.
fn note(kind: &str, event: &Map<String, Value>) -> String {
    let others = event.iter().filter(|(name, value)| !COMMON.contains(&name.as_str()) && !value.is_null());
    let others: Vec<_> = others
        .map(|(name, value)| match value {
            Value::String(text) => format!("{name}: {text}"),
            other => format!("{name}: {other}"),
        })
        .collect();
    let others = if others.is_empty() { String::new() } else { format!(" ({})", others.join(", ")) };
    let cure = match text(event, "cure") {
        "" => String::new(),
        cure => format!("\n  cure: {cure}"),
    };
    format!("{kind}: {}{others}{cure}", text(event, "message"))
}

fn text<'a>(event: &'a Map<String, Value>, name: &str) -> &'a str {
    event.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// Rounds a number to one decimal if it is below ten, and otherwise to an integer.
fn rounded(number: f64) -> String {
    let rounded = if number < 10.0 { (number * 10.0).round() / 10.0 } else { number.round() };
    rounded.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &Value) -> Option<Shown> {
        shown(&line.to_string())
    }

    fn outcome(members: &Value) -> String {
        let mut line = serde_json::json!({
            "level": "INFO", "message": "settled", "target": "hostler_consumer::log", "consumer": "greet", "message_id": "m1",
            "attempt": 1, "disposition": "ack", "duration_ms": 12.345, "reason": "",
        });
        for (name, value) in members.as_object().unwrap() {
            line[name] = value.clone();
        }
        match of(&line) {
            Some(Shown::Settled(settled)) => {
                assert_eq!((settled.consumer.as_str(), settled.message_id.as_str()), ("greet", "m1"));
                assert_eq!(settled.has_reply, line["outcome"] == "reply");
                settled.text
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_outcome_is_one_line() {
        use serde_json::json;
        assert_eq!(outcome(&json!({ "outcome": "ack" })), "ack 12 ms");
        assert_eq!(outcome(&json!({ "outcome": "reply", "duration_ms": 0.447 })), "reply 0.4 ms");
        let retry = json!({ "outcome": "retry", "disposition": "release", "delay_seconds": 5.0, "reason": "busy" });
        assert_eq!(outcome(&retry), "retry 12 ms: busy (again in 5 s)");
        let at_once = json!({ "outcome": "shutdown", "disposition": "release" });
        assert_eq!(outcome(&at_once), "shutdown 12 ms (again at once)");
        let dead = json!({ "outcome": "dead-letter", "disposition": "dead-letter", "reason": "no name" });
        assert_eq!(outcome(&dead), "dead-letter 12 ms: no name");
        let last = json!({ "outcome": "failed", "disposition": "dead-letter", "reason": "no", "attempt": 3 });
        assert_eq!(outcome(&last), "failed 12 ms, attempt 3: no (dead-lettered)");
    }

    #[test]
    fn only_what_concerns_the_handler_is_shown() {
        use serde_json::json;
        let info = json!({ "level": "INFO", "message": "handler loaded", "target": "hostler::host" });
        assert_eq!(of(&info), None);
        let ready = json!({ "level": "INFO", "message": "consuming", "consumer": "greet", "channel": "greet" });
        assert_eq!(of(&ready), Some(Shown::Ready { consumer: "greet".into() }));
        let written = json!({ "level": "INFO", "message": "hi", "target": GUEST, "stream": "stderr" });
        assert_eq!(of(&written), Some(Shown::Output("stderr | hi".into())));
        let warning =
            json!({ "level": "WARN", "message": "slow", "seconds": 3, "fault": "a", "cure": "wait", "target": "x" });
        assert_eq!(of(&warning), Some(Shown::Note("warning: slow (seconds: 3, fault: a)\n  cure: wait".into())));
        let progress = json!({ "level": "INFO", "message": "compiled", "target": PROGRESS, "handler": "a.wasm" });
        assert_eq!(of(&progress), Some(Shown::Note("hostler: compiled (handler: a.wasm)".into())));
        assert_eq!(shown("hostler: no file\n"), Some(Shown::Note("hostler: no file".into())));
        assert_eq!(shown("  \n"), None);
    }
}
