//! Interoperation: messages of other clients reach the handler unchanged, and messages of hostler reach other clients.

use std::collections::BTreeMap;
use std::fs;

use serde_json::{Value, json};

use super::{KEEP, WORK, kept, kept_attributes, send, text};
use crate::support::hostler::{PATIENCE, SECOND, until};
use crate::support::servers::{Kind, installed};
use crate::support::sqs::Aws;

macro_rules! on_each_server {
    ($($test:ident),* $(,)?) => {
        mod localstack { $(#[test] fn $test() { super::$test(crate::support::servers::Kind::LocalStack); })* }
        mod ministack { $(#[test] fn $test() { super::$test(crate::support::servers::Kind::Ministack); })* }
    };
}

on_each_server!(
    a_body_reaches_the_handler_as_it_was_sent,
    attributes_reach_the_handler_as_they_were_sent,
    the_aws_cli_and_hostler_understand_each_other,
    what_hostler_sends_arrives_as_it_was_sent,
    what_sqs_cannot_carry_arrives_in_base64,
    a_reply_goes_to_its_queue_with_the_id_of_what_it_answers,
    a_dead_letter_is_a_copy_with_its_story,
    a_dead_letter_stays_within_ten_attributes,
    a_reason_that_sqs_cannot_carry_is_told_as_far_as_it_can,
    a_dead_letter_keeps_its_group,
    a_dead_letter_as_large_as_can_be_goes_without_its_story,
);

/// Sends one message to the queue `argv[1]`, and prints its id. The attributes are given as JSON: name → [type, value],
/// a binary value as hexadecimal digits. A FIFO queue needs a group in `argv[4]`.
const SEND: &str = "
def typed(kind, value):
    binary = kind.startswith('Binary')
    return {'DataType': kind, 'BinaryValue' if binary else 'StringValue': bytes.fromhex(value) if binary else value}

attributes = {name: typed(*pair) for name, pair in json.loads(sys.argv[3]).items()}
group = {'MessageGroupId': sys.argv[4], 'MessageDeduplicationId': sys.argv[2].replace(' ', '-')} if len(sys.argv) > 4 else {}
queue = url(prefix + sys.argv[1])
sent = sqs.send_message(QueueUrl=queue, MessageBody=sys.argv[2], MessageAttributes=attributes, **group)
print(json.dumps(sent['MessageId']))
";

/// Takes `argv[2]` messages from the queue `argv[1]`, and prints them by id: body, attributes as `SEND` takes them, group.
const TAKE: &str = "
def untyped(value):
    return [value['DataType'], value['BinaryValue'].hex() if 'BinaryValue' in value else value['StringValue']]

taken = {}
while len(taken) < int(sys.argv[2]):
    batch = receive(url(prefix + sys.argv[1]), wait=20)
    assert batch, f'only {len(taken)} came'
    for one in batch:
        attributes = {name: untyped(value) for name, value in one.get('MessageAttributes', {}).items()}
        group = one['Attributes'].get('MessageGroupId')
        taken[one['MessageId']] = {'body': one['Body'], 'attributes': attributes, 'group': group}
        sqs.delete_message(QueueUrl=url(prefix + sys.argv[1]), ReceiptHandle=one['ReceiptHandle'])
print(json.dumps(taken))
";

fn take(world: &Aws, queue: &str, count: usize) -> BTreeMap<String, Value> {
    serde_json::from_value(world.python(TAKE, &[queue, &count.to_string()])).unwrap()
}

fn a_body_reaches_the_handler_as_it_was_sent(kind: Kind) {
    // Keeps what it sends in the folder `argv[1]`, by id.
    const SEND_BODIES: &str = r#"
bodies = ["x", "0", " ", "\n", " \t\r\n ", "\ufeff", "\u017c\u00f3\u0142\u0107 \U0001f980 \x7f\u0080\ufffd", "null",
    "<a>&amp;]]>", "%00+%20", r'{"json": [1, "\u0000"]}', "\u20ac" * (256 * 1024 // 3), "m" * 1024 * 1024]
for body in bodies:
    sent = sqs.send_message(QueueUrl=url(prefix + "keep"), MessageBody=body)
    open(sys.argv[1] + "/" + sent["MessageId"], "wb").write(body.encode())
print(len(bodies))
"#;
    let world = Aws::new(kind, KEEP);
    let (host, folder) = (world.started(), world.path("sent"));
    fs::create_dir_all(&folder).unwrap();
    let count = world.python(SEND_BODIES, &[folder.to_str().unwrap()]).as_u64().unwrap();
    let lines = host.settled(count as usize);
    assert!(lines.iter().all(|line| line["outcome"] == "ack"), "{lines:?}");
    for sent in fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()) {
        let (id, body) = (sent.file_name().unwrap().to_str().unwrap(), fs::read(&sent).unwrap());
        let start = String::from_utf8_lossy(&body[..body.len().min(20)]).into_owned();
        assert!(kept(&world, id) == body, "the body that begins with {start:?}");
    }
}

fn attributes_reach_the_handler_as_they_were_sent(kind: Kind) {
    let world = Aws::new(kind, KEEP);
    let host = world.started();
    let sent = json!({
        "text": ["String", "żółć 🦀"], "blank": ["String", " "], "json": ["String", "{\"a\": 1}"],
        "labelled": ["String.x", "v"], "count": ["Number", "42"], "float": ["Number", "-1.5"],
        "label.led": ["Number.int", "7"], "bytes": ["Binary", "00ff0a"], "png": ["Binary.png", "89504e47"],
        "Content-Type": ["String", "text/plain"],
    });
    let id = world.python(SEND, &["keep", "ten attributes", &sent.to_string()]);
    host.settled(1);
    let expected = json!({
        "text": "żółć 🦀", "blank": " ", "json": "{\"a\": 1}", "labelled": "v", "count": "42", "float": "-1.5",
        "label.led": "7", "bytes": { "base64": "AP8K" }, "png": { "base64": "iVBORw==" }, "Content-Type": "text/plain",
    });
    assert_eq!(kept_attributes(&world, id.as_str().unwrap()), expected);
}

fn the_aws_cli_and_hostler_understand_each_other(kind: Kind) {
    let world = Aws::new(kind, KEEP);
    let host = world.started();
    let aws = |args: &[&str]| -> Value {
        let program = installed("clients").join("bin/aws");
        let endpoint = world.server.endpoint();
        let args = [&["--endpoint-url", &endpoint, "--output", "json", "sqs"], args].concat();
        let output = world.program(program.to_str().unwrap(), &args).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let queue = |name: &str| {
        let answer = aws(&["get-queue-url", "--queue-name", &format!("{}{name}", world.prefix)]);
        text(&answer, "QueueUrl").to_owned()
    };
    let attributes = r#"{"tenant": {"DataType": "String.id", "StringValue": "acme"}}"#;
    let body = ["--message-body", "from the CLI 🦀", "--message-attributes", attributes];
    let sent = aws(&[&["send-message", "--queue-url", &queue("keep")], &body[..]].concat());
    host.settled(1);
    assert_eq!(kept(&world, text(&sent, "MessageId")), "from the CLI 🦀".as_bytes());
    assert_eq!(kept_attributes(&world, text(&sent, "MessageId")), json!({ "tenant": "acme" }));

    let id = send(&world, &["inbox", "--body", "to the CLI 🦀", "--attr", "tenant=acme"]);
    let wanted = ["--message-attribute-names", "All", "--wait-time-seconds", "20"];
    let received = aws(&[&["receive-message", "--queue-url", &queue("inbox")], &wanted[..]].concat());
    let received = &received["Messages"][0];
    assert_eq!((text(received, "MessageId"), text(received, "Body")), (&*id, "to the CLI 🦀"));
    assert_eq!(received["MessageAttributes"]["tenant"], json!({ "DataType": "String", "StringValue": "acme" }));
}

fn what_hostler_sends_arrives_as_it_was_sent(kind: Kind) {
    let world = Aws::new(kind, WORK);
    let long = "ż".repeat(300_000);
    fs::write(world.path("long"), &long).unwrap();
    let attributes = ["--attr", "tenant=acme", "--attr", "crab=🦀"];
    let cases = [
        (vec!["--body", "plain"], "plain", json!({}), Value::Null),
        (vec!["--body", " \t\n żółć 🦀 "], " \t\n żółć 🦀 ", json!({}), Value::Null),
        (vec!["--file", "long"], &*long, json!({}), Value::Null),
        (
            [&["--body", "attributes"], &attributes[..]].concat(),
            "attributes",
            json!({ "tenant": ["String", "acme"], "crab": ["String", "🦀"] }),
            Value::Null,
        ),
        (vec!["--body", "fair", "--group", "tenant"], "fair", json!({}), json!("tenant")),
    ];
    let ids: Vec<String> = cases.iter().map(|(args, ..)| send(&world, &[&["work"], &args[..]].concat())).collect();
    let mut taken = take(&world, "work", cases.len());
    for (id, (args, body, attributes, group)) in ids.iter().zip(&cases) {
        let one = taken.remove(id).unwrap_or_else(|| panic!("{args:?} did not arrive"));
        assert!(one["body"] == *body, "{args:?}");
        assert_eq!((&one["attributes"], &one["group"]), (attributes, group), "{args:?}");
    }

    send(&world, &["work", "--body", "later", "--delay", "3s"]);
    let [visible, delayed, in_flight] = world.counts("work");
    assert_eq!((visible + delayed, in_flight, delayed), (1, 0, 1), "it is delayed");
    until("it is visible", PATIENCE, || (world.counts("work")[0] == 1).then_some(()));
    assert_eq!(take(&world, "work", 1).into_values().next().unwrap()["body"], "later");
}

fn what_sqs_cannot_carry_arrives_in_base64(kind: Kind) {
    let world = Aws::new(kind, KEEP);
    let bodies: [&[u8]; 4] = [b"", &[0xff, 0, 0x41], b"\x01control", &[0; 200_000]];
    for (body, sent) in bodies.iter().zip([Some("-"), Some("/wBB"), Some("AWNvbnRyb2w="), None]) {
        fs::write(world.path("body"), body).unwrap();
        let id = send(&world, &["keep", "--file", "body", "--attr", "a=b"]);
        let one = take(&world, "keep", 1).remove(&id).unwrap();
        let encoding = if body.is_empty() { "empty" } else { "base64" };
        let expected = json!({ "a": ["String", "b"], "hostler-body-encoding": ["String", encoding] });
        assert_eq!(one["attributes"], expected);
        assert!(sent.is_none_or(|sent| one["body"] == sent), "{one}");
    }
    // And hostler reads what it wrote.
    let ids = bodies.map(|body| {
        fs::write(world.path("body"), body).unwrap();
        send(&world, &["keep", "--file", "body", "--attr", "a=b"])
    });
    let host = world.started();
    host.settled(bodies.len());
    for (id, body) in ids.iter().zip(bodies) {
        assert!(kept(&world, id) == body, "{} bytes", body.len());
        assert_eq!(kept_attributes(&world, id), json!({ "a": "b" }));
    }
}

fn a_reply_goes_to_its_queue_with_the_id_of_what_it_answers(kind: Kind) {
    let config = "
        [consumers.echo]
        channel = 'echo'
        handler = 'guests/main-echoes.wat'
        reply = 'stdout'
        reply_channel = 'answers'
        limits.output = '1MiB'
    ";
    let world = Aws::new(kind, config);
    let host = world.started();
    let bodies = ["żółć 🦀", " ", &"x".repeat(100_000)];
    let ids = bodies.map(|body| world.python(SEND, &["echo", body, "{}"]).as_str().unwrap().to_owned());
    let lines = host.settled(bodies.len());
    assert!(lines.iter().all(|line| line["outcome"] == "reply"), "{lines:?}");
    let answers = take(&world, "answers", bodies.len());
    let by_question: BTreeMap<_, _> =
        answers.values().map(|answer| (answer["attributes"]["correlation-id"][1].as_str().unwrap(), answer)).collect();
    for (id, body) in ids.iter().zip(bodies) {
        assert!(by_question[&**id]["body"] == body, "the answer to {id}");
    }
}

fn a_dead_letter_is_a_copy_with_its_story(kind: Kind) {
    let world = Aws::new(kind, WORK);
    let host = world.started();
    let labelled = |count: usize| -> BTreeMap<String, Value> {
        let kinds = [json!(["Number", "1.5"]), json!(["String.x", "v"]), json!(["Binary.png", "89504e47"])];
        (0..count).map(|n| (format!("a{n}"), kinds[n % kinds.len()].clone())).collect()
    };
    let counts = [0, 3, 8, 10];
    for count in counts {
        world.python(SEND, &["work", &format!("x65 with {count}"), &json!(labelled(count)).to_string()]);
    }
    let mut dead: BTreeMap<_, _> =
        take(&world, "work-dlq", counts.len()).into_values().map(|one| (text(&one, "body").to_owned(), one)).collect();
    for count in counts {
        let one = dead.remove(&format!("x65 with {count}")).unwrap();
        let mut found: BTreeMap<String, Value> = serde_json::from_value(one["attributes"].clone()).unwrap();
        let story = [("hostler-dead-letter-reason", "bad row"), ("hostler-source", "work"), ("hostler-attempts", "1")];
        for (name, value) in story.into_iter().take(10 - count) {
            assert_eq!(found.remove(name), Some(json!(["String", value])), "{name} beside {count}");
        }
        assert_eq!(found, labelled(count));
    }
    until("nothing is left", 20 * SECOND, || (world.counts("work") == [0, 0, 0]).then_some(()));
    assert_eq!(host.settled(4).len(), 4);
}

fn a_dead_letter_keeps_its_group(kind: Kind) {
    let world = Aws::new(kind, &format!("{WORK}ordered = true"));
    let _host = world.started();
    for (body, group) in [("x65 first", "g1"), ("x65 second", "g1"), ("x65 other", "g2")] {
        world.python(SEND, &["work.fifo", body, r#"{"a": ["Number", "1"]}"#, group]);
    }
    for one in take(&world, "work-dlq.fifo", 3).into_values() {
        let group = if one["body"] == "x65 other" { "g2" } else { "g1" };
        assert_eq!((&one["group"], &one["attributes"]["a"]), (&json!(group), &json!(["Number", "1"])), "{one}");
        assert_eq!(one["attributes"]["hostler-source"][1], "work");
    }
}

fn a_dead_letter_as_large_as_can_be_goes_without_its_story(kind: Kind) {
    const SEND_LARGEST: &str = "
body = 'x65 ' + 'm' * (1024 * 1024 - 4)
print(json.dumps(sqs.send_message(QueueUrl=url(prefix + 'work'), MessageBody=body)['MessageId']))
";
    let world = Aws::new(kind, WORK);
    let host = world.started();
    world.python(SEND_LARGEST, &[]);
    assert_eq!(host.settled(1)[0]["disposition"], "dead-letter");
    let dead = take(&world, "work-dlq", 1).into_values().next().unwrap();
    assert_eq!((dead["body"].as_str().unwrap().len(), &dead["attributes"]), (1024 * 1024, &json!({})));
}

fn a_dead_letter_stays_within_ten_attributes(kind: Kind) {
    let world = Aws::new(kind, WORK);
    let host = world.started();
    // On the wire, each has one more than these: its routing key, or how its body is encoded.
    let attributes = |count: usize| -> BTreeMap<String, Value> {
        (0..count).map(|n| (format!("a{n}"), json!(["String", "x"]))).collect()
    };
    fs::write(world.path("body"), b"x65 \x01").unwrap();
    for count in [7, 9] {
        let mut routed = attributes(count);
        routed.insert("routing-key".to_owned(), json!(["String", "EU.order"]));
        world.python(SEND, &["work", &format!("x65 routed {count}"), &json!(routed).to_string()]);
        let given: Vec<_> = (0..count).flat_map(|n| ["--attr".to_owned(), format!("a{n}=x")]).collect();
        let given: Vec<_> = given.iter().map(String::as_str).collect();
        send(&world, &[&["work", "--file", "body"], &given[..]].concat());
    }
    let lines = host.settled(4);
    assert!(lines.iter().all(|line| line["disposition"] == "dead-letter"), "{lines:?}");
    for one in take(&world, "work-dlq", 4).into_values() {
        let mut found: BTreeMap<String, Value> = serde_json::from_value(one["attributes"].clone()).unwrap();
        assert_eq!(found.len(), 10, "{one}");
        found.retain(|name, _| !name.starts_with("hostler-"));
        let key = found.remove("routing-key");
        assert_eq!(key.is_some(), text(&one, "body").contains("routed"), "{one}");
        assert!(found == attributes(7) || found == attributes(9), "{one}");
    }
}

fn a_reason_that_sqs_cannot_carry_is_told_as_far_as_it_can(kind: Kind) {
    let world = Aws::new(kind, &WORK.replace("run-word", "main-complains"));
    fs::write(world.path("body"), b"\x1b[31mno such \x00 row\x1b[0m").unwrap();
    send(&world, &["work", "--file", "body"]);
    send(&world, &["work", "--body", "plain"]);
    let _host = world.started();
    let dead = take(&world, "work-dlq", 2);
    let reasons: Vec<_> =
        dead.values().map(|one| one["attributes"]["hostler-dead-letter-reason"][1].as_str().unwrap()).collect();
    assert!(reasons.contains(&"plain"), "{reasons:?}");
    assert!(reasons.iter().any(|reason| reason.contains("no such ") && reason.contains(" row")), "{reasons:?}");
}

/// LocalStack forwards the group of a standard topic as SNS does.
#[test]
fn a_group_passes_an_exchange_that_is_not_fifo() {
    let consumer = "[consumers.fair]\nchannel = 'news.fair'\nhandler = 'guests/main-echoes.wat'";
    let world = Aws::new(Kind::LocalStack, consumer);
    assert_eq!(world.output(&["provision"]).code, 0);
    send(&world, &["news", "--body", "x", "--group", "tenant"]);
    send(&world, &["news", "--body", "y"]);
    let taken = take(&world, "fair", 2);
    let groups: BTreeMap<_, _> = taken.values().map(|one| (one["body"].as_str().unwrap(), &one["group"])).collect();
    assert_eq!(groups, BTreeMap::from([("x", &json!("tenant")), ("y", &Value::Null)]));
}
