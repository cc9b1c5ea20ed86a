//! Command `hostler check`. Detects every problem that can be detected before the first message is received.

use super::{ConfigArg, block_on, print, say};
use crate::exit::{Exit, Failure, Result};
use crate::host;
use crate::host::hardening::Hardening;
use crate::host::resources::{MEMORY, Machine, Plan, SLOTS, Share, Threads, own_memory_limit};
use hostler_config::{Config, Consumer};
use hostler_queue::parallel::side_by_side;
use hostler_telemetry as telemetry;
use hostler_types::printable::on_one_line;
use hostler_types::tcp_grant::TcpGrant;
use hostler_wasm::{self as handler, Definition, Engine, Loaded, Summary};

const HELP: &str = "\
Examples:
  hostler check
  hostler check --config config/hostler.toml

Consumes nothing and reports all problems at once. Exits with 64 for a bad config or a secret that cannot be had, 65 for a bad handler, 69 for a \
    queue, a NATS server or a database that cannot be reached. Warns about servers of allow.tcp that cannot be reached.";

/// Check the config, the handlers and the queues
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    #[command(flatten)]
    config: ConfigArg,
}

pub(super) fn run(args: &Args) -> Result {
    let loaded = args.config.load()?;
    let file = loaded.file.as_ref().map_or("environment variables".into(), |file| file.display().to_string());
    print(format!("config    ok  {file}"));
    for warning in host::config_warnings(&loaded.config) {
        say(format_args!("hostler: warning: {warning}"));
    }
    if let Some(warning) = own_memory_limit() {
        say(format_args!("hostler: warning: {warning}"));
    }
    let machine = Machine::measure();
    // Starts as many threads as `run` does, including the signal thread. `check` therefore detects a process limit that is
    // too low.
    let of_driver = host::driver(&loaded.config).threads();
    machine.try_threads(Threads::of(&machine, host::sets(&loaded.config.consumers)).least(of_driver) + 1)?;
    handler::compile_with(Threads::of(&machine, 1).compiling);
    // Checks every part even after a failure. One run then reports all problems.
    telemetry::show_warnings();
    let grants = host::check_grants(&loaded);
    let hardening = check_hardening(&loaded.config, &machine);
    let handlers = block_on(check_handlers(&loaded.config, &machine));
    let secrets = block_on(check_secrets(&loaded.config));
    let servers = block_on(check_servers(&loaded.config));
    let queues = block_on(check_queues(&loaded.config));
    let schedules = block_on(super::schedules::check(&loaded.config));
    let records = block_on(check_records(&loaded.config));
    let jobs = block_on(check_jobs(&loaded.config));
    #[cfg(feature = "retry")]
    let retry = block_on(check_retry(&loaded.config));
    #[cfg(not(feature = "retry"))]
    let retry = Ok(());
    #[cfg(feature = "jobs")]
    let service = block_on(check_job_service(&loaded.config));
    #[cfg(not(feature = "jobs"))]
    let service = Ok(());
    #[cfg(feature = "jobs")]
    let applets = block_on(check_applets(&loaded.config, &machine));
    #[cfg(not(feature = "jobs"))]
    let applets = Ok(());
    let failures: Vec<_> =
        [grants, hardening, handlers, secrets, applets, servers, queues, schedules, records, jobs, retry, service]
            .into_iter()
            .filter_map(Result::err)
            .collect();
    let Some(first) = failures.first() else { return Ok(Exit::Ok) };
    let mut messages: Vec<&str> = Vec::new();
    for Failure { message, .. } in &failures {
        // A grant that includes the queue file also prevents opening the queue. Prints the common message of both errors only
        // once.
        if !messages.iter().any(|told| told.contains(message.as_str())) {
            messages.push(message);
        }
    }
    Err(Failure::new(first.exit, messages.join("\nhostler: ")))
}

fn check_hardening(config: &Config, machine: &Machine) -> Result<()> {
    let hardening = Hardening::examine(config, machine)?;
    // With `hardening = "require"`, a shortage has already made `examine` fail.
    if let Some(shortage) = host::too_few_processes(config, machine) {
        say(format_args!("hostler: warning: {shortage}\n  cure: {}", shortage.cure()));
    }
    match hardening {
        Some(Hardening { files, calls, .. }) => {
            print(format!("hardening ok  files: {files}\n              calls: {calls}"))
        }
        None => print("hardening off"),
    }
    Ok(())
}

