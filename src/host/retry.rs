//! The process of `hostler retry`: assembles the retry service out of the config, and ends it in order.

use std::io::IsTerminal as _;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::hardening::Hardening;
use super::health_reporter::{HealthReporter, LinkSlot, Watched};
use super::instrumentation::{exporters, failure, see};
use super::resources::Machine;
use super::signals::{HangUp, Signals};
use super::{PANICKED, internal, logged, resources};
use crate::exit::{Exit, Failure, Result};
use hostler_config::{self as config, Config, Driver, Expired, LogFormat, RetryBackoff, RetryService};
use hostler_consumer::{Failed, Requests, StatusHandle};
use hostler_queue::Admin;
use hostler_queue_embedded::{EmbeddedBroker, Sharing};
use hostler_retry::engine::{Ended, Engine, Event, Observer, Plan};
use hostler_retry::nats::Connection;
use hostler_retry::scheduler::{self, Rules};
use hostler_retry::settings::{Defaults, Growth, Priority, Settings};
use hostler_retry::stores::{self, QUEUE, Store};
use hostler_telemetry::metrics::{ConsumerMetrics, Depths, Ending, Exporters, Metrics, Named, Shown};
use hostler_telemetry::{self as telemetry, Resource};
use hostler_types::channel::Channel;
use hostler_types::{Backoff, State};

/// Name of the service in the health file, in logs and in metrics, and of the queue of its default priority.
const NAME: &str = "retry";

/// Threads of the runtime: one for the engine, one for the client of NATS.
const THREADS: usize = 2;

/// Interval between two looks for stores of dead instances.
const ADOPT: Duration = Duration::from_secs(10);

/// Interval between two counts of the store, for metrics.
const COUNT: Duration = Duration::from_secs(30);

/// Longest wait for the last messages to NATS, and for the files to be closed.
const LAST: Duration = Duration::from_secs(2);

/// Waits for a subject to which nobody listens.
const SILENCE: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// Number of messages in memory, and of their bytes, of all priorities together.
const WINDOW: usize = 48_000;
const WINDOW_BYTES: usize = 64 << 20;

/// Number of waiting messages of one subject and priority in memory.
const LANE: usize = 512;

/// Number of bytes of messages that wait to be stored.
const INCOMING: usize = 64 << 20;

/// A message that is delivered so long after it was due counts as late.
const LATE: Duration = Duration::from_secs(1);

/// Makes commands look into the store of the retry service, if the config has one but no queue. Returns a note for the
/// user. `None`: the config is left as it is.
pub fn look_into_store(config: &mut Config) -> Option<String> {
    let service = config.retry.as_ref()?;
    let has_queue = !config.consumers.is_empty() || config.queue.embedded.path.exists();
    if has_queue || config.queue.driver != Driver::Embedded {
        return None;
    }
    let mut stores = hostler_retry::stores::queues(&service.store).ok()?;
    let others = stores.len().checked_sub(2);
    config.queue.embedded.path = stores.pop()?;
    let path = config.queue.embedded.path.display();
    others.map(|others| {
        let others = others + 1;
        format!("this is {path}; {others} other stores are in the folder: set HOSTLER_QUEUE__EMBEDDED__PATH to see one")
    })
}

/// Runs the retry service until a signal stops it. `file`: path of the config if the user named one.
///
/// # Errors
/// The service cannot start. The book documents the exit code for each reason.
pub fn retry(file: Option<&Path>) -> Result {
    // Must come first: PID 1 ignores every signal without a handler.
    let signals = Signals::install(None, Some(HangUp::of_process()))
        .map_err(|error| resources::too_few_threads("its thread for signals", &error))?;
    let loaded = config::load(file, std::env::vars_os()).map_err(|error| Failure::new(Exit::BadConfig, error))?;
    let Some(service) = loaded.config.retry.clone() else {
        let text = "the config has no retry service: set `retry.nats` to the address of the NATS server";
        return Err(Failure::new(Exit::BadConfig, text));
    };
    // Must run before any other thread starts, because new threads inherit the restrictions.
    let hardening = Hardening::enforce(&hardened(&loaded.config, &service), &Machine::measure());
    let log = loaded.config.telemetry.log.unwrap_or_else(|| LogFormat::usual(std::io::stderr().is_terminal()));
    let mut logs = telemetry::start(match log {
        LogFormat::Json => telemetry::Form::Json,
        LogFormat::Text => telemetry::Form::Text,
    });
    signals.change_verbosity(logs.verbosity());
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    if let Err(failure) = hardening {
        return Ok(logged(&failure));
    }
    let exporters = match exporters(&loaded.config) {
        Ok(exporters) => exporters,
        Err(failure) => return Ok(logged(&failure)),
    };
    let runtime = Builder::new_multi_thread().worker_threads(THREADS).enable_all().build().map_err(internal)?;
    let host = RetryHost::new(loaded.config, service, signals);
    let result = panic::catch_unwind(AssertUnwindSafe(|| runtime.block_on(host.run(exporters))));
    runtime.shutdown_background();
    result.unwrap_or_else(|_| Err(internal(PANICKED)))
}

