//! The subscriptions of the service. A client that takes the place of another makes them anew.

use std::sync::Arc;
use std::time::Duration;

use async_nats::{Client, HeaderMap, Message, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt as _;
use hostler_queue_nats::client::Present;
use hostler_types::Backoff;
use tokio::sync::mpsc::Sender;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::inbox::{Inbox, reply};
use super::line::Line;
use crate::accept::{Incoming, may_be_answered};
use crate::engine::Event;
use crate::envelope::Headers;
use crate::micro::{Card, Tally};

/// Delays before the subscriptions are tried again.
const AGAIN: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));

/// The subscriptions of a client.
pub(super) struct Subscriptions {
    requests: Subscriber,
    pub(super) replies: Subscriber,
    questions: Vec<Subscriber>,
}

/// Receiver of everything that comes for the service.
pub(super) struct Taker {
    pub(super) line: Arc<Line>,
    /// Subject of the requests, with its wildcard.
    pub(super) subject: String,
    /// Queue group of the requests.
    pub(super) group: String,
    pub(super) inbox: Arc<Inbox>,
    pub(super) card: Card,
    pub(super) tally: Tally,
    pub(super) events: Sender<Event>,
    /// Ends the subscriptions, but for that of replies.
    pub(super) stop: CancellationToken,
}

impl Taker {
    /// Subscribes.
    ///
    /// # Errors
    /// The subject is not valid, or the client's task has ended.
    pub(super) async fn subscribe(&self, client: &Client) -> Result<Subscriptions, String> {
        let replies = client.subscribe(self.inbox.subscription()).await.map_err(|error| error.to_string())?;
        let requests = client.queue_subscribe(self.subject.clone(), self.group.clone()).await;
        let requests = requests.map_err(|error| error.to_string())?;
        let questions = self.card.listen(client).await?;
        Ok(Subscriptions { requests, replies, questions })
    }

    /// Takes what comes, by the subscriptions of one client after the other, until `stop`. Replies are taken for as long as there
    /// is an engine.
    pub(super) async fn run(self, mut present: Present, mut subscriptions: Subscriptions) {
        loop {
            let Subscriptions { requests, replies, questions } = subscriptions;
            // Ends with the client, or with the engine.
            tokio::spawn(take_replies(replies, Arc::clone(&self.inbox), self.events.clone()));
            self.line.has_subscribed(present.number);
            let answering = async {
                self.card.serve(&present.client, questions, &self.stop).await;
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = self.take_requests(&present.client, requests) => {}
                () = answering => {}
            }
            let next = if self.stop.is_cancelled() { None } else { self.subscribed_anew().await };
            let Some(next) = next else { break };
            (present, subscriptions) = next;
        }
        let _ = self.events.send(Event::NoMoreIncoming).await;
    }

    /// Subscribes by the client that takes the place of the one before. `None`: nothing more is to be taken.
    async fn subscribed_anew(&self) -> Option<(Present, Subscriptions)> {
        let mut clients = self.line.client.watch();
        let subscribing = async {
            let mut failures = 0;
            loop {
                let present = clients.wait_for(|present| !present.has_ended).await.ok()?.clone();
                match self.subscribe(&present.client).await {
                    Ok(subscriptions) => return Some((present, subscriptions)),
                    // The end of its task is noticed soon.
                    Err(error) => tracing::debug!(error, "cannot subscribe anew"),
                }
                sleep(AGAIN.rest(failures, fastrand::f64())).await;
                failures = failures.saturating_add(1);
            }
        };
        tokio::select! {
            subscribed = subscribing => subscribed,
            () = self.stop.cancelled() => None,
            () = self.events.closed() => None,
        }
    }

    async fn take_requests(&self, client: &Client, mut requests: Subscriber) {
        let mut is_stopped = false;
        loop {
            tokio::select! {
                message = requests.next() => {
                    let Some(message) = message else { break };
                    if message.reply.is_some() {
                        self.tally.taken();
                    }
                    let incoming = incoming(message, client.max_payload());
                    if self.events.send(Event::Incoming(incoming)).await.is_err() {
                        return;
                    }
                }
                () = self.stop.cancelled(), if !is_stopped => {
                    is_stopped = true;
                    // The stream ends after the messages that were received before.
                    if requests.drain().await.is_err() {
                        break;
                    }
                }
            }
        }
    }
}

fn incoming(message: Message, max_payload: usize) -> Incoming {
    let mut headers: Headers = Vec::new();
    for (name, values) in message.headers.iter().flat_map(HeaderMap::iter) {
        headers.extend(values.iter().map(|value| (name.to_string(), value.as_str().to_owned())));
    }
    // The client keeps no order between names. The sort keeps the values of one name in their order.
    headers.sort_by(|(a, _), (b, _)| a.cmp(b));
    Incoming {
        subject: message.subject.to_string(),
        reply: message.reply.map(|reply| reply.to_string()).filter(|reply| may_be_answered(reply)),
        headers,
        // A copy, because the payload keeps the whole buffer of the client in memory.
        body: Bytes::copy_from_slice(&message.payload),
        max_payload,
    }
}

async fn take_replies(mut replies: Subscriber, inbox: Arc<Inbox>, events: Sender<Event>) {
    while let Some(message) = replies.next().await {
        let Some(event) = reply(&inbox, &message) else {
            tracing::debug!("a reply is for no request, and is ignored");
            continue;
        };
        if events.send(event).await.is_err() {
            return;
        }
    }
}
