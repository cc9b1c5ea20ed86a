//! The commands of operators on NATS.

use serde_json::Value;

use super::{WORK, field, world};
use crate::support::hostler::{PATIENCE, World, until};
use crate::support::nats::{Nats, Version};
use crate::support::work::{dead_letters, json};

/// Without a consumer that runs, so messages stay.
fn provisioned(version: Version, keys: &str) -> World {
    let world = world(Nats::shared(version), &WORK.replace("concurrency = 4", keys));
    world.provision();
    world
}

/// The server counts a message that went back as in flight until it is delivered again.
fn total(world: &World, channel: &str, count: u64) {
    let total = || world.depth(channel).visible + world.depth(channel).in_flight;
    until("the messages are there", PATIENCE, || (total() == count).then_some(()));
}

#[test]
fn peek_shows_messages_and_receives_none() {
    for version in Version::ALL {
        let world = provisioned(version, "ordered = true");
        for body in ["one", "two", "three"] {
            assert_eq!(world.output(&["send", "work", "--group", "a", "--body", body]).code, 0);
        }
        let said = world.output(&["peek", "work", "--max", "2", "--json"]);
        assert!(said.code == 0 && !said.stderr.contains("counts"), "{said:?}");
        assert_eq!(field(&json(&said), "body"), ["one", "two"]);
        let said = world.output(&["peek", "work", "--filter", "body~three", "--json"]);
        assert_eq!(field(&json(&said), "body"), ["three"]);
        assert_eq!((world.depth("work").visible, world.depth("work").in_flight), (3, 0));
    }
}

#[test]
fn receive_hands_out_messages_and_removes_those_that_are_acked() {
    let world = provisioned(Version::Newest, "");
    world.send("work", ["one", "two", "three"]);
    let said = world.output(&["receive", "work", "--max", "2"]);
    assert_eq!((said.code, said.stdout.as_str()), (0, "one\ntwo\n"), "{said:?}");
    total(&world, "work", 3);
    let said = world.output(&["receive", "work", "--max", "2", "--ack"]);
    assert_eq!((said.code, said.stdout.lines().count()), (0, 2), "{said:?}");
    total(&world, "work", 1);
    assert_eq!(world.output(&["receive", "work", "--ack"]).code, 0);
    assert_eq!(world.output(&["receive", "work", "--wait", "0s"]).code, 1, "none is left");
}

#[test]
fn purge_removes_all() {
    let world = provisioned(Version::Oldest, "");
    world.send("work", ["x"; 150]);
    let said = world.output(&["purge", "work", "--yes"]);
    assert_eq!((said.code, said.stdout.as_str()), (0, "150 messages removed from work\n"), "{said:?}");
    total(&world, "work", 0);
}

#[test]
fn dlq_lists_shows_and_drops_dead_letters() {
    let world = provisioned(Version::Middle, "");
    dead_letters(&world, &["one", "two", "three"]);
    let letters = json(&world.output(&["dlq", "ls", "work", "--json"]));
    assert_eq!(field(&letters, "size_bytes"), [3, 3, 5]);
    let id = letters[1]["id"].as_str().unwrap();
    let said = world.output(&["dlq", "show", "work", id, "--json", "--body"]);
    let shown: Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!((&shown["body"], &shown["attributes"]["tenant"]), (&"two".into(), &"7".into()), "{said:?}");
    let said = world.output(&["dlq", "drop", "work", "--id", id, "--yes"]);
    assert_eq!(said.code, 0, "{said:?}");
    total(&world, "work-dlq", 2);
    let left = json(&world.output(&["dlq", "ls", "work", "--json"]));
    assert!(left.iter().all(|letter| letter["id"] != id), "{left:?}");
}

#[test]
fn requeue_moves_those_that_are_meant() {
    let world = provisioned(Version::Newest, "");
    dead_letters(&world, &["one", "two", "three"]);
    let said = world.output(&["requeue", "--from", "work-dlq", "--to", "work", "--filter", "body~t"]);
    assert_eq!(said.code, 0, "{said:?}");
    total(&world, "work", 2);
    total(&world, "work-dlq", 1);
    let moved = json(&world.output(&["peek", "work", "--json"]));
    assert!(moved.iter().all(|message| message["body"] != "one"), "{moved:?}");
    assert!(moved.iter().all(|message| message["attributes"]["tenant"] == "7"), "{moved:?}");
    // What was given back is received again at once.
    let again = world.output(&["requeue", "--from", "work-dlq", "--to", "work"]);
    assert_eq!(again.code, 0, "{again:?}");
    total(&world, "work", 3);
}

#[test]
fn an_exchange_gives_each_of_its_queues_a_copy() {
    for version in Version::ALL {
        let config = ["first", "second"].map(|name| {
            WORK.replace("consumers.work", &format!("consumers.{name}")).replace("'work'", &format!("'shop.{name}'"))
        });
        let world = world(Nats::shared(version), &config.concat());
        world.provision();
        assert_eq!(world.output(&["send", "shop", "--routing-key", "EU.order", "--body", "ack"]).code, 0);
        let rows = world.queues();
        let counts =
            rows.as_array().unwrap().iter().map(|row| (row["channel"].as_str().unwrap(), row["visible"].as_u64()));
        assert_eq!(counts.collect::<Vec<_>>(), [("shop.first", Some(1)), ("shop.second", Some(1))]);
        let mut host = world.started();
        let settled = host.settled(2);
        assert!(settled.iter().all(|line| line["outcome"] == "ack"), "{settled:?}");
        assert_eq!(host.stop(), 0);
    }
}

#[test]
fn check_tells_what_is_missing_and_what_differs() {
    let mut world = world(Nats::shared(Version::Oldest), WORK);
    world.set("HOSTLER_QUEUE__NATS__PROVISION", "check".to_owned());
    let said = world.output(&["check"]);
    assert!(said.code == 69 && said.stderr.contains("there is no queue"), "{said:?}");
    let planned = world.output(&["provision", "--plan"]);
    assert!(planned.stdout.contains("+ queue ") && planned.stdout.contains("+ consumer of the queue"), "{planned:?}");
    world.provision();
    world.config(&WORK.replace("lease = '20s'", "lease = '25s'"));
    let said = world.output(&["check"]);
    assert!(said.code == 0 && said.stderr.contains("ack_wait: 22s → 27s"), "{said:?}");
    let said = world.output(&["provision"]);
    assert!(said.code == 0 && said.stdout.contains("ack_wait: 22s → 27s"), "{said:?}");
    let said = world.output(&["check"]);
    assert!(said.code == 0 && !said.stderr.contains("ack_wait"), "{said:?}");
}