/// Returns a config that names the files of the service: the stores are its only queue, and there are no handlers.
fn hardened(config: &Config, service: &RetryService) -> Config {
    let mut config = Config { consumers: Vec::new(), ..config.clone() };
    config.queue.driver = Driver::Embedded;
    config.queue.embedded.path = service.store.join(QUEUE);
    config
}

struct RetryHost {
    config: Config,
    service: RetryService,
    signals: Signals,
    board: StatusHandle,
    transitions: Arc<Notify>,
    pause: watch::Sender<bool>,
    link: LinkSlot,
}

impl RetryHost {
    fn new(config: Config, service: RetryService, signals: Signals) -> Self {
        let transitions = Arc::new(Notify::new());
        let board = StatusHandle::new(Arc::clone(&transitions), Arc::default());
        Self {
            config,
            service,
            signals,
            board,
            transitions,
            pause: watch::Sender::new(false),
            link: LinkSlot::default(),
        }
    }

    async fn run(self, exporters: Exporters) -> Result {
        let watched = Watched {
            name: NAME.to_owned(),
            healthcheck_timeout: (self.service.ack_timeout + Duration::from_secs(30)).max(Duration::from_secs(90)),
            shutdown_grace: self.config.host.shutdown_grace,
            board: self.board.clone(),
            pause: self.pause.clone(),
            requests: Requests::default(),
        };
        let path = &self.config.host.health_file;
        let transitions = Arc::clone(&self.transitions);
        let reporter = HealthReporter::start(path, vec![watched], Arc::clone(&self.link), transitions);
        let reporter = reporter.map_err(|error| internal(format!("cannot start the health thread: {error}")))?;
        let result = match self.serve(exporters).await {
            Ok(exit) => Ok(exit),
            Err(failure) => Ok(logged(&failure)),
        };
        reporter.stop().await;
        result
    }

