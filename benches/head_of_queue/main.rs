//! Unprocessable messages in front of good ones on RabbitMQ: hostler beside a consumer that requeues what fails.
//!
//! `cargo bench --bench head_of_queue -- --out FOLDER` gives each 500 bad messages with 500 good ones behind them, and measures when
//! the good ones are done. It writes `head-of-queue.svg` and `head-of-queue.tsv`. The exit code is 0 only if hostler has done all of
//! them within 5 s. RabbitMQ is the server that `tests/servers.sh` installs.

mod naive;
mod plot;
// `cfg(test)` marks the module as test code for clippy.
#[cfg(test)]
mod support;

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;

use support::hostler::{PATIENCE, World};
use support::rabbitmq::RabbitMq;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Numbers of messages: those that can never be processed, and the good ones behind them.
const BAD: usize = 500;
const GOOD: usize = 500;

/// Number of messages at a time.
const SLOTS: u16 = 16;

/// Time that a handler needs for a message, good or bad.
const WORK: Duration = Duration::from_millis(20);

/// Length of a measurement.
const LENGTH: Duration = Duration::from_secs(20);

/// Maximum time until hostler has done the good messages.
const TARGET: f64 = 5.0;

/// Times at which a consumer acked the good messages, in seconds.
struct Measured {
    name: &'static str,
    acked: Vec<f64>,
}

fn main() -> ExitCode {
    match measure() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Measures, and writes the results. Returns `false` if hostler misses the target.
fn measure() -> Result<bool> {
    let out = out()?;
    let server = RabbitMq::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let measured = [
        Measured { name: "hostler", acked: hostler(&server)? },
        Measured {
            name: "requeue on error, classic queue",
            acked: runtime.block_on(naive::run(&server.url(), "classic"))?,
        },
    ];
    for Measured { name, acked } in &measured {
        let last = acked.last().copied().unwrap_or_default();
        println!("{name}: {} of {GOOD} good messages done, the last after {last:.1} s", acked.len());
    }
    if let Some(out) = out {
        write(&out, &measured)?;
    }
    let [Measured { acked, .. }, ..] = &measured;
    Ok(acked.len() == GOOD && acked.iter().all(|seconds| *seconds < TARGET))
}

/// Reads the command line. Cargo adds `--bench`.
fn out() -> Result<Option<PathBuf>> {
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    match (args.next().as_deref(), args.next(), args.next()) {
        (None, None, None) => Ok(None),
        (Some("--out"), Some(folder), None) => Ok(Some(folder.into())),
        _ => Err("usage: head_of_queue [--out FOLDER]".into()),
    }
}

/// Runs hostler. Returns the seconds at which the good messages were acked, from the moment at which it consumes.
fn hostler(server: &RabbitMq) -> Result<Vec<f64>> {
    let guest = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/head_of_queue/guest.wat");
    let config = format!(
        "
        [queue]
        driver = 'rabbitmq'
        [consumers.work]
        channel = 'work'
        handler = '{guest}'
        concurrency = {SLOTS}
        retry = {{ requeues = 1, requeue_delay = '0s', delays = 1, delay = '2s' }}
        "
    );
    let env =
        vec![("HOSTLER_QUEUE__RABBITMQ__URL", server.url()), ("HOSTLER_HOST__HEALTH_FILE", "health.json".to_owned())];
    let world = World::with("", env, &config);
    world.provision();
    world.send("work", ["bad"; BAD].into_iter().chain(["good"; GOOD]));
    let mut host = world.start();
    let time = |line: &Value| humantime::parse_rfc3339(line["timestamp"].as_str().unwrap_or_default());
    let begun = time(&host.wait_for(PATIENCE, |line| line["message"] == "consuming"))?;
    // Each bad message is tried three times.
    let lines = host.settled(3 * BAD + GOOD);
    host.stop();
    let mut acked = Vec::new();
    for line in lines.iter().filter(|line| line["outcome"] == "ack") {
        acked.push(time(line)?.duration_since(begun).unwrap_or_default().as_secs_f64());
    }
    Ok(acked)
}

/// Writes the plot, and the data as lines of numbers.
fn write(out: &Path, measured: &[Measured]) -> Result<()> {
    fs::create_dir_all(out)?;
    fs::write(out.join("head-of-queue.svg"), plot::plot(measured)?)?;
    let mut table = "consumer\tseconds\tgood messages done\n".to_owned();
    for Measured { name, acked } in measured {
        for (done, seconds) in acked.iter().enumerate() {
            writeln!(table, "{name}\t{seconds:.3}\t{}", done + 1)?;
        }
    }
    fs::write(out.join("head-of-queue.tsv"), table)?;
    Ok(())
}
