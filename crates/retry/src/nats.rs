//! The connections to NATS: pass requests and replies between the server and the engine.
//!
//! The client loses its connection over a message that it cannot read. So there are two: over one come the requests of
//! producers, over the other one go the deliveries. A producer can then break no deliveries.
//!
//! The client reports the loss of a connection by events, which it drops if there are many. So a task compares the state
//! of the client, and the number of its connections, with what the engine knows.
//!
//! | file | job |
//! |---|---|
//! | `nats/line.rs` | a connection: a client, and its replacement when its task ends |
//! | `nats/subscriptions.rs` | takes the requests of producers and the questions about the service |
//! | `nats/replies.rs` | takes the replies of receivers |
//! | `nats/sending.rs` | sends what the engine puts into the outbox |
//! | `nats/inbox.rs` | the reply subjects, and the replies on them |

mod inbox;
mod line;
mod replies;
mod sending;
mod subscriptions;

use std::sync::Arc;
use std::time::Duration;

use async_nats::Client;
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use self::inbox::{ECHO, Inbox};
use self::line::{Line, NO_ADDRESS};
use self::replies::ReplyTaker;
use self::subscriptions::Taker;
use crate::engine::{Event, Outbox};
use crate::micro::{Card, Tally};
use hostler_queue::Link;
use hostler_queue_nats::connecting;

/// Number of events that wait for the engine at most. Further ones wait in the client.
const EVENTS: usize = 4_096;

/// Interval between two looks at the state of the client.
const LOOK: Duration = Duration::from_secs(1);

/// Longest wait for the server in a check, and at the start.
const PATIENCE: Duration = Duration::from_secs(10);

/// Wait in a check for errors that the server has sent.
const ERRORS: Duration = Duration::from_millis(100);

/// The two lines of the service.
#[derive(Clone)]
struct Lines {
    /// Takes the requests of producers and the questions about the service, and answers them.
    producers: Arc<Line>,
    /// Delivers messages, and takes the replies of receivers.
    receivers: Arc<Line>,
    /// Wakes the task that watches the state of the lines.
    changed: Arc<Notify>,
}

/// The connections of the service, and the tasks that serve them.
pub struct Connection {
    lines: Lines,
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
        let changed = Arc::<Notify>::default();
        let connect = |name, deliveries| Line::connect(address, name, Arc::clone(&changed), deliveries);
        let receivers = Arc::new(connect("hostler retry", Some(events.clone())).await?);
        let producers = Arc::new(connect("hostler retry ingest", None).await?);
        let lines = Lines { producers, receivers, changed };
        Ok((Self { lines, events, link, shown, tasks: JoinSet::new() }, inbox))
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
    /// The subject is not valid, the connection is closed, or the server refuses a subscription.
    pub async fn serve(&mut self, subject: &str, group: &str, stop: CancellationToken) -> Result<Outbox, String> {
        let Lines { producers, receivers, .. } = &self.lines;
        let (asked, answered) = (producers.client.present(), receivers.client.present());
        let (inbox, subject) = (Arc::new(Inbox::new(&answered.client.new_inbox())), format!("{subject}.>"));
        let (tally, is_up) = (Tally::new(), watch::Sender::new(true));
        let taker = Taker {
            line: Arc::clone(producers),
            card: Card::new(&subject, group, tally.clone()),
            subject,
            group: group.to_owned(),
            tally: tally.clone(),
            events: self.events.clone(),
            is_up: is_up.subscribe(),
            stop,
        };
        let (line, events) = (Arc::clone(receivers), self.events.clone());
        let reply_taker = ReplyTaker { line, inbox: Arc::clone(&inbox), events };
        let mut replies = reply_taker.subscribe(&answered.client).await?;
        let subscriptions = taker.subscribe(&asked.client).await?;
        // When the echo comes, the server knows of the subscription.
        answered.client.publish(inbox.reply_to(ECHO), Bytes::new()).await.map_err(|error| error.to_string())?;
        let echoes = async { tokio::join!(timeout(PATIENCE, replies.next()), timeout(PATIENCE, echo(&asked.client))) };
        let echoed = tokio::select! {
            error = producers.refusal() => return Err(error),
            error = receivers.refusal() => return Err(error),
            echoed = echoes => echoed,
        };
        // The client passes errors on by a task of its own.
        if let Ok(error) = timeout(ERRORS, producers.refusal()).await {
            return Err(error);
        }
        if let (Err(_), _) = echoed {
            tracing::warn!(
                "the retry service does not receive its own messages, and would wait for receivers without end; its user must \
                 be allowed to publish to `_INBOX.>`"
            );
        }
        let (outbox, outgoing) = mpsc::unbounded_channel();
        self.tasks.spawn(taker.run(asked, subscriptions));
        self.tasks.spawn(reply_taker.run(answered, replies));
        // Ends with the engine.
        tokio::spawn(watch_links(self.lines.clone(), self.shown.clone(), is_up, self.events.clone()));
        let (answers, answering) = mpsc::unbounded_channel();
        self.tasks.spawn(sending::deliver(Arc::clone(receivers), inbox, outgoing, answers, self.events.clone()));
        self.tasks.spawn(sending::answer(Arc::clone(producers), answering, tally));
        Ok(outbox)
    }

