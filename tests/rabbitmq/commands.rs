//! The commands of operators on RabbitMQ.

use serde_json::Value;

use super::{WORK, field, world, world_at};
use crate::exchange::{CONSUMERS, accepted, refused};
use crate::support::hostler::{PATIENCE, World, until};
use crate::support::rabbitmq::RabbitMq;
use crate::support::servers::unique;
use crate::support::work::{dead_letters, json};

/// Without a consumer that runs, so messages stay.
fn provisioned() -> World {
    provisioned_with("tags = { alarm_threshold = 3 }")
}

/// Same as [`provisioned`], with these keys of the consumer.
fn provisioned_with(keys: &str) -> World {
    let world = world(RabbitMq::shared(), &WORK.replace("concurrency = 4", keys));
    world.provision();
    world
}

fn visible(world: &World, channel: &str, count: u64) {
    until("the messages are there", PATIENCE, || (world.depth(channel).visible == count).then_some(()));
}

#[test]
fn peek_shows_messages_and_leaves_them() {
    let world = provisioned();
    world.send("work", ["one", "two", "three"]);
    let said = world.output(&["peek", "work", "--max", "2", "--json"]);
    assert!(said.code == 0 && said.stderr.contains("RabbitMQ before 4.3 counts a delivery of each"), "{said:?}");
    assert_eq!(field(&json(&said), "body"), ["one", "two"]);
    visible(&world, "work", 3);
    let said = world.output(&["peek", "work", "--filter", "body~three", "--json"]);
    assert_eq!(field(&json(&said), "body"), ["three"]);
    visible(&world, "work", 3);
}

#[test]
fn peek_says_that_messages_wait_behind_the_first_of_their_group() {
    let world = provisioned_with("ordered = true");
    for body in ["one", "two"] {
        let said = world.output(&["send", "work", "--group", "a", "--body", body]);
        assert_eq!(said.code, 0, "{said:?}");
    }
    let said = world.output(&["peek", "work", "--filter", "body~two"]);
    assert_eq!((said.code, said.stdout.as_str()), (1, "no messages in work\n"), "{said:?}");
    assert!(said.stderr.contains("or behind a message of their group that stays"), "{said:?}");
    assert!(said.stderr.contains("drop those before them in their group") && !said.stderr.contains("SQS"), "{said:?}");
}

#[test]
fn receive_hands_out_messages_and_removes_those_that_are_acked() {
    let world = provisioned();
    world.send("work", ["one", "two", "three"]);
    let said = world.output(&["receive", "work", "--max", "2"]);
    assert_eq!((said.code, said.stdout.as_str()), (0, "one\ntwo\n"), "{said:?}");
    assert!(
        said.stderr.contains("2 messages given back to work; RabbitMQ before 4.3 counts a delivery of each"),
        "{said:?}"
    );
    visible(&world, "work", 3);
    let said = world.output(&["receive", "work", "--max", "2", "--ack"]);
    assert_eq!((said.code, said.stdout.lines().count()), (0, 2), "{said:?}");
    visible(&world, "work", 1);
    assert_eq!(world.output(&["receive", "work", "--ack"]).code, 0);
    assert_eq!(world.output(&["receive", "work", "--wait", "0s"]).code, 1, "none is left");
}

/// A quorum queue's acks wait in the channel while many others are not yet stored, and a command ends after its last ack.
#[test]
fn what_is_reported_as_removed_is_removed() {
    let world = provisioned();
    for _ in 0..4 {
        world.send("work", ["x"; 60]);
        let said = world.output(&["receive", "work", "--ack", "--max", "50"]);
        assert!(said.code == 0 && said.stderr.contains("50 messages removed from work"), "{said:?}");
        visible(&world, "work", 10);
        let said = world.output(&["purge", "work", "--yes"]);
        assert_eq!((said.code, said.stdout.as_str()), (0, "10 messages removed from work\n"), "{said:?}");
        visible(&world, "work", 0);
    }
}

/// Producers choose the ids of messages.
#[test]
fn messages_with_one_id_are_counted_one_by_one() {
    let server = RabbitMq::shared();
    let (world, prefix) = world_at(server, WORK);
    world.provision();
    // Of each body, there are eight.
    let properties = "[{message_id, <<\"same\">>}, {delivery_mode, 2}]";
    server.publish(&format!("{prefix}work-dlq"), properties, "integer_to_binary(N rem 5)", 40);
    visible(&world, "work-dlq", 40);
    let requeued = |args: &[&str]| -> Value {
        let said = world.output(&[&["requeue", "--from", "work-dlq", "--to", "work", "--json"], args].concat());
        serde_json::from_str(&said.stdout).unwrap_or_else(|_| panic!("{said:?}"))
    };
    let moved = requeued(&["--max", "7"]);
    assert_eq!((&moved["moved"], &moved["doubled"]), (&7.into(), &0.into()), "{moved}");
    visible(&world, "work", 7);
    visible(&world, "work-dlq", 33);
    let moved = requeued(&["--filter", "body~1"]);
    assert_eq!((&moved["moved"], &moved["left"]), (&6.into(), &27.into()), "{moved}");
    assert_eq!(json(&world.output(&["dlq", "ls", "work", "--json"])).len(), 27);
    let lines = |args: &[&str]| world.output(&[&["receive", "work-dlq"], args].concat()).stdout.lines().count();
    assert_eq!(lines(&["--max", "20"]), 20);
    assert_eq!(lines(&["--max", "10", "--ack"]), 10);
    visible(&world, "work-dlq", 17);
    let said = world.output(&["purge", "work-dlq", "--yes"]);
    assert_eq!((said.code, said.stdout.as_str()), (0, "17 messages removed from work-dlq\n"), "{said:?}");
    visible(&world, "work-dlq", 0);
    visible(&world, "work", 13);
}

