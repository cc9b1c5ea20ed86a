//! Real SQS, SNS and S3 servers of others, which `tests/servers.sh` installs: started by a test, gone with it.

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

/// Runs the command `$@` in the shell's process group, its output in a file of the folder `$0`. The shell ends the
/// group when the command ends, and when its own standard input does: this process closed it, or died, and if it died,
/// nobody else removes the folder. The kernel's signal for the death of a parent will not do. It comes when the thread
/// ends that started the child, and each test is a thread.
const KEEPER: &str = r#"
    { "$@" >"$0/output" 2>&1; kill -KILL 0; } &
    read -r _
    rm -rf "$0"
    kill -KILL 0
"#;

/// For fauxqs, whose own command listens on every interface.
const FAUXQS: &str = "
    import { buildApp } from 'fauxqs';
    const [host, port] = process.argv.slice(1);
    await buildApp({ logger: false, host, defaultRegion: 'eu-west-1' }).listen({ host, port: Number(port) });
";

/// For LocalStack, which would keep the objects of S3 in one folder for all of its processes.
const LOCALSTACK: &str = "
import os
from localstack.services.s3 import provider
from localstack.runtime import main
provider.DEFAULT_S3_TMP_DIR = os.environ['TMPDIR']
main.main()
";

/// Which server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Nearest to AWS, move tasks and the dead letters of subscriptions included; what expires does so up to 1 s late.
    LocalStack,
    /// A second opinion; deep queues are slow, and a message made visible wakes a long poll only after 1 s.
    Moto,
    /// Light and quick; refuses the deletes with a stale receipt that AWS accepts.
    Ministack,
    /// The quickest, with stale receipts as on AWS; gives one message of a FIFO group at a time.
    Fauxqs,
}

impl Kind {
    /// All of them.
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

/// What `tests/servers.sh` put into this folder.
pub fn installed(name: &str) -> PathBuf {
    let root = std::env::var_os("HOSTLER_TEST_SERVERS").map(PathBuf::from);
    let root = root.unwrap_or_else(|| Path::new(&std::env::var_os("HOME").unwrap()).join(".cache/hostler/servers"));
    let folder = root.join(name);
    // It is written last.
    assert!(folder.join("pins").exists(), "{} is not installed: run tests/servers.sh", folder.display());
    folder
}

/// A name that no other test has, nor begins with: for queues, topics and buckets. At most 14 bytes longer than `name`.
pub fn unique(name: &str) -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("{name}-{}-{:05}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A running server on a port of its own. Dropping it kills it; so does the end of this process.
pub struct Server {
    keeper: Child,
    address: SocketAddr,
    folder: TempDir,
}

impl Server {
    /// Starts one, and waits until it answers.
    pub fn start(kind: Kind) -> Self {
        Self::start_at(kind, free_address(), None)
    }

    /// Starts Ministack so that it asks IAM whether who calls may: the others let everybody do everything.
    pub fn enforcing() -> Self {
        Self::launch(Kind::Ministack, free_address(), &[("AUTH", "true")])
    }

    /// The same at this address. One that keeps what it has, where it can, does so in a folder from its end to its start.
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

    /// The one that all tests of this process share; its queues are told apart by [`unique`] names.
    pub fn shared(kind: Kind) -> &'static Self {
        static SHARED: [OnceLock<Server>; Kind::ALL.len()] = [const { OnceLock::new() }; Kind::ALL.len()];
        SHARED[kind as usize].get_or_init(|| Self::start(kind))
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends it in order, so that it can keep what it has.
    pub fn stop(mut self) {
        let group = Pid::from_child(&self.keeper);
        kill_process_group(group, Signal::TERM).unwrap();
        self.keeper.wait().unwrap();
        until("the server's end", PATIENCE, || test_kill_process_group(group).is_err().then_some(()));
    }

    /// Its URL, for every service.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The environment in which every AWS client talks to it.
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

    /// Whether it can list queues.
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
        // Waiting closes its standard input first.
        let _ = self.keeper.wait();
    }
}

/// Nobody listens on it now. That nobody will before the server does is likely, not certain.
fn free_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}

/// How a server is started, with everything that it writes in this folder.
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
            // It imports from where it runs.
            command.args(["--input-type=module", "-e", FAUXQS, host, port]).current_dir(program);
            command
        }
    };
    command.env("HOME", folder).env("TMPDIR", folder);
    command
}

/// Only what the tests need, no downloads, nothing outside the folder, and none of AWS's minute-long pauses.
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

/// The shell that runs this command until it or this process ends.
pub(super) fn keeper(folder: &Path, command: &Command) -> Child {
    let mut keeper = Command::new("/bin/sh");
    keeper.args(["-c", KEEPER]).arg(folder).arg(command.get_program()).args(command.get_args());
    keeper.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    keeper.env("PATH", std::env::var_os("PATH").unwrap());
    if let Some(folder) = command.get_current_dir() {
        keeper.current_dir(folder);
    }
    keeper.process_group(0).stdin(Stdio::piped()).spawn().unwrap()
}

/// The last lines of what a server wrote.
pub(super) fn tail(folder: &Path) -> String {
    let output = fs::read(folder.join("output")).unwrap_or_default();
    let output = String::from_utf8_lossy(&output);
    let lines: Vec<&str> = output.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// The request, signed by nobody: these servers look at whom it is for and not at its signature.
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
