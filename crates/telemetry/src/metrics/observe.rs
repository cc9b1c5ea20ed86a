//! Metrics that are read at each collection: counters, states of the consumers, and the last counts of their queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{AsyncInstrument, Meter};

use super::consumer::{ConsumerMetrics, Counts, Seen, Shown};
use super::names;
use hostler_types::OutcomeKind;

/// All consumers of the host.
pub(super) type Consumers = Arc<[ConsumerMetrics]>;

/// Name of a metric, and the function that reads its value.
type Row<F> = (&'static str, F);

/// Functions that each read one value: from the counters, from a consumer's state, or from the last counts of a queue.
type OfCounts = fn(&Counts) -> &AtomicU64;
type OfShown = fn(&Shown) -> usize;
type OfSeen = fn(&Seen) -> Option<u64>;
type TimeOfSeen = fn(&Seen) -> Option<Duration>;

/// A function that takes a value and its attributes.
type Take<'a> = &'a mut dyn FnMut(u64, &[KeyValue]);

/// Registers the instruments, whose callbacks read the values of the consumers at each collection.
pub(super) fn register(meter: &Meter, consumers: &Consumers) {
    let watch = Watch { meter, consumers };
    watch.host();
    watch.counters();
    watch.boards();
    watch.queues();
    watch.gauge(names::MEMORY_PEAK, |consumer, take| {
        if let Some(peak) = consumer.peak() {
            take(peak, consumer.base());
        }
    });
}

struct Watch<'a> {
    meter: &'a Meter,
    consumers: &'a Consumers,
}

