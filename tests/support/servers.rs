//! Third-party SQS, SNS and S3 servers for tests, which `tests/servers.sh` installs.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tempfile::TempDir;

use super::hostler::{PATIENCE, until};

/// Runs the command `$@` in the shell's process group, with its output in a file of the folder `$0`. The shell kills the group
/// when the command ends, and when the shell's standard input ends. The input ends when this process closes it or dies. After the
/// death of this process, only the shell can remove the folder. The kernel's parent-death signal is no alternative. It is sent
/// when the thread that started the child ends, and each test is a thread.
const KEEPER: &str = r#"
    { "$@" >"$0/output" 2>&1; kill -KILL 0; } &
    read -r _
    rm -rf "$0"
    kill -KILL 0
"#;

/// Script that starts fauxqs on one interface. The command of fauxqs itself listens on all interfaces.
const FAUXQS: &str = "
    import { buildApp } from 'fauxqs';
    const [host, port] = process.argv.slice(1);
    await buildApp({ logger: false, host, defaultRegion: 'eu-west-1' }).listen({ host, port: Number(port) });
";

/// Script that starts LocalStack with its own folder for S3 objects. By default, all LocalStack processes would share one folder.
const LOCALSTACK: &str = "
import os
from localstack.services.s3 import provider
from localstack.runtime import main
provider.DEFAULT_S3_TMP_DIR = os.environ['TMPDIR']
main.main()
";

/// Kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Closest to AWS, including move tasks and dead letters of subscriptions. Expirations occur up to 1 s late.
    LocalStack,
    /// A second implementation. Deep queues are slow, and a message that becomes visible wakes a long poll only after 1 s.
    Moto,
    /// Light and fast. Refuses deletes with a stale receipt, which AWS accepts.
    Ministack,
    /// The fastest, with stale receipts as on AWS. Delivers one message of a FIFO group at a time.
    Fauxqs,
}

impl Kind {
    /// All kinds of servers.
    pub const ALL: [Self; 4] = [Self::LocalStack, Self::Moto, Self::Ministack, Self::Fauxqs];

    fn folder(self) -> &'static str {
        match self {
            Self::LocalStack => "localstack",
            Self::Moto => "moto",
            Self::Ministack => "ministack",
            Self::Fauxqs => "node",
        }
    }
}

/// Returns the folder in which `tests/servers.sh` installed this program.
pub fn installed(name: &str) -> PathBuf {
    let root = std::env::var_os("HOSTLER_TEST_SERVERS").map(PathBuf::from);
    let root = root.unwrap_or_else(|| Path::new(&std::env::var_os("HOME").unwrap()).join(".cache/hostler/servers"));
    let folder = root.join(name);
    // This file is written last, after a complete installation.
    assert!(folder.join("pins").exists(), "{} is not installed: run tests/servers.sh", folder.display());
    folder
}

/// Returns a unique name for queues, topics and buckets. No other name starts with it. At most 14 bytes longer than `name`.
pub fn unique(name: &str) -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("{name}-{}-{:05}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A running server on a separate port. Dropping this value kills the server. The end of this process also kills it.
pub struct Server {
    keeper: Child,
    address: SocketAddr,
    folder: TempDir,
}

impl Server {
    /// Starts a server. Waits until it answers.
    pub fn start(kind: Kind) -> Self {
        Self::start_at(kind, free_address(), None)
    }

    /// Starts Ministack with IAM checks. The other servers allow all calls.
    pub fn enforcing() -> Self {
        Self::launch(Kind::Ministack, free_address(), &[("AUTH", "true")])
    }

    /// Starts a server at this address. With `state`, the server stores its data in this folder from its end to its next start.
    pub fn start_at(kind: Kind, address: SocketAddr, state: Option<&Path>) -> Self {
        match state.map(|state| state.to_str().unwrap()) {
            None => Self::launch(kind, address, &[]),
            Some(state) => {
                assert_eq!(kind, Kind::Ministack, "the others keep nothing");
                Self::launch(kind, address, &[("PERSIST_STATE", "1"), ("STATE_DIR", state)])
            }
        }
    }

    fn launch(kind: Kind, address: SocketAddr, env: &[(&str, &str)]) -> Self {
        let program = installed(kind.folder());
        let folder = tempfile::tempdir().unwrap();
        let mut command = command(kind, &program, folder.path(), address);
        command.envs(env.iter().copied());
        let keeper = keeper(folder.path(), &command);
        let mut server = Self { keeper, address, folder };
        let begun = Instant::now();
        until("an answer", PATIENCE * 2, || {
            let ended = server.keeper.try_wait().unwrap().is_some();
            assert!(!ended && begun.elapsed() < PATIENCE, "{kind:?} did not start:\n{}", tail(server.folder.path()));
            server.answers().then_some(())
        });
        server
    }

    /// Returns the server that all tests of this process share. Tests separate their queues by [`unique`] names.
    pub fn shared(kind: Kind) -> &'static Self {
        static SHARED: [OnceLock<Server>; Kind::ALL.len()] = [const { OnceLock::new() }; Kind::ALL.len()];
        SHARED[kind as usize].get_or_init(|| Self::start(kind))
    }

    /// Returns the address of the server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops the server in order, so that it can store its data.
    pub fn stop(mut self) {
        let group = Pid::from_child(&self.keeper);
        kill_process_group(group, Signal::TERM).unwrap();
        self.keeper.wait().unwrap();
        until("the server's end", PATIENCE, || test_kill_process_group(group).is_err().then_some(()));
    }

    /// Returns the URL of the server, for every service.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the environment in which AWS clients use this server.
    pub fn env(&self) -> Vec<(&'static str, String)> {
        let env = |(name, value): (_, &str)| (name, value.to_owned());
        [
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "test"),
            ("AWS_REGION", "eu-west-1"),
            ("AWS_DEFAULT_REGION", "eu-west-1"),
            ("AWS_ENDPOINT_URL", &self.endpoint()),
            ("AWS_EC2_METADATA_DISABLED", "true"),
        ]
        .map(env)
        .into()
    }

    /// Returns true if the server can list queues.
    fn answers(&self) -> bool {
        let ask = || -> io::Result<bool> {
            let mut stream = TcpStream::connect(self.address)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.write_all(list_queues(self.address).as_bytes())?;
            let mut status = [0; "HTTP/1.1 200".len()];
            stream.read_exact(&mut status)?;
            Ok(status.ends_with(b" 200"))
        };
        ask().unwrap_or(false)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // `wait` first closes the keeper's standard input, which ends the keeper.
        let _ = self.keeper.wait();
    }
}

