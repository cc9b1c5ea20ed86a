//! The claim check: bodies that are too large for a message travel through S3, and the Python extended client agrees.

use std::fs;
use std::time::SystemTime;

use serde_json::{Value, json};

use super::{KEEP, kept, kept_attributes, send, text};
use crate::support::hostler::{PATIENCE, until};
use crate::support::servers::Kind;
use crate::support::sqs::Aws;

/// Attempts without long rests in between.
const RETRY: &str = "retry = { requeues = 1, requeue_delay = '1s', delays = 0 }\n";

const SIZE: usize = 2 * 1024 * 1024;

/// Makes the bucket, and turns the client into the extended one, which puts what is over 256 KiB there.
const EXTENDED: &str = "
import sqs_extended_client

bucket = prefix + 'payloads'
sqs = sqs_extended_client.SQSExtendedClientSession().client('sqs')
sqs.large_payload_support = bucket
sqs.delete_payload_from_s3 = True
try:
    s3.create_bucket(Bucket=bucket, CreateBucketConfiguration={'LocationConstraint': 'eu-west-1'})
except s3.exceptions.BucketAlreadyOwnedByYou:
    pass
";

/// Prints the keys in the bucket.
const KEYS: &str = "print(json.dumps([one['Key'] for one in s3.list_objects_v2(Bucket=bucket).get('Contents', [])]))";

/// Puts an object of the content `argv[2]` and sends a pointer to it, by hand: the class `argv[3]`, the attribute
/// `argv[4]`. Where `argv[2]` is empty, there is no object. The bucket may be another (`argv[5]`), and so may the other
/// attributes, of one letter each (`argv[6]`). Prints the message's id.
const POINT: &str = "
name, content, kind, size = sys.argv[1:5]
target = sys.argv[5] if len(sys.argv) > 5 else prefix + 'payloads'
if content:
    s3.put_object(Bucket=target, Key=name, Body=content.encode())
sent = sqs.send_message(
    QueueUrl=url(prefix + 'keep'),
    MessageBody=json.dumps([kind, {'s3BucketName': target, 's3Key': name}]),
    MessageAttributes={
        size: {'DataType': 'Number', 'StringValue': str(len(content))},
        **{name: {'DataType': 'String', 'StringValue': 'b'} for name in (sys.argv[6] if len(sys.argv) > 6 else 'a')},
    },
)
print(json.dumps(sent['MessageId']))
";

const CLASS: &str = "software.amazon.payloadoffloading.PayloadS3Pointer";
const ATTRIBUTE: &str = "ExtendedPayloadSize";

/// A world whose payloads go to a bucket of its own, which is there.
struct Large(Aws);

impl Large {
    fn new(config: &str) -> Self {
        let world = Aws::new(Kind::LocalStack, "");
        world.config(&format!("payload.bucket = '{}payloads'\n{config}", world.prefix));
        let large = Self(world);
        large.python("");
        large
    }

    fn python(&self, script: &str) -> Value {
        self.python_with(script, &[])
    }

    fn python_with(&self, script: &str, args: &[&str]) -> Value {
        self.0.python(&format!("{EXTENDED}{script}"), args)
    }

    fn point(&self, args: &[&str]) -> String {
        self.0.python(POINT, args).as_str().unwrap().to_owned()
    }
}

#[test]
fn what_the_extended_client_sends_is_handled_and_removed() {
    const SEND_LARGE: &str = "
sent = sqs.send_message(QueueUrl=url(prefix + 'keep'), MessageBody='ż' * (1024 * 1024),
    MessageAttributes={'a': {'DataType': 'String', 'StringValue': 'b'}})
assert len(s3.list_objects_v2(Bucket=bucket)['Contents']) == 1
print(json.dumps(sent['MessageId']))
";
    let world = Large::new(KEEP);
    let mut host = world.0.started();
    let id = world.python(SEND_LARGE);
    let line = host.settled(1).remove(0);
    assert_eq!((&line["message_id"], &line["outcome"]), (&id, &json!("ack")));
    let body = kept(&world.0, id.as_str().unwrap());
    assert!(body == "ż".repeat(SIZE / 2).as_bytes(), "{} bytes", body.len());
    assert_eq!(kept_attributes(&world.0, id.as_str().unwrap()), json!({ "a": "b" }));
    assert_eq!(host.stop(), 0);
    assert_eq!(world.python(KEYS), json!([]));
    assert_eq!(world.0.counts("keep"), [0, 0, 0]);
}

