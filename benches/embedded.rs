//! Throughput of the embedded queue: `cargo bench --bench embedded`.
//!
//! First measures the queue without a host, with backlogs of up to a million messages (BACKLOG), in several rounds (ROUNDS). With
//! `-- backlog`, measures nothing else. With `--check`, fails if the queue is slower than required.
//!
//! Then measures `hostler run` with a fresh sandbox per message, as a black box: the real binary, with JSON logs on standard
//! error, which goes to /dev/null. Sends all messages, then starts the host. The time runs from the start of the process until
//! the queue is empty. Prints messages per second, and the CPU time of the process per message.

mod backlog;

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use hostler_queue::{Admin, Broker};
use hostler_queue_embedded::EmbeddedBroker;
use hostler_types::channel::Channel;
use hostler_types::message::Outgoing;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Number of clock ticks per second in `/proc/PID/stat` (`sysconf(_SC_CLK_TCK)`, 100 on Linux).
const TICKS: f64 = 100.0;

/// A preview-1 command that does nothing, so that only the cost of the host remains.
const COMMAND: &str = r#"(module (memory (export "memory") 1) (func (export "_start")))"#;

fn main() -> Result<()> {
    let messages = std::env::var("MESSAGES").map_or(Ok(50_000), |text| text.parse())?;
    let backlog = std::env::var("BACKLOG").map_or(Ok(1_000_000), |text| text.parse())?;
    let rounds = std::env::var("ROUNDS").map_or(Ok(7), |text| text.parse())?;
    let said = |word: &str| std::env::args().any(|argument| argument == word);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(backlog::run(backlog, rounds, said("--check")))?;
    if said("backlog") {
        return Ok(());
    }
    let flights = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/flights/flights.wasm");
    println!("{:<34} {:>6} {:>12} {:>16}", "handler", "slots", "messages/s", "CPU µs/message");
    let once = "idempotency.key = \"id\"";
    for (name, handler, body, keys) in [
        ("command, empty", None, "{}", ""),
        ("command, empty, each key once", None, "{}", once),
        ("component, rejects the body", Some(flights), "{}", ""),
    ] {
        for slots in [4, 16, 64] {
            let folder = tempfile::tempdir()?;
            let handler = match &handler {
                Some(path) => compile(path, folder.path())?,
                None => {
                    let source = folder.path().join("empty.wat");
                    fs::write(&source, COMMAND)?;
                    compile(&source, folder.path())?
                }
            };
            let (rate, cpu) = runtime.block_on(measure(folder.path(), &handler, (body, keys), slots, messages))?;
            println!("{name:<34} {slots:>6} {rate:>12.0} {cpu:>16.1}");
        }
    }
    Ok(())
}

fn compile(source: &Path, folder: &Path) -> Result<PathBuf> {
    let compiled = folder.join("handler.cwasm");
    let status = Command::new(env!("CARGO_BIN_EXE_hostler"))
        .arg("compile")
        .arg(source)
        .arg("--output")
        .arg(&compiled)
        .args(["--cpu-baseline", "native"])
        .stdout(Stdio::null())
        .status()?;
    if status.success() { Ok(compiled) } else { Err("hostler compile failed".into()) }
}

async fn measure(
    folder: &Path,
    handler: &Path,
    (body, keys): (&str, &str),
    slots: usize,
    messages: usize,
) -> Result<(f64, f64)> {
    let config = folder.join("hostler.toml");
    let (queue, health) = (folder.join("queue.db"), folder.join("health.json"));
    fs::write(
        &config,
        format!(
            "[host]\nhealth_file = {health:?}\n[queue.embedded]\npath = {queue:?}\n[consumers.bench]\nchannel = \"bench\"\n\
             handler = {handler:?}\nconcurrency = {slots}\n{keys}\n"
        ),
    )?;
    let broker = EmbeddedBroker::open(&queue)?;
    let channel: Channel = "bench".parse()?;
    let message = Outgoing { body: body.into(), ..Outgoing::default() };
    for _ in 0..messages / 1000 {
        for sent in broker.send(&channel, vec![message.clone(); 1000]).await {
            sent?;
        }
    }
    let begin = Instant::now();
    let mut host = Host(
        Command::new(env!("CARGO_BIN_EXE_hostler"))
            .args(["run", "--config"])
            .arg(&config)
            .stderr(Stdio::null())
            .spawn()?,
    );
    loop {
        let depth = broker.depths(std::slice::from_ref(&channel)).await?.pop().unwrap_or_default();
        if depth.total() == 0 {
            break;
        }
        if host.0.try_wait()?.is_some() {
            return Err("hostler run ended early".into());
        }
        #[allow(clippy::disallowed_methods, reason = "the queue of another process can only be polled")]
        thread::sleep(Duration::from_millis(20));
    }
    let took = begin.elapsed();
    let cpu = cpu_seconds(host.0.id())?;
    Ok((messages as f64 / took.as_secs_f64(), cpu * 1e6 / messages as f64))
}

/// Returns the user and system time of a process so far (`proc_pid_stat(5)`, fields 14 and 15).
fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(')').ok_or("no process name")?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks = |index: usize| -> Result<f64> { Ok(fields.get(index).ok_or("too few fields")?.parse()?) };
    Ok((ticks(11)? + ticks(12)?) / TICKS)
}

/// A running host. Killed when this value is dropped.
struct Host(Child);

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
