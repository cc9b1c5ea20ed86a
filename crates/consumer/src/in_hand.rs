//! A delivery in hand: what the loop knows of it. No I/O.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use tracing::field::{DisplayValue, display};

use super::delivery::Machine;
use hostler_handler::Call;
use hostler_queue::Receipt;
use hostler_telemetry::traces::{Span, SpanId, TraceId};
use hostler_types::message::TraceContext;

/// The place in a trace that a line belongs to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    /// The trace that the handler ran in, if there is one.
    pub(super) trace: Option<&'a TraceContext>,
    /// True if its span is ours, and so exported.
    pub(super) own: bool,
}

impl Place<'_> {
    pub(super) fn trace_id(&self) -> Option<DisplayValue<TraceId>> {
        self.trace.map(|trace| display(trace.span().trace_id()))
    }

    pub(super) fn span_id(&self) -> Option<DisplayValue<SpanId>> {
        self.trace.filter(|_| self.own).map(|trace| display(trace.span().span_id()))
    }
}

/// A delivery that is not over.
pub(super) struct InHand {
    pub(super) machine: Machine,
    pub(super) call: Arc<Call>,
    /// Taken when it is settled, so that it is settled once.
    pub(super) receipt: Option<Receipt>,
    /// The age of the message when it was received.
    pub(super) queue_delay: Duration,
    pub(super) late: bool,
    pub(super) started_at: Option<Instant>,
    /// The time that the handler ran; zero if it never did.
    pub(super) ran_for: Duration,
    /// Its last heartbeat failed: if its lease ends, it ends for that.
    pub(super) heartbeat_failed: bool,
    /// The span of its processing, if that is sampled, and when it began.
    pub(super) span: Option<(Span, SystemTime)>,
}

impl InHand {
    /// The id of its message.
    pub(super) fn message_id(&self) -> &str {
        &self.call.message.id
    }

    /// The place in its trace that lines about it belong to.
    pub(super) fn place(&self) -> Place<'_> {
        Place { trace: self.call.trace.as_deref(), own: self.span.is_some() }
    }
}
