//! Delivers callbacks: posts the status of each complete tree to its receiver, until the receiver takes it.

pub mod address;
pub mod signature;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
pub use bytes::Bytes;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::CONTENT_TYPE;
use reqwest::redirect::Policy;
use reqwest::{Client, StatusCode};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::callbacks::address::{AddressRefused, is_reserved};
use crate::callbacks::signature::{EVENT_ID, SIGNATURE, signature};
use crate::store::{Delivery, DueCallback, Store, StoreError};
use crate::types::Callback;

/// Maximum time of one attempt.
const ATTEMPT: Duration = Duration::from_secs(10);

/// The time for which a callback is leased: an attempt, and the transactions around it.
const LEASE: Duration = Duration::from_secs(60);

/// The period of looking for callbacks that are due.
const PERIOD: Duration = Duration::from_millis(500);

/// Pause after the database did not answer.
const REST: Duration = Duration::from_secs(5);

/// Maximum number of attempts at a time.
const AT_A_TIME: usize = 16;

/// Number of attempts of a receiver from which it gets no more.
const BUSY: usize = 2;

/// Maximum number of callbacks that are leased at once, so that a receiver has at most `BUSY - 1` more than these under way.
const AT_ONCE: usize = 3;

/// The reason that a channel did not take a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    /// The queue did not answer or is busy.
    #[error("the queue did not take the callback")]
    Unavailable,
    /// There is no such channel, or it takes no such messages.
    #[error("the channel refuses the callback")]
    Refused,
}

/// Sends messages to channels of the queue. The host implements it over the configured driver.
#[async_trait]
pub trait ChannelSender: Send + Sync {
    /// Sends a message. The event's id is the same for each attempt, so that a queue may drop duplicates.
    async fn send(&self, channel: &str, event_id: &str, body: Bytes) -> Result<(), ChannelError>;
}

/// The settings of callbacks.
#[derive(Clone, Default)]
pub struct CallbackSettings {
    /// The secret of the signatures; `None`: the random one that the database keeps.
    pub secret: Option<String>,
    /// The queue for callbacks to channels; `None`: new ones are refused, and older ones are tried again later.
    pub channels: Option<Arc<dyn ChannelSender>>,
}

impl std::fmt::Debug for CallbackSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallbackSettings").field("channels", &self.channels.is_some()).finish_non_exhaustive()
    }
}

