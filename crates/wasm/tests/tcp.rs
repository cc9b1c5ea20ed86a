//! TCP connections of a real guest to real servers: what a grant opens, all that stays closed, and output that is not lost.
//! `tests/tcp/guest` is built by its `build.sh`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by a panic")]

#[path = "../../../tests/support/postgres.rs"]
mod postgres;
#[path = "tcp/tls.rs"]
mod tls;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, LazyLock, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hostler_handler::{BatchCall, BatchEnd, Bounds, Call, Handler, Outcome, Output};
use hostler_types::endpoint::Endpoint;
use hostler_types::message::{AttributeValue, Message};
use hostler_types::tcp_grant::TcpGrant;
use hostler_wasm::cache::Cache;
use hostler_wasm::{Definition, Engine, Grants, LoadError, Source, load};
use postgres::Postgres;
use tokio::runtime::{Builder, Runtime};

/// Linear memory of a sandbox, in bytes.
const MEMORY: u64 = 64 << 20;

/// Processing timeout of messages that are to succeed. Compiling is not part of it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes that the guest pours.
const POURED: usize = 1 << 20;

/// Compiles the guest once for all tests.
static ENGINE: LazyLock<Engine> = LazyLock::new(|| {
    let cache = Cache::open(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("compiled"));
    Engine::on_demand().unwrap().with_cache(cache)
});

/// The first handler compiles, and the others wait for it.
static FIRST: Mutex<()> = Mutex::new(());

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap());

static GUEST: LazyLock<PathBuf> = LazyLock::new(|| {
    let temporary = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (wasm, folder) =
        (temporary.join("sockets.wasm"), Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/tcp/guest"));
    let mut build = Command::new("sh");
    build.arg(folder.join("build.sh")).arg(&wasm).env("CARGO_TARGET_DIR", temporary.join("guest"));
    build.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    assert!(build.status().unwrap().success(), "tests/tcp/guest/build.sh failed");
    wasm
});

fn grants(tcp: &[&str], networks: &[&str]) -> Grants {
    Grants {
        tcp: tcp.iter().map(|server| TcpGrant::from(server.parse::<Endpoint>().unwrap())).collect(),
        networks: networks.iter().map(|network| network.parse().unwrap()).collect(),
        connections: 8,
        ..Grants::default()
    }
}

fn handler(grants: Grants, messages_per_instance: u32) -> Arc<dyn Handler> {
    loaded(grants, messages_per_instance, false).unwrap()
}

fn loaded(grants: Grants, messages_per_instance: u32, batches: bool) -> Result<Arc<dyn Handler>, LoadError> {
    let definition = Definition {
        consumer: "one".into(),
        source: Source::File(GUEST.clone()),
        sha256: None,
        hooks: None,
        hooks_sha256: None,
        grants,
        messages_per_instance,
        batches,
        reply_from_stdout: false,
        metrics: None,
    };
    let _first = FIRST.lock();
    load(&ENGINE, &definition)?.handler(MEMORY)
}

fn call(word: &str, body: &str, within: Duration) -> Call {
    let mut message = Message::new("1", body.to_owned());
    message.attributes.insert("do".to_owned(), AttributeValue::Text(word.to_owned()));
    Call::new(Arc::new(message), "one".into(), 1, Bounds::new(within), Output::new(1024))
}

/// Gives a message to a handler. `None`: it was stopped at this processing timeout.
fn ask(handler: &Arc<dyn Handler>, word: &str, body: &str, within: Duration) -> Option<Outcome> {
    let call = call(word, body, within);
    RUNTIME.block_on(async { tokio::time::timeout(within, handler.handle(&call)).await.ok() })
}

fn done(grants: Grants, word: &str, body: &str) -> Outcome {
    ask(&handler(grants, 1), word, body, PATIENCE).unwrap_or_else(|| panic!("{word} {body} was stopped"))
}

/// Asserts that the guest saw an error.
fn refused(grants: Grants, word: &str, body: &str) -> String {
    match done(grants, word, body) {
        Outcome::Failed(reason) => reason,
        other => panic!("{word} {body}: {other:?}"),
    }
}

/// A server on loopback that does this with its first connection.
fn serve<T: Send + 'static>(on: impl FnOnce(TcpStream) -> T + Send + 'static) -> (SocketAddr, JoinHandle<T>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (address, thread::spawn(move || on(listener.accept().unwrap().0)))
}

fn echo(mut stream: TcpStream) {
    let mut said = Vec::new();
    stream.read_to_end(&mut said).unwrap();
    stream.write_all(&said).unwrap();
}

/// A port on which a server listens, and accepts nothing.
fn silent() -> (TcpListener, String) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

#[test]
fn a_guest_talks_to_a_granted_address() {
    let (address, server) = serve(echo);
    let address = address.to_string();
    assert_eq!(done(grants(&[&address], &[]), "echo", &address), Outcome::Reply(b"hello".to_vec()));
    server.join().unwrap();
}

#[test]
fn a_guest_talks_to_a_granted_name() {
    let (address, server) = serve(echo);
    let name = format!("localhost:{}", address.port());
    assert_eq!(done(grants(&[&name], &[]), "echo", &name), Outcome::Reply(b"hello".to_vec()));
    server.join().unwrap();
}

