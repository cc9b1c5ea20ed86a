//! The connection to NATS: passes requests and replies between the server and the engine.
//!
//! The client reports the loss of a connection by events, which it drops if there are many. So a task compares the state
//! of the client, and the number of its connections, with what the engine knows.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::str::FromStr as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::client::PublishErrorKind;
use async_nats::connection::State;
use async_nats::{Client, HeaderMap, HeaderName, HeaderValue, Message, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::sync::mpsc::{self, Receiver, Sender, UnboundedReceiver};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::accept::{Incoming, MARK, may_be_answered};
use crate::answer;
use crate::engine::{Content, Event, Outbox, Outgoing};
use crate::envelope::Headers;
use crate::micro::{Card, Tally};
use crate::requests::Token;
use hostler_queue::Link;
use hostler_queue_nats::connecting;

/// Name of the header with the number of the delivery.
pub const ATTEMPT: &str = "Hostler-Attempt";

/// Number of events that wait for the engine at most. Further ones wait in the client.
const EVENTS: usize = 4_096;

/// Number of messages of one subscription that wait in the client at most. Further ones are dropped, and their producers get
/// no reply.
const WAITING: usize = 16_384;

/// Interval of the client's pings. The client gives a connection up after three without an answer, which is sooner than the
/// usual `ack_timeout`.
const PING: Duration = Duration::from_secs(5);

/// Interval between two looks at the state of the client.
const LOOK: Duration = Duration::from_secs(1);

/// Interval between two log lines about dropped messages.
const SLOW_EVERY: Duration = Duration::from_secs(10);

/// Longest wait for the server in a check, and at the start.
const PATIENCE: Duration = Duration::from_secs(10);

/// Wait in a check for errors that the server has sent.
const ERRORS: Duration = Duration::from_millis(100);

/// Number that no request has, for messages of the service to itself. They show that the connection works. A request to which
/// nobody listens would not: the server does not answer it if somebody has subscribed to all subjects.
const ECHO: Token = 0;

/// A connection, and the tasks that serve it.
pub struct Connection {
    client: Client,
    events: Sender<Event>,
    link: watch::Receiver<Link>,
    /// Wakes the task that watches the state of the client.
    changed: Arc<Notify>,
    shown: watch::Sender<Link>,
    tasks: JoinSet<()>,
}

/// Fault of an address that [`connecting::to`] cannot read.
const NO_ADDRESS: &str = "the address is not one such as nats://user:password@host:4222";

/// Checks that the servers at an address can be used, and that the service may subscribe to its subject.
///
/// # Errors
/// The text says why not. It contains no password.
pub async fn check(address: &str, subject: &str) -> Result<(), String> {
    let (errors, mut error) = mpsc::channel(1);
    let (servers, options) = connecting::to(address).map_err(|_| NO_ADDRESS.to_owned())?;
    let options = options.name("hostler check").event_callback(move |event| {
        let errors = errors.clone();
        async move {
            if let async_nats::Event::ServerError(error) = event {
                let _ = errors.try_send(error.to_string());
            }
        }
    });
    let checked = async {
        let client = options.connect(servers).await.map_err(|error| error.to_string())?;
        // Without a queue group and under a name that nobody uses, so that the check takes no message.
        let subject = format!("{subject}.{}", client.new_inbox());
        let _subscription = client.subscribe(subject).await.map_err(|error| error.to_string())?;
        let inbox = client.new_inbox();
        let mut echo = client.subscribe(inbox.clone()).await.map_err(|error| error.to_string())?;
        client.publish(inbox, Bytes::new()).await.map_err(|error| error.to_string())?;
        // The echo comes after an error about a subscription, and does not come if the user may not publish it.
        tokio::select! {
            Some(error) = error.recv() => return Err(error),
            _ = echo.next() => {}
        }
        // The client passes errors on by a task of its own.
        timeout(ERRORS, error.recv()).await.ok().flatten().map_or(Ok(()), Err)
    };
    timeout(PATIENCE, checked).await.unwrap_or_else(|_| Err(format!("no answer within {} s", PATIENCE.as_secs())))
}

impl Connection {
    /// Connects. `address`: that of one or more servers, as [`connecting::to`] reads it. Also returns the events for the engine.
    ///
    /// # Errors
    /// The text says why there is no connection. It contains no password.
    pub async fn open(address: &str) -> Result<(Self, Receiver<Event>), String> {
        let (servers, options) = connecting::to(address).map_err(|_| NO_ADDRESS.to_owned())?;
        let (events, inbox) = mpsc::channel(EVENTS);
        let (shown, link) = watch::channel(Link::Up);
        let (changed, slow) = (Arc::<Notify>::default(), watch::Sender::new(0_u64));
        tokio::spawn(report_drops(slow.subscribe()));
        let notify = Arc::clone(&changed);
        let options = options.name("hostler retry").ping_interval(PING).subscription_capacity(WAITING).event_callback(
            move |event| {
                on_event(&event, &notify, &slow);
                async {}
            },
        );
        let client = options.connect(servers).await.map_err(|error| error.to_string())?;
        Ok((Self { client, events, link, changed, shown, tasks: JoinSet::new() }, inbox))
    }

    /// Returns a sender of further events.
    pub fn events(&self) -> Sender<Event> {
        self.events.clone()
    }

    /// Returns the state of the connection.
    pub fn link(&self) -> watch::Receiver<Link> {
        self.link.clone()
    }

    /// Subscribes to the subject of the service, and begins to send what the engine puts into the returned outbox. `stop`:
    /// ends the subscription. Messages that were received before are still passed on. A message that the server sends before
    /// it knows of the end gets no reply: the client offers no way to wait for that.
    ///
    /// # Errors
    /// The subject is not valid, or the connection is closed.
    pub async fn serve(&mut self, subject: &str, group: &str, stop: CancellationToken) -> Result<Outbox, String> {
        let inbox = Inbox::new(&self.client.new_inbox());
        let mut replies = self.client.subscribe(inbox.subscription()).await.map_err(|error| error.to_string())?;
        let requests = self.client.queue_subscribe(format!("{subject}.>"), group.to_owned()).await;
        let requests = requests.map_err(|error| error.to_string())?;
        let tally = Tally::new();
        let card = Card::new(&format!("{subject}.>"), group, tally.clone());
        let questions = card.listen(&self.client).await?;
        // When the echo comes, the server knows of all subscriptions.
        self.client.publish(inbox.reply_to(ECHO), Bytes::new()).await.map_err(|error| error.to_string())?;
        if timeout(PATIENCE, replies.next()).await.is_err() {
            tracing::warn!(
                "the retry service does not receive its own messages, and would wait for receivers without end; its user must \
                 be allowed to publish to `_INBOX.>`"
            );
        }
        let (outbox, outgoing) = mpsc::unbounded_channel();
        self.tasks.spawn(card.serve(self.client.clone(), questions, stop.clone()));
        self.tasks.spawn(take_requests(self.client.clone(), requests, self.events.clone(), tally.clone(), stop));
        let inbox = Arc::new(inbox);
        // These end with the connection, or with the engine.
        tokio::spawn(take_replies(replies, Arc::clone(&inbox), self.events.clone()));
        tokio::spawn(watch_link(
            self.client.clone(),
            Arc::clone(&self.changed),
            self.shown.clone(),
            self.events.clone(),
        ));
        self.tasks.spawn(send(self.client.clone(), inbox, outgoing, self.events.clone(), tally));
        Ok(outbox)
    }

    /// Sends what is left, after the engine has ended.
    pub async fn end(mut self) {
        while self.tasks.join_next().await.is_some() {}
        if let Err(error) = self.client.flush().await {
            tracing::warn!(%error, "the last messages to NATS may be lost");
        }
    }
}

/// The reply subjects of the service. Each ends with the number of its request and a code, which only the server and the
/// receiver of that request know. A receiver can therefore not acknowledge the messages of others.
struct Inbox {
    subject: String,
    secret: RandomState,
}

impl Inbox {
    fn new(unique: &str) -> Self {
        Self { subject: format!("{unique}.{MARK}"), secret: RandomState::new() }
    }

    fn subscription(&self) -> String {
        format!("{}.*", self.subject)
    }

    fn reply_to(&self, token: Token) -> String {
        format!("{}.{token}-{:016x}", self.subject, self.secret.hash_one(token))
    }

    /// Returns the number of the request. `None`: the reply is for none of the requests.
    fn token(&self, subject: &str) -> Option<Token> {
        let (token, code) = subject.rsplit('.').next()?.split_once('-')?;
        let token = token.parse().ok()?;
        (code == format!("{:016x}", self.secret.hash_one(token))).then_some(token)
    }
}

fn on_event(event: &async_nats::Event, changed: &Notify, slow: &watch::Sender<u64>) {
    match event {
        async_nats::Event::Connected | async_nats::Event::Disconnected => changed.notify_one(),
        async_nats::Event::SlowConsumer(_) => slow.send_modify(|count| *count += 1),
        async_nats::Event::LameDuckMode => tracing::info!("the NATS server is about to end"),
        async_nats::Event::ServerError(error) => tracing::warn!(%error, "the NATS server reports an error"),
        async_nats::Event::ClientError(error) => tracing::warn!(%error, "the NATS client reports an error"),
        async_nats::Event::Draining | async_nats::Event::Closed => {}
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

/// Tells the engine and the health file about the state of the connection.
async fn watch_link(client: Client, changed: Arc<Notify>, shown: watch::Sender<Link>, events: Sender<Event>) {
    let mut known = None;
    loop {
        let connects = client.statistics().connects.load(Ordering::Relaxed);
        let link = (client.connection_state() == State::Connected).then_some(connects);
        if link != known {
            let event = match link {
                Some(link) => {
                    tracing::info!("connected to NATS");
                    shown.send_replace(Link::Up);
                    Event::Connected(link)
                }
                None => {
                    tracing::warn!("the connection to NATS is lost; deliveries wait until it is back");
                    let why = "the connection to NATS is lost".to_owned();
                    shown.send_replace(Link::Down { since: Instant::now(), why });
                    Event::Disconnected
                }
            };
            known = link;
            if events.send(event).await.is_err() {
                return;
            }
        }
        let _ = timeout(LOOK, changed.notified()).await;
        if events.is_closed() {
            return;
        }
    }
}

async fn take_requests(
    client: Client,
    mut requests: Subscriber,
    events: Sender<Event>,
    tally: Tally,
    stop: CancellationToken,
) {
    let mut is_stopped = false;
    loop {
        tokio::select! {
            message = requests.next() => {
                let Some(message) = message else { break };
                if message.reply.is_some() {
                    tally.taken();
                }
                let incoming = incoming(message, client.max_payload());
                if events.send(Event::Incoming(incoming)).await.is_err() {
                    return;
                }
            }
            () = stop.cancelled(), if !is_stopped => {
                is_stopped = true;
                // The stream ends after the messages that were received before.
                if requests.drain().await.is_err() {
                    break;
                }
            }
        }
    }
    let _ = events.send(Event::NoMoreIncoming).await;
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

async fn take_replies(mut replies: Subscriber, inbox: Arc<Inbox>, events: Sender<Event>) {
    while let Some(message) = replies.next().await {
        let Some(event) = reply(&inbox, &message) else {
            tracing::debug!("a reply is for no request, and is ignored");
            continue;
        };
        if events.send(event).await.is_err() {
            return;
        }
    }
}

/// Reads a message that came on a reply subject. `None`: it is for no request.
fn reply(inbox: &Inbox, message: &Message) -> Option<Event> {
    let token = inbox.token(&message.subject)?;
    if token == ECHO {
        return std::str::from_utf8(&message.payload).ok()?.parse().ok().map(Event::Heard);
    }
    let header = |name: &str| message.headers.as_ref()?.get(name).map(HeaderValue::as_str);
    let status = message.status.map(|status| status.as_u16());
    Some(Event::Reply(token, answer::read(&message.payload, status, header)))
}

async fn send(
    client: Client,
    inbox: Arc<Inbox>,
    mut outgoing: UnboundedReceiver<Outgoing>,
    events: Sender<Event>,
    tally: Tally,
) {
    let statistics = client.statistics();
    while let Some(message) = outgoing.recv().await {
        match message {
            // The engine knows that the connection of the request is lost, or will know soon, and sends it again.
            Outgoing::Request { link, .. }
                if statistics.connects.load(Ordering::Relaxed) != link
                    || client.connection_state() != State::Connected => {}
            Outgoing::Request { token, subject, attempt, content, .. } => {
                let headers = headers(&content, attempt);
                let (reply, body) = (inbox.reply_to(token), content.body.clone());
                let sent = client.publish_with_reply_and_headers(subject.to_string(), reply, headers, body).await;
                if let Err(error) = sent {
                    // A request that fails otherwise has no reply in time.
                    let is_final =
                        matches!(error.kind(), PublishErrorKind::MaxPayloadExceeded | PublishErrorKind::InvalidSubject);
                    if is_final {
                        let _ = events.send(Event::Unsendable(token, format!("it cannot be sent: {error}"))).await;
                    }
                }
            }
            // On another connection, it would come too late. The engine asks again.
            Outgoing::Probe(_) if client.connection_state() != State::Connected => {}
            Outgoing::Probe(at) => log_unsent(client.publish(inbox.reply_to(ECHO), at.to_string().into()).await),
            Outgoing::Stored { to, id } => {
                tally.answered(None);
                let body = serde_json::json!({ "id": id }).to_string();
                log_unsent(client.publish(to, body.into()).await);
            }
            Outgoing::Refused { to, code, reason, retry_after } => {
                tally.answered(Some((code, &reason)));
                let mut headers = HeaderMap::new();
                insert(&mut headers, answer::ERROR, &reason);
                insert(&mut headers, answer::ERROR_CODE, &code.to_string());
                if let Some(wait) = retry_after {
                    insert(&mut headers, answer::RETRY_AFTER, &wait.as_secs().max(1).to_string());
                }
                log_unsent(client.publish_with_headers(to, headers, Bytes::new()).await);
            }
        }
    }
}

fn log_unsent(sent: Result<(), async_nats::PublishError>) {
    if let Err(error) = sent {
        tracing::debug!(%error, "a message to a producer, or to the service itself, cannot be sent");
    }
}

/// Returns the headers of a request: those of the message, and the number of the delivery.
fn headers(content: &Content, attempt: u32) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in content.headers.iter().filter(|(name, _)| !name.eq_ignore_ascii_case(ATTEMPT)) {
        // The client panics at headers that are not valid, which only a damaged store can have.
        if let (Ok(name), Ok(value)) = (HeaderName::from_str(name), HeaderValue::from_str(value)) {
            headers.append(name, value);
        }
    }
    headers.insert(ATTEMPT, attempt.to_string());
    headers
}

fn insert(headers: &mut HeaderMap, name: &str, value: &str) {
    let value = value.replace(['\r', '\n'], " ");
    headers.insert(name, value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_kept_and_the_attempt_is_added() {
        let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let kept = vec![
            header("A", "1"),
            header("A", "2"),
            header("hostler-attempt", "9"),
            header("B:", "x"),
            header("C", "x\ny"),
        ];
        let content = Content { id: "1".to_owned(), headers: kept, body: Bytes::new() };
        let headers = headers(&content, 3);
        let values: Vec<_> = headers.get_all("A").map(HeaderValue::as_str).collect();
        assert_eq!((values, headers.len()), (vec!["1", "2"], 2));
        assert_eq!(headers.get(ATTEMPT).map(HeaderValue::as_str), Some("3"));
    }

    #[test]
    fn a_receiver_cannot_make_up_the_reply_to_another_request() {
        let (inbox, other) = (Inbox::new("_INBOX.a"), Inbox::new("_INBOX.a"));
        let own = inbox.reply_to(7);
        assert_eq!((inbox.token(&own), other.token(&own)), (Some(7), None));
        let code = own.rsplit('-').next().unwrap();
        for forged in [format!("_INBOX.a.{MARK}.8-{code}"), format!("_INBOX.a.{MARK}.8"), "8".to_owned(), String::new()]
        {
            assert_eq!(inbox.token(&forged), None, "{forged}");
        }
        let incoming = Incoming {
            subject: "retry.a".to_owned(),
            reply: Some(own),
            headers: Vec::new(),
            body: Bytes::new(),
            max_payload: 1_000,
        };
        assert!(incoming.is_delivery());
    }

    #[test]
    fn an_echo_tells_when_the_connection_worked() {
        let inbox = Inbox::new("_INBOX.a");
        let came = |subject: String, payload: &str| {
            let payload = Bytes::copy_from_slice(payload.as_bytes());
            let (subject, length) = (subject.into(), payload.len());
            let (headers, status, description) = (None, None, None);
            reply(&inbox, &Message { subject, reply: None, payload, headers, status, description, length })
        };
        assert!(matches!(came(inbox.reply_to(ECHO), "1234"), Some(Event::Heard(1_234))));
        assert!(came(inbox.reply_to(ECHO), "+ACK").is_none());
        assert!(came(format!("_INBOX.a.{MARK}.{ECHO}-0"), "1234").is_none(), "it is made up");
        assert!(matches!(came(inbox.reply_to(1), ""), Some(Event::Reply(1, answer::Reply::End(_)))));
    }

    #[test]
    fn an_error_with_line_breaks_can_be_told() {
        let mut headers = HeaderMap::new();
        insert(&mut headers, answer::ERROR, "a\r\nb");
        assert_eq!(headers.get(answer::ERROR).map(HeaderValue::as_str), Some("a  b"));
    }
}
