//! The connection to the server, its state, and requests over it.
//!
//! The client library connects again after a loss. Leases live on the server, so they survive that.

mod proof;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::{ConnectErrorKind, ConnectOptions, Event, HeaderMap, Message, Request, RequestErrorKind, ServerError};
use bytes::Bytes;
use hostler_queue::{Link, QueueError};
use hostler_types::Backoff;
use hostler_types::error_chain::with_causes;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::Options;
use super::address::{Address, User};
use super::client::{Client, Connect, Life};

/// Delays before the connection is tried again.
const RETRY: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(5));

/// Interval of pings. The client gives a connection up after two of them without an answer.
const PING: Duration = Duration::from_secs(5);

/// Maximum time to connect.
const CONNECT: Duration = Duration::from_secs(10);

/// Maximum time to wait for an answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Reason for a loss of which nothing is known.
const UNKNOWN: &str = "it was closed, the server was silent, or it sent a message that the client library cannot read";

/// Refusals that are remembered.
const MOST_REFUSALS: usize = 64;

/// Time after which a refusal is logged again.
const REMINDER: Duration = Duration::from_secs(60);

/// Reason why a request has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// Nobody listens to the subject.
    NoResponders,
    /// The user may not use the subject.
    Denied(String),
    /// The request is larger than the server takes.
    TooLarge(String),
    /// There is no connection, so nothing was sent.
    Unsent(String),
    /// The connection was lost, or the answer did not come in time. The request may have taken effect.
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
            Self::Unsent(why) | Self::Failed(why) => QueueError::Unavailable(format!("cannot {what}: {why}")),
        }
    }
}

/// The connection to the server.
pub(crate) struct Line {
    pub(crate) client: Client,
    /// Servers, for people.
    pub(crate) address: String,
    events: Arc<Events>,
}

/// State that the client's events change.
struct Events {
    address: String,
    link: watch::Sender<Link>,
    alerts: watch::Sender<Alerts>,
    /// Last error of the server, which may be why the connection ends.
    why: Mutex<Option<String>>,
}

/// Losses of the connection, and refusals of subjects.
#[derive(Debug, Default)]
struct Alerts {
    losses: u64,
    /// The latest first.
    refusals: VecDeque<(Instant, String)>,
}

impl Alerts {
    /// Notes a refusal. Returns `false` if nobody needs to know: the same one came a short time ago, or it is a proof.
    fn refuse(&mut self, error: &str, now: Instant) -> bool {
        let is_old = |(at, text): &(Instant, String)| now.saturating_duration_since(*at) >= REMINDER || text != error;
        let is_new = !proof::is_refused(error) && self.refusals.iter().all(is_old);
        self.refusals.truncate(MOST_REFUSALS - 1);
        self.refusals.push_front((now, error.to_owned()));
        is_new
    }

    /// Returns the refusal of a subject that came after `since`.
    fn refusal(&self, subjects: &[&str], since: Instant) -> Option<String> {
        let names = |text: &String| subjects.iter().any(|subject| text.contains(&format!("\"{subject}\"")));
        self.refusals.iter().find(|(at, text)| *at >= since && names(text)).map(|(_, text)| text.clone())
    }
}

impl Events {
    fn new(address: String) -> Self {
        let (link, alerts) = (watch::Sender::new(Link::Up), watch::Sender::new(Alerts::default()));
        Self { address, link, alerts, why: Mutex::default() }
    }

    fn take(&self, event: &Event) {
        match event {
            Event::Connected => self.connected(),
            Event::Disconnected | Event::Closed => self.disconnected(),
            Event::ServerError(ServerError::Other(error)) if is_refusal(error) => {
                let mut is_new = false;
                self.alerts.send_modify(|alerts| is_new = alerts.refuse(error, Instant::now()));
                if is_new {
                    tracing::warn!(error, "NATS refuses a subject: check the permissions of the user");
                }
            }
            Event::ServerError(error) => {
                tracing::debug!(%error, "NATS reports an error");
                *self.why.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
            }
            Event::ClientError(error) => tracing::debug!(%error, "cannot connect to NATS again"),
            Event::LameDuckMode => tracing::info!(server = self.address, "NATS is about to shut down"),
            Event::SlowConsumer(_) => tracing::warn!("messages came faster than they were read, and some were dropped"),
            Event::Draining => {}
        }
    }

    fn connected(&self) {
        let was_down = self.link.send_if_modified(|link| {
            let was_down = matches!(link, Link::Down { .. });
            *link = Link::Up;
            was_down
        });
        if was_down {
            tracing::info!(server = self.address, "connected to NATS again");
        }
    }

    fn disconnected(&self) {
        let error = self.why.lock().unwrap_or_else(PoisonError::into_inner).take();
        let error = error.unwrap_or_else(|| UNKNOWN.to_owned());
        let is_new = self.link.send_if_modified(|link| {
            let is_new = !matches!(link, Link::Down { .. });
            if is_new {
                let why = format!("the connection to NATS at {} is lost: {error}", self.address);
                *link = Link::Down { since: Instant::now(), why };
            }
            is_new
        });
        if is_new {
            self.alerts.send_modify(|alerts| alerts.losses += 1);
            tracing::warn!(server = self.address, error, "lost the connection to NATS");
        }
    }

