//! `hostler clean`: what it finds among thousands of queues, what it removes of them, and above all what it does not.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use hostler_queue::{Body, Disposal, Removal};
use hostler_queue_sqs::{Options, SqsBroker};
use serde_json::{Value, json};

use crate::support::hostler::{Said, World};
use crate::support::servers::{Kind, Server};
use crate::support::upkeep::{Estate, HANDLER, SECRET, json, keeps_the_secret, names};
use crate::support::web::{Reply, Web};

fn consumer() -> String {
    format!(
        "[consumers.orders]\nchannel = 'uploads.orders'\n{HANDLER}\nreply_channel = 'done'\nallow.send = ['sent.any']"
    )
}

/// The usual servers.
fn on_moto() -> Estate<'static> {
    Estate::beside(Server::shared(Kind::Moto), &Server::shared(Kind::Ministack).endpoint(), &consumer())
}

/// Queues of every class, the oldest and the newest at either end of what is listed.
const EVERYTHING: &str = "
queue('a-old', days=40)
queue('a-busy', days=40); used('a-busy', 'NumberOfMessagesSent', 5); used('a-busy', 'NumberOfMessagesReceived', 5)
queue('full', days=40, messages=2)
queue('unsent', days=40); used('unsent', 'NumberOfMessagesReceived', 3)
queue('polled', days=40); used('polled', 'NumberOfEmptyReceives', 3)
queue('unheard', days=40, messages=3); used('unheard', 'NumberOfMessagesSent', 3)
queue('long-ago', days=90); used('long-ago', 'NumberOfMessagesSent', 3, hours=900)
queue('orders', days=40); queue('orders-dlq', days=40); queue('done', days=40)
queue('a-busy-dlq', days=40); queue('gone-dlq', days=40); queue('a-old-dlq', days=40)
news = sns.create_topic(Name=prefix + 'others-news')['TopicArn']
sns.subscribe(TopicArn=news, Protocol='sqs', Endpoint=arn(queue('listening', days=40))); queue('listening-dlq', days=40)
queue('forgotten', days=90); queue('forgotten-dlq', days=90, messages=1)
queue('others', days=90, tags={'team': 'x'})
queue('young')
many(200)
many(1850, 'strange', tags={'team': 'x'})
queue('z-old', days=40)
for name in ('uploads', 'quiet', 'loud'):
    sns.create_topic(Name=prefix + name, Tags=[{'Key': 'hostler:managed', 'Value': 'true'}])
sns.create_topic(Name=prefix + 'strange')
used('loud', 'NumberOfMessagesPublished', 2, namespace='AWS/SNS', dimension='TopicName')
used('quiet', 'NumberOfMessagesPublished', 2, hours=30, namespace='AWS/SNS', dimension='TopicName')
";

