//! `hostler run` and the commands on PostgreSQL.

mod commands;
mod faults;
mod hosts;
mod mistakes;
mod sockets;

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::hostler::{PATIENCE, World, until};
use crate::support::postgres::{PgBouncer, Postgres};
use crate::support::work::{WORK, field, is_busy};

/// Variable with the address of the database.
pub const URL: &str = "HOSTLER_QUEUE__POSTGRES__URL";

/// Variable with the path of the health file, for a second host in a folder.
const HEALTH_FILE: &str = "HOSTLER_HOST__HEALTH_FILE";

/// A world on the database with this URL, which creates what is missing.
pub fn on(url: String, config: &str) -> World {
    let head = "
        host.health_file = 'health.json'
        queue.driver = 'postgres'
        ";
    World::with(head, vec![(URL, url), ("HOSTLER_QUEUE__POSTGRES__PROVISION", "auto".to_owned())], config)
}

/// A world on a database of its own.
fn world(config: &str) -> World {
    on(Postgres::shared().database(), config)
}

/// A world on a database of its own, which creates nothing.
fn strict(config: &str) -> World {
    let mut world = world(config);
    world.set("HOSTLER_QUEUE__POSTGRES__PROVISION", "check".to_owned());
    world
}

/// Waits until the health file says so: `down`, or null while the connection works.
fn link_is(world: &World, state: &Value) {
    let link = || world.verdict()["report"]["queue_link"]["state"].clone();
    until("the health file says so", PATIENCE, || (link() == *state).then_some(()));
}

fn is_empty(world: &World) {
    until("nothing is left", PATIENCE, || {
        let depth = world.depth("work");
        (depth.visible + depth.delayed + depth.in_flight + depth.dead_lettered == 0).then_some(())
    });
}

/// A message goes through all that can happen to it.
fn is_served(world: &World) {
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

#[test]
fn a_message_is_acked_or_escalates_to_the_dead_letter_queue() {
    is_served(&world(WORK));
}

/// Statements are unnamed, and nothing lasts longer than a transaction.
#[test]
fn pgbouncer_in_transaction_mode_may_be_in_between() {
    let server = Postgres::shared();
    let bouncer = PgBouncer::start(server, 2);
    let world = on(bouncer.url(&server.new_database()), WORK);
    world.provision();
    is_served(&world);
    let said = world.output(&["check"]);
    assert_eq!(said.code, 0, "{said:?}");
}

/// Two hosts have more connections between them than pgbouncer has to the server.
#[test]
fn hosts_behind_pgbouncer_share_few_connections() {
    let server = Postgres::shared();
    let bouncer = PgBouncer::start(server, 2);
    let mut world = on(bouncer.url(&server.new_database()), WORK);
    world.send("work", ["w5"; 200]);
    let mut first = world.started();
    world.set(HEALTH_FILE, "second.json".to_owned());
    let mut second = world.started();
    is_empty(&world);
    assert_eq!((first.stop(), second.stop()), (0, 0));
    crate::faults::accounted(200, &hosts::merged([first.lines(), second.lines()]));
}

#[test]
fn a_drain_gives_back_what_has_not_started_without_spending_an_attempt() {
    let world = world(WORK);
    let mut host = world.started();
    world.send("work", ["w2000"; 12]);
    is_busy(&host, &world, 4);
    let begun = Instant::now();
    assert_eq!(host.stop(), 0);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    let acked = host.lines().iter().filter(|line| line["outcome"] == "ack").count() as u64;
    assert!((1..12).contains(&acked), "{acked}");
    assert_eq!((world.depth("work").visible, world.depth("work").in_flight), (12 - acked, 0));

    let mut next = world.started();
    let lines = next.settled(12 - acked as usize);
    assert!(lines.iter().all(|line| line["outcome"] == "ack" && line["attempt"] == 1), "{lines:?}");
    assert_eq!(next.stop(), 0);
}

#[test]
fn a_pause_leaves_messages_in_the_queue() {
    let world = world(WORK);
    let mut host = world.started();
    let said = world.output(&["pause", "work"]);
    assert_eq!(said.code, 0, "{said:?}");
    host.wait_for(PATIENCE, |line| line["message"] == "paused; receiving no more messages");
    world.send("work", ["ack"; 3]);
    assert_eq!(world.depth("work").visible, 3);
    let said = world.output(&["resume", "work"]);
    assert_eq!(said.code, 0, "{said:?}");
    host.settled(3);
    assert_eq!(host.stop(), 0);
}

#[test]
fn a_host_that_may_create_nothing_names_what_is_missing_with_the_way_out() {
    let world = strict(WORK);
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

/// Hosts of two configs share a database.
#[test]
fn prefixes_keep_queues_of_one_database_apart() {
    let url = Postgres::shared().database();
    let [one, other] = ["one-", "other-"].map(|prefix| {
        let mut world = on(url.clone(), WORK);
        world.set("HOSTLER_QUEUE__POSTGRES__PREFIX", prefix.to_owned());
        world.provision();
        world
    });
    one.send("work", ["ack"; 2]);
    other.send("work", ["ack"; 5]);
    assert_eq!((one.depth("work").visible, other.depth("work").visible), (2, 5));
}
