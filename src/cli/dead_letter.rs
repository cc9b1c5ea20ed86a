//! Dead letters in the forms that commands print: text for users, and JSON for programs.

use std::time::SystemTime;

use serde::Serialize;

use super::shown::{Whole, age_line, known_age, page, size};
use super::table;
use hostler_queue::{ATTEMPTS_ATTRIBUTE, ORIGINAL_ID_ATTRIBUTE, REASON_ATTRIBUTE, SOURCE_ATTRIBUTE};
use hostler_types::Timestamp;
use hostler_types::message::{AttributeValue, Message};
use hostler_types::printable::{on_one_line, shortened};

/// A dead letter, as `--json` prints it. Unknown fields are null. If SQS itself dead-lettered a message, its reason, source and
/// attempts are unknown, because the message lacks hostler's attributes.
#[derive(Debug, Serialize)]
pub(super) struct DeadLetter {
    id: String,
    /// Reason for dead-lettering.
    reason: Option<String>,
    /// Channel from which the message was dead-lettered.
    source: Option<String>,
    /// Number of attempts by the handler.
    attempts: Option<u32>,
    /// Age in seconds, counted from `enqueued_at`.
    age_seconds: u64,
    /// Time at which the queue accepted the message. On SQS, this is the time of dead-lettering, because a dead letter is a copy
    /// of the original message.
    enqueued_at: Timestamp,
    /// Message id before the first requeue.
    original_id: Option<String>,
    group: Option<String>,
    routing_key: Option<String>,
    /// Size of the body in bytes, even if the body is stored in S3. Null if the pointer to the stored body lacks the size.
    size_bytes: Option<u64>,
    #[serde(flatten)]
    whole: Option<Whole>,
}

impl DeadLetter {
    /// Creates a dead letter from its message. Fills in only the fields that a list shows: all except content type,
    /// attributes and body.
    pub(super) fn of(message: &Message, now: SystemTime) -> Self {
        let told = |name: &str| message.attributes.get(name).and_then(AttributeValue::as_text).map(str::to_owned);
        Self {
            id: message.id.clone(),
            reason: told(REASON_ATTRIBUTE),
            source: told(SOURCE_ATTRIBUTE),
            attempts: told(ATTEMPTS_ATTRIBUTE).and_then(|count| count.parse().ok()),
            age_seconds: message.age(now).as_secs(),
            enqueued_at: message.enqueued_at.into(),
            original_id: told(ORIGINAL_ID_ATTRIBUTE),
            group: message.group.clone(),
            routing_key: message.routing_key.clone(),
            size_bytes: size(message),
            whole: None,
        }
    }

    /// Returns the dead letter with the remaining data of its message: content type, attributes and body.
    pub(super) fn in_whole(self, message: &Message) -> Self {
        Self { whole: Some(Whole::of(message)), ..self }
    }

    /// Removes the body.
    pub(super) fn without_body(mut self) -> Self {
        if let Some(whole) = &mut self.whole {
            whole.body = None;
        }
        self
    }

    fn age(&self) -> String {
        known_age(self.age_seconds, self.enqueued_at).unwrap_or_else(unknown)
    }

    /// Formats the dead letter as human-readable text, with one line for each known field.
    pub(super) fn page(&self) -> String {
        let size = self.size_bytes.map(|size| format!("{size} bytes"));
        let mut lines = vec![
            ("id", Some(self.id.clone())),
            ("reason", Some(self.reason.as_deref().map_or_else(unknown, on_one_line))),
            ("source", Some(self.source.as_deref().map_or_else(unknown, on_one_line))),
            ("attempts", Some(self.attempts.map_or_else(unknown, |count| count.to_string()))),
            ("age", Some(age_line(self.age_seconds, self.enqueued_at))),
            ("original id", self.original_id.clone()),
            ("group", self.group.as_deref().map(on_one_line)),
            ("routing key", self.routing_key.as_deref().map(on_one_line)),
            ("size", size),
        ];
        if let Some(whole) = &self.whole {
            lines.extend(whole.lines(&STORY));
        }
        page(lines)
    }
}