/// The client could not be created, because the system's certificates or TLS are not usable.
#[derive(Debug, thiserror::Error)]
#[error("cannot create the HTTP client of callbacks: {0}")]
pub struct ClientError(#[from] reqwest::Error);

/// Delivers callbacks.
pub struct Callbacks {
    store: Store,
    settings: CallbackSettings,
    client: Client,
}

impl Callbacks {
    /// Creates the sender. Connects to nothing yet.
    ///
    /// # Errors
    /// If TLS cannot be set up.
    pub fn new(store: Store, settings: CallbackSettings) -> Result<Self, ClientError> {
        // A proxy would resolve names itself, and so reach addresses that are refused here.
        let client = Client::builder()
            .redirect(Policy::none())
            .timeout(ATTEMPT)
            .no_proxy()
            .dns_resolver(Arc::new(PublicNames))
            .user_agent(concat!("hostler/", env!("CARGO_PKG_VERSION")))
            .build()?;
        Ok(Self { store, settings, client })
    }

    /// Delivers callbacks as they fall due, until `cancel`. Attempts under way end first.
    pub async fn run(self, cancel: CancellationToken) {
        let sender = Arc::new(self);
        let (slots, mut attempts) = (Slots::default(), JoinSet::new());
        while !cancel.is_cancelled() {
            while attempts.try_join_next().is_some() {}
            let free = AT_A_TIME.saturating_sub(attempts.len());
            let pause = match sender.claim(free, &slots).await {
                // The end of an attempt ends the pause.
                Ok(due) if due.is_empty() => PERIOD,
                Ok(due) => {
                    for (due, secret) in due {
                        let (sender, slot) = (Arc::clone(&sender), slots.take(due.callback.receiver()));
                        attempts.spawn(async move {
                            sender.deliver(&due, secret.as_bytes()).await;
                            drop(slot);
                        });
                    }
                    continue;
                }
                Err(error) => {
                    // A database that does not answer is logged by the sweeps, once.
                    if !error.is_outage() {
                        tracing::warn!(%error, "cannot look for callbacks; trying again");
                    }
                    REST
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                Some(_) = attempts.join_next() => {}
                () = cancel.cancelled() => {}
            }
        }
        while attempts.join_next().await.is_some() {}
    }

    /// Leases callbacks that are due and to receivers with few attempts under way. Returns them with the secret of signatures.
    async fn claim(&self, free: usize, slots: &Slots) -> Result<Vec<(DueCallback, Arc<str>)>, StoreError> {
        if free == 0 {
            return Ok(Vec::new());
        }
        let due = self.store.claim_callbacks_except(&slots.busy(), free.min(AT_ONCE), LEASE).await?;
        if due.is_empty() {
            return Ok(Vec::new());
        }
        let secret: Arc<str> = match &self.settings.secret {
            Some(secret) => secret.as_str().into(),
            None => self.store.callback_secret().await?.into(),
        };
        Ok(due.into_iter().map(|due| (due, Arc::clone(&secret))).collect())
    }

    /// Attempts one callback and notes the outcome.
    async fn deliver(&self, due: &DueCallback, secret: &[u8]) {
        let delivery = match self.store.status(&due.root_id).await {
            Ok(status) => match serde_json::to_vec(&status) {
                Ok(body) => self.attempt(due, secret, body.into()).await,
                Err(_) => Delivery::Refused,
            },
            Err(StoreError::NotFound { .. }) => Delivery::Refused,
            Err(_) => Delivery::Failed,
        };
        if let Err(error) = self.store.settle_callback(&due.id, delivery).await {
            tracing::warn!(event = due.id, %error, "cannot note the outcome of a callback; it is sent again");
        }
    }

    async fn attempt(&self, due: &DueCallback, secret: &[u8], body: Bytes) -> Delivery {
        let outcome = match &due.callback {
            Callback::Url(url) => self.post(url, &due.id, secret, body).await,
            Callback::Channel(channel) => self.send(channel, &due.id, body).await,
        };
        let (event, root, attempts) = (&due.id, &due.root_id, due.attempts + 1);
        match outcome {
            Ok(()) => Delivery::Delivered,
            Err(failure) if failure.is_final() => {
                tracing::warn!(event, root, attempts, reason = %failure, "a callback is refused and not sent again");
                Delivery::Refused
            }
            Err(failure) => {
                tracing::warn!(event, root, attempts, reason = %failure, "a callback failed; it is sent again");
                Delivery::Failed
            }
        }
    }

    async fn post(&self, url: &str, event: &str, secret: &[u8], body: Bytes) -> Result<(), Failed> {
        let url = address::parse(url)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let request = self
            .client
            .post(url)
            .header(CONTENT_TYPE, "application/json")
            .header(EVENT_ID, event)
            .header(SIGNATURE, signature(secret, now, &body))
            .body(body);
        match request.send().await {
            Ok(answer) => accepted(answer.status()),
            // The text of the error names the URL, which may hold a secret.
            Err(error) if error.is_timeout() => Err(Failed::Timeout),
            Err(error) if is_refused_name(&error) => Err(AddressRefused::Reserved.into()),
            Err(_) => Err(Failed::Unreachable),
        }
    }

    async fn send(&self, channel: &str, event: &str, body: Bytes) -> Result<(), Failed> {
        let Some(channels) = &self.settings.channels else { return Err(Failed::NoQueue) };
        match tokio::time::timeout(ATTEMPT, channels.send(channel, event, body)).await {
            Ok(outcome) => outcome.map_err(Failed::Channel),
            Err(_) => Err(Failed::Timeout),
        }
    }
}

/// The attempts under way by receiver, so that one that hangs delays no other.
#[derive(Clone, Default)]
struct Slots(Arc<Mutex<HashMap<String, usize>>>);

/// An attempt under way. Dropping this value ends it.
struct Slot {
    slots: Slots,
    receiver: String,
}

impl Slots {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, receiver: String) -> Slot {
        *self.lock().entry(receiver.clone()).or_default() += 1;
        Slot { slots: self.clone(), receiver }
    }

    /// Returns the receivers that have enough attempts under way.
    fn busy(&self) -> Vec<String> {
        self.lock().iter().filter(|(_, count)| **count >= BUSY).map(|(receiver, _)| receiver.clone()).collect()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut slots = self.slots.lock();
        if let Some(count) = slots.get_mut(&self.receiver) {
            *count -= 1;
            if *count == 0 {
                slots.remove(&self.receiver);
            }
        }
    }
}

/// The reason that an attempt failed. Has no part of the address, which may hold a secret.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Address(#[from] AddressRefused),
    #[error(transparent)]
    Channel(ChannelError),
    #[error("the receiver answered {0}")]
    Status(u16),
    #[error("no answer within 10 s")]
    Timeout,
    #[error("the receiver cannot be reached")]
    Unreachable,
    #[error("the service has no queue to send to")]
    NoQueue,
}

