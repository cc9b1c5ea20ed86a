//! The connection to NATS: passes requests and replies between the server and the engine.
//!
//! The client reports the loss of a connection by events, which it drops if there are many. So a task compares the state
//! of the client, and the number of its connections, with what the engine knows.
//!
//! | file | job |
//! |---|---|
//! | `nats/line.rs` | the client, and its replacement when its task ends |
//! | `nats/subscriptions.rs` | takes what comes, by the subscriptions of one client after the other |
//! | `nats/inbox.rs` | the reply subjects, and the replies on them |

mod inbox;
mod line;
mod subscriptions;

use std::str::FromStr as _;
use std::sync::Arc;
use std::time::Duration;

use async_nats::client::PublishErrorKind;
use async_nats::{HeaderMap, HeaderName, HeaderValue};
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::sync::mpsc::{self, Receiver, Sender, UnboundedReceiver};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use self::inbox::{ECHO, Inbox};
use self::line::{Line, NO_ADDRESS};
use self::subscriptions::Taker;
use crate::answer;
use crate::engine::{Content, Event, Outbox, Outgoing};
use crate::micro::{Card, Tally};
use hostler_queue::Link;
use hostler_queue_nats::connecting;

/// Name of the header with the number of the delivery.
pub const ATTEMPT: &str = "Hostler-Attempt";

/// Number of events that wait for the engine at most. Further ones wait in the client.
const EVENTS: usize = 4_096;

/// Interval between two looks at the state of the client.
const LOOK: Duration = Duration::from_secs(1);

/// Longest wait for the server in a check, and at the start.
const PATIENCE: Duration = Duration::from_secs(10);

/// Wait in a check for errors that the server has sent.
const ERRORS: Duration = Duration::from_millis(100);

/// A connection, and the tasks that serve it.
pub struct Connection {
    line: Arc<Line>,
    events: Sender<Event>,
    link: watch::Receiver<Link>,
    shown: watch::Sender<Link>,
    tasks: JoinSet<()>,
}

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
        let (events, inbox) = mpsc::channel(EVENTS);
        let (shown, link) = watch::channel(Link::Up);
        let line = Arc::new(Line::connect(address).await?);
        Ok((Self { line, events, link, shown, tasks: JoinSet::new() }, inbox))
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
        let (present, tally) = (self.line.client.present(), Tally::new());
        let client = &present.client;
        let (inbox, subject) = (Arc::new(Inbox::new(&client.new_inbox())), format!("{subject}.>"));
        let taker = Taker {
            line: Arc::clone(&self.line),
            card: Card::new(&subject, group, tally.clone()),
            subject,
            group: group.to_owned(),
            inbox: Arc::clone(&inbox),
            tally: tally.clone(),
            events: self.events.clone(),
            stop,
        };
        let mut subscriptions = taker.subscribe(client).await?;
        // When the echo comes, the server knows of all subscriptions.
        client.publish(inbox.reply_to(ECHO), Bytes::new()).await.map_err(|error| error.to_string())?;
        if timeout(PATIENCE, subscriptions.replies.next()).await.is_err() {
            tracing::warn!(
                "the retry service does not receive its own messages, and would wait for receivers without end; its user must \
                 be allowed to publish to `_INBOX.>`"
            );
        }
        let (outbox, outgoing) = mpsc::unbounded_channel();
        self.tasks.spawn(taker.run(present, subscriptions));
        // Ends with the engine.
        tokio::spawn(watch_link(Arc::clone(&self.line), self.shown.clone(), self.events.clone()));
        self.tasks.spawn(send(Arc::clone(&self.line), inbox, outgoing, self.events.clone(), tally));
        Ok(outbox)
    }

    /// Sends what is left, after the engine has ended.
    pub async fn end(mut self) {
        while self.tasks.join_next().await.is_some() {}
        if let Err(error) = self.line.client.present().client.flush().await {
            tracing::warn!(%error, "the last messages to NATS may be lost");
        }
    }
}

/// Tells the engine and the health file about the state of the connection.
async fn watch_link(line: Arc<Line>, shown: watch::Sender<Link>, events: Sender<Event>) {
    let mut known = None;
    loop {
        let link = line.link().map(|(link, _)| link);
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
        let _ = timeout(LOOK, line.changed.notified()).await;
        if events.is_closed() {
            return;
        }
    }
}

async fn send(
    line: Arc<Line>,
    inbox: Arc<Inbox>,
    mut outgoing: UnboundedReceiver<Outgoing>,
    events: Sender<Event>,
    tally: Tally,
) {
    while let Some(message) = outgoing.recv().await {
        match message {
            Outgoing::Request { link, token, subject, attempt, content } => {
                // The engine knows that another connection of the request is lost, or will know soon, and sends it again.
                let Some((_, client)) = line.link().filter(|(now, _)| *now == link) else { continue };
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
            Outgoing::Probe(at) => {
                // On another connection, it would come too late. The engine asks again.
                let Some((_, client)) = line.link() else { continue };
                log_unsent(client.publish(inbox.reply_to(ECHO), at.to_string().into()).await);
            }
            Outgoing::Stored { to, id } => {
                tally.answered(None);
                let body = serde_json::json!({ "id": id }).to_string();
                log_unsent(line.client.present().client.publish(to, body.into()).await);
            }
            Outgoing::Refused { to, code, reason, retry_after } => {
                tally.answered(Some((code, &reason)));
                let mut headers = HeaderMap::new();
                insert(&mut headers, answer::ERROR, &reason);
                insert(&mut headers, answer::ERROR_CODE, &code.to_string());
                if let Some(wait) = retry_after {
                    insert(&mut headers, answer::RETRY_AFTER, &wait.as_secs().max(1).to_string());
                }
                log_unsent(line.client.present().client.publish_with_headers(to, headers, Bytes::new()).await);
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
    fn an_error_with_line_breaks_can_be_told() {
        let mut headers = HeaderMap::new();
        insert(&mut headers, answer::ERROR, "a\r\nb");
        assert_eq!(headers.get(answer::ERROR).map(HeaderValue::as_str), Some("a  b"));
    }
}