    async fn serve(&self, exporters: Exporters) -> Result {
        let store = self.claim()?;
        let broker = Arc::new(stores::open(&store.queue())?);
        let channels = channels(&self.service)?;
        let owned = broker.own(&channels, &dead_letters()?).await?;
        let named = Named { consumer: NAME.to_owned(), channel: NAME.to_owned(), system: "nats" };
        let metrics = Metrics::start(exporters, &Resource::new(), [named]).map_err(failure)?;
        let counted = metrics.as_ref().and_then(|metrics| metrics.consumer(0));
        let observer = Watch::new(self.board.clone(), counted.clone(), self.service.in_flight);
        let unreachable = |error: String| {
            let text = format!("cannot use the NATS server of `retry.nats`: {error}");
            Failure::new(Exit::QueueUnreachable, text)
        };
        let connect = async { Connection::open(self.service.nats.expose()).await.map_err(unreachable) };
        let connected = tokio::select! {
            connected = connect => connected?,
            () = self.signals.drain.cancelled() => return Ok(Exit::Ok),
        };
        let (mut connection, mut inbox) = connected;
        let events = connection.events();
        self.link.get_or_init(|| connection.link());
        let stop = CancellationToken::new();
        let (subject, group) = (&self.service.subject, &self.service.queue_group);
        let outbox = connection.serve(subject, group, stop.clone()).await.map_err(unreachable)?;
        let mut engine = Engine::open(plan(&self.service), owned, outbox, observer).await?;
        tracing::info!(subject, store = %store.id(), "the retry service takes messages");
        self.board.update(Instant::now(), |status| status.state = State::Listening);

        let mut beside = JoinSet::new();
        beside.spawn(pass_on_pauses(self.pause.subscribe(), self.board.clone(), events.clone()));
        if let Some(counted) = counted {
            // A connection of its own, because a count of millions of messages takes a while.
            let counting = match Sharing::at(&self.service.store) {
                Sharing::Processes => Arc::new(EmbeddedBroker::open_to_look(&store.queue())?),
                Sharing::None => Arc::clone(&broker),
            };
            beside.spawn(count(counting, channels, counted));
        }
        let adopting = CancellationToken::new();
        let store = Arc::new(store);
        let adoption = tokio::spawn(adopt(Arc::clone(&store), Arc::clone(&broker), events, adopting.clone()));
        let deadline = CancellationToken::new();
        let ending = async {
            self.signals.drain.cancelled().await;
            let grace = self.config.host.shutdown_grace;
            tracing::info!(reason = "signal", grace = %humantime::format_duration(grace), "draining");
            self.board.update(Instant::now(), |status| status.state = State::Exiting);
            stop.cancel();
            adopting.cancel();
            sleep(grace.saturating_sub(LAST)).await;
            deadline.cancel();
            std::future::pending::<()>().await;
        };
        let abandoned = tokio::select! {
            abandoned = engine.run(&mut inbox, &self.signals.drain, &deadline) => abandoned,
            () = ending => 0,
        };
        drop((engine, inbox));
        beside.shutdown().await;
        let _ = timeout(LAST, adoption).await;
        let _ = timeout(LAST, connection.end()).await;
        if let Some(metrics) = metrics {
            metrics.end(Instant::now() + LAST).await;
        }
        drop(broker);
        // Before the lock is released.
        hostler_queue_embedded::close(LAST);
        drop(store);
        tracing::info!(abandoned, "drained");
        Ok(if abandoned > 0 { Exit::Abandoned } else { Exit::Ok })
    }

    fn claim(&self) -> Result<Store> {
        Store::claim(&self.service.store).map_err(|error| {
            let folder = self.service.store.display();
            let text =
                format!("retry.store: cannot use the folder {folder}: {error}; it must be writable for this user");
            Failure::new(Exit::QueueUnreachable, text)
        })
    }
}

/// Returns the channels of the priorities, the greatest weight first. That of the default priority has the name of the
/// service, so that an operator's `hostler requeue --to retry` reaches it.
fn channels(service: &RetryService) -> Result<Vec<Channel>> {
    let name = |(priority, _): &(String, u32)| {
        if *priority == service.priority { NAME.to_owned() } else { format!("{NAME}-{priority}") }
    };
    service.priorities.iter().map(|priority| name(priority).parse().map_err(internal)).collect()
}

fn dead_letters() -> Result<Channel> {
    format!("{NAME}-dlq").parse().map_err(internal)
}

fn plan(service: &RetryService) -> Plan {
    let priority = |(name, weight): &(String, u32)| Priority { name: name.clone(), weight: *weight };
    let priorities: Vec<_> = service.priorities.iter().map(priority).collect();
    let settings = Settings {
        retries: service.retries,
        ttl: service.ttl,
        delay: service.delay,
        backoff: match service.backoff {
            RetryBackoff::Fixed => Growth::Fixed,
            RetryBackoff::Exponential => Growth::Exponential,
        },
        base: service.base,
        max: service.max,
        priority: priorities.iter().position(|priority| priority.name == service.priority).unwrap_or(0),
    };
    let rules = Rules {
        weights: priorities.iter().map(|priority| priority.weight).collect(),
        in_flight: service.in_flight,
        in_flight_per_subject: service.in_flight_per_subject,
        expired: match service.expired {
            Expired::Drop => scheduler::Expired::Drop,
            Expired::DeadLetter => scheduler::Expired::DeadLetter,
        },
        silence: SILENCE,
        window: WINDOW / priorities.len(),
        window_bytes: WINDOW_BYTES / priorities.len(),
        lane: LANE,
    };
    Plan {
        subject: service.subject.clone(),
        defaults: Defaults { settings, priorities },
        rules,
        ack_timeout: service.ack_timeout,
        max_incoming: INCOMING,
    }
}