/// Returns an address on which no program listens now. In rare cases, another program takes the address before the server.
fn free_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}

/// Creates the command that starts a server. The server writes only to `folder`.
fn command(kind: Kind, program: &Path, folder: &Path, address: SocketAddr) -> Command {
    let (host, port) = (&*address.ip().to_string(), &*address.port().to_string());
    let run = |path: &str| Command::new(program.join(path));
    let mut command = match kind {
        Kind::LocalStack => {
            let mut command = run("bin/python");
            command.args(["-c", LOCALSTACK]).envs(localstack(folder, address));
            command
        }
        Kind::Moto => {
            let mut command = run("bin/moto_server");
            command.args(["-H", host, "-p", port]);
            command
        }
        Kind::Ministack => {
            let mut command = run("bin/ministack");
            command.envs([("BIND_HOST", host), ("MINISTACK_HOST", host), ("GATEWAY_PORT", port)]);
            command
        }
        Kind::Fauxqs => {
            let mut command = run("node");
            // Node imports modules relative to the working directory.
            command.args(["--input-type=module", "-e", FAUXQS, host, port]).current_dir(program);
            command
        }
    };
    command.env("HOME", folder).env("TMPDIR", folder);
    command
}

/// Returns LocalStack's settings: only the needed services, no downloads, no files outside the folder, and none of AWS's delays
/// of a minute.
fn localstack(folder: &Path, address: SocketAddr) -> impl Iterator<Item = (&'static str, String)> {
    let (folder, address) = (folder.display(), address.to_string());
    [
        ("FILESYSTEM_ROOT", folder.to_string()),
        ("LOCALSTACK_VOLUME_DIR", format!("{folder}/lib")),
        ("GATEWAY_LISTEN", address.clone()),
        ("LOCALSTACK_HOST", address),
    ]
    .into_iter()
    .chain(
        [
            ("SERVICES", "sqs,sns,s3,cloudwatch,resourcegroupstaggingapi"),
            ("SQS_ENDPOINT_STRATEGY", "path"),
            ("SQS_DELAY_PURGE_RETRY", "0"),
            ("SQS_DELAY_RECENTLY_DELETED", "0"),
            ("SQS_ENABLE_MESSAGE_RETENTION_PERIOD", "1"),
            ("SQS_CLOUDWATCH_METRICS_REPORT_INTERVAL", "5"),
            ("SKIP_SSL_CERT_DOWNLOAD", "1"),
            ("SKIP_INFRA_DOWNLOADS", "1"),
            ("DISABLE_EVENTS", "1"),
            ("DNS_ADDRESS", "0"),
        ]
        .map(|(name, value)| (name, value.to_owned())),
    )
}

/// Starts a shell that runs this command until the command or this process ends.
pub(super) fn keeper(folder: &Path, command: &Command) -> Child {
    let mut keeper = Command::new("/bin/sh");
    keeper.args(["-c", KEEPER]).arg(folder).arg(command.get_program()).args(command.get_args());
    keeper.env_clear().env("PATH", std::env::var_os("PATH").unwrap());
    keeper.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    if let Some(folder) = command.get_current_dir() {
        keeper.current_dir(folder);
    }
    keeper.process_group(0).stdin(Stdio::piped()).spawn().unwrap()
}

/// Returns the last 20 lines of a server's output.
pub(super) fn tail(folder: &Path) -> String {
    let output = fs::read(folder.join("output")).unwrap_or_default();
    let output = String::from_utf8_lossy(&output);
    let lines: Vec<&str> = output.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// Returns an unsigned request. The servers check the service in the request, but not its signature.
fn list_queues(host: SocketAddr) -> String {
    [
        "POST / HTTP/1.1",
        &format!("Host: {host}"),
        "Connection: close",
        "Content-Type: application/x-amz-json-1.0",
        "Content-Length: 2",
        "X-Amz-Target: AmazonSQS.ListQueues",
        "X-Amz-Date: 20200101T000000Z",
        "Authorization: AWS4-HMAC-SHA256 Credential=test/20200101/eu-west-1/sqs/aws4_request, \
            SignedHeaders=host;x-amz-date, Signature=0",
        "",
        "{}",
    ]
    .join("\r\n")
}
