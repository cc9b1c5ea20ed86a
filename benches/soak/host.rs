//! A running `hostler run`, with its log.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::Result;
use crate::clock::pause;

/// Maximum time for a host to consume after its start, and to end after a signal.
const PATIENCE: Duration = Duration::from_secs(60);

/// Counts from the logs of all hosts of a driver.
#[derive(Debug, Default)]
pub struct Tally {
    /// Number of settled deliveries.
    pub settled: u64,
    /// Number of settled deliveries by consumer, outcome and disposition.
    pub outcomes: BTreeMap<(String, String, String), u64>,
    /// Times in milliseconds from enqueueing to the ack of messages of the consumer `tiny`, since the last sample.
    pub latencies: Vec<f64>,
    /// Log lines of handlers that failed unexpectedly.
    pub surprises: Vec<String>,
    /// Number of warnings and errors, by their text.
    pub complaints: BTreeMap<String, u64>,
    /// Last log lines.
    pub tail: VecDeque<String>,
}

/// A running host. Dropping this value kills the host.
pub struct Host {
    child: Child,
    reader: Option<JoinHandle<()>>,
}

impl Host {
    /// Starts a host. Waits until all its consumers consume.
    pub fn start(mut command: Command, consumers: usize, tally: &Arc<Mutex<Tally>>) -> Result<Self> {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let stderr = child.stderr.take().ok_or("no standard error")?;
        let (consuming, tally) = (Arc::new(Mutex::new(0)), Arc::clone(tally));
        let count = Arc::clone(&consuming);
        let reader = thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(std::result::Result::ok) {
                if let Ok(line) = serde_json::from_str::<Value>(&line)
                    && line["message"] == "consuming"
                    && let Ok(mut count) = count.lock()
                {
                    *count += 1;
                }
                if let Ok(mut tally) = tally.lock() {
                    tally.take(line);
                }
            }
        });
        let mut host = Self { child, reader: Some(reader) };
        let deadline = Instant::now() + PATIENCE;
        while *consuming.lock().map_err(|_| "poisoned")? < consumers {
            if host.child.try_wait()?.is_some() || Instant::now() > deadline {
                return Err("the host did not begin to consume".into());
            }
            pause(0.02);
        }
        Ok(host)
    }

    /// Returns the process id of the host.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns true if the host has ended.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Sends a signal, and waits for the end of the host and of its log. Returns the exit code, or -n for signal n.
    pub fn end(mut self, signal: Signal) -> Result<i32> {
        send_signal(self.pid(), signal)?;
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if Instant::now() > deadline {
                return Err(format!("the host did not end within {PATIENCE:?} after {signal:?}").into());
            }
            pause(0.01);
        };
        if let Some(reader) = self.reader.take() {
            reader.join().map_err(|_| "the reader of the log panicked")?;
        }
        status.code().or(status.signal().map(|number| -number)).ok_or_else(|| "neither ended nor killed".into())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal to a process.
pub fn send_signal(pid: u32, signal: Signal) -> Result<()> {
    let pid = Pid::from_raw(pid.try_into()?).ok_or("no process id")?;
    Ok(kill_process(pid, signal)?)
}

impl Tally {
    fn take(&mut self, text: String) {
        let line: Value = serde_json::from_str(&text).unwrap_or_default();
        let field = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
        if line.get("outcome").is_some() {
            self.settled += 1;
            let key = (field("consumer"), field("outcome"), field("disposition"));
            let may_fail = ["flaky", "ordered", "traps", "loops", "hungry"].contains(&&*key.0);
            if !may_fail && ["failed", "trapped", "timed-out"].contains(&&*key.1) {
                self.surprises.push(text.clone());
            }
            if key.0 == "tiny" && key.1 == "ack" {
                let part = |name: &str| line[name].as_f64().unwrap_or_default();
                self.latencies.push(part("queue_delay_ms") + part("duration_ms"));
            }
            *self.outcomes.entry(key).or_default() += 1;
            return;
        }
        if line["level"] != "INFO" {
            let words = field("message");
            let words = if words.is_empty() { text.clone() } else { words };
            *self.complaints.entry(words).or_default() += 1;
        }
        self.tail.push_back(text);
        if self.tail.len() > 20 {
            self.tail.pop_front();
        }
    }
}
