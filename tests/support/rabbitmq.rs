//! A RabbitMQ server for tests, which `tests/servers.sh` installs.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::OnceLock;

use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process_group};
use tempfile::TempDir;

use super::hostler::{PATIENCE, pid, until};
use super::servers::{installed, keeper, tail};

/// Starts the server with a name service of its own, which the server would otherwise start beyond the reach of its parent.
/// Arguments: the port of the name service, and the server's program.
const START: &str = r#"epmd -port "$0" -address 127.0.0.1 & exec "$1""#;

/// A running server with one node, on ports of its own. Dropping this value kills the server. The end of this process also kills
/// it.
pub struct RabbitMq {
    keeper: Child,
    port: u16,
    management: u16,
    folder: TempDir,
}

impl RabbitMq {
    /// Starts a server. Waits until it listens.
    pub fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let ports: [u16; 4] = free_ports();
        let [port, management, ..] = ports;
        let keeper = keeper(folder.path(), &command(folder.path(), ports));
        let mut server = Self { keeper, port, management, folder };
        until("the server listens", PATIENCE * 4, || {
            assert!(
                server.keeper.try_wait().unwrap().is_none(),
                "RabbitMQ did not start:\n{}",
                tail(server.folder.path())
            );
            let listens = |port| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok();
            (listens(port) && listens(management)).then_some(())
        });
        server
    }

    /// Returns the server that all tests of this process share. Tests separate their queues by prefixes.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<RabbitMq> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// Returns the port of the server.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the URL of the server.
    pub fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}", self.port)
    }

    /// Returns the URL of the management API.
    pub fn management_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.management)
    }

    /// Runs `rabbitmqctl`, which must succeed, and returns its output.
    pub fn ctl(&self, args: &[&str]) -> String {
        let program = installed("rabbitmq").join(PROGRAMS).join("rabbitmqctl");
        let mut command = Command::new(program);
        command.args(args).env_clear().envs(env(self.folder.path()));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Stops the server's process, with its timers and its connections, until [`Self::thaw`].
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets the server's process go on.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let id = fs::read_to_string(self.folder.path().join("pid")).unwrap();
        kill_process(pid(id.trim().parse().unwrap()), signal).unwrap();
    }

    /// Closes all connections that clients have.
    pub fn cut(&self) {
        self.ctl(&["close_all_connections", "a test"]);
    }
}

impl Drop for RabbitMq {
    fn drop(&mut self) {
        let group = Pid::from_child(&self.keeper);
        // `wait` first closes the keeper's standard input, which ends the keeper.
        let _ = self.keeper.wait();
        if test_kill_process_group(group).is_ok() {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// Folder of the programs, in the folder of the installation.
const PROGRAMS: &str = "usr/lib/rabbitmq/lib/rabbitmq_server-3.10.8/sbin";

/// Creates the command that starts a server. `ports`: of AMQP, of the management API, of Erlang's distribution and its names.
fn command(folder: &Path, ports: [u16; 4]) -> Command {
    let [port, management, distribution, names] = ports;
    let settings = format!(
        "listeners.tcp.1 = 127.0.0.1:{port}\nmanagement.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {management}\nvm_memory_high_watermark.relative = 0.6\n\
         disk_free_limit.absolute = 10MB\n"
    );
    fs::write(folder.join("rabbitmq.conf"), settings).unwrap();
    fs::write(folder.join("plugins"), "[rabbitmq_management].").unwrap();
    let settings =
        format!("RABBITMQ_NODENAME=test{port}@localhost\nRABBITMQ_DIST_PORT={distribution}\nERL_EPMD_PORT={names}\n");
    fs::write(folder.join("env"), settings).unwrap();
    let mut command = Command::new("/bin/sh");
    command.args(["-c", START, &names.to_string()]);
    command.arg(installed("rabbitmq").join(PROGRAMS).join("rabbitmq-server")).envs(env(folder));
    command
}

/// Returns the environment of the server and of `rabbitmqctl`.
fn env(folder: &Path) -> Vec<(String, String)> {
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let erlang = installed("rabbitmq").join("usr/lib/erlang/bin");
    let mut env: Vec<_> = [
        ("HOME", path("")),
        ("RABBITMQ_MNESIA_BASE", path("data")),
        ("RABBITMQ_LOG_BASE", path("log")),
        ("RABBITMQ_CONFIG_FILE", path("rabbitmq.conf")),
        ("RABBITMQ_ENABLED_PLUGINS_FILE", path("plugins")),
        ("RABBITMQ_PID_FILE", path("pid")),
        ("ERL_EPMD_ADDRESS", "127.0.0.1".to_owned()),
        ("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", erlang.display())),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    let own = fs::read_to_string(folder.join("env")).unwrap();
    env.extend(own.lines().filter_map(|line| line.split_once('=')).map(|(name, value)| (name.into(), value.into())));
    env
}

fn free_ports<const N: usize>() -> [u16; N] {
    let listeners = [(); N].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}
