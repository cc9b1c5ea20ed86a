//! Log lines for denied operations, and for connections that failed for a reason that the guest does not see. Each kind is
//! logged at most once per handler call, even if the guest repeats it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError};

use hostler_handler::Outcome;
use hostler_telemetry::BY_GUEST;
use hostler_types::message::Message;

/// Maximum number of denied operations to log per handler call. Without this limit, a guest that tries many operations
/// could flood the log.
const MAX_LINES: usize = 16;

/// Message of the log line for a handler that fails and may lack a folder, and the fix.
const NO_FOLDERS: &str = "the handler failed after it looked for folders; none is granted";
const NO_FOLDERS_CURE: &str = "if it needs files, grant their folder in the consumer's allow.dirs";

/// Logs the operations that were denied to the guest during one handler call.
#[derive(Debug)]
pub(super) struct Denials {
    consumer: Arc<str>,
    message: Option<Arc<Message>>,
    told: Mutex<BTreeSet<String>>,
    /// Set once the guest has requested the list of granted folders although there are none.
    looked: OnceLock<Arc<Once>>,
}

impl Denials {
    /// Creates an empty log of denied operations for one handler call. `message` is the message that the handler
    /// processes. `None`: the call runs a hook without a message.
    pub(super) fn new(consumer: Arc<str>, message: Option<Arc<Message>>) -> Self {
        Self { consumer, message, told: Mutex::default(), looked: OnceLock::new() }
    }

    /// Records that the guest requested the list of granted folders although there are none. `judged` is shared by all
    /// calls of the handler.
    pub(super) fn looked_for_folders(&self, judged: &Arc<Once>) {
        let _ = self.looked.set(Arc::clone(judged));
    }

    /// Takes over from the previous call in the same instance that the guest has looked for folders. Guests do so only once
    /// per instance.
    pub(super) fn looked_as(&self, previous: &Self) {
        if let Some(judged) = previous.looked.get() {
            self.looked_for_folders(judged);
        }
    }

    /// Logs at the end of a failed call that the guest had looked for folders. The first such call of a handler decides the
    /// level: if that call succeeds, the handler looks for folders without needing any, and later failures have other
    /// causes.
    pub(super) fn ended(&self, outcome: &Outcome) {
        let Some(judged) = self.looked.get() else { return };
        let mut is_first = false;
        judged.call_once(|| is_first = true);
        if !outcome.kind().is_error() {
            return;
        }
        let (consumer, message_id) = (&*self.consumer, self.message_id());
        if is_first {
            tracing::info!(consumer, message_id, cure = NO_FOLDERS_CURE, "{NO_FOLDERS}");
        } else {
            tracing::debug!(consumer, message_id, cure = NO_FOLDERS_CURE, "{NO_FOLDERS}");
        }
    }

    fn message_id(&self) -> &str {
        self.message.as_ref().map_or("", |message| &message.id)
    }

    /// Logs that the operation `what` was denied, at most once per handler call. `cure` names the grant that would
    /// allow the operation.
    pub(super) fn tell(&self, what: &str, cure: &str) {
        let (consumer, message_id) = (&*self.consumer, self.message_id());
        self.once(what, || {
            tracing::warn!(target: BY_GUEST, consumer, message_id, denied = what, cure, "denied to the handler");
        });
    }

    /// Logs that the host could not begin TLS with the granted server `server`, at most once per handler call.
    pub(super) fn no_tls(&self, server: &str, error: &str, cure: &str) {
        let (consumer, message_id) = (&*self.consumer, self.message_id());
        self.once(&format!("TLS with {server}"), || {
            tracing::warn!(target: BY_GUEST, consumer, message_id, server, error, cure, "a connection of the handler has no TLS");
        });
    }

    /// Logs a line about `what`, unless there is one or there are too many for the handler call.
    fn once(&self, what: &str, log: impl FnOnce()) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() >= MAX_LINES || !told.insert(what.to_owned()) {
            return;
        }
        let last = told.len() == MAX_LINES;
        drop(told);
        log();
        if last {
            let (consumer, message_id) = (&*self.consumer, self.message_id());
            tracing::warn!(target: BY_GUEST, consumer, message_id, "more was denied to the handler; not logged for this message");
        }
    }
}
