//! One consumer: receives messages from its queue, runs its handler on each message, and settles the messages.
//!
//! | file | job | I/O |
//! |---|---|---|
//! | `delivery` | state machine of one delivery: events in, actions out | none |
//! | `policy` | escalation policy: from the outcome of a message to its disposition | none |
//! | `leases` | deadlines of leases, and the heartbeats that extend leases | none |
//! | `fifo` | releases the messages of each FIFO group one at a time | none |
//! | `settle` | gathers settlements into batches | none |
//! | `gather` | gathers messages into batches for the handler | none |
//! | `batch` | state machine of one batch: what its messages get when the guest ends | none |
//! | `idempotency/` | processes each key once: wrappers around the handler and the queue | records, queue |
//! | `breaker` | pauses receiving while too many messages fail | none |
//! | `admission` | accepts or refuses messages, depending on the operator's pause and the breaker | none |
//! | `failures` | settlements and lease extensions that keep failing, and the time of the first failure | none |
//! | `spared` | attempts that do not count, because a host limit ended them | none |
//! | `poll_schedule` | decides when to receive, and how many messages to request | none |
//! | `poll_schedule/rest` | decides when the queue is told that nothing will be received for a while | none |
//! | `in_hand` | the loop's data about one delivery | none |
//! | `in_flight` | data for `hostler inflight` and `hostler cancel` | none |
//! | `event_loop` | turns signals and deadlines into events, and drives all of the above | through `effects` |
//! | `event_loop/deliveries` | handles each delivery, from receipt to completion | through `effects` |
//! | `event_loop/groups` | keeps the order of messages within each FIFO group | through `effects` |
//! | `event_loop/batches` | starts batches, and handles their ends | through `effects` |
//! | `event_loop/report` | reports deliveries and the consumer's state | log, metrics, spans, status |
//! | `event_loop/pause` | stops and resumes receiving | through `effects` |
//! | `event_loop/requests` | lists messages in flight and cancels deliveries for an operator | through `effects` |
//! | `signals` | queue of signals for the loop | none |
//! | `requests` | sends an operator's requests to the loop | none |
//! | `changes` | delivers state changes to the `state-changed` hook | through the handler |
//! | `effects` | queue calls and guests, each answered with a signal | queue, handler |
//! | `status` | status of the consumer for the health file | none |
//! | `log` | one log line per message, and the guests' output | log |
//! | `spans` | spans of receive calls, messages and settle calls | traces |
//!
//! Everything except guests runs on the control thread. Therefore, the state of the loop needs no locks, and no guest
//! can delay a heartbeat.

mod admission;
mod batch;
mod breaker;
mod changes;
mod delivery;
mod effects;
mod event_loop;
mod failures;
mod fifo;
mod gather;
mod idempotency;
mod in_flight;
mod in_hand;
mod leases;
mod log;
mod policy;
mod poll_schedule;
mod requests;
mod settle;
mod signals;
mod spans;
mod spared;
mod status;
#[cfg(test)]
mod trial;

pub use failures::{Failing, Failures};
pub use idempotency::Idempotency;
pub use in_flight::{Cancellation, DeliveryId, InFlight, Stage};
pub use leases::{Change, Heartbeat, Leases};
pub use policy::{Disposition, Policy};
pub use requests::Requests;
pub use settle::Batcher;
pub use status::{Failed, MAX_FAILURES, Status, StatusHandle};

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use hostler_config as config;
use hostler_handler::{Handler, Pools};
use hostler_queue::Queue;
use hostler_queue_telemetry::Replies;
use hostler_telemetry::metrics::ConsumerMetrics;
use hostler_telemetry::traces::Traces;
use hostler_types::{BoxFuture, Rate};

/// Phase of the hostler process, from normal operation to the end of the shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// The consumer receives and processes messages.
    Running,
    /// The consumer receives nothing more, gives back messages whose handlers have not started, and lets running
    /// handlers finish.
    Draining,
    /// The consumer stops the handlers that are still running, and releases their messages.
    Deadline,
}

