//! The subscription to the replies of receivers. A client that takes the place of another makes it anew.

use std::sync::Arc;

use async_nats::{Client, Subscriber};
use futures_util::StreamExt as _;
use hostler_queue_nats::client::Present;
use tokio::sync::mpsc::Sender;

use super::inbox::{Inbox, reply};
use super::line::Line;
use crate::engine::Event;

/// Receiver of the replies.
pub(super) struct ReplyTaker {
    pub(super) line: Arc<Line>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) events: Sender<Event>,
}

impl ReplyTaker {
    /// Subscribes.
    ///
    /// # Errors
    /// The client's task has ended.
    pub(super) async fn subscribe(&self, client: &Client) -> Result<Subscriber, String> {
        client.subscribe(self.inbox.subscription()).await.map_err(|error| error.to_string())
    }

    /// Takes what comes, by the subscriptions of one client after the other, for as long as there is an engine.
    pub(super) async fn run(self, present: Present, replies: Subscriber) {
        tokio::select! {
            () = self.take_all(present, replies) => {}
            () = self.events.closed() => {}
        }
    }

    async fn take_all(&self, mut present: Present, mut replies: Subscriber) {
        loop {
            self.line.has_subscribed(present.number);
            self.take(replies).await;
            let next = self.line.subscribed_anew(|client| async move { self.subscribe(&client).await }).await;
            let Some(next) = next else { return };
            (present, replies) = next;
        }
    }

    async fn take(&self, mut replies: Subscriber) {
        while let Some(message) = replies.next().await {
            let Some(event) = reply(&self.inbox, &message) else {
                tracing::debug!("a reply is for no request, and is ignored");
                continue;
            };
            if self.events.send(event).await.is_err() {
                return;
            }
        }
    }
}
