//! Values that are read at each collection: counters, states of the consumers, and the last counts of their queues.

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

/// Name, unit, description and read function of a metric.
type Row<F> = (&'static str, &'static str, &'static str, F);

/// Read functions for a counter, a consumer's state, and the last counts of a queue.
type OfCounts = fn(&Counts) -> &AtomicU64;
type OfShown = fn(&Shown) -> usize;
type OfSeen = fn(&Seen) -> u64;
type TimeOfSeen = fn(&Seen) -> Option<Duration>;

/// Receives a value and its attributes.
type Take<'a> = &'a mut dyn FnMut(u64, &[KeyValue]);

/// Creates the instruments.
pub(super) fn register(meter: &Meter, consumers: &Consumers) {
    let watch = Watch { meter, consumers };
    watch.host();
    watch.counters();
    watch.boards();
    watch.queues();
    watch.gauge(
        names::MEMORY_PEAK,
        "By",
        "Most linear memory that a guest has had since the start",
        |consumer, take| {
            consumer.peak().into_iter().for_each(|peak| take(peak, consumer.base()));
        },
    );
}

struct Watch<'a> {
    meter: &'a Meter,
    consumers: &'a Consumers,
}

impl Watch<'_> {
    fn host(&self) {
        let version = [KeyValue::new(names::SERVICE_VERSION, env!("CARGO_PKG_VERSION"))];
        let up = self.meter.u64_observable_gauge(names::UP).with_description("1 while the host runs");
        up.with_callback(move |observer| observer.observe(1, &version)).build();
    }

    fn counters(&self) {
        let simple: [Row<OfCounts>; 4] = [
            (names::LATE, "{message}", "Messages beyond the delay tolerance when they started", |counts| &counts.late),
            (names::LEASES_EXTENDED, "{lease}", "Leases extended", |counts| &counts.leases_extended),
            (names::LEASES_LOST, "{lease}", "Leases lost", |counts| &counts.leases_lost),
            (names::MESSAGING_CLIENT_CONSUMED_MESSAGES, "{message}", "Messages received", |counts| &counts.consumed),
        ];
        for (name, unit, meaning, count) in simple {
            let received = name == names::MESSAGING_CLIENT_CONSUMED_MESSAGES;
            let operation = received.then(|| KeyValue::new(names::MESSAGING_OPERATION_NAME, "receive"));
            self.counter(name, unit, meaning, move |consumer, take| {
                let attributes: Vec<_> = consumer.base().iter().cloned().chain(operation.clone()).collect();
                take(count(consumer.counts()).load(Ordering::Relaxed), &attributes);
            });
        }
        self.counter(names::PROCESSING_TIMEOUTS, "{timeout}", "Handlers stopped at their timeout", |consumer, take| {
            let timed_out = consumer.counts().settled().filter(|(outcome, ..)| *outcome == OutcomeKind::TimedOut);
            take(timed_out.map(|(_, _, count)| count).sum(), consumer.base());
        });
        self.counter(
            names::SETTLED,
            "{message}",
            "Messages that are over, by what became of them",
            |consumer, take| {
                for (outcome, disposition, count) in consumer.counts().settled() {
                    if count > 0 || names::USUAL.contains(&(outcome, disposition)) {
                        let (outcome, disposition) = (
                            KeyValue::new(names::OUTCOME, outcome.name()),
                            KeyValue::new(names::DISPOSITION, disposition),
                        );
                        let attributes: Vec<_> =
                            consumer.base().iter().cloned().chain([outcome, disposition]).collect();
                        take(count, &attributes);
                    }
                }
            },
        );
    }

    fn boards(&self) {
        let simple: [Row<OfShown>; 3] = [
            (names::SLOTS, "{slot}", "Messages that can be processed at once", |shown| shown.slots),
            (names::SLOTS_BUSY, "{slot}", "Messages whose handler runs", |shown| shown.busy),
            (names::IN_HAND, "{message}", "Messages that are taken and not over", |shown| shown.in_hand),
        ];
        for (name, unit, meaning, read) in simple {
            self.gauge(name, unit, meaning, move |consumer, take| {
                consumer.shown().into_iter().for_each(|shown| take(read(&shown) as u64, consumer.base()));
            });
        }
        self.gauge(names::HEALTH_STATE, "", "1 for the state that the consumer is in", |consumer, take| {
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
            (names::QUEUE_VISIBLE, "{message}", "Messages ready to be received", |seen| seen.depths.visible),
            (names::QUEUE_DELAYED, "{message}", "Messages whose delay has not passed", |seen| seen.depths.delayed),
            (names::QUEUE_IN_FLIGHT, "{message}", "Messages that are leased", |seen| seen.depths.in_flight),
            (names::QUEUE_DEAD_LETTERED, "{message}", "Messages in the dead-letter queue", |seen| {
                seen.depths.dead_lettered
            }),
            // A task cannot find out from ECS how many tasks its service has, so each task counts itself as the only one.
            (names::BACKLOG_PER_TASK, "{message}", "Messages ready to be received, per task", |seen| {
                seen.depths.visible
            }),
        ];
        for (name, unit, meaning, read) in counts {
            self.gauge(name, unit, meaning, move |consumer, take| {
                consumer.seen().into_iter().for_each(|seen| take(read(&seen), consumer.base()));
            });
        }
        let times: [Row<TimeOfSeen>; 3] = [
            (names::QUEUE_COUNTS_AGE, "s", "Time since the queue's counts were read", |seen| Some(seen.at.elapsed())),
            (names::QUEUE_OLDEST_AGE, "s", "Age of the oldest message", |seen| seen.depths.oldest_age),
            (names::TIME_TO_DRAIN, "s", "Time that the queue takes at the rate of the last minute", |s| {
                s.time_to_drain
            }),
        ];
        for (name, unit, meaning, read) in times {
            let consumers = Arc::clone(self.consumers);
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

    fn counter(&self, name: &'static str, unit: &'static str, meaning: &'static str, read: impl Read) {
        let counter = self.meter.u64_observable_counter(name).with_unit(unit).with_description(meaning);
        counter.with_callback(self.read_by(read)).build();
    }

    fn gauge(&self, name: &'static str, unit: &'static str, meaning: &'static str, read: impl Read) {
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

/// Reads the values of a consumer.
trait Read: Fn(&ConsumerMetrics, Take<'_>) + Send + Sync + 'static {}

impl<F: Fn(&ConsumerMetrics, Take<'_>) + Send + Sync + 'static> Read for F {}
