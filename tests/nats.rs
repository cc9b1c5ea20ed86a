//! `hostler run` and the commands on NATS.

mod commands;
mod denials;
mod driver;
mod faults;
mod hostile;
mod losses;
mod requests;
mod subjects;
mod topology;
pub mod wire;

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::hostler::{PATIENCE, World, until};
use crate::support::nats::{Nats, Version};
use crate::support::servers::unique;
use crate::support::work::{WORK, field, is_busy};

/// A world on this server, with a prefix of its own.
pub fn world(server: &Nats, config: &str) -> World {
    let head = "
        host.health_file = 'health.json'
        queue.driver = 'nats'
        ";
    let env = vec![
        ("HOSTLER_QUEUE__NATS__URL", server.url()),
        ("HOSTLER_QUEUE__NATS__PREFIX", format!("{}-", unique("i"))),
        ("HOSTLER_QUEUE__NATS__PROVISION", "auto".to_owned()),
    ];
    World::with(head, env, config)
}

#[test]
fn a_message_is_acked_or_escalates_to_the_dead_letter_queue() {
    for version in Version::ALL {
        let world = world(Nats::shared(version), WORK);
        let mut host = world.started();
        world.send("work", ["ack", "x1"]);
        let lines = host.settled(4);
        let (good, bad): (Vec<_>, Vec<_>) = lines.into_iter().partition(|line| line["outcome"] == "ack");
        assert_eq!(good.len(), 1);
        assert_eq!(field(&bad, "attempt"), [1, 2, 3]);
        assert_eq!(field(&bad, "disposition"), ["release", "release", "dead-letter"]);
        until("it is there", PATIENCE, || (world.depth("work").dead_lettered == 1).then_some(()));
        assert_eq!((world.depth("work").visible, world.depth("work").in_flight), (0, 0));

        let peeked = world.output(&["peek", "work-dlq", "--json"]);
        assert!(peeked.code == 0 && peeked.stdout.contains("gave up after 3 attempts"), "{peeked:?}");
        let requeued = world.output(&["requeue", "--from", "work-dlq", "--to", "work"]);
        assert_eq!(requeued.code, 0, "{requeued:?}");
        let again = host.settled(5).remove(4);
        assert_eq!((&again["attempt"], &again["outcome"]), (&Value::from(1), &bad[0]["outcome"]));
        let errors: Vec<_> = host.lines().into_iter().filter(|line| line["level"] == "ERROR").collect();
        assert!(errors.is_empty(), "{errors:?}");
        assert_eq!(host.stop(), 0);
    }
}

#[test]
fn a_drain_gives_back_what_has_not_started_without_spending_an_attempt() {
    let world = world(Nats::shared(Version::Newest), WORK);
    let mut host = world.started();
    world.send("work", ["w2000"; 12]);
    is_busy(&host, &world, 4);
    let begun = Instant::now();
    assert_eq!(host.stop(), 0);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    let acked = host.lines().iter().filter(|line| line["outcome"] == "ack").count() as u64;
    assert!((1..12).contains(&acked), "{acked}");
    let left = || world.depth("work");
    until("the rest is there", PATIENCE, || (left().visible + left().in_flight == 12 - acked).then_some(()));

    let mut next = world.started();
    let lines = next.settled(12 - acked as usize);
    assert!(lines.iter().all(|line| line["outcome"] == "ack" && line["attempt"] == 1), "{lines:?}");
    assert_eq!(next.stop(), 0);
}

/// A server that is killed, and comes back with its data.
#[test]
fn a_host_lives_while_the_server_is_away() {
    let mut server = Nats::start(Version::Newest);
    let world = world(&server, WORK);
    let mut host = world.started();
    world.send("work", ["ack"; 3]);
    host.settled(3);
    server.kill();
    host.wait_for(PATIENCE, |line| line["message"] == "receive failed");
    let link = || world.verdict()["report"]["queue_link"]["state"].clone();
    until("the health file says so", PATIENCE, || (link() == "down").then_some(()));
    let shown = world.output(&["top", "--once"]);
    assert!(shown.stdout.contains("the connection to the queue service is lost: "), "{shown:?}");
    server.start_again();
    until("it is up again", PATIENCE, || link().is_null().then_some(()));
    world.send("work", ["ack"; 3]);
    host.settled(6);
    assert_eq!(host.stop(), 0);
}