#[test]
fn nothing_else_is_connected_to() {
    let (listener, address) = silent();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    refused(Grants::default(), "connect", &address);
    for granted in ["127.0.0.1:1", "127.0.0.2:5432", &format!("127.0.0.2:{port}"), &format!("[::1]:{port}")] {
        refused(grants(&[granted], &["127.0.0.0/8"]), "connect", &address);
    }
    // A name's grant is for the addresses that were answered: here, the guest never asked for the name.
    refused(grants(&[&format!("localhost:{port}")], &["127.0.0.0/8"]), "connect", &address);
    // Another port of a granted name.
    refused(grants(&["localhost:1"], &["127.0.0.0/8"]), "connect", &format!("localhost:{port}"));
    assert!(listener.accept().is_err(), "nobody connected");
}

#[test]
fn only_granted_names_are_looked_up() {
    let granted = || grants(&["localhost:5432"], &[]);
    refused(granted(), "resolve", "secret.example.com:80");
    refused(granted(), "resolve", "localhost.example.com:5432");
    refused(Grants::default(), "resolve", "localhost:5432");
    let Outcome::Reply(answer) = done(granted(), "resolve", "LOCALHOST:5432") else { panic!("no reply") };
    assert!(String::from_utf8(answer).unwrap().contains("127.0.0.1:5432"));
    assert_eq!(done(granted(), "resolve", "10.0.0.9:1"), Outcome::Reply(b"10.0.0.9:1".to_vec()));
}

#[test]
fn a_guest_does_not_listen() {
    refused(grants(&["127.0.0.1:1"], &[]), "listen", "0.0.0.0:0");
    refused(grants(&["127.0.0.1:1"], &[]), "listen", "127.0.0.1:0");
}

#[test]
fn a_sandbox_has_so_many_sockets_and_no_more() {
    let (_listener, address) = silent();
    for connections in [1, 8] {
        let grants = Grants { connections, ..grants(&[&address], &[]) };
        let Outcome::Reply(reply) = done(grants, "many", &address) else { panic!("no reply") };
        let reply = String::from_utf8(reply).unwrap();
        assert!(reply.starts_with(&format!("{connections} ")), "{reply}");
    }
}

#[test]
fn a_half_open_peer_ends_with_the_processing_timeout() {
    let (_listener, address) = silent();
    let handler = handler(grants(&[&address], &[]), 1);
    assert_eq!(ask(&handler, "read", &address, Duration::from_millis(500)), None);
}

/// Reads until the stream ends. Returns the number of bytes.
fn read_all(mut stream: TcpStream) -> usize {
    let mut read = 0;
    let mut part = [0; 4096];
    while let Ok(length @ 1..) = stream.read(&mut part) {
        read += length;
    }
    read
}

/// Asks a guest to leave output behind that the host must hold: after `first` bytes, nobody reads it until `leaving` has ended,
/// which runs once the guest is about to return. Returns the outcome, or `None` at the processing timeout, and the number of bytes
/// that arrived.
fn left(
    within: Duration,
    first: usize,
    leaving: impl FnOnce(&JoinHandle<Option<Outcome>>) -> Then,
) -> (Option<Outcome>, usize) {
    let (sender, go) = mpsc::channel();
    let (address, server) = serve(move |stream| holding(stream, first, &go));
    let (told, tells) = serve(drop);
    let handler = handler(grants(&[&address.to_string(), &told.to_string()], &[]), 1);
    let call = thread::spawn(move || ask(&handler, "leave", &format!("{address} {told}"), within));
    tells.join().unwrap();
    sender.send(leaving(&call)).unwrap();
    (call.join().unwrap(), server.join().unwrap())
}

/// Reaction of a server to the output that the host holds.
#[derive(Clone, Copy)]
enum Then {
    Read,
    Hang,
}

/// Reads `first` bytes, and the rest once it is told to. Returns the number of bytes in the rest that were read.
fn holding(mut stream: TcpStream, first: usize, go: &mpsc::Receiver<Then>) -> usize {
    stream.read_exact(&mut vec![0; first]).unwrap();
    match go.recv().unwrap() {
        Then::Read => read_all(stream),
        Then::Hang => 0,
    }
}

#[test]
fn all_that_a_guest_wrote_is_sent_before_its_message_counts() {
    let (outcome, read) = left(PATIENCE, 0, |call| {
        thread::park_timeout(Duration::from_millis(500));
        assert!(!call.is_finished(), "the message counts although the host holds output");
        Then::Read
    });
    let Some(Outcome::Reply(taken)) = outcome else { panic!("{outcome:?}") };
    assert_eq!(read.to_string(), String::from_utf8(taken).unwrap());
}

/// Asserts that a message fails whose output the host holds in vain. `outcome`: leaves output behind after a number of bytes that
/// are read. The kernel may happen to take all of it, so that the host holds nothing. Another number of bytes prevents that.
fn fails_with_held_output(mut outcome: impl FnMut(usize) -> Option<Outcome>) {
    for first in (0..10).map(|attempt| attempt * 9_000) {
        match outcome(first) {
            Some(Outcome::Reply(_)) => {}
            Some(Outcome::Failed(reason)) => return assert!(reason.contains("connection broke"), "{reason}"),
            other => panic!("{other:?}"),
        }
    }
    panic!("no message has failed");
}

