//! Parts of one driver's run: its folder with config and queue, its server, its host, and its records.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::Result;
use crate::account::Ledger;
use crate::clock::{Clock, pause};
use crate::faults::Event;
use crate::host::{Host, Tally};
use crate::sample::Sample;
use crate::server::Server;
use crate::support::{guests, proxy::Proxy};

/// A queue driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Driver {
    Embedded,
    Sqs,
}

impl Driver {
    /// Returns the name in configs and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Sqs => "sqs",
        }
    }
}

/// A consumer of the soak: its name, which is also the name of its channel, its guest, and its own config keys.
struct Consumer(&'static str, Guest, &'static str);

/// Guest of a consumer.
enum Guest {
    /// The component `guest.wat` next to this file.
    Marks,
    /// A command in `tests/guests`.
    Command(&'static str),
    /// A component in `tests/guests`.
    Component(&'static str),
}

/// Consumers of the soak. Consumers that finally succeed have many attempts, so that faults do not exhaust them.
const CONSUMERS: [Consumer; 10] = [
    Consumer("tiny", Guest::Marks, "concurrency = 8\nlease = '10s'\nretry.requeues = 50\nretry.requeue_delay = '1s'"),
    Consumer(
        "slow",
        Guest::Marks,
        "concurrency = 8\nlease = '4s'\nprocessing_timeout = '20s'\non_processing_timeout = 'retry'\n\
         retry.requeues = 50",
    ),
    Consumer(
        "flaky",
        Guest::Marks,
        "concurrency = 4\nlease = '10s'\nretry.requeues = 1\nretry.requeue_delay = '1s'\nretry.delays = 30\n\
         retry.delay = '1s'\nretry.max_delay = '4s'",
    ),
    Consumer(
        "ordered",
        Guest::Marks,
        "ordered = true\nconcurrency = 4\nlease = '10s'\nretry.requeues = 50\nretry.requeue_delay = '1s'",
    ),
    Consumer(
        "replies",
        Guest::Component("replies"),
        "concurrency = 4\nlease = '10s'\nretry.requeues = 50\nreply_channel = 'answers'\nmessages_per_instance = 50",
    ),
    Consumer("answers", Guest::Marks, "concurrency = 4\nlease = '10s'\nretry.requeues = 50"),
    Consumer("refused", Guest::Component("dead-letters"), "concurrency = 2\nlease = '10s'"),
    Consumer(
        "traps",
        Guest::Component("traps"),
        "concurrency = 2\nlease = '10s'\nretry.requeues = 2\nretry.requeue_delay = '1s'\nretry.delays = 0",
    ),
    Consumer("loops", Guest::Component("loops"), "concurrency = 2\nlease = '10s'\nprocessing_timeout = '1s'"),
    Consumer(
        "hungry",
        Guest::Command("main-hogs"),
        "concurrency = 2\nlease = '10s'\nretry.requeues = 1\nretry.requeue_delay = '1s'\nretry.delays = 0\n\
         limits.memory = '16MiB'",
    ),
];

/// Run of one driver.
pub struct World {
    pub driver: Driver,
    pub clock: Clock,
    folder: TempDir,
    pub server: Option<Server>,
    /// Proxy between host and server. Commands that send bypass the proxy.
    pub proxy: Option<Proxy>,
    host: Mutex<Option<Host>>,
    pub tally: Arc<Mutex<Tally>>,
    /// Locked while the soak makes the queue unavailable. Commands of the soak wait for this lock.
    pub gate: Mutex<()>,
    pub ledger: Mutex<Ledger>,
    pub events: Mutex<Vec<Event>>,
    pub samples: Mutex<Vec<Sample>>,
    /// Set after an error that makes it pointless to continue.
    failed: AtomicBool,
}

/// Locks a mutex. A poisoned mutex is an error of the soak.
pub fn lock<T>(mutex: &Mutex<T>) -> Result<MutexGuard<'_, T>> {
    mutex.lock().map_err(|_| "a thread panicked".into())
}

impl World {
    /// Creates a folder with the config, and starts the server if needed.
    pub fn new(driver: Driver, clock: Clock) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        for name in ["marks", "dead"] {
            fs::create_dir(folder.path().join(name))?;
        }
        let (mut server, mut proxy) = (None, None);
        let mut head = "host.health_file = 'health.json'\nhost.shutdown_grace = '25s'\n".to_owned();
        match driver {
            Driver::Embedded => head += "queue.embedded.path = 'queue.db'\n",
            Driver::Sqs => {
                let started = Server::start()?;
                let before = Proxy::before(&started.endpoint());
                head += &format!(
                    "queue.driver = 'sqs'\nqueue.sqs.region = 'eu-west-1'\nqueue.sqs.endpoint_url = '{}'\n\
                     queue.sqs.provision = 'auto'\n",
                    before.endpoint()
                );
                (server, proxy) = (Some(started), Some(before));
            }
        }
        let consumers = CONSUMERS.iter().map(|Consumer(name, guest, keys)| {
            let handler = match guest {
                Guest::Marks => here().join("benches/soak/guest.wat"),
                Guest::Command(name) => guests::command(name),
                Guest::Component(name) => guests::component(name),
            };
            let dirs = if matches!(guest, Guest::Marks) { grant("marks") } else { String::new() };
            format!("[consumers.{name}]\nchannel = '{name}'\nhandler = {handler:?}\n{keys}\n{dirs}")
        });
        fs::write(folder.path().join("hostler.toml"), [head.clone()].into_iter().chain(consumers).collect::<String>())?;
        fs::write(folder.path().join("head.toml"), head)?;
        Ok(Self {
            driver,
            clock,
            folder,
            server,
            proxy,
            host: Mutex::default(),
            tally: Arc::default(),
            gate: Mutex::default(),
            ledger: Mutex::default(),
            events: Mutex::default(),
            samples: Mutex::default(),
            failed: AtomicBool::default(),
        })
    }

