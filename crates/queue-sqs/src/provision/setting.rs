//! The desired value of one attribute: its form for AWS, and its comparison with the value that AWS returns.

use std::fmt;
use std::time::Duration;

use bytesize::ByteSize;
use serde_json::{Value as Json, json};

use super::account::{Account, name_in};

pub(super) const VISIBILITY_TIMEOUT: &str = "VisibilityTimeout";
pub(super) const RETENTION: &str = "MessageRetentionPeriod";
pub(super) const REDRIVE_POLICY: &str = "RedrivePolicy";
pub(super) const WAIT_TIME: &str = "ReceiveMessageWaitTimeSeconds";
pub(super) const MAX_SIZE: &str = "MaximumMessageSize";
pub(super) const DEDUPLICATION_SCOPE: &str = "DeduplicationScope";
pub(super) const THROUGHPUT_LIMIT: &str = "FifoThroughputLimit";
/// Name of the attribute that selects the part of a message to which a subscription's filter applies. AWS omits this
/// attribute if it has the default value.
pub(super) const FILTER_SCOPE: &str = "FilterPolicyScope";

/// An attribute of a queue, a topic or a subscription, with its desired value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Setting {
    /// Name on AWS.
    pub(super) attribute: &'static str,
    /// Human-readable name.
    pub(super) label: &'static str,
    pub(super) value: Value,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Seconds(u64),
    /// Minimum number of seconds. A longer existing time is accepted, because shortening it could delete messages.
    SecondsAtLeast(u64),
    Bytes(usize),
    Text(String),
    /// Redrive policy. `None`: no redrive policy.
    Redrive(Option<Redrive>),
    /// Filter policy. `None`: no filter policy.
    Filter(Option<Json>),
}

/// A redrive policy, which moves failed messages to a dead-letter queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Redrive {
    /// AWS name of the dead-letter queue.
    pub(super) to: String,
    /// Number of times that a message can be received before it is moved to the dead-letter queue. `None`: the policy
    /// belongs to a subscription, and such a policy has no count.
    pub(super) after: Option<u32>,
}

/// A difference between the observed and the desired value of an attribute. Both values are human-readable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Difference {
    pub(super) seen: String,
    pub(super) wanted: String,
}

impl Setting {
    pub(super) fn new(attribute: &'static str, label: &'static str, value: Value) -> Self {
        Self { attribute, label, value }
    }

    pub(super) fn flag(attribute: &'static str, label: &'static str) -> Self {
        Self::new(attribute, label, Value::Text("true".into()))
    }

    /// Returns `true` if a new resource has this value by default.
    pub(super) fn goes_without_saying(&self) -> bool {
        matches!(self.value, Value::Redrive(None) | Value::Filter(None))
    }

    /// Returns the value as text for AWS. Converts names of queues to ARNs in `account`. `None`: the text needs an
    /// account, but the account is unknown.
    pub(super) fn text(&self, account: Option<&Account>) -> Option<String> {
        Some(match &self.value {
            Value::Seconds(number) | Value::SecondsAtLeast(number) => number.to_string(),
            Value::Bytes(number) => number.to_string(),
            Value::Text(text) => text.clone(),
            // SQS removes a policy that is set to an empty string.
            Value::Redrive(None) => String::new(),
            Value::Redrive(Some(Redrive { to, after })) => {
                let mut policy = json!({"deadLetterTargetArn": account?.queue(to)});
                if let Some(after) = after {
                    policy["maxReceiveCount"] = json!(after);
                }
                policy.to_string()
            }
            // SNS removes a filter that is set to an empty object.
            Value::Filter(filter) => filter.as_ref().map_or_else(|| "{}".into(), Json::to_string),
        })
    }

