//! The applets of the job service: loads their handlers, and runs them for results, each in a sandbox of its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use hostler_config::{Allow, Applet, Config, Consumer, OnProcessingTimeout, Reply, Retry, Tags, duration_text};
use hostler_handler::{Bounds, Call, Excerpt, Handler, Outcome, Output, Pools, Stop};
use hostler_jobs::applets::{AppletError, Applets, Bytes};
use hostler_telemetry::GUEST;
use hostler_types::channel::{Channel, Filter};
use hostler_types::message::Message;
use hostler_wasm::{self as handler, Definition, Engine, Loaded, Summary};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use crate::exit::{Exit, Failure, Result};
use crate::host::assemble::{demand, pool};
use crate::host::hardening::Hardening;
use crate::host::resources::{self, HOST, Machine, Plan, Threads};
use crate::host::{Guests, all, cache, definitions, internal};

/// Table of the applets in the config.
const TABLE: &str = "jobs.applets";

/// Number of threads of the service itself, beside those of guests.
const SERVICE_THREADS: usize = 16;

/// Longest wait for another run of an applet to end. The worker asks again after that.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// Returns the config with its applets in place of its consumers. What the host does for the guests of consumers then holds for
/// applets: restrictions of threads, shares of memory, sandboxes.
///
/// # Errors
/// Exit code 70: a bug in hostler.
pub(super) fn in_place_of_consumers(config: &Config) -> Result<Config> {
    let consumers = config.jobs.applets.iter().map(consumer).collect::<Result<_>>()?;
    Ok(Config { consumers, ..config.clone() })
}

/// Returns a consumer whose guests are an applet's. It is granted nothing, and never receives.
fn consumer(applet: &Applet) -> Result<Consumer> {
    let channel = "applet".parse::<Channel>().map_err(internal)?;
    let none = Duration::ZERO;
    Ok(Consumer {
        name: applet.name.clone(),
        channel,
        subject: None,
        job: None,
        ordered: false,
        high_throughput: None,
        handler: applet.handler.clone(),
        hooks: None,
        sha256: applet.sha256,
        hooks_sha256: None,
        concurrency: Some(applet.concurrency),
        batch: None,
        idempotency: None,
        lease: applet.processing_timeout,
        processing_timeout: applet.processing_timeout,
        delay_tolerance: none,
        longest_delay: none,
        on_processing_timeout: OnProcessingTimeout::Retry,
        healthcheck_timeout: applet.processing_timeout,
        rate_limit: None,
        messages_per_instance: 1,
        reply: Reply::Stdout,
        reply_channel: None,
        dead_letter: false,
        retry: Retry { requeues: 0, requeue_delay: none, delays: 0, delay: none, max_delay: none },
        breaker: None,
        filter: Filter::All,
        allow: Allow::default(),
        limits: applet.limits,
        tags: Tags::default(),
    })
}

/// Divides the memory among the applets. `config` has them in place of consumers.
fn plan(config: &Config, machine: &Machine, loaded: &[Loaded]) -> Result<Plan> {
    let loaded = loaded.iter().map(Some).chain(std::iter::repeat(None));
    let demands: Vec<_> = config.consumers.iter().zip(loaded).map(|(applet, loaded)| demand(applet, loaded)).collect();
    resources::plan(&machine.memory, HOST, &demands)
        .map_err(|refusal| Failure::new(Exit::BadConfig, refusal.in_table(TABLE)))
}

/// Fetches and loads the handlers of the applets. `config` has the applets in place of consumers.
async fn load(config: &Config) -> Result<Vec<Loaded>> {
    let cache = cache(config);
    let definitions: Vec<Definition> = all(definitions(config, &config.consumers, cache.clone(), None).await)?;
    let pool = pool(config);
    let load = move || {
        let engine = Engine::new(pool).map_err(internal)?.with_cache(cache);
        let load =
            |definition| handler::load(&engine, definition).map_err(|error| Failure::new(Exit::BadHandler, error));
        all(definitions.iter().map(load).collect())
    };
    // Compiling can take long.
    tokio::task::spawn_blocking(load).await.map_err(internal)?
}

