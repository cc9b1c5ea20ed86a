//! Metrics of the host. Starts the metrics, measures the calls to the consumers' queues, counts the messages of each queue at
//! intervals, and measures delays of the control thread. Does none of this if the config enables no exporter.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

use super::resources::Share;
use super::services::{JOBS_SYSTEM, Services};
use crate::exit::{Exit, Failure, Result};
use hostler_config::Config;
use hostler_consumer::StatusHandle;
use hostler_queue::{Admin, Broker, Depth, Queue};
use hostler_queue_telemetry::{MeteredBroker, MeteredQueue};
use hostler_telemetry::Resource;
use hostler_telemetry::metrics::{
    self, ConsumerMetrics, Depths, Exporters, HostMetrics, Metrics, Named, Shown, StartError,
};
use hostler_telemetry::traces::Traces;
use hostler_types::channel::Channel;

/// Interval between two counts of the queues, short enough for autoscaling. On SQS, the calls that count the messages of one
/// channel cost a few cents per month.
const LOOK: Duration = Duration::from_secs(30);

/// Maximum duration of one count.
const PATIENCE: Duration = Duration::from_secs(10);

/// Interval between two ticks of the control thread. Each tick measures its own delay.
const TICK: Duration = Duration::from_secs(1);

/// Running metrics and the tasks that feed them. Dropping this value stops both.
pub(super) struct Instrumentation {
    metrics: Metrics,
    looking: JoinSet<()>,
}

/// Returns the exporters that the config enables. Binds the address that Prometheus scrapes.
///
/// # Errors
/// Exit code 64 if the address cannot be bound.
pub(super) fn exporters(config: &Config) -> Result<Exporters> {
    let telemetry = &config.telemetry;
    let prometheus = telemetry.prometheus.map(metrics::listen).transpose().map_err(failure)?;
    Ok(Exporters { prometheus, otlp: telemetry.otlp_endpoint.clone(), emf: telemetry.emf })
}

impl Instrumentation {
    /// Starts the configured metrics. `None`: no exporter is enabled.
    ///
    /// # Errors
    /// Exit code 64 if a setting is invalid. Exit code 70 if a thread cannot be started.
    pub(super) fn start(exporters: Exporters, config: &Config, resource: &Resource) -> Result<Option<Self>> {
        let system = super::driver(config).system();
        let consumers = config.consumers.iter().map(|consumer| {
            let system = if consumer.job.is_some() { JOBS_SYSTEM } else { system };
            let (consumer, channel) = (consumer.name.clone(), consumer.source());
            Named { consumer, channel, system }
        });
        let metrics = Metrics::start(exporters, resource, consumers).map_err(failure)?;
        Ok(metrics.map(|metrics| Self { metrics, looking: JoinSet::new() }))
    }

    /// Returns the metrics of the consumer with this index in the config.
    pub(super) fn consumer(&self, place: usize) -> Option<ConsumerMetrics> {
        self.metrics.consumer(place)
    }

    /// Starts to observe the status and the queue of each consumer, and to measure delays of the control thread. Must be called
    /// within the control runtime.
    pub(super) fn watch(&mut self, config: &Config, services: &Services, boards: &[StatusHandle], shares: &[Share]) {
        let (mut queues, mut jobs) = (Vec::new(), Vec::new());
        for (place, ((consumer, board), share)) in config.consumers.iter().zip(boards).zip(shares).enumerate() {
            let Some(metrics) = self.consumer(place) else { continue };
            let (board, slots) = (board.clone(), share.slots);
            metrics.show(move || {
                let status = board.get();
                Shown { slots, busy: status.in_flight, in_hand: status.in_hand, state: status.state.name() }
            });
            if let Some(kind) = &consumer.job {
                jobs.push((kind.clone(), metrics));
            } else if consumer.has_channel() {
                // A subject has no depth.
                queues.push((consumer.channel.clone(), metrics));
            }
        }
        if let Some(service) = &services.queue {
            self.looking.spawn(look(service.clone(), queues));
        }
        #[cfg(feature = "jobs")]
        if let Some(service) = &services.jobs {
            self.looking.spawn(look_at_jobs(Arc::clone(service), jobs));
        }
        #[cfg(not(feature = "jobs"))]
        drop(jobs);
        self.looking.spawn(tick(self.metrics.host()));
    }

    /// Exports the remaining data. Stops at the deadline.
    pub(super) async fn end(self, deadline: Instant) {
        self.metrics.end(deadline).await;
    }
}