/// Passes the pauses of operators on to the engine.
async fn pass_on_pauses(mut pause: watch::Receiver<bool>, board: StatusHandle, events: mpsc::Sender<Event>) {
    loop {
        let is_paused = *pause.borrow_and_update();
        board.update(Instant::now(), |status| status.paused = is_paused);
        if events.send(Event::Pause(is_paused)).await.is_err() || pause.changed().await.is_err() {
            return;
        }
    }
}

/// Adopts the stores of dead instances, again and again.
async fn adopt(store: Arc<Store>, own: Arc<EmbeddedBroker>, events: mpsc::Sender<Event>, stop: CancellationToken) {
    loop {
        let mut moved = |messages: usize| {
            if messages > 0 {
                // If the engine has no room for the event, it has the next one.
                let _ = events.try_send(Event::Adopted);
            }
        };
        match store.adopt(&own, &|| !stop.is_cancelled(), &mut moved).await {
            Ok(adopted) if adopted.messages > 0 => {
                tracing::info!(stores = adopted.stores, messages = adopted.messages, "adopted messages");
                let _ = events.send(Event::Adopted).await;
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "cannot look for the stores of other instances"),
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep(ADOPT) => {}
        }
    }
}

/// Counts the messages of the store at intervals, forever.
async fn count(broker: Arc<EmbeddedBroker>, channels: Vec<Channel>, metrics: ConsumerMetrics) {
    let mut counts = interval(COUNT);
    counts.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        counts.tick().await;
        let mut total: Option<Depths> = None;
        for channel in &channels {
            let Some(depths) = see(&*broker as &dyn Admin, channel).await else { continue };
            total = Some(match total {
                None => depths,
                Some(so_far) => Depths {
                    visible: so_far.visible + depths.visible,
                    delayed: so_far.delayed.zip(depths.delayed).map(|(a, b)| a + b),
                    in_flight: so_far.in_flight,
                    dead_lettered: so_far.dead_lettered + depths.dead_lettered,
                    oldest_age: so_far.oldest_age.max(depths.oldest_age),
                },
            });
        }
        metrics.queue_seen(total, Instant::now());
    }
}

/// Feeds the health file and the metrics.
struct Watch {
    board: StatusHandle,
    metrics: Option<ConsumerMetrics>,
    shown: (usize, bool),
}

impl Watch {
    fn new(board: StatusHandle, metrics: Option<ConsumerMetrics>, slots: usize) -> Self {
        if let Some(metrics) = &metrics {
            let board = board.clone();
            metrics.show(move || {
                let status = board.get();
                Shown { slots, busy: status.in_flight, in_hand: status.in_hand, state: status.state.name() }
            });
        }
        Self { board, metrics, shown: (0, false) }
    }
}

impl Observer for Watch {
    fn stores(&mut self) {
        if let Some(metrics) = &self.metrics {
            metrics.consumed(1);
        }
    }

    fn delivers(&mut self, late: Duration) {
        if let Some(metrics) = &self.metrics {
            metrics.started(late, late > LATE);
        }
    }

    fn ended(&mut self, ended: Ended<'_>) {
        let Ended { id, outcome, disposition, attempt, reason } = ended;
        let (now, is_failure) = (Instant::now(), !outcome.is_success());
        self.board.update(now, |status| {
            status.processed += 1;
            status.failed += u64::from(is_failure);
        });
        if is_failure {
            let reason = reason[..reason.floor_char_boundary(256)].to_owned();
            let (message_id, outcome) = (id.to_owned(), outcome.name());
            self.board.failed(Failed { at: now, message_id, outcome, disposition, reason });
        }
        if let Some(metrics) = &self.metrics {
            metrics.ended(Ending { outcome, disposition, attempt, ran_for: None });
        }
    }

    fn turned(&mut self, is_ok: bool) {
        if is_ok {
            self.board.update(Instant::now(), |status| status.last_poll_at = Some(Instant::now()));
        }
    }

    fn flying(&mut self, count: usize, oldest: Option<Duration>) {
        let shown = (count, self.board.get().paused);
        if count == 0 && self.shown == shown {
            return;
        }
        self.shown = shown;
        let now = Instant::now();
        self.board.update(now, |status| {
            (status.in_flight, status.in_hand) = (count, count);
            status.oldest_started_at = oldest.and_then(|oldest| now.checked_sub(oldest));
            status.state = match status.state {
                State::Exiting => State::Exiting,
                _ if count > 0 => State::Processing,
                State::Processing => State::Idle,
                state => state,
            };
        });
    }
}
