//! The process of `hostler jobs serve`: assembles the job service out of the config, and ends it in order.

mod applets;
mod callbacks;
mod database;

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::drain::until_stop;
use super::hardening::Hardening;
use super::health_reporter::{HealthReporter, LinkSlot, Watched};
use super::instrumentation::{exporters, failure};
use super::resources::{self, Machine};
use super::signals::{HangUp, Signals};
use super::{PANICKED, internal, logged};
use crate::exit::{Exit, Failure, Result};
use applets::{Sandboxes, in_place_of_consumers};
use callbacks::QueueSender;
use hostler_config::{
    self as config, Config, Driver, Fanout as FanoutKind, JobService, JobTokens, Loaded, LogFormat, Rate,
};
use hostler_consumer::{Requests, StatusHandle};
use hostler_jobs::api::rate;
use hostler_jobs::api::roles::{Role, Tokens};
use hostler_jobs::api::state::Limits;
use hostler_jobs::applets::Applets;
use hostler_jobs::callbacks::{CallbackSettings, ChannelSender};
use hostler_jobs::fanout::{Fanout, RabbitMq};
use hostler_jobs::server::{ServeError, ServerSettings, serve};
use hostler_jobs::shards::Shards;
use hostler_queue::Link;
use hostler_telemetry::metrics::{Exporters, Metrics, Named};
use hostler_telemetry::{self as telemetry, Resource};
use hostler_types::State;

pub use applets::check_applets;
pub use database::{Databases, migrate, open};
use database::{ping, start};

/// Name of the service in the health file, in logs and in metrics.
const NAME: &str = "jobs";

/// Name of the database in metrics, as OpenTelemetry's semantic conventions have it.
const SYSTEM: &str = "postgresql";

/// Most threads of the runtime. More serve no purpose, as the database does the work.
const THREADS: usize = 8;

/// Interval between two looks at the database, for the health file.
const LOOK: Duration = Duration::from_secs(5);

/// The service is unhealthy after this long without an answer of the database.
const HEALTHCHECK_TIMEOUT: Duration = Duration::from_secs(90);

/// Runs the job service until a signal stops it. `file`: path of the config if the user named one.
///
/// # Errors
/// The service cannot start. The book documents the exit code for each reason.
pub fn serve_jobs(file: Option<&Path>) -> Result {
    // Must come first: PID 1 ignores every signal without a handler.
    let signals = Signals::install(None, Some(HangUp::of_process()))
        .map_err(|error| resources::too_few_threads("its thread for signals", &error))?;
    let loaded = config::load(file, std::env::vars_os()).map_err(|error| Failure::new(Exit::BadConfig, error))?;
    if let Some(fault) = exposure(loaded.config.jobs.listen, &loaded.config.jobs.tokens) {
        return Err(Failure::new(Exit::BadConfig, fault));
    }
    // Before the hardening, because it reads the certificates that the address names.
    let databases = open(&loaded.config)?;
    let fanout = fanout(&loaded.config.jobs)?;
    // Must run before any other thread starts, because new threads inherit the restrictions.
    let (of_applets, machine) = (in_place_of_consumers(&loaded.config)?, Machine::measure());
    let hardening = Hardening::enforce(&of_applets, &machine);
    let log = loaded.config.telemetry.log.unwrap_or_else(|| LogFormat::usual(std::io::stderr().is_terminal()));
    let mut logs = telemetry::start(match log {
        LogFormat::Json => telemetry::Form::Json,
        LogFormat::Text => telemetry::Form::Text,
    });
    signals.change_verbosity(logs.verbosity());
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let started = hardening.and_then(|hardening| Ok((hardening, Sandboxes::start(of_applets, machine)?)));
    let (hardening, sandboxes) = match started {
        Ok(started) => started,
        Err(failure) => return Ok(logged(&failure)),
    };
    let exporters = match exporters(&loaded.config) {
        Ok(exporters) => exporters,
        Err(failure) => return Ok(logged(&failure)),
    };
    let threads = available_parallelism().map_or(2, |threads| threads.get().clamp(2, THREADS));
    let runtime = Builder::new_multi_thread().worker_threads(threads).enable_all().build().map_err(internal)?;
    let has_queue = names_queue(&loaded);
    let mut host = JobsHost::new(loaded.config, has_queue, databases, fanout, signals);
    let result = panic::catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(host.run(exporters, sandboxes.as_ref().map(|sandboxes| (sandboxes, hardening))))
    }));
    if let Some(sandboxes) = sandboxes {
        sandboxes.shut_down();
    }
    runtime.shutdown_background();
    result.unwrap_or_else(|_| Err(internal(PANICKED)))
}