/// Configuration of a consumer.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Name of the consumer.
    pub name: Arc<str>,
    /// Channel from which the consumer receives.
    pub channel: Arc<str>,
    /// Set if messages of one group are processed in order.
    pub ordered: bool,
    /// Maximum number of handler calls at the same time, each with one message or one batch.
    pub concurrency: usize,
    /// Batches, if the handler gets several messages in one call.
    pub batch: Option<config::Batch>,
    /// Lease duration that each receive call and each extension requests.
    pub lease: Duration,
    /// Maximum run time of the handler for one message.
    pub processing_timeout: Duration,
    /// Maximum age of a message when it is received. An older message counts as late.
    pub delay_tolerance: Duration,
    /// Maximum time that a poll waits for a message. Must be well below the health check's timeout. Must also be below
    /// the shutdown grace, because a shutdown may have to wait for a poll in progress.
    pub longest_poll: Duration,
    /// Maximum rate at which messages are received. `None`: unlimited.
    pub rate_limit: Option<Rate>,
    /// Escalation policy.
    pub policy: Policy,
    /// Settings of the breaker, which pauses receiving while too many messages fail. `None`: the consumer has no
    /// breaker.
    pub breaker: Option<config::Breaker>,
    /// Maximum number of bytes of guest output to keep for the log, per message.
    pub output: usize,
}

impl Spec {
    /// Returns the number of messages that all handler calls together may have.
    fn capacity(&self) -> usize {
        self.concurrency.saturating_mul(self.batch.map_or(1, |batch| batch.max.max(1)))
    }
}

/// A consumer: its configuration, its queue, its handler and everything else that it uses.
pub struct Consumer {
    /// Configuration of the consumer.
    pub spec: Spec,
    /// Queue from which the consumer receives.
    pub queue: Arc<dyn Queue>,
    /// Handler that processes the messages.
    pub handler: Arc<dyn Handler>,
    /// Channel for replies. `None`: a reply counts as an ack.
    pub replies: Option<Replies>,
    /// Idempotency of the messages, for a consumer without batches. `None`: each message is processed.
    pub idempotency: Option<Idempotency>,
    /// Thread pools on which guests run.
    pub guests: Pools,
    /// Handle through which the consumer publishes its status.
    pub status: StatusHandle,
    /// Metrics of the consumer. `None`: metrics are disabled.
    pub metrics: Option<ConsumerMetrics>,
    /// Source of the consumer's spans. `None`: tracing is disabled.
    pub traces: Option<Traces>,
    /// `true` while an operator pauses the consumer. A paused consumer receives nothing, gives back messages whose
    /// handlers have not started, and finishes running messages.
    pub pause: watch::Receiver<bool>,
    /// Source of operator requests to list the messages in flight or to cancel a delivery.
    pub requests: Requests,
    /// Cancelled when a processing timeout requires the whole process to exit.
    pub exit: CancellationToken,
}

/// Summary of a consumer's run, returned when the consumer ends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Number of messages whose handler was started and has ended, with any outcome.
    pub processed: u64,
    /// Number of processed messages that failed: see [`hostler_health::ConsumerReport::failed`].
    pub failed: u64,
    /// Number of started messages that were already older than the delay tolerance when the consumer received them.
    pub late: u64,
    /// Number of messages that were released because the drain deadline stopped their handler, or because their move to
    /// the dead-letter queue failed during a drain.
    pub abandoned: u64,
    /// Set if the consumer ended because the queue had refused every receive call since the start. Contains an error
    /// message with the queue's reason.
    pub refused: Option<String>,
}

impl Consumer {
    /// Runs the consumer until `phase` requests a drain. After the request, returns when every delivery is settled or
    /// has lost its lease. Returns early if the queue refuses all receive calls from the start: see
    /// [`Summary::refused`].
    ///
    /// The initial value of `phase` counts as [`Phase::Running`]; only changes are handled. A dropped sender counts as
    /// [`Phase::Deadline`].
    pub fn run(self, phase: watch::Receiver<Phase>) -> BoxFuture<'static, Summary> {
        Box::pin(async move { event_loop::EventLoop::new(self).run(phase).await })
    }
}
