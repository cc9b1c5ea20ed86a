//! SQS's JSON protocol, without I/O: parses requests and formats answers.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Deserialize;

use crate::Result;
use crate::messages::Made;

/// Action of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Receives messages.
    ReceiveMessage,
    /// Deletes one message.
    DeleteMessage,
    /// Deletes up to ten messages.
    DeleteMessageBatch,
    /// Changes the lease of one message.
    ChangeMessageVisibility,
    /// Changes the leases of up to ten messages.
    ChangeMessageVisibilityBatch,
    /// Returns the URL of the queue.
    GetQueueUrl,
    /// Returns attributes of the queue.
    GetQueueAttributes,
    /// Any other action.
    Other,
}

/// All actions, in the order of the enum.
pub const ACTIONS: [(Action, &str); 8] = [
    (Action::ReceiveMessage, "ReceiveMessage"),
    (Action::DeleteMessage, "DeleteMessage"),
    (Action::DeleteMessageBatch, "DeleteMessageBatch"),
    (Action::ChangeMessageVisibility, "ChangeMessageVisibility"),
    (Action::ChangeMessageVisibilityBatch, "ChangeMessageVisibilityBatch"),
    (Action::GetQueueUrl, "GetQueueUrl"),
    (Action::GetQueueAttributes, "GetQueueAttributes"),
    (Action::Other, "other"),
];

impl Action {
    /// Parses the header `X-Amz-Target`, for example `AmazonSQS.ReceiveMessage`.
    pub fn of(target: &str) -> Self {
        let name = target.strip_prefix("AmazonSQS.").unwrap_or_default();
        ACTIONS.iter().find(|(_, known)| *known == name).map_or(Self::Other, |(action, _)| *action)
    }
}

/// Parameters of all known calls. Parameters that a call lacks are empty.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "PascalCase")]
pub struct Request<'a> {
    /// Name of the requested queue.
    #[serde(borrow)]
    pub queue_name: Cow<'a, str>,
    /// Maximum number of messages. `None`: one.
    pub max_number_of_messages: Option<usize>,
    /// Maximum wait for messages in seconds.
    pub wait_time_seconds: u64,
    /// Requested attributes, by the parameter's old name.
    #[serde(borrow)]
    attribute_names: Vec<Cow<'a, str>>,
    /// Requested attributes, by the parameter's current name.
    #[serde(borrow)]
    message_system_attribute_names: Vec<Cow<'a, str>>,
    /// Receipt of a single message.
    #[serde(borrow)]
    receipt_handle: Cow<'a, str>,
    /// New lease in seconds. 0: visible immediately.
    visibility_timeout: Option<u32>,
    /// Entries of a batch.
    #[serde(borrow)]
    entries: Vec<Entry<'a>>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "PascalCase")]
struct Entry<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow)]
    receipt_handle: Cow<'a, str>,
    visibility_timeout: Option<u32>,
}