fn of_class(report: &Value, class: &str, prefix: &str) -> BTreeSet<String> {
    let rows = report["queues"].as_array().unwrap().iter().filter(|row| row["class"] == class);
    names(&Value::Array(rows.cloned().collect()), "queue", prefix).into_iter().collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// The resources that are removed, and no others.
const GOES: [&str; 6] = ["a-old", "a-old-dlq", "forgotten", "gone-dlq", "long-ago", "z-old"];

#[test]
fn what_is_unused_is_found_among_thousands_and_removed_only_when_asked() {
    let (server, metrics) = (Server::start(Kind::Moto), Server::shared(Kind::Ministack).endpoint());
    let estate = Estate::beside(&server, &metrics, &consumer());
    estate.python(EVERYTHING);
    let said = estate.world.output(&["clean", "--json"]);
    assert_eq!(said.code, 0, "{said:?}");
    let report = json(&said);
    let classes = |class: &str| of_class(&report, class, &estate.prefix);
    let mut deletable = set(&GOES);
    deletable.extend(set(&["done", "orders"]));
    assert_eq!(classes("deletable"), deletable);
    assert_eq!(classes("inactive-with-messages"), set(&["forgotten-dlq", "full"]));
    assert_eq!(classes("no-producers"), set(&["polled", "unsent"]));
    assert_eq!(classes("no-consumers"), set(&["unheard"]));
    assert_eq!(classes("in-use"), set(&["a-busy", "a-busy-dlq", "listening-dlq", "orders-dlq"]));
    assert_eq!(classes("subscribed"), set(&["listening"]), "a topic of others delivers to it");
    assert_eq!(classes("young").len(), 201);
    assert_eq!(report["queues"].as_array().unwrap().len(), 200 + 19);
    let topic = |name: &str, inactive, published: Value, named| json!({"topic": format!("{}{name}", estate.prefix), "inactive": inactive, "published": published, "named_by_config": named});
    let topics = [
        topic("uploads", true, Value::Null, true),
        topic("quiet", true, Value::Null, false),
        topic("loud", false, json!(2), false),
    ];
    let found = report["topics"].as_array().unwrap();
    assert!(found.len() == 3 && topics.iter().all(|topic| found.contains(topic)), "{found:?}");

    let before = estate.queues();
    assert_eq!(before.len(), 2050 + 20, "without --apply nothing is removed");

    let said = estate.world.output(&["clean", "--apply", "--pause", "0s", "--json"]);
    assert_eq!(said.code, 0, "{said:?}");
    let report = json(&said);
    let removed = report["queues"].as_array().unwrap().iter().filter(|row| row["removed"] == true).cloned().collect();
    let removed: BTreeSet<_> = names(&Value::Array(removed), "queue", &estate.prefix).into_iter().collect();
    assert_eq!(removed, set(&GOES));
    let left: Vec<_> = before.into_iter().filter(|name| !removed.contains(name)).collect();
    assert_eq!(estate.queues(), left);
}

#[test]
fn a_message_that_comes_between_the_looks_keeps_its_queue() {
    let estate = on_moto();
    estate.python(
        "
queue('one', days=40); queue('two', days=40)
queue('known', days=40); used('known', 'NumberOfMessagesSent', 5)
",
    );
    let mut command = estate.world.command(&["clean", "--apply", "--pause", "15s", "--json"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    assert_eq!(line, "hostler: 2 queues and 0 stored bodies may be removed; inspecting again in 15s\n");
    estate.python("sqs.send_message(QueueUrl=url(prefix + 'one'), MessageBody='late', DelaySeconds=600)");
    let said = Said::new(child.wait_with_output().unwrap());
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!(estate.queues(), ["known", "one"]);
    let report = json(&said);
    let one = report["queues"].as_array().unwrap().iter().find(|row| row["queue"].as_str().unwrap().ends_with("one"));
    let one = one.unwrap();
    // On a slow machine it comes after the second look, and before the removal.
    assert!(one["class"] == "inactive-with-messages" || one["kept"] == "1 messages have come", "{one}");
}

#[test]
fn without_a_record_of_use_nothing_is_removed() {
    let estate = on_moto();
    estate.python("queue('one', days=40)");
    let said = estate.world.output(&["clean", "--apply", "--pause", "0s"]);
    assert!(said.code == 1 && said.stderr.contains("CloudWatch has no record of any"), "{said:?}");
    assert_eq!(estate.queues(), ["one"]);
}

/// As removal sees it at the last moment, whatever the looks have found.
#[tokio::test(flavor = "multi_thread")]
async fn at_the_last_moment_a_queue_has_to_be_ours_empty_and_nobodys_dead_letter_queue() {
    let estate = on_moto();
    estate.python(
        "
queue('visible', messages=1)
sqs.send_message(QueueUrl=queue('delayed'), MessageBody='x', DelaySeconds=600)
receive(queue('in-flight', messages=1))
queue('others', tags={})
dead = arn(queue('dead'))
queue('source', RedrivePolicy=json.dumps({'deadLetterTargetArn': dead, 'maxReceiveCount': 3}))
",
    );
    let broker = SqsBroker::connect(options(&estate, None)).await.unwrap();
    let name = |queue: &str| format!("{}{queue}", estate.prefix);
    let remove = async |queue: &str, gone: &[&str]| {
        let gone = gone.iter().map(|queue| name(queue)).collect();
        broker.remove_queue(&name(queue), &gone).await.unwrap()
    };
    for queue in ["visible", "delayed", "in-flight"] {
        assert_eq!(remove(queue, &[]).await, Removal::Kept("1 messages have come".into()), "{queue}");
    }
    assert_eq!(remove("others", &[]).await, Removal::Kept("its tags no longer say that it is hostler's".into()));
    assert_eq!(remove("dead", &[]).await, Removal::Kept(format!("it takes the dead letters of {}", name("source"))));
    assert_eq!(remove("no-such", &[]).await, Removal::Kept("it is gone already".into()));
    assert_eq!(estate.queues().len(), 6, "all are there");
    assert_eq!(remove("dead", &["source"]).await, Removal::Removed);
    assert_eq!(remove("source", &[]).await, Removal::Removed);
    assert_eq!(estate.queues(), ["delayed", "in-flight", "others", "visible"]);
}

fn options(estate: &Estate<'_>, bucket: Option<String>) -> Options {
    Options {
        region: Some("eu-west-1".to_owned()),
        endpoint_url: Some(estate.server.endpoint()),
        credentials: Some(("test".to_owned(), "test".to_owned())),
        prefix: estate.prefix.clone(),
        bucket,
        ..Options::default()
    }
}

/// More than a page of the bucket's list, and more than one call removes.
#[tokio::test(flavor = "multi_thread")]
async fn only_old_bodies_under_keys_of_ours_are_found_and_removed() {
    let estate = on_moto();
    let bucket = estate.prefix.trim_end_matches('-').to_owned();
    let put = format!(
        "
s3.create_bucket(Bucket={bucket:?}, CreateBucketConfiguration={{'LocationConstraint': 'eu-west-1'}})
with ThreadPoolExecutor(16) as hands:
    def put(n):
        s3.put_object(Bucket={bucket:?}, Key=f'hostler/0190163d-8694-739b-8d2e-{{n:012x}}', Body=b'abc')
    list(hands.map(put, range(1100)))
for key in ['shared/0190163d-8694-739b-8d2e-000000000000', 'shared/thumbnails.wasm', 'thumbnails.wasm']:
    s3.put_object(Bucket={bucket:?}, Key='hostler/' + key, Body=b'abc')
s3.put_object(Bucket={bucket:?}, Key='elsewhere/x', Body=b'abc')
"
    );
    estate.python(&put);
    let broker = SqsBroker::connect(options(&estate, Some(bucket.clone()))).await.unwrap();
    let (hour, now) = (Duration::from_secs(3600), SystemTime::now());
    let young = broker.stored_before(now - hour, 5000).await.unwrap().unwrap();
    assert_eq!((young.bodies.len(), young.more, young.bucket.as_str()), (0, false, bucket.as_str()));
    let first = broker.stored_before(now + hour, 1050).await.unwrap().unwrap();
    assert_eq!((first.bodies.len(), first.more), (1050, true));
    let all = broker.stored_before(now + hour, 5000).await.unwrap().unwrap();
    assert_eq!((all.bodies.len(), all.more), (1101, false));
    assert!(all.bodies.iter().all(|Body { key, bytes, .. }| key.starts_with("hostler/") && *bytes == 3));
    assert_eq!(broker.remove_bodies(&all.bodies).await.unwrap(), 1101);
    let left = estate.python(&format!(
        "print(json.dumps([one['Key'] for one in s3.list_objects_v2(Bucket={bucket:?})['Contents']]))"
    ));
    assert_eq!(left, json!(["elsewhere/x", "hostler/shared/thumbnails.wasm", "hostler/thumbnails.wasm"]));
    let without = SqsBroker::connect(options(&estate, None)).await.unwrap();
    assert_eq!(without.stored_before(now + hour, 10).await, Ok(None));
}

#[test]
fn what_may_not_be_looked_at_is_named_and_the_rest_goes_on() {
    let server = Server::enforcing();
    let estate = Estate::new(&server, &consumer());
    estate.python(
        "
queue('one', days=40); queue('two', days=40); queue('two-dlq', days=40)
queue('known', days=40); used('known', 'NumberOfMessagesSent', 5)
",
    );
    let denied = "('sqs:ListQueueTags', f'arn:aws:sqs:*:*:{prefix}two'), ('sns:List*', '*')";
    let said = estate.output_as(denied, &["clean", "--apply", "--json"]);
    assert!(
        said.code == 1 && said.stderr.contains("subscriptions cannot be listed, so no queue is removed"),
        "{said:?}"
    );
    let report = json(&said);
    assert_eq!(names(&report["not_looked_at"], "name", &estate.prefix), ["two", "subscriptions", "topics"]);
    assert_eq!(estate.queues().len(), 4, "without the subscriptions no queue may go");
    assert_eq!(of_class(&report, "in-use", &estate.prefix), set(&["two-dlq"]), "its queue may be there");
    assert_eq!(of_class(&report, "deletable", &estate.prefix), set(&["one"]));

    // This server does not know the call that says whose dead-letter queue it is.
    let said = estate.world.output(&["clean", "--apply", "--pause", "0s"]);
    assert!(said.code == 1 && said.stdout.contains("ListDeadLetterSourceQueues"), "{said:?}");
    assert_eq!(estate.queues().len(), 4);
}

#[test]
fn without_a_look_at_the_record_of_use_there_is_no_report() {
    let denies = Web::start(|_, _| Reply::status(403));
    let server = Server::shared(Kind::Moto);
    let estate = Estate::beside(server, &format!("http://{}", denies.address), &consumer());
    estate.python("queue('one', days=40)");
    let said = estate.world.output(&["clean", "--apply", "--pause", "0s"]);
    assert!(said.code == 69 && said.stderr.contains("GetMetricData: HTTP status 403"), "{said:?}");
    assert_eq!(estate.queues(), ["one"]);
}

#[test]
fn the_report_goes_to_the_webhook() {
    let estate = on_moto();
    estate.python("queue('full', days=40, messages=2)");
    let table = estate.world.output(&["clean"]);
    let row = format!("queue {}full  inactive, with messages         2     -         -   shop\n", estate.prefix);
    let summary = "of 1 queue: 1 queue inactive, with messages\n";
    assert!(table.code == 0 && table.stdout.ends_with(&format!("{row}{summary}")), "{table:?}");
    let web = Web::start(|_, before| if before == 0 { Reply::status(503) } else { Reply::ok("ok") });
    for format in ["slack", "json"] {
        let mut command = estate.with_webhook(&web.address, &["clean", "--webhook", "--format", format]);
        let said = Said::new(command.output().unwrap());
        assert_eq!(said.code, 0, "{said:?}");
        keeps_the_secret(&said);
    }
    let bodies: Vec<Value> =
        web.requests(SECRET).iter().map(|request| serde_json::from_slice(&request.body).unwrap()).collect();
    let [_, slack, document] = &bodies[..] else { panic!("{bodies:?}") };
    assert_eq!(slack["text"], "of 1 queue: 1 queue inactive, with messages");
    assert_eq!((&document["kind"], &document["applied"]), (&json!("clean"), &json!(false)));
    assert_eq!(of_class(document, "inactive-with-messages", &estate.prefix), set(&["full"]));
}

#[test]
fn the_embedded_queue_has_no_record_to_clean_by() {
    let world = World::new(&format!("[consumers.orders]\nchannel = 'orders'\n{HANDLER}"));
    let said = world.output(&["clean"]);
    assert!(said.code == 69 && said.stderr.contains("only SQS has a record of use"), "{said:?}");
    let said = world.output(&["clean", "--bodies-older", "1d"]);
    assert!(said.code == 2 && said.stderr.contains("at least 14d"), "{said:?}");
}

#[test]
fn a_server_without_metrics_is_named_as_such() {
    let web = Web::start(|_, _| Reply::status(404));
    let estate = Estate::beside(Server::shared(Kind::Moto), &format!("http://{}", web.address), &consumer());
    estate.python("queue('a', days=40)");
    let said = estate.world.output(&["clean"]);
    assert_eq!((said.code, said.stdout.as_str()), (69, ""), "{said:?}");
    for part in ["this server has no CloudWatch metrics (HTTP status 404)", "AWS_ENDPOINT_URL_CLOUDWATCH"] {
        assert!(said.stderr.contains(part), "{part} in {said:?}");
    }
}