    /// Returns the difference between the desired value and the value that AWS returned. `None`: the values are equal,
    /// even if their notations differ.
    pub(super) fn difference(&self, seen: Option<&str>, account: &Account) -> Option<Difference> {
        let seen = seen.or_else(|| default_of(self.attribute));
        let (agrees, words) = match &self.value {
            Value::Seconds(wanted) => {
                let seen = number(seen);
                (seen == Some(*wanted), seen.map(seconds))
            }
            Value::SecondsAtLeast(wanted) => {
                let seen = number(seen);
                (seen.is_some_and(|seen| seen >= *wanted), seen.map(seconds))
            }
            Value::Bytes(wanted) => {
                let seen = number(seen);
                (seen == u64::try_from(*wanted).ok(), seen.map(bytes))
            }
            Value::Text(wanted) => (seen == Some(wanted), seen.map(str::to_owned)),
            Value::Redrive(wanted) => {
                let seen = seen.and_then(SeenRedrive::read);
                let agrees = match (wanted, &seen) {
                    (None, None) => true,
                    (Some(wanted), Some(seen)) => {
                        seen.target == account.queue(&wanted.to) && seen.after == wanted.after
                    }
                    _ => false,
                };
                (agrees, seen.map(|seen| seen.words(account)))
            }
            Value::Filter(wanted) => {
                let seen = seen.and_then(json_object);
                (seen == *wanted, seen.map(|seen| seen.to_string()))
            }
        };
        let words = words.unwrap_or_else(|| "none".into());
        (!agrees).then(|| Difference { seen: words, wanted: self.value.to_string() })
    }
}

/// Returns the default value of an attribute that AWS may omit from its answers.
fn default_of(attribute: &str) -> Option<&'static str> {
    match attribute {
        FILTER_SCOPE => Some("MessageAttributes"),
        DEDUPLICATION_SCOPE => Some("queue"),
        THROUGHPUT_LIMIT => Some("perQueue"),
        _ => None,
    }
}

/// A redrive policy that AWS returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct SeenRedrive {
    pub(super) target: String,
    pub(in super::super) after: Option<u32>,
}

impl SeenRedrive {
    /// Parses a redrive policy. `None`: the text contains no policy.
    pub(in super::super) fn read(text: &str) -> Option<Self> {
        let policy = json_object(text)?;
        // AWS returns the count as it was set: as a number or as a string.
        let after = policy.get("maxReceiveCount");
        let after = after.and_then(|after| after.as_u64().or_else(|| after.as_str()?.parse().ok()));
        Some(Self {
            target: policy.get("deadLetterTargetArn")?.as_str()?.to_owned(),
            after: after.and_then(|after| u32::try_from(after).ok()),
        })
    }

    fn words(&self, account: &Account) -> String {
        let name = name_in(&self.target);
        // A queue of another account or region may have the same name.
        let to = if account.queue(name) == self.target { name } else { &self.target };
        Redrive { to: to.to_owned(), after: self.after }.to_string()
    }
}

/// Parses a JSON object. `None`: the text is not a JSON object, or the object is empty.
pub(super) fn json_object(text: &str) -> Option<Json> {
    let value: Json = serde_json::from_str(text).ok()?;
    value.as_object().is_some_and(|object| !object.is_empty()).then_some(value)
}

fn number(text: Option<&str>) -> Option<u64> {
    text?.parse().ok()
}

fn seconds(number: u64) -> String {
    humantime::format_duration(Duration::from_secs(number)).to_string()
}

fn bytes(number: u64) -> String {
    ByteSize(number).to_string()
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Seconds(number) | Self::SecondsAtLeast(number) => f.write_str(&seconds(*number)),
            Self::Bytes(number) => f.write_str(&bytes(u64::try_from(*number).unwrap_or(u64::MAX))),
            Self::Text(text) => f.write_str(text),
            Self::Redrive(Some(redrive)) => redrive.fmt(f),
            Self::Filter(Some(filter)) => filter.fmt(f),
            Self::Redrive(None) | Self::Filter(None) => f.write_str("none"),
        }
    }
}

