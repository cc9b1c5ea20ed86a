//! Metrics of one consumer. Counting is a single addition, because counters are read only when metrics are collected.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{BoundHistogram, Counter, Histogram, Meter};
use tokio::time::Instant;

use super::drain_rate::DrainRate;
use super::names::{self, DISPOSITIONS, KeyResult};
use hostler_types::OutcomeKind;

/// Names of a consumer and its channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// Name of the consumer.
    pub consumer: String,
    /// Channel from which the consumer receives.
    pub channel: String,
    /// Name of the queue service in the semantic conventions: `aws_sqs`, or `hostler` for the embedded queue.
    pub system: &'static str,
}

/// Name and type of the operation that extends leases. The semantic conventions define no type for this operation.
const EXTEND: (&str, Option<&str>) = ("extend", None);

/// A call to the queue service. Calls that send messages are recorded by [`ConsumerMetrics::sent`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Receives messages, including the wait for messages.
    Receive,
    /// Extends leases.
    Extend,
    /// Settles messages.
    Settle,
}

/// Result of processing a message.
#[derive(Debug, Clone, Copy)]
pub struct Ending {
    /// Outcome of the handler.
    pub outcome: OutcomeKind,
    /// Action that was taken on the message: one of [`names::DISPOSITIONS`].
    pub disposition: &'static str,
    /// Number of the attempt, counted from 1.
    pub attempt: u32,
    /// Run time of the handler. `None`: the handler did not run.
    pub ran_for: Option<Duration>,
}

/// Current state of a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shown {
    /// Maximum number of messages processed at the same time.
    pub slots: usize,
    /// Number of messages processed now.
    pub busy: usize,
    /// Number of messages received but not finished.
    pub in_hand: usize,
    /// State: one of [`names::STATES`].
    pub state: &'static str,
}

/// Message counts of a queue, as defined by `Depth` of the queue contract.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Depths {
    /// Number of messages that can be received.
    pub visible: u64,
    /// Number of delayed messages. `None`: the service does not report it.
    pub delayed: Option<u64>,
    /// Number of leased messages. `None`: the service does not report it.
    pub in_flight: Option<u64>,
    /// Number of messages in the dead-letter queue.
    pub dead_lettered: u64,
    /// Age of the oldest message. `None`: the service does not report it.
    pub oldest_age: Option<Duration>,
}

/// Last reading of a queue's counts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    pub(super) at: Instant,
    pub(super) depths: Depths,
    /// Estimated time until the visible messages are processed, at the rate of the last minute. `None`: no messages
    /// were removed in that minute.
    pub(super) time_to_drain: Option<Duration>,
}

/// Metrics of one consumer. Clones record for the same consumer.
#[derive(Debug, Clone)]
pub struct ConsumerMetrics(Arc<Inner>);

struct Inner {
    /// Attributes of all metrics of the consumer.
    base: Vec<KeyValue>,
    often: Often,
    instruments: Instruments,
    counts: Counts,
    memory_peak: Arc<AtomicU64>,
    look: OnceLock<Box<dyn Fn() -> Shown + Send + Sync>>,
    queue: Mutex<Queue>,
}

/// Histograms to which nearly every message adds a value.
struct Often {
    /// Run times of handlers, by outcome.
    process: [Series<f64>; OutcomeKind::ALL.len()],
    /// Durations of successful receive calls, lease extensions and settlements.
    calls: [Series<f64>; 3],
    attempts: Series<u64>,
    batch_size: Series<u64>,
    queue_delay: Series<f64>,
    instantiation: Series<f64>,
}

/// A histogram whose attributes are bound once, because looking up attributes costs more than recording a value. The
/// series appears with its first value.
struct Series<T> {
    histogram: Histogram<T>,
    attributes: Vec<KeyValue>,
    bound: OnceLock<BoundHistogram<T>>,
}

impl<T: Clone> Series<T> {
    fn new(histogram: &Histogram<T>, attributes: Vec<KeyValue>) -> Self {
        Self { histogram: histogram.clone(), attributes, bound: OnceLock::new() }
    }

    fn record(&self, value: T) {
        self.bound.get_or_init(|| self.histogram.bind(&self.attributes)).record(value);
    }
}

