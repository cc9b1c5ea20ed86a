//! Command `hostler invoke`. Runs one handler on one message, without a queue.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use super::output::json;
use super::source::{self, BodyArgs};
use super::{ConfigArg, block_on, print};
use crate::exit::{Exit, Failure, Result};
use crate::host;
use crate::host::resources::{MEMORY, Machine, Threads};
use hostler_config::{self as config, Config, Consumer};
use hostler_handler::{Bounds, Call, Captured, Handler, Outcome, Output};
use hostler_telemetry as telemetry;
use hostler_types::message::{Attributes, Message, Outgoing, TraceContext};
use hostler_types::printable::Printable;
use hostler_wasm::cache::Cache;
use hostler_wasm::fetch::Reference;
use hostler_wasm::{self as handler, Definition, Engine, Grants, Pool, Source};

/// Processing timeout of a handler that runs without a config. This value and [`OUTPUT`], the output limit, equal the
/// defaults of the config.
const TIMEOUT: Duration = Duration::from_secs(60);
const OUTPUT: usize = 64 * 1024;

/// Number of threads that are needed to process one message. They run the guest and its blocking calls, advance the
/// epoch, and fetch the handler.
const THREADS: usize = 6;

/// Maximum number of sandboxes. A typical handler and its hooks need fewer. The larger number leaves room for unusually
/// large components.
const POOL: Pool = Pool { sandboxes: 8 };

const HELP: &str = "\
Examples:
  hostler invoke handler.wasm --body '{\"id\": 7}'
  hostler invoke thumbnails --file picture.jpg --attr locale=de --json

Runs the handler as `run` would, without a queue. A consumer's name runs its handler with its grants and limits. Exits \
    with 0 if the handler acked or replied, else with 1.";

/// Run a handler on one message and print the outcome
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// A .wasm, .wat or .cwasm file, s3://…, oci://…, or a consumer of the config
    handler: String,
    #[command(flatten)]
    body: BodyArgs,
    /// An attribute; may be given up to 10 times
    #[arg(long, value_name = "NAME=VALUE", value_parser = source::attribute)]
    attr: Vec<(String, String)>,
    /// The delivery attempt to simulate
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    attempt: u32,
    /// The routing key of the message
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    routing_key: Option<String>,
    /// The FIFO group of the message
    #[arg(long, value_name = "GROUP", allow_hyphen_values = true)]
    group: Option<String>,
    /// Print the outcome as one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArg,
}

/// Outcome, as `--json` prints it.
#[derive(Serialize)]
struct Answer {
    outcome: &'static str,
    reason: Option<String>,
    delay_seconds: Option<u64>,
    reply_base64: Option<String>,
    duration_ms: f64,
    stderr: String,
}

/// Handler to run, with its limits.
struct Subject {
    definition: Definition,
    /// Linear memory of the sandbox in bytes.
    memory: u64,
    channel: String,
    timeout: Duration,
    output: usize,
    cache: Option<Arc<Cache>>,
}

