//! Parses conditions on messages, for example `attr:tenant=7` and `older:2h`.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use hostler_queue::{ORIGINAL_ID_ATTRIBUTE, REASON_ATTRIBUTE};
use hostler_types::duration;
use hostler_types::message::{AttributeValue, Message, Plain};

/// A condition on a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// `attr:NAME=VALUE`: the message has this attribute with this value.
    Attribute {
        /// Name of the attribute.
        name: String,
        /// Whole value of the attribute.
        value: String,
    },
    /// `reason~TEXT`: the reason for the dead-lettering contains this text.
    Reason(String),
    /// `older:DURATION`: the message's age exceeds this duration.
    Older(Duration),
    /// `younger:DURATION`: the message's age is below this duration.
    Younger(Duration),
    /// `id=ID`: this set contains the message's id, or the id that the message had before its first move.
    Id(BTreeSet<String>),
    /// `body~TEXT`: the body contains this text.
    Body(String),
}

/// Reason why a string is not a valid condition.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCondition {
    /// The string has none of the valid forms.
    #[error(
        "`{0}` is not a valid filter: write attr:NAME=VALUE, reason~TEXT, older:DURATION, younger:DURATION, id=ID or body~TEXT"
    )]
    Form(String),
    /// The string has a valid form, but contains no value to compare with.
    #[error("`{0}` has nothing to compare with: write {1}")]
    Empty(String, &'static str),
    /// The string contains an invalid duration.
    #[error("`{0}` has no valid duration: write it as 90s, 15m, 2h or 3d")]
    Duration(String),
}

impl FromStr for Condition {
    type Err = InvalidCondition;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let some = |rest: &str, form| match rest {
            "" => Err(InvalidCondition::Empty(text.to_owned(), form)),
            rest => Ok(rest.to_owned()),
        };
        let duration = |rest| duration::parse(rest).map_err(|_| InvalidCondition::Duration(text.to_owned()));
        if let Some(pair) = text.strip_prefix("attr:") {
            let pair = pair.split_once('=').filter(|(name, _)| !name.is_empty());
            let (name, value) = pair.ok_or_else(|| InvalidCondition::Empty(text.to_owned(), "attr:NAME=VALUE"))?;
            return Ok(Self::Attribute { name: name.to_owned(), value: value.to_owned() });
        }
        if let Some(rest) = text.strip_prefix("reason~") {
            return some(rest, "reason~TEXT").map(Self::Reason);
        }
        if let Some(rest) = text.strip_prefix("older:") {
            return duration(rest).map(Self::Older);
        }
        if let Some(rest) = text.strip_prefix("younger:") {
            return duration(rest).map(Self::Younger);
        }
        if let Some(rest) = text.strip_prefix("id=") {
            return some(rest, "id=ID").map(|id| Self::Id(BTreeSet::from([id])));
        }
        if let Some(rest) = text.strip_prefix("body~") {
            return some(rest, "body~TEXT").map(Self::Body);
        }
        Err(InvalidCondition::Form(text.to_owned()))
    }
}

impl Condition {
    /// Returns `true` if the message meets the condition at the time `now`. If [`Self::needs_body`] returns `true`, the
    /// caller must have loaded the body.
    pub fn holds(&self, message: &Message, now: SystemTime) -> bool {
        let text = |name: &str| message.attributes.get(name).and_then(AttributeValue::as_text);
        match self {
            Self::Attribute { name, value } => match message.attributes.get(name).map(AttributeValue::plain) {
                Some(Plain::Text(text)) => text == value,
                Some(Plain::Binary(bytes)) => bytes == value.as_bytes(),
                None => false,
            },
            Self::Reason(part) => text(REASON_ATTRIBUTE).is_some_and(|reason| reason.contains(part)),
            Self::Older(age) => message.age(now) > *age,
            Self::Younger(age) => message.age(now) < *age,
            Self::Id(ids) => {
                ids.contains(&message.id) || text(ORIGINAL_ID_ATTRIBUTE).is_some_and(|id| ids.contains(id))
            }
            Self::Body(part) => {
                let mut windows = message.body.windows(part.len().max(1));
                part.is_empty() || windows.any(|window| window == part.as_bytes())
            }
        }
    }

    /// Returns `true` if the condition reads the body.
    pub fn needs_body(&self) -> bool {
        matches!(self, Self::Body(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1_000_000);

    fn message(age: u64) -> Message {
        let text = |text: &str| AttributeValue::Text(text.to_owned());
        Message {
            attributes: [
                ("tenant".into(), text("a=b")),
                ("bytes".into(), AttributeValue::Binary(b"b".to_vec())),
                (REASON_ATTRIBUTE.into(), text("no such customer")),
                (ORIGINAL_ID_ATTRIBUTE.into(), text("5")),
            ]
            .into(),
            enqueued_at: SystemTime::UNIX_EPOCH + NOW - Duration::from_secs(age),
            ..Message::new("7", "héllo")
        }
    }

    fn holds(text: &str, message: &Message) -> bool {
        text.parse::<Condition>().unwrap().holds(message, SystemTime::UNIX_EPOCH + NOW)
    }

    #[test]
    fn each_form_looks_at_its_part_of_a_message() {
        let message = message(3600);
        for good in [
            "attr:tenant=a=b",
            "attr:bytes=b",
            "reason~such cust",
            "older:59m",
            "younger:61m",
            "id=7",
            "id=5",
            "body~éll",
        ] {
            assert!(holds(good, &message), "{good}");
        }
        for bad in [
            "attr:tenant=a",
            "attr:tenant=",
            "attr:TENANT=a=b",
            "attr:bytes=",
            "reason~Such",
            "older:1h",
            "younger:1h",
            "id=75",
            "body~hello",
            "body~héllo!",
        ] {
            assert!(!holds(bad, &message), "{bad}");
        }
        let mut plain = message;
        plain.attributes.clear();
        assert!(!holds("reason~a", &plain) && !holds("id=5", &plain) && holds("id=7", &plain));
    }

    #[test]
    fn a_fault_is_named_with_its_cure() {
        let error = |text: &str| text.parse::<Condition>().unwrap_err().to_string();
        let forms = "attr:NAME=VALUE, reason~TEXT, older:DURATION, younger:DURATION, id=ID or body~TEXT";
        for text in ["", "tenant", "tenant=7", "attr=7", "older=2h", "id:7", "reason:x", "Older:2h", "="] {
            assert_eq!(error(text), format!("`{text}` is not a valid filter: write {forms}"));
        }
        for (text, form) in [
            ("attr:", "attr:NAME=VALUE"),
            ("attr:tenant", "attr:NAME=VALUE"),
            ("attr:=7", "attr:NAME=VALUE"),
            ("reason~", "reason~TEXT"),
            ("id=", "id=ID"),
            ("body~", "body~TEXT"),
        ] {
            assert_eq!(error(text), format!("`{text}` has nothing to compare with: write {form}"));
        }
        for text in ["older:", "older:5", "younger:soon", "younger:-1h"] {
            assert_eq!(error(text), format!("`{text}` has no valid duration: write it as 90s, 15m, 2h or 3d"));
        }
    }
}
