//! A connection to the server that is made when first needed, and made again after a loss.
//!
//! The client library could recover connections itself, but its recovery would carry delivery numbers across connections.

use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_core::Stream;
use hostler_queue::{Link, QueueError};
use hostler_types::Backoff;
use lapin::tcp::{OwnedIdentity, OwnedTLSConfig};
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{Channel, Connection, ConnectionProperties, Event};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::fault::{connect_error, queue_error};
use super::frame::{self, FrameLimits};
use super::{Options, repaired, tuning};

/// Delays before the connection is tried again.
const RETRY: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(5));

/// Waits for the server's answer until `deadline`.
///
/// # Errors
/// The client's error. A late answer is an I/O error.
pub(super) async fn in_time<T>(deadline: Instant, answer: impl Future<Output = lapin::Result<T>>) -> lapin::Result<T> {
    match timeout_at(deadline, answer).await {
        Ok(answer) => answer,
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the server did not answer in time").into()),
    }
}

/// Returns the interval of heartbeats after which a silent server counts as lost. `agreed`: the interval in seconds that client
/// and server agreed on. Zero: they send none, and `wanted` is as good as any.
fn heartbeat(agreed: u16, wanted: Duration) -> Duration {
    if agreed == 0 { wanted } else { Duration::from_secs(agreed.into()) }
}

/// Shortest interval of heartbeats in seconds. A server that takes more than half of it to answer counts as lost.
const SHORTEST: u16 = 2;

/// Time that the server has at least to answer a request that costs it nothing.
const ANSWER: Duration = Duration::from_secs(5);

/// Time after which a connection counts as one that lasts. A shorter one is a failure to connect, so that the delays grow.
const STABLE: Duration = Duration::from_secs(30);

/// Maximum time to connect.
const PATIENCE: Duration = Duration::from_secs(15);

/// The way to the server, or to the nodes of a cluster.
pub(super) struct Endpoint {
    /// The nodes, with one account. Not empty.
    nodes: Vec<AMQPUri>,
    tls: OwnedTLSConfig,
}

impl Endpoint {
    /// Reads the options.
    ///
    /// # Errors
    /// [`QueueError::Refused`] if the URL is not valid. The text does not contain the URL, which may contain a password.
    pub(super) fn new(options: &Options) -> Result<Self, QueueError> {
        let seconds = u16::try_from(options.heartbeat.as_secs()).unwrap_or(u16::MAX);
        let nodes = nodes(&options.url).into_iter().map(|url| node(&url, seconds)).collect::<Option<Vec<_>>>();
        let nodes = nodes.filter(|nodes| !nodes.is_empty()).ok_or_else(|| {
            QueueError::Refused("queue.rabbitmq.url is not a URL such as amqp://user:password@host/vhost".to_owned())
        })?;
        if let Some(unused) = nodes.first().and_then(|node| unused_for_tls(node, options)) {
            tracing::warn!(
                "queue.rabbitmq.{unused} has no effect on amqp://, and the password is sent in the clear: write amqps://"
            );
        }
        let identity = options.client_identity.clone().map(|(pem, key)| OwnedIdentity::PKCS8 { pem, key });
        Ok(Self { nodes, tls: OwnedTLSConfig { identity, cert_chain: options.ca.clone() } })
    }

    /// Returns the addresses of all nodes and the virtual host, without the user and the password.
    pub(super) fn address(&self) -> String {
        address(&self.nodes)
    }

    /// Returns the virtual host, the user and the password.
    pub(super) fn account(&self) -> (&str, &str, &str) {
        let AMQPUri { authority, vhost, .. } = &self.nodes[0];
        (vhost, &authority.userinfo.username, &authority.userinfo.password)
    }

    /// Connects to the first node that accepts a connection. Tries the node `first` before the others. Returns its number too.
    async fn connect(&self, role: Role, first: usize) -> Result<(Connection, usize), QueueError> {
        let mut fault = None;
        for number in (first..first + self.nodes.len()).map(|number| number % self.nodes.len()) {
            match self.connect_to(&self.nodes[number], role).await {
                Ok(connection) => return Ok((connection, number)),
                // A refusal says more than the silence of another node.
                Err(error) if matches!(fault, Some(QueueError::Refused(_))) => drop(error),
                Err(error) => fault = Some(error),
            }
        }
        Err(fault.unwrap_or_else(|| QueueError::Unavailable("there is no node to connect to".to_owned())))
    }

