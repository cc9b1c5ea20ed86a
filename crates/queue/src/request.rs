//! Requests: messages to a subject, which a receiver acknowledges. Nothing stores them on the way.

use std::time::Duration;

use hostler_types::message::Outgoing;

/// Longest subject in bytes.
const LONGEST: usize = 255;

/// A message for the receivers of a subject.
#[derive(Debug, Clone)]
pub struct Request {
    /// Subject to send to, without wildcards.
    pub subject: String,
    /// The message. Its attributes are headers of the request.
    pub message: Outgoing,
    /// Way in which the request is acknowledged.
    pub terms: Terms,
}

/// Way in which requests are acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// Longest wait for the answer. A receiver that reports to be working makes it begin anew.
    pub timeout: Duration,
    /// Subject of the retry service, which takes the messages that no receiver acknowledges. `None`: such a message fails.
    pub fallback: Option<String>,
}

impl Default for Terms {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(30), fallback: None }
    }
}

/// The end of a request whose message has arrived somewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Requested {
    /// A receiver acknowledged the message.
    Accepted {
        /// Id of the message.
        id: String,
    },
    /// The retry service has stored the message, and delivers it later.
    HandedOver {
        /// Id of the message in the retry service.
        id: String,
        /// Reason why no receiver acknowledged the message.
        why: String,
    },
}

impl Requested {
    /// Returns the id of the message.
    pub fn into_id(self) -> String {
        match self {
            Self::Accepted { id } | Self::HandedOver { id, .. } => id,
        }
    }
}

/// Checks that a text is a subject to which a message can be sent.
///
/// # Errors
/// The fault.
pub fn check_subject(text: &str) -> Result<(), &'static str> {
    if text.is_empty() || text.len() > LONGEST {
        return Err("a subject has 1 to 255 bytes");
    }
    if text.split('.').any(|token| matches!(token, "" | "*" | ">")) {
        return Err("name one subject: no token between its dots may be empty or a wildcard");
    }
    if text.contains(|char: char| char.is_whitespace() || char.is_control()) || text.starts_with('$') {
        return Err("a subject has no spaces, and does not begin with `$`");
    }
    Ok(())
}

/// Returns `true` if a pattern with the wildcards of NATS matches a subject: `*` stands for one token, and `>` at the end for one or
/// more.
pub fn matches(pattern: &str, subject: &str) -> bool {
    let (mut wanted, mut given) = (pattern.split('.'), subject.split('.'));
    loop {
        match (wanted.next(), given.next()) {
            (None, None) => return true,
            (Some(">"), Some(_)) => return true,
            (Some(token), Some(other)) if token == "*" || token == other => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_goes_to_one_subject() {
        for fine in ["webhooks", "webhooks.a", "a.b-c.d_e", "größe.1", "a*b"] {
            assert_eq!(check_subject(fine), Ok(()), "{fine}");
        }
        for wrong in ["", ".", "a..b", "a.", "a.*", ">", "a.>", "a b", "a.b\n", "$SRV.PING", &"x".repeat(256)] {
            assert!(check_subject(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn wildcards_stand_for_whole_tokens() {
        for (pattern, subject, expected) in [
            ("webhooks.a", "webhooks.a", true),
            ("webhooks.a", "webhooks.b", false),
            ("webhooks.*", "webhooks.a", true),
            ("webhooks.*", "webhooks", false),
            ("webhooks.*", "webhooks.a.b", false),
            ("*.a", "webhooks.a", true),
            ("webhooks.>", "webhooks.a.b", true),
            ("webhooks.>", "webhooks", false),
            (">", "webhooks", true),
            ("web*", "webhooks", false),
        ] {
            assert_eq!(matches(pattern, subject), expected, "{pattern} {subject}");
        }
    }
}
