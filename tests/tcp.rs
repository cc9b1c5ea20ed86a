//! TCP connections of handlers in the real host: output that counts, and servers and guests that misbehave.
//!
//! `tests/tcp/guest` does what its message says. The servers are real ones on loopback.

mod clients;
mod refusals;

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::LazyLock;
use std::thread::{self, JoinHandle};
use std::{fs, iter};

use serde_json::{Value, json};

use crate::support::echo::Echo;
use crate::support::hostler::{Depth, Host, PATIENCE, World, until};
use crate::support::toolchains::{Guest, built};

/// The guest, as its source is now.
static GUEST: LazyLock<Guest> = LazyLock::new(|| built("tests/tcp/guest", &["sdk/rust", "wit"]));

/// Retries once, at once.
const TWO_ATTEMPTS: &str = "retry = { requeues = 1, requeue_delay = '0s', delays = 0 }\n";

/// A world whose consumer `one` is the guest, with this list of granted servers and these lines in its table.
fn world(servers: &[SocketAddr], lines: &str) -> World {
    let servers: Vec<_> = servers.iter().map(ToString::to_string).collect();
    let Guest { wasm, cache } = &*GUEST;
    World::new(&format!(
        "host.cache_dir = '{}'\n[consumers.one]\nchannel = 'one'\nhandler = '{}'\nallow.tcp = {servers:?}\n{lines}",
        cache.display(),
        wasm.display()
    ))
}

fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Returns the next connection to a server.
fn accept(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).unwrap();
    let stream = until("a connection", PATIENCE, || listener.accept().ok()).0;
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Sends a message that makes the guest do this.
fn send(world: &World, word: &str, body: &str) {
    let said = world.output(&["send", "one", "--body", body, "--attr", &format!("do={word}")]);
    assert_eq!(said.code, 0, "{said:?}");
}

/// Returns the number of open files of a process.
fn descriptors(process: u32) -> usize {
    fs::read_dir(format!("/proc/{process}/fd")).unwrap().count()
}

/// Starts a host, and lets it process a first message with a connection. Returns it with the number of its open files.
fn warmed_up(world: &World, echo: &Echo) -> (Host, usize) {
    let host = world.started();
    send(world, "echo", &echo.address.to_string());
    assert_eq!(host.settled(1)[0]["outcome"], "reply");
    let open = descriptors(host.pid);
    (host, open)
}

/// Asserts that a host has no more files open than before.
fn gives_back(host: &Host, open: usize) {
    until("all descriptors are given back", PATIENCE, || (descriptors(host.pid) <= open).then_some(()));
}

/// Returns the outcomes and dispositions of the last messages.
fn ends(host: &Host, count: usize, last: usize) -> Vec<(Value, Value)> {
    let settled = host.settled(count);
    settled[count - last..].iter().map(|line| (line["outcome"].clone(), line["disposition"].clone())).collect()
}

fn end(outcome: &str, disposition: &str) -> (Value, Value) {
    (json!(outcome), json!(disposition))
}

#[test]
fn a_message_counts_once_its_server_has_all_bytes() {
    let ((server, address), (told, tells), echo) = (listen(), listen(), Echo::start());
    let world = world(&[address, tells, echo.address], "concurrency = 2\nreply_channel = 'done'");
    let host = world.started();
    send(&world, "leave", &format!("{address} {tells}"));
    // The guest connects to this server when it has nothing else to do.
    accept(&told);
    // Other messages come and go meanwhile.
    for count in 1..=3 {
        send(&world, "echo", &echo.address.to_string());
        host.settled(count);
    }
    assert_eq!(world.depth("one"), Depth { in_flight: 1, ..Depth::default() }, "the server has read nothing yet");
    let mut read = 0;
    let mut stream = accept(&server);
    let mut part = vec![0; 1 << 16];
    while let length @ 1.. = stream.read(&mut part).unwrap() {
        read += length;
    }
    assert_eq!(ends(&host, 4, 1), [end("reply", "ack")]);
    assert_eq!(world.depth("one"), Depth::default());
    let replies = world.output(&["receive", "done"]).stdout;
    assert!(replies.lines().any(|reply| reply == read.to_string()), "{read} bytes arrived: {replies}");
}