#[test]
fn purge_removes_all() {
    let world = provisioned();
    world.send("work", ["x"; 150]);
    let said = world.output(&["purge", "work", "--yes"]);
    assert_eq!((said.code, said.stdout.as_str()), (0, "150 messages removed from work\n"), "{said:?}");
    visible(&world, "work", 0);
}

#[test]
fn dlq_lists_shows_and_drops_dead_letters() {
    let world = provisioned();
    dead_letters(&world, &["one", "two", "three"]);
    let letters = json(&world.output(&["dlq", "ls", "work", "--json"]));
    assert_eq!(field(&letters, "size_bytes"), [3, 3, 5]);
    let id = letters[1]["id"].as_str().unwrap();
    let said = world.output(&["dlq", "show", "work", id, "--json", "--body"]);
    let shown: Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!((&shown["body"], &shown["attributes"]["tenant"]), (&"two".into(), &"7".into()), "{said:?}");
    let said = world.output(&["dlq", "drop", "work", "--id", id, "--yes"]);
    assert_eq!(said.code, 0, "{said:?}");
    visible(&world, "work-dlq", 2);
    let left = json(&world.output(&["dlq", "ls", "work", "--json"]));
    assert!(left.iter().all(|letter| letter["id"] != id), "{left:?}");
}

#[test]
fn requeue_moves_those_that_are_meant() {
    let world = provisioned();
    dead_letters(&world, &["one", "two", "three"]);
    let said = world.output(&["requeue", "--from", "work-dlq", "--to", "work", "--filter", "body~t"]);
    assert_eq!(said.code, 0, "{said:?}");
    visible(&world, "work", 2);
    visible(&world, "work-dlq", 1);
    let moved = json(&world.output(&["peek", "work", "--json"]));
    assert!(moved.iter().all(|message| message["body"] != "one"), "{moved:?}");
    assert!(moved.iter().all(|message| message["attributes"]["tenant"] == "7"), "{moved:?}");
}

#[test]
fn queues_count_messages_and_name_what_is_missing() {
    let world = provisioned();
    world.send("work", ["x"; 3]);
    dead_letters(&world, &["one"]);
    let rows = json(&world.output(&["queues", "--json"]));
    let row = rows.iter().find(|row| row["channel"] == "work").unwrap();
    assert_eq!((&row["visible"], &row["dead_lettered"]), (&3.into(), &1.into()), "{rows:?}");
    let said = world.output(&["queues", "nothing"]);
    assert!(said.code == 69 && said.stderr.contains("there is no queue `nothing`"), "{said:?}");
}

#[test]
fn alarms_tell_of_queues_beyond_their_thresholds() {
    let world = provisioned();
    world.send("work", ["x"; 2]);
    let said = world.output(&["alarms"]);
    let note = "note: RabbitMQ does not count delayed messages and messages in flight: they raise no alarm";
    assert!(said.code == 0 && said.stderr.contains(note), "{said:?}");
    world.send("work", ["x"]);
    let said = world.output(&["alarms", "--json"]);
    let report: Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!((said.code, &report["alarms"][0]["queue"]), (1, &"work".into()), "{said:?}");
}

#[test]
fn check_warns_of_a_processing_timeout_that_the_server_does_not_wait_for() {
    let warning =
        "hostler: warning: consumers.work: a message may be held for 45m, but RabbitMQ takes it back after 30m";
    let long = WORK.replace("'30s'", "'45m'").replace("'60s'", "'46m'");
    let late = WORK.replace("delay = '1s'", "delay = '45m', max_delay = '45m'");
    // Where the order does not count, a message that waits is on the server.
    let ordered = late.replace("concurrency = 4", "ordered = true");
    for (config, is_warned) in [(WORK, false), (&long, true), (&late, false), (&ordered, true)] {
        let world = world(RabbitMq::shared(), config);
        world.provision();
        let said = world.output(&["check"]);
        assert!(said.code == 0 && said.stderr.contains(warning) == is_warned, "{said:?}");
    }
}

