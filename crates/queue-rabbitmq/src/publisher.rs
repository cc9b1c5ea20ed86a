//! Publishes messages, and waits until the server has confirmed that each is stored in its queues.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hostler_queue::{Link, QueueError};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::FieldTable;
use lapin::{Channel, PublisherConfirm};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};

pub(super) use super::confirms::Routed;
use super::confirms::{Address, Answer, results, to_repeat};
use super::connection::{Line, in_time};
use super::envelope::Parcel;
use super::fault::queue_error;
use super::frame::{self, FrameLimits};
use super::tuning;

/// Maximum time to publish a batch.
const PATIENCE: Duration = Duration::from_secs(10);

/// Maximum number of batches that are on their way at the same time, each through a channel. A server allows a connection 2,047
/// channels by default.
const MOST_BATCHES: usize = 256;

/// Headers by which the server would also route a message to other queues, and would refuse a message if they are not lists.
const ROUTING: [&str; 2] = ["CC", "BCC"];

/// Publishes through channels of the line. A batch has a channel to itself.
pub(super) struct Publisher {
    line: Arc<Line>,
    /// Channels without unconfirmed messages.
    idle: Arc<Mutex<Vec<Channel>>>,
    /// Permits for the batches on their way.
    room: Arc<Semaphore>,
}

impl Publisher {
    pub(super) fn new(line: Arc<Line>) -> Self {
        Self { line, idle: Arc::default(), room: Arc::new(Semaphore::new(MOST_BATCHES)) }
    }

    /// Returns the limits to the headers of a message.
    pub(super) fn frame_limits(&self) -> FrameLimits {
        self.line.frame_limits()
    }

    /// Publishes messages. Returns the result of each, in their order. A message is stored durably if its result is
    /// [`Routed::Stored`]. After an error, the message may have been stored.
    pub(super) async fn publish(&self, parcels: Vec<Parcel>) -> Vec<Result<Routed, QueueError>> {
        let most = self.frame_limits().any();
        let (mut fitting, mut checks) = (Vec::with_capacity(parcels.len()), Vec::with_capacity(parcels.len()));
        for parcel in parcels.into_iter().map(without_routing) {
            checks.push(fits(&parcel, most));
            if checks.last().is_some_and(Result::is_ok) {
                fitting.push(parcel);
            }
        }
        let mut published = self.publish_fitting(fitting).await.into_iter();
        let unsent = || Err(QueueError::Unavailable("the message was not published".to_owned()));
        checks.into_iter().map(|check| check.and_then(|()| published.next().unwrap_or_else(unsent))).collect()
    }

    async fn publish_fitting(&self, parcels: Vec<Parcel>) -> Vec<Result<Routed, QueueError>> {
        let deadline = Instant::now() + PATIENCE;
        let mut results = self.batch(parcels.clone(), deadline).await;
        for n in to_repeat(&results) {
            if let (Some(parcel), Some(result)) = (parcels.get(n), results.get_mut(n)) {
                *result = self.batch(vec![parcel.clone()], deadline).await.remove(0);
            }
        }
        results
    }

    /// Publishes messages through one channel.
    async fn batch(&self, parcels: Vec<Parcel>, deadline: Instant) -> Vec<Result<Routed, QueueError>> {
        let addresses: Vec<_> = parcels.iter().map(Address::of).collect();
        let failed = |error| vec![Err(error); addresses.len()];
        if let Some(why) = self.line.blocked() {
            return failed(blocked(&why));
        }
        let Ok(Ok(room)) = timeout_at(deadline, Arc::clone(&self.room).acquire_owned()).await else {
            return failed(late(&self.line));
        };
        let channel = match self.channel(deadline).await {
            Ok(channel) => channel,
            Err(error) => return failed(error),
        };
        let (mut answer, answers) = oneshot::channel();
        let (line, idle) = (Arc::clone(&self.line), Arc::clone(&self.idle));
        // A task, because the client library sends what it was given, however late. Through a channel that was closed meanwhile,
        // that would end the connection.
        tokio::spawn(async move {
            let _room = room;
            let may_send = || match line.blocked() {
                // What the client library is given now, it would send once the server takes messages again.
                Some(why) => Err(blocked(&why)),
                None if answer.is_closed() || Instant::now() >= deadline => Err(late(&line)),
                None => Ok(()),
            };
            let sent = send_all(parcels, may_send, |parcel| send(&channel, parcel)).await;
            tokio::select! {
                biased;
                answers = confirmed(sent) => {
                    // The channel is for others only after the last confirm.
                    if channel.status().connected() {
                        idle.lock().unwrap_or_else(PoisonError::into_inner).push(channel);
                    }
                    let _ = answer.send(answers);
                }
                // The caller will send its messages again. The server gives up those that it has not stored when the channel,
                // which is dropped here, closes.
                () = answer.closed() => tracing::debug!("RabbitMQ did not confirm messages in time"),
            }
        });
        match timeout_at(deadline, answers).await {
            Ok(Ok(answers)) => results(&addresses, answers),
            Ok(Err(_)) => failed(QueueError::Unavailable("publishing was cut short".to_owned())),
            Err(_) => failed(late(&self.line)),
        }
    }

    /// Returns a channel that no other batch uses. Opens another if there is none.
    async fn channel(&self, deadline: Instant) -> Result<Channel, QueueError> {
        while let Some(channel) = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            if channel.status().connected() {
                return Ok(channel);
            }
        }
        let channel = self.line.channel(deadline).await?;
        let confirming = in_time(deadline, channel.confirm_select(ConfirmSelectOptions::default())).await;
        confirming.map_err(|error| queue_error("cannot publish with confirms", &error))?;
        Ok(channel)
    }
}

