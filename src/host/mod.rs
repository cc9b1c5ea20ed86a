//! The host: the process of `hostler run`, from the installation of the signal handlers to the exit code.

mod assemble;
mod connect;
mod drain;
mod drivers;
mod ecs;
mod grant_conflicts;
mod guests;
mod handlers;
mod hard_links;
pub mod hardening;
mod health_reporter;
mod hung_files;
mod instrumentation;
#[cfg(feature = "jobs")]
mod jobs;
mod kernel_files;
mod loading;
mod located;
mod mounts;
mod records;
mod requests;
pub mod resources;
#[cfg(feature = "retry")]
mod retry;
mod schedules;
mod secrets;
mod services;
mod signals;
mod trail;

pub use assemble::{channel_spec, config_warnings, destinations, file_plan, plan, pool, scheduled_destinations};
pub use connect::{declare, file_to_come, full, unscheduled, unsendable};
#[cfg(feature = "sqs")]
pub use drivers::sqs_options;
pub use drivers::{QueueDriver, close_all, driver};
pub use ecs::Metadata;
pub use grant_conflicts::{check_grants, check_grants_of_queue};
pub use guests::{Guests, Shared, sets, too_few_processes};
pub use handlers::{all, cache, definitions, fetch};
#[cfg(feature = "jobs")]
pub use jobs::{check_applets, check_jobs, migrate as migrate_jobs, open as open_jobs, serve_jobs};
pub use records::stores;
#[cfg(feature = "retry")]
pub use retry::{look_into_store, retry, scheduled};
pub use secrets::Secrets;
#[cfg(feature = "jobs")]
pub use services::connect_to_jobs;
pub use services::{needs_jobs, needs_queue};
pub use signals::{EndStep, Ending, end_with};

use std::io::IsTerminal as _;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::exit::{Exit, Failure, Result};
use connect::check_destinations;
use drain::{drain, report, until_stop};
use ecs::Ecs;
use hardening::Hardening;
use health_reporter::{HealthReporter, LinkSlot, Watched};
use hostler_config::{self as config, Config, LogFormat};
use hostler_consumer::{Consumer, Phase, Requests, StatusHandle, Summary};
use hostler_handler::Pools;
use hostler_queue::{Broker, QueueError};
use hostler_queue_telemetry::{Producer, Replies};
use hostler_telemetry::metrics::Exporters;
use hostler_telemetry::traces::Traces;
use hostler_telemetry::{self as telemetry, Resource};
use hostler_types::State;
use hostler_wasm::cache::Cache;
use hostler_wasm::{self as handler, Definition, Engine, Loaded};
use instrumentation::Instrumentation;
use loading::Loading;
use records::RecordStores;
use resources::{FilePlan, Machine, Threads};
use schedules::{Scheduler, Scheduling};
use services::Services;
use signals::{HangUp, Signals};

/// Maximum time to wait for the export of the last spans at the end of the process. The wait ends earlier if `shutdown_grace`
/// ends earlier.
const FLUSH: Duration = Duration::from_secs(1);

/// Returns a token that the first SIGTERM or SIGINT cancels. The first signal also prints a notice on standard error. The second
/// signal ends the process immediately with exit code 128 + signal number.
///
/// # Errors
/// The signal handlers cannot be installed.
pub fn stop_on_signal() -> std::io::Result<CancellationToken> {
    Signals::install(Some("finishing what is under way; Ctrl-C again ends at once"), None).map(|signals| signals.drain)
}

/// Makes a write beyond the file size limit (`ulimit -f`) return an error. By default, such a write ends the process.
pub fn outlive_size_limit() {
    signals::outlive_size_limit();
}

/// Makes the process exit with code 70 when an allocation exceeds the memory limit of the process itself (`ulimit`). By default,
/// a signal would end the process.
pub fn exit_without_memory() {
    signals::exit_without_memory(Exit::Internal as u8);
}