impl Request<'_> {
    /// Returns the numbers of the messages in the call, each with its new lease in seconds.
    pub fn named(&self) -> impl Iterator<Item = (u64, Option<u32>)> {
        let one = (!self.receipt_handle.is_empty()).then_some((&self.receipt_handle, self.visibility_timeout));
        let more = self.entries.iter().map(|entry| (&entry.receipt_handle, entry.visibility_timeout));
        one.into_iter().chain(more).filter_map(|(handle, timeout)| Some((number(handle)?, timeout)))
    }

    /// Returns the answer to a batch in which every entry succeeded.
    pub fn all_done(&self) -> Result<String> {
        let mut text = String::from(r#"{"Failed":[],"Successful":["#);
        for (at, entry) in self.entries.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(text, r#"{comma}{{"Id":{}}}"#, serde_json::to_string(&entry.id)?)?;
        }
        text.push_str("]}");
        Ok(text)
    }

    /// Returns the answer with these messages.
    pub fn messages(&self, numbers: &[u64], made: &[Made]) -> Result<String> {
        if numbers.is_empty() {
            return Ok("{}".to_owned());
        }
        let body = made.first().map_or(0, |made| made.quoted.len());
        let mut text = String::with_capacity((1024 + body) * numbers.len());
        text.push_str(r#"{"Messages":["#);
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis();
        let kinds = u64::try_from(made.len())?;
        for (at, number) in numbers.iter().enumerate() {
            let made = made.get(usize::try_from(number % kinds)?).ok_or("no such message")?;
            let comma = if at == 0 { "" } else { "," };
            write!(text, r#"{comma}{{"MessageId":"{:08x}-0000-4000-8000-{number:012x}""#, number % kinds)?;
            write!(
                text,
                r#","ReceiptHandle":"{}","MD5OfBody":"{}","Body":{}"#,
                handle(*number),
                made.md5,
                made.quoted
            )?;
            self.attributes(&mut text, now)?;
            text.push('}');
        }
        text.push_str("]}");
        Ok(text)
    }

    /// Writes the requested attributes of a message.
    fn attributes(&self, text: &mut String, now: u128) -> Result<()> {
        let mut separator = r#","Attributes":{"#;
        let asked = self.message_system_attribute_names.iter().chain(&self.attribute_names);
        let mut asked = asked.map(|name| &**name).collect::<Vec<_>>();
        if asked.contains(&"All") {
            asked = vec!["SenderId", "SentTimestamp", "ApproximateReceiveCount", "ApproximateFirstReceiveTimestamp"];
        }
        for name in asked {
            let value = match name {
                "SenderId" => "AIDACKCEVSQ6C2EXAMPLE".to_owned(),
                "SentTimestamp" | "ApproximateFirstReceiveTimestamp" => now.to_string(),
                "ApproximateReceiveCount" => "1".to_owned(),
                _ => continue,
            };
            write!(text, r#"{separator}"{name}":"{value}""#)?;
            separator = ",";
        }
        if separator == "," {
            text.push('}');
        }
        Ok(())
    }
}

/// Returns a receipt about as long as SQS's receipts.
fn handle(number: u64) -> String {
    format!("AQEB{number:0200x}")
}

fn number(handle: &str) -> Option<u64> {
    u64::from_str_radix(handle.get(handle.len().checked_sub(16)?..)?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{Form, make, order};
    use serde_json::Value;

    #[test]
    fn a_message_can_be_deleted_by_its_receipt() {
        let made = make(Form::Plain, 0).unwrap();
        let asked = r#"{"QueueUrl": "u", "MaxNumberOfMessages": 10, "MessageSystemAttributeNames": ["All"]}"#;
        let request: Request<'_> = serde_json::from_str(asked).unwrap();
        let answer: Value = serde_json::from_str(&request.messages(&[5, 70_000], &made).unwrap()).unwrap();
        assert_eq!(answer["Messages"][0]["Body"], serde_json::to_string(&order(5)).unwrap());
        assert_eq!(answer["Messages"][1]["Attributes"]["ApproximateReceiveCount"], "1");

        let handle = &answer["Messages"][1]["ReceiptHandle"];
        let batch = format!(r#"{{"Entries": [{{"Id": "a", "ReceiptHandle": {handle}, "VisibilityTimeout": 0}}]}}"#);
        let request: Request<'_> = serde_json::from_str(&batch).unwrap();
        assert_eq!(request.named().collect::<Vec<_>>(), [(70_000, Some(0))]);
        assert_eq!(request.all_done().unwrap(), r#"{"Failed":[],"Successful":[{"Id":"a"}]}"#);
    }

    #[test]
    fn attributes_that_nobody_asked_for_stay_away() {
        let made = make(Form::Celery, 0).unwrap();
        let answer: Value = serde_json::from_str(&Request::default().messages(&[1], &made).unwrap()).unwrap();
        assert_eq!(answer["Messages"][0].as_object().unwrap().len(), 4);
    }
}