/// A lease outlives the connection: the server counts the delivery as the host's until its timer ends.
#[test]
fn a_handler_runs_on_and_is_acked_though_the_server_restarts_meanwhile() {
    let mut server = Nats::start(Version::Middle);
    let world = world(&server, WORK);
    let mut host = world.started();
    world.send("work", ["w4000"]);
    is_busy(&host, &world, 1);
    server.kill();
    server.start_again();
    let settled = host.settled(1);
    assert_eq!((&settled[0]["outcome"], &settled[0]["attempt"]), (&Value::from("ack"), &Value::from(1)));
    until("it is gone", PATIENCE, || (world.depth("work").in_flight + world.depth("work").visible == 0).then_some(()));
    assert_eq!(host.stop(), 0);
}

/// A server that keeps its connections, and does nothing.
#[test]
fn a_silent_server_is_noticed() {
    let server = Nats::start(Version::Oldest);
    let world = world(&server, WORK);
    let mut host = world.started();
    world.send("work", ["ack"]);
    host.settled(1);
    server.freeze();
    let link = || world.verdict()["report"]["queue_link"]["state"].clone();
    until("the health file says so", PATIENCE, || (link() == "down").then_some(()));
    server.thaw();
    until("it is up again", PATIENCE, || link().is_null().then_some(()));
    world.send("work", ["ack"]);
    host.settled(2);
    assert_eq!(host.stop(), 0);
}

/// The streams must not come back empty without a word.
#[test]
fn a_server_that_lost_its_data_is_reported() {
    let mut server = Nats::start(Version::Newest);
    let world = world(&server, WORK);
    let mut host = world.started();
    world.send("work", ["ack"]);
    host.settled(1);
    server.kill();
    server.lose_data();
    server.start_again();
    let told = host.wait_for(PATIENCE, |line| {
        line["message"] == "receive failed"
            && line["error"].as_str().is_some_and(|error| error.contains("there is no queue"))
    });
    assert!(told["error"].as_str().is_some_and(|error| error.contains("hostler provision")), "{told}");
    assert_eq!(world.output(&["provision"]).code, 0);
    world.send("work", ["ack"]);
    host.settled(2);
    assert_eq!(host.stop(), 0);
}

#[test]
fn credentials_that_are_refused_end_the_start_with_the_cure() {
    let server = Nats::start_with(Version::Newest, &["--user", "me", "--pass", "s3cret"]);
    let with = |user: &str| server.url().replace("nats://", &format!("nats://{user}@"));
    let mut world = world(&server, WORK);
    world.set("HOSTLER_QUEUE__NATS__URL", with("me:wrong-4711"));
    let said = world.output(&["run"]);
    assert_eq!(said.code, 69, "{said:?}");
    assert!(said.stderr.contains("queue.nats.url") && !said.stderr.contains("wrong-4711"), "{said:?}");
    world.set("HOSTLER_QUEUE__NATS__URL", with("me:s3cret"));
    let mut host = world.started();
    world.send("work", ["ack"]);
    host.settled(1);
    assert_eq!(host.stop(), 0);
}

#[test]
fn without_permission_to_create_a_missing_queue_is_named_with_the_way_out() {
    let mut world = world(Nats::shared(Version::Oldest), WORK);
    world.set("HOSTLER_QUEUE__NATS__PROVISION", "check".to_owned());
    let said = world.output(&["run"]);
    assert!(said.code == 69 && said.stderr.contains("hostler provision"), "{said:?}");
    assert_eq!(world.output(&["provision"]).code, 0);
    let mut host = world.started();
    world.send("work", ["ack"]);
    host.settled(1);
    assert_eq!(host.stop(), 0);
    let checked = world.output(&["check"]);
    assert_eq!(checked.code, 0, "{checked:?}");
}