/// Runs all consumers until a signal stops the host. `file` is the path of the config if the user named one.
///
/// # Errors
/// The host cannot start. The book documents the exit code for each reason.
pub fn run(file: Option<&Path>) -> Result {
    // Must come first: PID 1 ignores every signal without a handler.
    let signals = Signals::install(None, Some(HangUp::of_process()))
        .map_err(|error| resources::too_few_threads("its thread for signals", &error))?;
    let loaded = config::load(file, std::env::vars_os()).map_err(|error| Failure::new(Exit::BadConfig, error))?;
    if loaded.config.consumers.is_empty() {
        let text = "the config has no consumer: write a table `[consumers.NAME]` with `channel` and `handler`; \
                    `hostler retry` runs the retry service, `hostler jobs serve` the job service";
        return Err(Failure::new(Exit::BadConfig, text));
    }
    let machine = Machine::measure();
    let files = file_plan(&loaded.config)?;
    // Must run before any other thread starts, because new threads inherit the restrictions.
    let hardening = check_grants(&loaded).and_then(|()| Hardening::enforce(&loaded.config, &machine));
    let threads = Threads::of(&machine, guests::sets(&loaded.config.consumers));
    machine.try_threads(threads.least(records::drivers(&loaded.config).map(QueueDriver::threads).sum()))?;
    let log = loaded.config.telemetry.log.unwrap_or_else(|| LogFormat::usual(std::io::stderr().is_terminal()));
    let mut logs = telemetry::start(match log {
        LogFormat::Json => telemetry::Form::Json,
        LogFormat::Text => telemetry::Form::Text,
    });
    signals.change_verbosity(logs.verbosity());
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    if let Some(warning) = resources::own_memory_limit() {
        tracing::warn!("{warning}");
    }
    let hardening = match hardening {
        Ok(hardening) => hardening,
        Err(failure) => return Ok(logged(&failure)),
    };
    let exporters = match instrumentation::exporters(&loaded.config) {
        Ok(exporters) => exporters,
        Err(failure) => return Ok(logged(&failure)),
    };
    if let Some(shortage) = too_few_processes(&loaded.config, &machine) {
        tracing::warn!(cure = shortage.cure(), "{shortage}");
    }
    handler::compile_with(threads.compiling);
    let guests = Guests::start(&loaded.config, threads).map_err(internal)?;
    let mut control = Builder::new_current_thread();
    let control = control.enable_all().max_blocking_threads(threads.control_blocking).build().map_err(internal)?;
    let (pools, shared, loading_blocking) = (guests.pools(), guests.shared(), threads.control_blocking);
    let host =
        Host { hardening, shared, loading_blocking, log, ..Host::new(loaded.config, machine, files, signals, pools) };
    // Dropping a runtime waits for all its blocking calls. Therefore, a panic must not unwind through the runtimes.
    let result = panic::catch_unwind(AssertUnwindSafe(|| control.block_on(host.run(exporters))));
    guests.shut_down();
    control.shutdown_background();
    result.unwrap_or_else(|_| Err(internal(PANICKED)))
}

/// Logs the reason why the host cannot start or continue. Returns the exit code of the process.
fn logged(failure: &Failure) -> Exit {
    tracing::error!(exit_code = failure.exit as u8, "{}", failure.message);
    failure.exit
}

/// Last message of the process after a panic. The message of the panic itself precedes this message.
pub const PANICKED: &str = "a bug in hostler ended the process; please report the message above";

fn internal(error: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Internal, error)
}

/// Consumers that are ready to run, with their metrics.
struct Started {
    consumers: Vec<Consumer>,
    /// `None`: no consumer has secrets.
    secrets: Option<Secrets>,
    /// `None`: the config has no schedules.
    scheduler: Option<Scheduler>,
    instrumentation: Option<Instrumentation>,
}

/// State of the host. The methods are the phases of the process, in order.
struct Host {
    config: Config,
    machine: Machine,
    files: FilePlan,
    signals: Signals,
    /// Runtimes for the guests of each consumer, in the order of the config.
    guests: Vec<Pools>,
    hardening: Option<Hardening>,
    /// Runtimes of guests, with their consumers. After all handlers are loaded, the threads of these runtimes are restricted.
    shared: Vec<Shared>,
    /// Maximum number of blocking threads while handlers are fetched and loaded.
    loading_blocking: usize,
    /// Format of the log.
    log: LogFormat,
    boards: Vec<StatusHandle>,
    /// One sender per consumer. Its value is true while the consumer is paused.
    pauses: Vec<watch::Sender<bool>>,
    /// One channel per consumer, which passes requests of operators to the consumer.
    requests: Vec<Requests>,
    transitions: Arc<Notify>,
    link: LinkSlot,
    /// Notified when a consumer may have become busy or idle.
    work: Arc<Notify>,
    ecs: Ecs,
}

