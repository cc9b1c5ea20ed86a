//! `hostler check`: all that can be known before the first message.

use super::{ConfigArg, block_on, print};
use crate::config::Config;
use crate::exit::{Exit, Failure, Result};
use crate::handler::{self, Engine, Loaded, Summary};
use crate::host;
use crate::host::resources::{MEMORY, Machine, Plan, SLOTS, Threads};

/// Validate the config, load the handlers, reach the queues; consumes nothing
///
/// Prints what it found. Exits with 64 for a bad config, 65 for a bad handler, 69 for a queue that cannot be reached.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    config: ConfigArg,
}

pub(super) fn run(args: &Args) -> Result {
    let loaded = args.config.load()?;
    let file = loaded.file.as_ref().map_or("environment variables".into(), |file| file.display().to_string());
    print(format!("config    ok  {file}"));
    for warning in host::unused(&loaded.config) {
        eprintln!("hostler: warning: {warning}");
    }
    let machine = Machine::measure();
    handler::compile_with(Threads::of(&machine).compiling);
    // Every part is looked at, so that one run shows all that is wrong.
    let handlers = check_handlers(&loaded.config, &machine);
    let queues = block_on(check_queues(&loaded.config));
    match (handlers, queues) {
        (Ok(()), Ok(())) => Ok(Exit::Ok),
        (Err(handlers), Err(queues)) => {
            Err(Failure::new(handlers.exit, format!("{}\nhostler: {}", handlers.message, queues.message)))
        }
        (Err(failure), Ok(())) | (Ok(()), Err(failure)) => Err(failure),
    }
}

fn check_handlers(config: &Config, machine: &Machine) -> Result<()> {
    // As `run`: what cannot fit even before the handlers are known is refused first.
    host::plan(config, machine, &[])?;
    let engine = Engine::on_demand().map_err(|error| Failure::new(Exit::Internal, error))?;
    let load = |consumer| {
        let definition = host::definition(consumer, None)?;
        handler::load(&engine, &definition).map_err(|error| error.to_string())
    };
    let loaded: Vec<_> = config.consumers.iter().map(load).collect();
    let plan = host::plan(config, machine, &loaded.iter().map(|loaded| loaded.as_ref().ok()).collect::<Vec<_>>())?;
    let mut faults = Vec::new();
    for ((consumer, loaded), share) in config.consumers.iter().zip(loaded).zip(&plan.shares) {
        let usable = |loaded: &Loaded| loaded.handler(share.memory).map(drop).map_err(|error| error.to_string());
        match loaded.and_then(|loaded| usable(&loaded).map(|()| loaded)) {
            Ok(loaded) => {
                print(format!("handler   ok  {}: {}{}", consumer.name, consumer.handler, describe(&loaded.summary)))
            }
            Err(fault) => faults.push(fault),
        }
    }
    match faults.is_empty() {
        true => {
            print(describe_plan(config, &plan));
            Ok(())
        }
        false => Err(Failure::new(Exit::BadHandler, faults.join("\nhostler: "))),
    }
}

/// What each consumer gets, and of what, if it is less than where nothing is scarce.
fn describe_plan(config: &Config, plan: &Plan) -> String {
    let shares = plan.shares.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    let scarce = config.consumers.iter().zip(&plan.shares).any(|(consumer, share)| {
        consumer.concurrency.is_none() && share.slots < SLOTS
            || consumer.limits.memory.is_none() && share.memory < MEMORY
    });
    let limit = scarce.then(|| format!(" (the memory limit is {} MiB: {})", plan.limit.bytes >> 20, plan.limit.by));
    format!("memory    ok  {shares}{}", limit.unwrap_or_default())
}

async fn check_queues(config: &Config) -> Result<()> {
    let unreachable = |error| Failure::new(Exit::QueueUnreachable, error);
    let broker = host::connect(config).await.map_err(unreachable)?;
    let mut faulty = 0;
    for consumer in &config.consumers {
        let findings = broker.inspect(&host::channel_spec(consumer)).await.map_err(unreachable)?;
        for finding in &findings {
            eprintln!("queue     !!  {}: {finding}", consumer.name);
        }
        if findings.iter().any(|finding| finding.fatal) {
            faulty += 1;
            continue;
        }
        let dead_letters = match consumer.dead_letter {
            true => format!(", dead letters to {}", consumer.channel.dead_letter_queue()),
            false => ", no dead-letter queue".into(),
        };
        print(format!("queue     ok  {}: {}{dead_letters}", consumer.name, consumer.channel));
    }
    match faulty {
        0 => Ok(()),
        1 => Err(unreachable_channels("1 consumer cannot")),
        more => Err(unreachable_channels(&format!("{more} consumers cannot"))),
    }
}

fn unreachable_channels(who: &str) -> Failure {
    Failure::new(Exit::QueueUnreachable, format!("{who} work as the queues are: see `queue !!`, with each cure"))
}

/// What kind of handler it is, and what it imports.
pub(super) fn describe(summary: &Summary) -> String {
    let imports = summary.imports.iter().map(|import| format!("\n                imports {import}"));
    format!("\n              {}{}", summary.kind, imports.collect::<String>())
}