impl Watch<'_> {
    fn host(&self) {
        let version = [KeyValue::new(names::SERVICE_VERSION, env!("CARGO_PKG_VERSION"))];
        let (_, meaning) = names::described(names::UP);
        let up = self.meter.u64_observable_gauge(names::UP).with_description(meaning);
        up.with_callback(move |observer| observer.observe(1, &version)).build();
    }

    fn counters(&self) {
        let simple: [Row<OfCounts>; 5] = [
            (names::LATE, |counts| &counts.late),
            (names::LEASES_EXTENDED, |counts| &counts.leases_extended),
            (names::LEASES_LOST, |counts| &counts.leases_lost),
            (names::REFUSED, |counts| &counts.refused),
            (names::MESSAGING_CLIENT_CONSUMED_MESSAGES, |counts| &counts.consumed),
        ];
        for (name, count) in simple {
            let received = name == names::MESSAGING_CLIENT_CONSUMED_MESSAGES;
            let operation = received.then(|| KeyValue::new(names::MESSAGING_OPERATION_NAME, "receive"));
            self.counter(name, move |consumer, take| {
                let attributes: Vec<_> = consumer.base().iter().cloned().chain(operation.clone()).collect();
                take(count(consumer.counts()).load(Ordering::Relaxed), &attributes);
            });
        }
        self.counter(names::PROCESSING_TIMEOUTS, |consumer, take| {
            let timed_out = consumer.counts().settled().filter(|(outcome, ..)| *outcome == OutcomeKind::TimedOut);
            take(timed_out.map(|(_, _, count)| count).sum(), consumer.base());
        });
        self.counter(names::KEYS, |consumer, take| {
            let counts = consumer.counts().keys.each_ref().map(|count| count.load(Ordering::Relaxed));
            // Consumers without idempotency have no such metric.
            if counts.iter().all(|count| *count == 0) {
                return;
            }
            for (result, count) in names::KEY_RESULTS.into_iter().zip(counts) {
                let result = KeyValue::new(names::KEY_RESULT, result);
                take(count, &consumer.base().iter().cloned().chain([result]).collect::<Vec<_>>());
            }
        });
        self.counter(names::SETTLED, |consumer, take| {
            for (outcome, disposition, count) in consumer.counts().settled() {
                if count > 0 || names::USUAL.contains(&(outcome, disposition)) {
                    let (outcome, disposition) =
                        (KeyValue::new(names::OUTCOME, outcome.name()), KeyValue::new(names::DISPOSITION, disposition));
                    let attributes: Vec<_> = consumer.base().iter().cloned().chain([outcome, disposition]).collect();
                    take(count, &attributes);
                }
            }
        });
    }

    fn boards(&self) {
        let simple: [Row<OfShown>; 3] = [
            (names::SLOTS, |shown| shown.slots),
            (names::SLOTS_BUSY, |shown| shown.busy),
            (names::IN_HAND, |shown| shown.in_hand),
        ];
        for (name, read) in simple {
            self.gauge(name, move |consumer, take| {
                if let Some(shown) = consumer.shown() {
                    take(read(&shown) as u64, consumer.base());
                }
            });
        }
        self.gauge(names::HEALTH_STATE, |consumer, take| {
            let Some(shown) = consumer.shown() else { return };
            for state in names::STATES {
                let attribute = KeyValue::new(names::STATE, state);
                let attributes: Vec<_> = consumer.base().iter().cloned().chain([attribute]).collect();
                take(u64::from(state == shown.state), &attributes);
            }
        });
    }

    fn queues(&self) {
        let counts: [Row<OfSeen>; 5] = [
            (names::QUEUE_VISIBLE, |seen| Some(seen.depths.visible)),
            (names::QUEUE_DELAYED, |seen| seen.depths.delayed),
            (names::QUEUE_IN_FLIGHT, |seen| seen.depths.in_flight),
            (names::QUEUE_DEAD_LETTERED, |seen| Some(seen.depths.dead_lettered)),
            // ECS does not tell a task the number of tasks in its service, so each task counts itself as the only one.
            (names::BACKLOG_PER_TASK, |seen| Some(seen.depths.visible)),
        ];
        for (name, read) in counts {
            self.gauge(name, move |consumer, take| {
                if let Some(count) = consumer.seen().and_then(|seen| read(&seen)) {
                    take(count, consumer.base());
                }
            });
        }
        let times: [Row<TimeOfSeen>; 3] = [
            (names::QUEUE_COUNTS_AGE, |seen| Some(seen.at.elapsed())),
            (names::QUEUE_OLDEST_AGE, |seen| seen.depths.oldest_age),
            (names::TIME_TO_DRAIN, |s| s.time_to_drain),
        ];
        for (name, read) in times {
            let consumers = Arc::clone(self.consumers);
            let (unit, meaning) = names::described(name);
            let gauge = self.meter.f64_observable_gauge(name).with_unit(unit).with_description(meaning);
            let gauge = gauge.with_callback(move |observer| {
                for consumer in consumers.iter() {
                    if let Some(time) = consumer.seen().as_ref().and_then(read) {
                        observer.observe(time.as_secs_f64(), consumer.base());
                    }
                }
            });
            gauge.build();
        }
    }

    fn counter(&self, name: &'static str, read: impl Read) {
        let (unit, meaning) = names::described(name);
        let counter = self.meter.u64_observable_counter(name).with_unit(unit).with_description(meaning);
        counter.with_callback(self.read_by(read)).build();
    }

    fn gauge(&self, name: &'static str, read: impl Read) {
        let (unit, meaning) = names::described(name);
        let gauge = self.meter.u64_observable_gauge(name).with_unit(unit).with_description(meaning);
        gauge.with_callback(self.read_by(read)).build();
    }

    /// Returns a callback that reads the values of all consumers.
    fn read_by(&self, read: impl Read) -> impl Fn(&dyn AsyncInstrument<u64>) + Send + Sync + 'static {
        let consumers = Arc::clone(self.consumers);
        move |observer| {
            let mut take = |value, attributes: &[KeyValue]| observer.observe(value, attributes);
            consumers.iter().for_each(|consumer| read(consumer, &mut take));
        }
    }
}

/// A function that reads the values of a consumer.
trait Read: Fn(&ConsumerMetrics, Take<'_>) + Send + Sync + 'static {}

impl<F: Fn(&ConsumerMetrics, Take<'_>) + Send + Sync + 'static> Read for F {}