#[test]
fn what_hostler_sends_reaches_the_extended_client() {
    const TAKE_LARGE: &str = "
keep = url(prefix + 'keep')
taken = []
while len(taken) < 2:
    batch = receive(keep, wait=20)
    assert batch, taken
    for one in batch:
        known = one['MessageAttributes']['a']['StringValue']
        taken.append([one['MessageId'], known, one['Body'] == open(sys.argv[1]).read(), len(one['MessageAttributes'])])
        sqs.delete_message(QueueUrl=keep, ReceiptHandle=one['ReceiptHandle'])
print(json.dumps(sorted(taken)))
";
    let world = Large::new(&format!("payload.threshold = '1KiB'\n{KEEP}"));
    let mut expected = Vec::new();
    for (name, size) in [("large", SIZE), ("above", 1_100)] {
        let body: String = (0..size).map(|n| char::from(b'a' + (n % 26) as u8)).collect();
        fs::write(world.0.path("body"), &body).unwrap();
        let id = send(&world.0, &["keep", "--file", "body", "--attr", &format!("a={name}")]);
        expected.push((id, name));
        if size == SIZE {
            fs::write(world.0.path("large"), &body).unwrap();
        }
    }
    assert_eq!(world.python(KEYS).as_array().unwrap().len(), 2);
    let taken = world.python_with(TAKE_LARGE, &[world.0.path("large").to_str().unwrap()]);
    expected.sort();
    let taken: Vec<(String, String, bool, usize)> = serde_json::from_value(taken).unwrap();
    let ids: Vec<_> = taken.iter().map(|(id, name, ..)| (id.clone(), &**name)).collect();
    assert_eq!(ids, expected);
    assert!(taken.iter().all(|(_, name, is_large, _)| *is_large == (name == "large")), "{taken:?}");
    assert_eq!(world.python(KEYS), json!([]), "the extended client found and removed both");

    // Below the threshold nothing goes to the bucket.
    send(&world.0, &["keep", "--body", "small"]);
    assert_eq!(world.python(KEYS), json!([]));
}

#[test]
fn a_binary_body_travels_through_the_bucket_as_it_is() {
    let world = Large::new(KEEP);
    let body: Vec<u8> = (0..SIZE).map(|n| (n * 31 % 251) as u8).collect();
    fs::write(world.0.path("body"), &body).unwrap();
    let id = send(&world.0, &["keep", "--file", "body"]);
    let mut host = world.0.started();
    host.settled(1);
    assert!(kept(&world.0, &id) == body);
    assert_eq!(host.stop(), 0);
    assert_eq!(world.python(KEYS), json!([]));
}

#[test]
fn every_kind_of_pointer_is_read() {
    let world = Large::new(KEEP);
    let host = world.0.started();
    let mut ids = Vec::new();
    for class in [CLASS, "com.amazon.sqs.javamessaging.MessageS3Pointer"] {
        for attribute in [ATTRIBUTE, "SQSLargePayloadSize"] {
            let name = format!("{class}/{attribute}");
            ids.push((world.point(&[&name, &name, class, attribute]), name));
        }
    }
    host.settled(4);
    for (id, name) in ids {
        assert_eq!(String::from_utf8(kept(&world.0, &id)).unwrap(), name);
        assert_eq!(kept_attributes(&world.0, &id), json!({ "a": "b" }));
    }
    until("the bodies are gone", PATIENCE, || (world.python(KEYS) == json!([])).then_some(()));
}

