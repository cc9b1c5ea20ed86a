//! A contender and its server: two processes, started for each other, that end with this process.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use crate::cell::Setting;
use crate::contenders::{Places, command, counted};
use crate::messages::Form;
use crate::{Result, process};

/// Maximum time for a contender to start, or to return the messages that it holds.
const PATIENCE: Duration = Duration::from_secs(60);

/// Maximum time for a contender to end by a signal, as in production. Needed if the contender records its execution counts
/// (`benches/release.sh`), because it writes them only at its end. hostler's drain waits for its long poll.
const PARTING: Duration = Duration::from_secs(40);

/// Interval between two queries to another process.
const AGAIN: Duration = Duration::from_millis(50);

/// The running contender and server.
pub struct Pair {
    contender: Owned,
    server: Server,
    pid: i32,
    _folder: TempDir,
}

impl Pair {
    /// Starts the server, and then the contender.
    pub fn start(setting: &Setting, places: &Places) -> Result<Self> {
        let server = Server::start(setting)?;
        let folder = tempfile::tempdir()?;
        let mut command = command(setting.contender, places, folder.path(), &server.endpoint(), setting.load)?;
        if !setting.loud {
            command.stdout(Stdio::null()).stderr(Stdio::null());
        }
        let started = SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros();
        let contender = Owned::new(command.spawn()?);
        let pid = contender.pid()?;
        server.ask(&format!("/watch?pid={pid}&started={started}"))?;
        Ok(Self { contender, server, pid, _folder: folder })
    }

    /// Returns the process id of the contender.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Sends a request to the server.
    pub fn ask(&self, path: &str) -> Result<Value> {
        self.server.ask(path)
    }

    /// Queries the server's counts until `arrived` returns true. Returns the counts.
    pub fn once(&mut self, what: &str, arrived: impl Fn(&Value) -> bool) -> Result<Value> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let stats = self.server.ask("/stats")?;
            if arrived(&stats) {
                return Ok(stats);
            }
            self.contender.check()?;
            if Instant::now() > deadline {
                return Err(format!("it did not {what}: {stats}").into());
            }
            #[allow(clippy::disallowed_methods, reason = "another process can only be asked again")]
            thread::sleep(AGAIN);
        }
    }
}

/// A child process that ends with this process, together with its own children. With a `parting` time, the child is first asked
/// to end and then killed.
pub struct Owned {
    child: Child,
    parting: Option<Duration>,
}

impl Owned {
    /// Takes over a child process.
    pub fn new(child: Child) -> Self {
        Self { child, parting: counted().map(|_| PARTING) }
    }

    /// Returns the process id.
    pub fn pid(&self) -> Result<i32> {
        Ok(i32::try_from(self.child.id())?)
    }

    /// Fails if the process has ended.
    pub fn check(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            Some(status) => Err(format!("it ended with {status}").into()),
            None => Ok(()),
        }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let Ok(root) = self.pid() else { return };
        let tree = process::tree(root);
        if let Some(parting) = self.parting {
            part(root, parting);
        }
        for pid in tree {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        let _ = self.child.wait();
    }
}

/// Asks a child process to end, and waits for its end.
fn part(child: i32, patience: Duration) {
    let deadline = Instant::now() + patience;
    let _ = kill(Pid::from_raw(child), Signal::SIGTERM);
    while !ended(child) {
        if Instant::now() > deadline {
            eprintln!("a contender did not end within {patience:?}: what it counted is lost");
            return;
        }
        #[allow(clippy::disallowed_methods, reason = "another process can only be asked again")]
        thread::sleep(AGAIN);
    }
}

/// Returns true if a child has ended. The child is not reaped, so that its id is not reused.
fn ended(child: i32) -> bool {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    !matches!(waitid(Id::Pid(Pid::from_raw(child)), flags), Ok(WaitStatus::StillAlive))
}

/// Process of the server.
struct Server {
    _process: Owned,
    port: u16,
}

impl Server {
    fn start(setting: &Setting) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let form = if setting.contender.form() == Form::Celery { "celery" } else { "plain" };
        command.args(["serve", "--form", form, "--latency-ms", &setting.latency_ms.to_string()]);
        command.args(["--warm-up-ms", &setting.warm_up_ms.to_string(), "--window-ms", &setting.window_ms.to_string()]);
        command.args(["--body-bytes", &setting.load.body_bytes.to_string()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take();
        let process = Owned { child, parting: None };
        let mut line = String::new();
        BufReader::new(output.ok_or("no output of the server")?).read_line(&mut line)?;
        Ok(Self { _process: process, port: line.trim().parse()? })
    }

    fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn ask(&self, path: &str) -> Result<Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (_, body) = answer.split_once("\r\n\r\n").ok_or("no answer of the server")?;
        Ok(serde_json::from_str(body)?)
    }
}
