//! Child processes of a session: builds, checks and hosts. Each has its own process group. Therefore, a Ctrl-C in the terminal
//! does not reach the children directly.

use std::ffi::OsString;
use std::io::{self, BufRead as _, BufReader};
use std::os::fd::AsFd as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use hostler_telemetry::Progress;
use hostler_wasm::{COMPILED, COMPILING};

/// Maximum time to wait for the end of a killed host. The wait is limited, because a process that hangs in the kernel
/// does not end when it is killed.
const END_WAIT: Duration = Duration::from_secs(5);

/// Environment variables of a process.
pub(super) type Environment = Vec<(OsString, OsString)>;

/// A build. Runs the project's own command, and then `hostler check` on the result. Dropping the last clone kills the processes
/// that the command has started in the background.
#[derive(Debug, Clone, Default)]
pub(super) struct Job(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Process group of the running child, if any.
    group: Option<Pid>,
    stopped: bool,
    /// The project's own command, once it has ended.
    built: Option<Leader>,
}

/// A child process that has ended, but whose exit status hostler has not collected yet. Until then, the kernel does not
/// reuse the process id, which is also the id of the process group. Other processes of the group may still run in the
/// background. Dropping this value kills these other processes.
#[derive(Debug)]
struct Leader(Child);

impl Leader {
    fn signal(&self, signal: Signal) {
        if let Some(group) = group(&self.0) {
            // The call fails if nothing runs.
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        let _ = self.0.wait();
    }
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
    /// Starts a build on a separate thread. The thread calls `progress` with each line about a long compilation, and at the
    /// end calls `ended` with the result.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start(
        build: Build,
        progress: impl Fn(String) + Send + 'static,
        ended: impl FnOnce(Result<(), String>) + Send + 'static,
    ) -> io::Result<Self> {
        let job = Self::default();
        let running = job.clone();
        thread::Builder::new().name("hostler-build".into()).spawn(move || {
            ended(running.build(&build).and_then(|()| running.check(&build, progress)));
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
        if let Some(built) = &state.built {
            built.signal(signal);
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
        let ended = end_of(&child).map_err(|error| error.to_string());
        {
            let mut state = self.state();
            (state.group, state.built) = (None, Some(Leader(child)));
        }
        let status = ended?;
        if status.success() { Ok(()) } else { Err(format!("the build failed ({status}): {text}")) }
    }

    fn check(&self, build: &Build, progress: impl Fn(String)) -> Result<(), String> {
        let mut command = Command::new(&build.hostler);
        command.arg("check").env_clear().envs(build.environment.iter().cloned());
        let child = self.spawn(command.stdout(Stdio::null()).stderr(Stdio::piped()))?;
        let _line = Progress::show("compiling the handlers");
        let mut told = String::new();
        let status = self.wait(
            |child| {
                for line in child.stderr.take().into_iter().flat_map(|stderr| BufReader::new(stderr).split(b'\n')) {
                    let line = String::from_utf8_lossy(&line?).into_owned();
                    if is_progress(&line) {
                        progress(line);
                    } else {
                        told.extend([line.as_str(), "\n"]);
                    }
                }
                child.wait()
            },
            child,
        )?;
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

/// Returns true for a line in which `hostler check` reports the progress of a long compilation.
fn is_progress(line: &str) -> bool {
    let words = line.strip_prefix("hostler: ").unwrap_or_default();
    words.starts_with(COMPILING) || words.strip_prefix(COMPILED).is_some_and(|rest| rest.starts_with(" handler="))
}

/// Returns the process group that a child leads, if its id is valid.
fn group(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

/// Waits for the end of a child, without reaping it.
fn end_of(child: &Child) -> io::Result<ExitStatus> {
    let id = group(child).ok_or(io::ErrorKind::InvalidInput)?;
    let status = retry_on_intr(|| waitid(WaitId::Pid(id), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT))?;
    let status = status.ok_or(io::ErrorKind::NotFound)?;
    let code = status.exit_status().map(|code| code << 8);
    Ok(ExitStatus::from_raw(code.or(status.terminating_signal()).unwrap_or_default()))
}

/// A running host.
#[derive(Debug)]
pub(super) struct HostProcess {
    group: Option<Pid>,
    /// Closed when the host has ended.
    over: Receiver<()>,
}

impl HostProcess {
    /// Starts `hostler run`. A separate thread calls `line` with each line of the host's log, and then `ended` with the host's
    /// exit status.
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
        let (running, over) = channel();
        thread::Builder::new().name("hostler-log".into()).spawn(move || {
            let _running: Sender<()> = running;
            for bytes in stderr.into_iter().flat_map(|stderr| BufReader::new(stderr).split(b'\n')) {
                let Ok(bytes) = bytes else { break };
                line(String::from_utf8_lossy(&bytes).into_owned());
            }
            ended(child.wait());
        })?;
        Ok(Self { group, over })
    }

    /// Sends a signal to the host.
    pub(super) fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // The call fails if the child has just ended.
            let _ = kill_process_group(group, signal);
        }
    }

    /// Waits for the end of a killed host, but not for longer than [`END_WAIT`].
    pub(super) fn wait(&self) {
        let _ = self.over.recv_timeout(END_WAIT);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read as _;

    use super::*;

    /// Runs a build with this command. Returns the build and its result.
    fn build(command: String) -> (Job, Result<(), String>) {
        let environment = std::env::vars_os().collect();
        let (sender, results) = channel();
        let build = Build { command: Some(command), hostler: "true".into(), environment };
        let job = Job::start(build, drop, move |result| sender.send(result).unwrap()).unwrap();
        (job, results.recv_timeout(Duration::from_secs(30)).unwrap())
    }

    #[test]
    fn a_build_fails_with_the_status_of_its_command() {
        assert_eq!(build("true".into()).1, Ok(()));
        assert_eq!(build("exit 3".into()).1, Err("the build failed (exit status: 3): exit 3".into()));
        let killed = build("kill -9 $$".into()).1.unwrap_err();
        assert!(killed.contains("signal: 9"), "{killed}");
    }

    #[test]
    fn what_a_build_runs_in_the_background_ends_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let (job, result) = build(format!("mkfifo {0}; sleep 300 > {0} &", pipe.display()));
        assert_eq!(result, Ok(()));
        let mut open = File::open(&pipe).unwrap();
        let (sender, ended) = channel();
        thread::spawn(move || sender.send(open.read_to_end(&mut Vec::new()).is_ok()).unwrap());
        assert!(ended.try_recv().is_err(), "it runs as long as the build is kept");
        drop(job);
        assert!(ended.recv_timeout(Duration::from_secs(30)).unwrap());
    }
}