#[test]
fn a_message_whose_server_goes_away_is_tried_again() {
    let ((server, address), (told, tells)) = (listen(), listen());
    let world = world(&[address, tells], &format!("concurrency = 1\n{TWO_ATTEMPTS}"));
    let host = world.started();
    send(&world, "leave", &format!("{address} {tells}"));
    accept(&told);
    drop(accept(&server));
    assert_eq!(ends(&host, 1, 1), [end("failed", "release")]);
    accept(&told);
    drop(accept(&server));
    assert_eq!(ends(&host, 2, 1), [end("failed", "dead-letter")]);
    assert!(host.settled(2)[1]["reason"].as_str().unwrap().contains("connection broke"), "{:?}", host.settled(2)[1]);
}

#[test]
fn a_silent_server_holds_a_slot_until_the_processing_timeout() {
    let ((server, address), echo) = (listen(), Echo::start());
    let timeout = "processing_timeout = '1s'\non_processing_timeout = 'retry'";
    let world = world(&[address, echo.address], &format!("concurrency = 1\n{timeout}\n{TWO_ATTEMPTS}"));
    let (host, open) = warmed_up(&world, &echo);
    let attempts = [end("timed-out", "release"), end("timed-out", "dead-letter")];
    let mut count = 1;
    // A server that never answers, and one that never reads.
    for word in ["read", "pour"] {
        send(&world, word, &address.to_string());
        let peers = [accept(&server), accept(&server)];
        count += 2;
        assert_eq!(ends(&host, count, 2), attempts, "{word}");
        for line in &host.settled(count)[count - 2..] {
            assert!(line["duration_ms"].as_f64().unwrap() < 3000.0, "{line}");
        }
        // The only slot is free.
        send(&world, "echo", &echo.address.to_string());
        count += 1;
        assert_eq!(ends(&host, count, 1), [end("reply", "ack")]);
        gives_back(&host, open);
        for mut peer in peers {
            // The host has closed its side, in order or not.
            let _ = io::copy(&mut peer, &mut io::sink());
            let gone = iter::repeat_with(|| peer.write(&[0])).take(1 << 20).any(|written| written.is_err());
            assert!(gone, "the host still has a connection of `{word}`");
        }
    }
    assert_eq!(world.depth("one"), Depth { dead_lettered: 2, ..Depth::default() });
}

/// Sends to its first client until the connection ends. Returns the number of bytes.
fn sends_without_end() -> (SocketAddr, JoinHandle<usize>) {
    let (listener, address) = listen();
    let sender = thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        iter::repeat_with(|| stream.write(&[b'x'; 1 << 16])).map_while(Result::ok).sum()
    });
    (address, sender)
}

/// Returns the largest memory of a process so far, in bytes.
fn peak_memory(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
    kib << 10
}

#[test]
fn a_server_that_sends_without_end_fills_no_memory() {
    let ((address, sender), echo) = (sends_without_end(), Echo::start());
    let world = world(
        &[address, echo.address],
        "concurrency = 1\nprocessing_timeout = '2s'\non_processing_timeout = 'dead-letter'",
    );
    let (host, open) = warmed_up(&world, &echo);
    let before = peak_memory(host.pid);
    send(&world, "drain", &address.to_string());
    assert_eq!(ends(&host, 2, 1), [end("timed-out", "dead-letter")]);
    // The kernel sums what its processors count when it is asked: a later peak can read as a page less.
    let (sent, grown) = (sender.join().unwrap() as u64, peak_memory(host.pid).saturating_sub(before));
    assert!(sent > 1 << 24, "the guest read only about {sent} bytes");
    assert!(grown < 1 << 24, "{sent} bytes were sent, and the host grew by {grown}");
    gives_back(&host, open);
}

#[test]
fn a_guest_that_connects_without_end_gets_its_limit_and_gives_it_back() {
    let ((_server, address), echo) = (listen(), Echo::start());
    let lines = "concurrency = 4\nlimits.connections = 3\nreply_channel = 'done'";
    let world = world(&[address, echo.address], lines);
    let (host, open) = warmed_up(&world, &echo);
    let ran = world.output(&["receive", "done", "--ack"]);
    assert_eq!(ran.stdout, "hello\n");
    for _ in 0..8 {
        send(&world, "many", &address.to_string());
    }
    assert!(ends(&host, 9, 8).iter().all(|one| *one == end("reply", "ack")));
    let replies = world.output(&["receive", "done", "--ack"]).stdout;
    assert!(replies.lines().count() == 8 && replies.lines().all(|reply| reply.starts_with("3 ")), "{replies}");
    // One line for each message, however often its guest tried.
    let refused = |line: &&Value| line["denied"] == "more than 3 TCP sockets";
    let told: Vec<_> = host.lines().iter().filter(refused).map(|line| line["message_id"].to_string()).collect();
    assert_eq!(told.len(), 8, "{told:?}");
    gives_back(&host, open);
}
