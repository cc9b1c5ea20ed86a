//! `hostler check`: all that can be known before the first message.

use super::{ConfigArg, block_on, print};
use crate::config::{Config, Consumer};
use crate::exit::{Exit, Failure, Result};
use crate::handler::{self, Definition, Engine, Summary};
use crate::{host, telemetry};

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
    // Every part is looked at, so that one run shows all that is wrong.
    telemetry::show_warnings();
    let handlers = block_on(check_handlers(&loaded.config));
    let queues = block_on(check_queues(&loaded.config));
    match (handlers, queues) {
        (Ok(()), Ok(())) => Ok(Exit::Ok),
        (Err(handlers), Err(queues)) => {
            Err(Failure::new(handlers.exit, format!("{}\nhostler: {}", handlers.message, queues.message)))
        }
        (Err(failure), Ok(())) | (Ok(()), Err(failure)) => Err(failure),
    }
}

async fn check_handlers(config: &Config) -> Result<()> {
    let cache = host::cache(config);
    let engine = Engine::on_demand().map_err(|error| Failure::new(Exit::Internal, error))?.with_cache(cache.clone());
    let definitions = host::definitions(config, &config.consumers, cache, None).await;
    let check = |(consumer, definition): (&Consumer, Result<Definition>)| {
        let loaded = handler::load(&engine, &definition?).map_err(|error| Failure::new(Exit::BadHandler, error))?;
        print(format!("handler   ok  {}: {}{}", consumer.name, consumer.handler, describe(&loaded.summary)));
        Ok(())
    };
    host::all(config.consumers.iter().zip(definitions).map(check).collect()).map(|_| ())
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
