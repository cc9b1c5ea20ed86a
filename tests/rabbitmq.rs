//! `hostler run` and the commands on RabbitMQ.

mod checks;
mod cluster;
mod commands;
mod driver;
mod foreign;
mod interop;
mod lost;
mod migrating;
mod pauses;
mod publishing;
mod sent_ahead;
mod topology;

use serde_json::Value;

use crate::support::hostler::{PATIENCE, World, until};
use crate::support::rabbitmq::RabbitMq;
use crate::support::servers::unique;
use crate::support::work::{WORK, field, is_busy};

/// A world on this server, with a prefix of its own.
pub fn world(server: &RabbitMq, config: &str) -> World {
    on(server.url(), config)
}

/// A world on this server, with a prefix of its own, which is returned too.
fn world_at(server: &RabbitMq, config: &str) -> (World, String) {
    let (mut world, prefix) = (world(server, config), format!("{}-", unique("w")));
    world.set("HOSTLER_QUEUE__RABBITMQ__PREFIX", prefix.clone());
    (world, prefix)
}

/// A world on the server with this URL, with a prefix of its own.
pub fn on(url: String, config: &str) -> World {
    let head = "
        host.health_file = 'health.json'
        queue.driver = 'rabbitmq'
        ";
    let env = vec![
        ("HOSTLER_QUEUE__RABBITMQ__URL", url),
        ("HOSTLER_QUEUE__RABBITMQ__PREFIX", format!("{}-", unique("i"))),
        ("HOSTLER_QUEUE__RABBITMQ__PROVISION", "auto".to_owned()),
    ];
    World::with(head, env, config)
}

#[test]
fn a_message_is_acked_or_escalates_to_the_dead_letter_queue() {
    let world = world(RabbitMq::shared(), WORK);
    let mut host = world.started();
    world.send("work", ["ack", "x1"]);
    let lines = host.settled(4);
    let (good, bad): (Vec<_>, Vec<_>) = lines.into_iter().partition(|line| line["outcome"] == "ack");
    assert_eq!(good.len(), 1);
    assert_eq!(field(&bad, "attempt"), [1, 2, 3]);
    assert_eq!(field(&bad, "disposition"), ["release", "release", "dead-letter"]);
    until("it is there", PATIENCE, || (world.depth("work").dead_lettered == 1).then_some(()));
    assert_eq!(world.depth("work").visible, 0);

    let peeked = world.output(&["peek", "work-dlq", "--json"]);
    assert!(peeked.code == 0 && peeked.stdout.contains("gave up after 3 attempts"), "{peeked:?}");
    let requeued = world.output(&["requeue", "--from", "work-dlq", "--to", "work"]);
    assert_eq!(requeued.code, 0, "{requeued:?}");
    // Its next attempts follow at once.
    let again = host.settled(5).remove(4);
    assert_eq!((&again["attempt"], &again["outcome"]), (&Value::from(1), &bad[0]["outcome"]));
    // The client library would log an error for the question whether the queue was there.
    let errors: Vec<_> = host.lines().into_iter().filter(|line| line["level"] == "ERROR").collect();
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(host.stop(), 0);
}

/// The client library would log a message that no queue is bound for, with its body.
#[test]
fn a_message_that_reaches_no_queue_is_not_logged_with_its_body() {
    let server = RabbitMq::shared();
    let (mut world, prefix) = world_at(server, WORK);
    let mut host = world.started();
    server.ctl(&["delete_queue", &format!("{prefix}work-dlq")]);
    // The sender would create the missing queue.
    world.set("HOSTLER_QUEUE__RABBITMQ__PROVISION", "check".to_owned());
    world.send("work", ["x1"]);
    let failed = host.wait_for(PATIENCE, |line| line["message"] == "settlement failed");
    assert!(failed["error"].as_str().is_some_and(|error| error.contains("is missing")), "{failed}");
    let is_told = |line: &Value| ["BasicReturnMessage", "returned us"].iter().any(|it| line.to_string().contains(it));
    let told: Vec<_> = host.lines().into_iter().filter(is_told).collect();
    assert!(told.is_empty(), "{told:?}");
    assert_eq!(host.stop(), 0);
}