/// Checks that the service could start: its address is allowed, and its databases answer. Changes nothing.
///
/// # Errors
/// The same as those of [`serve_jobs`].
pub async fn check_jobs(config: &Config) -> Result<()> {
    if let Some(fault) = exposure(config.jobs.listen, &config.jobs.tokens) {
        return Err(Failure::new(Exit::BadConfig, fault));
    }
    fanout(&config.jobs)?;
    ping(&open(config)?).await
}

/// Returns why the service may not listen on an address: others could reach it, and it would let everyone in. `None`: it may.
fn exposure(listen: SocketAddr, tokens: &JobTokens) -> Option<String> {
    let is_open = tokens.is_empty() && !listen.ip().to_canonical().is_loopback();
    is_open.then(|| {
        format!(
            "jobs.listen: {listen} is reached from other machines, and there are no tokens, so everyone would be let in\n  cure: set \
             HOSTLER_JOBS__TOKENS__PRODUCER, …__WORKER and …__OPERATOR, or listen on 127.0.0.1:{}",
            listen.port()
        )
    })
}

/// Returns true if the config names a queue. Without one, the default would be a new file that no consumer reads.
fn names_queue(loaded: &Loaded) -> bool {
    const DEFAULT: &str = "hostler.db";
    let path = &loaded.config.queue.embedded.path;
    let beside = loaded.file.as_deref().and_then(Path::parent).map(|folder| folder.join(DEFAULT));
    let is_default = *path == Path::new(".").join(DEFAULT) || beside.as_ref() == Some(path);
    loaded.config.queue.driver != Driver::Embedded || !is_default
}

struct JobsHost {
    config: Config,
    /// Set if callbacks to channels can be sent.
    has_queue: bool,
    databases: Databases,
    fanout: Fanout,
    signals: Signals,
    board: StatusHandle,
    transitions: Arc<Notify>,
    link: LinkSlot,
}

impl JobsHost {
    fn new(config: Config, has_queue: bool, databases: Databases, fanout: Fanout, signals: Signals) -> Self {
        let transitions = Arc::new(Notify::new());
        let board = StatusHandle::new(Arc::clone(&transitions), Arc::default());
        Self { config, has_queue, databases, fanout, signals, board, transitions, link: LinkSlot::default() }
    }

    async fn run(&mut self, exporters: Exporters, applets: Option<(&Sandboxes, Option<Hardening>)>) -> Result {
        let watched = Watched {
            name: NAME.to_owned(),
            healthcheck_timeout: HEALTHCHECK_TIMEOUT,
            shutdown_grace: self.config.host.shutdown_grace,
            board: self.board.clone(),
            pause: watch::Sender::new(false),
            requests: Requests::default(),
        };
        let path = &self.config.host.health_file;
        let transitions = Arc::clone(&self.transitions);
        let reporter = HealthReporter::start(path, vec![watched], Arc::clone(&self.link), transitions);
        let reporter = reporter.map_err(|error| internal(format!("cannot start the health thread: {error}")))?;
        let drain = self.signals.drain.clone();
        let started = tokio::select! {
            started = self.start(applets) => started.map(Some),
            // No request has been taken yet. Therefore, no drain is needed.
            () = drain.cancelled() => Ok(None),
        };
        let result = match started {
            Ok(Some(listener)) => self.serve(listener, exporters).await,
            Ok(None) => {
                tracing::info!("stopped before it was ready");
                Ok(Exit::Ok)
            }
            Err(failure) => Err(failure),
        };
        let result = result.or_else(|failure| Ok(logged(&failure)));
        reporter.stop().await;
        result
    }