impl Host {
    fn new(config: Config, machine: Machine, files: FilePlan, signals: Signals, guests: Vec<Pools>) -> Self {
        let (transitions, work) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let board = |_| StatusHandle::new(Arc::clone(&transitions), Arc::clone(&work));
        let boards = config.consumers.iter().map(board).collect();
        let pauses = config.consumers.iter().map(|_| watch::Sender::new(false)).collect();
        let requests = config.consumers.iter().map(|_| Requests::default()).collect();
        let ecs = Ecs::from(|name| std::env::var(name).ok());
        let (hardening, shared, loading_blocking, log) = (None, Vec::new(), 1, LogFormat::Json);
        Self {
            config,
            machine,
            files,
            signals,
            guests,
            hardening,
            shared,
            loading_blocking,
            log,
            boards,
            pauses,
            requests,
            transitions,
            link: LinkSlot::default(),
            work,
            ecs,
        }
    }

    async fn run(self, exporters: Exporters) -> Result {
        let parts = self.config.consumers.iter().zip(self.boards.iter().zip(&self.pauses)).zip(&self.requests);
        let watched = parts.map(|((consumer, (board, pause)), requests)| Watched {
            name: consumer.name.clone(),
            healthcheck_timeout: consumer.healthcheck_timeout,
            shutdown_grace: self.config.host.shutdown_grace,
            board: board.clone(),
            pause: pause.clone(),
            requests: requests.clone(),
        });
        let (link, transitions) = (Arc::clone(&self.link), Arc::clone(&self.transitions));
        let reporter = HealthReporter::start(&self.config.host.health_file, watched.collect(), link, transitions);
        let reporter = reporter.map_err(|error| internal(format!("cannot start the health thread: {error}")))?;

        let started = tokio::select! {
            started = self.start(exporters) => started,
            // No message has been received yet. Therefore, no drain is needed.
            () = self.signals.drain.cancelled() => {
                tracing::info!("stopped before it was ready");
                Ok(None)
            }
        };
        let result = match started {
            Ok(Some(started)) => self.consume(started).await,
            Ok(None) => Ok(Exit::Ok),
            Err(failure) => Ok(logged(&failure)),
        };
        reporter.stop().await;
        result
    }

