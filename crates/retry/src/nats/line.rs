//! A connection of the service: a client, and its replacement when its task ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_nats::ServerError;
use hostler_queue::QueueError;
use hostler_queue_nats::client::{Client, Connect, Life, Present};
use hostler_queue_nats::connecting;
use hostler_types::Backoff;
use tokio::sync::mpsc::Sender;
use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use crate::engine::Event;

/// Fault of an address that [`connecting::to`] cannot read.
pub(super) const NO_ADDRESS: &str = "the address is not one such as nats://user:password@host:4222";

/// Number of messages of one subscription that wait in the client at most. Further ones are dropped, and their producers get
/// no reply.
const WAITING: usize = 16_384;

/// Interval of the client's pings. The client gives a connection up after three without an answer, which is sooner than the
/// usual `ack_timeout`.
const PING: Duration = Duration::from_secs(5);

/// Interval between two log lines about dropped messages.
const SLOW_EVERY: Duration = Duration::from_secs(10);

/// Delays before the subscriptions are tried again.
const AGAIN: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));

/// A connection of the service.
pub(super) struct Line {
    pub(super) client: Client,
    /// Wakes the task that watches the state of all lines.
    changed: Arc<Notify>,
    /// Number of the client that has the subscriptions of the line. 0: none has.
    subscribed: AtomicU64,
    /// The server's refusal of a subscription that the line cannot be without.
    denied: watch::Receiver<Option<String>>,
}

impl Line {
    /// Connects. `address`: that of one or more servers, as [`connecting::to`] reads it. `name`: name of the connection, which
    /// the server shows. `changed`: is notified when the state of the line changes. `deliveries`: hears of the subjects to which
    /// nothing may be published.
    ///
    /// # Errors
    /// The text says why there is no connection. It contains no password.
    pub(super) async fn connect(
        address: &str,
        name: &'static str,
        changed: Arc<Notify>,
        deliveries: Option<Sender<Event>>,
    ) -> Result<Self, String> {
        let (slow, (denies, denied)) = (watch::Sender::new(0_u64), watch::channel(None));
        tokio::spawn(report_drops(slow.subscribe()));
        let (slow, denies) = (Arc::new(slow), Arc::new(denies));
        let news = News { changed: Arc::clone(&changed), slow, denies, deliveries };
        let client = Client::connect(Connector { address: address.to_owned(), name, news }).await;
        let client = client.map_err(|error| error.to_string())?;
        Ok(Self { client, changed, subscribed: AtomicU64::new(0), denied })
    }

    /// Returns the server's refusal of a subscription, on the present connection.
    pub(super) fn denied(&self) -> Option<String> {
        self.denied.borrow().clone()
    }

    /// Waits for the server's refusal of a subscription.
    pub(super) async fn refusal(&self) -> String {
        match self.denied.clone().wait_for(Option::is_some).await {
            Ok(denied) => denied.clone().unwrap_or_default(),
            Err(_) => std::future::pending().await,
        }
    }

    /// Notes that a client has the subscriptions of the line.
    pub(super) fn has_subscribed(&self, client: u64) {
        self.subscribed.store(client, Ordering::Release);
        self.changed.notify_one();
    }

    /// Returns the number of the connection, and its client. `None`: there is no connection, or the replies to what is sent on
    /// it would not come.
    pub(super) fn link(&self) -> Option<(u64, Arc<async_nats::Client>)> {
        let present = self.client.present();
        let link = present.link().filter(|_| self.subscribed.load(Ordering::Acquire) == present.number)?;
        Some((link, present.client))
    }

    /// Subscribes by the client that takes the place of the one before. `None`: the process is ending.
    pub(super) async fn subscribed_anew<S, F>(
        &self,
        subscribe: impl Fn(Arc<async_nats::Client>) -> F,
    ) -> Option<(Present, S)>
    where
        F: Future<Output = Result<S, String>>,
    {
        let mut clients = self.client.watch();
        let mut failures = 0;
        loop {
            let present = clients.wait_for(|present| !present.has_ended).await.ok()?.clone();
            match subscribe(Arc::clone(&present.client)).await {
                Ok(subscriptions) => return Some((present, subscriptions)),
                // The end of its task is noticed soon.
                Err(error) => tracing::debug!(error, "cannot subscribe anew"),
            }
            sleep(AGAIN.rest(failures, fastrand::f64())).await;
            failures = failures.saturating_add(1);
        }
    }
}

