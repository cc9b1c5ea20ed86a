//! Faults of the server and of the network, and what operators do to it meanwhile.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::{Value, json};

use super::wire::Wire;
use super::{field, is_busy, world};
use crate::support::hostler::{Host, PATIENCE, World, until};
use crate::support::nats::{Nats, Version};
use crate::support::servers::unique;

const WORK: &str = "
    [consumers.work]
    channel = 'work'
    handler = 'guests/run-word.wat'
    concurrency = 4
    lease = '2s'
    processing_timeout = '30s'
    healthcheck_timeout = '60s'
    retry = { requeues = 1, requeue_delay = '0s', delays = 1, delay = '1s' }
";

/// A consumer whose handler leaves a file named as the body for each message.
const MARKS: &str = "
    [consumers.work]
    channel = 'work'
    handler = 'guests/run-mark.wat'
    concurrency = 8
    lease = '2s'
    retry = { requeues = 2, requeue_delay = '50ms' }
    allow.dirs = [{ host = 'marks', guest = '/marks', mode = 'rw' }]
";

/// A world on this server, with the prefix of its names.
fn prefixed(server: &Nats, config: &str) -> (World, String) {
    let (mut world, prefix) = (world(server, config), format!("{}-", unique("f")));
    world.set("HOSTLER_QUEUE__NATS__PREFIX", prefix.clone());
    world.provision();
    (world, prefix)
}

fn numbers(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

fn marks(world: &World) -> BTreeSet<String> {
    let files = fs::read_dir(world.path("marks")).into_iter().flatten();
    files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
}

/// All messages were handled, each once or more.
fn is_all_handled(world: &World, sent: &[String]) {
    until("all are handled", PATIENCE, || (marks(world).len() == sent.len()).then_some(()));
    assert_eq!(marks(world), sent.iter().cloned().collect());
}

/// All messages were handled, and none is left or dead-lettered.
fn is_all_done(world: &World, wire: &mut Wire, stream: &str, sent: &[String]) {
    is_all_handled(world, sent);
    until("the queue is empty", PATIENCE, || wire.stored(stream).is_empty().then_some(()));
    assert_eq!(wire.stored(&format!("{stream}-dlq")), []);
}

fn is_told(host: &Host, texts: &[&str]) -> Value {
    host.wait_for(PATIENCE, |line| {
        let error = line["error"].as_str().unwrap_or_default();
        line["message"] == "receive failed" && texts.iter().all(|text| error.contains(text))
    })
}

#[test]
fn a_server_that_is_killed_under_load_loses_nothing() {
    for version in [Version::Oldest, Version::Newest] {
        let mut server = Nats::start(version);
        let (world, prefix) = prefixed(&server, MARKS);
        let sent = numbers(0..600);
        world.send("work", &sent);
        let mut host = world.started();
        for killed in 1..=3 {
            host.settled(killed * 100);
            server.kill();
            server.start_again();
        }
        let (mut wire, stream) = (Wire::to(&server.url()), format!("{prefix}work"));
        if matches!(version, Version::Oldest) {
            // NATS 2.9 may forget that it removed messages, and then stores them for ever.
            is_all_handled(&world, &sent);
            assert_eq!(wire.stored(&format!("{stream}-dlq")), []);
        } else {
            is_all_done(&world, &mut wire, &stream, &sent);
        }
        assert_eq!(host.stop(), 0);
    }
}

/// A network that closes each of the first connections after some bytes, in the middle of whatever they belong to.
struct Network {
    port: u16,
    /// Number of connections that are still to be closed.
    cuts: Arc<AtomicUsize>,
}

impl Network {
    fn before(server: &Nats, cuts: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, target) = (listener.local_addr().unwrap().port(), server.port());
        let cuts = Arc::new(AtomicUsize::new(cuts));
        let left = Arc::clone(&cuts);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else { continue };
                let left = Arc::clone(&left);
                let up = (client.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || pass(up.0, up.1, None));
                thread::spawn(move || pass(server, client, Some(left)));
            }
        });
        Self { port, cuts }
    }

    fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }
}

