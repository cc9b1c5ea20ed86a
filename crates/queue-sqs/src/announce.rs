//! Publishes notices for people to an SNS topic.

use std::fmt;

use super::Options;
use super::clients::Clients;
use super::fault::Fault;
use hostler_queue::QueueError;
use hostler_types::BoxFuture;

/// Maximum length of a subject in characters (AWS limit: 100 ASCII characters).
const MAX_SUBJECT: usize = 100;

/// Maximum size of a published message in bytes. The AWS limit is 256 KiB and includes the attributes.
const MAX_TEXT: usize = 250 * 1024;

/// An SNS topic whose subscribers receive notices, for example by email or chat.
pub struct Announcer {
    clients: Clients,
    topic: String,
}

impl fmt::Debug for Announcer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Announcer").field("topic", &self.topic).finish_non_exhaustive()
    }
}

impl Announcer {
    /// Creates an announcer for the topic with the ARN `topic`. Its calls go to the region in the ARN. Makes no call
    /// yet.
    ///
    /// # Errors
    /// [`QueueError::Refused`]: `topic` is not the ARN of a topic.
    pub fn new<'a>(options: &'a Options, topic: &'a str) -> BoxFuture<'a, Result<Self, QueueError>> {
        Box::pin(async move {
            let parts: Vec<_> = topic.split(':').collect();
            let ["arn", _, "sns", region, _, name] = parts[..] else { return Err(no_topic(topic)) };
            if region.is_empty() || name.is_empty() {
                return Err(no_topic(topic));
            }
            let options = Options { region: Some(region.to_owned()), ..options.clone() };
            Ok(Self { clients: Clients::new(&options).await?, topic: topic.to_owned() })
        })
    }

    /// Publishes `text` with this subject, in a single attempt. If `text` has more than 250 KiB, only its beginning is
    /// published. On a FIFO topic, the message group is `hostler`.
    ///
    /// # Errors
    /// [`QueueError`]: SNS did not confirm the publication.
    pub fn publish<'a>(&'a self, subject: &'a str, text: &'a str) -> BoxFuture<'a, Result<(), QueueError>> {
        Box::pin(async move {
            let text = text.get(..text.floor_char_boundary(MAX_TEXT)).unwrap_or_default();
            let message = self.clients.publishes.publish().topic_arn(&self.topic);
            let mut message = message.subject(ascii(subject)).message(text);
            if self.topic.ends_with(".fifo") {
                let id = uuid::Uuid::now_v7().to_string();
                message = message.message_group_id("hostler").message_deduplication_id(id);
            }
            let published = message.send().await;
            published.map(drop).map_err(|error| Fault::of(&format!("Publish to {}", self.topic), &error).into())
        })
    }
}

fn no_topic(text: &str) -> QueueError {
    QueueError::Refused(format!(
        "`{text}` is not the ARN of a topic, such as arn:aws:sns:eu-west-1:123456789012:alarms"
    ))
}

/// Converts a subject to the form that SNS accepts. The result has at most 100 characters, and `?` in place of every
/// character that is not printable ASCII.
fn ascii(subject: &str) -> String {
    let plain = |char: char| if char == ' ' || char.is_ascii_graphic() { char } else { '?' };
    subject.chars().take(MAX_SUBJECT).map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_short_and_plain() {
        assert_eq!(ascii("3 queues\nalarm – ü"), "3 queues?alarm ? ?");
        assert_eq!(ascii(&"x".repeat(200)).len(), MAX_SUBJECT);
    }

    #[tokio::test]
    async fn only_a_topics_arn_will_do() {
        for bad in
            ["", "alarms", "arn:aws:sqs:eu-west-1:1:alarms", "arn:aws:sns::1:alarms", "arn:aws:sns:eu-west-1:1:a:b"]
        {
            let error = Announcer::new(&Options::default(), bad).await.unwrap_err().to_string();
            assert!(error.contains(bad), "{error}");
        }
    }
}