    /// Sends what is left, after the engine has ended.
    pub async fn end(mut self) {
        while self.tasks.join_next().await.is_some() {}
        let flush = |line: Arc<Line>| async move { line.client.present().client.flush().await };
        let flushed = tokio::join!(flush(self.lines.producers), flush(self.lines.receivers));
        for error in [flushed.0, flushed.1].into_iter().filter_map(Result::err) {
            tracing::warn!(%error, "the last messages to NATS may be lost");
        }
    }
}

/// Waits until the server knows of all subscriptions that a client has made before.
async fn echo(client: &Client) -> Result<(), String> {
    let inbox = client.new_inbox();
    let mut echo = client.subscribe(inbox.clone()).await.map_err(|error| error.to_string())?;
    client.publish(inbox, Bytes::new()).await.map_err(|error| error.to_string())?;
    let _ = echo.next().await;
    Ok(())
}

/// Tells the engine and the health file about the state of the connections. The engine only needs that to receivers.
/// `is_up`: has the state of that to producers.
async fn watch_links(lines: Lines, shown: watch::Sender<Link>, is_up: watch::Sender<bool>, events: Sender<Event>) {
    let (mut known, mut told) = (None, None);
    loop {
        let (link, fault) = (lines.receivers.link().map(|(link, _)| link), lines.fault());
        is_up.send_if_modified(|is_up| std::mem::replace(is_up, lines.producers.link().is_some()) != *is_up);
        if told.as_ref() != Some(&fault) {
            match &fault {
                None => {
                    tracing::info!("connected to NATS");
                    shown.send_replace(Link::Up);
                }
                Some(why) => {
                    tracing::warn!("{why}");
                    shown.send_replace(Link::Down { since: since(&shown), why: why.clone() });
                }
            }
            told = Some(fault);
        }
        if link != known {
            known = link;
            if events.send(link.map_or(Event::Disconnected, Event::Connected)).await.is_err() {
                return;
            }
        }
        let _ = timeout(LOOK, lines.changed.notified()).await;
        if events.is_closed() {
            return;
        }
    }
}

/// Returns the time since which the connection is down. The reason may change in the meantime.
fn since(shown: &watch::Sender<Link>) -> Instant {
    match &*shown.borrow() {
        Link::Down { since, .. } => *since,
        _ => Instant::now(),
    }
}

impl Lines {
    /// Returns why the service cannot do all of its work. `None`: it can.
    fn fault(&self) -> Option<String> {
        let fault = if self.receivers.link().is_none() {
            "the connection to NATS is lost; deliveries wait until it is back"
        } else if let Some(denied) = self.producers.denied().or_else(|| self.receivers.denied()) {
            return Some(format!(
                "the NATS server refuses a subscription: {denied}; give the user of `retry.nats` the permission, and restart the \
                 service"
            ));
        } else if self.producers.link().is_none() {
            "the connection to NATS for producers is lost; their messages wait until it is back"
        } else {
            return None;
        };
        Some(fault.to_owned())
    }
}
