//! A RabbitMQ server for tests, which `tests/servers.sh` installs, and a cluster of them.

use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::OnceLock;

use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process_group};
use serde_json::Value;
use tempfile::TempDir;

use super::hostler::{PATIENCE, pid, until};
use super::servers::{installed, keeper, tail};

/// Starts the server with a name service of its own, which the server would otherwise start beyond the reach of its parent.
/// Arguments: the port of the name service, and the server's program.
const START: &str = r#"epmd -port "$0" -address 127.0.0.1 & exec "$1""#;

/// Starts a name service. Argument: its port.
const NAMES: &str = r#"exec epmd -port "$0" -address 127.0.0.1"#;

/// Cookie that the nodes of a cluster share.
const COOKIE: &str = "HOSTLERTESTS";

/// A running node, on ports of its own: a server by itself, unless it joined a cluster. Dropping this value kills the node. The end
/// of this process also kills it.
pub struct RabbitMq {
    keeper: Child,
    port: u16,
    management: u16,
    folder: TempDir,
}

impl RabbitMq {
    /// Starts a server. Waits until it listens.
    pub fn start() -> Self {
        Self::launch(free_ports(), "").listening()
    }

    /// Starts a server that clients find at this port. Waits until it listens.
    pub fn at(port: u16) -> Self {
        let [_, management, distribution, names] = free_ports();
        Self::launch([port, management, distribution, names], "").listening()
    }

    /// Starts a server with further settings. Waits until it listens.
    pub fn with(settings: &str) -> Self {
        Self::launch(free_ports(), settings).listening()
    }

    /// Starts a node with further settings.
    fn launch(ports: [u16; 4], settings: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let keeper = keeper(folder.path(), &command(folder.path(), ports, settings));
        let [port, management, ..] = ports;
        Self { keeper, port, management, folder }
    }

    /// Waits until the node listens.
    fn listening(mut self) -> Self {
        until("the server listens", PATIENCE * 4, || {
            assert!(self.keeper.try_wait().unwrap().is_none(), "RabbitMQ did not start:\n{}", tail(self.folder.path()));
            (listens(self.port) && listens(self.management)).then_some(())
        });
        self
    }

    /// Kills the node, like a power failure.
    pub fn kill(&mut self) {
        kill_process_group(Pid::from_child(&self.keeper), Signal::KILL).unwrap();
        self.keeper.wait().unwrap();
    }

