//! Looks over the messages that the server delivered when a connection was lost.
//!
//! Three kinds of them have to be told apart, because the server delivers them all again:
//! - Those that came.
//! - Those that the client library cannot read, which end the connection each time: see `frames`. They are set aside: a readable copy goes
//!   to the dead-letter queue, and then the original is acknowledged. Without a dead-letter queue, they stay, and rest for a while.
//! - Those that were lost with the connection. No handler has seen them, so this delivery is no attempt.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use futures_util::future::try_join_all;
use hostler_queue::QueueError;
use hostler_types::channel::{Channel, Filter};
use serde_json::Value;
use tokio::time::timeout;

use super::Service;
use super::acks::{DONE, back_after};
use super::api::{self, PublishError};
use super::envelope::Mail;
use super::frames::Unreadable;
use super::hand::Key;
use super::line::Unanswered;
use super::raw::{self, RawMessage};
use super::stamp::Stamp;

/// Number of messages that are read at the same time.
const PARTS: u64 = 16;

/// Number of messages that are looked at after one loss.
const MOST: usize = 20_000;

/// Number of messages without an acknowledgement from which on only new ones are looked at.
const MANY: u64 = 10_000;

/// Maximum time for a look.
const PATIENCE: Duration = Duration::from_secs(20);

/// Time for which a message rests that can neither be read nor be dead-lettered.
const REST: Duration = Duration::from_secs(600);

/// A consumer of a stream, and the queue that its messages are for.
#[derive(Debug, Clone)]
pub(crate) struct Watched {
    pub(crate) stream: String,
    pub(crate) consumer: String,
    /// The exchange whose stream it is. `None`: it is the stream of the queue.
    pub(crate) exchange: Option<String>,
    /// Filter for the messages of the exchange.
    pub(crate) filter: Filter,
    /// The channel, for the story of dead letters.
    pub(crate) channel: Channel,
    /// Name of the dead-letter queue, without the prefix. `None`: there is none.
    pub(crate) dead_letters: Option<String>,
}

/// Progress of a consumer, as the server tells it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Progress {
    /// All messages up to this sequence number are acknowledged.
    floor: u64,
    /// All messages up to this sequence number were delivered.
    delivered: u64,
    /// Number of the last delivery.
    deliveries: u64,
    /// Number of messages that were delivered and are not acknowledged.
    unacknowledged: u64,
}

impl Progress {
    fn read(info: &Value) -> Self {
        let number = |value: &Value| value.as_u64().unwrap_or_default();
        Self {
            floor: number(&info["ack_floor"]["stream_seq"]),
            delivered: number(&info["delivered"]["stream_seq"]),
            deliveries: number(&info["delivered"]["consumer_seq"]),
            unacknowledged: number(&info["num_ack_pending"]),
        }
    }

    /// Returns the parts into which the sequence numbers to look at are split. `seen`: the highest one that has come here.
    fn parts(self, seen: u64) -> Vec<(u64, u64)> {
        let floor = if self.unacknowledged > MANY { self.floor.max(seen) } else { self.floor };
        let count = self.delivered.saturating_sub(floor);
        let size = count.div_ceil(PARTS).max(1);
        let begins = (0..PARTS).map(|part| floor + 1 + part * size).take_while(|begin| *begin <= self.delivered);
        begins.map(|begin| (begin, (begin + size - 1).min(self.delivered))).collect()
    }
}

#[derive(Debug, Default)]
struct State {
    /// Number of lost connections at the last request for messages. `None`: there was none.
    asked_after: Option<u64>,
    /// Highest sequence number of the messages that have come, or that were looked at.
    seen: u64,
}

/// A message, as the look found it.
enum Found {
    Unreadable(RawMessage, Unreadable),
    /// It did not come, though it was delivered.
    Lost {
        sequence: u64,
        stored_at: u64,
    },
}

/// Keeps what the client library cannot read from ending the connections of a consumer.
pub(crate) struct Screening {
    service: Arc<Service>,
    watched: Watched,
    state: Mutex<State>,
}