/// Checks that the applets of a config could run. Returns each with its handler and what was found in the handler's file.
///
/// # Errors
/// Exit code 64: they do not fit into the memory. Exit codes 65 and 69: a handler cannot be loaded or fetched.
pub async fn check_applets(config: &Config, machine: &Machine) -> Result<Vec<(String, Summary)>> {
    if config.jobs.applets.is_empty() {
        return Ok(Vec::new());
    }
    let config = in_place_of_consumers(config)?;
    plan(&config, machine, &[])?;
    let loaded = load(&config).await?;
    let plan = plan(&config, machine, &loaded)?;
    let parts = config.consumers.iter().zip(loaded).zip(&plan.shares);
    let check = |((applet, loaded), share): ((&Consumer, Loaded), &resources::Share)| {
        loaded.handler(share.memory).map_err(|error| Failure::new(Exit::BadHandler, error))?;
        Ok((format!("{}: {}", applet.name, applet.handler), loaded.summary))
    };
    all(parts.map(check).collect())
}

/// The threads of applets.
pub(super) struct Sandboxes {
    /// The config, with the applets in place of consumers.
    config: Config,
    machine: Machine,
    guests: Guests,
}

impl Sandboxes {
    /// Starts the threads. `config` has the applets in place of consumers. `None`: there are no applets.
    ///
    /// # Errors
    /// Exit code 64: they do not fit into the memory. Exit code 70: there are too few threads.
    pub(super) fn start(config: Config, machine: Machine) -> Result<Option<Self>> {
        if config.consumers.is_empty() {
            return Ok(None);
        }
        plan(&config, &machine, &[])?;
        let threads = Threads::of(&machine, 1);
        machine.try_threads(threads.least(SERVICE_THREADS))?;
        handler::compile_with(threads.compiling);
        let guests = Guests::start(&config, threads).map_err(internal)?;
        Ok(Some(Self { config, machine, guests }))
    }

    /// Loads the applets, and then restricts their threads.
    ///
    /// # Errors
    /// Same as for [`check_applets`]. Exit code 70: the kernel refuses a restriction that the config requires.
    pub(super) async fn load(&self, hardening: Option<Hardening>) -> Result<HostApplets> {
        let loaded = load(&self.config).await?;
        let plan = plan(&self.config, &self.machine, &loaded)?;
        let parts = self.config.consumers.iter().zip(&loaded).zip(&plan.shares).zip(self.guests.pools());
        let mut applets = BTreeMap::new();
        for (((applet, loaded), share), guests) in parts {
            let (name, slots, memory) = (&*applet.name, share.slots, share.memory);
            tracing::info!(applet = name, kind = %loaded.summary.kind, slots, memory, "applet loaded");
            let running = Running {
                name: name.into(),
                handler: loaded.handler(memory).map_err(|error| Failure::new(Exit::BadHandler, error))?,
                count: slots,
                slots: Arc::new(Semaphore::new(slots)),
                timeout: applet.processing_timeout,
                output: usize::try_from(applet.limits.output).unwrap_or(usize::MAX),
                guests,
            };
            applets.insert(applet.name.clone(), running);
        }
        if let Some(hardening) = hardening {
            hardening.restrict_guests(&self.guests.shared()).await?;
        }
        Ok(HostApplets(applets))
    }

    /// Ends the threads, and does not wait for host calls that block.
    pub(super) fn shut_down(self) {
        self.guests.shut_down();
    }
}

/// The applets of this process, by name.
pub(super) struct HostApplets(BTreeMap<String, Running>);

/// An applet that is loaded.
struct Running {
    name: Arc<str>,
    handler: Arc<dyn Handler>,
    /// Number of results that may be processed at a time.
    count: usize,
    /// One permit for each of them.
    slots: Arc<Semaphore>,
    timeout: Duration,
    /// Maximum output that is stored, in bytes.
    output: usize,
    guests: Pools,
}

/// Stops a guest when this value is dropped. A guest that has ended is not affected.
struct StopOnDrop(Stop);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.force();
    }
}