    /// Loads the applets, takes the address, and brings the schema up to date.
    async fn start(&mut self, applets: Option<(&Sandboxes, Option<Hardening>)>) -> Result<TcpListener> {
        // The schema comes last: a service that cannot run leaves it alone.
        if let Some((sandboxes, hardening)) = applets {
            let loaded = sandboxes.load(hardening).await?;
            let applets: Arc<dyn Applets> = Arc::new(loaded);
            self.databases.shards = self.databases.shards.clone().with_applets(&applets);
        }
        let listener = bind(self.config.jobs.listen).await?;
        start(&self.databases).await?;
        Ok(listener)
    }

    /// Serves until the first signal, and then drains.
    async fn serve(&self, listener: TcpListener, exporters: Exporters) -> Result {
        let named = Named { consumer: NAME.to_owned(), channel: NAME.to_owned(), system: SYSTEM };
        let metrics = Metrics::start(exporters, &Resource::new(), [named]).map_err(failure)?;
        let (tell, link) = watch::channel(Link::Up);
        self.link.get_or_init(|| link);
        let mut beside = JoinSet::new();
        beside.spawn(look(self.databases.shards.clone(), self.board.clone(), tell));
        self.board.update(Instant::now(), |status| status.state = State::Listening);
        let settings = settings(&self.config, self.has_queue, self.fanout.clone());
        let (grace, drain) = (settings.grace, &self.signals.drain);
        let mut serving = pin!(serve(settings, listener, self.databases.shards.clone(), drain.clone()));
        let (served, began) = tokio::select! {
            biased;
            began = self.drain() => (serving.await, began),
            served = &mut serving => (served, Instant::now()),
        };
        let lasted = began.elapsed();
        beside.shutdown().await;
        if let Some(metrics) = metrics {
            metrics.end(began + self.config.host.shutdown_grace).await;
        }
        served.map_err(unserved)?;
        let is_late = lasted > grace;
        tracing::info!(abandoned = is_late, "drained");
        Ok(if is_late { Exit::Abandoned } else { Exit::Ok })
    }

    /// Waits for the first signal, and shows the drain. Returns when the drain began.
    async fn drain(&self) -> Instant {
        self.signals.drain.cancelled().await;
        let now = Instant::now();
        let grace = self.config.host.shutdown_grace;
        tracing::info!(reason = "signal", grace = %humantime::format_duration(grace), "draining");
        self.board.update(now, |status| status.state = State::Exiting);
        now
    }
}

/// Looks at intervals whether a database answers, for the health file. Never returns.
async fn look(databases: Shards, board: StatusHandle, link: watch::Sender<Link>) {
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        let answer = databases.ping_any().await;
        let now = Instant::now();
        match answer {
            Ok(()) => {
                board.update(now, |status| status.last_poll_at = Some(now));
                link.send_if_modified(|link| std::mem::replace(link, Link::Up) != Link::Up);
            }
            Err(error) => {
                link.send_if_modified(|link| match link {
                    Link::Up | Link::Blocked(_) => {
                        tracing::debug!(%error, "no database answers");
                        *link = Link::Down { since: now, why: error.to_string() };
                        true
                    }
                    Link::Down { .. } => false,
                });
            }
        }
    }
}