/// Maximum length of a reason in a list, in bytes.
pub(super) const MAX_LISTED: usize = 1024;

/// Attributes for which [`DeadLetter::page`] prints separate lines. The page does not repeat them in its list of
/// attributes.
const STORY: [&str; 4] = [REASON_ATTRIBUTE, SOURCE_ATTRIBUTE, ATTEMPTS_ATTRIBUTE, ORIGINAL_ID_ATTRIBUTE];

fn unknown() -> String {
    "-".to_owned()
}

/// Formats the dead letters as human-readable text, with one line for each dead letter.
pub(super) fn table(letters: &[DeadLetter]) -> String {
    let cells: Vec<Vec<String>> = letters
        .iter()
        .map(|letter| {
            let attempts = letter.attempts.map_or_else(unknown, |count| count.to_string());
            let source = letter.source.as_deref().map_or_else(unknown, on_one_line);
            vec![letter.id.clone(), source, attempts, letter.age()]
        })
        .collect();
    let left = table::table(&["ID", "SOURCE", "ATTEMPTS", "AGE"], &cells);
    let reason = |reason: &str| on_one_line(&shortened(reason, MAX_LISTED));
    let reasons = letters.iter().map(|letter| letter.reason.as_deref().map_or_else(unknown, reason));
    let reasons = std::iter::once("REASON".to_owned()).chain(reasons);
    left.lines().zip(reasons).map(|(line, reason)| format!("{line}  {reason}")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn sent() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(60)
    }

    fn message() -> Message {
        let text = |text: &str| AttributeValue::Text(text.to_owned());
        Message {
            attributes: [
                (REASON_ATTRIBUTE.to_owned(), text("can't find\na \"customer\"")),
                (SOURCE_ATTRIBUTE.to_owned(), text("orders")),
                (ATTEMPTS_ATTRIBUTE.to_owned(), text("3")),
                ("tenant".to_owned(), AttributeValue::Binary(vec![0, 255])),
            ]
            .into(),
            enqueued_at: sent(),
            ..Message::new("7", "{}\n")
        }
    }

    fn letter() -> DeadLetter {
        DeadLetter::of(&message(), sent() + Duration::from_millis(90_900)).in_whole(&message())
    }

    #[test]
    fn a_list_has_a_line_each_whatever_the_reason() {
        let nameless = DeadLetter::of(&Message { attributes: Default::default(), ..message() }, SystemTime::UNIX_EPOCH);
        let expected = "ID  SOURCE  ATTEMPTS     AGE  REASON\n\
                        7   orders         3  1m 30s  can't find\\na \"customer\"\n\
                        7        -         -      0s  -";
        assert_eq!(table(&[letter(), nameless]), expected);
    }

    #[test]
    fn a_list_cuts_a_reason_that_a_page_shows_whole() {
        let mut long = letter();
        long.reason = Some("x".repeat(2000));
        assert!(table(std::slice::from_ref(&long)).ends_with(&format!("  {}… (cut, of 2000 bytes)", "x".repeat(1024))));
        assert!(long.page().contains(&"x".repeat(2000)));
    }

    #[test]
    fn a_page_has_what_is_known_and_the_body_only_if_asked_for() {
        let page = letter().page();
        for line in [
            "reason        can't find\\na \"customer\"",
            "attempts      3",
            "attribute     tenant = base64 AP8=",
            "body          {}\\n",
        ] {
            assert!(page.lines().any(|one| one == line), "{line} in {page}");
        }
        assert!(!page.contains("original id") && !letter().without_body().page().contains("{}"));
    }

    #[test]
    fn programs_get_bytes_in_base64_and_numbers_as_numbers() {
        let json = serde_json::to_value(letter()).unwrap();
        assert_eq!((&json["attempts"], &json["age_seconds"], &json["size_bytes"]), (&3.into(), &90.into(), &3.into()));
        assert_eq!(
            (json["attributes"]["tenant"]["base64"].as_str(), json["body"].as_str()),
            (Some("AP8="), Some("{}\n"))
        );
        assert!(
            json["original_id"].is_null()
                && serde_json::to_value(letter().without_body()).unwrap().get("body").is_none()
        );
    }
}