#[test]
fn output_that_no_one_takes_fails_its_message() {
    fails_with_held_output(|first| left(PATIENCE, first, |_| Then::Hang).0);
}

/// Gives two messages in one batch to a guest that leaves output behind for the first, and answers it early. Returns the early
/// answers, and the end of the batch.
fn left_in_a_batch(then: Then) -> (Vec<(usize, Outcome)>, BatchEnd) {
    // The kernel may happen to take all, as above.
    let ends = (0..10).map(|attempt| attempt * 9_000).find_map(|first| left_in_a_batch_after(first, then));
    let Some(ends) = ends else { panic!("a message counts although the host holds output") };
    ends
}

/// Does so after `first` bytes that are read. `None`: the first message counted before the rest was.
fn left_in_a_batch_after(first: usize, then: Then) -> Option<(Vec<(usize, Outcome)>, BatchEnd)> {
    let (sender, go) = mpsc::channel();
    let (address, server) = serve(move |stream| holding(stream, first, &go));
    let ((told, tells), (other, others)) = (serve(drop), serve(drop));
    let (address, told, other) = (address.to_string(), told.to_string(), other.to_string());
    let handler = loaded(grants(&[&address, &told, &other], &[]), 1, true).unwrap();
    let calls = [call("leave", &format!("{address} {told}"), PATIENCE), call("connect", &other, PATIENCE)];
    let early = Arc::new(Mutex::new(Vec::new()));
    let into = Arc::clone(&early);
    let answer = Box::new(move |index, outcome| into.lock().unwrap().push((index, outcome)));
    let calls = calls.into_iter().map(Arc::new).collect();
    let batch = Arc::new(BatchCall::new(calls, Bounds::new(PATIENCE), Output::new(1024), answer));
    let end = thread::spawn(move || {
        RUNTIME.block_on(async { tokio::time::timeout(PATIENCE, handler.handle_batch(&batch)).await })
    });
    tells.join().unwrap();
    thread::park_timeout(Duration::from_millis(500));
    let waited = early.lock().unwrap().is_empty();
    sender.send(then).unwrap();
    server.join().unwrap();
    let Ok(end) = end.join().unwrap() else { panic!("the batch was stopped") };
    others.join().unwrap();
    let early = early.lock().unwrap().clone();
    waited.then_some((early, end))
}

#[test]
fn an_early_answer_of_a_batch_waits_for_output_and_fails_with_it() {
    let (early, end) = left_in_a_batch(Then::Read);
    assert!(matches!(&early[..], [(0, Outcome::Reply(_))]), "{early:?}");
    assert!(matches!(&end, BatchEnd::Answers(answers) if answers[1] == Outcome::Ack), "{end:?}");

    // Nothing says for which message the lost bytes were, so none of the rest counts.
    let (early, end) = left_in_a_batch(Then::Hang);
    let broke = |outcome: &Outcome| matches!(outcome, Outcome::Failed(reason) if reason.contains("connection broke"));
    assert!(matches!(&early[..], [(0, outcome)] if broke(outcome)), "{early:?}");
    assert!(matches!(&end, BatchEnd::Answers(answers) if broke(&answers[1])), "{end:?}");
}

#[test]
fn output_that_waits_longer_than_the_processing_timeout_does_not_count() {
    let within = Duration::from_secs(5);
    let (outcome, _) = left(within, 0, |call| {
        let begun = Instant::now();
        while !call.is_finished() && begun.elapsed() < 4 * within {
            thread::park_timeout(Duration::from_millis(10));
        }
        Then::Hang
    });
    assert_eq!(outcome, None);
}

#[test]
fn a_peer_that_never_reads_ends_with_the_processing_timeout() {
    let (sender, go) = mpsc::channel();
    let (address, server) = serve(move |stream| {
        go.recv().unwrap();
        read_all(stream)
    });
    let address = address.to_string();
    let handler = handler(grants(&[&address], &[]), 1);
    assert_eq!(ask(&handler, "pour", &address, Duration::from_millis(800)), None);
    sender.send(()).unwrap();
    assert!(server.join().unwrap() < POURED);
}

#[test]
fn an_instance_that_is_used_again_may_connect_again() {
    let (listener, address) = silent();
    let handler = handler(grants(&[&address], &[]), 10);
    for _ in 0..10 {
        assert_eq!(ask(&handler, "connect", &address, PATIENCE), Some(Outcome::Ack));
        listener.accept().unwrap();
    }
}

#[test]
fn a_guest_uses_postgresql() {
    let server = Postgres::start();
    let address = format!("127.0.0.1:{}", server.port());
    assert_eq!(done(grants(&[&address], &[]), "postgres", &address), Outcome::Reply(b"42 1000000".to_vec()));
    assert_eq!(server.psql("postgres", "SELECT number FROM asked"), "6");
}
