//! The real hostler in a temporary folder: its config, its commands, and its hosts with their logs.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use hostler_queue::{ChannelSpec, Provisioner};
use hostler_queue_embedded::EmbeddedBroker;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// Maximum time that a test waits for an expected event, even on a slow machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// One second.
pub const SECOND: Duration = Duration::from_secs(1);

/// First lines of every config. Uses dotted keys, so that a test can set other keys of the same tables.
const CONFIG: &str = "
    host.health_file = 'health.json'
    queue.embedded.path = 'queue.db'
";

/// A temporary folder in which hostler's commands run. Contains the config, the queue, the health file, and a symbolic link
/// `guests` to this repository's guests.
pub struct World {
    folder: TempDir,
    /// First lines of every config in this folder.
    head: String,
    /// Environment variables of the commands, in addition to `PATH`.
    env: Vec<(&'static str, String)>,
}

/// Depth of a channel, as `queues --json` prints it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Depth {
    pub visible: u64,
    pub delayed: u64,
    pub in_flight: u64,
    pub dead_lettered: u64,
}

impl Depth {
    /// Parses a row of `queues --json`. A missing queue counts as empty, and a count that the service does not report as zero.
    pub fn of(row: &Value) -> Self {
        if row["missing"] == true {
            return Self::default();
        }
        let count = |name: &str| row[name].as_u64().or(row[name].is_null().then_some(0)).unwrap();
        Self {
            visible: count("visible"),
            delayed: count("delayed"),
            in_flight: count("in_flight"),
            dead_lettered: count("dead_lettered"),
        }
    }
}

impl World {
    /// Creates a folder with this config. Keys of `host`, `queue` and `telemetry` come first in dotted form, followed by the
    /// tables.
    pub fn new(config: &str) -> Self {
        Self::with(CONFIG, Vec::new(), config)
    }

