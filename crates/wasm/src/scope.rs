//! The call that runs in a sandbox, as the sandbox knows it.

use std::sync::{Arc, OnceLock};

use super::Definition;
use super::denial::Denials;
use hostler_handler::{Bounds, Call, Limit};
use hostler_types::message::TraceContext;

/// The call that runs in a sandbox, as the sandbox knows it.
#[derive(Debug)]
pub(super) struct Scope {
    /// The time that it may take.
    pub(super) bounds: Bounds,
    /// The number of this delivery of its message; 0 without a message.
    pub(super) attempt: u32,
    /// The trace that it runs in.
    pub(super) trace: Option<Arc<TraceContext>>,
    pub(super) denials: Denials,
    /// The host limit that the call reached, if any.
    pub(super) reached: OnceLock<Limit>,
}

impl Scope {
    /// Notes that the call reached a host limit.
    pub(super) fn reach(&self, limit: Limit) {
        let _ = self.reached.set(limit);
    }

    /// Creates the scope of a call without a message.
    pub(super) fn new(bounds: Bounds, denials: Denials) -> Self {
        Self { bounds, attempt: 0, trace: None, denials, reached: OnceLock::new() }
    }

    /// Creates the scope of a call by this consumer.
    pub(super) fn of(call: &Call, definition: &Definition) -> Self {
        let denials = Denials::new(Arc::clone(&definition.consumer), Some(Arc::clone(&call.message)));
        Self { attempt: call.attempt, trace: call.trace.clone(), ..Self::new(call.bounds.clone(), denials) }
    }
}