    async fn connect_to(&self, node: &AMQPUri, role: Role) -> Result<Connection, QueueError> {
        let what = || format!("cannot connect to RabbitMQ at {}", address(std::slice::from_ref(node)));
        let properties =
            ConnectionProperties::default().with_connection_name(format!("hostler {}", role.name()).into());
        let connecting = repaired::connect(node.clone(), properties, self.tls.clone(), role.spare());
        let patience = PATIENCE / u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        match timeout(patience, connecting).await {
            Ok(connected) => {
                connected.map_err(|error| connect_error(&what(), node.scheme == AMQPScheme::AMQPS, &error))
            }
            Err(_) => Err(QueueError::Unavailable(format!(
                "{}: no answer within {patience:?}: check the host and the port of queue.rabbitmq.url, and whether something else \
                 listens there",
                what()
            ))),
        }
    }
}

/// Returns the key of an option that only an encrypted connection uses. `None`: the connection is encrypted, or no such option is
/// set.
fn unused_for_tls(uri: &AMQPUri, options: &Options) -> Option<&'static str> {
    let set = [("ca", options.ca.is_some()), ("client_cert", options.client_identity.is_some())];
    let key = set.into_iter().find(|(_, is_set)| *is_set).map(|(key, _)| key);
    key.filter(|_| uri.scheme == AMQPScheme::AMQP)
}

/// Returns the addresses of nodes, and their virtual host.
fn address(nodes: &[AMQPUri]) -> String {
    let authority = |node: &AMQPUri| format!("{}:{}", node.authority.host, node.authority.port);
    let vhost = nodes.first().map_or("", |node| node.vhost.trim_start_matches('/'));
    format!("{}/{vhost}", nodes.iter().map(authority).collect::<Vec<_>>().join(","))
}

/// Returns a URL for each host of a URL, which may name several hosts, separated by commas. Empty: the name of a host is missing.
fn nodes(url: &str) -> Vec<String> {
    let Some((scheme, rest)) = url.split_once("://") else { return vec![url.to_owned()] };
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let (account, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
    // The client takes an empty name for `localhost`.
    if hosts.contains(',') && hosts.split(',').any(str::is_empty) {
        return Vec::new();
    }
    hosts.split(',').map(|host| format!("{scheme}://{account}{host}{path}")).collect()
}

/// Reads the URL of one node. `None`: the URL is not valid. The client's error is dropped, because it may quote the URL.
fn node(url: &str, heartbeat: u16) -> Option<AMQPUri> {
    let mut uri: AMQPUri = url.parse().ok()?;
    if let Some(address) = ipv6(url) {
        address.clone_into(&mut uri.authority.host);
    }
    // A URL that ends in a slash means the default virtual host, as it does for most clients. No virtual host has an empty name.
    if uri.vhost.is_empty() {
        uri.vhost = "/".to_owned();
    }
    let wanted = uri.query.heartbeat.unwrap_or(heartbeat);
    uri.query.heartbeat = Some(if wanted == 0 { 0 } else { wanted.max(SHORTEST) });
    Some(uri)
}

/// Returns the host of a URL if it is an IPv6 address, for which the client would connect to `localhost`.
fn ipv6(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?']).next()?;
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    Some(host.strip_prefix('[')?.split_once(']')?.0)
}

/// State of a connection.
#[derive(Clone)]
enum State {
    /// Not tried yet.
    New,
    Up(Arc<Connection>),
    Down(QueueError),
}

/// Purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Everything but publishing.
    Consuming,
    Publishing,
}

impl Role {
    /// Returns the name of the purpose, for logs and for the server's list of connections.
    fn name(self) -> &'static str {
        match self {
            Self::Consuming => "consuming",
            Self::Publishing => "publishing",
        }
    }

    /// Returns the number of bytes by which frames may exceed the limit that both sides agree on.
    fn spare(self) -> u32 {
        match self {
            Self::Consuming => tuning::SPARE,
            Self::Publishing => 0,
        }
    }
}

