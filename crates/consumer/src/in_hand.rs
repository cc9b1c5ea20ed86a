//! The event loop's data about one unfinished delivery. No I/O.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use tracing::field::{DisplayValue, display};

use super::delivery::Machine;
use hostler_handler::Call;
use hostler_queue::Receipt;
use hostler_telemetry::traces::{Span, SpanId, TraceId};
use hostler_types::message::TraceContext;

/// Place in a trace to which a log line belongs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    /// Trace context of the handler. `None`: no trace.
    pub(super) trace: Option<&'a TraceContext>,
    /// Set if the span in `trace` was created by this consumer, and is therefore exported.
    pub(super) own: bool,
}

/// Identifies a batch within its consumer.
pub(super) type BatchId = u64;

/// Place of a delivery in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Membership {
    pub(super) batch: BatchId,
    /// Number of messages in the batch.
    pub(super) size: usize,
}

impl Place<'_> {
    pub(super) fn trace_id(&self) -> Option<DisplayValue<TraceId>> {
        self.trace.map(|trace| display(trace.span().trace_id()))
    }

    pub(super) fn span_id(&self) -> Option<DisplayValue<SpanId>> {
        self.trace.filter(|_| self.own).map(|trace| display(trace.span().span_id()))
    }
}

/// A delivery that is not finished.
pub(super) struct InHand {
    pub(super) machine: Machine,
    pub(super) call: Arc<Call>,
    /// Receipt with which the message is settled. Taken by the settlement, so that a message is settled at most once.
    pub(super) receipt: Option<Receipt>,
    /// Time that the message waited in the queue until it was received. If the producer delayed the message until a
    /// start time, the wait counts from the start time.
    pub(super) queue_delay: Duration,
    pub(super) late: bool,
    pub(super) started_at: Option<Instant>,
    /// Run time of the handler. Zero if the handler never ran.
    pub(super) ran_for: Duration,
    /// Set if the last heartbeat failed. If the lease then ends, the failed heartbeat counts as the cause.
    pub(super) heartbeat_failed: bool,
    /// Span of the message, and the start time of the span. `None`: the handler has not started, or the message is not
    /// sampled.
    pub(super) span: Option<(Span, SystemTime)>,
    /// Batch in whose slot the message runs. `None`: the consumer has no batches, or the message still waits for one.
    pub(super) membership: Option<Membership>,
}

impl InHand {
    /// Returns the id of the message.
    pub(super) fn message_id(&self) -> &str {
        &self.call.message.id
    }

    /// Returns the place in a trace for log lines about this delivery.
    pub(super) fn place(&self) -> Place<'_> {
        Place { trace: self.call.trace.as_deref(), own: self.span.is_some() }
    }
}