/// Wraps a consumer's queue to measure its calls. If `metrics` is `None`, returns the queue unchanged.
pub(super) fn queue(queue: Arc<dyn Queue>, metrics: Option<&ConsumerMetrics>) -> Arc<dyn Queue> {
    match metrics {
        Some(metrics) => Arc::new(MeteredQueue::new(queue, metrics.clone())),
        None => queue,
    }
}

/// Wraps the queue service to measure the calls for a consumer's replies and for messages from its guests. If `metrics` is
/// `None`, returns the service unchanged.
pub(super) fn broker(broker: &Arc<dyn Broker>, metrics: Option<&ConsumerMetrics>) -> Arc<dyn Broker> {
    match metrics {
        Some(metrics) => Arc::new(MeteredBroker::new(Arc::clone(broker), metrics.clone())),
        None => Arc::clone(broker),
    }
}

/// Counts the messages of each queue at intervals, forever. Reads each queue with a separate call. Therefore, an unreadable
/// queue does not affect the counts of the other queues.
async fn look(service: Arc<dyn Admin>, queues: Vec<(Channel, ConsumerMetrics)>) {
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        for (channel, metrics) in &queues {
            metrics.queue_seen(see(&*service, channel).await, Instant::now());
        }
    }
}

/// Counts the items of each type at intervals, forever.
#[cfg(feature = "jobs")]
async fn look_at_jobs(service: Arc<hostler_queue_jobs::JobService>, kinds: Vec<(String, ConsumerMetrics)>) {
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        for (kind, metrics) in &kinds {
            let seen = match service.depth(kind).await {
                Ok(depth) => Some(depths_of(&depth)),
                Err(error) => {
                    tracing::debug!(kind, %error, "cannot count the items of the type");
                    None
                }
            };
            metrics.queue_seen(seen, Instant::now());
        }
    }
}

pub(super) async fn see(service: &dyn Admin, channel: &Channel) -> Option<Depths> {
    let fault = match timeout(PATIENCE, service.depths(std::slice::from_ref(channel))).await {
        Ok(Ok(depths)) => return depths.first().map(depths_of),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no answer in time".to_owned(),
    };
    tracing::debug!(%channel, fault, "cannot count the messages of the queue");
    None
}

fn depths_of(depth: &Depth) -> Depths {
    let Depth { visible, delayed, in_flight, dead_lettered, missing: _, oldest_age } = *depth;
    Depths { visible, delayed, in_flight, dead_lettered, oldest_age }
}

async fn tick(metrics: HostMetrics) {
    let mut due = Instant::now() + TICK;
    loop {
        sleep_until(due).await;
        let now = Instant::now();
        metrics.ticked(now - due);
        due = now + TICK;
    }
}

pub(super) fn failure(error: StartError) -> Failure {
    let exit = match error {
        StartError::Config(_) => Exit::BadConfig,
        StartError::Machine(_) => Exit::Internal,
    };
    Failure::new(exit, error)
}

/// Starts the export of spans. `None`: the config has no endpoint, or the export cannot start. In both cases, messages are processed
/// without spans.
pub(super) fn traces(config: &Config, resource: &Resource) -> Option<Traces> {
    let endpoint = config.telemetry.otlp_endpoint.as_deref()?;
    Traces::start(endpoint, resource).unwrap_or_else(|error| {
        tracing::error!(error, "cannot start tracing; no spans are exported");
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostler_queue::ChannelSpec;
    use hostler_queue::fake::FakeBroker;

    #[test]
    fn the_words_of_states_and_dispositions_are_those_of_the_metrics() {
        use hostler_types::State;
        let states =
            [State::Initializing, State::Initialized, State::Listening, State::Processing, State::Idle, State::Exiting];
        assert_eq!(states.map(State::name), metrics::names::STATES);
        use hostler_consumer::Disposition;
        let dispositions = [
            Disposition::Ack,
            Disposition::DeadLetter(String::new()),
            Disposition::Release(Duration::ZERO),
            Disposition::None,
        ];
        assert_eq!(dispositions.each_ref().map(Disposition::name), metrics::names::DISPOSITIONS);
    }

    #[tokio::test]
    async fn a_queue_is_seen_as_it_is() {
        let broker = FakeBroker::default();
        let channel: Channel = "work".parse().unwrap();
        broker.open(&ChannelSpec::new(channel.clone())).await.unwrap();
        let sent = broker.send(&channel, vec![Default::default(), Default::default()]).await;
        assert!(sent.iter().all(std::result::Result::is_ok));
        assert_eq!(see(&broker, &channel).await.map(|depths| depths.visible), Some(2));
    }
}