/// A connection for one purpose.
pub(super) struct Line {
    endpoint: Arc<Endpoint>,
    role: Role,
    state: watch::Sender<State>,
    link: watch::Sender<Link>,
    keeper: Mutex<JoinSet<()>>,
}

impl Line {
    pub(super) fn new(endpoint: Arc<Endpoint>, role: Role) -> Arc<Self> {
        let (state, link) = (watch::Sender::new(State::New), watch::Sender::new(Link::Up));
        Arc::new(Self { endpoint, role, state, link, keeper: Mutex::default() })
    }

    /// Returns the state of the connection, and its changes.
    pub(super) fn link(&self) -> watch::Receiver<Link> {
        self.link.subscribe()
    }

    /// Returns the connection. Connects first, if needed. Waits at most until `deadline` for a lost connection to come back.
    ///
    /// # Errors
    /// The reason why there is no connection.
    pub(super) async fn get(&self, deadline: Instant) -> Result<Arc<Connection>, QueueError> {
        // The first attempt takes as long as it takes, and its failure is not waited out.
        let is_first = matches!(*self.state.borrow(), State::New);
        self.start();
        let mut watched = self.state.subscribe();
        let is_usable = |state: &State| match state {
            State::New => false,
            State::Up(connection) => connection.status().connected(),
            State::Down(error) => is_first || matches!(error, QueueError::Refused(_)),
        };
        let waiting = async { watched.wait_for(is_usable).await.map(|state| state.clone()) };
        // All nodes together are tried for this time, and the reason of the failure follows it.
        let deadline = if is_first { deadline.max(Instant::now() + PATIENCE + ANSWER) } else { deadline };
        let state = match timeout_at(deadline, waiting).await {
            Ok(Ok(state)) => state,
            _ => self.state.borrow().clone(),
        };
        match state {
            State::Up(connection) if connection.status().connected() => Ok(connection),
            State::Down(error) => Err(error),
            State::New | State::Up(_) => Err(QueueError::Unavailable("the connection to RabbitMQ is lost".to_owned())),
        }
    }

    /// Opens a channel.
    ///
    /// # Errors
    /// The reason why there is no connection or no channel, or that the server did not answer until `deadline`. The server has
    /// at least [`ANSWER`] to answer.
    pub(super) async fn channel(&self, deadline: Instant) -> Result<Channel, QueueError> {
        let connection = self.get(deadline).await?;
        open_channel(&connection, deadline).await
    }

    /// Opens two channels of one connection.
    ///
    /// # Errors
    /// As [`Self::channel`].
    pub(super) async fn two_channels(&self, deadline: Instant) -> Result<(Channel, Channel), QueueError> {
        let connection = self.get(deadline).await?;
        Ok((open_channel(&connection, deadline).await?, open_channel(&connection, deadline).await?))
    }

    /// Returns the reason why the server takes no messages. `None`: it takes them, as far as is known.
    pub(super) fn blocked(&self) -> Option<String> {
        let is_blocked = matches!(&*self.state.borrow(), State::Up(connection) if connection.status().blocked());
        let why = || match &*self.link.borrow() {
            Link::Blocked(why) => why.clone(),
            Link::Up | Link::Down { .. } => "it is short of memory or disk".to_owned(),
        };
        is_blocked.then(why)
    }

    /// Returns the interval of heartbeats of the present connection. `wanted`: the interval if there is none.
    pub(super) fn heartbeat(&self, wanted: Duration) -> Duration {
        match &*self.state.borrow() {
            State::Up(connection) => heartbeat(connection.configuration().heartbeat(), wanted),
            State::New | State::Down(_) => wanted,
        }
    }

    /// Returns the limits to frames that are sent on the present connection.
    pub(super) fn frame_limits(&self) -> FrameLimits {
        FrameLimits::new(match &*self.state.borrow() {
            State::Up(connection) => connection.configuration().frame_max().saturating_sub(self.role.spare()),
            State::New | State::Down(_) => frame::DEFAULT_MAX,
        })
    }