pub(super) fn run(args: &Args) -> Result {
    telemetry::show_warnings();
    let machine = Machine::measure();
    machine.try_threads(THREADS)?;
    handler::compile_with(Threads::of(&machine, 1).compiling);
    let attributes = source::attributes(&args.attr);
    sendable(&attributes)?;
    let subject = subject(args, &machine)?;
    let body = args.body.open()?.read_all()?;
    // Like `run`, refuses a handler that does not fit into the pool.
    let engine = Engine::new(POOL).map_err(|error| Failure::new(Exit::Internal, error))?.with_cache(subject.cache);
    let bad = |error| Failure::new(Exit::BadHandler, error);
    let loaded = handler::load(&engine, &subject.definition).map_err(bad)?;
    let handler = loaded.handler(subject.memory).map_err(bad)?;
    let message = Message {
        id: uuid::Uuid::now_v7().to_string(),
        body: body.into(),
        trace: TraceContext::of(&attributes).map(Arc::new),
        attributes,
        enqueued_at: SystemTime::now(),
        group: args.group.clone(),
        routing_key: args.routing_key.clone(),
        claim: None,
    };
    let bounds = Bounds::new(subject.timeout);
    let output = Output::new(subject.output);
    let call = Call::new(Arc::new(message), subject.channel.as_str().into(), args.attempt, bounds, output);

    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).event_interval(1).enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(Exit::Internal, error))?;
    let started = Instant::now();
    let outcome = runtime.block_on(process(&handler, &call, subject.timeout));
    let took = started.elapsed();
    runtime.shutdown_background();

    let success = outcome.is_success();
    let mut captured = call.output.take();
    if captured.stdout.is_empty() {
        // A command with `reply = "stdout"` writes its reply to standard output. If the outcome is not a reply, this output is
        // shown as standard output.
        captured.stdout = std::mem::take(&mut captured.reply);
    }
    if args.json {
        print(json(&answer(&outcome, took, &captured))?);
    } else {
        for_people(&outcome, took, &captured, &loaded.summary)
    }
    Ok(if success { Exit::Ok } else { Exit::Failed })
}

/// Refuses attributes that no queue accepts. Does not limit the size of the body, because the maximum differs between queues.
fn sendable(attributes: &Attributes) -> Result<()> {
    let message = Outgoing { attributes: attributes.clone(), ..Outgoing::default() };
    message.validate(usize::MAX).map_err(|error| Failure::new(Exit::Usage, error))
}

async fn process(handler: &Arc<dyn Handler>, call: &Call, limit: Duration) -> Outcome {
    let stop = call.bounds.stop.clone();
    let guest = {
        let (handler, call) = (Arc::clone(handler), call.clone());
        tokio::spawn(async move { hostler_handler::run(&*handler, &call).await })
    };
    let forced = async {
        tokio::time::sleep(limit).await;
        stop.force();
        std::future::pending::<()>().await;
    };
    let ended = tokio::select! {
        ended = guest => ended,
        () = forced => return Outcome::TimedOut(limit),
    };
    match ended {
        Ok(Some(outcome)) => outcome,
        Ok(None) => Outcome::TimedOut(limit),
        Err(error) => Outcome::Trapped(format!("the host failed to run it: {error}")),
    }
}

/// Returns a hint with the consumer name that is most similar to `name`. The hint is empty if no consumer has a similar name.
fn meant(name: &str, config: Option<&Config>) -> String {
    let consumers = config.into_iter().flat_map(|config| &config.consumers).map(|consumer| consumer.name.as_str());
    config::alike(name, consumers).map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
}

/// Returns the handler that the argument HANDLER names. If a consumer of the config has this name, returns the
/// consumer's handler. Otherwise, HANDLER must be a remote reference or the path of a file.
fn subject(args: &Args, machine: &Machine) -> Result<Subject> {
    let is_reference = Reference::is_meant_by(&args.handler);
    let is_file = Path::new(&args.handler).exists();
    let loaded = match config::load(args.config.config.as_deref(), std::env::vars_os()) {
        Ok(loaded) => {
            super::warn(&loaded.warnings);
            Some(loaded)
        }
        // A config that the command line names must be valid. If HANDLER is a file or a reference, an invalid config in a default
        // location is ignored.
        Err(error) if args.config.config.is_some() || !is_file && !is_reference && !error.is_not_found() => {
            return Err(Failure::new(Exit::BadConfig, error));
        }
        Err(_) => {
            super::warn_of_variables();
            None
        }
    };
    let consumer = loaded.iter().find_map(|loaded| {
        let consumer = loaded.config.consumers.iter().find(|consumer| consumer.name == args.handler)?;
        Some((loaded, consumer))
    });
    let config = loaded.as_ref().map(|loaded| &loaded.config);
    match consumer {
        Some((loaded, consumer)) => {
            host::check_grants(loaded)?;
            of_consumer(&loaded.config, consumer, memory(consumer, &loaded.config, machine))
        }
        None if is_reference => {
            let cache = config.and_then(host::cache);
            let source = block_on(host::fetch(&args.handler, config, cache.clone()))?;
            Ok(Subject { cache, ..of_source(source) })
        }
        None if is_file => Ok(of_source(Source::from(Path::new(&args.handler)))),
        None => Err(Failure::new(
            Exit::BadHandler,
            format!(
                "`{}` is neither a file nor a consumer of the config{}\n  cure: name a .wasm, .wat or .cwasm file that exists, \
                 or a consumer of the config that --config names",
                args.handler,
                meant(&args.handler, config)
            ),
        )),
    }
}