impl Failed {
    /// Tells whether another attempt is useless.
    fn is_final(&self) -> bool {
        match self {
            Self::Address(_) | Self::Channel(ChannelError::Refused) | Self::Status(410) => true,
            Self::Channel(ChannelError::Unavailable)
            | Self::Status(_)
            | Self::Timeout
            | Self::Unreachable
            | Self::NoQueue => false,
        }
    }
}

/// Tells whether the receiver took the callback. A redirect is not followed, so it is a failure.
fn accepted(status: StatusCode) -> Result<(), Failed> {
    if status.is_success() { Ok(()) } else { Err(Failed::Status(status.as_u16())) }
}

/// Resolves names, without reserved addresses. So a name cannot lead to a metadata service, even if its address changes
/// between a check and the connection.
struct PublicNames;

impl Resolve for PublicNames {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let resolved: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            if resolved.iter().any(|address| is_reserved(address.ip())) {
                return Err(AddressRefused::Reserved.into());
            }
            Ok(Box::new(resolved.into_iter()) as Addrs)
        })
    }
}

/// Tells whether an error comes from [`PublicNames`].
fn is_refused_name(error: &reqwest::Error) -> bool {
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        if error.is::<AddressRefused>() {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_is_busy_while_it_has_enough_attempts() {
        let slots = Slots::default();
        let receiver = |url: &str| Callback::Url(url.to_owned()).receiver();
        assert_eq!(receiver("HTTP://Host:80?a"), "host:80");
        assert_eq!(receiver("http://host:80/b"), "host:80");
        let first = slots.take(receiver("http://host:80/a"));
        assert!(slots.busy().is_empty());
        let second = slots.take(receiver("http://host:80/b"));
        assert_eq!(slots.busy(), ["host:80"]);
        drop((first, second));
        assert!(slots.lock().is_empty());
    }

    #[test]
    fn only_gone_and_refused_addresses_are_final() {
        assert_eq!(accepted(StatusCode::NO_CONTENT), Ok(()));
        let is_final = |status| accepted(status).unwrap_err().is_final();
        assert!(is_final(StatusCode::GONE));
        for status in [StatusCode::FOUND, StatusCode::NOT_FOUND, StatusCode::BAD_GATEWAY, StatusCode::CONFLICT] {
            assert!(!is_final(status), "{status}");
        }
        assert!(Failed::Address(AddressRefused::Scheme).is_final() && !Failed::Timeout.is_final());
    }
}
