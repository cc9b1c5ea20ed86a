//! Child processes of a session: builds, checks and hosts. Each has its own process group. Therefore, a Ctrl-C in the terminal
//! does not reach the children directly.

use std::ffi::OsString;
use std::io::{self, BufRead as _, BufReader};
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::process::{Pid, Signal, kill_process_group};

use hostler_telemetry::Progress;

/// Environment variables of a process.
pub(super) type Environment = Vec<(OsString, OsString)>;

/// A running build. Runs the project's own command, and then `hostler check` on the result.
#[derive(Debug, Clone, Default)]
pub(super) struct Job(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Process group of the running child, if any.
    group: Option<Pid>,
    stopped: bool,
}

/// Parameters of a build.
#[derive(Debug)]
pub(super) struct Build {
    /// Shell command of the project. `None`: the project needs no build.
    pub(super) command: Option<String>,
    /// Path of this program.
    pub(super) hostler: PathBuf,
    /// Environment of the command and of `hostler check`.
    pub(super) environment: Environment,
}

impl Job {
    /// Starts a build on a separate thread. At the end, the thread calls `ended` with the result.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start(build: Build, ended: impl FnOnce(Result<(), String>) + Send + 'static) -> io::Result<Self> {
        let job = Self::default();
        let running = job.clone();
        thread::Builder::new().name("hostler-build".into()).spawn(move || {
            ended(running.build(&build).and_then(|()| running.check(&build)));
        })?;
        Ok(job)
    }

    /// Sends the signal to the running child. After this call, the build starts no further child.
    pub(super) fn stop(&self, signal: Signal) {
        let mut state = self.state();
        state.stopped = true;
        if let Some(group) = state.group {
            // The call fails if the child has just ended.
            let _ = kill_process_group(group, signal);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn build(&self, build: &Build) -> Result<(), String> {
        let Some(text) = &build.command else { return Ok(()) };
        let mut command = Command::new("sh");
        command.args(["-c", text]).env_clear().envs(build.environment.iter().cloned());
        // Sends the output of the build to standard error, because standard output is reserved for outcomes.
        let stderr = io::stderr().as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
        let child = self.spawn(command.stdout(stderr))?;
        let status = self.wait(|child| child.wait(), child)?;
        if status.success() { Ok(()) } else { Err(format!("the build failed ({status}): {text}")) }
    }

    fn check(&self, build: &Build) -> Result<(), String> {
        let mut command = Command::new(&build.hostler);
        command.arg("check").env_clear().envs(build.environment.iter().cloned());
        let child = self.spawn(command.stdout(Stdio::null()).stderr(Stdio::piped()))?;
        let _line = Progress::show("compiling the handlers");
        let mut told = Vec::new();
        let status = self.wait(
            |child| {
                if let Some(mut stderr) = child.stderr.take() {
                    io::Read::read_to_end(&mut stderr, &mut told)?;
                }
                child.wait()
            },
            child,
        )?;
        let told = String::from_utf8_lossy(&told);
        if status.success() { Ok(()) } else { Err(format!("the handlers do not load\n{}", told.trim_end())) }
    }

    fn spawn(&self, command: &mut Command) -> Result<Child, String> {
        let mut state = self.state();
        if state.stopped {
            return Err("stopped".to_owned());
        }
        let child = command.stdin(Stdio::null()).process_group(0).spawn();
        let child = child.map_err(|error| format!("cannot start {}: {error}", command.get_program().display()))?;
        state.group = group(&child);
        Ok(child)
    }

    fn wait(
        &self,
        wait: impl FnOnce(&mut Child) -> io::Result<ExitStatus>,
        mut child: Child,
    ) -> Result<ExitStatus, String> {
        let status = wait(&mut child);
        self.state().group = None;
        status.map_err(|error| error.to_string())
    }
}

/// Returns the process group that a child leads, if its id is valid.
fn group(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

/// A running host.
#[derive(Debug)]
pub(super) struct HostProcess {
    group: Option<Pid>,
}

impl HostProcess {
    /// Starts `hostler run`. A separate thread calls `line` with each line of the host's log, and then `ended` with its exit
    /// status.
    ///
    /// The host drains and ends when the calling thread ends for any reason.
    ///
    /// # Errors
    /// The process or the thread cannot be started.
    pub(super) fn start(
        hostler: &Path,
        environment: &Environment,
        line: impl Fn(String) + Send + 'static,
        ended: impl FnOnce(io::Result<ExitStatus>) + Send + 'static,
    ) -> io::Result<Self> {
        let mut command = Command::new(hostler);
        command.arg("run").arg("--end-with").arg(std::process::id().to_string());
        command.env_clear().envs(environment.iter().cloned());
        // The host logs outcomes at this level.
        command.env("RUST_LOG", "info");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.process_group(0).spawn()?;
        let (group, stderr) = (group(&child), child.stderr.take());
        thread::Builder::new().name("hostler-log".into()).spawn(move || {
            for bytes in stderr.into_iter().flat_map(|stderr| BufReader::new(stderr).split(b'\n')) {
                let Ok(bytes) = bytes else { break };
                line(String::from_utf8_lossy(&bytes).into_owned());
            }
            ended(child.wait());
        })?;
        Ok(Self { group })
    }

    /// Sends a signal to the host.
    pub(super) fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // The call fails if the child has just ended.
            let _ = kill_process_group(group, signal);
        }
    }
}