/// Takes the message in the dead-letter queue, and prints the pointer and the attributes that lie there.
const TAKE_DEAD: &str = "
[dead] = receive(url(prefix + 'keep-dlq'), wait=20)
attributes = {name: value['StringValue'] for name, value in dead['MessageAttributes'].items()}
sqs.delete_message(QueueUrl=url(prefix + 'keep-dlq'), ReceiptHandle=dead['ReceiptHandle'])
print(json.dumps([json.loads(dead['Body']), attributes]))
";

#[test]
fn a_body_that_is_gone_fails_its_own_message_only() {
    let world = Large::new(&format!("{KEEP}{RETRY}"));
    // All are there before the first receive.
    let others: Vec<_> = (0..4).map(|n| send(&world.0, &["keep", "--body", &format!("small {n}")])).collect();
    let gone = world.point(&["gone", "", CLASS, ATTRIBUTE]);
    let there = world.point(&["there", "a body", CLASS, ATTRIBUTE]);
    let mut host = world.0.started();
    let lines = host.settled(7);
    let of = |id: &str| lines.iter().filter(|line| line["message_id"] == id).cloned().collect::<Vec<_>>();
    for id in others.iter().chain([&there]) {
        let lines = of(id);
        assert!(lines.len() == 1 && lines[0]["outcome"] == "ack" && lines[0]["attempt"] == 1, "{lines:?}");
    }
    let lines = of(&gone);
    assert_eq!(lines.iter().map(|line| text(line, "disposition")).collect::<Vec<_>>(), ["release", "dead-letter"]);
    let object = format!("s3://{}payloads/gone", world.0.prefix);
    assert!(
        lines.iter().all(|line| line["outcome"] == "failed" && text(line, "reason").contains(&object)),
        "{lines:?}"
    );
    assert_eq!(host.stop(), 0);

    let dead = world.0.python(TAKE_DEAD, &[]);
    let (pointer, attributes) = (&dead[0], &dead[1]);
    assert_eq!(*pointer, json!([CLASS, { "s3BucketName": format!("{}payloads", world.0.prefix), "s3Key": "gone" }]));
    assert!(attributes.get(ATTRIBUTE).is_some() && attributes["a"] == "b", "{attributes}");
    assert!(text(attributes, "hostler-dead-letter-reason").contains(&object), "{attributes}");
}

#[test]
fn a_dead_letter_keeps_its_body_in_the_bucket() {
    let config = "
        [consumers.keep]
        channel = 'keep'
        handler = 'guests/main-exits.wat'
        lease = '3s'
    ";
    let world = Large::new(config);
    let mut host = world.0.started();
    world.point(&["kept", "65", CLASS, ATTRIBUTE]);
    assert_eq!(host.settled(1)[0]["disposition"], "dead-letter");
    assert_eq!(host.stop(), 0);
    assert_eq!(world.python(KEYS), json!(["kept"]));
    let dead = world.0.python(TAKE_DEAD, &[]);
    assert_eq!(dead[0], json!([CLASS, { "s3BucketName": format!("{}payloads", world.0.prefix), "s3Key": "kept" }]));
    assert_eq!((&dead[1][ATTRIBUTE], &dead[1]["hostler-dead-letter-reason"]), (&json!("2"), &json!("exit code 65")));
}

#[test]
fn a_dead_letter_with_a_pointer_stays_within_ten_attributes() {
    let world = Large::new(&KEEP.replace("main-keeps", "main-exits"));
    let _host = world.0.started();
    let bucket = format!("{}payloads", world.0.prefix);
    for names in ["abcdefg", "abcdefghi"] {
        world.point(&[names, "65", CLASS, ATTRIBUTE, &bucket, names]);
        let dead = world.0.python(TAKE_DEAD, &[]);
        let attributes = dead[1].as_object().unwrap();
        assert_eq!(attributes.len(), 10, "{dead}");
        assert!(names.chars().all(|name| attributes.contains_key(&name.to_string())), "{dead}");
        assert_eq!((&dead[0][1]["s3Key"], &dead[1][ATTRIBUTE]), (&json!(names), &json!("2")), "{dead}");
    }
}

