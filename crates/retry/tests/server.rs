//! The connection over the real NATS server that `tests/servers.sh` installs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by a panic")]

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use async_nats::Client;
use futures_util::StreamExt as _;
use hostler_retry::engine::{Event, Outbox, Outgoing};
use hostler_retry::nats::Connection;
use tempfile::TempDir;
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the command `$@` in the shell's process group, with its output in a file of the folder `$0`. The end of this process ends
/// the shell's input, and so the group.
const KEEPER: &str = r#"
    { "$@" >"$0/output" 2>&1; kill -KILL 0; } &
    read -r _
    kill -KILL 0
"#;

/// A running server. Dropping this value ends it.
struct Server {
    keeper: Child,
    _run: TempDir,
    address: String,
}

impl Server {
    fn start() -> Self {
        let run = tempfile::tempdir().unwrap();
        let mut keeper = Command::new("sh");
        keeper.args(["-c", KEEPER]).arg(run.path()).arg(program()).args(["-a", "127.0.0.1", "-p", "-1"]);
        keeper.arg("--ports_file_dir").arg(run.path()).stdin(Stdio::piped()).process_group(0);
        let (keeper, begun) = (keeper.spawn().unwrap(), Instant::now());
        let address = loop {
            if let Some(address) = listens(run.path()) {
                break address;
            }
            let output = || fs::read_to_string(run.path().join("output")).unwrap_or_default();
            assert!(begun.elapsed() < PATIENCE, "NATS did not start:\n{}", output());
            std::thread::park_timeout(Duration::from_millis(20));
        };
        Self { keeper, _run: run, address }
    }

    fn url(&self) -> String {
        format!("nats://{}", self.address)
    }

    /// Sends messages, each with its subject, its subject for the reply and its headers, as no library would.
    fn send_raw(&self, messages: &[(&str, &str, &str)]) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(stream, "CONNECT {{\"verbose\":false,\"headers\":true,\"no_responders\":true}}\r\n").unwrap();
        for (subject, reply, headers) in messages {
            let size = headers.len();
            write!(stream, "HPUB {subject} {reply} {size} {size}\r\n{headers}\r\n").unwrap();
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
    }
}

/// Returns the address at which the server listens.
fn listens(run: &Path) -> Option<String> {
    let mut files = fs::read_dir(run).ok()?.filter_map(Result::ok).map(|file| file.path());
    let file = files.find(|file| file.extension().is_some_and(|end| end == "ports"))?;
    let told: serde_json::Value = serde_json::from_str(&fs::read_to_string(file).ok()?).ok()?;
    Some(told["nats"][0].as_str()?.strip_prefix("nats://")?.to_owned())
}

fn program() -> PathBuf {
    let home = || Path::new(&std::env::var_os("HOME").unwrap()).join(".cache/hostler/servers");
    let root = std::env::var_os("HOSTLER_TEST_SERVERS").map_or_else(home, PathBuf::from);
    let program = root.join("nats-newest/bin/nats-server");
    assert!(program.exists(), "{}: run tests/servers.sh first", program.display());
    program
}

/// A service without an engine.
struct Service {
    connection: Connection,
    events: Receiver<Event>,
    outbox: Outbox,
    stop: CancellationToken,
}

impl Service {
    async fn start(server: &Server) -> Self {
        let (mut connection, events) = Connection::open(&server.url()).await.unwrap();
        let stop = CancellationToken::new();
        let outbox = connection.serve("retry", "group", stop.clone()).await.unwrap();
        Self { connection, events, outbox, stop }
    }

    async fn next(&mut self) -> Event {
        timeout(PATIENCE, self.events.recv()).await.expect("the service is deaf").unwrap()
    }

    /// Waits until the service can send on a connection after that of this number. Returns the number.
    async fn connected(&mut self, after: u64) -> u64 {
        loop {
            if let Event::Connected(link) = self.next().await
                && link > after
            {
                return link;
            }
        }
    }

    /// Answers the next request of a producer, and returns its body.
    async fn answer(&mut self) -> String {
        loop {
            if let Event::Incoming(incoming) = self.next().await {
                let stored = Outgoing::Stored { to: incoming.reply.unwrap(), id: "1".to_owned() };
                self.outbox.send(stored).unwrap();
                return String::from_utf8(incoming.body.to_vec()).unwrap();
            }
        }
    }
}

/// Sends a request until it is answered: what is on its way while the service has no connection is lost.
async fn ask(client: &Client, body: String) {
    let request = || client.request("retry.a", body.clone().into());
    while !matches!(timeout(Duration::from_secs(1), request()).await, Ok(Ok(_))) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_over_which_the_client_panics_costs_the_connection_only() {
    let server = Server::start();
    let mut service = Service::start(&server).await;
    let client = async_nats::connect(server.url()).await.unwrap();
    let mut targets = client.subscribe("a").await.unwrap();
    client.flush().await.unwrap();
    let mut link = service.connected(0).await;
    for turn in 0..2 {
        server.send_raw(&[("retry.a", "inbox", "NATS/1.0\r\nname: one\rtwo\r\n\r\n")]);
        link = service.connected(link).await;
        let (asking, body) = (client.clone(), format!("request {turn}"));
        let asked = tokio::spawn(async move { ask(&asking, body).await });
        assert_eq!(service.answer().await, format!("request {turn}"));
        timeout(PATIENCE, asked).await.expect("the producer gets no reply").unwrap();
        // Replies of receivers come too.
        let content = hostler_retry::engine::Content { id: "1".to_owned(), headers: Vec::new(), body: "x".into() };
        let (subject, content) = ("a".into(), content.into());
        service.outbox.send(Outgoing::Request { link, token: 7, subject, attempt: 1, content }).unwrap();
        let delivery = timeout(PATIENCE, targets.next()).await.expect("nothing is delivered").unwrap();
        client.publish(delivery.reply.unwrap(), "+ACK".into()).await.unwrap();
        while !matches!(service.next().await, Event::Reply(7, _)) {}
    }
    service.stop.cancel();
    while !matches!(service.next().await, Event::NoMoreIncoming) {}
    drop((service.outbox, service.events));
    timeout(PATIENCE, service.connection.end()).await.expect("the service does not end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_question_about_the_service_is_answered_as_a_command_to_the_server() {
    let server = Server::start();
    let _service = Service::start(&server).await;
    let client = async_nats::connect(server.url()).await.unwrap();
    let mut answers = client.subscribe(">").await.unwrap();
    client.flush().await.unwrap();
    let verbs = ["PING", "INFO", "STATS"].map(|verb| format!("$SRV.{verb}"));
    for verb in &verbs {
        server.send_raw(&[(verb, "$KV.config.key", "NATS/1.0\r\n\r\n"), (verb, "good", "NATS/1.0\r\n\r\n")]);
        loop {
            let answer = timeout(PATIENCE, answers.next()).await.expect("the service does not answer").unwrap();
            assert_ne!(&*answer.subject, "$KV.config.key");
            if &*answer.subject == "good" {
                break;
            }
        }
    }
}