/// Binds the address at which the service answers.
async fn bind(listen: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(listen).await.map_err(|error| {
        let text = format!(
            "jobs.listen: cannot listen on {listen}: {error}\n  cure: end the process that has this address, or set \
             HOSTLER_JOBS__LISTEN to another one"
        );
        Failure::new(Exit::BadConfig, text)
    })
}

fn unserved(error: ServeError) -> Failure {
    match error {
        ServeError::Exposed(_) => Failure::new(Exit::BadConfig, format!("jobs.listen: {error}")),
        ServeError::Listener(_) | ServeError::Client(_) => internal(error),
    }
}

/// Returns the fan-out of the config. Connects to nothing yet.
fn fanout(jobs: &JobService) -> Result<Fanout> {
    match (jobs.fanout, &jobs.rabbitmq) {
        (FanoutKind::Notify, _) => Ok(Fanout::Notify),
        (FanoutKind::RabbitMq, Some(url)) => {
            let fault = |error| Failure::new(Exit::BadConfig, format!("jobs.rabbitmq: {error}"));
            RabbitMq::new(url.expose()).map(Fanout::RabbitMq).map_err(fault)
        }
        // The config has refused a fan-out by RabbitMQ without its address.
        (FanoutKind::Poll | FanoutKind::RabbitMq, _) => Ok(Fanout::Poll),
    }
}

fn settings(config: &Config, has_queue: bool, fanout: Fanout) -> ServerSettings {
    let JobService { tokens, callback_secret, rate_limit, .. } = &config.jobs;
    let channels = has_queue.then(|| Arc::new(QueueSender::new(config.clone())) as Arc<dyn ChannelSender>);
    ServerSettings {
        limits: Limits { tokens: accepted(tokens), token_rate: rate_limit.map(rate_of), ..Limits::default() },
        callbacks: CallbackSettings {
            secret: callback_secret.as_ref().map(|secret| secret.expose().to_owned()),
            channels,
        },
        fanout,
        grace: until_stop(config.host.shutdown_grace),
        ..ServerSettings::default()
    }
}

fn accepted(tokens: &JobTokens) -> Tokens {
    let pairs =
        [(Role::Producer, &tokens.producer), (Role::Worker, &tokens.worker), (Role::Operator, &tokens.operator)];
    Tokens::new(pairs.into_iter().filter_map(|(role, token)| Some((role, token.as_ref()?.expose().to_owned()))))
}

/// Converts a rate to that of a bucket, which a whole period's worth of requests may empty at once.
fn rate_of(rate: Rate) -> rate::Rate {
    let burst = f64::from(rate.permits);
    rate::Rate { per_second: burst / rate.per.as_secs_f64(), burst }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_queue_of_the_config_takes_callbacks() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("hostler.toml");
        let found = |text: &str| {
            std::fs::write(&file, format!("jobs.listen = '127.0.0.1:1'\n{text}")).unwrap();
            names_queue(&config::load(Some(&file), std::iter::empty::<(String, String)>()).unwrap())
        };
        assert!(!found(""));
        assert!(found("queue.embedded.path = 'other.db'") && found("queue.embedded.path = '/q/hostler.db'"));
        assert!(found("queue.driver = 'sqs'"));
    }

    #[test]
    fn without_tokens_only_this_machine_is_let_in() {
        let found = |listen: &str, tokens: &str| {
            let text = format!("jobs.listen = '{listen}'\n{tokens}");
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("hostler.toml");
            std::fs::write(&file, text).unwrap();
            let loaded = config::load(Some(&file), std::iter::empty::<(String, String)>()).unwrap();
            exposure(loaded.config.jobs.listen, &loaded.config.jobs.tokens)
        };
        for listen in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert_eq!(found(listen, ""), None, "{listen}");
        }
        for listen in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1"] {
            assert!(found(listen, "").is_some_and(|fault| fault.contains("127.0.0.1:1")), "{listen}");
            assert_eq!(found(listen, "jobs.tokens.worker = 'w'"), None, "{listen}");
        }
    }
}
