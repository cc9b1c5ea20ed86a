//! The subscriptions to what producers and operators ask of the service. A client that takes the place of another makes them
//! anew.

use std::sync::Arc;

use async_nats::{Client, HeaderMap, Message, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt as _;
use hostler_queue_nats::client::Present;
use tokio::sync::mpsc::Sender;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::line::Line;
use crate::accept::{Incoming, may_be_answered};
use crate::engine::Event;
use crate::envelope::Headers;
use crate::micro::{Card, Tally};

/// The subscriptions of a client.
pub(super) struct Subscriptions {
    requests: Subscriber,
    questions: Vec<Subscriber>,
}

/// Receiver of the requests of producers, and of the questions about the service.
pub(super) struct Taker {
    pub(super) line: Arc<Line>,
    /// Subject of the requests, with its wildcard.
    pub(super) subject: String,
    /// Queue group of the requests.
    pub(super) group: String,
    pub(super) card: Card,
    pub(super) tally: Tally,
    pub(super) events: Sender<Event>,
    /// Set while the line has a connection.
    pub(super) is_up: watch::Receiver<bool>,
    /// Ends the subscriptions.
    pub(super) stop: CancellationToken,
}

impl Taker {
    /// Subscribes.
    ///
    /// # Errors
    /// The subject is not valid, or the client's task has ended.
    pub(super) async fn subscribe(&self, client: &Client) -> Result<Subscriptions, String> {
        let requests = client.queue_subscribe(self.subject.clone(), self.group.clone()).await;
        let requests = requests.map_err(|error| error.to_string())?;
        let questions = self.card.listen(client).await?;
        Ok(Subscriptions { requests, questions })
    }

    /// Takes what comes, by the subscriptions of one client after the other, until `stop`.
    pub(super) async fn run(self, mut present: Present, mut subscriptions: Subscriptions) {
        loop {
            let Subscriptions { requests, questions } = subscriptions;
            self.line.has_subscribed(present.number);
            let answering = async {
                self.card.serve(&present.client, questions, &self.stop).await;
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = self.take_requests(&present.client, requests) => {}
                () = answering => {}
            }
            let this = &self;
            let next = tokio::select! {
                biased;
                () = self.stop.cancelled() => None,
                () = self.events.closed() => None,
                next = self.line.subscribed_anew(|client| async move { this.subscribe(&client).await }) => next,
            };
            let Some(next) = next else { break };
            (present, subscriptions) = next;
        }
        let _ = self.events.send(Event::NoMoreIncoming).await;
    }

    /// Waits until the line has no connection.
    async fn lost(&self) {
        // An error means that the engine has ended.
        let _ = self.is_up.clone().wait_for(|is_up| !is_up).await;
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
                // Without a connection, the client cannot end the subscription.
                () = self.lost(), if is_stopped => break,
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
