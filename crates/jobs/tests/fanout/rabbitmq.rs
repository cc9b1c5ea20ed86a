//! A RabbitMQ server that keeps its data over a kill. Needs only the standard library.

use std::ffi::OsStr;
use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Longest wait for the server to start.
const PATIENCE: Duration = Duration::from_secs(240);

/// Runs the server, with a name service of its own, each in a process group. Kills both when the shell's standard input ends: when this
/// process closes it or dies. `$0`: the folder of the output, which is removed unless it has the file `keep`. `$1`: the port of the
/// name service. `$2`: the program.
const KEEPER: &str = r#"
    set -m
    epmd -port "$1" -address 127.0.0.1 >/dev/null 2>&1 </dev/null &
    names=$!
    "$2" >>"$0/output" 2>&1 </dev/null &
    server=$!
    read -r _
    kill -KILL -- "-$server" "-$names"
    wait
    [ -e "$0/keep" ] || rm -rf "$0"
"#;

/// A server on ports of its own. Dropping this value ends it. So does the end of this process.
pub struct Server {
    keeper: Option<Child>,
    folder: tempfile::TempDir,
    ports: [u16; 3],
}

impl Server {
    /// Returns the server that the tests of this process share, as it takes seconds to start. Each uses queues of its own.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Server> = OnceLock::new();
        SHARED.get_or_init(|| {
            let server = Self::start();
            // A static is never dropped. Without this file, the keeper removes the folder at the end of this process.
            fs::remove_file(server.folder.path().join("keep")).unwrap();
            server
        })
    }

    /// Starts a server. Waits until it listens.
    pub fn start() -> Self {
        let listeners = [(); 3].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        let ports = listeners.map(|listener| listener.local_addr().unwrap().port());
        let folder = tempfile::tempdir().unwrap();
        let cookie = folder.path().join(".erlang.cookie");
        fs::write(&cookie, "HOSTLERTESTS").unwrap();
        fs::set_permissions(&cookie, fs::Permissions::from_mode(0o400)).unwrap();
        let settings = format!("listeners.tcp.1 = 127.0.0.1:{}\nvm_memory_high_watermark.relative = 0.6\n", ports[0]);
        fs::write(folder.path().join("rabbitmq.conf"), settings + "disk_free_limit.absolute = 10MB\n").unwrap();
        fs::write(folder.path().join("plugins"), "[].").unwrap();
        fs::write(folder.path().join("keep"), "").unwrap();
        let mut server = Self { keeper: None, folder, ports };
        server.restart();
        server
    }

    /// Starts the server after [`Self::kill`]. Waits until it listens.
    pub fn restart(&mut self) {
        let [port, _, names] = self.ports;
        let mut command = self.command("/bin/bash");
        command.args(["-c", KEEPER]).arg(self.folder.path()).arg(names.to_string()).arg(program("rabbitmq-server"));
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        self.keeper = Some(command.spawn().unwrap());
        let begun = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            let output = || fs::read_to_string(self.folder.path().join("output")).unwrap_or_default();
            assert!(begun.elapsed() < PATIENCE, "RabbitMQ did not start:\n{}", output());
            std::thread::park_timeout(Duration::from_millis(50));
        }
    }

    /// Waits until the disk has the names of all queues. The server writes them some time after it has created a queue, and a queue
    /// without a name that comes back after a kill elects no leader (seen on RabbitMQ 3.10).
    pub fn keep_names(&self) {
        let mut command = self.command(program("rabbitmqctl"));
        let output = command.args(["eval", "[ok = dets:sync(T) || T <- dets:all()]."]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    /// Returns a command with the environment of the server.
    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let [port, distribution, names] = self.ports;
        let inside = |name: &str| self.folder.path().join(name).into_os_string();
        let path = format!("{}/usr/lib/erlang/bin:/usr/sbin:/usr/bin:/sbin:/bin", root().display());
        let mut command = Command::new(program);
        command.env_clear().envs([
            ("HOME", inside("")),
            ("RABBITMQ_MNESIA_BASE", inside("data")),
            ("RABBITMQ_LOG_BASE", inside("log")),
            ("RABBITMQ_CONFIG_FILE", inside("rabbitmq.conf")),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", inside("plugins")),
        ]);
        command.env("RABBITMQ_NODENAME", format!("fanout{port}@localhost")).env("PATH", path);
        command.env("RABBITMQ_DIST_PORT", distribution.to_string()).env("ERL_EPMD_PORT", names.to_string());
        command.env("ERL_EPMD_ADDRESS", "127.0.0.1");
        command
    }

    /// Kills the server, like a power failure that keeps the disk.
    pub fn kill(&mut self) {
        if let Some(mut keeper) = self.keeper.take() {
            drop(keeper.stdin.take());
            keeper.wait().unwrap();
        }
    }

    /// Returns the URL with a password.
    pub fn url(&self, password: &str) -> String {
        format!("amqp://guest:{password}@127.0.0.1:{}", self.ports[0])
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns the path of a program of RabbitMQ.
fn program(name: &str) -> PathBuf {
    let version = fs::read_dir(root().join("usr/lib/rabbitmq/lib")).unwrap().next().unwrap().unwrap().path();
    version.join("sbin").join(name)
}

/// Returns the folder into which `tests/servers.sh` installs RabbitMQ.
fn root() -> PathBuf {
    let home = || Path::new(&std::env::var_os("HOME").unwrap()).join(".cache/hostler/servers");
    let root = std::env::var_os("HOSTLER_TEST_SERVERS").map_or_else(home, PathBuf::from).join("rabbitmq");
    assert!(root.join("usr/lib/rabbitmq").exists(), "{}: run tests/servers.sh first", root.display());
    root
}
