//! SQS's JSON protocol: requests as they come, answers as clients expect them. No I/O.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Deserialize;

use crate::Result;
use crate::messages::Made;

/// What a call asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Messages.
    ReceiveMessage,
    /// One message is done.
    DeleteMessage,
    /// Up to ten are.
    DeleteMessageBatch,
    /// One message's lease.
    ChangeMessageVisibility,
    /// Up to ten of them.
    ChangeMessageVisibilityBatch,
    /// Where the queue is.
    GetQueueUrl,
    /// What the queue is like.
    GetQueueAttributes,
    /// Whatever else.
    Other,
}

/// All of them, in their order.
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
    /// By the header `X-Amz-Target`, such as `AmazonSQS.ReceiveMessage`.
    pub fn of(target: &str) -> Self {
        let name = target.strip_prefix("AmazonSQS.").unwrap_or_default();
        ACTIONS.iter().find(|(_, known)| *known == name).map_or(Self::Other, |(action, _)| *action)
    }
}

/// The parameters of every call that is known; those that a call lacks are empty.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "PascalCase")]
pub struct Request<'a> {
    /// Which queue is looked for.
    #[serde(borrow)]
    pub queue_name: Cow<'a, str>,
    /// How many messages at most; none: one.
    pub max_number_of_messages: Option<usize>,
    /// How long to wait for them.
    pub wait_time_seconds: u64,
    /// Which attributes of them, by the parameter's old name.
    #[serde(borrow)]
    attribute_names: Vec<Cow<'a, str>>,
    /// The same by its present name.
    #[serde(borrow)]
    message_system_attribute_names: Vec<Cow<'a, str>>,
    /// Which message.
    #[serde(borrow)]
    receipt_handle: Cow<'a, str>,
    /// How long it stays away; 0: not at all.
    visibility_timeout: Option<u32>,
    /// Several of them.
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
    /// The messages that it names, and for how long each is to stay away.
    pub fn named(&self) -> impl Iterator<Item = (u64, Option<u32>)> {
        let one = (!self.receipt_handle.is_empty()).then_some((&self.receipt_handle, self.visibility_timeout));
        let more = self.entries.iter().map(|entry| (&entry.receipt_handle, entry.visibility_timeout));
        one.into_iter().chain(more).filter_map(|(handle, timeout)| Some((number(handle)?, timeout)))
    }

    /// The answer to a batch of which everything went well.
    pub fn all_done(&self) -> Result<String> {
        let mut text = String::from(r#"{"Failed":[],"Successful":["#);
        for (at, entry) in self.entries.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(text, r#"{comma}{{"Id":{}}}"#, serde_json::to_string(&entry.id)?)?;
        }
        text.push_str("]}");
        Ok(text)
    }

    /// The answer with these messages.
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

    /// The attributes of a message that were asked for.
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

/// About as long as SQS's own.
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
