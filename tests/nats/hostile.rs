//! Messages that the client library cannot read, and headers that imitate those of the server.
//!
//! Servers store and deliver them all. The client library ends its connection over the former, with every message that came with them.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use super::wire::Wire;
use super::{field, world};
use crate::support::hostler::{Host, PATIENCE, World, until};
use crate::support::nats::{Nats, Version};
use crate::support::servers::unique;

/// With a short lease, as the server delivers again what was lost after it.
const WORK: &str = "
    [consumers.work]
    channel = 'work'
    handler = 'guests/run-word.wat'
    concurrency = 8
    lease = '2s'
    processing_timeout = '30s'
    healthcheck_timeout = '60s'
    retry = { requeues = 1, requeue_delay = '0s', delays = 1, delay = '1s' }
";

/// Messages without end: each with a part of its subject behind the queue's, its headers, and the reason why it cannot be read.
static UNREADABLE: [(&[u8], &[u8], &str); 8] = [
    (b"", b"NATS/1.0\r\nname: caf\xe9\r\n\r\n", "not UTF-8"),
    (b"", b"NATS/1.0\r\nno colon\r\n\r\n", "no colon"),
    (b"", b"NATS/1.0\r\na name: x\r\n\r\n", "the name of a header"),
    (b"", b"NATS/1.0\r\nname: one\rtwo\r\n\r\n", "a carriage return"),
    (b"", b"HTTP/1.0\r\n\r\n", "do not begin with"),
    (b"~group.\xff", b"", "its subject is not UTF-8"),
    (b"~group.a\xe2\x80\x83b", b"NATS/1.0\r\nname: x\r\n\r\n", "its subject contains white space"),
    (b"", b"NATS/1.0 teapot\r\n\r\n", "do not begin with"),
];

/// Those that a stream of this server has. Newer servers remove a status when they store a message, so that it can be read.
fn unreadable(version: Version) -> &'static [(&'static [u8], &'static [u8], &'static str)] {
    if version == Version::Newest { &UNREADABLE[..7] } else { &UNREADABLE }
}

/// Headers that imitate those of the server, or are odd. All can be read.
const ODD: [&[u8]; 7] = [
    b"NATS/1.0 503\r\n\r\n",
    b"NATS/1.0 100 Idle Heartbeat\r\n\r\n",
    b"NATS/1.0 404 No Messages\r\nname: x\r\n\r\n",
    b"NATS/1.0\r\nNats-Sequence: 1\r\nNats-Stream: other\r\nNats-Subject: other\r\n\r\n",
    b"NATS/1.0\r\nNats-Sequence: 18446744073709551615\r\n\r\n",
    b"NATS/1.0\r\nname: x\r\nname: y\r\n: nameless\r\nempty:\r\n\r\n",
    b"NATS/1.0\r\nHostler-Group: =FF\r\nHostler-Not-Before: soon\r\nHostler-Attributes: {\r\nHostler-Id:\r\n\r\n",
];

/// A world on this server, with the prefix of its names.
fn prefixed(server: &Nats, config: &str) -> (World, String) {
    let (mut world, prefix) = (world(server, config), format!("{}-", unique("h")));
    world.set("HOSTLER_QUEUE__NATS__PREFIX", prefix.clone());
    world.provision();
    (world, prefix)
}

fn acked(host: &Host) -> Vec<Value> {
    host.lines().into_iter().filter(|line| line["outcome"] == "ack").collect()
}

fn bodies(world: &World, queue: &str) -> Vec<Value> {
    let said = world.output(&["peek", queue, "--max", "100", "--json"]);
    assert_eq!(said.code, 0, "{said:?}");
    serde_json::from_str::<Value>(&said.stdout).unwrap().as_array().unwrap().clone()
}

/// Publishes each unreadable message, followed by a good one.
fn attack(wire: &mut Wire, subject: &str, version: Version) {
    for (n, (end, headers, _)) in unreadable(version).iter().enumerate() {
        wire.publish([subject.as_bytes(), end].concat(), headers, format!("bad{n}"));
        wire.publish(subject, "", "ack");
    }
    wire.flush();
}