/// Passes bytes on until one side closes, or until it closes the connection itself.
fn pass(mut from: TcpStream, mut to: TcpStream, cuts: Option<Arc<AtomicUsize>>) {
    let (mut buffer, mut passed) = ([0; 4096], 0);
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        let left = cuts.as_ref().map_or(0, |cuts| cuts.load(Ordering::SeqCst));
        let most = if left > 0 { 9_000 + left * 2_711 % 8_000 } else { usize::MAX };
        let count = read.min(most.saturating_sub(passed));
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
        passed += read;
        if count < read {
            if let Some(cuts) = &cuts {
                cuts.fetch_sub(1, Ordering::SeqCst);
            }
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// A message that was under way spends no attempt, so none is given up.
#[test]
fn connections_that_are_cut_in_the_middle_lose_nothing() {
    for version in [Version::Oldest, Version::Newest] {
        let server = Nats::shared(version);
        let (mut world, prefix) = prefixed(server, MARKS);
        let sent = numbers(0..1_000);
        world.send("work", &sent);
        let network = Network::before(server, 12);
        world.set("HOSTLER_QUEUE__NATS__URL", network.url());
        let mut host = world.started();
        is_all_done(&world, &mut Wire::to(&server.url()), &format!("{prefix}work"), &sent);
        assert_eq!(network.cuts.load(Ordering::SeqCst), 0);
        assert_eq!(host.stop(), 0);
    }
}

/// The lease ends here before the server's timer could.
#[test]
fn a_frozen_server_stops_the_handlers_before_their_messages_come_again() {
    for version in [Version::Oldest, Version::Newest] {
        let server = Nats::start(version);
        let (world, _) = prefixed(&server, WORK);
        let mut host = world.started();
        world.send("work", ["w9000"]);
        is_busy(&host, &world, 1);
        server.freeze();
        let lost = host.settled(1).remove(0);
        assert_eq!((&lost["outcome"], &lost["disposition"]), (&json!("lease-lost"), &json!("none")));
        server.thaw();
        let again = host.settled(2).remove(1);
        assert_eq!((&again["outcome"], &again["attempt"]), (&json!("ack"), &json!(2)));
        until("it is gone", PATIENCE, || {
            let depth = world.depth("work");
            (depth.visible + depth.in_flight + depth.dead_lettered == 0).then_some(())
        });
        assert_eq!(host.stop(), 0);
    }
}

#[test]
fn a_stream_that_is_deleted_is_reported_and_taken_up_again() {
    for version in [Version::Oldest, Version::Newest] {
        let server = Nats::shared(version);
        let (world, prefix) = prefixed(server, WORK);
        let mut host = world.started();
        world.send("work", ["ack"]);
        host.settled(1);
        Wire::to(&server.url()).done(&format!("STREAM.DELETE.{prefix}work"), &Value::Null);
        is_told(&host, &["there is no queue", "hostler provision"]);
        world.provision();
        world.send("work", ["ack"; 3]);
        assert_eq!(field(&host.settled(4), "outcome"), ["ack"; 4]);
        assert_eq!(host.stop(), 0);
    }
}

/// A message that was delivered before is delivered again to the new consumer, as new.
#[test]
fn a_consumer_that_is_deleted_is_reported_and_taken_up_again() {
    for version in [Version::Oldest, Version::Newest] {
        let server = Nats::shared(version);
        let (world, prefix) = prefixed(server, WORK);
        let mut host = world.started();
        world.send("work", ["ack"]);
        host.settled(1);
        Wire::to(&server.url()).done(&format!("CONSUMER.DELETE.{prefix}work.hostler"), &Value::Null);
        is_told(&host, &["hostler provision"]);
        world.provision();
        world.send("work", ["ack"; 3]);
        assert_eq!(field(&host.settled(4), "outcome"), ["ack"; 4]);
        assert_eq!(host.stop(), 0);
    }
}

/// A config of the server with the folder of its data, and a user who may do everything but this.
fn permissions(denied: &str, data: &Path) -> String {
    let denied = if denied.is_empty() { String::new() } else { format!("publish: {{ deny: [\"{denied}\"] }}") };
    format!(
        "jetstream {{ \n store_dir = '{}' \n }} \n authorization {{ users: [ \
           {{ user: admin, password: admin }}, {{ user: me, password: secret, permissions: {{ {denied} }} }} ] }}\n",
        data.display()
    )
}

/// A consumer that may no longer ask for messages, or settle them, is not idle.
#[test]
fn permissions_that_are_withdrawn_are_reported() {
    for (version, denied) in [
        (Version::Oldest, "$JS.API.CONSUMER.MSG.NEXT.>"),
        (Version::Newest, "$JS.API.CONSUMER.MSG.NEXT.>"),
        (Version::Newest, "$JS.ACK.>"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (config, data) = (folder.path().join("nats.conf"), folder.path().join("data"));
        fs::write(&config, permissions("", &data)).unwrap();
        let server = Nats::start_from(version, &config);
        let with = |user: &str| server.url().replace("nats://", &format!("nats://{user}@"));
        let mut world = world(&server, &WORK.replace("healthcheck_timeout = '60s'", "healthcheck_timeout = '31s'"));
        world.set("HOSTLER_QUEUE__NATS__URL", with("me:secret"));
        let mut host = world.started();
        world.send("work", ["ack"]);
        host.settled(1);
        fs::write(&config, permissions(denied, &data)).unwrap();
        server.reload();
        world.set("HOSTLER_QUEUE__NATS__URL", with("admin:admin"));
        world.send("work", ["ack"]);
        let told = host.wait_for(PATIENCE, |line| {
            let is_serious = ["WARN", "ERROR"].iter().any(|level| line["level"] == *level);
            is_serious && line.to_string().to_ascii_lowercase().contains("permissions")
        });
        let is_unhealthy = || (world.verdict()["status"] == "unhealthy").then_some(());
        if denied.contains("NEXT") {
            until("the health file says so", PATIENCE, is_unhealthy);
        }
        fs::write(&config, permissions("", &data)).unwrap();
        server.reload();
        until("it is handled", PATIENCE, || {
            let depth = world.depth("work");
            (depth.visible + depth.in_flight + depth.dead_lettered == 0).then_some(())
        });
        assert_eq!(host.stop(), 0, "{told}");
    }
}

/// Sets the limit of a stream in bytes.
fn limit(wire: &mut Wire, stream: &str, bytes: i64) {
    let mut config = wire.done(&format!("STREAM.INFO.{stream}"), &Value::Null)["config"].clone();
    config["max_bytes"] = json!(bytes);
    wire.done(&format!("STREAM.UPDATE.{stream}"), &config);
}

/// A full dead-letter queue keeps its dead letters where they are.
#[test]
fn a_full_stream_refuses_and_nothing_is_dropped() {
    for version in [Version::Oldest, Version::Newest] {
        let server = Nats::shared(version);
        let (world, prefix) = prefixed(server, WORK);
        let (mut wire, stream) = (Wire::to(&server.url()), format!("{prefix}work"));
        limit(&mut wire, &stream, 2_000);
        let body = "a".repeat(900);
        let sent: Vec<_> = (0..4).map(|_| world.output(&["send", "work", "--body", &body])).collect();
        let refused: Vec<_> = sent.iter().filter(|said| said.code != 0).collect();
        assert!(!refused.is_empty() && refused.len() < 4, "{sent:?}");
        assert!(refused.iter().all(|said| said.stderr.contains("maximum bytes exceeded")), "{refused:?}");
        assert_eq!(wire.stored(&stream).len(), 4 - refused.len());
        limit(&mut wire, &stream, -1);
        limit(&mut wire, &format!("{stream}-dlq"), 100);
        let mut host = world.started();
        world.send("work", ["x65"]);
        host.wait_for(PATIENCE, |line| line.to_string().contains("maximum bytes exceeded"));
        assert!(wire.stored(&stream).iter().any(|stored| stored.body == "x65"), "it stays where it is");
        limit(&mut wire, &format!("{stream}-dlq"), -1);
        until("it is a dead letter", PATIENCE, || (world.depth("work").dead_lettered == 1).then_some(()));
        until("the queue is empty", PATIENCE, || wire.stored(&stream).is_empty().then_some(()));
        assert_eq!(host.stop(), 0);
    }
}
