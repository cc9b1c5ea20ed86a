//! Idempotency: a key that was processed is not processed again, however often its message comes.
//!
//! | file | job | I/O |
//! |---|---|---|
//! | `run` | the attempt of one delivery: its stage, its reply, and the messages that it sends | none |
//! | `gate` | wraps the handler: begins a run, and lets the handler run only if the key was not processed | records |
//! | `record` | records a success in a store beside the queue, and sends what waited for it | records, sends |
//! | `ledger` | wraps the queue: extends runs with their leases, ends failed ones, and gives acks what they record | records |
//! | `unsent` | the messages of a run, as bytes for its record | none |
//!
//! The event loop gives each call its run as an outbox, and has a success recorded before it acks the message.

mod gate;
mod ledger;
mod record;
mod run;
mod unsent;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;

use super::Consumer;
use gate::Gate;
use hostler_handler::Outcome;
use hostler_queue::{LeaseHandle, Records};
use hostler_queue_telemetry::{Producer, Replies};
use hostler_telemetry::metrics::ConsumerMetrics;
use hostler_types::message::Message;
use hostler_types::{KeySource, Outbox};
use ledger::Ledger;
use run::Run;
pub(super) use run::{is_large, is_repeated, never_started};

/// Time by which a run's lease outlasts that of its message, for the time between the two calls that set them.
const MARGIN: Duration = Duration::from_secs(1);

/// Number of runs below which ended ones are not searched for.
const FEW: usize = 64;

/// Settings of a consumer's idempotency, and the store of its records.
#[derive(Clone)]
pub struct Idempotency {
    /// Place of the key in a message.
    pub key: KeySource,
    /// Name under which the keys of this consumer are kept. Consumers of the same queue share it.
    pub scope: Arc<str>,
    /// Store of the records.
    pub records: Arc<dyn Records>,
    /// Set if the records are in the database of the queue, so that one transaction takes the success, the ack, the reply and the
    /// sends.
    pub is_transactional: bool,
    /// Time for which the record of a success is kept.
    pub ttl: Duration,
    /// Set if a run that ended without a result is followed by another. Otherwise its message is dead-lettered.
    pub runs_again: bool,
    /// Producer that sends what the handler has sent, once it has succeeded.
    pub producer: Producer,
}

/// The parts that the wrappers and the runs of a consumer share.
struct Shared {
    settings: Idempotency,
    consumer: Arc<str>,
    /// Sender of the handler's replies.
    replies: Option<Replies>,
    /// Duration of a message's lease.
    lease: Duration,
    /// Maximum time that the start of a run may take.
    patience: Duration,
    metrics: Option<ConsumerMetrics>,
    /// Runtime of the control thread. Calls to the store are made there, so that no guest delays them.
    runtime: Handle,
    /// Runs by the leases of their messages, until the deliveries end.
    runs: Mutex<HashMap<LeaseHandle, Weak<Run>>>,
}

impl Shared {
    /// Returns the run of a delivery. `None`: the delivery has ended.
    fn run(&self, lease: &LeaseHandle) -> Option<Arc<Run>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).get(lease)?.upgrade()
    }
}

/// Makes the runs of a consumer.
pub(super) struct Runs(Arc<Shared>);

impl Runs {
    /// Returns the run of a delivery that was just received, as the outbox of its call.
    pub(super) fn enter(&self, lease: LeaseHandle, message: &Arc<Message>) -> Arc<dyn Outbox> {
        let Shared { settings, replies, .. } = &*self.0;
        let run = Arc::new(Run::new(message, settings, replies.clone()));
        let mut runs = self.0.runs.lock().unwrap_or_else(PoisonError::into_inner);
        if runs.len() >= FEW && runs.len() == runs.capacity() {
            runs.retain(|_, run| run.strong_count() > 0);
        }
        runs.insert(lease, Arc::downgrade(&run));
        run
    }

    /// Records the success of a delivery, and sends what its handler has sent, unless the ack does so.
    ///
    /// # Errors
    /// The outcome of the message, which must not be acked.
    pub(super) fn record(&self, lease: &LeaseHandle) -> impl Future<Output = Result<(), Outcome>> + Send + 'static {
        let (shared, run) = (Arc::clone(&self.0), self.0.run(lease));
        async move {
            match run {
                Some(run) => record::record(shared, run).await,
                None => Err(Outcome::Failed("its run was lost".to_owned())),
            }
        }
    }
}

/// Wraps the queue and the handler of a consumer with idempotency. Replies are then sent by the wrapper of the queue, because they
/// are part of what is recorded. `None`: the consumer has none, and is returned as it was.
pub(super) fn guard(mut consumer: Consumer) -> (Consumer, Option<Runs>) {
    let Some(settings) = consumer.idempotency.take() else { return (consumer, None) };
    let shared = Arc::new(Shared {
        settings,
        consumer: Arc::clone(&consumer.spec.name),
        replies: consumer.replies.take(),
        lease: consumer.spec.lease,
        // The rest of the processing timeout is the handler's.
        patience: Duration::from_secs(10).min(consumer.spec.processing_timeout / 2),
        metrics: consumer.metrics.clone(),
        runtime: Handle::current(),
        runs: Mutex::default(),
    });
    consumer.queue = Arc::new(Ledger { inner: consumer.queue, shared: Arc::clone(&shared) });
    consumer.handler = Arc::new(Gate { inner: consumer.handler, shared: Arc::clone(&shared) });
    (consumer, Some(Runs(shared)))
}

#[cfg(test)]
mod tests;
