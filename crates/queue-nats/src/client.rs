//! The client of the client library, and its replacement.
//!
//! The client library connects again after a loss. But its task ends by a panic over some messages, such as one with a carriage return
//! in the value of a header. Then nothing is sent and nothing comes any more, and a new client takes the place of the old one.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::client::{FlushError, PublishError, RequestError, SubscribeError};
use async_nats::connection::State;
use async_nats::{HeaderMap, Message, Request, ServerInfo, Subscriber, ToSubject};
use bytes::Bytes;
use hostler_queue::QueueError;
use hostler_types::Backoff;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Delays before a replacement is tried again.
const RETRY: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(5));

/// Life of a client. Its callback for events keeps this value, which the end of the client's task drops.
#[derive(Debug, Clone)]
pub struct Life(watch::Receiver<bool>);

impl Life {
    /// Waits until the client is in use. Its events matter from then on.
    pub async fn begun(mut self) {
        // An error means that the client is never used.
        let _ = self.0.wait_for(|is_used| *is_used).await;
    }
}

/// Maker of clients, which hears of their lives.
pub trait Connect: Send + Sync + 'static {
    /// Connects. The client's events count as soon as its life has begun.
    ///
    /// # Errors
    /// The server cannot be reached, or refuses the user.
    fn connect(&self, life: Life) -> impl Future<Output = Result<async_nats::Client, QueueError>> + Send;

    /// Notes that a client is connected, and in use.
    fn began(&self);

    /// Notes that a client gave up.
    fn ended(&self);
}

/// A client, and its place among those before it.
#[derive(Debug, Clone)]
pub struct Present {
    /// Number of the client, from 1.
    pub number: u64,
    /// The client.
    pub client: Arc<async_nats::Client>,
    /// Set if the client's task has ended, and no other client has taken its place yet.
    pub has_ended: bool,
}

impl Present {
    /// Returns the number of the connection, which grows with each one. `None`: there is no connection, as far as is known.
    pub fn link(&self) -> Option<u64> {
        // The number first: what is sent on an earlier connection must not seem to belong to a later one.
        let connects = self.client.statistics().connects.load(Ordering::Relaxed);
        let is_connected = !self.has_ended && self.client.connection_state() == State::Connected;
        is_connected.then(|| link_number(self.number, connects))
    }
}

/// Returns the number of a connection: each client counts its own ones from 1.
fn link_number(client: u64, connects: u64) -> u64 {
    client << 32 | connects & u64::from(u32::MAX)
}

/// A client that is replaced when its task ends.
pub struct Client {
    /// Task that replaces it. Ends with this value.
    _keeper: JoinSet<()>,
    present: watch::Receiver<Present>,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// The error of the first attempt.
    pub async fn connect(connector: impl Connect) -> Result<Self, QueueError> {
        let (client, used) = connected(&connector).await?;
        let (current, present) = watch::channel(Present { number: 1, client, has_ended: false });
        begin(&connector, &used);
        let mut keeper = JoinSet::new();
        keeper.spawn(keep(current, connector, used));
        Ok(Self { _keeper: keeper, present })
    }

    fn now(&self) -> Arc<async_nats::Client> {
        Arc::clone(&self.present.borrow().client)
    }

    /// Returns the present client. It stays the same one while a connection is lost, until its task ends.
    pub fn present(&self) -> Present {
        self.present.borrow().clone()
    }

    /// Returns the present client, and its replacements as they come.
    pub fn watch(&self) -> watch::Receiver<Present> {
        self.present.clone()
    }

    pub(crate) fn connection_state(&self) -> State {
        let present = self.present();
        if present.has_ended { State::Disconnected } else { present.client.connection_state() }
    }

    pub(crate) fn server_info(&self) -> ServerInfo {
        self.now().server_info()
    }

    pub(crate) fn max_payload(&self) -> usize {
        self.now().max_payload()
    }

    pub(crate) fn is_server_compatible(&self, major: i64, minor: i64, patch: i64) -> bool {
        self.now().is_server_compatible(major, minor, patch)
    }

    pub(crate) fn new_inbox(&self) -> String {
        self.now().new_inbox()
    }

    pub(crate) async fn subscribe<S: ToSubject>(&self, subject: S) -> Result<Subscriber, SubscribeError> {
        self.now().subscribe(subject).await
    }

    pub(crate) async fn queue_subscribe<S: ToSubject>(
        &self,
        subject: S,
        group: String,
    ) -> Result<Subscriber, SubscribeError> {
        self.now().queue_subscribe(subject, group).await
    }

    pub(crate) async fn publish<S: ToSubject>(&self, subject: S, body: Bytes) -> Result<(), PublishError> {
        self.now().publish(subject, body).await
    }

    pub(crate) async fn publish_with_reply<S: ToSubject, R: ToSubject>(
        &self,
        subject: S,
        reply: R,
        body: Bytes,
    ) -> Result<(), PublishError> {
        self.now().publish_with_reply(subject, reply, body).await
    }

    pub(crate) async fn publish_with_reply_and_headers<S: ToSubject, R: ToSubject>(
        &self,
        subject: S,
        reply: R,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<(), PublishError> {
        self.now().publish_with_reply_and_headers(subject, reply, headers, body).await
    }

    pub(crate) async fn send_request<S: ToSubject>(
        &self,
        subject: S,
        request: Request,
    ) -> Result<Message, RequestError> {
        self.now().send_request(subject, request).await
    }

    pub(crate) async fn flush(&self) -> Result<(), FlushError> {
        self.now().flush().await
    }
}

/// Returns a connected client, and the value by which its use begins, and by which its end is noticed.
async fn connected(connector: &impl Connect) -> Result<(Arc<async_nats::Client>, watch::Sender<bool>), QueueError> {
    let (used, life) = watch::channel(false);
    let client = connector.connect(Life(life)).await?;
    Ok((Arc::new(client), used))
}

fn begin(connector: &impl Connect, used: &watch::Sender<bool>) {
    connector.began();
    used.send_replace(true);
}

/// Replaces the client each time that its task ends.
async fn keep(current: watch::Sender<Present>, connector: impl Connect, mut used: watch::Sender<bool>) {
    loop {
        used.closed().await;
        current.send_modify(|present| present.has_ended = true);
        connector.ended();
        let (client, next) = replacement(&connector).await;
        current.send_modify(|present| *present = Present { number: present.number + 1, client, has_ended: false });
        begin(&connector, &next);
        used = next;
    }
}

async fn replacement(connector: &impl Connect) -> (Arc<async_nats::Client>, watch::Sender<bool>) {
    let mut failures = 0;
    loop {
        match connected(connector).await {
            Ok(connected) => return connected,
            Err(error) => tracing::debug!(%error, "cannot connect to NATS again"),
        }
        sleep(RETRY.rest(failures, fastrand::f64())).await;
        failures = failures.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_connection_grows_with_each_client_too() {
        let numbers =
            [(1, 1), (1, 2), (1, 9_000), (2, 1), (3, 1), (3, 2)].map(|(client, link)| link_number(client, link));
        assert!(numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
    }
}
