//! Delivers callbacks: posts the status of each complete tree to its receiver, until the receiver takes it.

pub mod address;
pub mod signature;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
pub use bytes::Bytes;
use futures_util::future::join_all;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::CONTENT_TYPE;
use reqwest::redirect::Policy;
use reqwest::{Client, StatusCode};
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
        while !cancel.is_cancelled() {
            let pause = match self.round().await {
                Ok(0) => PERIOD,
                Ok(_) => continue,
                Err(error) => {
                    tracing::warn!(%error, "cannot look for callbacks; trying again");
                    REST
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = cancel.cancelled() => {}
            }
        }
    }

    /// Attempts the callbacks that are due. Returns their number.
    async fn round(&self) -> Result<usize, StoreError> {
        let due = self.store.claim_callbacks(AT_A_TIME, LEASE).await?;
        if due.is_empty() {
            return Ok(0);
        }
        let secret = match &self.settings.secret {
            Some(secret) => secret.clone(),
            None => self.store.callback_secret().await?,
        };
        join_all(due.iter().map(|due| self.deliver(due, secret.as_bytes()))).await;
        Ok(due.len())
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
