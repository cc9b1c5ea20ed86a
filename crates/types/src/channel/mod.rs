//! Channels: the names of the destinations that producers send to and consumers receive from.

mod filter;

pub use filter::Filter;

use std::fmt;
use std::str::FromStr;

/// Maximum length of the name of a queue or exchange in bytes. SQS allows 80 characters, which must include the
/// suffixes `-dlq` and `.fifo`.
pub const MAX_NAME: usize = 71;

/// A channel. The name has the form `<queue>` for a single queue. For a fan-out channel, the name has the form
/// `<exchange>.<queue>`: a topic and one of the queues that are subscribed to the topic.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Channel {
    exchange: Option<String>,
    queue: String,
}

impl Channel {
    /// Returns the topic that producers publish to. `None`: the channel is a single queue.
    pub fn exchange(&self) -> Option<&str> {
        self.exchange.as_deref()
    }

    /// Returns the queue that the consumer receives from.
    pub fn queue(&self) -> &str {
        &self.queue
    }

    /// Returns the channel of the queue without the exchange. A message that is sent to the returned channel reaches no
    /// other queue of the exchange.
    pub fn alone(&self) -> Self {
        Self { exchange: None, queue: self.queue.clone() }
    }

    /// Returns the channel that this dead-letter queue belongs to. `None`: this channel's name is not the name of a
    /// dead-letter queue.
    pub fn of_dead_letters(&self) -> Option<Self> {
        self.queue.strip_suffix("-dlq")?.parse().ok()
    }

    /// Returns the name of the queue's dead-letter queue.
    pub fn dead_letter_queue(&self) -> String {
        format!("{}-dlq", self.queue)
    }
}

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.exchange {
            Some(exchange) => write!(f, "{exchange}.{}", self.queue),
            None => f.write_str(&self.queue),
        }
    }
}

/// The error for a string that is not a valid channel name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a valid channel name: write `<queue>` or `<exchange>.<queue>`, each 1 to {MAX_NAME} of A-Z a-z 0-9 _ -"
)]
pub struct InvalidChannel(String);

impl FromStr for Channel {
    type Err = InvalidChannel;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (exchange, queue) = match text.split_once('.') {
            Some((exchange, queue)) => (Some(exchange), queue),
            None => (None, text),
        };
        if !is_name(queue) || !exchange.is_none_or(is_name) {
            return Err(InvalidChannel(text.to_owned()));
        }
        Ok(Self { exchange: exchange.map(str::to_owned), queue: queue.to_owned() })
    }
}

fn is_name(name: &str) -> bool {
    // The suffix of a dead-letter queue does not count. Even the dead-letter queue of a queue with the longest name
    // therefore has a valid name.
    let counted = name.strip_suffix("-dlq").unwrap_or(name);
    (1..=MAX_NAME).contains(&counted.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_both_forms() {
        let plain: Channel = "orders".parse().unwrap();
        assert_eq!((plain.exchange(), plain.queue()), (None, "orders"));
        let fanned: Channel = "uploads.thumbnails".parse().unwrap();
        assert_eq!((fanned.exchange(), fanned.queue()), (Some("uploads"), "thumbnails"));
        assert_eq!(fanned.to_string(), "uploads.thumbnails");
        assert_eq!(fanned.dead_letter_queue(), "thumbnails-dlq");
        assert_eq!(fanned.alone().to_string(), "thumbnails");
        let dead: Channel = fanned.dead_letter_queue().parse().unwrap();
        assert_eq!((dead.of_dead_letters(), fanned.of_dead_letters()), (Some(fanned.alone()), None));
        let longest: Channel = "x".repeat(MAX_NAME).parse().unwrap();
        assert!(longest.dead_letter_queue().parse::<Channel>().is_ok());
    }

    #[test]
    fn refuses_what_sqs_would_refuse() {
        for bad in ["", ".", "a.", ".a", "a.b.c", "a b", "ä", &"x".repeat(MAX_NAME + 1)] {
            let error = bad.parse::<Channel>().unwrap_err();
            assert!(error.to_string().contains(bad), "{error}");
        }
    }
}
