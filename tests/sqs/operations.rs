//! Operators' needs: messages that are moved back with all their attributes, credentials from the task's role, logs without
//! secrets.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;

use serde_json::{Value, json};

use super::WORK;
use crate::support::guests::component;
use crate::support::hostler::{Host, PATIENCE, World};
use crate::support::scripted::{Answer, Scripted};
use crate::support::servers::Kind;
use crate::support::sqs::Aws;

/// Puts messages into the dead-letter queue of `work`: one with every kind of attribute, one whose body is elsewhere.
const BURY: &str = "
dead = url(prefix + sys.argv[1])
ordered = {'MessageGroupId': 'g'} if dead.endswith('.fifo') else {}
text = lambda kind, value: {'DataType': kind, 'StringValue': value}
attributes = {
    'text': text('String', 'żółć'), 'number': text('Number', '1.5'), 'label': text('String.label', 'x'),
    'bytes': {'DataType': 'Binary.png', 'BinaryValue': bytes(range(256))},
    'hostler-dead-letter-reason': text('String', 'no customer'),
}
pointer = json.dumps(['software.amazon.payloadoffloading.PayloadS3Pointer', {'s3BucketName': 'b', 's3Key': 'k'}])
sqs.send_message(QueueUrl=dead, MessageBody='plain', MessageAttributes=attributes, **ordered)
sqs.send_message(QueueUrl=dead, MessageBody=pointer, MessageAttributes={'ExtendedPayloadSize': text('Number', '7')}, **ordered)
";

/// All that the queue holds: bodies, attributes, groups.
const UNEARTH: &str = "
found = []
while len(found) < 2:
    batch = receive(url(prefix + sys.argv[1]), wait=20)
    assert batch, found
    for one in batch:
        named = one['MessageAttributes']
        typed = {name: [v['DataType'], v.get('StringValue') or list(v['BinaryValue'])] for name, v in named.items()}
        found.append([one['Body'], typed, one['Attributes'].get('MessageGroupId')])
        sqs.delete_message(QueueUrl=url(prefix + sys.argv[1]), ReceiptHandle=one['ReceiptHandle'])
print(json.dumps(sorted(found, key=lambda one: one[0] == 'plain')))
";

fn requeue(world: &Aws, args: &[&str]) -> Value {
    let said = world.output(&[&["requeue", "--from", "work-dlq", "--json"], args].concat());
    assert_eq!(said.code, 0, "{said:?}");
    serde_json::from_str(&said.stdout).unwrap()
}