    /// Connects to the queues, loads the handlers, and assembles the consumers.
    async fn start(&self, exporters: Exporters) -> Result<Option<Started>> {
        for warning in assemble::config_warnings(&self.config) {
            tracing::warn!("{warning}");
        }
        // Refuses a config before any connection if its memory demand exceeds the limit even without the handlers.
        plan(&self.config, &self.machine, &[])?;
        let metadata = async { Ok(self.ecs.metadata(self.log).await) };
        let connected = async { Services::connect(&self.config).await.map_err(Failure::from) };
        let secrets = Secrets::of(&self.config.consumers, || self.signals.reload());
        let (secrets, services, metadata) = tokio::try_join!(secrets, connected, metadata)?;
        let broker = services.broker()?;
        self.link.get_or_init(|| services.link());
        let resource = metadata.as_ref().map_or_else(Resource::new, |metadata| metadata.resource.clone());
        let mut instrumentation = Instrumentation::start(exporters, &self.config, &resource)?;
        let traces = instrumentation::traces(&self.config, &resource);
        let loaded = self.load_handlers(&broker, instrumentation.as_ref(), traces.as_ref(), secrets.as_ref()).await?;
        let machine = self.machine.clone().in_task(metadata.and_then(|metadata| metadata.memory_limit));
        let plan = plan(&self.config, &machine, &loaded.iter().map(Some).collect::<Vec<_>>())?;
        let queues = services.open_all(&self.config, &plan.shares).await?;
        if let Some(service) = &services.queue {
            check_destinations(&**service, &self.config).await?;
        }
        let records = RecordStores::connect(&self.config, services.queue.as_ref()).await?;
        let scheduler = Scheduler::prepare(services.queue.as_ref(), &self.config).await?;
        let exit = CancellationToken::new();
        let mut consumers = Vec::new();
        let shown = self.boards.iter().zip(self.pauses.iter().zip(&self.requests));
        let parts = self.config.consumers.iter().zip(queues).zip(shown).zip(loaded.iter().zip(&plan.shares));
        let parts = parts.zip(&self.guests);
        for (place, ((((config, queue), (board, (pause, requests))), (loaded, share)), guests)) in parts.enumerate() {
            let metrics = instrumentation.as_ref().and_then(|instrumentation| instrumentation.consumer(place));
            let (limit, by) = (plan.limit.bytes, plan.limit.by.to_string());
            let (consumer, slots, memory) = (&*share.consumer, share.slots, share.memory);
            tracing::info!(consumer, slots, memory, limit, by, "resources");
            let handler = loaded.handler(share.memory).map_err(|error| Failure::new(Exit::BadHandler, error))?;
            for copies in loaded.long_copies(share.memory) {
                tracing::warn!(consumer, cure = copies.cure(), "{copies}");
            }
            board.update(Instant::now(), |status| status.state = State::Initialized);
            let producer = Producer::new(instrumentation::broker(&broker, metrics.as_ref()), traces.clone());
            let idempotency = records.of(&self.config, config, &producer);
            let spec = assemble::spec(config, share, until_stop(self.config.host.shutdown_grace));
            let replies = |channel| Replies { producer, channel, from: Arc::clone(&spec.channel) };
            consumers.push(Consumer {
                queue: instrumentation::queue(queue, metrics.as_ref()),
                handler,
                replies: config.reply_channel.clone().map(replies),
                idempotency,
                spec,
                guests: guests.clone(),
                status: board.clone(),
                metrics,
                traces: traces.clone(),
                pause: pause.subscribe(),
                requests: requests.clone(),
                exit: exit.clone(),
            });
        }
        if let Some(instrumentation) = &mut instrumentation {
            instrumentation.watch(&self.config, &services, &self.boards, &plan.shares);
        }
        if let Some(hardening) = self.hardening.clone() {
            hardening.restrict_guests(&self.shared).await?;
        }
        Ok(Some(Started { consumers, secrets, scheduler, instrumentation }))
    }

    async fn load_handlers(
        &self,
        broker: &Arc<dyn Broker>,
        instrumentation: Option<&Instrumentation>,
        traces: Option<&Traces>,
        secrets: Option<&Secrets>,
    ) -> Result<Vec<Loaded>> {
        let cache = cache(&self.config);
        let loading = Loading::start(self.loading_blocking).map_err(internal)?;
        let mut definitions = all(self.fetch_handlers(&loading, cache.clone()).await?)?;
        for (place, definition) in definitions.iter_mut().enumerate() {
            let metrics = instrumentation.and_then(|instrumentation| instrumentation.consumer(place));
            let broker = instrumentation::broker(broker, metrics.as_ref());
            definition.grants.producer = Some(Producer::new(broker, traces.cloned()));
            definition.grants.terms = assemble::terms(&self.config);
            definition.grants.secrets = secrets.and_then(|secrets| secrets.variables(&definition.consumer));
            definition.metrics = metrics;
        }
        let (pool, files) = (pool(&self.config), self.files);
        if let Some(warning) = files.warning() {
            tracing::warn!("{warning}");
        }
        let load = move || {
            let engine = Engine::new(pool).map_err(internal)?.with_cache(cache).with_files(files.files);
            let loaded = definitions.iter().map(|definition| {
                let loaded =
                    handler::load(&engine, definition).map_err(|error| Failure::new(Exit::BadHandler, error))?;
                tracing::info!(consumer = &*definition.consumer, kind = %loaded.summary.kind, "handler loaded");
                Ok(loaded)
            });
            loaded.collect()
        };
        // Compiling can take long. A separate thread compiles, because compiling here would delay signals and the health file.
        match loading.on.spawn_blocking(load).await {
            Ok(loaded) => loaded,
            Err(error) => Err(internal(format!("loading the handlers failed: {error}"))),
        }
    }

    /// Fetches remote handlers on the loading runtime. On the control thread, hashing and TLS would delay the health file.
    /// Dropping the future cancels all fetches.
    async fn fetch_handlers(&self, loading: &Loading, cache: Option<Arc<Cache>>) -> Result<Vec<Result<Definition>>> {
        let config = self.config.clone();
        let mut fetching = JoinSet::new();
        fetching.spawn_on(async move { definitions(&config, &config.consumers, cache, None).await }, &loading.on);
        match fetching.join_next().await {
            Some(Ok(definitions)) => Ok(definitions),
            Some(Err(error)) => Err(internal(format!("fetching the handlers failed: {error}"))),
            None => Ok(Vec::new()),
        }
    }

