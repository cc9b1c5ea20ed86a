//! Forwards the messages of exchanges to a queue.
//!
//! A queue has a stream of its own, so that its messages are acked, delayed, counted and looked at by themselves. A consumer of the
//! exchange's stream has the queue's part of it. Each message is stored in the queue before it is acked in the exchange, under an
//! id by which the server drops a second copy.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use async_nats::Message;
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use hostler_queue::QueueError;
use hostler_types::channel::Filter;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::Service;
use super::acks::{DONE, back_after};
use super::api::{self, PublishError};
use super::declare::missing;
use super::envelope::Mail;
use super::pulls::{self, End, LONGEST, Pulls, Wanted, request_of};
use super::screening::{Screening, Watched};
use super::source::Source;
use super::stamp::Stamp;

/// Messages that one request asks for, and their bytes, which are at least the largest message's.
const BATCH: usize = 256;
const BATCH_BYTES: usize = 8 << 20;

/// Maximum time to wait for a connection.
const CONNECTED: Duration = Duration::from_secs(20);

/// Delay after a fault.
const REST: Duration = Duration::from_secs(1);

/// Delay before a message is forwarded again that does not fit into its queue. It will not fit soon.
const UNFIT: Duration = Duration::from_secs(60);

/// Time for which messages may be kept from their queue before receives report it.
const REPORTED: Duration = Duration::from_secs(10);

/// Maximum time to wait for messages that are under way: for those of a receive that must not wait, and at the end.
const UNDER_WAY: Duration = Duration::from_secs(2);

/// Interval at which messages that are under way are looked for.
const GLANCE: Duration = Duration::from_millis(10);

/// Forwards the messages of a queue's exchanges while the queue is received from.
pub(crate) struct Forwarder {
    feeds: Vec<Arc<Feed>>,
    /// Tasks, and the token that ends them. Empty: nothing is forwarded now.
    running: Mutex<(JoinSet<()>, CancellationToken)>,
}

/// An exchange and the queue that it feeds.
struct Feed {
    service: Arc<Service>,
    exchange: String,
    queue: String,
    filter: Filter,
    screening: Screening,
    /// Trouble to get messages from the exchange.
    receiving: Mutex<Trouble>,
    /// Trouble to store them in the queue.
    storing: Mutex<Trouble>,
}

/// Reason why messages do not get from an exchange to a queue, and the time since when.
#[derive(Debug, Default)]
struct Trouble(Option<(Instant, String)>);

impl Trouble {
    fn note(&mut self, why: String, now: Instant) {
        let since = self.0.take().map_or(now, |(since, _)| since);
        self.0 = Some((since, why));
    }

    fn end(&mut self) {
        self.0 = None;
    }

    /// Returns the reason, if messages have not come for long.
    fn lasting(&self, now: Instant) -> Option<&str> {
        let lasts = |since: &Instant| now.saturating_duration_since(*since) >= REPORTED;
        self.0.as_ref().filter(|(since, _)| lasts(since)).map(|(_, why)| &**why)
    }
}

impl Forwarder {
    /// Prepares to forward the messages of a queue's exchanges that pass its filter.
    pub(crate) fn new(service: &Arc<Service>, source: &Source) -> Self {
        let feed = |exchange: &String| {
            let watched = Watched {
                stream: service.names.exchange(exchange),
                consumer: source.channel.queue().to_owned(),
                exchange: Some(exchange.clone()),
                filter: source.filter.clone(),
                channel: source.channel.clone(),
                dead_letters: source.dead_letters.clone(),
            };
            Arc::new(Feed {
                service: Arc::clone(service),
                exchange: exchange.clone(),
                queue: source.channel.queue().to_owned(),
                filter: source.filter.clone(),
                screening: Screening::new(Arc::clone(service), watched),
                receiving: Mutex::default(),
                storing: Mutex::default(),
            })
        };
        Self { feeds: source.exchanges.iter().map(feed).collect(), running: Mutex::default() }
    }