    /// Creates a folder with other first lines of its configs, and these environment variables for its commands.
    pub fn with(head: &str, env: Vec<(&'static str, String)>, config: &str) -> Self {
        let world = Self { folder: tempfile::tempdir().unwrap(), head: head.to_owned(), env };
        let guests = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/guests");
        std::os::unix::fs::symlink(guests, world.path("guests")).unwrap();
        world.config(config);
        world
    }

    /// Sets a variable in the environment of this world's commands.
    pub fn set(&mut self, name: &'static str, value: String) {
        self.env.retain(|(other, _)| *other != name);
        self.env.push((name, value));
    }

    /// Replaces the config.
    pub fn config(&self, config: &str) {
        fs::write(self.path("hostler.toml"), format!("{}{config}", self.head)).unwrap();
    }

    /// Returns a path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Creates a hostler command. Its environment contains only `PATH` and the variables of this world.
    pub fn command(&self, args: &[&str]) -> Command {
        self.program(env!("CARGO_BIN_EXE_hostler"), args)
    }

    /// Creates a command for any program, in the same folder and environment.
    pub fn program(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(args).current_dir(self.folder.path()).env_clear().stdin(Stdio::null());
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        if let Some(path) = std::env::var_os("PATH") {
            command.env("PATH", path);
        }
        command
    }

    /// Runs a hostler command to its end.
    pub fn output(&self, args: &[&str]) -> Said {
        Said::new(self.command(args).output().unwrap())
    }

    /// Runs a hostler command with this standard input.
    pub fn output_with(&self, args: &[&str], input: impl AsRef<[u8]>) -> Said {
        let mut command = self.command(args);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // The input is small, or the command reads all of it. A command that refuses its arguments closes the pipe.
        let _ = child.stdin.take().unwrap().write_all(input.as_ref());
        Said::new(child.wait_with_output().unwrap())
    }

    /// Creates the queues of the config, so that the next command does not report the creation of the queue file.
    pub fn provision(&self) {
        let said = self.output(&["provision"]);
        assert_eq!(said.code, 0, "{said:?}");
    }

    /// Creates a queue that no config names.
    pub fn queue(&self, name: &str) {
        let broker = EmbeddedBroker::open(&self.path("queue.db")).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(broker.declare(&ChannelSpec::new(name.parse().unwrap()))).unwrap();
    }

    /// Sends messages.
    pub fn send<B: AsRef<str>>(&self, channel: &str, bodies: impl IntoIterator<Item = B>) {
        let lines: String = bodies.into_iter().map(|body| format!("{}\n", body.as_ref())).collect();
        let said = self.output_with(&["send", channel, "--lines", "-"], lines);
        assert_eq!(said.code, 0, "{said:?}");
    }

    /// Returns the output of `queues --json`.
    pub fn queues(&self) -> Value {
        let said = self.output(&["queues", "--json"]);
        assert_eq!(said.code, 0, "{said:?}");
        serde_json::from_str(&said.stdout).unwrap()
    }

    /// Returns the row of `queues --json` for one channel.
    pub fn row(&self, channel: &str) -> Value {
        let said = self.output(&["queues", "--json", channel]);
        assert_eq!(said.code, 0, "{said:?}");
        let rows: Value = serde_json::from_str(&said.stdout).unwrap();
        rows[0].clone()
    }

    /// Returns the depth of a channel.
    pub fn depth(&self, channel: &str) -> Depth {
        Depth::of(&self.row(channel))
    }

    /// Starts `hostler run`.
    pub fn start(&self) -> Host {
        Host::start(self.command(&["run"]))
    }

    /// Starts `hostler run`. Waits until the host consumes.
    pub fn started(&self) -> Host {
        let host = self.start();
        host.wait_for(PATIENCE, |line| line["message"] == "consuming");
        host
    }

    /// Returns the verdict of `check-consumer-health --json`.
    pub fn verdict(&self) -> Value {
        serde_json::from_str(&self.output(&["check-consumer-health", "--json"]).stdout).unwrap()
    }
}

/// Result of a command that has ended.
#[derive(Debug)]
pub struct Said {
    /// Exit code. -n: signal n killed the process.
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Said {
    /// Converts the output of a program that has ended.
    pub fn new(output: Output) -> Self {
        Self {
            code: code(output.status),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

fn code(status: std::process::ExitStatus) -> i32 {
    status.code().or(status.signal().map(|signal| -signal)).unwrap()
}

/// A running host. Dropping this value kills the host.
pub struct Host {
    child: Child,
    /// Process id that receives signals.
    pub pid: u32,
    log: Arc<Log>,
}

/// Lines that a host has written to standard error.
#[derive(Default)]
struct Log {
    written: Mutex<Written>,
    grown: Condvar,
}

#[derive(Default)]
struct Written {
    /// Log lines. A line that is not JSON becomes a string.
    lines: Vec<Value>,
    settled: usize,
    ended: bool,
}

impl Host {
    /// Starts this command and reads its log.
    pub fn start(command: Command) -> Self {
        let (now, gate) = channel();
        drop(now);
        Self::start_unread(command, gate)
    }

    /// Starts this command. Its log is not read until the other end of `gate` sends or is dropped.
    pub fn start_unread(mut command: Command, gate: Receiver<()>) -> Self {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let (stderr, log) = (child.stderr.take().unwrap(), Arc::<Log>::default());
        let writes = Arc::clone(&log);
        thread::spawn(move || {
            let _ = gate.recv();
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let line = serde_json::from_str(&line).unwrap_or(Value::String(line));
                writes.change(|written| {
                    written.settled += usize::from(line.get("outcome").is_some());
                    written.lines.push(line);
                });
            }
            writes.change(|written| written.ended = true);
        });
        Self { pid: child.id(), child, log }
    }

    /// Waits for the first log line that fits, and returns it.
    pub fn wait_for(&self, within: Duration, mut fits: impl FnMut(&Value) -> bool) -> Value {
        let mut seen = 0;
        self.log.wait("the line", within, |written| {
            let found = written.lines.get(seen..)?.iter().find(|line| fits(line)).cloned();
            seen = written.lines.len();
            found
        })
    }

    /// Waits until `count` messages are settled in total. Returns the log lines of all settled messages.
    pub fn settled(&self, count: usize) -> Vec<Value> {
        self.log.wait(&format!("{count} settled messages"), PATIENCE, |written| {
            (written.settled >= count)
                .then(|| written.lines.iter().filter(|line| line.get("outcome").is_some()).cloned().collect())
        })
    }

    /// Returns all log lines so far.
    pub fn lines(&self) -> Vec<Value> {
        self.log.written.lock().unwrap().lines.clone()
    }

    /// Sends a signal to the host.
    pub fn signal(&self, signal: Signal) {
        kill_process(pid(self.pid), signal).unwrap();
    }

    /// Waits for the end of the host. Returns the exit code, or -n if signal n killed the host.
    pub fn wait_exit(&mut self, within: Duration) -> i32 {
        // The end of the host closes its standard error.
        self.log.wait("its end", within, |written| written.ended.then_some(()));
        code(self.child.wait().unwrap())
    }

    /// Drains the host. Returns the exit code.
    pub fn stop(&mut self) -> i32 {
        self.signal(Signal::TERM);
        self.wait_exit(PATIENCE)
    }

    /// Kills the host, like a power failure. Returns its log lines.
    pub fn kill(mut self) -> Vec<Value> {
        self.child.kill().unwrap();
        self.wait_exit(PATIENCE);
        self.lines()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Log {
    fn change(&self, change: impl FnOnce(&mut Written)) {
        change(&mut self.written.lock().unwrap());
        self.grown.notify_all();
    }

    fn wait<T>(&self, what: &str, within: Duration, mut look: impl FnMut(&Written) -> Option<T>) -> T {
        let deadline = Instant::now() + within;
        let mut written = self.written.lock().unwrap();
        loop {
            if let Some(found) = look(&written) {
                return found;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if written.ended || left.is_zero() {
                let lines = &written.lines;
                let tail: Vec<String> =
                    lines.iter().skip(lines.len().saturating_sub(20)).map(Value::to_string).collect();
                drop(written);
                panic!("{what} did not come within {within:?}; the log ends with\n{}", tail.join("\n"));
            }
            written = self.grown.wait_timeout(written, left).unwrap().0;
        }
    }
}

/// Prints a text that must be visible even if the test passes. Bypasses the captured output.
pub fn announce(text: &str) {
    writeln!(std::io::stderr(), "\n{text}").unwrap();
}

/// Converts a number to a process id.
pub fn pid(number: u32) -> Pid {
    Pid::from_raw(number.try_into().unwrap()).unwrap()
}

/// Polls until `look` returns a value. For events without a notification.
#[expect(clippy::disallowed_methods, reason = "the one place that polls; every look has a deadline")]
pub fn until<T>(what: &str, within: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + within;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what} did not come true within {within:?}");
        thread::sleep(Duration::from_millis(15));
    }
}