/// Sends a message of more than 1 KiB whose body is in it, with attributes of one letter each (`argv[1]`).
const INLINE: &str = "
attributes = {name: {'DataType': 'String', 'StringValue': 'b' * 200} for name in sys.argv[1]}
sqs.send_message(QueueUrl=url(prefix + 'keep'), MessageBody='65', MessageAttributes=attributes)
";

#[test]
fn what_came_inline_is_dead_lettered_inline_whatever_the_threshold() {
    let world = Large::new(&format!("payload.threshold = '1KiB'\n{}", KEEP.replace("main-keeps", "main-exits")));
    let _host = world.0.started();
    for names in ["abcdefg", "abcdefghij"] {
        world.0.python(INLINE, &[names]);
        let dead = world.0.python(TAKE_DEAD, &[]);
        let attributes = dead[1].as_object().unwrap();
        assert_eq!((&dead[0], attributes.len()), (&json!(65), 10), "{dead}");
        assert!(names.chars().all(|name| attributes.contains_key(&name.to_string())), "{dead}");
    }
    assert_eq!(world.python(KEYS), json!([]));
}

/// Whoever could send it would have another's object read, and removed.
#[test]
fn a_pointer_that_its_sender_made_up_is_refused() {
    let world = Large::new(KEEP);
    world.python("s3.put_object(Bucket=bucket, Key='of-another', Body=b'secret')");
    let bucket = format!("{}payloads", world.0.prefix);
    let pointer = json!([CLASS, { "s3BucketName": bucket, "s3Key": "of-another" }]).to_string();
    for attribute in [ATTRIBUTE, "SQSLargePayloadSize"] {
        let said = world.0.output(&["send", "keep", "--body", &pointer, "--attr", &format!("{attribute}=6")]);
        assert!(said.code == 2 && said.stderr.contains(attribute), "{said:?}");
    }
    // Without the attribute it is a body like any other.
    let id = send(&world.0, &["keep", "--body", &pointer]);
    let mut host = world.0.started();
    host.settled(1);
    assert_eq!(kept(&world.0, &id), pointer.as_bytes());
    assert_eq!(host.stop(), 0);
    assert_eq!(world.python(KEYS), json!(["of-another"]));
}

#[test]
fn a_pointer_to_another_bucket_is_refused() {
    let world = Large::new(&format!("{KEEP}{RETRY}"));
    let other = format!("{}other", world.0.prefix);
    let create = "s3.create_bucket(Bucket=sys.argv[1], CreateBucketConfiguration={'LocationConstraint': 'eu-west-1'})";
    world.python_with(create, &[&other]);
    let host = world.0.started();
    world.point(&["secret", "not for us", CLASS, ATTRIBUTE, &other]);
    let lines = host.settled(2);
    let reason = text(&lines[1], "reason");
    assert_eq!(lines[1]["disposition"], "dead-letter");
    assert!(reason.contains(&format!("s3://{other}/secret")) && reason.contains("payload.bucket"), "{reason}");
    assert!(!world.0.path("kept").join(text(&lines[1], "message_id")).exists(), "the handler has not run");
    let keys =
        world.python_with("bucket = sys.argv[1]\nprint(len(s3.list_objects_v2(Bucket=bucket)['Contents']))", &[&other]);
    assert_eq!(keys, json!(1));
}

