//! Denials to a guest: one log line for each missing grant, however often the guest tries.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use hostler_telemetry::BY_GUEST;
use hostler_types::message::Message;

/// The most lines per call, so that a guest that tries one thing after another cannot flood the log.
const MAX_LINES: usize = 16;

/// Logs the denials in one call of a guest.
#[derive(Debug)]
pub(super) struct Denials {
    consumer: Arc<str>,
    message: Option<Arc<Message>>,
    told: Mutex<BTreeSet<String>>,
}

impl Denials {
    /// Creates the denials of a call. `message` is the one that it works on, if there is one.
    pub(super) fn new(consumer: Arc<str>, message: Option<Arc<Message>>) -> Self {
        Self { consumer, message, told: Mutex::default() }
    }

    /// Returns the consumer that makes the call.
    pub(super) fn consumer(&self) -> &str {
        &self.consumer
    }

    /// Logs, once per call, that `what` was denied, and the grant that would allow it.
    pub(super) fn tell(&self, what: &str, cure: &str) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() >= MAX_LINES || !told.insert(what.to_owned()) {
            return;
        }
        let last = told.len() == MAX_LINES;
        drop(told);
        let (consumer, message_id) = (&*self.consumer, self.message.as_ref().map_or("", |message| &message.id));
        tracing::warn!(target: BY_GUEST, consumer, message_id, denied = what, cure, "denied to the handler");
        if last {
            tracing::warn!(target: BY_GUEST, consumer, message_id, "more was denied to the handler; not logged for this message");
        }
    }
}
