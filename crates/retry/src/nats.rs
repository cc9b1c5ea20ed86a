//! The connection to NATS: passes requests and replies between the server and the engine.

use std::str::FromStr as _;
use std::sync::Arc;

use async_nats::client::PublishErrorKind;
use async_nats::{Client, ConnectOptions, HeaderMap, HeaderName, HeaderValue, Message, ServerAddr, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::sync::mpsc::{self, Receiver, Sender, UnboundedReceiver};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::accept::Incoming;
use crate::answer;
use crate::engine::{Content, Event, Outbox, Outgoing};
use crate::envelope::Headers;
use crate::requests::Token;
use hostler_queue::Link;

/// Name of the header with the number of the delivery.
pub const ATTEMPT: &str = "Hostler-Attempt";

/// Number of events that wait for the engine at most. Further ones wait in the client.
const EVENTS: usize = 4_096;

/// A connection, and the tasks that serve it.
pub struct Connection {
    client: Client,
    events: Sender<Event>,
    link: watch::Receiver<Link>,
    tasks: JoinSet<()>,
}

impl Connection {
    /// Connects. `servers`: addresses, separated by commas. Also returns the events for the engine.
    ///
    /// # Errors
    /// The text says why there is no connection. It contains no password.
    pub async fn open(servers: &str) -> Result<(Self, Receiver<Event>), String> {
        let addresses: Result<Vec<ServerAddr>, _> = servers.split(',').map(|server| server.trim().parse()).collect();
        let addresses = addresses.map_err(|_| "the address of the NATS server is not valid".to_owned())?;
        let (events, inbox) = mpsc::channel(EVENTS);
        let (shown, link) = watch::channel(Link::Up);
        let told = (events.clone(), Arc::new(shown));
        let options = ConnectOptions::new().name("hostler retry").event_callback(move |event| {
            let (events, shown) = told.clone();
            async move { changed(event, &events, &shown).await }
        });
        let client = options.connect(addresses).await.map_err(|error| error.to_string())?;
        Ok((Self { client, events, link, tasks: JoinSet::new() }, inbox))
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
    /// ends the subscription. Messages that were received before are still passed on.
    ///
    /// # Errors
    /// The subject is not valid, or the connection is closed.
    pub async fn serve(&mut self, subject: &str, group: &str, stop: CancellationToken) -> Result<Outbox, String> {
        let inbox = self.client.new_inbox();
        let replies = self.client.subscribe(format!("{inbox}.*")).await.map_err(|error| error.to_string())?;
        let requests = self.client.queue_subscribe(format!("{subject}.>"), group.to_owned()).await;
        let requests = requests.map_err(|error| error.to_string())?;
        // The server answers that nobody listens. By then, it knows of both subscriptions.
        let _ = self.client.request(self.client.new_inbox(), Bytes::new()).await;
        let (outbox, outgoing) = mpsc::unbounded_channel();
        self.tasks.spawn(take_requests(requests, self.events.clone(), stop));
        let events = self.events.clone();
        // Ends with the connection, or with the engine.
        tokio::spawn(take_replies(replies, events));
        self.tasks.spawn(send(self.client.clone(), inbox, outgoing, self.events.clone()));
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

async fn changed(event: async_nats::Event, events: &Sender<Event>, link: &watch::Sender<Link>) {
    match event {
        async_nats::Event::Connected => {
            tracing::info!("connected to NATS");
            link.send_replace(Link::Up);
            let _ = events.send(Event::Link(true)).await;
        }
        async_nats::Event::Disconnected => {
            tracing::warn!("the connection to NATS is lost; deliveries wait until it is back");
            let why = "the connection to NATS is lost".to_owned();
            link.send_replace(Link::Down { since: Instant::now(), why });
            let _ = events.send(Event::Link(false)).await;
        }
        async_nats::Event::SlowConsumer(_) => tracing::warn!(
            "the retry service receives more than it can store, and NATS drops messages: their producers get no reply; \
             start further instances"
        ),
        async_nats::Event::LameDuckMode => tracing::info!("the NATS server is about to end"),
        async_nats::Event::ServerError(error) => tracing::warn!(%error, "the NATS server reports an error"),
        async_nats::Event::ClientError(error) => tracing::warn!(%error, "the NATS client reports an error"),
        async_nats::Event::Draining | async_nats::Event::Closed => {}
    }
}

async fn take_requests(mut requests: Subscriber, events: Sender<Event>, stop: CancellationToken) {
    let mut is_stopped = false;
    loop {
        tokio::select! {
            message = requests.next() => {
                let Some(message) = message else { break };
                if events.send(Event::Incoming(incoming(message))).await.is_err() {
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

fn incoming(message: Message) -> Incoming {
    let mut headers: Headers = Vec::new();
    for (name, values) in message.headers.iter().flat_map(HeaderMap::iter) {
        headers.extend(values.iter().map(|value| (name.to_string(), value.as_str().to_owned())));
    }
    // The client keeps no order between names. The sort keeps the values of one name in their order.
    headers.sort_by(|(a, _), (b, _)| a.cmp(b));
    Incoming {
        subject: message.subject.to_string(),
        reply: message.reply.map(|reply| reply.to_string()),
        headers,
        body: message.payload,
    }
}

async fn take_replies(mut replies: Subscriber, events: Sender<Event>) {
    while let Some(message) = replies.next().await {
        let Some(token) = message.subject.rsplit('.').next().and_then(|token| token.parse::<Token>().ok()) else {
            continue;
        };
        let header = |name: &str| message.headers.as_ref()?.get(name).map(HeaderValue::as_str);
        let status = message.status.map(|status| status.as_u16());
        let reply = answer::read(&message.payload, status, header);
        if events.send(Event::Reply(token, reply)).await.is_err() {
            return;
        }
    }
}

async fn send(client: Client, inbox: String, mut outgoing: UnboundedReceiver<Outgoing>, events: Sender<Event>) {
    while let Some(message) = outgoing.recv().await {
        match message {
            Outgoing::Request { token, subject, attempt, content } => {
                let headers = headers(&content, attempt);
                let reply = format!("{inbox}.{token}");
                let body = content.body.clone();
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
            Outgoing::Stored { to, id } => {
                let body = serde_json::json!({ "id": id }).to_string();
                tell(client.publish(to, body.into()).await);
            }
            Outgoing::Refused { to, code, reason, retry_after } => {
                let mut headers = HeaderMap::new();
                insert(&mut headers, answer::ERROR, &reason);
                insert(&mut headers, answer::ERROR_CODE, &code.to_string());
                if let Some(wait) = retry_after {
                    insert(&mut headers, answer::RETRY_AFTER, &wait.as_secs().max(1).to_string());
                }
                tell(client.publish_with_headers(to, headers, Bytes::new()).await);
            }
        }
    }
}

fn tell(sent: Result<(), async_nats::PublishError>) {
    if let Err(error) = sent {
        tracing::debug!(%error, "a producer cannot be told");
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
