//! Interoperation: messages of pika and Celery reach the handler unchanged, and messages of hostler reach pika and Celery.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::process::{Child, Command};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::{WORK, world};
use crate::sqs::{KEEP, kept, kept_attributes};
use crate::support::hostler::{PATIENCE, Said, World, until};
use crate::support::rabbitmq::RabbitMq;
use crate::support::servers::installed;

fn python(world: &World, script: &str, args: &[&str]) -> Command {
    let program = installed("amqp").join("bin/python");
    let script = format!("{}/tests/rabbitmq/{script}", env!("CARGO_MANIFEST_DIR"));
    world.program(program.to_str().unwrap(), &[&[&*script], args].concat())
}

/// Runs a script. Returns its output.
fn say(world: &World, script: &str, args: &[&str]) -> Value {
    let said = Said::new(python(world, script, args).output().unwrap());
    assert_eq!(said.code, 0, "{said:?}");
    serde_json::from_str(&said.stdout).unwrap()
}

fn send(world: &World, args: &[&str]) -> String {
    let said = world.output(&[&["send"], args].concat());
    assert_eq!(said.code, 0, "{said:?}");
    said.stdout.trim().to_owned()
}

#[test]
fn headers_and_properties_of_pika_are_attributes() {
    let world = world(RabbitMq::shared(), KEEP);
    let mut host = world.started();
    say(&world, "plain.py", &["publish", "keep", "żółć 🦀"]);
    let lines = host.settled(1);
    assert_eq!((&lines[0]["outcome"], &lines[0]["message_id"]), (&json!("ack"), &json!("m-1")), "{lines:?}");
    assert_eq!(kept(&world, "m-1"), "żółć 🦀".as_bytes());
    let list = json!([1, "ż", null, false, { "amqp:l": "5" }, { "amqp:D": "0.5" }, { "amqp:x": [255] }, [], {}]);
    let mut attributes = kept_attributes(&world, "m-1");
    let nested = ["list", "table"].map(|name| {
        let text = attributes.as_object_mut().unwrap().remove(name).unwrap();
        serde_json::from_str::<Value>(text.as_str().unwrap()).unwrap()
    });
    assert_eq!(nested, [list, json!({ "a": { "b": "deep" }, "n": -1 })]);
    let expected = json!({
        "text": "żółć 🦀", "blank": "", "int": "-7", "long": "5", "large": "1099511627776", "bool": "true", "decimal": "-123.45",
        "time": "1795651200", "none": "", "bytes": { "base64": "AP8=" }, "content-type": "text/x65",
        "content-encoding": "identity", "correlation-id": "c-1", "reply-to": "answers", "type": "order", "app-id": "shop",
    });
    assert_eq!(attributes, expected);
    assert_eq!(host.stop(), 0);
}