/// Each unreadable message is a dead letter that can be read, with its reason.
fn is_set_aside(world: &World, queue: &str, version: Version) {
    let count = unreadable(version).len();
    let dead = || world.depth(queue.trim_end_matches("-dlq")).dead_lettered;
    until("they are dead letters", PATIENCE, || (dead() >= count as u64).then_some(()));
    let letters = bodies(world, queue);
    let expected: BTreeSet<_> = (0..count).map(|n| format!("bad{n}")).collect();
    let found: BTreeSet<_> =
        field(&letters, "body").into_iter().map(|body| body.as_str().unwrap().to_owned()).collect();
    assert_eq!((found, letters.len()), (expected, count), "each of them once");
    for letter in &letters {
        let number: usize = letter["body"].as_str().unwrap()[3..].parse().unwrap();
        assert!(letter.to_string().contains(UNREADABLE[number].2), "{letter}");
    }
}

#[test]
fn messages_that_the_client_library_cannot_read_hinder_nobody() {
    for version in [Version::Oldest, Version::Newest] {
        let server = Nats::shared(version);
        let (world, prefix) = prefixed(server, WORK);
        let mut wire = Wire::to(&server.url());
        let count = unreadable(version).len();
        // Some wait when the host starts, and some come while it waits.
        attack(&mut wire, &format!("{prefix}work"), version);
        assert_eq!(wire.stored(&format!("{prefix}work")).len(), 2 * count, "{version:?}: the server takes all");
        assert_eq!(bodies(&world, "work").len(), 2 * count, "they can be looked at");
        let mut host = world.started();
        until("the good ones are acked", PATIENCE, || (acked(&host).len() == count).then_some(()));
        is_set_aside(&world, "work-dlq", version);
        for (n, (end, headers, _)) in unreadable(version).iter().enumerate() {
            wire.publish([format!("{prefix}work").as_bytes(), end].concat(), headers, "alone");
            wire.publish(format!("{prefix}work"), "", "ack");
            wire.flush();
            until("the next one is acked", PATIENCE, || (acked(&host).len() == count + n + 1).then_some(()));
        }
        let dead = || world.depth("work").dead_lettered;
        until("they are dead letters", PATIENCE, || (dead() == 2 * count as u64).then_some(()));
        let lines = acked(&host);
        assert!(lines.iter().all(|line| line["attempt"] == 1), "no handler saw them before: {lines:?}");
        let told = |line: &Value| line["reason"].as_str().is_some_and(|text| text.contains("cannot read the message"));
        assert!(host.lines().iter().any(|line| told(line) && line["sequence"] == 1), "{:?}", host.lines());
        until("the queue is empty", PATIENCE, || wire.stored(&format!("{prefix}work")).is_empty().then_some(()));
        assert_eq!(host.stop(), 0);
    }
}

/// Two queues of an exchange: each sets aside for itself, and takes nothing from the other.
#[test]
fn an_exchange_sets_aside_for_each_of_its_queues() {
    for version in [Version::Oldest, Version::Newest] {
        let server = Nats::shared(version);
        let work = WORK.replace("channel = 'work'", "channel = 'shop.work'");
        let other = work.replace("consumers.work", "consumers.other").replace("shop.work", "shop.other");
        let (world, prefix) = prefixed(server, &format!("{work}{other}"));
        let mut wire = Wire::to(&server.url());
        for (n, (end, headers, _)) in unreadable(version).iter().enumerate() {
            let end = end.strip_prefix(b"~group.").unwrap_or(b"key");
            wire.publish([format!("{prefix}shop.").as_bytes(), end].concat(), headers, format!("bad{n}"));
            wire.publish(format!("{prefix}shop.key"), "", "ack");
        }
        wire.flush();
        let (mut host, good) = (world.started(), 2 * unreadable(version).len());
        // What was lost with a connection comes again after the timer of the exchange.
        until("the good ones are acked", 2 * PATIENCE, || (acked(&host).len() == good).then_some(()));
        assert!(acked(&host).iter().all(|line| line["attempt"] == 1), "{:?}", acked(&host));
        is_set_aside(&world, "work-dlq", version);
        is_set_aside(&world, "other-dlq", version);
        until("the exchange is empty", PATIENCE, || {
            wire.stored(&format!("{prefix}shop~exchange")).is_empty().then_some(())
        });
        assert_eq!(host.stop(), 0);
    }
}