impl Screening {
    pub(crate) fn new(service: Arc<Service>, watched: Watched) -> Self {
        Self { service, watched, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a message came.
    pub(crate) fn saw(&self, sequence: u64) {
        let mut state = self.lock();
        state.seen = state.seen.max(sequence);
    }

    /// Prepares a request for messages. After a loss of the connection, looks over what was delivered before.
    ///
    /// # Errors
    /// The server does not answer.
    pub(crate) async fn before_ask(&self) -> Result<(), QueueError> {
        let losses = self.service.line.losses();
        let asked_after = self.lock().asked_after;
        if asked_after == Some(losses) {
            return Ok(());
        }
        let Watched { stream, consumer, .. } = &self.watched;
        // The request itself will tell that the consumer is gone.
        let Some(info) = api::consumer(&self.service.line, stream, consumer).await? else { return Ok(()) };
        let progress = Progress::read(&info);
        if asked_after.is_some() {
            let slow = |_| QueueError::Unavailable(format!("cannot look over `{stream}` within {PATIENCE:?}"));
            timeout(PATIENCE, self.look_over(progress)).await.map_err(slow)??;
        }
        *self.lock() = State { asked_after: Some(losses), seen: progress.delivered };
        Ok(())
    }

    async fn look_over(&self, progress: Progress) -> Result<(), QueueError> {
        let (seen, left) = (self.lock().seen, AtomicUsize::new(MOST));
        let parts = progress.parts(seen).into_iter().map(|part| self.look_at(part, seen, &left));
        let found = try_join_all(parts).await?.into_iter().flatten();
        if left.load(Ordering::Relaxed) == 0 {
            let stream = &self.watched.stream;
            tracing::warn!(stream, "only {MOST} messages were looked at after the loss of the connection");
        }
        let (mut unreadable, mut lost) = (0_usize, Vec::new());
        for found in found {
            match found {
                Found::Unreadable(message, why) => {
                    unreadable += 1;
                    self.set_aside(&message, why, progress).await?;
                }
                Found::Lost { sequence, stored_at } => lost.push((sequence, stored_at)),
            }
        }
        let (stream, lost_count) = (&self.watched.stream, lost.len());
        tracing::debug!(stream, unreadable, lost = lost_count, "looked over what was delivered before the loss");
        // Only queues count attempts.
        if self.watched.exchange.is_none() {
            self.uncount(&lost).await;
        }
        Ok(())
    }

    /// Looks at the stored messages between two sequence numbers, both of them included.
    async fn look_at(
        &self,
        (mut from, to): (u64, u64),
        seen: u64,
        left: &AtomicUsize,
    ) -> Result<Vec<Found>, QueueError> {
        let (line, stream, mut found) = (&self.service.line, &self.watched.stream, Vec::new());
        let has_room = || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
        while from <= to && has_room() {
            let Some(message) = raw::next(line, stream, from, ">").await?.filter(|message| message.sequence <= to)
            else {
                break;
            };
            let RawMessage { sequence, stored_at, .. } = message;
            match raw::fault(line, stream, &message).await? {
                Some(why) => found.push(Found::Unreadable(message, why)),
                // Messages come in their order, apart from those that were delivered before.
                None if sequence > seen => found.push(Found::Lost { sequence, stored_at }),
                None => {}
            }
            from = sequence + 1;
        }
        Ok(found)
    }

    /// Stores a readable copy in the dead-letter queue, and then removes the message for this consumer.
    async fn set_aside(&self, message: &RawMessage, why: Unreadable, progress: Progress) -> Result<(), QueueError> {
        let (Watched { stream, exchange, filter, .. }, sequence) = (&self.watched, message.sequence);
        let stamp = Stamp { sequence, deliveries: 1, stored_at: message.stored_at };
        let (subject, now) = (message.subject.as_str().into(), SystemTime::now());
        let mail = Mail::read(&self.service.names, message.readable(), subject, stamp, exchange.as_deref(), false, now);
        if !filter.passes(mail.message.routing_key.as_deref()) {
            return self.acknowledge(message, DONE.to_owned(), progress).await;
        }
        let message_id = &mail.message.id;
        let reason = format!("clients of NATS cannot read the message: {why}");
        match self.store(&mail, &reason).await {
            Ok(()) => {
                tracing::warn!(stream, sequence, message_id, reason, "dead-lettered by the queue");
                self.acknowledge(message, DONE.to_owned(), progress).await
            }
            Err(Kept::Passing(error)) => Err(error),
            Err(Kept::Here(error)) => {
                tracing::warn!(
                    stream,
                    sequence,
                    message_id,
                    reason,
                    error,
                    "a message stays in the queue, and ends the connection each time that it is delivered: remove it with \
                     `nats stream rmm`"
                );
                self.acknowledge(message, back_after(REST), progress).await
            }
        }
    }

    async fn store(&self, mail: &Mail, reason: &str) -> Result<(), Kept> {
        let (service, watched) = (&self.service, &self.watched);
        let Some(dead_letters) = &watched.dead_letters else {
            return Err(Kept::Here("the queue has no dead-letter queue".to_owned()));
        };
        let places = (&*watched.stream, &**dead_letters);
        let story = (reason, &*watched.channel.to_string(), 0);
        let copy = mail.dead_letter(&service.names, places, story, service.line.max_payload());
        match api::publish(&service.line, &service.names.queue(dead_letters), copy).await {
            Ok(_) => Ok(()),
            Err(PublishError::Missing) => Err(Kept::Here(format!("the queue `{dead_letters}` is missing"))),
            Err(PublishError::TooLarge(error) | PublishError::Other(QueueError::Refused(error))) => {
                Err(Kept::Here(error))
            }
            Err(PublishError::Unattended(why) | PublishError::Conflict(why)) => {
                Err(Kept::Passing(QueueError::Unavailable(why)))
            }
            Err(PublishError::Other(error)) => Err(Kept::Passing(error)),
        }
    }

    /// Acknowledges a delivery that did not come. The server goes by the sequence number alone.
    async fn acknowledge(
        &self,
        message: &RawMessage,
        acknowledgement: String,
        progress: Progress,
    ) -> Result<(), QueueError> {
        let Watched { stream, consumer, .. } = &self.watched;
        let subject = Stamp { sequence: message.sequence, deliveries: 1, stored_at: message.stored_at }.reply(
            stream,
            consumer,
            progress.deliveries,
        );
        match self.service.line.request(&subject, None, acknowledgement.into()).await {
            // Without responders, the consumer is gone, and its deliveries with it.
            Ok(_) | Err(Unanswered::NoResponders) => Ok(()),
            Err(error) => Err(error.of(&format!("acknowledge a message of the stream `{stream}`"))),
        }
    }

    /// Notes that deliveries are no attempts.
    async fn uncount(&self, lost: &[(u64, u64)]) {
        for chunk in lost.chunks(64) {
            let noting = chunk.iter().map(|(sequence, stored_at)| {
                let key = Key { sequence: *sequence, deliveries: 1 };
                self.service.notes.write(&self.watched.stream, key, *stored_at, 1)
            });
            futures_util::future::join_all(noting).await;
        }
    }
}

/// Reason why a message is not stored in the dead-letter queue.
enum Kept {
    /// It may work the next time.
    Passing(QueueError),
    /// The message stays where it is.
    Here(String),
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_sequence_number_that_was_delivered_is_in_one_part() {
        for (floor, delivered) in [(0, 0), (0, 1), (5, 5), (5, 20), (5, 22), (0, 1_000), (7, 1_000_003)] {
            let parts = Progress { floor, delivered, ..Progress::default() }.parts(0);
            assert!(parts.len() as u64 <= PARTS);
            let mut next = floor + 1;
            for (begin, end) in parts {
                assert!(begin == next && end >= begin, "{floor} {delivered}");
                next = end + 1;
            }
            assert_eq!(next, delivered + 1, "{floor} {delivered}");
        }
    }

    #[test]
    fn of_many_only_the_new_ones_are_looked_at() {
        let progress = Progress { floor: 10, delivered: 90_000, unacknowledged: MANY + 1, deliveries: 0 };
        assert_eq!(progress.parts(89_999), [(90_000, 90_000)]);
        assert_eq!(progress.parts(90_000), []);
        assert_eq!(progress.parts(3)[0].0, 11);
        assert_eq!(Progress { unacknowledged: MANY, ..progress }.parts(89_999)[0].0, 11);
    }

    #[test]
    fn the_progress_of_a_consumer_is_read() {
        let info = json!({
            "delivered": { "consumer_seq": 9, "stream_seq": 7 }, "ack_floor": { "consumer_seq": 2, "stream_seq": 3 },
            "num_ack_pending": 4,
        });
        let progress = Progress { floor: 3, delivered: 7, deliveries: 9, unacknowledged: 4 };
        assert_eq!(Progress::read(&info), progress);
        assert_eq!(Progress::read(&json!({})), Progress::default());
    }
}
