//! The commands of operators on PostgreSQL.

use serde_json::Value;

use super::{WORK, field, strict, world};
use crate::support::hostler::World;
use crate::support::work::{dead_letters, json};

/// Without a consumer that runs, so messages stay.
fn provisioned(keys: &str) -> World {
    let world = world(&WORK.replace("concurrency = 4", keys));
    world.provision();
    world
}

#[test]
fn peek_shows_messages_and_receives_none() {
    let world = provisioned("ordered = true");
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

#[test]
fn receive_hands_out_messages_and_removes_those_that_are_acked() {
    let world = provisioned("");
    world.send("work", ["one", "two", "three"]);
    let said = world.output(&["receive", "work", "--max", "2"]);
    assert_eq!((said.code, said.stdout.as_str()), (0, "one\ntwo\n"), "{said:?}");
    assert_eq!(world.depth("work").visible, 3);
    let said = world.output(&["receive", "work", "--max", "2", "--ack"]);
    assert_eq!((said.code, said.stdout.lines().count()), (0, 2), "{said:?}");
    assert_eq!(world.depth("work").visible, 1);
    assert_eq!(world.output(&["receive", "work", "--ack"]).code, 0);
    assert_eq!(world.output(&["receive", "work", "--wait", "0s"]).code, 1, "none is left");
}

#[test]
fn purge_removes_all() {
    let world = provisioned("");
    world.send("work", ["x"; 150]);
    let said = world.output(&["purge", "work", "--yes"]);
    assert_eq!((said.code, said.stdout.as_str()), (0, "150 messages removed from work\n"), "{said:?}");
    assert_eq!(world.depth("work").visible, 0);
}

#[test]
fn dlq_lists_shows_and_drops_dead_letters() {
    let world = provisioned("");
    dead_letters(&world, &["one", "two", "three"]);
    let letters = json(&world.output(&["dlq", "ls", "work", "--json"]));
    assert_eq!(field(&letters, "size_bytes"), [3, 3, 5]);
    let id = letters[1]["id"].as_str().unwrap();
    let said = world.output(&["dlq", "show", "work", id, "--json", "--body"]);
    let shown: Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!((&shown["body"], &shown["attributes"]["tenant"]), (&"two".into(), &"7".into()), "{said:?}");
    let said = world.output(&["dlq", "drop", "work", "--id", id, "--yes"]);
    assert_eq!(said.code, 0, "{said:?}");
    let left = json(&world.output(&["dlq", "ls", "work", "--json"]));
    assert!(left.len() == 2 && left.iter().all(|letter| letter["id"] != id), "{left:?}");
}

#[test]
fn requeue_moves_those_that_are_meant() {
    let world = provisioned("");
    dead_letters(&world, &["one", "two", "three"]);
    let said = world.output(&["requeue", "--from", "work-dlq", "--to", "work", "--filter", "body~t"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!((world.depth("work").visible, world.depth("work").dead_lettered), (2, 1));
    let moved = json(&world.output(&["peek", "work", "--json"]));
    assert!(moved.iter().all(|message| message["body"] != "one"), "{moved:?}");
    assert!(moved.iter().all(|message| message["attributes"]["tenant"] == "7"), "{moved:?}");
    let again = world.output(&["requeue", "--from", "work-dlq", "--to", "work"]);
    assert_eq!(again.code, 0, "{again:?}");
    assert_eq!((world.depth("work").visible, world.depth("work").dead_lettered), (3, 0));
}

#[test]
fn queues_counts_what_waits_is_delayed_and_is_dead() {
    let world = provisioned("");
    world.send("work", ["one", "two"]);
    assert_eq!(world.output(&["send", "work", "--delay", "10m", "--body", "late"]).code, 0);
    dead_letters(&world, &["dead"]);
    let row = world.row("work");
    let counts = ["visible", "delayed", "in_flight", "dead_lettered"].map(|count| row[count].as_u64());
    assert_eq!(counts, [2, 1, 0, 1].map(Some), "{row}");
    assert!(row["oldest_age_seconds"].as_f64().is_some_and(|age| age < 60.0), "{row}");
}

fn fanned(name: &str, filter: &str) -> String {
    let keys = format!("concurrency = 4\n    {filter}");
    let config = WORK.replace("consumers.work", &format!("consumers.{name}"));
    config.replace("'work'", &format!("'shop.{name}'")).replace("concurrency = 4", &keys)
}

#[test]
fn an_exchange_gives_a_copy_to_each_queue_whose_filter_passes_its_key() {
    let config = [
        fanned("all", ""),
        fanned("europe", "filter = { type = 'prefix', values = ['EU.'] }"),
        fanned("orders", "filter = { type = 'exact', values = ['EU.order', 'US.order'] }"),
        fanned("others", "filter = { type = 'exclude', values = ['EU.order'] }"),
    ];
    let world = world(&config.concat());
    world.provision();
    for key in ["EU.order", "US.order", "EU.return"] {
        assert_eq!(world.output(&["send", "shop", "--routing-key", key, "--body", "ack"]).code, 0);
    }
    let rows = world.queues();
    let counts = rows.as_array().unwrap().iter().map(|row| (row["channel"].as_str().unwrap(), row["visible"].as_u64()));
    let expected = [("shop.all", 3), ("shop.europe", 2), ("shop.orders", 2), ("shop.others", 2)];
    assert_eq!(counts.collect::<Vec<_>>(), expected.map(|(name, count)| (name, Some(count))));
    let mut host = world.started();
    let settled = host.settled(9);
    assert!(settled.iter().all(|line| line["outcome"] == "ack"), "{settled:?}");
    assert_eq!(host.stop(), 0);
}

#[test]
fn a_plan_names_what_provision_then_makes() {
    let world = strict(WORK);
    let said = world.output(&["check"]);
    assert!(said.code == 69 && said.stderr.contains("hostler provision"), "{said:?}");
    let planned = world.output(&["provision", "--plan"]);
    assert!(planned.code == 0 && planned.stdout.contains("+ queue "), "{planned:?}");
    let again = world.output(&["provision", "--plan"]);
    assert_eq!(again.stdout, planned.stdout, "a plan changes nothing");
    world.provision();
    let said = world.output(&["check"]);
    assert_eq!(said.code, 0, "{said:?}");
    let said = world.output(&["provision"]);
    assert!(said.code == 0 && !said.stdout.contains("+ "), "{said:?}");
}

/// There is no schema yet, and neither command makes one.
#[test]
fn looks_at_an_empty_database_find_all_missing() {
    let keys = "concurrency = 4\n    reply = 'stdout'\n    reply_channel = 'answers'";
    let world = strict(&WORK.replace("concurrency = 4", keys));
    let planned = world.output(&["provision", "--plan"]);
    assert!(planned.code == 0 && planned.stdout.contains("+ queue answers"), "{planned:?}");
    assert_eq!(world.row("work")["missing"], true);
    let planned_again = world.output(&["provision", "--plan"]);
    assert_eq!(planned_again.stdout, planned.stdout);
}

#[test]
fn a_second_message_with_the_key_is_dropped() {
    let world = provisioned("");
    for _ in 0..2 {
        let said = world.output(&["send", "work", "--dedupe", "order-7", "--body", "ack"]);
        assert_eq!(said.code, 0, "{said:?}");
    }
    assert_eq!(world.depth("work").visible, 1);
}

/// `clean` needs to know when a queue was last used.
#[test]
fn clean_says_why_it_is_not_for_postgres() {
    let said = world(WORK).output(&["clean"]);
    assert!(said.code == 69 && said.stderr.contains("queue.driver = \"sqs\""), "{said:?}");
}