    /// Takes the state over that the client is in. An event may be late, or dropped among many others.
    fn reconcile(&self, state: &State) {
        let is_down = matches!(&*self.link.borrow(), Link::Down { .. });
        match state {
            State::Connected if is_down => self.connected(),
            State::Disconnected if !is_down => self.disconnected(),
            _ => {}
        }
    }

    /// Returns the reason why the connection is lost, or was.
    fn reason(&self) -> String {
        match &*self.link.borrow() {
            Link::Down { why, .. } => why.clone(),
            Link::Up | Link::Blocked(_) => format!("the connection to NATS at {} was lost", self.address),
        }
    }
}

fn is_refusal(error: &str) -> bool {
    error.to_ascii_lowercase().contains("permissions violation")
}

/// Waits for the loss of the present connection, and for refusals of subjects.
pub(crate) struct Watch {
    events: Arc<Events>,
    alerts: watch::Receiver<Alerts>,
    losses: u64,
    since: Instant,
}

impl Watch {
    /// Waits until the connection is lost, or the server refuses one of the subjects. A refusal since the watch began counts.
    pub(crate) async fn fault(&mut self, subjects: &[&str]) -> Unanswered {
        self.fault_since(self.since, subjects).await
    }

    /// Waits as [`Self::fault`] does. A refusal since `since` counts.
    pub(crate) async fn fault_since(&mut self, since: Instant, subjects: &[&str]) -> Unanswered {
        let losses = self.losses;
        let fault = |alerts: &Alerts| alerts.losses != losses || alerts.refusal(subjects, since).is_some();
        let found = self.alerts.wait_for(fault).await.ok().map(|alerts| alerts.refusal(subjects, since));
        match found {
            Some(Some(why)) => Unanswered::Denied(why),
            Some(None) => Unanswered::Failed(self.events.reason()),
            // The sender is part of this value, so it is never gone.
            None => std::future::pending().await,
        }
    }
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
        let events = Arc::new(Events::new(shown.clone()));
        let connector = Connector { options: options.clone(), address, events: Arc::clone(&events) };
        Ok(Self { client: Client::connect(connector).await?, address: shown, events })
    }

    /// Returns the state of the connection, and its changes.
    pub(crate) fn link(&self) -> watch::Receiver<Link> {
        self.events.link.subscribe()
    }

    /// Returns the number of connections that were lost up to now. The server forgets what a lost connection asked for.
    pub(crate) fn losses(&self) -> u64 {
        self.events.alerts.borrow().losses
    }

    /// Begins to watch for the loss of the present connection, and for refusals.
    pub(crate) fn watch(&self) -> Watch {
        let alerts = self.events.alerts.subscribe();
        let losses = alerts.borrow().losses;
        Watch { events: Arc::clone(&self.events), alerts, losses, since: Instant::now() }
    }

    /// Returns the reason why there is no connection. `None`: there is one, as far as is known.
    pub(crate) fn is_down(&self) -> Option<String> {
        let state = self.client.connection_state();
        self.events.reconcile(&state);
        if state == State::Connected {
            return None;
        }
        Some(self.events.reason())
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

    /// Sends a request, and returns the answer. Sends nothing while the connection is known to be lost: the client would keep it
    /// until it has connected again, when the caller has given up.
    pub(crate) async fn request(
        &self,
        subject: &str,
        headers: Option<HeaderMap>,
        body: Bytes,
    ) -> Result<Message, Unanswered> {
        self.request_within(PATIENCE, subject, headers, body).await
    }

    /// Sends a request, and waits for the answer for at most `patience`.
    pub(crate) async fn request_within(
        &self,
        patience: Duration,
        subject: &str,
        headers: Option<HeaderMap>,
        body: Bytes,
    ) -> Result<Message, Unanswered> {
        let mut watch = self.watch();
        if let Some(why) = self.is_down() {
            return Err(Unanswered::Unsent(why));
        }
        let request = Request::new().payload(body).timeout(Some(patience));
        let request = headers.into_iter().fold(request, Request::headers);
        let needs = [subject];
        let answer = tokio::select! {
            biased;
            answer = self.client.send_request(subject.to_owned(), request) => answer,
            // The answer would go to the connection that is lost, or never come.
            fault = watch.fault(&needs) => return Err(fault),
        };
        answer.map_err(|error| match error.kind() {
            RequestErrorKind::NoResponders => Unanswered::NoResponders,
            RequestErrorKind::MaxPayloadExceeded => Unanswered::TooLarge(error.to_string()),
            RequestErrorKind::TimedOut => {
                Unanswered::Failed(self.is_down().unwrap_or_else(|| format!("NATS gave no answer within {patience:?}")))
            }
            _ => Unanswered::Failed(with_causes(&error)),
        })
    }
}

