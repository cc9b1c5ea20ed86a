//! Effects of settings and the network on hostler with SQS: errors, exit codes and costs.

use std::net::{Ipv4Addr, TcpListener};
use std::time::Instant;

use serde_json::json;

use super::{WORK, send, settlements, text};
use crate::support::hostler::{Host, PATIENCE, SECOND, Said, World, until};
use crate::support::proxy::{Line, Proxy};
use crate::support::scripted::{Answer, Scripted};
use crate::support::servers::{Kind, Server};
use crate::support::sqs::Aws;

/// Runs `hostler run` to its end.
fn run(world: &World) -> Said {
    world.output(&["run"])
}

/// Output of a command that ends with this exit code.
#[track_caller]
fn said_with(code: i32, said: &Said, parts: &[&str]) {
    assert_eq!(said.code, code, "{said:?}");
    for part in parts {
        assert!(said.stderr.contains(part), "no `{part}` in {said:?}");
    }
}

#[test]
fn a_missing_queue_is_named_with_the_cure() {
    let world = Aws::new(Kind::LocalStack, WORK);
    let name = format!("`{}work`", world.prefix);
    let cure = [&*name, "eu-west-1", "hostler provision", "queue.sqs.provision"];
    let check = |args: &[&str]| {
        let mut command = world.command(args);
        command.env("HOSTLER_QUEUE__SQS__PROVISION", "check");
        let output = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Said { code: output.status.code().unwrap(), stdout: text(output.stdout), stderr: text(output.stderr) }
    };
    said_with(69, &check(&["run"]), &cure);
    said_with(69, &check(&["send", "work", "--body", "x"]), &cure);

    // What is missing is created by whoever needs it first.
    assert_eq!(world.output(&["send", "work", "--body", "x"]).code, 0);
    assert_eq!(check(&["send", "work", "--body", "x"]).code, 0);
    assert_eq!(world.counts("work"), [2, 0, 0]);
    assert_eq!(world.output(&["send", "elsewhere", "--body", "x"]).code, 0, "a queue that no consumer has");
    assert_eq!(world.counts("elsewhere"), [1, 0, 0]);
}

#[test]
fn a_missing_destination_is_named_with_the_cure() {
    let world = Aws::new(Kind::LocalStack, &format!("{WORK}reply_channel = 'done'\nallow.send = ['news.any', 'work']"));
    let check = |args: &[&str]| {
        let mut command = world.command(args);
        command.env("HOSTLER_QUEUE__SQS__PROVISION", "check");
        Said::new(command.output().unwrap())
    };
    assert_eq!(world.output(&["check"]).code, 0, "a send makes them");
    world.python("for name in ['work', 'work-dlq']: create_queue(prefix + name)", &[]);
    let missing = [
        format!("there is no queue {}done, which `reply_channel` names", world.prefix),
        format!("there is no topic {}news, which `allow.send` names", world.prefix),
        "hostler provision".to_owned(),
    ];
    let missing: Vec<&str> = missing.iter().map(String::as_str).collect();
    said_with(69, &check(&["run"]), &missing);
    said_with(69, &check(&["check"]), &missing);

    let plan = check(&["provision", "--plan"]).stdout;
    for change in ["+ queue ", "+ topic "] {
        assert!(plan.contains(change), "{plan}");
    }
    assert_eq!(check(&["provision"]).code, 0);
    assert!(check(&["provision", "--plan"]).stdout.ends_with("\nno change\n"));
    assert_eq!(check(&["check"]).code, 0);
    let mut host = Host::start({
        let mut command = world.command(&["run"]);
        command.env("HOSTLER_QUEUE__SQS__PROVISION", "check");
        command
    });
    host.wait_for(PATIENCE, |line| line["message"] == "consuming");
    assert_eq!(host.stop(), 0);
}

#[test]
fn a_send_says_that_no_consumer_has_this_queue_of_an_exchange() {
    let consumer = "[consumers.mobile]\nchannel = 'news.mobile'\nhandler = 'guests/run-word.wat'";
    let world = Aws::new(Kind::LocalStack, consumer);
    assert_eq!(world.output(&["provision"]).code, 0);
    for (channel, note) in [
        ("news.nope", "hostler: note: no consumer of this config listens on news.nope\n"),
        ("news.mobile", ""),
        ("news", ""),
        ("mobile", ""),
    ] {
        let said = world.output(&["send", channel, "--body", "x"]);
        assert_eq!((said.code, said.stderr.as_str()), (0, note), "{channel}: {said:?}");
    }
}

