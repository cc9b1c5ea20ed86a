//! The process of `hostler retry`: assembles the retry service out of the config, and ends it in order.

mod background;
mod observer;

use std::cell::OnceCell;
use std::io::IsTerminal as _;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use super::hardening::Hardening;
use super::health_reporter::{HealthReporter, LinkSlot, Watched};
use super::instrumentation::{exporters, failure};
use super::resources::Machine;
use super::signals::{HangUp, Signals};
use super::{PANICKED, internal, logged, resources};
use crate::exit::{Exit, Failure, Result};
use background::{count, measure, pass_on_news, pass_on_pauses, start_adoption};
use hostler_config::{self as config, Config, Driver, Expired, LogFormat, RetryBackoff, RetryService};
use hostler_consumer::{Requests, StatusHandle};
use hostler_retry::engine::{Engine, Plan};
use hostler_retry::nats::Connection;
use hostler_retry::scheduler::{self, Rules};
use hostler_retry::settings::{Defaults, Growth, Priority, Settings};
use hostler_retry::stores::{self, Adopter, Claimed, Names, QUEUE};
use hostler_retry::targets::Targets;
use hostler_telemetry::metrics::{Exporters, Metrics, Named};
use hostler_telemetry::{self as telemetry, Resource};
use hostler_types::channel::Channel;
use hostler_types::{Backoff, State};
use observer::Watch;

/// Name of the service in the health file, in logs and in metrics, and of the queue of its default priority.
const NAME: &str = "retry";

/// Threads of the runtime: one for the engine, one for the client of NATS.
const THREADS: usize = 2;

/// Shortest wait until the files are closed.
const CLOSE: Duration = Duration::from_millis(500);

/// Shortest and longest interval between two looks for stores of dead instances.
const ADOPT_SOONEST: Duration = Duration::from_millis(100);
const ADOPT: Duration = Duration::from_secs(10);

/// Part of the grace, for the last messages to NATS and to close the files, after the last answer was awaited.
const LAST: Duration = Duration::from_secs(3);

/// Waits for a subject to which nobody listens.
const SILENCE: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// Number of messages in memory, and of their bytes, of all priorities together.
const WINDOW: usize = 48_000;
const WINDOW_BYTES: usize = 64 << 20;

/// Number of waiting messages of one subject and priority in memory.
const LANE: usize = 512;

/// Number of bytes of messages that wait to be stored.
const INCOMING: usize = 64 << 20;

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

