//! One consumer: receives messages from its queue, runs its handler on each message, and settles the messages.
//!
//! | file | job | I/O |
//! |---|---|---|
//! | `delivery` | state machine of one delivery: events in, actions out | none |
//! | `policy` | escalation policy: from the outcome of a message to its disposition | none |
//! | `leases` | ends of leases, and the heartbeats that extend leases | none |
//! | `fifo` | releases the messages of each FIFO group one at a time | none |
//! | `settle` | gathers settlements into batches | none |
//! | `breaker` | when to stop receiving because too much fails, and when to go on | none |
//! | `admission` | whether to take messages: pauses and the breaker | none |
//! | `failures` | which settlements and extensions keep failing, and since when | none |
//! | `spared` | attempts that the host spoilt, and so do not count | none |
//! | `poll_schedule` | when to receive how much, and since when a receive could begin | none |
//! | `in_hand` | what the loop knows of a delivery | none |
//! | `in_flight` | messages in flight as an operator sees them, and requests about them | none |
//! | `event_loop` | turns the world into events, and drives all of the above | through `effects` |
//! | `event_loop/deliveries` | what the loop does about each delivery, from its receive to its end | through `effects` |
//! | `event_loop/groups` | what the loop does so that nothing overtakes another of its FIFO group | through `effects` |
//! | `event_loop/report` | what the loop says of its deliveries and of itself | log, metrics, spans, status |
//! | `event_loop/pause` | what the loop does when it is to take nothing, and when it may go on | through `effects` |
//! | `event_loop/requests` | what the loop does when an operator lists the messages in flight, or cancels one | through `effects` |
//! | `signals` | signals on their way to the loop | none |
//! | `requests` | an operator's requests on their way to the loop | none |
//! | `changes` | changes of state on their way to the hook that hears of them | through the handler |
//! | `effects` | receives, extends, settles, runs guests; answers with signals | all of it |
//! | `status` | what the consumer shows of itself | none |
//! | `log` | the line per message | the log |
//! | `spans` | what spans say of receives, messages and settlings | none |
//!
//! Everything except guests runs on the control thread. Therefore, the state of the loop needs no locks, and no guest
//! can delay a heartbeat.

mod admission;
mod breaker;
mod changes;
mod delivery;
mod effects;
mod event_loop;
mod failures;
mod fifo;
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

pub use failures::{Failing, Failures};
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
use hostler_types::Rate;

/// Phase of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// The consumer receives and processes messages.
    Running,
    /// The consumer receives nothing more, gives back messages that have not started, and lets running handlers finish.
    Draining,
    /// The consumer stops the handlers that still run, and releases their messages.
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
    /// Maximum number of messages that are processed at the same time.
    pub concurrency: usize,
    /// Duration of a lease, for each receive and each extension.
    pub lease: Duration,
    /// Maximum run time of the handler for one message.
    pub processing_timeout: Duration,
    /// Age above which a message counts as late when it is received.
    pub delay_tolerance: Duration,
    /// Maximum time that a poll may wait for a message. Well below the health check's timeout. Also below the shutdown
    /// grace, because a shutdown may have to wait for a poll that is in progress.
    pub longest_poll: Duration,
    /// Maximum rate at which messages are received. `None`: unlimited.
    pub rate_limit: Option<Rate>,
    /// Escalation policy.
    pub policy: Policy,
    /// Settings of the breaker, which pauses receiving while too many messages fail. `None`: receiving never pauses
    /// because of failures.
    pub breaker: Option<config::Breaker>,
    /// Maximum number of bytes of a guest's output that are kept for the log, per message.
    pub output: usize,
}

/// A consumer with its queue, its handler and everything else that it uses.
pub struct Consumer {
    /// Configuration of the consumer.
    pub spec: Spec,
    /// Queue from which the consumer receives.
    pub queue: Arc<dyn Queue>,
    /// Handler that processes the messages.
    pub handler: Arc<dyn Handler>,
    /// Channel for replies. `None`: a reply counts as an ack.
    pub replies: Option<Replies>,
    /// Runtimes on which guests run.
    pub guests: Pools,
    /// Handle through which the consumer publishes its status.
    pub status: StatusHandle,
    /// Metrics of the consumer. `None`: metrics are disabled.
    pub metrics: Option<ConsumerMetrics>,
    /// Source of the consumer's spans. `None`: tracing is disabled.
    pub traces: Option<Traces>,
    /// `true` while an operator pauses the consumer. A paused consumer receives nothing, gives back messages that have not
    /// started, and finishes those that run.
    pub pause: watch::Receiver<bool>,
    /// An operator's requests to list its messages in flight, or to cancel one.
    pub requests: Requests,
    /// Cancelled when a processing timeout requires the whole host to exit.
    pub exit: CancellationToken,
}

/// Summary of a consumer's run, returned when the consumer ends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Number of messages whose handler was started and has ended, with any outcome.
    pub processed: u64,
    /// Number of processed messages that failed: see [`hostler_health::ConsumerReport::failed`].
    pub failed: u64,
    /// Number of started messages that were older than the delay tolerance when they were received.
    pub late: u64,
    /// Number of messages that were released because the drain deadline stopped their handler.
    pub abandoned: u64,
    /// Error text of a queue that refused every receive since the start. Set if the consumer ended for this reason.
    pub refused: Option<String>,
}

impl Consumer {
    /// Runs the consumer until `phase` requests a drain, and every delivery is settled or has lost its lease. Ends
    /// early if the queue refuses all receives from the start: see [`Summary::refused`].
    ///
    /// The initial value of `phase` counts as [`Phase::Running`]; only changes are handled. A dropped sender counts as
    /// [`Phase::Deadline`].
    pub async fn run(self, phase: watch::Receiver<Phase>) -> Summary {
        event_loop::EventLoop::new(self).run(phase).await
    }
}
