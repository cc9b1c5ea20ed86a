//! State that a queue shares with its tasks: the messages in hand, the open requests, and the leases that were lost.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use async_nats::Message;
use hostler_queue::{LeaseHandle, QueueError};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Source;
use crate::Service;
use crate::envelope::Mail;
use crate::hand::Hand;
use crate::pulls::{End, Pulls};
use crate::stamp::Stamp;

/// State that the queue shares with its tasks.
pub(crate) struct SharedState {
    pub(super) hand: Hand,
    pub(super) pulls: Pulls,
    /// Fault that ended a request. The next receive returns it.
    pub(super) fault: Option<String>,
    taken_back: Vec<LeaseHandle>,
}

/// The messages of a queue in this process. The tasks of the queue use it at the same time.
pub(crate) struct Shared {
    pub(super) service: Arc<Service>,
    pub(super) source: Source,
    state: Mutex<SharedState>,
    /// Notified when more may be there to hand out, and when a request ends.
    pub(super) changed: Notify,
    /// Notified when something is due earlier than before.
    pub(super) sooner: Notify,
    /// Notified when leases were lost.
    lost: Notify,
}

impl Shared {
    pub(super) fn new(service: Arc<Service>, source: Source) -> Self {
        let hand = Hand::new(source.ordered, source.server);
        let state = SharedState { hand, pulls: Pulls::default(), fault: None, taken_back: Vec::new() };
        Self {
            service,
            source,
            state: Mutex::new(state),
            changed: Notify::new(),
            sooner: Notify::new(),
            lost: Notify::new(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, SharedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the messages in hand. Wakes those who wait if more may be there to hand out.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Hand) -> T) -> T {
        let mut state = self.lock();
        let (before, changes) = (state.hand.next_due(), state.hand.changes());
        let result = change(&mut state.hand);
        let (after, is_changed) = (state.hand.next_due(), state.hand.changes() != changes);
        drop(state);
        if after.is_some_and(|after| before.is_none_or(|before| after < before)) {
            self.sooner.notify_one();
        }
        if is_changed {
            self.changed.notify_waiters();
        }
        result
    }

    /// Takes what came for a request: a message, or a sign of the server.
    pub(super) fn came(&self, message: Message) {
        let now = Instant::now();
        let stamp = message.reply.as_deref().and_then(Stamp::read);
        match (message.status, stamp, message.reply.clone()) {
            (None, Some(stamp), Some(reply)) => {
                self.lock().pulls.message(now);
                let mail = self.mail(message, stamp);
                let lost = self.change(|hand| hand.arrived(mail, reply, now));
                if let Some(lease) = lost {
                    tracing::warn!(
                        stream = self.source.stream,
                        "NATS delivered a message again whose lease had not ended"
                    );
                    self.lock().taken_back.push(lease);
                    self.lost.notify_one();
                }
            }
            (Some(status), ..) => {
                let text = message.description.as_deref().unwrap_or_default();
                // A sign has the subject of its request. A message has the one under which it is stored.
                let number =
                    message.subject.rsplit('.').next().and_then(|number| number.parse().ok()).unwrap_or_default();
                let mut state = self.lock();
                let end = state.pulls.status(number, status, text, now);
                if let End::Fault(why) = &end {
                    tracing::debug!(stream = self.source.stream, why, "a request for messages ended early");
                    state.fault = Some(why.clone());
                }
                drop(state);
                if end != End::None {
                    self.changed.notify_waiters();
                }
            }
            _ => tracing::debug!(stream = self.source.stream, "something other than a message of the stream came"),
        }
    }

    fn mail(&self, message: Message, stamp: Stamp) -> Mail {
        let subject = message.subject.clone();
        Mail::read(&self.service.names, message, subject, stamp, None, self.source.ordered, SystemTime::now())
    }

    /// Waits for leases that were lost, and returns them.
    pub(super) async fn taken_back(&self) -> Vec<LeaseHandle> {
        loop {
            let lost = self.lost.notified();
            let taken = std::mem::take(&mut self.lock().taken_back);
            if !taken.is_empty() {
                return taken;
            }
            lost.await;
        }
    }

    /// Returns `true` if a request for messages is open on the server.
    pub(super) fn is_asking(&self) -> bool {
        let connection = self.service.line.connections();
        self.lock().pulls.open(connection).is_some()
    }

    /// Returns the error for a request that ended early.
    pub(super) fn take_fault(&self) -> Option<QueueError> {
        let why = self.lock().fault.take()?;
        Some(QueueError::Unavailable(format!("cannot receive from `{}`: {why}", self.source.stream)))
    }

    /// Returns the name of the stream.
    pub(crate) fn stream(&self) -> &str {
        &self.source.stream
    }

    /// Returns the number of messages that this process knows to be visible, though the server counts them as delivered.
    pub(crate) fn visible(&self) -> u64 {
        self.lock().hand.visible(Instant::now()) as u64
    }
}