/// Sends messages one after another, as long as `may_send` has no reason against it.
async fn send_all<T, F>(
    parcels: Vec<Parcel>,
    may_send: impl Fn() -> Result<(), QueueError>,
    send: impl Fn(Parcel) -> F,
) -> Vec<Result<T, Answer>>
where
    F: Future<Output = lapin::Result<T>>,
{
    let mut sent = Vec::with_capacity(parcels.len());
    for parcel in parcels {
        sent.push(match may_send() {
            Ok(()) => send(parcel).await.map_err(|error| Answer::of(Err(error))),
            Err(error) => Err(Answer::Failed(error)),
        });
    }
    sent
}

/// Waits for the server's answers to messages.
async fn confirmed(sent: Vec<Result<PublisherConfirm, Answer>>) -> Vec<Answer> {
    let mut answers = Vec::with_capacity(sent.len());
    for sent in sent {
        answers.push(match sent {
            Ok(confirm) => Answer::of(confirm.await),
            Err(answer) => answer,
        });
    }
    answers
}

async fn send(channel: &Channel, parcel: Parcel) -> lapin::Result<PublisherConfirm> {
    let Parcel { exchange, key, properties, body } = parcel;
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    channel.basic_publish(exchange.as_str().into(), key.as_str().into(), options, &body, properties).await
}

/// Checks that the message's headers fit into a frame of at most `most` bytes.
fn fits(parcel: &Parcel, most: usize) -> Result<(), QueueError> {
    let size = frame::size(&parcel.properties);
    if size <= most {
        return Ok(());
    }
    Err(QueueError::Refused(format!(
        "the headers of the message have {size} bytes, and at most {most} can be sent: {}",
        tuning::cure()
    )))
}

/// Removes the headers by which a message would go elsewhere as well.
fn without_routing(mut parcel: Parcel) -> Parcel {
    if let Some(headers) = parcel.properties.headers()
        && ROUTING.iter().any(|name| headers.contains_key(name))
    {
        let mut kept = FieldTable::default();
        for (name, value) in headers.inner().iter().filter(|(name, _)| !ROUTING.contains(&name.as_str())) {
            kept.insert(name.clone(), value.clone());
        }
        parcel.properties = parcel.properties.with_headers(kept);
    }
    parcel
}

fn blocked(why: &str) -> QueueError {
    QueueError::Unavailable(format!("RabbitMQ accepts no messages: {why}"))
}

fn late(line: &Line) -> QueueError {
    let why = match &*line.link().borrow() {
        Link::Blocked(why) => format!("it accepts no messages: {why}"),
        Link::Down { why, .. } => why.clone(),
        Link::Up => "the server is slow".to_owned(),
    };
    QueueError::Unavailable(format!("RabbitMQ did not confirm a message within {PATIENCE:?}: {why}"))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use lapin::BasicProperties;
    use lapin::types::AMQPValue;

    fn empty() -> Parcel {
        Parcel {
            exchange: String::new(),
            key: String::new(),
            properties: BasicProperties::default(),
            body: Vec::new().into(),
        }
    }

    /// The caller has been told that the messages are late, and sends them again.
    #[tokio::test]
    async fn nothing_is_sent_after_the_caller_has_gone() {
        let (answer, answers) = oneshot::channel::<()>();
        let (sent, answers) = (Cell::new(0), Cell::new(Some(answers)));
        let late = || QueueError::Unavailable("late".to_owned());
        let may_send = || if answer.is_closed() { Err(late()) } else { Ok(()) };
        let send = |_| {
            sent.set(sent.get() + 1);
            if sent.get() == 2 {
                drop(answers.take());
            }
            std::future::ready(Ok(()))
        };
        let results = send_all(vec![empty(); 4], may_send, send).await;
        assert_eq!((sent.get(), results.iter().filter(|result| result.is_ok()).count()), (2, 2), "{results:?}");
    }

    #[test]
    fn headers_that_would_end_the_connection_are_refused() {
        let with = |length: usize| {
            let mut headers = FieldTable::default();
            headers.insert("h".into(), AMQPValue::LongString("x".repeat(length).into()));
            Parcel { properties: BasicProperties::default().with_headers(headers), ..empty() }
        };
        let most = frame::size(&with(1000).properties);
        assert_eq!(fits(&with(1000), most), Ok(()));
        let error = fits(&with(1001), most).unwrap_err();
        assert!(matches!(&error, QueueError::Refused(text) if text.contains("frame_max")), "{error:?}");
    }

    #[test]
    fn headers_that_route_elsewhere_are_left_out() {
        let mut headers = FieldTable::default();
        for name in ["CC", "BCC", "cc", "other"] {
            headers.insert(name.into(), AMQPValue::LongString("orders".into()));
        }
        let properties = BasicProperties::default().with_message_id("1".into()).with_headers(headers);
        let parcel = Parcel { exchange: String::new(), key: String::new(), properties, body: "x".into() };
        let sent = without_routing(parcel).properties;
        let names: Vec<_> =
            sent.headers().iter().flat_map(|table| table.inner().keys()).map(|name| name.as_str()).collect();
        assert_eq!((names, sent.message_id().as_ref().map(|id| id.as_str())), (vec!["cc", "other"], Some("1")));
    }
}