    /// Begins to forward, unless it has begun.
    pub(crate) fn start(&self) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let (tasks, stop) = &mut *running;
        if !tasks.is_empty() || self.feeds.is_empty() {
            return;
        }
        *stop = CancellationToken::new();
        for feed in &self.feeds {
            let (feed, stop) = (Arc::clone(feed), stop.clone());
            tasks.spawn(async move { feed.run(&stop).await });
        }
    }

    /// Returns the reason why messages have not come from an exchange for some time.
    pub(crate) fn fault(&self, now: Instant) -> Option<QueueError> {
        self.feeds.iter().find_map(|feed| {
            let lasting = |trouble: &Mutex<Trouble>| lock(trouble).lasting(now).map(str::to_owned);
            let why = lasting(&feed.storing).or_else(|| lasting(&feed.receiving))?;
            let (exchange, queue) = (&feed.exchange, &feed.queue);
            Some(QueueError::Unavailable(format!(
                "the queue `{queue}` gets no messages of the exchange `{exchange}`: {why}"
            )))
        })
    }

    /// Ends forwarding, after the messages that are under way.
    pub(crate) async fn stop(&self) {
        let (mut tasks, stop) = std::mem::take(&mut *self.running.lock().unwrap_or_else(PoisonError::into_inner));
        stop.cancel();
        let _ = timeout(UNDER_WAY, async { while tasks.join_next().await.is_some() {} }).await;
    }

    /// Waits for the messages that the exchanges have now, at most for a short time.
    pub(crate) async fn catch_up(&self) -> Result<(), QueueError> {
        let deadline = Instant::now() + UNDER_WAY;
        for feed in &self.feeds {
            while feed.has_some().await? && Instant::now() < deadline {
                sleep(GLANCE).await;
            }
        }
        Ok(())
    }
}

impl Feed {
    fn stream(&self) -> String {
        self.service.names.exchange(&self.exchange)
    }

    /// Returns `true` if the exchange has messages for the queue.
    async fn has_some(&self) -> Result<bool, QueueError> {
        let info = api::consumer(&self.service.line, &self.stream(), &self.queue).await?;
        let info = info.ok_or_else(|| missing(&format!("subscription of `{}` to `{}`", self.queue, self.exchange)))?;
        Ok(pending(&info) > 0)
    }

    /// Forwards until `stop` is cancelled. After a fault, begins anew.
    async fn run(&self, stop: &CancellationToken) {
        while !stop.is_cancelled() {
            if let Err(error) = self.forward(stop).await {
                tracing::warn!(exchange = self.exchange, queue = self.queue, %error, "cannot forward messages to a queue");
                lock(&self.receiving).note(error.to_string(), Instant::now());
                tokio::select! {
                    () = sleep(REST) => {}
                    () = stop.cancelled() => return,
                }
            }
        }
    }

    /// Forwards over one inbox. Once `stop` is cancelled, ends with the request that is open.
    async fn forward(&self, stop: &CancellationToken) -> Result<(), QueueError> {
        let line = &self.service.line;
        line.up(Instant::now() + CONNECTED).await?;
        let (mut watch, inbox) = (line.watch(), line.client.new_inbox());
        let replies = format!("{inbox}.*");
        let subscriber = line.client.subscribe(replies.clone()).await;
        let subscriber = subscriber.map_err(|error| QueueError::Unavailable(error.to_string()))?;
        let (mut messages, mut pulls) = (subscriber.ready_chunks(BATCH), Pulls::default());
        let next = pulls::subject(&self.stream(), &self.queue);
        let needs = [&*next, &*replies];
        let wanted = Wanted { messages: BATCH, bytes: Some(BATCH_BYTES.max(2 * line.max_payload())), wait: LONGEST };
        loop {
            if !stop.is_cancelled() {
                self.screening.before_ask().await?;
                if let Some((number, body)) = pulls.begin(wanted, Instant::now(), line.losses()) {
                    self.ask(&next, format!("{inbox}.{number}"), &body).await?;
                }
            } else if pulls.open(line.losses()).is_none() {
                // Not only queued: the process may be about to end.
                let _ = timeout(UNDER_WAY, line.client.flush()).await;
                return Ok(());
            }
            tokio::select! {
                chunk = messages.next() => match chunk {
                    Some(chunk) => self.take(chunk, &mut pulls).await?,
                    None => return Ok(()),
                },
                // Without a request on this connection, `watch` tells of the loss.
                () = sleep_until(pulls.overdue_at(line.losses()).unwrap_or_else(|| Instant::now() + LONGEST)) => {
                    self.has_some().await?;
                    pulls.give_up().map_err(QueueError::Unavailable)?;
                }
                fault = watch.fault(&needs) => return Err(fault.of("receive from the exchange")),
            }
        }
    }