/// The events of clients.
#[derive(Clone)]
struct News {
    changed: Arc<Notify>,
    /// Number of messages that were dropped.
    slow: Arc<watch::Sender<u64>>,
    denies: Arc<watch::Sender<Option<String>>>,
    /// Hears of the subjects to which nothing may be published. `None`: nobody needs to.
    deliveries: Option<Sender<Event>>,
}

/// Returns `true` for the refusal of a subscription. That to the questions of NATS micro may be missing.
fn is_refusal(error: &str) -> bool {
    let error = error.to_ascii_lowercase();
    error.contains("permissions violation for subscription") && !error.contains("\"$srv.")
}

/// Returns the subject to which the server lets nothing be published. `None`: it is another error.
fn denied_target(error: &ServerError) -> Option<String> {
    let ServerError::Other(text) = error else { return None };
    let (_, quoted) = text.split_once("Permissions Violation for Publish to ")?;
    // The server escapes as JSON does what a subject may contain.
    serde_json::from_str(&quoted[..=quoted.rfind('"')?]).ok()
}

impl News {
    async fn take(&self, event: &async_nats::Event) {
        match event {
            async_nats::Event::Disconnected => self.changed.notify_one(),
            async_nats::Event::Connected => {
                // The client subscribes anew, and the server refuses anew.
                self.denies.send_replace(None);
                self.changed.notify_one();
            }
            async_nats::Event::SlowConsumer(_) => self.slow.send_modify(|count| *count += 1),
            async_nats::Event::LameDuckMode => tracing::info!("the NATS server is about to end"),
            async_nats::Event::ServerError(error) => {
                if let (Some(deliveries), Some(subject)) = (&self.deliveries, denied_target(error)) {
                    // An error means that the engine has ended.
                    let _ = deliveries.send(Event::Denied(subject)).await;
                    return;
                }
                tracing::warn!(%error, "the NATS server reports an error");
                let error = error.to_string();
                if is_refusal(&error) {
                    self.denies.send_replace(Some(error));
                    self.changed.notify_one();
                }
            }
            async_nats::Event::ClientError(error) => tracing::warn!(%error, "the NATS client reports an error"),
            async_nats::Event::Draining | async_nats::Event::Closed => {}
        }
    }
}

/// Maker of clients.
struct Connector {
    address: String,
    name: &'static str,
    news: News,
}

impl Connect for Connector {
    async fn connect(&self, life: Life) -> Result<async_nats::Client, QueueError> {
        let (servers, options) =
            connecting::to(&self.address).map_err(|_| QueueError::Refused(NO_ADDRESS.to_owned()))?;
        let news = self.news.clone();
        let options =
            options.name(self.name).ping_interval(PING).subscription_capacity(WAITING).event_callback(move |event| {
                let (life, news) = (life.clone(), news.clone());
                async move {
                    life.begun().await;
                    news.take(&event).await;
                }
            });
        options.connect(servers).await.map_err(|error| QueueError::Unavailable(error.to_string()))
    }

    fn began(&self) {
        self.news.changed.notify_one();
    }

    fn ended(&self) {
        tracing::warn!("the NATS client gave up, over a message that it cannot read; another one takes its place");
        self.news.changed.notify_one();
    }
}

/// Logs how many messages the client has dropped, now and then.
async fn report_drops(mut drops: watch::Receiver<u64>) {
    let mut known = 0;
    while drops.changed().await.is_ok() {
        let count = *drops.borrow_and_update();
        tracing::warn!(
            dropped = count - known,
            "the retry service receives more than it can store, and drops messages: their producers get no reply; start \
             further instances"
        );
        known = count;
        sleep(SLOW_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_delivery_names_its_subject() {
        let denied = |text: &str| denied_target(&ServerError::Other(text.to_owned()));
        let refusal = "Permissions Violation for Publish to ";
        for subject in ["webhooks.a", "a\"b\\c", "é.$x"] {
            let quoted = format!("{refusal}{}", serde_json::json!(subject));
            assert_eq!(denied(&quoted).as_deref(), Some(subject));
        }
        for other in ["Permissions Violation for Subscription to \"a\"", refusal, "Unknown Protocol Operation"] {
            assert_eq!(denied(other), None, "{other}");
        }
    }

    #[test]
    fn a_refused_subscription_is_a_fault_but_for_discovery() {
        let refusal =
            |subject: &str| is_refusal(&format!("nats: Permissions Violation for Subscription to {subject:?}"));
        assert_eq!(["retry.>", "_INBOX.a.*", "$SRV.PING"].map(refusal), [true, true, false]);
        assert!(!is_refusal("nats: Permissions Violation for Publish to \"retry.a\""));
    }
}
