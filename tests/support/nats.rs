//! NATS servers for tests, which `tests/servers.sh` installs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::OnceLock;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;
use tempfile::TempDir;

use super::hostler::{PATIENCE, pid, until};
use super::servers::{installed, keeper, tail};

/// Version of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// Debian's: 2.9. Silently drops settings that it does not know.
    Oldest,
    /// The first with filters of several subjects.
    Middle,
    /// The newest that PyPI had.
    Newest,
}

impl Version {
    /// All versions.
    pub const ALL: [Self; 3] = [Self::Oldest, Self::Middle, Self::Newest];

    fn program(self) -> PathBuf {
        self.folder().join("nats-server")
    }

    /// Returns the folder of the program `nats-server`.
    pub fn folder(self) -> PathBuf {
        match self {
            Self::Oldest => installed("nats-oldest").join("usr/sbin"),
            Self::Middle => installed("nats-2.10").join("bin"),
            Self::Newest => installed("nats-newest").join("bin"),
        }
    }
}

/// A running server with JetStream. Dropping this value kills the server. The end of this process also kills it.
pub struct Nats {
    version: Version,
    keeper: Child,
    port: u16,
    /// Further arguments.
    args: Vec<String>,
    /// Folder of this run, which its end removes.
    run: TempDir,
    /// Folder of the data. `None`: the config names it.
    data: Option<TempDir>,
}

impl Nats {
    /// Starts a server. Waits until it listens.
    pub fn start(version: Version) -> Self {
        Self::start_with(version, &[])
    }

    /// Starts a server with further arguments. Waits until it listens.
    pub fn start_with(version: Version, args: &[&str]) -> Self {
        Self::start_in(version, Some(tempfile::tempdir().unwrap()), args)
    }

    /// Starts a server whose config names the folder of its data. The oldest one loses JetStream when it reads another config again.
    pub fn start_from(version: Version, config: &Path) -> Self {
        Self::start_in(version, None, &["-c", config.to_str().unwrap()])
    }

    fn start_in(version: Version, data: Option<TempDir>, args: &[&str]) -> Self {
        let args: Vec<_> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let (keeper, run, port) = launch(version, -1, data.as_ref().map(TempDir::path), &args);
        Self { version, keeper, port, args, run, data }
    }

    /// Returns the server of a version that all tests of this process share. Tests separate their queues by prefixes.
    pub fn shared(version: Version) -> &'static Self {
        static SHARED: [OnceLock<Nats>; 3] = [const { OnceLock::new() }; 3];
        SHARED[version as usize].get_or_init(|| Self::start(version))
    }

    /// Returns the URL of the server.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Returns the port of the server on the loopback address.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Kills the server, like a power failure. Its data stay.
    pub fn kill(&mut self) {
        kill_process_group(Pid::from_child(&self.keeper), Signal::KILL).unwrap();
        self.keeper.wait().unwrap();
    }

    /// Starts the server again after its end, at the same port, with the data that it left.
    pub fn start_again(&mut self) {
        let (keeper, run, port) =
            launch(self.version, self.port.into(), self.data.as_ref().map(TempDir::path), &self.args);
        (self.keeper, self.run, self.port) = (keeper, run, port);
    }

    /// Removes the data of the server, which has ended.
    pub fn lose_data(&self) {
        let data = self.data.as_ref().expect("the folder is that of the server");
        fs::remove_dir_all(data.path().join("jetstream")).unwrap();
    }

    /// Stops the server's process, with its timers and its connections, until [`Self::thaw`].
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets the server's process go on.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Lets the server read its config file again.
    pub fn reload(&self) {
        self.signal(Signal::HUP);
    }

    fn signal(&self, signal: Signal) {
        let (_, id) = ports(self.run.path()).unwrap();
        kill_process(pid(id), signal).unwrap();
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        // `wait` first closes the keeper's standard input, which ends the keeper.
        let _ = self.keeper.wait();
    }
}

/// Starts a server, and returns its keeper, the folder of the run, and the port. `port`: -1 for any.
fn launch(version: Version, port: i32, data: Option<&Path>, args: &[String]) -> (Child, TempDir, u16) {
    let run = tempfile::tempdir().unwrap();
    let mut command = Command::new(version.program());
    command.args(["-a", "127.0.0.1", "-p", &port.to_string(), "-js"]);
    if let Some(data) = data {
        command.arg("-sd").arg(data);
    }
    command.arg("--ports_file_dir").arg(run.path()).args(args);
    let mut keeper = keeper(run.path(), &command);
    let (port, _) = until("the server listens", PATIENCE, || {
        assert!(keeper.try_wait().unwrap().is_none(), "NATS did not start:\n{}", tail(run.path()));
        ports(run.path())
    });
    (keeper, run, port)
}

/// Returns the port and the process of a server that listens.
fn ports(folder: &Path) -> Option<(u16, u32)> {
    let mut files = fs::read_dir(folder).ok()?.filter_map(Result::ok).map(|file| file.path());
    let file = files.find(|file| file.extension().is_some_and(|end| end == "ports"))?;
    let told: Value = serde_json::from_str(&fs::read_to_string(&file).ok()?).ok()?;
    let port = told["nats"][0].as_str()?.rsplit(':').next()?.parse().ok()?;
    let id = file.file_stem()?.to_str()?.rsplit('_').next()?.parse().ok()?;
    Some((port, id))
}
