//! Compares hostler with other consumers of SQS, RabbitMQ or NATS: the same queue and the same work, on one machine in one run.
//!
//! `run.sh` builds and installs everything needed, and starts this program. Without a command, runs the whole comparison: for
//! each latency, concurrency and contender, starts a separate server (`serve`), runs the contender on it, and prints the cost.
//! `bare` is one of the contenders. With `--growth`, measures how hostler's cost grows. With `--turns`, compares a few contenders
//! closely. With `--rabbitmq`, compares consumers of a RabbitMQ server, with `bare-amqp` among them; `publish` fills a queue there.
//! With `--nats`, compares consumers of a NATS server.

mod amqp;
mod arguments;
mod bare;
mod cell;
mod compare;
mod contenders;
mod contest;
mod growth;
mod jetstream;
mod machine;
mod messages;
mod nats;
mod pair;
mod plot;
mod process;
mod queue;
mod rabbitmq;
mod report;
mod server;
mod targets;
mod turns;
mod wire;

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use mimalloc::MiMalloc;
use tokio::runtime::Runtime;

use arguments::Arguments;
use messages::Form;

// Same allocator as in hostler, so that `bare` is hostler's lower limit.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

type Failure = Box<dyn Error + Send + Sync>;

type Result<T> = std::result::Result<T, Failure>;

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("side-by-side: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the command. Returns true if all requirements were met.
fn run() -> Result<bool> {
    let arguments = Arguments::new(std::env::args().skip(1));
    match arguments.command().as_deref() {
        Some("serve") => server::serve(serving(&arguments)?).map(|()| true),
        Some("bare") => {
            let (url, endpoint) = (needed(&arguments, "queue-url")?, needed(&arguments, "endpoint")?);
            let concurrency = arguments.number("concurrency")?.unwrap_or(10);
            bare::run(&url, &endpoint, concurrency, arguments.number("threads")?).map(|()| true)
        }
        Some("bare-amqp") => runtime()?.block_on(amqp::consume(bare_amqp(&arguments)?)).map(|()| true),
        Some("publish") => runtime()?.block_on(publish(&arguments)).map(|()| true),
        Some(other) => Err(format!("{other}: no command; serve, bare, bare-amqp or publish").into()),
        None if arguments.has("growth") => growth::run(&arguments),
        None if arguments.has("turns") => turns::run(&arguments),
        None if arguments.has("rabbitmq") => runtime()?.block_on(rabbitmq::run(&arguments)),
        None if arguments.has("nats") => runtime()?.block_on(nats::run(&arguments)),
        None => compare::run(&arguments),
    }
}

fn runtime() -> Result<Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}

fn needed(arguments: &Arguments, key: &str) -> Result<String> {
    Ok(arguments.text(key).ok_or_else(|| format!("--{key} is missing"))?)
}

fn bare_amqp(arguments: &Arguments) -> Result<amqp::Bare> {
    Ok(amqp::Bare {
        url: needed(arguments, "url")?,
        queue: needed(arguments, "queue")?,
        prefetch: arguments.number("prefetch")?.unwrap_or(64),
        multiple: arguments.has("multiple"),
    })
}

/// Publishes the orders with the numbers from 0 up to `--count`.
async fn publish(arguments: &Arguments) -> Result<()> {
    let (url, queue) = (needed(arguments, "url")?, needed(arguments, "queue")?);
    let count = arguments.number("count")?.unwrap_or(1);
    amqp::publish(&amqp::connect(&url).await?, &queue, Form::Plain, 0..count).await
}

fn serving(arguments: &Arguments) -> Result<server::Options> {
    let milliseconds = |key: &str, default: u64| -> Result<Duration> {
        Ok(Duration::from_millis(arguments.number(key)?.unwrap_or(default)))
    };
    let form = if arguments.text("form").as_deref() == Some("celery") { Form::Celery } else { Form::Plain };
    Ok(server::Options {
        form,
        body_bytes: arguments.number("body-bytes")?.unwrap_or(0),
        latency: milliseconds("latency-ms", 0)?,
        warm_up: milliseconds("warm-up-ms", 1000)?,
        window: milliseconds("window-ms", 4000)?,
    })
}