#[async_trait]
impl Applets for HostApplets {
    fn knows(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    fn slots(&self, name: &str) -> usize {
        self.0.get(name).map_or(1, |applet| applet.count.max(1))
    }

    async fn run(&self, name: &str, input: Bytes) -> std::result::Result<Vec<u8>, AppletError> {
        let unavailable = |reason: &str| AppletError::Unavailable(reason.to_owned());
        let applet = self.0.get(name).ok_or_else(|| unavailable("there is none of this name"))?;
        let free = timeout(LONGEST_WAIT, Arc::clone(&applet.slots).acquire_owned()).await;
        let free = free.map_err(|_| unavailable("all that may run at a time are busy; see `concurrency`"))?;
        let slot = free.map_err(|_| unavailable("the service stops"))?;
        let call = applet.call(input);
        let _stop = StopOnDrop(call.bounds.stop.clone());
        let (sender, ended) = oneshot::channel();
        let (name, handler) = (Arc::clone(&applet.name), Arc::clone(&applet.handler));
        applet.guests.spawn(async move {
            let outcome = hostler_handler::run(&*handler, &call).await;
            log_output(&name, &call.output);
            // The sandbox is gone, so another one may start.
            drop(slot);
            // Nobody waits for an applet that was stopped.
            let _ = sender.send(outcome);
        });
        match timeout(applet.timeout, ended).await {
            Ok(Ok(Some(outcome))) => reply(outcome),
            Ok(Ok(None)) => Err(unavailable("it was stopped")),
            Ok(Err(_)) => Err(unavailable("a bug in hostler ended it")),
            Err(_) => {
                let limit = duration_text(applet.timeout);
                Err(AppletError::Failed(format!("it was stopped at its processing timeout of {limit}")))
            }
        }
    }
}

impl Running {
    fn call(&self, input: Bytes) -> Call {
        let id = uuid::Uuid::now_v7().to_string();
        let message = Message { enqueued_at: SystemTime::now(), ..Message::new(id, input) };
        let (bounds, output) = (Bounds::new(self.timeout), Output::new(self.output));
        Call::new(Arc::new(message), Arc::clone(&self.name), 1, bounds, output)
    }
}

/// Returns the reply of an applet, or the one who is at fault that there is none.
fn reply(outcome: Outcome) -> std::result::Result<Vec<u8>, AppletError> {
    match outcome {
        Outcome::Reply(body) => Ok(body),
        Outcome::Ack => {
            let text = "it acknowledged the result without a reply; the reply must be a JSON array, `[]` for no items";
            Err(AppletError::Failed(text.to_owned()))
        }
        outcome @ (Outcome::HostLimit(..) | Outcome::LeaseLost | Outcome::Shutdown) => {
            let reason = outcome.reason().unwrap_or_else(|| "it was stopped".to_owned());
            Err(AppletError::Unavailable(reason))
        }
        outcome => Err(AppletError::Failed(match outcome.reason() {
            Some(reason) => format!("{}: {reason}", outcome.name()),
            None => outcome.name().to_owned(),
        })),
    }
}

/// Logs the output of an applet. Called on the thread that ran it.
fn log_output(applet: &str, output: &Output) {
    let captured = output.take();
    let Excerpt { first, left_out, last } = captured.excerpt();
    let tell = |(stream, line)| tracing::info!(target: GUEST, applet, stream, "{line}");
    first.into_iter().for_each(tell);
    if left_out > 0 {
        tracing::warn!(target: GUEST, applet, "{left_out} more lines of output are not logged");
    }
    last.into_iter().for_each(tell);
    if captured.dropped > 0 {
        tracing::warn!(target: GUEST, applet, dropped = captured.dropped, "output beyond limits.output was dropped");
    }
}

#[cfg(test)]
mod tests {
    use hostler_handler::Limit;

    use super::*;

    #[test]
    fn the_host_s_limits_are_not_the_applet_s_fault() {
        assert_eq!(reply(Outcome::Reply(b"[]".to_vec())), Ok(b"[]".to_vec()));
        for outcome in [
            Outcome::Ack,
            Outcome::Retry(None),
            Outcome::Delay(Duration::ZERO),
            Outcome::DeadLetter("no".to_owned()),
            Outcome::Failed("no".to_owned()),
            Outcome::Trapped("no".to_owned()),
            Outcome::TimedOut(Duration::ZERO),
        ] {
            assert!(matches!(reply(outcome.clone()), Err(AppletError::Failed(_))), "{outcome:?}");
        }
        for outcome in [Outcome::HostLimit(Limit::Threads, "no".to_owned()), Outcome::LeaseLost, Outcome::Shutdown] {
            assert!(matches!(reply(outcome.clone()), Err(AppletError::Unavailable(_))), "{outcome:?}");
        }
    }

    #[test]
    fn an_applet_is_granted_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("hostler.toml");
        let text = "[jobs.applets.one]\nhandler = '/h/one.wasm'\nconcurrency = 2\nprocessing_timeout = '3s'\n\
            [consumers.a]\nchannel = 'a'\nhandler = '/h/a.wasm'\nallow.dirs = [{ host = '/in', guest = '/in' }]";
        std::fs::write(&file, text).unwrap();
        let loaded = hostler_config::load(Some(&file), std::iter::empty::<(String, String)>()).unwrap();
        let [one] = in_place_of_consumers(&loaded.config).unwrap().consumers.try_into().unwrap();
        assert_eq!((&*one.name, one.concurrency, &one.allow), ("one", Some(2), &Allow::default()));
        assert_eq!(
            (one.processing_timeout, one.messages_per_instance, one.reply),
            (Duration::from_secs(3), 1, Reply::Stdout)
        );
    }
}