    /// Returns the name of the node in its cluster.
    pub fn node(&self) -> String {
        node(self.port)
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
        let mut command = program("rabbitmqctl");
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

    /// Runs an Erlang expression on the server, and returns its value as text.
    pub fn eval(&self, expression: &str) -> String {
        self.ctl(&["eval", expression])
    }

    /// Publishes messages to a queue, as a producer that keeps to nothing. `properties` and `body`: Erlang terms, in which `N` is the
    /// number of the message, from 1 to `count`.
    pub fn publish(&self, queue: &str, properties: &str, body: &str, count: usize) {
        let exchange = "Exchange = rabbit_misc:r(<<\"/\">>, exchange, <<>>)";
        let old = "rabbit_basic:publish(Exchange, Queue, Properties, Body)";
        let content = "rabbit_basic:build_content(rabbit_basic:properties(Properties), Body)";
        // RabbitMQ 4 has messages of its own form.
        let new = format!(
            "{{ok, Message}} = mc_amqpl:message(Exchange, Queue, {content}), \
             rabbit_queue_type:publish_at_most_once(rabbit_exchange:lookup_or_die(Exchange), Message)"
        );
        let one = format!(
            "fun (Queue, Properties, Body) -> case erlang:function_exported(rabbit_basic, publish, 4) of true -> {old}; false -> {new} end \
             end"
        );
        let all = format!("[Publish(<<\"{queue}\">>, {properties}, {body}) || N <- lists:seq(1, {count})]");
        self.eval(&format!("{exchange}, Publish = {one}, {all}."));
    }

    /// Returns what the server has logged.
    pub fn log(&self) -> String {
        let files = fs::read_dir(self.folder.path().join("log")).unwrap().map(|file| file.unwrap().path());
        files.filter(|file| file.is_file()).map(|file| fs::read_to_string(file).unwrap()).collect()
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

/// Variable with the root folder of another system that has RabbitMQ, and sees this system's folder for temporary files.
/// `tests/rabbitmq-4.sh` makes one.
const OTHER: &str = "HOSTLER_TEST_RABBITMQ";

/// Folder of RabbitMQ's versions, in the folder of the installation.
const VERSIONS: &str = "usr/lib/rabbitmq/lib";

/// Returns a command that runs a program of RabbitMQ.
fn program(name: &str) -> Command {
    let (mut command, program) = (shell(), path_of(name));
    command.args(["-c", r#"exec "$0" "$@""#]).arg(program);
    command
}

/// Returns a command that runs a shell in the system that has RabbitMQ.
fn shell() -> Command {
    let Some(root) = std::env::var_os(OTHER) else { return Command::new("/bin/sh") };
    let mut command = Command::new("chroot");
    command.arg(root).arg("/bin/sh");
    command
}

/// Returns the path of a program of RabbitMQ in its system.
fn path_of(program: &str) -> PathBuf {
    let other = std::env::var_os(OTHER).map(PathBuf::from);
    let root = other.clone().unwrap_or_else(|| installed("rabbitmq"));
    let version = fs::read_dir(root.join(VERSIONS)).unwrap().next().unwrap().unwrap().file_name();
    let root = if other.is_some() { PathBuf::from("/") } else { root };
    root.join(VERSIONS).join(version).join("sbin").join(program)
}

/// Returns the folders of programs, with those of Erlang.
fn path() -> String {
    let erlang = if std::env::var_os(OTHER).is_some() { PathBuf::new() } else { installed("rabbitmq") };
    format!("{}/usr/lib/erlang/bin:/usr/sbin:/usr/bin:/sbin:/bin", erlang.display())
}

/// A cluster of three nodes on this machine. Dropping this value kills it. The end of this process also kills it.
pub struct Cluster {
    pub nodes: Vec<RabbitMq>,
    /// Name service of all nodes. A node's own would end with the node.
    names: Child,
    _folder: TempDir,
}

impl Cluster {
    /// Starts a cluster. Waits until the nodes have joined.
    pub fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let [names] = free_ports();
        let mut command = shell();
        command.args(["-c", NAMES, &names.to_string()]).env("PATH", path());
        let service = keeper(folder.path(), &command);
        until("the name service listens", PATIENCE, || listens(names).then_some(()));
        let ports = || {
            let [port, management, distribution] = free_ports();
            [port, management, distribution, names]
        };
        let first = RabbitMq::launch(ports(), "").listening();
        let others = [ports(), ports()].map(|ports| {
            let formation = format!(
                "cluster_formation.peer_discovery_backend = classic_config\ncluster_formation.classic_config.nodes.1 = {}\n\
                 cluster_formation.classic_config.nodes.2 = {}\n",
                first.node(),
                node(ports[0])
            );
            RabbitMq::launch(ports, &formation)
        });
        let nodes: Vec<_> = [first].into_iter().chain(others.map(RabbitMq::listening)).collect();
        let status: Value = serde_json::from_str(&nodes[0].ctl(&["cluster_status", "--formatter", "json"])).unwrap();
        assert_eq!(
            status["running_nodes"].as_array().map(Vec::len),
            Some(3),
            "{status}\n{}",
            tail(nodes[1].folder.path())
        );
        Self { nodes, names: service, _folder: folder }
    }

    /// Returns the URL of the cluster, with the addresses of all nodes.
    pub fn url(&self) -> String {
        let addresses: Vec<_> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
        format!("amqp://guest:guest@{}", addresses.join(","))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // `wait` first closes the keeper's standard input, which ends the keeper.
        let _ = self.names.wait();
    }
}

fn node(port: u16) -> String {
    format!("test{port}@localhost")
}

fn listens(port: u16) -> bool {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// Creates the command that starts a node. `ports`: of AMQP, of the management API, of Erlang's distribution and its names.
fn command(folder: &Path, ports: [u16; 4], more: &str) -> Command {
    let [port, management, distribution, names] = ports;
    let settings = format!(
        "listeners.tcp.1 = 127.0.0.1:{port}\nmanagement.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {management}\nvm_memory_high_watermark.relative = 0.6\n\
         disk_free_limit.absolute = 10MB\n{more}"
    );
    let cookie = fs::OpenOptions::new().create_new(true).write(true).mode(0o400).open(folder.join(".erlang.cookie"));
    cookie.unwrap().write_all(COOKIE.as_bytes()).unwrap();
    fs::write(folder.join("rabbitmq.conf"), settings).unwrap();
    fs::write(folder.join("plugins"), "[rabbitmq_management].").unwrap();
    let settings =
        format!("RABBITMQ_NODENAME={}\nRABBITMQ_DIST_PORT={distribution}\nERL_EPMD_PORT={names}\n", node(port));
    fs::write(folder.join("env"), settings).unwrap();
    let mut command = shell();
    command.args(["-c", START, &names.to_string()]).arg(path_of("rabbitmq-server")).envs(env(folder));
    command
}

/// Returns the environment of the server and of `rabbitmqctl`.
fn env(folder: &Path) -> Vec<(String, String)> {
    let inside = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let mut env: Vec<_> = [
        ("HOME", inside("")),
        ("RABBITMQ_MNESIA_BASE", inside("data")),
        ("RABBITMQ_LOG_BASE", inside("log")),
        ("RABBITMQ_CONFIG_FILE", inside("rabbitmq.conf")),
        ("RABBITMQ_ENABLED_PLUGINS_FILE", inside("plugins")),
        ("RABBITMQ_PID_FILE", inside("pid")),
        ("ERL_EPMD_ADDRESS", "127.0.0.1".to_owned()),
        ("PATH", path()),
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