#[test]
fn a_drain_gives_back_what_has_not_started() {
    let world = world(RabbitMq::shared(), WORK);
    let mut host = world.started();
    world.send("work", ["w2000"; 12]);
    is_busy(&host, &world, 4);
    assert_eq!(host.stop(), 0);
    let acked = host.lines().iter().filter(|line| line["outcome"] == "ack").count() as u64;
    assert!((1..12).contains(&acked), "{acked}");
    until("the rest is there", PATIENCE, || (world.depth("work").visible == 12 - acked).then_some(()));

    let mut next = world.started();
    let lines = next.settled(12 - acked as usize);
    assert!(lines.iter().all(|line| line["outcome"] == "ack"), "{lines:?}");
    assert_eq!(next.stop(), 0);
}

/// A server that is gone for a while, and comes back.
#[test]
fn a_host_lives_while_the_server_is_away() {
    let server = RabbitMq::start();
    let world = world(&server, WORK);
    let mut host = world.started();
    world.send("work", ["ack"; 3]);
    host.settled(3);
    server.ctl(&["stop_app"]);
    host.wait_for(PATIENCE, |line| line["message"] == "receive failed");
    let link = || world.verdict()["report"]["queue_link"]["state"].clone();
    until("the health file says so", PATIENCE, || (link() == "down").then_some(()));
    let shown = world.output(&["top", "--once"]);
    assert!(shown.stdout.contains("the connection to the queue service is lost: "), "{shown:?}");
    server.ctl(&["start_app"]);
    world.send("work", ["ack"; 3]);
    host.settled(6);
    until("it is up again", PATIENCE, || link().is_null().then_some(()));
    assert_eq!(host.stop(), 0);
}

/// Indeed's reason for delay queues: what is requeued to the head of a queue blocks it. The proof `head-of-queue` bounds the time.
#[test]
fn unprocessable_messages_do_not_hold_up_the_others() {
    let world = world(RabbitMq::shared(), &WORK.replace("concurrency = 4", "concurrency = 16"));
    world.provision();
    world.send("work", ["x1"; 500]);
    world.send("work", ["ack"; 500]);
    let mut host = world.started();
    let lines = host.settled(2000);
    let last_good = lines.iter().rposition(|line| line["outcome"] == "ack").unwrap();
    let (good, bad): (Vec<_>, Vec<_>) = lines[..=last_good].iter().partition(|line| line["outcome"] == "ack");
    assert_eq!(good.len(), 500);
    let again = bad.iter().filter(|line| line["attempt"] != 1).count();
    assert!(bad.len() - again == 500 && again < 100, "{again} second attempts before the last good message");
    until("they are dead letters", PATIENCE, || (world.depth("work").dead_lettered == 500).then_some(()));
    assert_eq!((world.depth("work").visible, host.stop()), (0, 0));
}

#[test]
fn credentials_that_are_refused_end_the_start_with_the_cure() {
    let server = RabbitMq::shared();
    let mut world = world(server, WORK);
    world.set("HOSTLER_QUEUE__RABBITMQ__URL", server.url().replace("guest:guest", "guest:secret-4711"));
    let said = world.output(&["run"]);
    assert_eq!(said.code, 69, "{said:?}");
    assert!(said.stderr.contains("queue.rabbitmq.url") && !said.stderr.contains("secret-4711"), "{said:?}");
}

#[test]
fn a_mistake_in_the_url_is_one_error_of_the_config() {
    for (url, part) in [
        ("amqp://guest:secret-4711@127.0.0.1:99999", "a port that is not a number"),
        ("amqp://guest:secret-4711@one,,", "lacks the name of a host"),
        (" amqp://guest:secret-4711@127.0.0.1", "has a space"),
        ("AMQP://guest:secret-4711@127.0.0.1", "begins with capitals"),
        ("amqp://guest:secret-4711@127.0.0.1/%2f/x", "in the name of the virtual host"),
    ] {
        let said = on(url.to_owned(), WORK).output(&["check"]);
        assert!(said.code == 64 && said.stderr.contains("1 error in the configuration"), "{url}: {said:?}");
        assert!(said.stderr.contains(part) && !said.stderr.contains("4711"), "{url}: {said:?}");
    }
}

/// Most clients take the slash at the end for the default virtual host.
#[test]
fn a_url_that_ends_in_a_slash_names_the_default_virtual_host() {
    let world = on(format!("{}/", RabbitMq::shared().url()), WORK);
    assert_eq!(world.output(&["provision"]).code, 0);
}

#[test]
fn without_permission_to_create_a_missing_queue_is_named_with_the_way_out() {
    let server = RabbitMq::shared();
    let mut world = world(server, WORK);
    world.set("HOSTLER_QUEUE__RABBITMQ__PROVISION", "check".to_owned());
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
