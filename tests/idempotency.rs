//! Idempotency: real hosts, killed and not, on queues with a database of their own and with a store beside them.

use std::collections::BTreeMap;

use rusqlite::Connection;
use serde_json::Value;

use crate::postgres;
use crate::support::guests::component;
use crate::support::hostler::{Depth, Host, PATIENCE, World, until};
use crate::support::postgres::Postgres;
use crate::support::servers::Kind;
use crate::support::sqs::Aws;
use crate::support::work::json;

/// Number of keys, each of which two messages have.
const KEYS: usize = 150;

/// Number of times that a host is killed while it works.
const KILLS: usize = 12;

/// A consumer that passes each message on to `out`.
fn relay() -> String {
    format!(
        "[consumers.work]
        channel = 'work'
        handler = '{}'
        concurrency = 8
        lease = '2s'
        retry = {{ requeues = 100, requeue_delay = '50ms' }}
        allow.send = ['out']
        idempotency.key = '$.id'
        ",
        component("messaging-relays").display()
    )
}

/// Sends each key twice.
fn send_twice(world: &World) {
    let body = |key: usize| format!("{{\"id\":\"key-{key}\"}}");
    world.send("work", (0..KEYS).map(body));
    world.send("work", (0..KEYS).map(body));
}

/// Number of messages in `out`, by their bodies.
fn relayed(world: &World) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for message in json(&world.output(&["peek", "out", "--json", "--max", "10000"])) {
        *counts.entry(message["body"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    counts
}

fn is_repeated(line: &&Value) -> bool {
    line["repeated"] == true
}

fn is_settled(line: &&Value) -> bool {
    line.get("outcome").is_some()
}

/// Kills hosts that work on the messages, until all are done.
fn survive(world: &World) {
    send_twice(world);
    for round in 0..KILLS {
        let host = world.started();
        host.wait_for(PATIENCE, |line| line["outcome"] == "ack");
        // Some are killed at once, others in the middle of more.
        host.settled(1 + round % 4 * 5);
        host.kill();
    }
    let mut host = world.started();
    until("all messages are acked", PATIENCE, || (world.depth("work") == Depth::default()).then_some(()));
    assert_eq!(host.stop(), 0);
    let counts = relayed(world);
    assert_eq!(counts.len(), KEYS);
    assert!(counts.values().all(|count| *count == 1), "{counts:?}");
}

#[test]
fn each_key_is_passed_on_once_though_hosts_are_killed() {
    survive(&World::new(&relay()));
}

#[test]
fn each_key_is_passed_on_once_though_hosts_are_killed_on_postgresql() {
    survive(&postgres::on(Postgres::shared().database(), &relay()));
}

/// A queue without a database of its own, with records in a file or in PostgreSQL.
#[test]
fn each_key_is_processed_once_by_a_store_beside_the_queue() {
    let mut worlds = vec![Aws::new(Kind::Fauxqs, &(relay() + "idempotency.store = 'embedded'"))];
    let mut on_postgres = Aws::new(Kind::Fauxqs, &(relay() + "idempotency.store = 'postgres'"));
    on_postgres.set("HOSTLER_QUEUE__POSTGRES__URL", Postgres::shared().database());
    on_postgres.set("HOSTLER_QUEUE__POSTGRES__PROVISION", "auto".to_owned());
    worlds.push(on_postgres);
    for world in worlds {
        world.queue("out");
        send_twice(&world);
        let mut host = world.started();
        let lines = host.settled(2 * KEYS);
        assert_eq!(host.stop(), 0);
        // The same key at the same moment makes one of its messages come again.
        let acked: Vec<_> = lines.iter().filter(|line| line["disposition"] == "ack").collect();
        assert_eq!(acked.iter().filter(|line| is_repeated(line)).count(), acked.len() - KEYS, "{lines:#?}");
        assert_eq!(world.depth("out").visible, KEYS as u64);
    }
}

/// A handler that waits for an hour at the messages of a first host, and acks at those of later ones.
fn waits(on_unknown: &str, handler: &str) -> String {
    format!(
        "[consumers.work]
        channel = 'work'
        handler = 'guests/{handler}.wat'
        lease = '2s'
        idempotency = {{ key = 'attr:order', on_unknown = '{on_unknown}' }}"
    )
}

fn send_order(world: &World) {
    assert_eq!(world.output(&["send", "work", "--body", "0", "--attr", "order=7"]).code, 0);
}

/// Kills a host in the middle of a run.
fn killed(on_unknown: &str) -> World {
    let world = World::new(&waits(on_unknown, "main-waits"));
    send_order(&world);
    let host = world.started();
    until("the run has begun", PATIENCE, || {
        let file = Connection::open(world.path("queue.db")).unwrap();
        // There is no table before.
        let count = file.query_row("SELECT count(*) FROM record", [], |row| row.get::<_, i64>(0));
        (count == Ok(1)).then_some(())
    });
    host.kill();
    world.config(&waits(on_unknown, "main-exits"));
    world
}

/// Waits for the end of a message. It may have waited for its key: the lease of a dead run ends a moment after that of its message.
fn next_end(host: &Host) -> Value {
    host.wait_for(PATIENCE, |line| is_settled(&line) && line["outcome"] != "host-limit")
}

#[test]
fn a_run_that_died_with_its_host_runs_again() {
    let world = killed("run");
    let mut host = world.started();
    let line = next_end(&host);
    assert_eq!((&line["outcome"], &line["repeated"]), (&"ack".into(), &Value::Null), "{line}");
    let warned = |line: &Value| line["message"] == "an earlier run of the key ended without a result: it runs again";
    assert!(host.lines().iter().any(warned));
    assert_eq!(host.stop(), 0);
}

#[test]
fn a_run_that_died_with_its_host_is_dead_lettered_until_somebody_requeues_it() {
    let world = killed("dead-letter");
    let mut host = world.started();
    let line = next_end(&host);
    assert_eq!(line["disposition"], "dead-letter", "{line}");
    assert_eq!(line["reason"], "an earlier run of the key 7 ended without a result");
    assert_eq!(world.output(&["requeue", "--from", "work"]).code, 0);
    let line = host.wait_for(PATIENCE, |line| line["outcome"] == "ack");
    assert_eq!(line["disposition"], "ack", "{line}");
    assert_eq!(host.stop(), 0);
}

#[test]
fn messages_that_have_no_key_or_another_body_are_dead_lettered() {
    let world = World::new(&waits("run", "main-exits"));
    send_order(&world);
    let mut host = world.started();
    host.settled(1);
    assert_eq!(world.output(&["send", "work", "--body", "1", "--attr", "order=7"]).code, 0);
    assert_eq!(host.settled(2)[1]["reason"], "the key 7 was used for a message with another body");
    assert_eq!(world.output(&["send", "work", "--body", "1"]).code, 0);
    let reason = "the message has no idempotency key: the attribute `order` is not set";
    assert_eq!(host.settled(3)[2]["reason"], reason);
    assert_eq!(host.stop(), 0);
}

#[test]
fn check_names_the_store_and_says_what_is_missing() {
    let world = World::new(&waits("run", "main-exits"));
    let said = world.output(&["check"]);
    assert!(
        said.code == 0 && said.stdout.contains("records   ok  work: the attribute `order` in the queue's database"),
        "{said:?}"
    );
    let on_postgres = waits("run", "main-exits").replace("key =", "store = 'postgres', key =");
    let mut world = World::new(&on_postgres);
    world.set("HOSTLER_QUEUE__POSTGRES__URL", Postgres::shared().database());
    for command in ["check", "run"] {
        let said = world.output(&[command]);
        assert!(said.code == 69 && said.stderr.contains("hostler provision"), "{command}: {said:?}");
    }
    let said = world.output(&["provision", "--plan"]);
    assert_eq!(said.code, 0, "{said:?}");
    world.provision();
    let said = world.output(&["check"]);
    assert!(
        said.code == 0 && said.stdout.contains("records   ok  work: the attribute `order` in postgres"),
        "{said:?}"
    );
    world.set("HOSTLER_QUEUE__POSTGRES__URL", "postgres://nobody:secret@127.0.0.1:1/none".to_owned());
    let said = world.output(&["check"]);
    assert!(
        said.code == 69 && said.stderr.contains("queue.postgres.url") && !said.stderr.contains("secret"),
        "{said:?}"
    );
}

/// A store that goes away while a host works holds messages up, and fails none.
#[test]
fn a_host_waits_for_its_store() {
    let mut server = Postgres::start();
    let mut world = World::new(&(relay() + "idempotency.store = 'postgres'"));
    world.set("HOSTLER_QUEUE__POSTGRES__URL", server.database());
    world.set("HOSTLER_QUEUE__POSTGRES__PROVISION", "auto".to_owned());
    let mut host: Host = world.started();
    server.stop();
    send_twice(&world);
    let line = host.wait_for(PATIENCE, |line| line["outcome"] == "host-limit");
    assert_eq!(line["disposition"], "release", "{line}");
    server.restart();
    until("all messages are acked", PATIENCE * 2, || (world.depth("work") == Depth::default()).then_some(()));
    assert_eq!(host.stop(), 0);
    let failed: Vec<_> =
        host.lines().into_iter().filter(|line| is_settled(&line) && line["disposition"] == "dead-letter").collect();
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(relayed(&world).len(), KEYS);
}