async fn check_handlers(config: &Config, machine: &Machine) -> Result<()> {
    // Like `run`, first refuses a config whose memory demand exceeds the limit even without the handlers.
    host::plan(config, machine, &[])?;
    let cache = host::cache(config);
    // Uses a pool of the same size as in `run`. Therefore, both commands refuse the same handlers.
    let engine = Engine::new(host::pool(config)).map_err(|error| Failure::new(Exit::Internal, error))?;
    let engine = engine.with_cache(cache.clone());
    let load = |definition: Result<Definition>| {
        handler::load(&engine, &definition?).map_err(|error| Failure::new(Exit::BadHandler, error))
    };
    let definitions = host::definitions(config, &config.consumers, cache, None).await;
    let loaded: Vec<_> = definitions.into_iter().map(load).collect();
    let plan = host::plan(config, machine, &loaded.iter().map(|loaded| loaded.as_ref().ok()).collect::<Vec<_>>())?;
    let check = |((consumer, loaded), share): ((&Consumer, Result<Loaded>), &Share)| {
        let loaded = loaded?;
        loaded.handler(share.memory).map_err(|error| Failure::new(Exit::BadHandler, error))?;
        print(format!("handler   ok  {}: {}{}", consumer.name, consumer.handler, describe(&loaded.summary)));
        for copies in loaded.long_copies(share.memory) {
            say(format_args!("hostler: warning: consumers.{}: {copies}\n  cure: {}", consumer.name, copies.cure()));
        }
        Ok(())
    };
    let files = host::file_plan(config)?;
    if let Some(warning) = files.warning() {
        say(format_args!("hostler: warning: {warning}"));
    }
    host::all(config.consumers.iter().zip(loaded).zip(&plan.shares).map(check).collect())?;
    print(describe_plan(config, &plan));
    Ok(())
}

/// Formats the memory share of each consumer. If the memory limit reduces the share of a consumer, also names the limit.
fn describe_plan(config: &Config, plan: &Plan) -> String {
    let shares = plan.shares.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    let scarce = config.consumers.iter().zip(&plan.shares).any(|(consumer, share)| {
        consumer.concurrency.is_none() && share.slots < SLOTS
            || consumer.limits.memory.is_none() && share.memory < MEMORY
    });
    let limit = scarce.then(|| format!(" (the memory limit is {} MiB: {})", plan.limit.bytes >> 20, plan.limit.by));
    format!("memory    ok  {shares}{}", limit.unwrap_or_default())
}

/// Looks each secret up once.
async fn check_secrets(config: &Config) -> Result<()> {
    host::Secrets::of(&config.consumers, std::sync::Arc::default).await?;
    for Consumer { name, allow, .. } in &config.consumers {
        for (variable, secret) in &allow.secrets {
            print(format!("secret    ok  {name}: {variable} from {secret}"));
        }
    }
    Ok(())
}

/// Tries to connect to the servers that consumers grant their handlers. The start of `run` needs none of them, so a server that
/// cannot be reached now is a warning.
async fn check_servers(config: &Config) -> Result<()> {
    let granted =
        config.consumers.iter().flat_map(|consumer| consumer.allow.tcp.iter().map(move |grant| (consumer, grant)));
    let probes = granted.clone().map(|(consumer, grant)| {
        let (grant, networks) = (grant.clone(), consumer.allow.networks.clone());
        async move { handler::probe(&grant, &networks).await }
    });
    for ((Consumer { name, .. }, TcpGrant { to: server, .. }), probed) in granted.zip(side_by_side(probes).await) {
        match probed {
            Some(Ok(at)) => print(format!("tcp       ok  {name}: {server} at {at}")),
            Some(Err(error)) => {
                let cure = error.cure();
                say(format_args!("tcp       !!  {name}: allow.tcp grants {server}: {error}\n  cure: {cure}"));
            }
            // The process is ending.
            None => {}
        }
    }
    Ok(())
}

