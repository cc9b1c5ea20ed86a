//! The real NATS server that `tests/servers.sh` installs.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub const PATIENCE: Duration = Duration::from_secs(60);

/// Folders of the programs of the servers that are supported, the oldest first.
#[allow(dead_code, reason = "not all tests use it")]
pub const VERSIONS: [&str; 3] = ["nats-oldest/usr/sbin", "nats-2.10/bin", NEWEST];

const NEWEST: &str = "nats-newest/bin";

/// Runs the command `$@` in the shell's process group, with its output in a file of the folder `$0`. The end of this process ends
/// the shell's input, and so the group.
const KEEPER: &str = r#"
    { "$@" >"$0/output" 2>&1; kill -KILL 0; } &
    read -r _
    kill -KILL 0
"#;

/// A running server with JetStream. Dropping this value ends it.
pub struct Server {
    keeper: Child,
    run: PathBuf,
    address: String,
}

impl Server {
    /// Starts a server. Waits until it listens.
    #[allow(dead_code, reason = "not all tests use it")]
    pub fn start() -> Self {
        Self::start_with("")
    }

    /// Starts a server with a config of its own. Waits until it listens.
    #[allow(dead_code, reason = "not all tests use it")]
    pub fn start_with(config: &str) -> Self {
        Self::start_of(NEWEST, config)
    }

    /// Starts a server of one of [`VERSIONS`] with a config of its own. Waits until it listens.
    #[allow(dead_code, reason = "not all tests use it")]
    pub fn start_of(version: &str, config: &str) -> Self {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let name = format!("nats-{}-{}", process::id(), STARTED.fetch_add(1, Ordering::Relaxed));
        let run = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&run).unwrap();
        fs::write(run.join("config"), config).unwrap();
        let mut keeper = Command::new("sh");
        keeper
            .args(["-c", KEEPER])
            .arg(&run)
            .arg(program(version))
            .args(["-a", "127.0.0.1", "-p", "-1", "-js", "-c"])
            .arg(run.join("config"))
            .arg("-sd")
            .arg(&run)
            .arg("-P")
            .arg(run.join("pid"));
        keeper.arg("--ports_file_dir").arg(&run).stdin(Stdio::piped()).process_group(0);
        let (keeper, begun) = (keeper.spawn().unwrap(), Instant::now());
        let address = loop {
            if let Some(address) = listens(&run) {
                break address;
            }
            let output = || fs::read_to_string(run.join("output")).unwrap_or_default();
            assert!(begun.elapsed() < PATIENCE, "NATS did not start:\n{}", output());
            std::thread::park_timeout(Duration::from_millis(20));
        };
        Self { keeper, run, address }
    }

    /// Returns the URL of the server.
    pub fn url(&self) -> String {
        format!("nats://{}", self.address)
    }

    /// Lets the server read another config.
    #[allow(dead_code, reason = "not all tests use it")]
    pub fn reload(&self, config: &str) {
        fs::write(self.run.join("config"), config).unwrap();
        let id = fs::read_to_string(self.run.join("pid")).unwrap();
        assert!(Command::new("kill").args(["-HUP", id.trim()]).status().unwrap().success());
    }

    /// Sends messages, each with its subject, its subject for the reply and its headers, as no library would.
    #[allow(dead_code, reason = "not all tests use it")]
    pub fn send_raw(&self, messages: &[(&str, &str, &[u8])]) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(stream, "CONNECT {{\"verbose\":false,\"headers\":true,\"no_responders\":true}}\r\n").unwrap();
        for (subject, reply, headers) in messages {
            let size = headers.len();
            write!(stream, "HPUB {subject} {reply} {size} {size}\r\n").unwrap();
            stream.write_all(headers).unwrap();
            write!(stream, "\r\n").unwrap();
        }
        write!(stream, "PING\r\n").unwrap();
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        assert!(lines.any(|line| line == "PONG"), "the server takes all");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
        let _ = fs::remove_dir_all(&self.run);
    }
}

/// Returns the address at which the server listens.
fn listens(run: &Path) -> Option<String> {
    let mut files = fs::read_dir(run).ok()?.filter_map(Result::ok).map(|file| file.path());
    let file = files.find(|file| file.extension().is_some_and(|end| end == "ports"))?;
    let told: serde_json::Value = serde_json::from_str(&fs::read_to_string(file).ok()?).ok()?;
    Some(told["nats"][0].as_str()?.strip_prefix("nats://")?.to_owned())
}

fn program(version: &str) -> PathBuf {
    let home = || Path::new(&std::env::var_os("HOME").unwrap()).join(".cache/hostler/servers");
    let root = std::env::var_os("HOSTLER_TEST_SERVERS").map_or_else(home, PathBuf::from);
    let program = root.join(version).join("nats-server");
    assert!(program.exists(), "{}: run tests/servers.sh first", program.display());
    program
}