#[derive(Default)]
struct Queue {
    seen: Option<Seen>,
    rate: DrainRate,
}

/// Counters, which are read at each collection.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Finished messages, by outcome and then by disposition.
    settled: [[AtomicU64; DISPOSITIONS.len()]; OutcomeKind::ALL.len()],
    pub(super) consumed: AtomicU64,
    pub(super) late: AtomicU64,
    pub(super) leases_extended: AtomicU64,
    pub(super) leases_lost: AtomicU64,
    pub(super) refused: AtomicU64,
    /// Looked up idempotency keys, in the order of [`names::KEY_RESULTS`].
    pub(super) keys: [AtomicU64; names::KEY_RESULTS.len()],
}

/// Histograms, and the counter of sent messages. All consumers share them.
#[derive(Debug, Clone)]
pub(super) struct Instruments {
    process: Histogram<f64>,
    operation: Histogram<f64>,
    sent: Counter<u64>,
    attempts: Histogram<u64>,
    batch_size: Histogram<u64>,
    queue_delay: Histogram<f64>,
    instantiation: Histogram<f64>,
}

impl Instruments {
    pub(super) fn new(meter: &Meter) -> Self {
        let seconds = |name: &'static str, bounds: &[f64]| {
            let (unit, meaning) = names::described(name);
            let histogram = meter.f64_histogram(name).with_unit(unit).with_description(meaning);
            histogram.with_boundaries(bounds.to_vec()).build()
        };
        let counts = |name: &'static str, bounds: &[f64]| {
            let (unit, meaning) = names::described(name);
            let histogram = meter.u64_histogram(name).with_unit(unit).with_description(meaning);
            histogram.with_boundaries(bounds.to_vec()).build()
        };
        let (unit, meaning) = names::described(names::MESSAGING_CLIENT_SENT_MESSAGES);
        let sent = meter.u64_counter(names::MESSAGING_CLIENT_SENT_MESSAGES).with_unit(unit).with_description(meaning);
        Self {
            process: seconds(names::MESSAGING_PROCESS_DURATION, names::PROCESS_DURATIONS),
            operation: seconds(names::MESSAGING_CLIENT_OPERATION_DURATION, names::OPERATION_DURATIONS),
            sent: sent.build(),
            attempts: counts(names::ATTEMPTS, names::ATTEMPT_COUNTS),
            batch_size: counts(names::BATCH_SIZE, names::BATCH_SIZES),
            queue_delay: seconds(names::QUEUE_DELAY, names::AGES),
            instantiation: seconds(names::INSTANTIATION, names::INSTANTIATIONS),
        }
    }
}

impl ConsumerMetrics {
    pub(super) fn new(named: Named, instruments: Instruments) -> Self {
        let Named { consumer, channel, system } = named;
        let group = KeyValue::new(names::MESSAGING_CONSUMER_GROUP_NAME, consumer.clone());
        let base = vec![
            KeyValue::new(names::CONSUMER, consumer),
            KeyValue::new(names::MESSAGING_SYSTEM, system),
            KeyValue::new(names::MESSAGING_DESTINATION_NAME, channel),
            group,
        ];
        let process = OutcomeKind::ALL.map(|outcome| {
            let error = (!outcome.is_success()).then(|| KeyValue::new(names::ERROR_TYPE, outcome.name()));
            let attributes = base.iter().cloned().chain(operation("process", None)).chain(error).collect();
            Series::new(&instruments.process, attributes)
        });
        let calls = [("receive", Some("receive")), EXTEND, ("settle", Some("settle"))];
        let calls = calls.map(|(name, kind)| {
            let attributes = base.iter().cloned().chain(operation(name, kind)).collect();
            Series::new(&instruments.operation, attributes)
        });
        let often = Often {
            process,
            calls,
            attempts: Series::new(&instruments.attempts, base.clone()),
            batch_size: Series::new(&instruments.batch_size, base.clone()),
            queue_delay: Series::new(&instruments.queue_delay, base.clone()),
            instantiation: Series::new(&instruments.instantiation, base.clone()),
        };
        Self(Arc::new(Inner {
            base,
            often,
            instruments,
            counts: Counts::default(),
            memory_peak: Arc::default(),
            look: OnceLock::new(),
            queue: Mutex::default(),
        }))
    }

