//! Faults of the server and of the network. Nothing is lost, and no message is handled under two leases.

use std::time::Duration;

use serde_json::{Value, json};

use super::hosts::{have_settled, merged, pair};
use super::{URL, WORK, field, is_busy, is_empty, link_is, on};
use crate::faults::accounted;
use crate::support::hostler::{Host, PATIENCE, World, until};
use crate::support::postgres::Postgres;
use crate::support::proxy::{Line, Proxy};

/// A consumer whose leases end soon, and whose messages are not given up after a few lost ones.
fn short() -> String {
    WORK.replace("'20s'", "'3s'").replace("requeues = 1", "requeues = 20")
}

fn fails(host: &Host, part: &str) -> Value {
    host.wait_for(PATIENCE, |line| {
        line["message"] == "receive failed" && line["error"].as_str().is_some_and(|error| error.contains(part))
    })
}

#[test]
fn a_server_that_is_killed_under_load_loses_nothing() {
    let mut server = Postgres::start();
    let mut world = on(server.database(), &short());
    world.provision();
    world.send("work", ["w20"; 600]);
    let mut hosts = pair(&mut world);
    for killed in 1..=3 {
        have_settled(&hosts, killed * 100);
        server.kill();
        server.restart();
    }
    is_empty(&world);
    for host in &mut hosts {
        assert_eq!(host.stop(), 0);
    }
    accounted(600, &merged(hosts.map(|host| host.lines())));
}

/// A send whose answer was lost may have been executed. The sender is told that it failed, and may send again.
#[test]
fn what_a_sender_was_told_is_there_after_a_kill() {
    let mut server = Postgres::start();
    let world = on(server.database(), WORK);
    world.provision();
    let said = world.output(&["send", "work", "--body", "ack"]);
    assert_eq!(said.code, 0, "{said:?}");
    server.kill();
    let said = world.output(&["send", "work", "--body", "ack"]);
    assert!(said.code == 69 || said.code == 1, "{said:?}");
    server.restart();
    assert_eq!(world.depth("work").visible, 1);
}

#[test]
fn a_host_lives_while_the_server_is_away() {
    let mut server = Postgres::start();
    let world = on(server.database(), WORK);
    let mut host = world.started();
    world.send("work", ["ack"; 3]);
    host.settled(3);
    server.stop();
    fails(&host, "");
    link_is(&world, &json!("down"));
    let shown = world.output(&["top", "--once"]);
    assert!(shown.stdout.contains("the connection to the queue service is lost: "), "{shown:?}");
    server.restart();
    link_is(&world, &Value::Null);
    world.send("work", ["ack"; 3]);
    host.settled(6);
    assert_eq!(host.stop(), 0);
}

/// A lease outlives the connection.
#[test]
fn a_handler_runs_on_and_is_acked_though_the_server_restarts_meanwhile() {
    let mut server = Postgres::start();
    let world = on(server.database(), WORK);
    let mut host = world.started();
    world.send("work", ["w4000"]);
    is_busy(&host, &world, 1);
    server.kill();
    server.restart();
    let settled = host.settled(1);
    assert_eq!((&settled[0]["outcome"], &settled[0]["attempt"]), (&json!("ack"), &json!(1)));
    is_empty(&world);
    assert_eq!(host.stop(), 0);
}

/// The lease ends here before the server could hand the message to another host.
#[test]
fn a_frozen_server_stops_the_handlers_before_their_messages_come_again() {
    let server = Postgres::start();
    let world = on(server.database(), &short());
    let mut host = world.started();
    world.send("work", ["w9000"]);
    is_busy(&host, &world, 1);
    server.freeze();
    let lost = host.settled(1).remove(0);
    assert_eq!((&lost["outcome"], &lost["disposition"]), (&json!("lease-lost"), &json!("none")));
    link_is(&world, &json!("down"));
    server.thaw();
    link_is(&world, &Value::Null);
    let again = host.settled(2).remove(1);
    // A receive that had reached the server before it froze is carried out when it thaws, for nobody. It counts as an attempt.
    assert!(again["outcome"] == "ack" && again["attempt"].as_u64() >= Some(2), "{again}");
    is_empty(&world);
    assert_eq!(host.stop(), 0);
}

/// A host that reaches the server through a network that a test changes. Commands reach the server directly.
struct Apart {
    world: World,
    host: Host,
    network: Proxy,
}

