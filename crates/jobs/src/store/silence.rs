//! The log of a database that stops answering: one line when it does, and one when it answers again.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::timeout;

use crate::store::{Store, StoreError};

/// Longest wait for a database that may be silent.
const PATIENCE: Duration = Duration::from_secs(2);

/// Set while a database is known to be silent.
#[derive(Debug, Default)]
pub(crate) struct Silence(AtomicBool);

impl Silence {
    /// Notes the state. Returns `true` if it was another one before.
    fn set(&self, is_silent: bool) -> bool {
        self.0.swap(is_silent, Ordering::Relaxed) != is_silent
    }
}

impl Store {
    /// Notes that the database does not answer, or lets nobody in. Only the first of several notes is logged.
    pub(crate) fn note_silence(&self, error: &dyn Display) {
        if self.silence.set(true) {
            let database = self.place();
            tracing::warn!(database, %error, "a database does not answer; requests that need it are refused with 503 meanwhile");
        }
    }

    /// Notes that the database answers.
    pub(crate) fn note_answer(&self) {
        if self.silence.set(false) {
            tracing::info!(database = self.place(), "the database answers again");
        }
    }

    /// Returns `true` if a call failed because the database is silent or held back, and not because the call took long.
    pub(crate) async fn is_silent(&self, error: &StoreError) -> bool {
        error.is_outage() && (self.is_closed() || !matches!(timeout(PATIENCE, self.ping()).await, Ok(Ok(()))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changes_are_told() {
        let silence = Silence::default();
        let told = [false, true, true, false, false, true].map(|is_silent| silence.set(is_silent));
        assert_eq!(told, [false, true, false, true, false, true]);
    }
}