    /// Starts the task that keeps the connection, unless it runs.
    fn start(&self) {
        let mut keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner);
        if keeper.is_empty() {
            let (endpoint, role) = (Arc::clone(&self.endpoint), self.role);
            let (state, link) = (self.state.clone(), self.link.clone());
            keeper.spawn(async move { keep(&endpoint, role, &state, &link).await });
        }
    }
}

async fn open_channel(connection: &Connection, deadline: Instant) -> Result<Channel, QueueError> {
    let opened = in_time(deadline.max(Instant::now() + ANSWER), connection.create_channel()).await;
    opened.map_err(|error| queue_error("cannot open a channel", &error))
}

/// Connects, waits until the connection is lost, and connects again, forever. After a loss, the next node is the first to be
/// tried.
async fn keep(endpoint: &Endpoint, role: Role, state: &watch::Sender<State>, link: &watch::Sender<Link>) {
    let (mut failures, mut first, name) = (0_u32, 0, role.name());
    loop {
        failures = match endpoint.connect(role, first).await {
            Ok((connection, number)) => {
                let server = address(&endpoint.nodes[number..=number]);
                if failures > 0 {
                    tracing::info!(role = name, server, "connected to RabbitMQ again");
                }
                let (connection, since) = (Arc::new(connection), Instant::now());
                state.send_replace(State::Up(Arc::clone(&connection)));
                link.send_replace(Link::Up);
                let why = end(&connection, link).await;
                tracing::warn!(role = name, server, error = why, "lost the connection to RabbitMQ");
                let lost = format!("the connection to RabbitMQ at {server} is lost: {why}");
                down(state, link, QueueError::Unavailable(lost));
                first = number + 1;
                failures_after_loss(failures, since.elapsed())
            }
            Err(error) => {
                down(state, link, error);
                failures.saturating_add(1)
            }
        };
        sleep(RETRY.rest(failures.saturating_sub(1), fastrand::f64())).await;
    }
}

/// Returns the number of consecutive failures when a connection is lost that lasted for this time. `before`: their number when
/// it was made.
fn failures_after_loss(before: u32, lasted: Duration) -> u32 {
    if lasted < STABLE { before.saturating_add(1) } else { 1 }
}

fn down(state: &watch::Sender<State>, link: &watch::Sender<Link>, error: QueueError) {
    link.send_modify(|link| {
        let since = if let Link::Down { since, .. } = link { *since } else { Instant::now() };
        *link = Link::Down { since, why: error.to_string() };
    });
    state.send_replace(State::Down(error));
}

