//! The inbox through which the server sends a queue's messages, and the tasks that take them and watch the clock.

use std::sync::Arc;
use std::time::Duration;

use async_nats::{Subject, Subscriber};
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use hostler_queue::QueueError;
use serde_json::Value;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::shared::Shared;
use crate::acks::PROGRESS;
use crate::hand::{Handed, Key};
use crate::line::PATIENCE;

/// Maximum sleep of the clock.
const IDLE: Duration = Duration::from_secs(3600);

/// Maximum time to wait for messages that are on their way when the inbox is closed.
const CLOSING: Duration = Duration::from_secs(5);

/// An open inbox.
pub(super) struct Session {
    inbox: String,
    close: CancellationToken,
    pump: JoinSet<()>,
    pumping: AbortHandle,
}

impl Session {
    /// Opens an inbox.
    ///
    /// # Errors
    /// The connection is gone for good.
    pub(super) async fn open(shared: &Arc<Shared>) -> Result<Self, QueueError> {
        let client = &shared.service.line.client;
        let inbox = client.new_inbox();
        let subscriber = client.subscribe(format!("{inbox}.*")).await;
        let subscriber =
            subscriber.map_err(|error| QueueError::Unavailable(format!("cannot receive from NATS: {error}")))?;
        let (close, mut pump) = (CancellationToken::new(), JoinSet::new());
        let pumping = pump.spawn(run_pump(Arc::clone(shared), subscriber, close.clone()));
        shared.lock().pulls.forget();
        Ok(Self { inbox, close, pump, pumping })
    }

    /// Returns `true` if messages can come.
    pub(super) fn is_alive(&self) -> bool {
        !self.pumping.is_finished()
    }

    /// Asks the server for messages, unless a request is open.
    ///
    /// # Errors
    /// The request cannot be sent.
    pub(super) async fn ask(&self, shared: &Shared, max: usize, wait: Duration) -> Result<(), QueueError> {
        let connection = shared.service.line.connections();
        let asked = shared.lock().pulls.begin(max, wait, Instant::now(), connection);
        let Some((number, body)) = asked else { return Ok(()) };
        self.send(shared, number, &body).await.inspect_err(|_| shared.lock().pulls.forget())
    }

    async fn send(&self, shared: &Shared, number: u64, body: &Value) -> Result<(), QueueError> {
        let source = &shared.source;
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{}.{}", source.stream, source.consumer);
        let (client, inbox) = (&shared.service.line.client, format!("{}.{number}", self.inbox));
        let sent = client.publish_with_reply(subject, inbox, body.to_string().into()).await;
        sent.map_err(|error| {
            QueueError::Unavailable(format!("cannot ask for messages of `{}`: {error}", source.stream))
        })
    }

    /// Closes the inbox. Takes the messages that are on their way.
    pub(super) async fn close(mut self, shared: &Shared) {
        self.close.cancel();
        if timeout(CLOSING, self.pump.join_next()).await.is_err() {
            tracing::debug!(stream = shared.source.stream, "NATS does not confirm that it sends nothing more");
        }
        shared.lock().pulls.forget();
    }
}

/// Takes messages until the inbox is closed and the server sends no more.
async fn run_pump(shared: Arc<Shared>, mut inbox: Subscriber, close: CancellationToken) {
    let mut is_open = true;
    loop {
        tokio::select! {
            message = inbox.next() => match message {
                Some(message) => shared.came(message),
                None => return shared.changed.notify_waiters(),
            },
            () = close.cancelled(), if is_open => {
                is_open = false;
                if inbox.drain().await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Ends leases in time, and keeps the server from delivering messages again before.
pub(super) async fn watch_clock(shared: Arc<Shared>) {
    loop {
        let due = shared.lock().hand.next_due();
        let next = Instant::now() + IDLE;
        tokio::select! {
            () = sleep_until(due.map_or(next, |due| due.min(next))) => {}
            () = shared.sooner.notified() => continue,
        }
        let ended = shared.change(|hand| hand.expired(Instant::now()));
        if !ended.is_empty() {
            let shared = Arc::clone(&shared);
            // A task, because the clock must go on.
            tokio::spawn(async move { shared.expire(ended).await });
        }
        // The clock waits for the answers: until then, the same messages are due.
        let _ = timeout(PATIENCE, shared.touch()).await;
    }
}

impl Shared {
    /// Lets the server's timers of messages begin anew that have been in hand for `stale`.
    pub(super) async fn refresh(&self, messages: &[Handed], stale: Duration) {
        let now = Instant::now();
        let is_stale = |handed: &&Handed| now.saturating_duration_since(handed.touched) >= stale;
        let due: Vec<_> = messages.iter().filter(is_stale).map(|handed| (handed.key, handed.reply.clone())).collect();
        self.begin_anew(due).await;
    }

    /// Lets the server's timers begin anew for messages that stay in hand for longer.
    pub(super) async fn touch(&self) {
        let due = self.lock().hand.to_touch(Instant::now());
        let retry = Instant::now() + Duration::from_secs(1);
        if !self.begin_anew(due).await {
            tracing::debug!(stream = self.source.stream, "NATS does not confirm that messages stay here");
            sleep_until(retry).await;
        }
    }

    /// Returns `false` if the server does not confirm it for each.
    async fn begin_anew(&self, due: Vec<(Key, Subject)>) -> bool {
        if due.is_empty() {
            return true;
        }
        let touching = due.into_iter().map(|(key, reply)| async move {
            let at = Instant::now();
            (key, at, self.service.line.request(&reply, None, PROGRESS.into()).await)
        });
        let touched = join_all(touching).await;
        self.change(|hand| {
            for (key, at, answer) in &touched {
                if answer.is_ok() {
                    hand.touched(*key, *at);
                }
            }
        });
        touched.iter().all(|(.., answer)| answer.is_ok())
    }
}