#[test]
fn provision_reports_what_it_cannot_change_with_the_way_out() {
    let world = provisioned();
    let said = world.output(&["provision"]);
    assert!(
        said.code == 0 && said.stdout.starts_with("no change; missing bindings are made, and not counted"),
        "{said:?}"
    );
    world.config(&WORK.replace("channel = 'work'", "channel = 'work'\n    ordered = true"));
    let said = world.output(&["provision", "--plan"]);
    assert!(said.code == 0 && said.stdout.contains("x-single-active-consumer"), "{said:?}");
    assert!(said.stdout.contains("rabbitmqctl delete_queue"), "{said:?}");
    let said = world.output(&["check"]);
    assert!(said.code != 0 && said.stdout.contains("delete_queue") | said.stderr.contains("delete_queue"), "{said:?}");
}

/// Returns the patterns of a role, as `provision --permissions` prints them.
fn patterns(printed: &str, role: &str) -> Vec<String> {
    let mut lines = printed.lines().skip_while(|line| !line.starts_with(role)).skip(1);
    ["configure", "write", "read"]
        .map(|right| lines.next().unwrap().trim().strip_prefix(right).unwrap().trim().to_owned())
        .into()
}

/// The consumer escalates with a delay and sends replies; the queue is plain or ordered.
#[test]
fn the_permissions_that_provision_prints_are_enough() {
    let server = RabbitMq::shared();
    for order in ["ordered = false", "ordered = true"] {
        let config =
            WORK.replace("channel = 'work'", &format!("channel = 'shop.work'\n{order}\nreply_channel = 'done'"));
        let mut world = world(server, &config);
        let printed = world.output(&["provision", "--permissions"]);
        assert_eq!(printed.code, 0, "{printed:?}");
        let user = |role: &str| {
            let name = unique("user");
            let [configure, write, read] = &patterns(&printed.stdout, role)[..] else { panic!("{printed:?}") };
            server.ctl(&["add_user", &name, "secret"]);
            server.ctl(&["set_permissions", &name, configure, write, read]);
            server.url().replace("guest:guest", &format!("{name}:secret"))
        };
        let (maker, runner) = (user("hostler provision"), user("hostler run"));
        world.set("HOSTLER_QUEUE__RABBITMQ__URL", maker.clone());
        world.set("HOSTLER_QUEUE__RABBITMQ__PROVISION", "check".to_owned());
        world.provision();
        world.set("HOSTLER_QUEUE__RABBITMQ__URL", runner.clone());
        let checked = world.output(&["check"]);
        assert_eq!(checked.code, 0, "{checked:?}");
        let mut host = world.started();
        world.set("HOSTLER_QUEUE__RABBITMQ__URL", maker);
        world.send("shop", ["ack", "x1"]);
        world.set("HOSTLER_QUEUE__RABBITMQ__URL", runner);
        assert_eq!(host.settled(4).len(), 4);
        let delayed = world.output(&["send", "done", "--body", "later", "--delay", "1s"]);
        assert_eq!(delayed.code, 0, "{delayed:?}");
        visible(&world, "work-dlq", 1);
        let dropped = world.output(&["dlq", "drop", "work", "--filter", "body~x1", "--yes"]);
        assert_eq!(dropped.code, 0, "{dropped:?}");
        let counted = world.output(&["queues"]);
        assert!(counted.code == 0 && counted.stdout.contains("done"), "{counted:?}");
        assert_eq!(host.stop(), 0);
        let refused =
            |line: &&Value| line.to_string().contains("ACCESS_REFUSED") || line.to_string().contains("permissions");
        assert!(!host.lines().iter().any(|line| refused(&line)), "{:?}", host.lines());
    }
}

/// AMQP does not list bindings. Without the management API, an exchange passes if it exists.
#[test]
fn a_wrong_exchange_is_refused_by_the_config_and_by_the_management_api() {
    let server = RabbitMq::shared();
    let mut world = world(server, "[consumers.desk]\nchannel = 'papers.desk'\nhandler = 'guests/run-word.wat'");
    world.provision();
    world.config(CONSUMERS);
    world.provision();
    world.send("parked", ["stays"]);
    world.send("mobile", ["stays"]);
    let feeds = "there is no exchange `nope` that feeds the queue";
    refused(&world, "nope.mobile", &format!("{feeds} `mobile`: the exchange `news` does\n"));
    refused(&world, "nope.desk", &format!("{feeds} `desk`\n"));
    accepted(&world, "papers.desk");
    world.set("HOSTLER_QUEUE__RABBITMQ__MANAGEMENT_URL", server.management_url());
    refused(&world, "sports.jobs", "there is no exchange `sports` that feeds the queue `jobs`: no exchange does");
    refused(&world, "news.desk", "that feeds the queue `desk`: the exchange `papers` does");
    accepted(&world, "papers.desk");
    visible(&world, "mobile", 1);
}