    /// Runs the consumers until a signal arrives or a consumer ends. Then drains all consumers, and returns the exit code.
    async fn consume(&self, Started { consumers, secrets, scheduler, instrumentation }: Started) -> Result {
        let _current = secrets.map(Secrets::keep_current);
        let exit = consumers.first().map(|consumer| consumer.exit.clone()).unwrap_or_default();
        let traces = consumers.first().and_then(|consumer| consumer.traces.clone());
        let (phase, watched) = watch::channel(Phase::Running);
        let protection = self.ecs.protect(&self.config, &self.boards, &self.work);
        let _watching = hung_files::watch(&self.config, &self.shared);
        let mut scheduling = Scheduling::start(scheduler);
        let mut running = JoinSet::new();
        for consumer in consumers {
            tracing::info!(consumer = &*consumer.spec.name, channel = &*consumer.spec.channel, "consuming");
            if *consumer.pause.borrow() {
                let cure = format!("hostler resume {}", consumer.spec.name);
                tracing::warn!(
                    consumer = &*consumer.spec.name,
                    cure,
                    "starts paused: it takes no messages until it is resumed"
                );
            }
            running.spawn(consumer.run(watched.clone()));
        }
        let (mut faults, mut first) = (false, Summary::default());
        let reason = tokio::select! {
            () = self.signals.drain.cancelled() => "signal",
            () = exit.cancelled() => "processing timeout",
            () = scheduling.failed() => {
                faults = true;
                "the schedules failed"
            }
            Some(ended) = running.join_next() => {
                faults = report(ended, &mut first);
                if first.refused.is_some() { "a queue refuses its consumer" } else { "a consumer ended" }
            }
        };
        let grace = self.config.host.shutdown_grace;
        tracing::info!(reason, grace = %humantime::format_duration(grace), "draining");
        scheduling.stop();
        if self.signals.drain.is_cancelled() {
            tracing::info!(
                "a second SIGINT (Ctrl-C) or SIGTERM ends the process at once; messages in progress are then redelivered"
            );
        }
        let end = Instant::now() + grace;
        let (summary, in_time, panicked) = drain(&mut running, &phase, grace).await;
        scheduling.ended(end).await;
        if let Some(protection) = protection {
            protection.end(end).await;
        }
        export_last(instrumentation, traces, end).await;
        if !in_time {
            tracing::warn!("shutdown grace expired; unsettled messages will be redelivered when their leases end");
        }
        tracing::info!(
            processed = summary.processed,
            failed = summary.failed,
            late = summary.late,
            abandoned = summary.abandoned,
            "drained"
        );
        Ok(match first.refused.or(summary.refused) {
            _ if faults || panicked => Exit::Internal,
            Some(refused) => logged(&self.refusal(&refused)),
            None if exit.is_cancelled() => Exit::ProcessingTimeout,
            None if !in_time || summary.abandoned > 0 => Exit::Abandoned,
            None => Exit::Ok,
        })
    }

    /// Creates the failure for a queue that refused a receive call. `refused` is the error message of the call.
    fn refusal(&self, refused: &str) -> Failure {
        let cure = driver(&self.config).cure_of_a_refusal();
        Failure::new(Exit::QueueUnreachable, format!("{refused}{cure}"))
    }
}

/// Exports the last metrics and spans, at most until `end`.
async fn export_last(instrumentation: Option<Instrumentation>, traces: Option<Traces>, end: Instant) {
    let measured = async {
        if let Some(instrumentation) = instrumentation {
            instrumentation.end(end).await;
        }
    };
    let traced = async {
        if let Some(traces) = traces {
            traces.finish(FLUSH.min(end.saturating_duration_since(Instant::now()))).await;
        }
    };
    tokio::join!(measured, traced);
}

/// Converts a queue error to a failure. Used by commands that cannot continue without the queue.
impl From<QueueError> for Failure {
    fn from(error: QueueError) -> Self {
        Self::new(Exit::QueueUnreachable, error)
    }
}
