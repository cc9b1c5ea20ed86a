//! The connection to the server, its state, and requests over it.
//!
//! The client library connects again after a loss. Leases live on the server, so they survive that.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::{
    Client, ConnectErrorKind, ConnectOptions, Event, HeaderMap, Message, Request, RequestErrorKind, ServerError,
};
use bytes::Bytes;
use hostler_queue::{Link, QueueError};
use hostler_types::Backoff;
use hostler_types::error_chain::with_causes;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::Options;
use super::address::{Address, User};

/// Delays before the connection is tried again.
const RETRY: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(5));

/// Interval of pings. The client gives a connection up after two of them without an answer.
const PING: Duration = Duration::from_secs(5);

/// Maximum time to connect.
const CONNECT: Duration = Duration::from_secs(10);

/// Maximum time to wait for an answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Time for which a refusal explains that an answer is missing.
const RECENT: Duration = Duration::from_secs(15);

/// Reason why a request has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// Nobody listens to the subject.
    NoResponders,
    /// The user may not use the subject.
    Denied(String),
    /// The request is larger than the server takes.
    TooLarge(String),
    /// The connection is lost, or the answer did not come in time.
    Failed(String),
}

impl Unanswered {
    /// Returns the queue error for a request to do `what`, to which JetStream would have answered.
    pub(crate) fn of(self, what: &str) -> QueueError {
        match self {
            Self::NoResponders => QueueError::Unavailable(format!(
                "cannot {what}: JetStream does not answer; is it enabled on the server (`-js`), and for the user's account?"
            )),
            Self::Denied(why) => {
                QueueError::Refused(format!("cannot {what}: {why}: check the permissions of the user"))
            }
            Self::TooLarge(why) => QueueError::Refused(format!("cannot {what}: {why}")),
            Self::Failed(why) => QueueError::Unavailable(format!("cannot {what}: {why}")),
        }
    }
}

/// The connection to the server.
pub(crate) struct Line {
    pub(crate) client: Client,
    /// Servers, for people.
    pub(crate) address: String,
    notes: Arc<Notes>,
}

/// Notes about the connection, which its events write.
struct Notes {
    address: String,
    link: watch::Sender<Link>,
    /// Number of connections that were made.
    connections: AtomicU64,
    denied: Mutex<Option<(Instant, String)>>,
    why: Mutex<Option<String>>,
}

impl Notes {
    fn take(&self, event: &Event) {
        match event {
            Event::Connected => {
                let was_down = matches!(self.link.send_replace(Link::Up), Link::Down { .. });
                self.connections.fetch_add(1, Ordering::Relaxed);
                if was_down {
                    tracing::info!(server = self.address, "connected to NATS again");
                }
            }
            Event::Disconnected | Event::Closed => {
                let why = self.why.lock().unwrap_or_else(PoisonError::into_inner).take();
                let why = why.unwrap_or_else(|| "it was closed, or the server was silent".to_owned());
                tracing::warn!(server = self.address, error = why, "lost the connection to NATS");
                let why = format!("the connection to NATS at {} is lost: {why}", self.address);
                self.link.send_if_modified(|link| {
                    let is_new = !matches!(link, Link::Down { .. });
                    if is_new {
                        *link = Link::Down { since: Instant::now(), why };
                    }
                    is_new
                });
            }
            Event::ServerError(ServerError::Other(error)) if is_denial(error) => {
                tracing::warn!(error, "NATS refuses a subject");
                *self.denied.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), error.clone()));
            }
            Event::ServerError(error) => {
                tracing::debug!(%error, "NATS reports an error");
                *self.why.lock().unwrap_or_else(PoisonError::into_inner) = Some(format!("{error:?}"));
            }
            Event::ClientError(error) => tracing::debug!(%error, "cannot connect to NATS again"),
            Event::LameDuckMode => tracing::info!(server = self.address, "NATS is about to shut down"),
            Event::SlowConsumer(_) => tracing::warn!("messages came faster than they were read, and some were dropped"),
            Event::Draining => {}
        }
    }
}

fn is_denial(error: &str) -> bool {
    error.to_ascii_lowercase().contains("permissions violation")
}

impl Line {
    /// Connects.
    ///
    /// # Errors
    /// [`QueueError::Refused`] if the options are not valid, or the server refuses the user. [`QueueError::Unavailable`] if the
    /// server cannot be reached.
    pub(crate) async fn connect(options: &Options) -> Result<Self, QueueError> {
        let address = Address::read(&options.url)?;
        let shown = address.shown();
        let notes = Arc::new(Notes {
            address: shown.clone(),
            link: watch::Sender::new(Link::Up),
            connections: AtomicU64::new(0),
            denied: Mutex::default(),
            why: Mutex::default(),
        });
        let told = Arc::clone(&notes);
        let connecting = settings(options, &address.user)?
            .event_callback(move |event| {
                told.take(&event);
                std::future::ready(())
            })
            .connect(address.servers);
        let client = connecting.await.map_err(|error| {
            let text = format!("cannot connect to NATS at {shown}: {}", with_causes(&error));
            match error.kind() {
                ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => QueueError::Refused(format!(
                    "{text}: check the user in queue.nats.url, or the file of queue.nats.credentials or queue.nats.nkey"
                )),
                ConnectErrorKind::ServerParse => QueueError::Refused(text),
                _ => QueueError::Unavailable(text),
            }
        })?;
        Ok(Self { client, address: shown, notes })
    }

