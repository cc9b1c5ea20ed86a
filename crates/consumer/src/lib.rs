//! One consumer: takes messages from its queue, runs its handler on them, settles them.
//!
//! | file | job | I/O |
//! |---|---|---|
//! | `delivery` | one delivery's life: events in, actions out | none |
//! | `policy` | what an outcome leads to | none |
//! | `leases` | when leases end, and which to extend | none |
//! | `fifo` | one of each group at a time | none |
//! | `settle` | gathers settlements into batches | none |
//! | `breaker` | when to stop receiving because too much fails, and when to go on | none |
//! | `admission` | whether to take messages: pauses and the breaker | none |
//! | `failures` | which settlements and extensions keep failing, and since when | none |
//! | `spared` | attempts that the host spoilt, and so do not count | none |
//! | `poll_schedule` | when to receive how much, and since when a receive could begin | none |
//! | `in_hand` | what the loop knows of a delivery | none |
//! | `event_loop` | turns the world into events, and drives all of the above | through `effects` |
//! | `event_loop/deliveries` | what the loop does about each delivery, from its receive to its end | through `effects` |
//! | `event_loop/groups` | what the loop does so that nothing overtakes another of its FIFO group | through `effects` |
//! | `event_loop/report` | what the loop says of its deliveries and of itself | log, metrics, spans, status |
//! | `event_loop/pause` | what the loop does when it is to take nothing, and when it may go on | through `effects` |
//! | `signals` | signals on their way to the loop | none |
//! | `changes` | changes of state on their way to the hook that hears of them | through the handler |
//! | `effects` | receives, extends, settles, runs guests; answers with signals | all of it |
//! | `status` | what the consumer shows of itself | none |
//! | `log` | the line per message | the log |
//! | `spans` | what spans say of receives, messages and settlings | none |
//!
//! Everything but the guests runs on the control thread, so nothing here is locked, and no guest can delay a heartbeat.

mod admission;
mod breaker;
mod changes;
mod delivery;
mod effects;
mod event_loop;
mod failures;
mod fifo;
mod in_hand;
mod leases;
mod log;
mod policy;
mod poll_schedule;
mod settle;
mod signals;
mod spans;
mod spared;
mod status;

pub use failures::{Failing, Failures};
pub use leases::{Change, Heartbeat, Leases};
pub use policy::{Disposition, Policy};
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

/// The phase of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Consume.
    Running,
    /// Take nothing more; give back what has not started; let the rest finish.
    Draining,
    /// Stop what still runs, and release it.
    Deadline,
}

/// The configuration of a consumer.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Its name.
    pub name: Arc<str>,
    /// The channel that it listens on.
    pub channel: Arc<str>,
    /// True if the order within a group must hold.
    pub ordered: bool,
    /// The number of messages that it processes at once.
    pub concurrency: usize,
    /// The time for which a message is leased at once.
    pub lease: Duration,
    /// The longest time that a handler may run.
    pub processing_timeout: Duration,
    /// The age at its receive beyond which a message counts as late.
    pub delay_tolerance: Duration,
    /// The longest time that a poll may wait for a message: well below the health check's patience, and below the grace
    /// of a shutdown, as a poll that is under way may have to be waited for.
    pub longest_poll: Duration,
    /// The rate at which messages may be taken.
    pub rate_limit: Option<Rate>,
    /// The escalation policy.
    pub policy: Policy,
    /// The breaker, which pauses receiving when too much fails; `None`: there is none.
    pub breaker: Option<config::Breaker>,
    /// The bytes of a guest's output that are kept.
    pub output: usize,
}

/// All that a consumer works with.
pub struct Consumer {
    /// Its configuration.
    pub spec: Spec,
    /// Its queue.
    pub queue: Arc<dyn Queue>,
    /// Its handler.
    pub handler: Arc<dyn Handler>,
    /// The channel of replies; without it a reply counts as an ack.
    pub replies: Option<Replies>,
    /// The runtimes of guests.
    pub guests: Pools,
    /// The board that shows its status.
    pub status: StatusHandle,
    /// Its metrics, if there are any.
    pub metrics: Option<ConsumerMetrics>,
    /// Its traces; `None`: there are no spans.
    pub traces: Option<Traces>,
    /// True while an operator wants it to pause: to take nothing more, give back what has not started, and finish what runs.
    pub pause: watch::Receiver<bool>,
    /// Cancelled when a processing timeout asks the whole host to exit.
    pub exit: CancellationToken,
}

/// A summary of a consumer's life.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Messages whose handler came to an end, whatever it was.
    pub processed: u64,
    /// Those of them that failed: see [`hostler_health::ConsumerReport::failed`].
    pub failed: u64,
    /// Messages that were started, and older than the delay tolerance when they were received.
    pub late: u64,
    /// Messages whose work was cut off by the drain deadline, and which were released.
    pub abandoned: u64,
    /// The queue's reason for refusing every receive from the start; the consumer ended because of it.
    pub refused: Option<String>,
}

impl Consumer {
    /// Consumes until `phase` says to drain, and everything in hand is settled or its lease lost. Ends by itself if the queue refuses
    /// its first receive: see [`Summary::refused`]. `phase` must begin as
    /// it is, and a dropped sender means [`Phase::Deadline`].
    pub async fn run(self, phase: watch::Receiver<Phase>) -> Summary {
        event_loop::EventLoop::new(self).run(phase).await
    }
}