fn everything_is_preserved(keys: &str, suffix: &str) {
    let world = Aws::new(Kind::LocalStack, &format!("{WORK}{keys}"));
    assert_eq!(world.output(&["provision"]).code, 0);
    world.python(BURY, &[&format!("work-dlq{suffix}")]);
    assert_eq!(requeue(&world, &[])["moved"], 2);
    let found = world.python(UNEARTH, &[&format!("work{suffix}")]);
    let [pointer, plain] = [&found[0], &found[1]];
    assert!(pointer[0].as_str().unwrap().contains(r#""s3Key":"k""#), "{pointer}");
    assert_eq!(pointer[1]["ExtendedPayloadSize"], json!(["Number", "7"]));
    let attributes = &plain[1];
    for (name, typed) in [
        ("text", json!(["String", "żółć"])),
        ("number", json!(["Number", "1.5"])),
        ("label", json!(["String.label", "x"])),
        ("bytes", json!(["Binary.png", (0..=255).collect::<Vec<u8>>()])),
        ("hostler-dead-letter-reason", json!(["String", "no customer"])),
    ] {
        assert_eq!(attributes[name], typed, "{name}");
    }
    assert!(attributes["hostler-original-id"][1].as_str().is_some_and(|id| id.len() == 36), "{attributes}");
    assert_eq!(plain[2], if suffix.is_empty() { Value::Null } else { json!("g") });
    assert_eq!(world.counts(&format!("work-dlq{suffix}")), [0, 0, 0]);
}

#[test]
fn a_requeued_message_keeps_all_that_it_carried() {
    everything_is_preserved("", "");
}

#[test]
fn a_requeued_message_of_an_ordered_queue_keeps_its_group() {
    everything_is_preserved("ordered = true", ".fifo");
}

#[test]
fn only_what_the_filter_picks_is_moved() {
    let world = Aws::new(Kind::Ministack, WORK);
    assert_eq!(world.output(&["provision"]).code, 0);
    world.python(BURY, &["work-dlq"]);
    let counts = requeue(&world, &["--filter", "reason~customer"]);
    assert_eq!((&counts["moved"], &counts["left"]), (&json!(1), &json!(1)), "{counts}");
    assert_eq!((world.counts("work"), world.counts("work-dlq")), ([1, 0, 0], [1, 0, 0]));
}

/// LocalStack is the one server here that has move tasks.
#[test]
fn sqs_moves_them_by_itself() {
    let world = Aws::new(Kind::LocalStack, WORK);
    assert_eq!(world.output(&["provision"]).code, 0);
    world.python(BURY, &["work-dlq"]);
    assert_eq!(requeue(&world, &["--native"])["moved"], 2);
    assert_eq!((world.counts("work"), world.counts("work-dlq")), ([2, 0, 0], [0, 0, 0]));
}

#[test]
fn a_handler_sends_to_what_it_is_granted() {
    let handler = component("sends");
    let consumer = format!("[consumers.work]\nchannel = 'work'\nhandler = {handler:?}\nallow.send = ['granted']");
    let world = Aws::new(Kind::Ministack, &consumer);
    let mut host = world.started();
    world.send("work", ["granted", "denied"]);
    host.wait_for(PATIENCE, |line| line["outcome"] == "ack");
    host.wait_for(PATIENCE, |line| line["outcome"] == "failed" && line["reason"].to_string().contains("allow.send"));
    host.stop();
    assert_eq!(world.counts("granted"), [1, 0, 0]);
}

#[test]
fn topics_that_are_sent_to_are_no_queues_that_are_missing() {
    let world = Aws::new(Kind::Ministack, &format!("{WORK}allow.send = ['notes', 'news.any', 'gone']"));
    world.provision();
    world.python("for name in ['notes', 'news']: sns.create_topic(Name=prefix + name)", &[]);
    // What `provision` has made of them before.
    world.python("for name in ['notes', 'gone']: sqs.delete_queue(QueueUrl=url(prefix + name))", &[]);
    let rows = world.queues();
    let rows: Vec<_> = rows.as_array().unwrap().iter().map(|row| (&row["channel"], row["missing"] == true)).collect();
    assert_eq!(rows, [(&json!("work"), false), (&json!("gone"), true)]);
    let said = world.output(&["queues", "nope.work"]);
    let told = "there is no exchange `nope` that feeds the queue `work`";
    assert!(said.code == 69 && said.stderr.contains(told), "{said:?}");
    assert_eq!(world.output(&["queues", "work"]).code, 0);
}

/// The credentials endpoint of an ECS task, which hands out these; its URL.
fn task_role(key: &'static str) -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("http://{}/role", listener.local_addr().unwrap());
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.read(&mut [0; 4096]);
            let body = json!({
                "AccessKeyId": key, "SecretAccessKey": "secret-not-for-the-log", "Token": "token-not-for-the-log",
                "Expiration": "2099-01-01T00:00:00Z",
            })
            .to_string();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            let _ = stream.write_all(format!("{head}{body}").as_bytes());
        }
    });
    url
}

#[test]
fn calls_are_signed_by_the_task_role() {
    let server = Scripted::start(|_, _| Answer::Ok(json!({ "QueueUrls": [] })));
    let head = format!(
        "host.health_file = 'health.json'
        queue.driver = 'sqs'
        queue.sqs = {{ region = 'eu-west-1', endpoint_url = '{}' }}",
        server.endpoint()
    );
    let env = vec![
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", task_role("KEYOFTHEROLE")),
        ("AWS_EC2_METADATA_DISABLED", "true".to_owned()),
    ];
    let world = World::with(&head, env, WORK);
    let said = world.output(&["queues"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!(server.keys(), ["KEYOFTHEROLE"]);
}

#[test]
fn neither_a_body_nor_a_credential_is_logged() {
    let world = Aws::new(Kind::Ministack, WORK);
    let mut command = world.command(&["run"]);
    command.env("RUST_LOG", "trace").env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY");
    command.env("AWS_CONTAINER_CREDENTIALS_FULL_URI", task_role("key-not-for-the-log"));
    let mut host = Host::start(command);
    world.send("work", ["ack body-not-for-the-log", "x65 body-not-for-the-log"]);
    host.settled(2);
    assert_eq!(host.stop(), 0);
    let lines = host.lines();
    assert!(lines.iter().any(|line| line["level"] == "TRACE"), "it logs in detail");
    let leaked: Vec<_> = lines.iter().filter(|line| line.to_string().contains("not-for-the-log")).collect();
    assert!(leaked.is_empty(), "{leaked:?}");
}