/// Once by way of a retry, as a copy of a copy.
#[test]
fn a_dead_letter_has_the_headers_and_properties_that_pika_sent() {
    for (body, attempts, reason) in [("x65", "1", "bad row"), ("x1", "3", "gave up after 3 attempts")] {
        let world = world(RabbitMq::shared(), WORK);
        let mut host = world.started();
        let sent = say(&world, "plain.py", &["publish", "work", body]);
        host.settled(attempts.parse().unwrap());
        until("it is there", PATIENCE, || (world.depth("work").dead_lettered == 1).then_some(()));
        let dead = say(&world, "plain.py", &["take", "work-dlq"]);
        assert_eq!((&dead["body"], &dead["properties"]), (&json!(body), &sent["properties"]));
        let mut headers: BTreeMap<String, Value> = serde_json::from_value(dead["headers"].clone()).unwrap();
        let mut story = |name: &str| headers.remove(name).unwrap_or_else(|| panic!("no {name}")).to_string();
        assert!(story("hostler-dead-letter-reason").contains(reason), "{dead}");
        assert_eq!([story("hostler-source"), story("hostler-attempts")], [r#""'work'""#, &format!("\"'{attempts}'\"")]);
        assert!(story("hostler-sent-at").contains("1700000000000"), "{dead}");
        // A quorum queue adds its own.
        headers.remove("x-delivery-count");
        assert_eq!(json!(headers), sent["headers"]);
        assert_eq!(host.stop(), 0);
    }
}

#[test]
fn what_hostler_sends_reaches_pika_as_it_was_sent() {
    let world = world(RabbitMq::shared(), WORK);
    let attributes = ["--attr", "tenant=żółć", "--attr", "content-type=text/csv", "--attr", "correlation-id=c-1"];
    let id = send(&world, &[&["work", "--body", "a;b 🦀"], &attributes[..]].concat());
    let taken = say(&world, "plain.py", &["take", "work"]);
    let (headers, properties) = (&taken["headers"], &taken["properties"]);
    assert_eq!((&taken["body"], &headers["tenant"]), (&json!("a;b 🦀"), &json!("'żółć'")));
    let names = headers.as_object().unwrap().keys().filter(|name| *name != "x-delivery-count");
    assert_eq!(names.collect::<Vec<_>>(), ["hostler-sent-at", "tenant"]);
    let text = ["message_id", "content_type", "correlation_id"].map(|name| properties[name].as_str());
    assert_eq!(text, [Some(&*id), Some("text/csv"), Some("c-1")]);
    assert_eq!((&properties["delivery_mode"], &properties["reply_to"]), (&json!(2), &Value::Null));
    assert!(properties["timestamp"].as_u64().is_some(), "{properties}");
}

/// A world whose queue `keep` Celery has declared. Returns what Celery said.
fn of_celery(verb: &str) -> (World, Value) {
    let mut world = world(RabbitMq::shared(), KEEP);
    let sent = say(&world, "shop.py", &[verb, "keep"]);
    world.set("HOSTLER_QUEUE__RABBITMQ__PROVISION", "check".to_owned());
    world.provision();
    (world, sent)
}

#[test]
fn celery_tasks_are_consumed() {
    let (world, sent) = of_celery("send");
    let mut host = world.started();
    let lines = host.settled(2);
    assert!(lines.iter().all(|line| line["outcome"] == "ack"), "{lines:?}");
    let by_task: BTreeMap<String, (Vec<u8>, Value)> = lines
        .iter()
        .map(|line| {
            let id = line["message_id"].as_str().unwrap();
            let attributes = kept_attributes(&world, id);
            (attributes["id"].as_str().unwrap().to_owned(), (kept(&world, id), attributes))
        })
        .collect();
    for (task, arguments) in [(0, json!([[2, 3], {}])), (1, json!([[4], { "y": 5 }]))] {
        let (body, attributes) = &by_task[sent[task].as_str().unwrap()];
        let body: Value = serde_json::from_slice(body).unwrap();
        assert_eq!(json!([body[0], body[1]]), arguments);
        let shown =
            ["task", "content-type", "content-encoding", "lang", "retries", "ignore_result", "timelimit", "group"];
        let shown = shown.map(|name| attributes[name].as_str().unwrap_or_else(|| panic!("no {name}: {attributes}")));
        assert_eq!(shown, ["shop.add", "application/json", "utf-8", "py", "0", "false", "[null,null]", ""]);
        assert_eq!(attributes["correlation-id"], sent[task]);
        // With a countdown, Celery leaves the waiting to the worker.
        assert_eq!(attributes["eta"].as_str().unwrap().is_empty(), task == 0, "{attributes}");
    }
    assert_eq!(host.stop(), 0);
}

/// Celery's delays of quorum queues, by a topic exchange: the message comes by way of dead-letter exchanges.
#[test]
fn a_celery_task_that_the_server_delays_is_consumed_when_it_is_due() {
    let (world, sent) = of_celery("later");
    let mut host = world.started();
    let lines = host.settled(1);
    let id = lines[0]["message_id"].as_str().unwrap();
    let attributes = kept_attributes(&world, id);
    assert_eq!((&attributes["id"], &attributes["task"]), (&sent, &json!("shop.add")));
    assert!(attributes.as_object().unwrap().keys().all(|name| !name.starts_with("x-")), "{attributes}");
    let eta = attributes["eta"].as_str().unwrap().replace("+00:00", "Z");
    let [ended, eta] = [lines[0]["timestamp"].as_str().unwrap(), &eta].map(|at| humantime::parse_rfc3339(at).unwrap());
    assert!(ended >= eta, "{lines:?}: {attributes}");
    assert_eq!(host.stop(), 0);
}

/// A worker of Celery. Dropping this value kills it.
struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_celery_worker_executes_what_hostler_sends() {
    let world = world(RabbitMq::shared(), WORK);
    let body = r#"[[2, 3], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]"#;
    let headers = ["task=shop.add", "id=t-1", "lang=py", "content-type=application/json", "content-encoding=utf-8"];
    let headers: Vec<_> = headers.iter().flat_map(|header| ["--attr", header]).collect();
    send(&world, &[&["work", "--body", body], &headers[..]].concat());
    let log = File::create(world.path("log")).unwrap();
    let mut worker = python(&world, "shop.py", &["work", "work"]);
    let mut worker = Worker(worker.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap());
    let added = || fs::read_to_string(world.path("added")).ok().filter(|added| added.ends_with('\n'));
    let added = until("the task is done", PATIENCE, || {
        let ended = worker.0.try_wait().unwrap();
        assert!(ended.is_none(), "{}", fs::read_to_string(world.path("log")).unwrap());
        added()
    });
    assert_eq!(added, "t-1: 2 + 3 = 5\n");
    // It finishes what it has begun.
    kill_process(Pid::from_child(&worker.0), Signal::TERM).unwrap();
    worker.0.wait().unwrap();
    until("nothing is left", PATIENCE, || (world.depth("work").visible == 0).then_some(()));
}