#[test]
fn queues_of_an_exchange_share_a_body() {
    let consumer =
        |name: &str| KEEP.replace(".keep]", &format!(".{name}]")).replace("'keep'", &format!("'uploads.{name}'"));
    let world = Large::new(&format!("{}{}", consumer("first"), consumer("second").replace("'kept'", "'kept-too'")));
    let mut host = world.0.started();
    fs::write(world.0.path("body"), vec![b'x'; SIZE]).unwrap();
    send(&world.0, &["uploads.first", "--file", "body"]);
    let lines = host.settled(2);
    assert!(lines.iter().all(|line| line["outcome"] == "ack"), "{lines:?}");
    assert_eq!(host.stop(), 0);
    for (consumer, folder) in [("first", "kept"), ("second", "kept-too")] {
        let line = lines.iter().find(|line| line["consumer"] == consumer).unwrap();
        let body = fs::read(world.0.path(folder).join(text(line, "message_id"))).unwrap();
        assert_eq!(body.len(), SIZE);
    }
    assert_eq!(world.python(KEYS).as_array().unwrap().len(), 1, "nobody can tell who is the last");
}

/// Time at which each object in the bucket was stored, in seconds.
const STORED: &str = "
objects = s3.list_objects_v2(Bucket=bucket).get('Contents', [])
print(json.dumps({one['Key']: int(one['LastModified'].timestamp()) for one in objects}))";

/// `hostler clean` goes by the age of a body, which has to begin anew where that of its message does.
#[test]
fn a_body_is_as_young_as_its_message() {
    let config = format!("payload.threshold = '1KiB'\n{}", KEEP.replace("main-keeps", "main-exits"));
    let world = Large::new(&config);
    send(&world.0, &["keep", "--body", "65", "--attr", &format!("a={}", "x".repeat(2048))]);
    // S3 tells seconds: each step has to come in a later one.
    let stored = || {
        let stored = world.python(STORED).as_object().unwrap().clone();
        let (key, at) = stored.iter().next().unwrap();
        assert_eq!(stored.len(), 1, "{stored:?}");
        let at = at.as_u64().unwrap();
        let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        until("another second", PATIENCE, || (now() > at).then_some(()));
        (key.clone(), at)
    };
    let (key, sent) = stored();
    let mut host = world.0.started();
    assert_eq!(host.settled(1)[0]["disposition"], "dead-letter");
    assert_eq!(host.stop(), 0);
    let (same, dead) = stored();
    assert!(same == key && dead > sent, "dead-lettered: {sent} and {dead}");
    let said = world.0.output(&["requeue", "--from", "keep-dlq"]);
    assert!(said.code == 0 && said.stdout.starts_with("1 message moved"), "{said:?}");
    let (same, again) = stored();
    assert!(same == key && again > dead, "requeued: {dead} and {again}");
}

/// Other queues may have the same message, and want the body as well.
#[test]
fn a_body_that_a_topic_may_have_shared_stays() {
    let world = Large::new(&KEEP.replace("main-keeps", "main-exits"));
    let mut host = world.0.started();
    assert_eq!(host.stop(), 0);
    let admit = "
queue = url(prefix + 'keep')
policy = {'Version': '2012-10-17', 'Statement': [{'Effect': 'Allow', 'Principal': {'Service': 'sns.amazonaws.com'},
    'Action': 'sqs:SendMessage', 'Resource': arn(queue)}]}
sqs.set_queue_attributes(QueueUrl=queue, Attributes={'Policy': json.dumps(policy)})
";
    world.0.python(admit, &[]);
    world.point(&["of-a-topic", "0", CLASS, ATTRIBUTE]);
    let id = send(&world.0, &["keep", "--body", "0", "--attr", &format!("a={}", "x".repeat(200))]);
    let mut host = world.0.started();
    let lines = host.settled(2);
    assert!(lines.iter().all(|line| line["outcome"] == "ack") && lines.iter().any(|line| line["message_id"] == id));
    assert_eq!(host.stop(), 0);
    assert_eq!(world.python(KEYS), json!(["of-a-topic"]));
}
