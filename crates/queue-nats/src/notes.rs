//! Notes about messages: how many of their deliveries are no attempts.
//!
//! The server counts each delivery, also of messages that no handler has seen: they came before their time, or went back unstarted.
//! It has no place for another count beside the message. A stream with one note a message keeps it. Only messages that went back
//! have a note, and only messages that come again are looked up. A note is removed with its message.

use std::sync::Arc;

use hostler_queue::QueueError;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::api;
use super::hand::Key;
use super::line::Line;
use super::names::Names;

/// Reads and writes notes.
pub(crate) struct Notes {
    line: Arc<Line>,
    names: Names,
}

/// The note about a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    /// Number of deliveries that are no attempts.
    uncounted: u32,
    /// Time at which the message was stored, in nanoseconds since 1970. A new stream begins with sequence number 1 again, so the
    /// number alone may be another message's.
    stored_at: u64,
}

impl Notes {
    pub(crate) fn new(line: Arc<Line>, names: Names) -> Self {
        Self { line, names }
    }

    /// Returns how many deliveries of a message are no attempts. Without a note, all are attempts.
    ///
    /// # Errors
    /// The note cannot be read, so nothing is known.
    pub(crate) async fn read(&self, stream: &str, key: Key, stored_at: u64) -> Result<u32, QueueError> {
        let note = self.find(stream, key).await?;
        Ok(note.filter(|note| note.stored_at == stored_at).map_or(0, |note| note.uncounted))
    }

    async fn find(&self, stream: &str, key: Key) -> Result<Option<Note>, QueueError> {
        let found = api::last(&self.line, &self.names.notes(), &self.names.note(stream, key.sequence)).await?;
        Ok(found.and_then(|(_, body)| serde_json::from_slice(&body).ok()))
    }

    /// Notes how many deliveries of a message are no attempts. If that fails, they count as attempts.
    pub(crate) async fn write(&self, stream: &str, key: Key, stored_at: u64, uncounted: u32) {
        let note = serde_json::to_string(&Note { uncounted, stored_at }).unwrap_or_default();
        let (notes, subject) = (self.names.notes(), self.names.note(stream, key.sequence));
        if let Err(error) = api::publish_plain(&self.line, &notes, subject, note).await {
            tracing::debug!(stream, sequence = key.sequence, ?error, "a delivery that was no attempt counts as one");
        }
    }

    /// Removes the note about a message that has been removed. A note that stays goes by its age.
    pub(crate) async fn remove(&self, stream: &str, key: Key) {
        let operation = format!("STREAM.PURGE.{}", self.names.notes());
        let note = json!({ "filter": self.names.note(stream, key.sequence) });
        if let Err(error) = api::call(&self.line, &operation, &note).await {
            tracing::debug!(stream, sequence = key.sequence, ?error, "a note outlives its message");
        }
    }
}