    async fn ask(&self, next: &str, inbox: String, body: &Value) -> Result<(), QueueError> {
        let sent = self.service.line.client.publish_with_reply(next.to_owned(), inbox, body.to_string().into()).await;
        sent.map_err(|error| QueueError::Unavailable(error.to_string()))
    }

    /// Takes what came: messages, and signs of the server.
    async fn take(&self, chunk: Vec<Message>, pulls: &mut Pulls) -> Result<(), QueueError> {
        let (now, mut mails, mut fault) = (Instant::now(), Vec::new(), None);
        for message in chunk {
            let stamp = message.reply.as_deref().and_then(Stamp::read);
            match (message.status, stamp, message.reply.clone()) {
                // A message may have a status, too: its sender's headers are the server's to store.
                (_, Some(stamp), Some(reply)) => {
                    self.screening.saw(stamp.sequence);
                    pulls.message(now);
                    let (names, subject) = (&self.service.names, message.subject.clone());
                    let exchange = Some(&*self.exchange);
                    mails.push((Mail::read(names, message, subject, stamp, exchange, false, SystemTime::now()), reply));
                }
                (Some(status), ..) => {
                    let text = message.description.as_deref().unwrap_or_default();
                    match pulls.status(request_of(&message.subject), status, text) {
                        End::Fault(why) => fault = Some(why),
                        End::InTime => lock(&self.receiving).end(),
                        End::None => {}
                    }
                }
                _ => {}
            }
        }
        if !mails.is_empty() {
            lock(&self.receiving).end();
        }
        // In their order: the requests leave in the order in which the futures are polled first.
        join_all(mails.into_iter().map(|(mail, reply)| async move {
            let answer = self.pass_on(&mail).await;
            let client = &self.service.line.client;
            let sent = client.publish(reply, answer.into()).await;
            if let Err(error) = sent {
                tracing::debug!(%error, "the server sends a message of an exchange again");
            }
        }))
        .await;
        fault.map_or(Ok(()), |why| Err(QueueError::Unavailable(why)))
    }

    /// Stores a message in the queue, unless the filter refuses it. Returns its acknowledgement.
    async fn pass_on(&self, mail: &Mail) -> String {
        let service = &self.service;
        if !self.filter.passes(mail.message.routing_key.as_deref()) {
            return DONE.to_owned();
        }
        let stream = service.names.queue(&self.queue);
        let copy = mail.forwarded(&service.names, &self.exchange, &self.queue, service.line.max_payload());
        let (error, delay) = match api::publish(&service.line, &stream, copy).await {
            Ok(_) => {
                lock(&self.storing).end();
                return DONE.to_owned();
            }
            Err(PublishError::Missing) => (missing(&format!("queue `{stream}`")).to_string(), REST),
            Err(PublishError::TooLarge(why)) => {
                (format!("{why}: raise max_payload of NATS, or the queue's max_msg_size"), UNFIT)
            }
            Err(PublishError::Unattended(why) | PublishError::Conflict(why)) => (why, REST),
            Err(PublishError::Other(error)) => (error.to_string(), REST),
        };
        let (exchange, queue, message_id) = (&self.exchange, &self.queue, &mail.message.id);
        tracing::warn!(exchange, queue, message_id, error, "a message of an exchange cannot be stored in a queue yet");
        lock(&self.storing).note(error, Instant::now());
        back_after(delay)
    }
}

fn lock(trouble: &Mutex<Trouble>) -> MutexGuard<'_, Trouble> {
    trouble.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the number of messages that a consumer's stream still has for it.
pub(crate) fn pending(info: &Value) -> u64 {
    let count = |name: &str| info[name].as_u64().unwrap_or_default();
    count("num_pending") + count("num_ack_pending")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_do_not_come_for_long_are_reported_until_they_do() {
        let (mut trouble, now) = (Trouble::default(), Instant::now());
        assert_eq!(trouble.lasting(now), None);
        trouble.note("gone".to_owned(), now);
        trouble.note("still gone".to_owned(), now + REPORTED / 2);
        assert_eq!(trouble.lasting(now + REPORTED / 2), None);
        assert_eq!(trouble.lasting(now + REPORTED), Some("still gone"));
        trouble.end();
        assert_eq!(trouble.lasting(now + REPORTED), None);
    }
}