impl fmt::Display for Redrive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "to {}", self.to)?;
        match self.after {
            Some(after) => write!(f, " after {after} receives"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account() -> Account {
        Account::of("arn:aws:sqs:eu-west-1:123456789012:orders").unwrap()
    }

    fn differs(value: Value, seen: &str) -> Option<String> {
        let difference = Setting::new("X", "x", value).difference(Some(seen), &account())?;
        Some(format!("{} → {}", difference.seen, difference.wanted))
    }

    fn redrive(after: Option<u32>) -> Value {
        Value::Redrive(Some(Redrive { to: "orders-dlq".into(), after }))
    }

    #[test]
    fn what_it_writes_is_what_it_wants_to_read() {
        let filter = json!({"routing-key": ["a", {"prefix": "b"}]});
        let values = [
            Value::Seconds(30),
            Value::SecondsAtLeast(30),
            Value::Bytes(1024),
            Value::Text("alias/queues".into()),
            redrive(Some(5)),
            redrive(None),
            Value::Redrive(None),
            Value::Filter(Some(filter)),
            Value::Filter(None),
        ];
        for value in values {
            let setting = Setting::new("X", "x", value);
            let text = setting.text(Some(&account()));
            assert_eq!(setting.difference(text.as_deref(), &account()), None, "{setting:?}");
        }
    }

    #[test]
    fn how_it_is_written_does_not_matter() {
        let spaced =
            r#"{ "maxReceiveCount": "5", "deadLetterTargetArn": "arn:aws:sqs:eu-west-1:123456789012:orders-dlq" }"#;
        assert_eq!(differs(redrive(Some(5)), spaced), None);
        let ordered = json!({"routing-key": [{"anything-but": ["a"]}], "kind": ["b"]});
        assert_eq!(
            differs(Value::Filter(Some(ordered)), r#"{"kind":["b"], "routing-key":[{"anything-but":["a"]}]}"#),
            None
        );
        let absent = Setting::new("X", "x", Value::Redrive(None));
        assert_eq!(absent.difference(None, &account()), None);
        let scope = Setting::new(FILTER_SCOPE, "x", Value::Text("MessageAttributes".into()));
        assert_eq!(scope.difference(None, &account()), None);
        assert!(scope.difference(Some("MessageBody"), &account()).is_some());
    }

    #[test]
    fn differences_are_told_in_words() {
        assert_eq!(differs(Value::Seconds(90), "30").unwrap(), "30s → 1m 30s");
        assert_eq!(differs(Value::Seconds(90), "91").unwrap(), "1m 31s → 1m 30s");
        assert_eq!(differs(Value::SecondsAtLeast(90), "30").unwrap(), "30s → 1m 30s");
        assert_eq!(differs(Value::SecondsAtLeast(90), "91"), None);
        assert_eq!(differs(redrive(Some(5)), "").unwrap(), "none → to orders-dlq after 5 receives");
        let elsewhere = r#"{"deadLetterTargetArn":"arn:aws:sqs:eu-west-1:9:orders-dlq","maxReceiveCount":5}"#;
        assert_eq!(
            differs(redrive(Some(5)), elsewhere).unwrap(),
            "to arn:aws:sqs:eu-west-1:9:orders-dlq after 5 receives → to orders-dlq after 5 receives"
        );
        let too_soon = r#"{"deadLetterTargetArn":"arn:aws:sqs:eu-west-1:123456789012:orders-dlq","maxReceiveCount":2}"#;
        let to = "to orders-dlq after";
        assert_eq!(differs(redrive(Some(5)), too_soon).unwrap(), format!("{to} 2 receives → {to} 5 receives"));
        assert_eq!(differs(Value::Redrive(None), too_soon).unwrap(), format!("{to} 2 receives → none"));
        assert_eq!(differs(Value::Filter(None), r#"{"a":["b"]}"#).unwrap(), r#"{"a":["b"]} → none"#);
    }
}
