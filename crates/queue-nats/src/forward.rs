//! Forwards the messages of exchanges to a queue.
//!
//! A queue has a stream of its own, so that its messages are acked, delayed, counted and looked at by themselves. A consumer of the
//! exchange's stream has the queue's part of it. Each message is stored in the queue before it is acked in the exchange, under an
//! id by which the server drops a second copy.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use async_nats::{Message, StatusCode, Subscriber};
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use hostler_queue::{QueueError, no_queue};
use hostler_types::channel::Filter;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::Service;
use super::acks::{DONE, back_after};
use super::api::{self, PublishError};
use super::envelope::Mail;
use super::pulls::Pulls;
use super::stamp::Stamp;

/// Messages that one request asks for.
const BATCH: usize = 256;

/// Time for which one request waits.
const WAIT: Duration = Duration::from_secs(20);

/// Delay after a fault.
const REST: Duration = Duration::from_secs(1);

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
}

impl Forwarder {
    /// Prepares to forward the messages of `exchanges` that pass the filter to a queue.
    pub(crate) fn new(service: Arc<Service>, queue: &str, exchanges: &[String], filter: &Filter) -> Self {
        let feed = |exchange: &String| {
            Arc::new(Feed {
                service: Arc::clone(&service),
                exchange: exchange.clone(),
                queue: queue.to_owned(),
                filter: filter.clone(),
            })
        };
        Self { feeds: exchanges.iter().map(feed).collect(), running: Mutex::default() }
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
        Ok(info.is_some_and(|info| pending(&info) > 0))
    }

    /// Forwards until `stop` is cancelled. After a fault, begins anew.
    async fn run(&self, stop: &CancellationToken) {
        while !stop.is_cancelled() {
            if let Err(error) = self.forward(stop).await {
                tracing::warn!(exchange = self.exchange, queue = self.queue, %error, "cannot forward messages to a queue");
                tokio::select! {
                    () = sleep(REST) => {}
                    () = stop.cancelled() => return,
                }
            }
        }
    }

    async fn forward(&self, stop: &CancellationToken) -> Result<(), QueueError> {
        let line = &self.service.line;
        line.up(Instant::now() + WAIT).await?;
        let inbox = line.client.new_inbox();
        let subscriber = line.client.subscribe(inbox.clone()).await;
        let subscriber = subscriber.map_err(|error| QueueError::Unavailable(error.to_string()))?;
        let mut messages = subscriber.ready_chunks(BATCH);
        let mut pulls = Pulls::default();
        loop {
            if let Some((_, body)) = pulls.begin(BATCH, WAIT, Instant::now(), line.connections()) {
                self.ask(&inbox, &body).await?;
            }
            let patience = pulls.overdue_at().map_or(WAIT, |at| at.saturating_duration_since(Instant::now()));
            tokio::select! {
                chunk = timeout(patience, messages.next()) => match chunk {
                    Ok(Some(chunk)) => self.take(chunk, &mut pulls).await?,
                    Ok(None) => return Ok(()),
                    Err(_) => {
                        self.has_some().await?;
                        pulls.forget();
                    }
                },
                () = stop.cancelled() => {
                    let inbox: &mut Subscriber = messages.get_mut();
                    inbox.drain().await.map_err(|error| QueueError::Unavailable(error.to_string()))?;
                    while let Some(chunk) = messages.next().await {
                        self.take(chunk, &mut pulls).await?;
                    }
                    return Ok(());
                }
            }
        }
    }

    async fn ask(&self, inbox: &str, body: &Value) -> Result<(), QueueError> {
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{}.{}", self.stream(), self.queue);
        let sent =
            self.service.line.client.publish_with_reply(subject, inbox.to_owned(), body.to_string().into()).await;
        sent.map_err(|error| QueueError::Unavailable(error.to_string()))
    }

    /// Takes what came: messages, and signs of the server.
    async fn take(&self, chunk: Vec<Message>, pulls: &mut Pulls) -> Result<(), QueueError> {
        let (now, mut mails) = (Instant::now(), Vec::new());
        let mut fault = None;
        for message in chunk {
            let stamp = message.reply.as_deref().and_then(Stamp::read);
            match (message.status, stamp, message.reply.clone()) {
                (None, Some(stamp), Some(reply)) => {
                    pulls.message(now);
                    let (names, subject) = (&self.service.names, message.subject.clone());
                    let exchange = Some(&*self.exchange);
                    mails.push((Mail::read(names, message, subject, stamp, exchange, false, SystemTime::now()), reply));
                }
                (Some(StatusCode::IDLE_HEARTBEAT), ..) => pulls.sign(now),
                (Some(StatusCode::NOT_FOUND | StatusCode::TIMEOUT), ..) => pulls.forget(),
                (Some(status), ..) => {
                    pulls.forget();
                    fault = Some(format!("{} (NATS status {status})", message.description.unwrap_or_default()));
                }
                _ => {}
            }
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
        match api::publish(&service.line, mail.forwarded(&service.names, &self.exchange, &self.queue)).await {
            Ok(_) => DONE.to_owned(),
            Err(error) => {
                let error = match error {
                    PublishError::Missing => self
                        .queue
                        .parse()
                        .map_or_else(|_| "there is no such queue".to_owned(), |channel| no_queue(&channel).to_string()),
                    PublishError::TooLarge(why) => why,
                    PublishError::Other(error) => error.to_string(),
                };
                let (exchange, queue) = (&self.exchange, &self.queue);
                tracing::warn!(exchange, queue, error, "a message of an exchange cannot be stored in a queue yet");
                back_after(REST)
            }
        }
    }
}

/// Returns the number of messages that a consumer's stream still has for it.
pub(crate) fn pending(info: &Value) -> u64 {
    let count = |name: &str| info[name].as_u64().unwrap_or_default();
    count("num_pending") + count("num_ack_pending")
}