#[test]
fn a_receive_that_is_refused_from_the_start_ends_it() {
    let server = Scripted::start(|_, _| Answer::Error(400, "AccessDeniedException"));
    let head = format!(
        "host.health_file = 'health.json'
        queue.driver = 'sqs'
        queue.sqs = {{ region = 'eu-west-1', endpoint_url = '{}' }}",
        server.endpoint()
    );
    let env = vec![("AWS_ACCESS_KEY_ID", "test".to_owned()), ("AWS_SECRET_ACCESS_KEY", "test".to_owned())];
    let world = World::with(&head, env, WORK);
    said_with(69, &run(&world), &["consumer work cannot receive: ReceiveMessage on work: AccessDenied", "hostler iam"]);
}

#[test]
fn without_a_region_it_says_where_to_set_one() {
    let head = "host.health_file = 'health.json'\nqueue.driver = 'sqs'";
    let env = vec![("AWS_EC2_METADATA_DISABLED", "true".to_owned())];
    let world = World::with(head, env, WORK);
    said_with(69, &run(&world), &["queue.sqs.region", "AWS_REGION"]);
    said_with(69, &world.output(&["send", "work", "--body", "x"]), &["queue.sqs.region", "AWS_REGION"]);
}

#[test]
fn an_endpoint_where_nobody_listens_is_named() {
    // Its port is free again when the statement ends.
    let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let world = Aws::through(&format!("http://{address}"), Kind::Fauxqs, WORK);
    let begun = Instant::now();
    said_with(69, &run(&world), &[&address.to_string()]);
    assert!(begun.elapsed() < 20 * SECOND, "{:?}", begun.elapsed());
}

#[test]
fn consumers_open_their_queues_side_by_side() {
    let proxy = Proxy::before(&Server::shared(Kind::Fauxqs).endpoint());
    let consumer = |n| format!("[consumers.c{n}]\nchannel = 'c{n}'\nhandler = 'guests/run-word.wat'\n");
    let world = Aws::through(&proxy.endpoint(), Kind::Fauxqs, &(0..4).map(consumer).collect::<String>());
    // Nothing is answered until each consumer has asked for its queue and its dead-letter queue: each call has its connection.
    proxy.set(Line::Held);
    let mut host = world.start();
    until("eight calls are under way", PATIENCE, || (proxy.connections() >= 8).then_some(()));
    proxy.restore();
    for n in 0..4 {
        let name = format!("c{n}");
        host.wait_for(PATIENCE, |line| line["message"] == "consuming" && line["consumer"] == *name);
        world.send(&name, ["x0"]);
    }
    let mut consumers: Vec<_> = host.settled(4).iter().map(|line| text(line, "consumer").to_owned()).collect();
    consumers.sort();
    assert_eq!(consumers, ["c0", "c1", "c2", "c3"]);
    assert_eq!(host.stop(), 0);
}

#[test]
fn a_server_that_goes_away_and_comes_back_costs_no_message() {
    let proxy = Proxy::before(&Server::shared(Kind::Fauxqs).endpoint());
    let keys = "lease = '3s'\nprocessing_timeout = '2s'\nhealthcheck_timeout = '4s'";
    let world = Aws::through(&proxy.endpoint(), Kind::Fauxqs, &format!("{WORK}{keys}"));
    let mut host = world.started();
    world.send("work", (0..5).map(|n| format!("before {n}")));
    host.settled(5);
    until("it is healthy", PATIENCE, || (world.verdict()["status"] == "healthy").then_some(()));

    world.send("work", vec!["w500"; 60]);
    host.settled(6);
    proxy.cut();
    until("it is unhealthy", PATIENCE, || (world.verdict()["status"] == "unhealthy").then_some(()));
    let reasons = world.verdict()["reasons"].to_string();
    assert!(reasons.contains("work"), "{reasons}");
    proxy.restore();
    until("it is healthy again", PATIENCE, || (world.verdict()["status"] == "healthy").then_some(()));
    until("all are done", PATIENCE, || (world.counts("work") == [0, 0, 0]).then_some(()));
    assert_eq!(host.stop(), 0);
    assert_eq!(world.counts("work-dlq"), [0, 0, 0]);
    let mut acked: Vec<_> = settlements(&host)
        .iter()
        .filter(|line| line["outcome"] == "ack")
        .map(|line| line["message_id"].clone())
        .collect();
    acked.sort_by_key(ToString::to_string);
    acked.dedup();
    assert_eq!(acked.len(), 65, "each was handled");
    let errors = host.lines().iter().filter(|line| line["level"] == "ERROR").cloned().collect::<Vec<_>>();
    assert!(errors.len() < 20, "{errors:?}");
}