async fn check_queues(config: &Config) -> Result<()> {
    if !host::needs_queue(config) {
        return Ok(());
    }
    let broker = super::connect(config).await?;
    let mut faulty = 0;
    for consumer in &config.consumers {
        let mut findings = Vec::new();
        if consumer.job.is_none() {
            findings = broker.inspect(&host::channel_spec(consumer)).await?;
        }
        findings.extend(host::unsendable(&*broker, config, consumer).await?);
        for finding in &findings {
            say(format_args!("queue     !!  {}: {finding}", consumer.name));
        }
        if findings.iter().any(|finding| finding.fatal) {
            faulty += 1;
            continue;
        }
        if consumer.job.is_some() {
            // See `check_jobs`.
            continue;
        }
        let dead_letters = if consumer.dead_letter {
            format!(", dead letters to {}", consumer.channel.dead_letter_queue())
        } else {
            ", no dead-letter queue".into()
        };
        let see = if findings.is_empty() { "" } else { " (see the warnings above)" };
        print(match &consumer.subject {
            None => format!("queue     ok  {}: {}{dead_letters}{see}", consumer.name, consumer.channel),
            Some(subject) => {
                format!(
                    "subject   ok  {}: {}, queue group {}{see}",
                    consumer.name, subject.pattern, subject.queue_group
                )
            }
        });
    }
    match faulty {
        0 => Ok(()),
        1 => Err(unreachable_channels("1 consumer cannot")),
        more => Err(unreachable_channels(&format!("{more} consumers cannot"))),
    }
}

/// Checks the stores of idempotency records.
async fn check_records(config: &Config) -> Result<()> {
    for named in host::stores(config) {
        let driver = named.driver();
        // Creates nothing then, and tells what `run` would be refused.
        let makes = driver.makes_what_is_missing(config);
        let broker = if makes { driver.connect_to_look(config).await? } else { driver.connect(config).await? };
        let records = broker.records()?;
        // What is still to be made cannot be inspected.
        if !makes || records.planned_changes().await?.is_empty() {
            records.inspect().await?;
        }
        for consumer in &config.consumers {
            let Some(idempotency) = consumer.idempotency.as_ref().filter(|it| it.store == named.store) else {
                continue;
            };
            let store = if named.is_own { "the queue's database" } else { idempotency.store.word() };
            print(format!("records   ok  {}: {} in {store}", consumer.name, idempotency.key));
        }
    }
    Ok(())
}

/// Checks that the job service takes the consumers of jobs for its workers.
#[cfg(feature = "jobs")]
async fn check_jobs(config: &Config) -> Result<()> {
    if !host::needs_jobs(config) {
        return Ok(());
    }
    let service = host::connect_to_jobs(config).await?;
    for consumer in &config.consumers {
        let Some(kind) = &consumer.job else { continue };
        let waiting = service.depth(kind).await?.visible;
        print(format!("jobs      ok  {}: {kind}, {waiting} items ready at {}", consumer.name, config.jobs.url));
    }
    Ok(())
}

/// Checks that no consumer processes jobs, which this build lacks.
#[cfg(not(feature = "jobs"))]
async fn check_jobs(config: &Config) -> Result<()> {
    if host::needs_jobs(config) {
        return Err(Failure::new(Exit::QueueUnreachable, "this build of hostler has no consumers of jobs"));
    }
    Ok(())
}

/// Checks that the retry service could start.
#[cfg(feature = "retry")]
async fn check_retry(config: &Config) -> Result<()> {
    let Some(service) = &config.retry else { return Ok(()) };
    let failure = |text| Failure::new(Exit::QueueUnreachable, text);
    let folder = service.store.display();
    hostler_retry::stores::check(&service.store).map_err(|error| {
        failure(format!("retry.store: cannot use the folder {folder}: {error}; it must be writable for this user"))
    })?;
    hostler_retry::nats::check(service.nats.expose(), &service.subject)
        .await
        .map_err(|error| failure(format!("cannot use the NATS server of `retry.nats`: {error}")))?;
    print(format!("retry     ok  {}.>: stores in {folder}", service.subject));
    Ok(())
}

/// Checks that the job service could start, if the config has a database for it.
#[cfg(feature = "jobs")]
async fn check_job_service(config: &Config) -> Result<()> {
    if !config.jobs.has_database() {
        return Ok(());
    }
    host::check_jobs(config).await?;
    print(format!("jobs      ok  {}: the database answers", config.jobs.listen));
    Ok(())
}

/// Checks that the applets of the job service can be loaded.
#[cfg(feature = "jobs")]
async fn check_applets(config: &Config, machine: &Machine) -> Result<()> {
    for (applet, summary) in host::check_applets(config, machine).await? {
        print(format!("applet    ok  {applet}{}", describe(&summary)));
    }
    Ok(())
}

fn unreachable_channels(who: &str) -> Failure {
    Failure::new(
        Exit::QueueUnreachable,
        format!("{who} work with these queues: the lines `queue !!` above name each fault and its cure"),
    )
}

/// Formats the kind of a handler and its imports.
pub(super) fn describe(summary: &Summary) -> String {
    let imports = summary.imports.iter().map(|import| format!("\n                imports {}", on_one_line(import)));
    format!("\n              {}{}", summary.kind, imports.collect::<String>())
}
