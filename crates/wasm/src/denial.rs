//! Log lines for denied operations. Each denied operation is logged once per call, regardless of how often the guest
//! tries.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use hostler_telemetry::BY_GUEST;
use hostler_types::message::Message;

/// Maximum number of lines to log for one call. Without the limit, a guest that tries many operations could flood the
/// log.
const MAX_LINES: usize = 16;

/// Logs the operations that one call of a guest was denied.
#[derive(Debug)]
pub(super) struct Denials {
    consumer: Arc<str>,
    message: Option<Arc<Message>>,
    told: Mutex<BTreeSet<String>>,
}

impl Denials {
    /// Creates an empty log of denials for a call. `message` is the message that the call processes, or `None` if the
    /// call has no message.
    pub(super) fn new(consumer: Arc<str>, message: Option<Arc<Message>>) -> Self {
        Self { consumer, message, told: Mutex::default() }
    }

    /// Returns the name of the consumer that makes the call.
    pub(super) fn consumer(&self) -> &str {
        &self.consumer
    }

    /// Logs that the operation `what` was denied, once per call. `cure` names the grant that would allow the operation.
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
