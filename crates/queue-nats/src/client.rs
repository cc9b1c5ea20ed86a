//! The client of the client library, and its replacement.
//!
//! The client library connects again after a loss. But its task ends by a panic over some messages, such as one with a carriage return
//! in the value of a header. Then nothing is sent and nothing comes any more, and a new client takes the place of the old one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use async_nats::client::{FlushError, PublishError, RequestError, SubscribeError};
use async_nats::connection::State;
use async_nats::{HeaderMap, Message, Request, ServerInfo, Subscriber, ToSubject};
use async_trait::async_trait;
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
pub(crate) struct Life(watch::Receiver<bool>);

impl Life {
    /// Waits until the client is in use. Its events matter from then on.
    pub(crate) async fn begun(mut self) {
        // An error means that the client is never used.
        let _ = self.0.wait_for(|is_used| *is_used).await;
    }
}

/// Maker of clients, which hears of their lives.
#[async_trait]
pub(crate) trait Connect: Send + Sync + 'static {
    /// Connects. The client's events count as soon as its life has begun.
    ///
    /// # Errors
    /// The server cannot be reached, or refuses the user.
    async fn connect(&self, life: Life) -> Result<async_nats::Client, QueueError>;

    /// Notes that a client is connected, and in use.
    fn began(&self);

    /// Notes that a client gave up.
    fn ended(&self);
}

/// State that the client shares with the task that replaces it.
struct Current {
    client: RwLock<Arc<async_nats::Client>>,
    /// Set from the end of the client's task until its replacement.
    has_ended: AtomicBool,
}

/// A client that is replaced when its task ends.
pub(crate) struct Client {
    /// Task that replaces it. Ends with this value.
    _keeper: JoinSet<()>,
    current: Arc<Current>,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// The error of the first attempt.
    pub(crate) async fn connect(connector: impl Connect) -> Result<Self, QueueError> {
        let (client, used) = connected(&connector).await?;
        let current = Arc::new(Current { client: RwLock::new(client), has_ended: AtomicBool::new(false) });
        begin(&connector, &used);
        let mut keeper = JoinSet::new();
        keeper.spawn(keep(Arc::clone(&current), connector, used));
        Ok(Self { _keeper: keeper, current })
    }

    fn now(&self) -> Arc<async_nats::Client> {
        self.current.client.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn connection_state(&self) -> State {
        if self.current.has_ended.load(Ordering::Acquire) {
            return State::Disconnected;
        }
        self.now().connection_state()
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
async fn keep(current: Arc<Current>, connector: impl Connect, mut used: watch::Sender<bool>) {
    loop {
        used.closed().await;
        current.has_ended.store(true, Ordering::Release);
        connector.ended();
        let (client, next) = replacement(&connector).await;
        *current.client.write().unwrap_or_else(PoisonError::into_inner) = client;
        current.has_ended.store(false, Ordering::Release);
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