/// Waits until the connection is lost, and returns the reason. Reports meanwhile whether the server blocks it.
async fn end(connection: &Connection, link: &watch::Sender<Link>) -> String {
    let mut events = pin!(connection.events_listener());
    while connection.status().connected() {
        // The interval is for an end that came before the listener.
        let event = timeout(Duration::from_secs(1), std::future::poll_fn(|cx| events.as_mut().poll_next(cx))).await;
        match event {
            Ok(Some(Event::ConnectionBlocked(why))) => {
                tracing::warn!(why, "RabbitMQ accepts no messages for now");
                link.send_replace(Link::Blocked(why));
            }
            Ok(Some(Event::ConnectionUnblocked)) => {
                tracing::info!("RabbitMQ accepts messages again");
                link.send_replace(Link::Up);
            }
            Ok(Some(Event::Error(error))) if !connection.status().connected() => return error.to_string(),
            Ok(None) => return "the client ended".to_owned(),
            Ok(Some(_)) | Err(_) => {}
        }
    }
    "it was closed".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(url: &str) -> Result<Endpoint, QueueError> {
        Endpoint::new(&Options { url: url.to_owned(), ..Options::default() })
    }

    #[test]
    fn the_interval_of_heartbeats_is_the_one_that_both_agreed_on() {
        let wanted = Duration::from_secs(10);
        assert_eq!((heartbeat(3, wanted), heartbeat(0, wanted)), (Duration::from_secs(3), wanted));
        let asked = |url| endpoint(url).map(|endpoint| endpoint.nodes[0].query.heartbeat).unwrap_or_default();
        let urls = ["amqp://localhost", "amqp://localhost?heartbeat=1", "amqp://localhost?heartbeat=0"];
        assert_eq!(urls.map(asked), [Some(10), Some(SHORTEST), Some(0)]);
        let cluster = endpoint("amqp://one,two:4711/work?heartbeat=60").map(|endpoint| endpoint.nodes).unwrap();
        assert!(cluster.len() == 2 && cluster.iter().all(|node| node.query.heartbeat == Some(60)), "{cluster:?}");
    }

    /// A server may accept each connection and close it at once, for example at its limit of connections.
    #[test]
    fn delays_grow_until_a_connection_lasts() {
        let short = STABLE - Duration::from_millis(1);
        let mut failures = 0;
        let delays = [Duration::ZERO, short, short, STABLE, short].map(|lasted| {
            failures = failures_after_loss(failures, lasted);
            RETRY.ceiling(failures - 1).as_millis()
        });
        assert_eq!(delays, [250, 500, 1000, 250, 500]);
    }

    #[test]
    fn certificates_for_a_connection_in_the_clear_are_noticed() {
        let unused = |url: &str, ca: Option<&str>, identity: bool| {
            let options = Options {
                ca: ca.map(str::to_owned),
                client_identity: identity.then(|| (Vec::new(), Vec::new())),
                ..Options::default()
            };
            unused_for_tls(&url.parse().unwrap(), &options)
        };
        assert_eq!(unused("amqp://host", Some("PEM"), false), Some("ca"));
        assert_eq!(unused("amqp://host", None, true), Some("client_cert"));
        assert_eq!([unused("amqps://host", Some("PEM"), true), unused("amqp://host", None, false)], [None, None]);
    }

    #[tokio::test]
    async fn an_answer_that_does_not_come_is_a_passing_error() {
        let answer = in_time(Instant::now(), std::future::pending::<lapin::Result<()>>()).await;
        let error = answer.map_err(|error| queue_error("cannot look", &error)).unwrap_err();
        assert!(matches!(&error, QueueError::Unavailable(text) if text.contains("did not answer in time")), "{error}");
    }

    #[test]
    fn a_slash_at_the_end_is_the_default_virtual_host() {
        let vhost = |url| endpoint(url).map(|endpoint| endpoint.nodes[0].vhost.clone()).unwrap();
        let urls = ["amqp://host", "amqp://host/", "amqp://host/%2f", "AMQP://host/?heartbeat=5", "amqp://host/work"];
        assert_eq!(urls.map(vhost), ["/", "/", "/", "/", "work"]);
    }

    /// The first wait for a connection must outlast the attempts on all nodes, whose failure has the cause.
    #[tokio::test(start_paused = true)]
    async fn a_server_that_accepts_and_never_answers_is_named() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let line = Line::new(Arc::new(endpoint(&format!("amqp://{address}")).unwrap()), Role::Consuming);
        let error = line.get(Instant::now()).await.map(drop).unwrap_err().to_string();
        assert!(error.contains(&address.to_string()) && error.contains("no answer within"), "{error}");
    }

    #[test]
    fn an_address_is_shown_without_its_password() {
        let shown = |url| endpoint(url).map(|endpoint| endpoint.address()).unwrap_or_default();
        assert_eq!(shown("amqp://user:secret@rabbit.example.com/work"), "rabbit.example.com:5672/work");
        assert_eq!(shown("amqps://10.0.0.1"), "10.0.0.1:5671/");
        assert_eq!(shown("amqp://user:p%5B@[2001:db8::1]:4711/%2f"), "2001:db8::1:4711/");
        let cluster = "amqp://user:a,b@one,two:4711,[2001:db8::1]/work";
        assert_eq!(shown(cluster), "one:5672,two:4711,2001:db8::1:5672/work");
        for wrong in ["amqp:secret", "amqp://user:secret@host:port", "secret", "amqp://user:secret@one,/work"] {
            let Err(QueueError::Refused(text)) = endpoint(wrong) else { panic!("{wrong}") };
            assert!(!text.contains("secret"), "{text}");
        }
    }
}
