//! Messages in the forms that commands print: text for users, and JSON for programs.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use hostler_types::Timestamp;
use hostler_types::message::{Message, Plain};
use hostler_types::printable::on_one_line;

/// A message of any queue, as `--json` prints it.
#[derive(Debug, Serialize)]
pub(super) struct Shown {
    id: String,
    /// Number of this delivery attempt, if the message was received.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<u32>,
    /// Age in seconds, counted from `enqueued_at`.
    age_seconds: u64,
    enqueued_at: Timestamp,
    group: Option<String>,
    routing_key: Option<String>,
    /// Size of the body in bytes, even if the body is stored in S3. Null if the pointer to the stored body lacks the size.
    size_bytes: Option<u64>,
    #[serde(flatten)]
    whole: Whole,
}

/// Content of a message: attributes and body.
#[derive(Debug, Serialize)]
pub(super) struct Whole {
    content_type: Option<String>,
    attributes: BTreeMap<String, Content>,
    /// Location of the body, if the body is stored in S3.
    body_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) body: Option<Content>,
}

/// Text, or binary data.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Content {
    Text(String),
    Binary { base64: String },
}

/// A line of the page about a message: the label and the text of the line. If the text is `None`, the page does not show the
/// line.
pub(super) type Line = (&'static str, Option<String>);

impl Content {
    fn of(plain: Plain<'_>) -> Self {
        match plain {
            Plain::Text(text) => Self::Text(text.to_owned()),
            Plain::Binary(bytes) => Self::Binary { base64: STANDARD.encode(bytes) },
        }
    }

    /// Formats the content on one line.
    fn line(&self) -> String {
        match self {
            Self::Text(text) => on_one_line(text),
            Self::Binary { base64 } => format!("base64 {base64}"),
        }
    }
}

impl Whole {
    pub(super) fn of(message: &Message) -> Self {
        let attributes = message.attributes.iter();
        Self {
            content_type: message.content_type().map(str::to_owned),
            attributes: attributes.map(|(name, value)| (name.clone(), Content::of(value.plain()))).collect(),
            body_at: message.claim.as_ref().map(|claim| format!("s3://{}/{}", claim.bucket, claim.key)),
            body: message.claim.is_none().then(|| body(message)),
        }
    }

    /// Returns a line for each field and each attribute. Leaves out the attributes in `elsewhere`, because the caller shows them
    /// in other lines.
    pub(super) fn lines(&self, elsewhere: &[&str]) -> Vec<Line> {
        let Self { content_type, attributes, body_at, body } = self;
        let own = attributes.iter().filter(|(name, _)| !elsewhere.contains(&name.as_str()));
        let own = own.map(|(name, value)| ("attribute", Some(format!("{} = {}", on_one_line(name), value.line()))));
        let kind = ("content type", content_type.as_deref().map(on_one_line));
        let body = [("body at", body_at.as_deref().map(on_one_line)), ("body", body.as_ref().map(Content::line))];
        std::iter::once(kind).chain(own).chain(body).collect()
    }
}

impl Shown {
    pub(super) fn of(message: &Message, attempt: Option<u32>, now: SystemTime) -> Self {
        Self {
            id: message.id.clone(),
            attempt,
            age_seconds: message.age(now).as_secs(),
            enqueued_at: message.enqueued_at.into(),
            group: message.group.clone(),
            routing_key: message.routing_key.clone(),
            size_bytes: size(message),
            whole: Whole::of(message),
        }
    }

    /// Formats the message as human-readable text, with one line for each known field.
    pub(super) fn page(&self) -> String {
        let mut lines = vec![
            ("id", Some(on_one_line(&self.id))),
            ("age", Some(age_line(self.age_seconds, self.enqueued_at))),
            ("group", self.group.as_deref().map(on_one_line)),
            ("routing key", self.routing_key.as_deref().map(on_one_line)),
            ("size", self.size_bytes.map(|size| format!("{size} bytes"))),
        ];
        lines.extend(self.whole.lines(&[]));
        page(lines)
    }
}

/// Formats the body as one human-readable line.
pub(super) fn body_line(message: &Message) -> String {
    body(message).line()
}

fn body(message: &Message) -> Content {
    Content::of(match str::from_utf8(&message.body) {
        Ok(text) => Plain::Text(text),
        Err(_) => Plain::Binary(&message.body),
    })
}

/// Returns the size of the body in bytes. `None`: the body is stored in S3, and the pointer to it lacks the size.
pub(super) fn size(message: &Message) -> Option<u64> {
    match &message.claim {
        Some(claim) => claim.size,
        None => Some(message.body.len() as u64),
    }
}

/// Formats the lines one below the other. Leaves out lines without a text.
pub(super) fn page(lines: Vec<Line>) -> String {
    let lines = lines.into_iter().filter_map(|(name, value)| Some(format!("{name:<12}  {}", value?)));
    lines.collect::<Vec<_>>().join("\n")
}

/// Formats an age and the time from which it counts.
pub(super) fn age_line(seconds: u64, enqueued_at: Timestamp) -> String {
    match known_age(seconds, enqueued_at) {
        Some(age) => format!("{age} (enqueued at {enqueued_at})"),
        None => "unknown (its producer gave no time)".to_owned(),
    }
}

/// Formats an age. `None`: it is not known, as the time from which it counts is zero.
pub(super) fn known_age(seconds: u64, enqueued_at: Timestamp) -> Option<String> {
    let is_known = enqueued_at != Timestamp::from(SystemTime::UNIX_EPOCH);
    is_known.then(|| age(Duration::from_secs(seconds)).to_string())
}

/// Formats an age as human-readable text, in whole seconds.
pub(super) fn age(age: Duration) -> humantime::FormattedDuration {
    humantime::format_duration(Duration::from_secs(age.as_secs()))
}

#[cfg(test)]
mod tests {
    use hostler_types::message::AttributeValue;

    use super::*;

    fn sent() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(60)
    }

    fn shown() -> Shown {
        let attributes = [
            ("a\u{1b}[2J".to_owned(), AttributeValue::Text("x\nbody          forged".to_owned())),
            ("raw".to_owned(), AttributeValue::Binary(vec![0, 255])),
        ];
        let message =
            Message { attributes: attributes.into(), enqueued_at: sent(), ..Message::new("7", vec![0xff, 0x1b]) };
        Shown::of(&message, None, sent() + Duration::from_millis(90_900))
    }

    #[test]
    fn a_page_has_a_line_for_each_thing_whatever_the_message_says() {
        let expected = "id            7\n\
                        age           1m 30s (enqueued at 1970-01-01T00:01:00.000000Z)\n\
                        size          2 bytes\n\
                        attribute     a\\u{1b}[2J = x\\nbody          forged\n\
                        attribute     raw = base64 AP8=\n\
                        body          base64 /xs=";
        assert_eq!(shown().page(), expected);
        assert_eq!(known_age(90, SystemTime::UNIX_EPOCH.into()), None);
    }

    #[test]
    fn programs_are_told_the_attempt_only_of_what_was_received() {
        let json = serde_json::to_value(shown()).unwrap();
        assert_eq!((json.get("attempt"), json["body"]["base64"].as_str()), (None, Some("/xs=")));
        let received = Shown { attempt: Some(3), ..shown() };
        assert_eq!(serde_json::to_value(received).unwrap()["attempt"], 3);
    }
}
