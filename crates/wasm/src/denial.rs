//! Log lines for denied operations. Each kind of operation is logged at most once per handler call, even if the guest
//! repeats it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use hostler_telemetry::BY_GUEST;
use hostler_types::message::Message;

/// Maximum number of denied operations to log per handler call. Without this limit, a guest that tries many operations
/// could flood the log.
const MAX_LINES: usize = 16;

/// Logs the operations that were denied to the guest during one handler call.
#[derive(Debug)]
pub(super) struct Denials {
    consumer: Arc<str>,
    message: Option<Arc<Message>>,
    told: Mutex<BTreeSet<String>>,
}

impl Denials {
    /// Creates an empty log of denied operations for one handler call. `message` is the message that the handler
    /// processes. `None`: the call runs a hook without a message.
    pub(super) fn new(consumer: Arc<str>, message: Option<Arc<Message>>) -> Self {
        Self { consumer, message, told: Mutex::default() }
    }

    /// Returns the name of the consumer whose handler or hook is called.
    pub(super) fn consumer(&self) -> &str {
        &self.consumer
    }

    /// Logs that the operation `what` was denied, at most once per handler call. `cure` names the grant that would
    /// allow the operation.
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