    /// Returns the state of the connection, and its changes.
    pub(crate) fn link(&self) -> watch::Receiver<Link> {
        self.notes.link.subscribe()
    }

    /// Returns the number of connections up to now. The server forgets what a lost connection asked for.
    pub(crate) fn connections(&self) -> u64 {
        self.notes.connections.load(Ordering::Relaxed)
    }

    /// Returns the reason why there is no connection. `None`: there is one, as far as is known.
    pub(crate) fn is_down(&self) -> Option<String> {
        if self.client.connection_state() == State::Connected {
            return None;
        }
        Some(match &*self.notes.link.borrow() {
            Link::Down { why, .. } => why.clone(),
            Link::Up | Link::Blocked(_) => format!("the connection to NATS at {} is lost", self.address),
        })
    }

    /// Waits for a connection until `deadline`.
    ///
    /// # Errors
    /// The reason why there is none.
    pub(crate) async fn up(&self, deadline: Instant) -> Result<(), QueueError> {
        if self.is_down().is_none() {
            return Ok(());
        }
        let mut link = self.link();
        let _ = timeout_at(deadline, link.wait_for(|link| *link == Link::Up)).await;
        self.is_down().map_or(Ok(()), |why| Err(QueueError::Unavailable(why)))
    }

    /// Returns the number of bytes that the server takes in one message, with its headers.
    pub(crate) fn max_payload(&self) -> usize {
        self.client.max_payload()
    }

    /// Returns `true` if the server has filters with several subjects, which older ones silently drop.
    pub(crate) fn has_filters(&self) -> bool {
        self.client.is_server_compatible(2, 10, 0)
    }

    /// Sends a request, and returns the answer. Sends nothing while the connection is lost: it would be sent after the next
    /// connection, when its caller has given up.
    pub(crate) async fn request(
        &self,
        subject: &str,
        headers: Option<HeaderMap>,
        body: Bytes,
    ) -> Result<Message, Unanswered> {
        if let Some(why) = self.is_down() {
            return Err(Unanswered::Failed(why));
        }
        let request = Request::new().payload(body).timeout(Some(PATIENCE));
        let request = headers.into_iter().fold(request, Request::headers);
        let mut link = self.link();
        let answer = tokio::select! {
            answer = self.client.send_request(subject.to_owned(), request) => answer,
            // The answer would go to the connection that is lost.
            why = lost(&mut link) => return Err(Unanswered::Failed(why)),
        };
        answer.map_err(|error| match error.kind() {
            RequestErrorKind::NoResponders => Unanswered::NoResponders,
            RequestErrorKind::MaxPayloadExceeded => Unanswered::TooLarge(error.to_string()),
            RequestErrorKind::TimedOut => match self.denial(subject) {
                Some(why) => Unanswered::Denied(why),
                None => Unanswered::Failed(
                    self.is_down().unwrap_or_else(|| format!("NATS gave no answer within {PATIENCE:?}")),
                ),
            },
            _ => Unanswered::Failed(with_causes(&error)),
        })
    }

    /// Returns the server's refusal of a subject, if it came lately.
    fn denial(&self, subject: &str) -> Option<String> {
        let denied = self.notes.denied.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, why) = denied.as_ref()?;
        (at.elapsed() < RECENT && why.contains(subject)).then(|| why.clone())
    }
}

/// Waits until the connection is lost, and returns the reason.
pub(crate) async fn lost(link: &mut watch::Receiver<Link>) -> String {
    let why = match link.wait_for(|link| matches!(link, Link::Down { .. })).await.as_deref() {
        Ok(Link::Down { why, .. }) => Some(why.clone()),
        _ => None,
    };
    match why {
        Some(why) => why,
        None => std::future::pending().await,
    }
}

fn settings(options: &Options, user: &User) -> Result<ConnectOptions, QueueError> {
    let mut settings = ConnectOptions::new()
        .name("hostler")
        .ping_interval(PING)
        .connection_timeout(CONNECT)
        .request_timeout(Some(PATIENCE))
        .reconnect_delay_callback(|attempts| match u32::try_from(attempts).unwrap_or(u32::MAX) {
            0 | 1 => Duration::ZERO,
            attempts => RETRY.rest(attempts - 2, fastrand::f64()),
        });
    settings = match user {
        User::Unnamed => settings,
        User::Token(token) => settings.token(token.clone()),
        User::Password(name, password) => settings.user_and_password(name.clone(), password.clone()),
    };
    if let Some(text) = &options.credentials {
        let refused = |error| QueueError::Refused(format!("queue.nats.credentials: the file is not valid: {error}"));
        settings = settings.credentials(text).map_err(refused)?;
    }
    if let Some(seed) = &options.nkey {
        settings = settings.nkey(seed.clone());
    }
    if options.ca.is_some() || options.client_cert.is_some() {
        settings = settings.require_tls(true);
    }
    if let Some(file) = &options.ca {
        settings = settings.add_root_certificates(file.clone());
    }
    if let Some(file) = &options.client_cert {
        let file: PathBuf = file.clone();
        settings = settings.add_client_certificate(file.clone(), file);
    }
    Ok(settings)
}