#[test]
fn queues_shows_what_is_where() {
    let world = Aws::new(
        Kind::LocalStack,
        &format!("{WORK}[consumers.jobs]\nchannel = 'jobs'\nordered = true\nhandler = 'guests/run-word.wat'"),
    );
    world.send("work", ["x65", "x65", "w50000"]);
    let host = world.started();
    host.settled(2);
    for args in [&["work", "--body", "a", "--delay", "15m"][..], &["jobs", "--body", "w50000", "--group", "g"]] {
        send(&world, args);
    }
    let row = |channel: &str, delayed: u64, in_flight: u64, dead_lettered: u64| {
        json!({ "channel": channel, "visible": 0, "delayed": delayed, "in_flight": in_flight,
                "dead_lettered": dead_lettered, "oldest_age_seconds": null })
    };
    for row in [row("work", 1, 1, 2), row("jobs", 0, 1, 0)] {
        until("the row is as it will stay", PATIENCE, || (world.row(text(&row, "channel")) == row).then_some(()));
    }
    let rows = world.queues();
    assert!(rows.as_array().unwrap().contains(&row("work", 1, 1, 2)), "{rows}");
}

#[test]
fn duplicates_are_dropped_where_sqs_can() {
    let ordered = "[consumers.jobs]\nchannel = 'jobs'\nordered = true\nhandler = 'guests/run-word.wat'";
    let world = Aws::new(Kind::LocalStack, &format!("{WORK}{ordered}"));
    for (body, key) in [("first", "k1"), ("again", "k1"), ("other", "k2")] {
        send(&world, &["jobs", "--body", body, "--dedupe", key]);
    }
    send(&world, &["jobs", "--body", "without a key"]);
    send(&world, &["jobs", "--body", "without a key"]);
    assert_eq!(world.counts("jobs.fifo"), [4, 0, 0]);
    let refused = world.output(&["send", "work", "--body", "x", "--dedupe", "k"]);
    said_with(2, &refused, &["FIFO", "ordered"]);
    let refused = world.output(&["send", "jobs", "--body", "x", "--delay", "1m"]);
    said_with(2, &refused, &["delay", "FIFO"]);
    assert_eq!(world.counts("work"), [0, 0, 0]);
}

#[test]
fn what_sqs_takes_of_no_message_is_a_fault_of_usage() {
    let ordered = "[consumers.jobs]\nchannel = 'jobs'\nordered = true\nhandler = 'guests/run-word.wat'";
    let world = Aws::new(Kind::LocalStack, &format!("{WORK}{ordered}"));
    let cases: [(&[&str], &str); 6] = [
        (&["jobs", "--group", "tenant 7"], "group"),
        (&["jobs", "--dedupe", "a b"], "dedupe key"),
        (&["work", "--group", "tenant 7"], "group"),
        (&["work", "--attr", "AWS.foo=v"], "`AWS.foo`"),
        (&["work", "--attr", "amazon.foo=v"], "`amazon.foo`"),
        (&["work", "--attr", "a=\u{1b}[0m"], "`a`"),
    ];
    for (args, part) in cases {
        said_with(2, &world.output(&[&["send", "--body", "x"], args].concat()), &[part]);
    }
}

#[test]
fn a_body_beyond_what_sqs_takes_is_refused() {
    let world = Aws::new(Kind::LocalStack, WORK);
    std::fs::write(world.path("body"), vec![b'x'; 1024 * 1024 + 1]).unwrap();
    let refused = world.output(&["send", "work", "--file", "body"]);
    said_with(2, &refused, &["1048577", "1048576"]);
    let eleven: Vec<_> = (0..11).flat_map(|n| ["--attr".to_owned(), format!("a{n}=x")]).collect();
    let args: Vec<_> = ["send", "work", "--body", "x"].into_iter().chain(eleven.iter().map(String::as_str)).collect();
    said_with(2, &world.output(&args), &["11", "10"]);
    said_with(2, &world.output(&["send", "work", "--body", "x", "--attr", "a="]), &["`a`", "empty"]);
    assert_eq!(world.counts("work"), [0, 0, 0]);
}

#[test]
fn a_quarter_of_a_call_per_message_is_enough() {
    const SENT: usize = 1_000;
    let proxy = Proxy::before(&Server::shared(Kind::Fauxqs).endpoint());
    let world = Aws::through(&proxy.endpoint(), Kind::Fauxqs, &format!("{WORK}concurrency = 20"));
    world.send("work", (0..SENT).map(|n| format!("ack {n}")));
    let before = proxy.calls();
    let host = world.start();
    host.settled(SENT);
    assert_eq!(world.counts("work"), [0, 0, 0]);
    let calls = proxy.calls();
    let made = |call: &str| calls.get(call).unwrap_or(&0) - before.get(call).unwrap_or(&0);
    let made = [
        "ReceiveMessage",
        "DeleteMessage",
        "DeleteMessageBatch",
        "ChangeMessageVisibility",
        "ChangeMessageVisibilityBatch",
    ]
    .map(made);
    assert!(made.iter().sum::<usize>() <= SENT / 4, "{made:?}");
    assert!(before["SendMessageBatch"] == SENT / 10, "{before:?}");
}
