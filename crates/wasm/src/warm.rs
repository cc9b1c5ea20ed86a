//! Idle instances of a component that can process another message.

use std::sync::{Mutex, PoisonError};

use super::capabilities::Stdin;
use super::guest::{Guest, Live};
use super::scope::Scope;
use hostler_handler::{Outcome, Output};

/// The idle instances of one guest.
#[derive(Default)]
pub(super) struct Warm(Mutex<Vec<Live>>);

impl Warm {
    /// Returns an idle instance, or creates one. If this fails, the error is the outcome of the call.
    pub(super) async fn instance(&self, guest: &Guest, scope: Scope, output: &Output) -> Result<Live, Outcome> {
        let warm = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match warm {
            Some(mut live) => {
                live.reuse_for(scope, output);
                Ok(live)
            }
            None => guest.instantiate(scope, output, Stdin::default()).await,
        }
    }

    /// Stores an instance that has processed `messages` more messages. If the instance has reached its maximum number of
    /// messages, drops the instance instead.
    pub(super) fn keep(&self, guest: &Guest, mut live: Live, messages: u32) {
        live.used = live.used.saturating_add(messages);
        if live.used < guest.definition().messages_per_instance {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(live);
        }
    }
}
