//! What a sandbox knows of the call that runs in it.

use std::sync::{Arc, OnceLock};

use super::Definition;
use super::denial::Denials;
use hostler_handler::{Bounds, Call, Limit};
use hostler_types::message::TraceContext;

/// What a sandbox knows of the call that runs in it.
#[derive(Debug)]
pub(super) struct Scope {
    /// How long it may take.
    pub(super) bounds: Bounds,
    /// Which delivery of its message it is; 0 without a message.
    pub(super) attempt: u32,
    /// The trace that it runs in.
    pub(super) trace: Option<Arc<TraceContext>>,
    pub(super) denials: Denials,
    /// The limit of the host that the call ran into, if any.
    pub(super) reached: OnceLock<Limit>,
}

impl Scope {
    /// Notes that the call ran into a limit of the host.
    pub(super) fn reach(&self, limit: Limit) {
        let _ = self.reached.set(limit);
    }

    /// That of what has no message.
    pub(super) fn new(bounds: Bounds, denials: Denials) -> Self {
        Self { bounds, attempt: 0, trace: None, denials, reached: OnceLock::new() }
    }

    /// That of a call by this consumer.
    pub(super) fn of(call: &Call, definition: &Definition) -> Self {
        let denials = Denials::new(Arc::clone(&definition.consumer), Some(Arc::clone(&call.message)));
        Self { attempt: call.attempt, trace: call.trace.clone(), ..Self::new(call.bounds.clone(), denials) }
    }
}