    /// Passes on a result. An error ends the load and the faults.
    pub fn noting<T>(&self, result: Result<T>) -> Result<T> {
        self.failed.fetch_or(result.is_err(), Ordering::Relaxed);
        result
    }

    /// Returns true if the run must end.
    pub fn is_over(&self) -> bool {
        self.failed.load(Ordering::Relaxed) || self.clock.now() >= self.clock.length
    }

    /// Returns a path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hostler"));
        command.args(args).current_dir(self.folder.path()).env_clear().env("AWS_EC2_METADATA_DISABLED", "true");
        command.env("AWS_ACCESS_KEY_ID", "test").env("AWS_SECRET_ACCESS_KEY", "test");
        command
    }

    /// Runs a hostler command without the proxy, with this standard input. Returns its output.
    fn output(&self, args: &[&str], input: &str) -> Result<String> {
        let mut command = self.command(args);
        if let Some(server) = &self.server {
            command.env("HOSTLER_QUEUE__SQS__ENDPOINT_URL", server.endpoint());
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input.as_bytes())?;
        }
        let output = child.wait_with_output()?;
        if !output.status.success() {
            return Err(format!("hostler {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr)).into());
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Sends these bodies. None of them may have been sent before.
    pub fn send(&self, channel: &str, group: Option<&str>, bodies: &[String]) -> Result<()> {
        let _open = lock(&self.gate)?;
        // Recorded before sending, because a sample may find a body that is already done.
        lock(&self.ledger)?.sent(bodies);
        let group = group.map(|group| ["--group", group]);
        let args: Vec<&str> =
            ["send", channel, "--lines", "-"].into_iter().chain(group.into_iter().flatten()).collect();
        self.output(&args, &(bodies.join("\n") + "\n"))?;
        Ok(())
    }

    /// Starts the host.
    pub fn start(&self) -> Result<()> {
        let host = Host::start(self.command(&["run"]), CONSUMERS.len(), &self.tally)?;
        *lock(&self.host)? = Some(host);
        Ok(())
    }

    /// Ends the host by this signal. Returns the exit code.
    pub fn end(&self, signal: Signal) -> Result<i32> {
        let host = lock(&self.host)?.take().ok_or("no host runs")?;
        host.end(signal)
    }

    /// Drains the host.
    pub fn stop(&self) -> Result<()> {
        match self.end(Signal::TERM)? {
            0 => Ok(()),
            code => Err(format!("the last drain ended with {code}").into()),
        }
    }

    /// Returns the process id of the host. `None`: no host runs.
    pub fn pid(&self) -> Result<Option<u32>> {
        let mut host = lock(&self.host)?;
        if let Some(running) = host.as_mut()
            && running.has_ended()?
        {
            return Err("the host ended by itself".into());
        }
        Ok(host.as_ref().map(Host::pid))
    }

    /// Returns true if `check-consumer-health` reports a healthy host.
    pub fn is_healthy(&self) -> Result<bool> {
        let mut command = self.command(&["check-consumer-health"]);
        Ok(command.stdout(Stdio::null()).stderr(Stdio::null()).status()?.success())
    }

    /// Returns the last lines of the host's log.
    pub fn tail(&self) -> String {
        self.tally.lock().map(|tally| tally.tail.iter().cloned().collect::<Vec<_>>().join("\n")).unwrap_or_default()
    }

    /// Returns the output of `queues --json`.
    pub fn queues(&self) -> Result<Vec<Value>> {
        let _open = lock(&self.gate)?;
        Ok(serde_json::from_str(&self.output(&["queues", "--json"], "")?)?)
    }

    /// Returns the number of waiting messages and messages in flight, in all channels of the config.
    pub fn left(&self) -> Result<u64> {
        let count = |row: &Value, name: &str| row[name].as_u64().unwrap_or_default();
        let rows = self.queues()?;
        Ok(rows.iter().map(|row| count(row, "visible") + count(row, "delayed") + count(row, "in_flight")).sum())
    }

    /// Waits until every channel is empty.
    pub fn wait_empty(&self, within: Duration) -> Result<()> {
        let deadline = self.clock.now() + within.as_secs_f64();
        loop {
            let left = self.left()?;
            // A message that moves between two channels may be missing in both counts.
            if left == 0 && self.left()? == 0 {
                return Ok(());
            }
            if self.failed.load(Ordering::Relaxed) || self.clock.now() > deadline {
                return Err(format!("{left} messages are left, and should be done within {within:?}").into());
            }
            pause(0.5);
        }
    }

    /// Empties the dead-letter queues into the folder `dead`, with separate hosts.
    pub fn collect_dead_letters(&self, within: Duration) -> Result<()> {
        let rows = self.queues()?;
        let full: Vec<&str> = rows
            .iter()
            .filter(|row| row["dead_lettered"].as_u64() != Some(0))
            .filter_map(|row| row["channel"].as_str())
            .collect();
        if full.is_empty() {
            return Ok(());
        }
        let mut config = fs::read_to_string(self.path("head.toml"))?;
        for name in &full {
            let (handler, dirs) = (here().join("benches/soak/guest.wat"), grant("dead"));
            config += &format!(
                "[consumers.{name}-dead]\nchannel = '{name}-dlq'\nordered = {}\nhandler = {handler:?}\n\
                 dead_letter = false\n{dirs}",
                *name == "ordered"
            );
        }
        fs::write(self.path("hostler.toml"), config)?;
        let host = Host::start(self.command(&["run"]), full.len(), &Arc::default())?;
        self.wait_empty(within)?;
        match host.end(Signal::TERM)? {
            0 => Ok(()),
            code => Err(format!("the host of the dead letters ended with {code}").into()),
        }
    }
}

/// Returns the config key that lets a guest write files to this folder.
fn grant(folder: &str) -> String {
    format!("allow.dirs = [{{ host = '{folder}', guest = '/marks', mode = 'rw' }}]\n")
}

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