/// Returns why no command may take messages from a channel: a running retry service has them in memory, and delivers them
/// nevertheless. `None`: commands may.
pub fn scheduled(config: &Config, channel: &Channel) -> Option<String> {
    let of_service = channel.queue().strip_prefix(NAME).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
    let is_scheduled = config.queue.driver == Driver::Embedded
        && of_service
        && channel.of_dead_letters().is_none()
        && stores::is_in_use(&config.queue.embedded.path);
    is_scheduled.then(|| {
        format!("a running `hostler retry` delivers the messages of {channel}\n  cure: stop it first; `hostler peek {channel}` only looks")
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
        let names = names(&self.service)?;
        let Claimed { store, broker, queues } = self.claim(names.clone()).await?;
        let broker = Arc::new(broker);
        let named = Named { consumer: NAME.to_owned(), channel: NAME.to_owned(), system: "nats" };
        let metrics = Metrics::start(exporters, &Resource::new(), [named]).map_err(failure)?;
        let counted = metrics.as_ref().and_then(|metrics| metrics.consumer(0));
        let observer = Watch::new(self.board.clone(), counted.clone(), self.service.in_flight);
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
        let mut engine = Engine::open(plan(&self.service), queues.clone(), outbox, observer).await?;
        if *self.pause.borrow() {
            engine.pause();
        }
        tracing::info!(subject, store = %store.id(), "the retry service takes messages");
        self.board.update(Instant::now(), |status| status.state = State::Listening);

        let store = Arc::new(store);
        let mut beside = JoinSet::new();
        beside.spawn(pass_on_pauses(self.pause.subscribe(), self.board.clone(), events.clone()));
        beside.spawn(measure(Arc::clone(&store), queues.clone(), self.service.max_store, events.clone()));
        if let Some(counted) = counted {
            beside.spawn(count(Arc::clone(&store), queues, names.clone(), counted));
        }
        let (tell, news) = mpsc::unbounded_channel();
        beside.spawn(pass_on_news(news, events));
        let adopting = CancellationToken::new();
        let adopter = Adopter::new(Arc::clone(&store), Arc::clone(&broker), names, self.service.adopt_after);
        let pause = (self.service.adopt_after / 2).clamp(ADOPT_SOONEST, ADOPT);
        let adoption = start_adoption(adopter, pause, tell, adopting.clone()).map_err(internal)?;
        let (deadline, end) = (CancellationToken::new(), OnceCell::new());
        let ending = self.drain([stop, adopting.clone()], &deadline, &end);
        let abandoned = tokio::select! {
            abandoned = engine.run(&mut inbox, &self.signals.drain, &deadline) => abandoned,
            () = ending => 0,
        };
        // All that follows shares what is left of the grace.
        let last = Instant::now() + LAST;
        let last = end.get().map_or(last, |over| last.min(*over));
        adopting.cancel();
        drop((engine, inbox));
        beside.shutdown().await;
        let _ = timeout_at(last, adoption).await;
        let _ = timeout_at(last, connection.end()).await;
        if let Some(metrics) = metrics {
            metrics.end(last).await;
        }
        drop(broker);
        // Before the lock is released.
        hostler_queue_embedded::close(last.saturating_duration_since(Instant::now()).max(CLOSE));
        drop(store);
        tracing::info!(abandoned, "drained");
        Ok(if abandoned > 0 { Exit::Abandoned } else { Exit::Ok })
    }

    /// Waits for the first signal, and then begins the drain: cancels `ended`, sets the end of the grace, and cancels `deadline`
    /// when it is time for the last steps. Never returns.
    async fn drain(&self, ended: [CancellationToken; 2], deadline: &CancellationToken, end: &OnceCell<Instant>) {
        self.signals.drain.cancelled().await;
        let grace = self.config.host.shutdown_grace;
        let over = Instant::now() + grace;
        tracing::info!(reason = "signal", grace = %humantime::format_duration(grace), "draining");
        self.board.update(Instant::now(), |status| status.state = State::Exiting);
        let _ = end.set(over);
        ended.iter().for_each(CancellationToken::cancel);
        sleep_until(over.checked_sub(LAST).unwrap_or(over)).await;
        deadline.cancel();
        std::future::pending::<()>().await;
    }

    /// Claims a store. The work is on a thread of its own, because a network file system may block for long.
    async fn claim(&self, names: Names) -> Result<Claimed> {
        let (folder, runtime) = (self.service.store.clone(), Handle::current());
        let claimed = spawn_blocking(move || runtime.block_on(stores::claim(&folder, &names))).await;
        claimed.map_err(internal)?.map_err(|error| Failure::new(Exit::QueueUnreachable, error))
    }
}

fn unreachable(error: String) -> Failure {
    Failure::new(Exit::QueueUnreachable, format!("cannot use the NATS server of `retry.nats`: {error}"))
}

/// Returns the queues of a store. That of the default priority has the name of the service, so that an operator's
/// `hostler requeue --to retry` reaches it.
fn names(service: &RetryService) -> Result<Names> {
    Ok(Names {
        priorities: channels(service)?,
        default: NAME.parse().map_err(internal)?,
        dead_letters: format!("{NAME}-dlq").parse().map_err(internal)?,
    })
}

/// Returns the channels of the priorities, the greatest weight first. That of the default priority has the name of the
/// service, so that an operator's `hostler requeue --to retry` reaches it.
fn channels(service: &RetryService) -> Result<Vec<Channel>> {
    let name = |(priority, _): &(String, u32)| {
        if *priority == service.priority { NAME.to_owned() } else { format!("{NAME}-{priority}") }
    };
    service.priorities.iter().map(|priority| name(priority).parse().map_err(internal)).collect()
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
        targets: Targets::new(&service.subject, service.targets.clone()),
        defaults: Defaults { settings, priorities },
        rules,
        ack_timeout: service.ack_timeout,
        longest_wait: service.longest_wait,
        max_incoming: INCOMING,
    }
}
