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
use crate::api;
use crate::hand::{Handed, Key};
use crate::pulls::{self, Wanted};

/// Maximum sleep of the clock.
const IDLE: Duration = Duration::from_secs(3600);

/// Maximum time to wait until an inbox is closed, after its request has ended.
const CLOSING: Duration = Duration::from_secs(5);

/// Maximum time to wait until the server confirms that a timer begins anew.
pub(super) const TOUCHED: Duration = Duration::from_secs(2);

/// An open inbox.
pub(super) struct Session {
    inbox: String,
    /// Subject of requests for messages.
    next: String,
    opened_at: Instant,
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
        let (client, source) = (&shared.service.line.client, &shared.source);
        let (inbox, opened_at) = (client.new_inbox(), Instant::now());
        let next = pulls::subject(&source.stream, &source.consumer);
        let subscriber = client.subscribe(format!("{inbox}.*")).await;
        let subscriber =
            subscriber.map_err(|error| QueueError::Unavailable(format!("cannot receive from NATS: {error}")))?;
        let (close, mut pump) = (CancellationToken::new(), JoinSet::new());
        let pumping = pump.spawn(run_pump(Arc::clone(shared), subscriber, close.clone()));
        shared.lock().pulls.forget();
        Ok(Self { inbox, next, opened_at, close, pump, pumping })
    }

    /// Returns `true` if messages can come.
    pub(super) fn is_alive(&self) -> bool {
        !self.pumping.is_finished()
    }

    /// Returns the subjects that the user must be allowed to use, and the time from which on a refusal counts.
    pub(super) fn needs(&self) -> ([String; 2], Instant) {
        ([self.next.clone(), format!("{}.*", self.inbox)], self.opened_at)
    }

    /// Asks the server for messages, unless a request is open.
    ///
    /// # Errors
    /// The request cannot be sent.
    pub(super) async fn ask(&self, shared: &Shared, max: usize, wait: Duration) -> Result<(), QueueError> {
        let losses = shared.service.line.losses();
        let wanted = Wanted { messages: max, bytes: None, wait };
        let asked = shared.lock().pulls.begin(wanted, Instant::now(), losses);
        let Some((number, body)) = asked else { return Ok(()) };
        self.send(shared, number, &body).await.inspect_err(|_| shared.lock().pulls.forget())
    }

    async fn send(&self, shared: &Shared, number: u64, body: &Value) -> Result<(), QueueError> {
        let (client, inbox) = (&shared.service.line.client, format!("{}.{number}", self.inbox));
        let sent = client.publish_with_reply(self.next.clone(), inbox, body.to_string().into()).await;
        sent.map_err(|error| {
            QueueError::Unavailable(format!("cannot ask for messages of `{}`: {error}", shared.source.stream))
        })
    }

    /// Closes the inbox, after the request that is open: messages that come later would be lost until the server's timers end.
    pub(super) async fn close(mut self, shared: &Shared) {
        shared.request_ended().await;
        self.close.cancel();
        if timeout(CLOSING, self.pump.join_next()).await.is_err() {
            tracing::debug!(stream = shared.source.stream, "the inbox of a queue does not close");
        }
        shared.lock().pulls.forget();
    }
}

/// Takes messages until the inbox is closed.
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
                // Not by `drain`, which drops what comes before the server's confirmation, and stays subscribed if the
                // connection is lost meanwhile.
                if inbox.unsubscribe().await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Ends leases in time, and keeps the server from delivering messages again before.
pub(super) async fn watch_clock(shared: Arc<Shared>) {
    loop {
        let due = shared.lock().next_due();
        let next = Instant::now() + IDLE;
        tokio::select! {
            () = sleep_until(due.map_or(next, |due| due.min(next))) => {}
            () = shared.sooner.notified() => continue,
        }
        let now = Instant::now();
        let ended = shared.change(|hand| hand.expired(now));
        let (leftover, must_read) = {
            let mut state = shared.lock();
            (state.leftover(now), state.must_read_timer(now))
        };
        let due = shared.change(|hand| hand.begin_touching(now));
        // Tasks, because the clock must go on.
        if !ended.is_empty() {
            let shared = Arc::clone(&shared);
            tokio::spawn(async move { shared.expire(ended).await });
        }
        if !leftover.is_empty() {
            let shared = Arc::clone(&shared);
            tokio::spawn(async move { shared.give_back(leftover).await });
        }
        if must_read {
            let shared = Arc::clone(&shared);
            tokio::spawn(async move { shared.read_timer().await });
        }
        if !due.is_empty() {
            let shared = Arc::clone(&shared);
            tokio::spawn(async move { shared.keep(due).await });
        }
    }
}

impl Shared {
    /// Waits until no request for messages is open, at most until its end is overdue.
    async fn request_ended(&self) {
        let mut watch = self.service.line.watch();
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let Some(overdue) = self.overdue_at() else { return };
            tokio::select! {
                () = changed => {}
                () = sleep_until(overdue) => return,
                _ = watch.fault(&[]) => return,
            }
        }
    }

    /// Lets the server's timers of messages begin anew that have been in hand for `stale`. Not of those that the server may have
    /// delivered again: another host's timer would begin anew.
    pub(super) async fn refresh(&self, messages: &[Handed], stale: Duration) {
        let (now, timer) = (Instant::now(), self.timer());
        let is_stale = |handed: &&Handed| {
            now.saturating_duration_since(handed.touched) >= stale && now < handed.certain_until(timer)
        };
        let due: Vec<_> = messages.iter().filter(is_stale).map(|handed| (handed.key, handed.reply.clone())).collect();
        self.begin_anew(due).await;
    }

    /// Keeps messages from being delivered again.
    async fn keep(&self, due: Vec<(Key, Subject)>) {
        if !self.begin_anew(due).await {
            tracing::debug!(stream = self.source.stream, "NATS does not confirm that messages stay here");
        }
    }

    /// Lets the server's timers of messages begin anew. Returns `false` if the server does not confirm it for each.
    async fn begin_anew(&self, due: Vec<(Key, Subject)>) -> bool {
        if due.is_empty() {
            return true;
        }
        let line = &self.service.line;
        let touching = due.into_iter().map(|(key, reply)| async move {
            let at = Instant::now();
            (key, at, line.request_within(TOUCHED, &reply, None, PROGRESS.into()).await)
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

    /// Reads the time after which the server delivers a message again.
    async fn read_timer(&self) {
        let source = &self.source;
        match api::consumer(&self.service.line, &source.stream, &source.consumer).await {
            Ok(Some(info)) => self.learn_timer(&info),
            // The next receive says so.
            Ok(None) => {}
            Err(error) => tracing::debug!(stream = source.stream, %error, "cannot read the timer of the server"),
        }
    }
}
