//! A contender, and the server that it is measured against: two processes, started for each other, that end with this.

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

/// How long a contender may take to start, or to bring back what it holds.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a contender may take to end as it would in production, where it counts what it runs (`benches/release.sh`) and writes that
/// down only then: hostler's drain waits for what its long poll may bring.
const PARTING: Duration = Duration::from_secs(40);

/// How often another process is asked again.
const AGAIN: Duration = Duration::from_millis(50);

/// Both.
pub struct Pair {
    contender: Owned,
    server: Server,
    pid: i32,
    _folder: TempDir,
}

impl Pair {
    /// Starts the server, and the contender against it.
    pub fn start(setting: &Setting, places: &Places) -> Result<Self> {
        let server = Server::start(setting)?;
        let folder = tempfile::tempdir()?;
        let mut command = command(setting.contender, places, folder.path(), &server.endpoint(), setting.load)?;
        if !setting.loud {
            command.stdout(Stdio::null()).stderr(Stdio::null());
        }
        let started = SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros();
        let contender = Owned { child: command.spawn()?, parting: counted().map(|_| PARTING) };
        let pid = i32::try_from(contender.child.id())?;
        server.ask(&format!("/watch?pid={pid}&started={started}"))?;
        Ok(Self { contender, server, pid, _folder: folder })
    }

    /// The contender's process.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Asks the server.
    pub fn ask(&self, path: &str) -> Result<Value> {
        self.server.ask(path)
    }

    /// What the server counted, once that is what is waited for.
    pub fn once(&mut self, what: &str, arrived: impl Fn(&Value) -> bool) -> Result<Value> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let stats = self.server.ask("/stats")?;
            if arrived(&stats) {
                return Ok(stats);
            }
            if let Some(status) = self.contender.child.try_wait()? {
                return Err(format!("it ended with {status}").into());
            }
            if Instant::now() > deadline {
                return Err(format!("it did not {what}: {stats}").into());
            }
            #[allow(clippy::disallowed_methods, reason = "another process can only be asked again")]
            thread::sleep(AGAIN);
        }
    }
}

/// A child that ends with this, and all that it started: it is asked to where it has time for its `parting`, and killed then.
struct Owned {
    child: Child,
    parting: Option<Duration>,
}

impl Drop for Owned {
    fn drop(&mut self) {
        let Ok(root) = i32::try_from(self.child.id()) else { return };
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

/// Asks a child to end, and waits for that.
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

/// Whether a child has ended. It is still to be waited for, so that its id is nobody else's.
fn ended(child: i32) -> bool {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    !matches!(waitid(Id::Pid(Pid::from_raw(child)), flags), Ok(WaitStatus::StillAlive))
}

/// The server's process.
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