impl Apart {
    fn start() -> Self {
        let server = Postgres::shared();
        let url = server.database();
        let mut world = on(url.clone(), &short());
        world.provision();
        let network = Proxy::of_bytes(0, server.port());
        world.set(URL, url.replace(&format!(":{}/", server.port()), &format!(":{}/", network.port())));
        let host = world.started();
        world.set(URL, url);
        Self { world, host, network }
    }

    /// All messages were handled, once unless the log tells of a lost lease.
    fn ends(mut self, sent: usize) {
        is_empty(&self.world);
        assert_eq!(self.host.stop(), 0);
        accounted(sent, &self.host.lines());
    }
}

#[test]
fn a_network_that_is_cut_loses_nothing() {
    let apart = Apart::start();
    apart.world.send("work", ["w20"; 300]);
    for cut in 1..=3 {
        apart.host.settled(cut * 50);
        apart.network.cut();
        link_is(&apart.world, &json!("down"));
        apart.network.restore();
        link_is(&apart.world, &Value::Null);
    }
    apart.ends(300);
}

/// Each connection is reset in the middle of an answer.
#[test]
fn connections_that_are_reset_in_the_middle_lose_nothing() {
    let apart = Apart::start();
    apart.world.send("work", ["w20"; 300]);
    // The server's shortest answer to a statement is longer.
    for bytes in [0, 1, 9, 30] {
        apart.network.set(Line::Reset(bytes));
        link_is(&apart.world, &json!("down"));
        apart.network.restore();
        link_is(&apart.world, &Value::Null);
    }
    apart.ends(300);
}

/// Both ends think that the connection lasts.
#[test]
fn a_network_that_swallows_all_bytes_is_noticed() {
    let apart = Apart::start();
    apart.world.send("work", ["w9000"]);
    is_busy(&apart.host, &apart.world, 1);
    apart.network.set(Line::Swallowed);
    let lost = apart.host.settled(1).remove(0);
    assert_eq!(lost["outcome"], "lease-lost");
    link_is(&apart.world, &json!("down"));
    apart.network.restore();
    link_is(&apart.world, &Value::Null);
    apart.ends(1);
}

#[test]
fn a_slow_network_is_no_fault() {
    let apart = Apart::start();
    apart.network.set(Line::Late(Duration::from_millis(100)));
    apart.world.send("work", ["ack"; 50]);
    apart.host.settled(50);
    let told: Vec<_> = apart.host.lines().into_iter().filter(|line| line["message"] == "receive failed").collect();
    assert!(told.is_empty(), "{told:?}");
    apart.ends(50);
}

/// An operator, or a failover, ends the sessions.
#[test]
fn connections_that_the_server_ends_are_made_anew() {
    let server = Postgres::shared();
    let name = server.new_database();
    let world = on(server.url(&name), &short());
    let mut host = world.started();
    world.send("work", ["w20"; 200]);
    for cut in 1..=3 {
        host.settled(cut * 40);
        server.cut(&name);
    }
    is_empty(&world);
    assert_eq!(host.stop(), 0);
    accounted(200, &host.lines());
}

/// The queues must not come back empty without a word.
#[test]
fn a_server_that_lost_its_data_is_reported() {
    let server = Postgres::start();
    let name = server.new_database();
    let world = on(server.url(&name), WORK);
    let mut host = world.started();
    world.send("work", ["ack"]);
    host.settled(1);
    // A database has to be created anew by name, as from a backup without it.
    server.psql("postgres", &format!("DROP DATABASE {name} WITH (FORCE)"));
    server.psql("postgres", &format!("CREATE DATABASE {name}"));
    fails(&host, "hostler provision");
    world.provision();
    world.send("work", ["ack"; 3]);
    assert_eq!(field(&host.settled(4), "outcome"), ["ack"; 4]);
    assert_eq!(host.stop(), 0);
}

/// A long transaction of someone else keeps dead rows, and blocks nothing.
#[test]
fn a_transaction_that_stays_open_blocks_nothing() {
    let server = Postgres::shared();
    let name = server.new_database();
    let world = on(server.url(&name), WORK);
    let mut host = world.started();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let opened = runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(&server.url(&name), tokio_postgres::NoTls).await.unwrap();
        let open = tokio::spawn(connection);
        client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class").await.unwrap();
        (client, open)
    });
    world.send("work", ["ack"; 200]);
    until("all are done", PATIENCE, || (host.settled(200).len() == 200).then_some(()));
    drop(opened);
    is_empty(&world);
    assert_eq!(host.stop(), 0);
}