/// The first of a group stands in the way of the others, until it is set aside.
#[test]
fn a_group_goes_on_after_an_unreadable_message() {
    for version in [Version::Oldest, Version::Newest] {
        let server = Nats::shared(version);
        let (world, prefix) = prefixed(server, &WORK.replace("channel = 'work'", "channel = 'work'\nordered = true"));
        let mut wire = Wire::to(&server.url());
        let bad: Vec<_> = unreadable(version).iter().filter(|(end, ..)| end.is_empty()).collect();
        for (n, (_, headers, _)) in bad.iter().enumerate() {
            let subject = format!("{prefix}work~group.g{n}");
            wire.publish(&subject, headers, format!("bad{n}"));
            wire.publish(&subject, ODD[n], "ack");
            wire.publish(&subject, "", "ack");
        }
        wire.flush();
        let mut host = world.started();
        until("the good ones are acked", PATIENCE, || (acked(&host).len() == 2 * bad.len()).then_some(()));
        until("the queue is empty", PATIENCE, || wire.stored(&format!("{prefix}work")).is_empty().then_some(()));
        assert_eq!(world.depth("work").dead_lettered, bad.len() as u64);
        assert_eq!(host.stop(), 0);
    }
}

/// Without a dead-letter queue, nothing may be removed.
#[test]
fn without_a_dead_letter_queue_they_stay_and_the_others_pass() {
    for version in [Version::Oldest, Version::Newest] {
        let server = Nats::shared(version);
        let config = WORK.replace("channel = 'work'", "channel = 'work'\ndead_letter = false");
        let (world, prefix) = prefixed(server, &config);
        let mut wire = Wire::to(&server.url());
        attack(&mut wire, &format!("{prefix}work"), version);
        let (mut host, count) = (world.started(), unreadable(version).len());
        until("the good ones are acked", PATIENCE, || (acked(&host).len() == count).then_some(()));
        let told = |line: &Value| line["message"].as_str().is_some_and(|text| text.contains("stays in the queue"));
        host.wait_for(PATIENCE, told);
        let left: Vec<_> = wire.stored(&format!("{prefix}work")).into_iter().map(|stored| stored.body).collect();
        assert_eq!(left, (0..count).map(|n| format!("bad{n}")).collect::<Vec<_>>());
        assert_eq!(host.stop(), 0);
    }
}

#[test]
fn headers_that_imitate_the_servers_are_only_headers() {
    for version in Version::ALL {
        let server = Nats::shared(version);
        let (world, prefix) = prefixed(server, WORK);
        let mut wire = Wire::to(&server.url());
        for headers in ODD {
            wire.publish(format!("{prefix}work"), headers, "ack");
        }
        wire.flush();
        let shown = bodies(&world, "work");
        assert_eq!(field(&shown, "body"), ["ack"; ODD.len()], "{version:?}: none twice, none left out");
        let mut host = world.started();
        let lines = host.settled(ODD.len());
        assert!(lines.iter().all(|line| line["outcome"] == "ack" && line["attempt"] == 1), "{lines:?}");
        let is_lost = |line: &Value| line["message"] == "lost the connection to NATS";
        assert!(!host.lines().iter().any(is_lost), "{:?}", host.lines());
        assert!(wire.stored(&format!("{prefix}work")).is_empty());
        assert_eq!(host.stop(), 0);
    }
}

/// Without a stream, what ends the connection is gone, with what came at the same time. Whoever asks again is answered.
#[test]
fn a_subject_is_answered_again_after_an_unreadable_request() {
    for version in [Version::Oldest, Version::Newest] {
        let server = Nats::shared(version);
        let root = unique("hooks");
        let config = WORK.replace("channel = 'work'", &format!("subject = '{root}.*'"));
        let config: String = config.lines().map(|line| format!("{line}\n")).collect();
        let world = world(server, &config);
        let mut host = world.started();
        let mut wire = Wire::to(&server.url());
        let answered = |wire: &mut Wire| {
            let answer = || wire.try_ask(&format!("{root}.a"), "ack", Duration::from_secs(1));
            until("it is answered", PATIENCE, answer)
        };
        assert_eq!(answered(&mut wire), b"+ACK");
        let losses = |host: &Host| {
            let is_loss = |line: &&Value| line["message"] == "lost the connection to NATS";
            host.lines().iter().filter(is_loss).count()
        };
        for (n, (end, headers, _)) in UNREADABLE.into_iter().enumerate() {
            let end = end.strip_prefix(b"~group.").unwrap_or(b"a");
            wire.publish([format!("{root}.").as_bytes(), end].concat(), headers, "bad");
            wire.flush();
            assert_eq!(answered(&mut wire), b"+ACK");
            until("the connection was lost", PATIENCE, || (losses(&host) > n).then_some(()));
        }
        assert_eq!(host.stop(), 0);
    }
}
