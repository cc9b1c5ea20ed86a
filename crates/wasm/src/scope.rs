//! The current call of a sandbox.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use super::Definition;
use super::denial::Denials;
use hostler_handler::{BatchCall, Bounds, Call, Limit};
use hostler_types::Outbox;
use hostler_types::job::JobContext;
use hostler_types::message::TraceContext;

/// The properties of a sandbox's current call that host functions need.
#[derive(Debug)]
pub(super) struct Scope {
    /// The deadline of the call, and the handle that stops the guest.
    pub(super) bounds: Bounds,
    /// Number of the delivery attempt; 1 is the first. 0: the call has no message.
    pub(super) attempt: u32,
    /// The trace context in which the call runs.
    pub(super) trace: Option<Arc<TraceContext>>,
    /// The job whose item the call processes. `None`: the message is not an item of a job, or the call has no message.
    pub(super) job: Option<Arc<dyn JobContext>>,
    /// The outbox for the messages that the guest sends. `None`: they are sent at once.
    pub(super) outbox: Option<Arc<dyn Outbox>>,
    /// The messages of the call and their answers. `None`: the call has one message, or none.
    pub(super) batch: Option<Arc<BatchCall>>,
    pub(super) denials: Denials,
    /// The host limit that the call has reached.
    pub(super) reached: OnceLock<Limit>,
    /// Set once a TCP connection has lost bytes that the guest had written to it.
    pub(super) output_lost: AtomicBool,
}

impl Scope {
    /// Records that the call reached a host limit. Only the first limit is recorded.
    pub(super) fn reach(&self, limit: Limit) {
        let _ = self.reached.set(limit);
    }

    /// Records that a TCP connection has lost output of the guest. No message of the call counts as processed from then on.
    pub(super) fn lose_output(&self) {
        self.output_lost.store(true, Ordering::Relaxed);
    }

    /// Returns `true` if a TCP connection has lost output of the guest.
    pub(super) fn has_lost_output(&self) -> bool {
        self.output_lost.load(Ordering::Relaxed)
    }

    /// Creates the scope of a call without a message.
    pub(super) fn new(bounds: Bounds, denials: Denials) -> Self {
        let (reached, output_lost) = (OnceLock::new(), AtomicBool::new(false));
        Self { bounds, attempt: 0, trace: None, job: None, outbox: None, batch: None, denials, reached, output_lost }
    }

    /// Creates the scope of a call that processes several messages.
    pub(super) fn of_batch(batch: &Arc<BatchCall>, definition: &Definition) -> Self {
        let denials = Denials::new(Arc::clone(&definition.consumer), None);
        Self { batch: Some(Arc::clone(batch)), ..Self::new(batch.bounds.clone(), denials) }
    }

    /// Creates the scope of a call that processes a message.
    pub(super) fn of(call: &Call, definition: &Definition) -> Self {
        let denials = Denials::new(Arc::clone(&definition.consumer), Some(Arc::clone(&call.message)));
        let (trace, job, outbox) = (call.trace.clone(), call.job.clone(), call.outbox.clone());
        Self { attempt: call.attempt, trace, job, outbox, ..Self::new(call.bounds.clone(), denials) }
    }
}