    /// Records that the handler of a message starts. `queue_delay` is the age of the message. `late` is set if this age
    /// exceeds `delay_tolerance`.
    pub fn started(&self, queue_delay: Duration, late: bool) {
        self.0.often.queue_delay.record(queue_delay.as_secs_f64());
        self.0.counts.late.fetch_add(u64::from(late), Ordering::Relaxed);
    }

    /// Records that a handler starts with a batch of `size` messages.
    pub fn batch_started(&self, size: usize) {
        self.0.often.batch_size.record(size as u64);
    }

    /// Records that the processing of a message ended.
    pub fn ended(&self, ending: Ending) {
        let outcome = ending.outcome as usize;
        let disposition = names::place(ending.disposition, &DISPOSITIONS);
        if let Some(count) = self.0.counts.settled.get(outcome).and_then(|row| row.get(disposition)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        if let (Some(ran_for), Some(process)) = (ending.ran_for, self.0.often.process.get(outcome)) {
            process.record(ran_for.as_secs_f64());
        }
        if disposition < names::REMOVALS {
            self.0.often.attempts.record(ending.attempt.into());
        }
    }

    /// Counts one message of a producer that was not stored.
    pub fn refused(&self) {
        self.0.counts.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one message that was looked up by its idempotency key.
    pub fn key_looked_up(&self, result: KeyResult) {
        if let Some(count) = self.0.counts.keys.get(result as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts one lost lease.
    pub fn lease_lost(&self) {
        self.0.counts.leases_lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts `count` extended leases.
    pub fn leases_extended(&self, count: usize) {
        self.0.counts.leases_extended.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Counts `count` received messages.
    pub fn consumed(&self, count: usize) {
        self.0.counts.consumed.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Records a call to the queue service that lasted `took`. `error`: kind of the failure, one of a few fixed words.
    /// `None`: the call succeeded.
    pub fn called(&self, call: Operation, took: Duration, error: Option<&'static str>) {
        let [receive, extend, settle] = &self.0.often.calls;
        let series = match call {
            Operation::Receive => receive,
            Operation::Extend => extend,
            Operation::Settle => settle,
        };
        match error {
            None => series.record(took.as_secs_f64()),
            Some(error) => {
                let error = KeyValue::new(names::ERROR_TYPE, error);
                let attributes: Vec<_> = series.attributes.iter().cloned().chain([error]).collect();
                self.0.instruments.operation.record(took.as_secs_f64(), &attributes);
            }
        }
    }

    /// Records a send call to a channel from the config. `errors` has one element per message: the kind of the failure,
    /// one of a few fixed words, or `None` if the message was sent.
    pub fn sent(&self, channel: &str, took: Duration, errors: impl IntoIterator<Item = Option<&'static str>>) {
        let base = self.0.base.iter().filter(|attribute| {
            let name = attribute.key.as_str();
            name != names::MESSAGING_DESTINATION_NAME && name != names::MESSAGING_CONSUMER_GROUP_NAME
        });
        let destination = KeyValue::new(names::MESSAGING_DESTINATION_NAME, channel.to_owned());
        let base: Vec<_> = base.cloned().chain([destination]).collect();
        let mut worst = None;
        for error in errors {
            worst = worst.or(error);
            let error = error.map(|error| KeyValue::new(names::ERROR_TYPE, error));
            let attributes: Vec<_> = base.iter().cloned().chain(operation("send", None)).chain(error).collect();
            self.0.instruments.sent.add(1, &attributes);
        }
        let error = worst.map(|error| KeyValue::new(names::ERROR_TYPE, error));
        let attributes: Vec<_> = base.into_iter().chain(operation("send", Some("send"))).chain(error).collect();
        self.0.instruments.operation.record(took.as_secs_f64(), &attributes);
    }

    /// Records the creation of a sandbox, which lasted `took`.
    pub fn instantiated(&self, took: Duration) {
        self.0.often.instantiation.record(took.as_secs_f64());
    }

    /// Returns the shared counter for the maximum linear memory of a sandbox in bytes. Sandboxes update the counter.
    pub fn memory_peak(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.0.memory_peak)
    }

    /// Sets the function that returns the consumer's state. Further calls have no effect.
    pub fn show(&self, look: impl Fn() -> Shown + Send + Sync + 'static) {
        let _ = self.0.look.set(Box::new(look));
    }

    /// Records the queue's counts. `None`: the counts could not be read, so the metrics have a gap.
    pub fn queue_seen(&self, depths: Option<Depths>, now: Instant) {
        let removed = self.removed();
        let mut queue = self.0.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let rate = queue.rate.sample(now, removed);
        queue.seen = depths.map(|depths| {
            let seconds = rate.map(|per_second| depths.visible as f64 / per_second);
            Seen {
                at: now,
                depths,
                time_to_drain: seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
            }
        });
    }

    /// Returns the number of messages that were removed from the queue since the start.
    fn removed(&self) -> u64 {
        let rows = self.0.counts.settled.iter();
        rows.flat_map(|row| row.iter().take(names::REMOVALS)).map(|count| count.load(Ordering::Relaxed)).sum()
    }

    pub(super) fn base(&self) -> &[KeyValue] {
        &self.0.base
    }

    pub(super) fn counts(&self) -> &Counts {
        &self.0.counts
    }

    pub(super) fn shown(&self) -> Option<Shown> {
        self.0.look.get().map(|look| look())
    }

    pub(super) fn seen(&self) -> Option<Seen> {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner).seen
    }

    /// Returns the maximum linear memory of a sandbox so far in bytes. `None`: no sandbox has reported its memory yet.
    pub(super) fn peak(&self) -> Option<u64> {
        Some(self.0.memory_peak.load(Ordering::Relaxed)).filter(|peak| *peak > 0)
    }
}

impl Counts {
    /// Returns the count of each outcome and disposition.
    pub(super) fn settled(&self) -> impl Iterator<Item = (OutcomeKind, &'static str, u64)> {
        self.settled.iter().zip(OutcomeKind::ALL).flat_map(|(row, outcome)| {
            let counted = row.iter().zip(DISPOSITIONS);
            counted.map(move |(count, disposition)| (outcome, disposition, count.load(Ordering::Relaxed)))
        })
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsumerMetrics").field("base", &self.base).finish_non_exhaustive()
    }
}

/// Returns the attributes for an operation: its name, and its type `kind` if the semantic conventions define one.
fn operation(name: &'static str, kind: Option<&'static str>) -> impl Iterator<Item = KeyValue> {
    let kind = kind.map(|kind| KeyValue::new(names::MESSAGING_OPERATION_TYPE, kind));
    [KeyValue::new(names::MESSAGING_OPERATION_NAME, name)].into_iter().chain(kind)
}

#[cfg(test)]
mod tests {
    use opentelemetry::metrics::MeterProvider as _;
    use opentelemetry_sdk::metrics::SdkMeterProvider;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn metrics() -> ConsumerMetrics {
        let named = Named { consumer: "work".into(), channel: "work".into(), system: "hostler" };
        ConsumerMetrics::new(named, Instruments::new(&SdkMeterProvider::default().meter("test")))
    }

    fn end(metrics: &ConsumerMetrics, outcome: OutcomeKind, disposition: &'static str) {
        metrics.ended(Ending { outcome, disposition, attempt: 1, ran_for: Some(SECOND) });
    }

    #[test]
    fn the_time_to_drain_is_what_waits_by_what_leaves_the_queue() {
        let (metrics, start) = (metrics(), Instant::now());
        let visible = |visible| Some(Depths { visible, ..Depths::default() });
        metrics.queue_seen(visible(600), start);
        assert_eq!(metrics.seen().unwrap().time_to_drain, None, "there is no rate yet");
        for _ in 0..30 {
            end(&metrics, OutcomeKind::Ack, "ack");
            end(&metrics, OutcomeKind::Failed, "dead-letter");
            end(&metrics, OutcomeKind::Failed, "release");
        }
        metrics.queue_seen(visible(600), start + 30 * SECOND);
        assert_eq!(metrics.seen().unwrap().time_to_drain, Some(300 * SECOND), "released ones are still there");
        metrics.queue_seen(None, start + 60 * SECOND);
        assert!(metrics.seen().is_none(), "a failed look leaves a gap");
    }
}