/// Returns the sandbox memory that `run` would assign to the consumer on this machine.
///
/// If `run` would refuse the config, returns the memory that the config sets, or the default. In that case, not all
/// slots of the config fit into the machine's memory. However, `invoke` needs only one sandbox, which may fit.
fn memory(consumer: &Consumer, config: &Config, machine: &Machine) -> u64 {
    let plan = host::plan(config, machine, &[]).ok();
    let share = plan.and_then(|plan| plan.shares.into_iter().find(|share| share.consumer == consumer.name));
    share.map_or(consumer.limits.memory.unwrap_or(MEMORY), |share| share.memory)
}

fn of_consumer(config: &Config, consumer: &Consumer, memory: u64) -> Result<Subject> {
    let cache = host::cache(config);
    let consumers = std::slice::from_ref(consumer);
    let fetched = async {
        let definitions = host::all(host::definitions(config, consumers, cache.clone(), None).await)?;
        Ok((definitions, host::Secrets::of(consumers, Arc::default).await?))
    };
    let (definitions, secrets) = block_on(fetched)?;
    let definition = definitions.into_iter().next();
    let mut definition = definition.ok_or_else(|| Failure::new(Exit::Internal, "no definition of the consumer"))?;
    definition.grants.secrets = secrets.and_then(|secrets| secrets.variables(&consumer.name));
    Ok(Subject {
        memory,
        definition,
        channel: consumer.source(),
        timeout: consumer.processing_timeout,
        output: usize::try_from(consumer.limits.output).unwrap_or(usize::MAX),
        cache,
    })
}

fn of_source(source: Source) -> Subject {
    let definition = Definition {
        consumer: "invoke".into(),
        source,
        sha256: None,
        hooks: None,
        hooks_sha256: None,
        grants: Grants::default(),
        messages_per_instance: 1,
        batches: false,
        reply_from_stdout: false,
        metrics: None,
    };
    Subject { definition, memory: MEMORY, channel: "invoke".into(), timeout: TIMEOUT, output: OUTPUT, cache: None }
}

fn answer(outcome: &Outcome, took: Duration, captured: &Captured) -> Answer {
    Answer {
        outcome: outcome.name(),
        reason: outcome.reason(),
        delay_seconds: match outcome {
            Outcome::Delay(delay) => Some(delay.as_secs()),
            _ => None,
        },
        reply_base64: match outcome {
            Outcome::Reply(body) => Some(STANDARD.encode(body)),
            _ => None,
        },
        duration_ms: (took.as_secs_f64() * 1e6).round() / 1e3,
        stderr: String::from_utf8_lossy(&captured.stderr).into_owned(),
    }
}

fn for_people(outcome: &Outcome, took: Duration, captured: &Captured, summary: &handler::Summary) {
    for (stream, line) in captured.lines() {
        print(format!("{stream:<9} {}", Printable(&line)));
    }
    print(format!("handler   {}", summary.kind));
    for import in &summary.imports {
        print(format!("            imports {}", Printable(import)));
    }
    print(format!("outcome   {}", outcome.name()));
    match outcome {
        Outcome::Delay(delay) => print(format!("delay     {}", humantime::format_duration(*delay))),
        Outcome::Reply(body) => print(format!("reply     {}", Printable(&String::from_utf8_lossy(body)))),
        _ => {}
    }
    if let Some(reason) = outcome.reason() {
        print(format!("reason    {}", Printable(&reason)));
    }
    print(format!("took      {:.3} ms", took.as_secs_f64() * 1e3));
}