/// Maker of connections.
pub(crate) struct Connector {
    options: Options,
    address: Address,
    events: Arc<Events>,
}

impl Connect for Connector {
    async fn connect(&self, life: Life) -> Result<async_nats::Client, QueueError> {
        let events = Arc::clone(&self.events);
        let connecting = settings(&self.options, &self.address)?
            .event_callback(move |event| {
                let (life, events) = (life.clone(), Arc::clone(&events));
                async move {
                    life.begun().await;
                    events.take(&event);
                }
            })
            .connect(self.address.servers.clone());
        connecting.await.map_err(|error| {
            let text = format!("cannot connect to NATS at {}: {}", self.events.address, with_causes(&error));
            match error.kind() {
                ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => QueueError::Refused(format!(
                    "{text}: check the user in queue.nats.url, or the file of queue.nats.credentials or queue.nats.nkey"
                )),
                ConnectErrorKind::ServerParse => QueueError::Refused(text),
                _ => QueueError::Unavailable(text),
            }
        })
    }

    fn began(&self) {
        self.events.take(&Event::Connected);
    }

    fn ended(&self) {
        let why = "its client gave up, over a message that it cannot read";
        *self.events.why.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.to_owned());
        self.events.disconnected();
    }
}

fn settings(options: &Options, address: &Address) -> Result<ConnectOptions, QueueError> {
    let user = &address.user;
    if *user != User::Unnamed && (options.credentials.is_some() || options.nkey.is_some()) {
        return Err(QueueError::Refused(
            "queue.nats.url names a user, beside queue.nats.credentials or queue.nats.nkey: remove one of the two"
                .to_owned(),
        ));
    }
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
    // Servers of a cluster that the client hears of have no scheme, so `tls://` alone would not hold for them.
    if address.is_encrypted() || options.ca.is_some() || options.client_cert.is_some() {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn events() -> Arc<Events> {
        Arc::new(Events::new("a:4222".to_owned()))
    }

    fn watch(events: &Arc<Events>) -> Watch {
        let alerts = events.alerts.subscribe();
        let losses = alerts.borrow().losses;
        Watch { events: Arc::clone(events), alerts, losses, since: Instant::now() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_loss_is_noticed_though_the_next_connection_is_there_at_once() {
        let events = events();
        let mut before = watch(&events);
        events.take(&Event::Disconnected);
        events.take(&Event::Connected);
        assert!(matches!(before.fault(&[]).await, Unanswered::Failed(why) if why.contains("was lost")));
        let mut after = watch(&events);
        assert!(timeout_at(Instant::now() + PING, after.fault(&[])).await.is_err(), "this connection is another one");
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_subject_is_told_to_those_who_use_it() {
        let events = events();
        let (mut one, mut other) = (watch(&events), watch(&events));
        let refused = ServerError::Other("Permissions Violation for Publish to \"a.b\"".to_owned());
        events.take(&Event::ServerError(refused));
        assert!(matches!(one.fault(&["x", "a.b"]).await, Unanswered::Denied(why) if why.contains("a.b")));
        assert!(timeout_at(Instant::now() + PING, other.fault(&["a"])).await.is_err());
        let mut late = watch(&events);
        late.since += PING;
        assert!(timeout_at(Instant::now() + PING, late.fault(&["a.b"])).await.is_err(), "it is an old one");
    }

    #[test]
    fn a_user_is_named_in_one_place_only() {
        let with = |url: &str| {
            let options = Options { url: url.to_owned(), nkey: Some("seed".to_owned()), ..Options::default() };
            settings(&options, &Address::read(&options.url)?).map(drop)
        };
        assert_eq!(with("nats://a"), Ok(()));
        assert!(matches!(with("nats://me:p@a"), Err(QueueError::Refused(why)) if why.contains("remove one")));
    }

    /// The client drops events when too many come at once.
    #[test]
    fn the_state_of_the_client_counts_when_an_event_is_missing() {
        let events = events();
        events.reconcile(&State::Disconnected);
        assert!(matches!(&*events.link.borrow(), Link::Down { .. }));
        events.take(&Event::Disconnected);
        assert_eq!(events.alerts.borrow().losses, 1, "it is the same loss");
        events.reconcile(&State::Connected);
        assert_eq!(*events.link.borrow(), Link::Up);
    }

    #[test]
    fn refusals_are_bounded_and_logged_once_a_minute() {
        let (mut alerts, now) = (Alerts::default(), Instant::now());
        assert!(alerts.refuse("a", now) && alerts.refuse("b", now) && !alerts.refuse("a", now));
        assert!(alerts.refuse("a", now + REMINDER));
        (0..1000).for_each(|_| _ = alerts.refuse("c", now));
        assert_eq!(alerts.refusals.len(), MOST_REFUSALS);
        assert!(!alerts.refuse("Permissions Violation for Publish to \"_INBOX.x.proof\"", now), "it is asked for");
        assert!(alerts.refusal(&["_INBOX.x.proof"], now).is_some());
    }
}
