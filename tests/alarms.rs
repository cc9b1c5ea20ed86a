//! `hostler alarms`: on thousands of queues, with access denied to some, and to a webhook that is down at first.

use std::process::Stdio;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::hostler::{Host, PATIENCE, Said, World, until};
use crate::support::servers::{Kind, Server};
use crate::support::upkeep::{Estate, HANDLER, SECRET, json, keeps_the_secret, names, with_webhook};
use crate::support::web::{Reply, Request, Web};

/// A consumer that alarms from three messages on.
const SHOP: &str = "
    [consumers.orders]
    channel = 'orders'
    handler = 'guests/main-echoes.wat'
    tags = { owner = 'shop', critical = true, alarm_threshold = 3 }
";

/// It alone, on the embedded queue.
fn shop() -> World {
    World::new(SHOP)
}

fn consumer() -> String {
    format!("[consumers.orders]\nchannel = 'orders'\n{HANDLER}")
}

/// A webhook that answers this many times that it is not well, and then that it is.
fn sick(times: usize) -> Web {
    Web::start(move |_, before| if before < times { Reply::status(500) } else { Reply::ok("ok") })
}

fn bodies(web: &Web) -> Vec<Value> {
    let body = |request: &Request| serde_json::from_slice(&request.body).unwrap();
    web.requests(SECRET).iter().map(body).collect()
}

#[test]
fn every_page_of_thousands_of_queues_is_looked_at() {
    let server = Server::start(Kind::Moto);
    let estate = Estate::new(&server, &consumer());
    estate.python(
        "
queue('first', messages=2, tags={**OURS, 'hostler:alarm-threshold': '2', 'hostler:critical': 'true'})
many(2150)
queue('last', messages=3, tags={'hostler:consumer': 'c', 'hostler:alarm-threshold': '3'})
queue('last-dlq', messages=1, tags={**OURS, 'hostler:alarm-threshold': '1000'})
queue('calm', messages=2, tags={**OURS, 'hostler:alarm-threshold': '3'})
queue('calm-dlq', messages=1, tags={**OURS, 'hostler:dead-letter-alarm-threshold': '2'})
queue('others', messages=5, tags={'team': 'x', 'hostler:alarm-threshold': '1'})
",
    );
    let said = estate.world.output(&["alarms", "--json"]);
    assert_eq!(said.code, 1, "{said:?}");
    let report = json(&said);
    assert_eq!(report["queues"], 2155);
    assert_eq!(names(&report["alarms"], "queue", &estate.prefix), ["first", "last", "last-dlq"]);
    let first = json!({
        "queue": format!("{}first", estate.prefix), "messages": 2, "threshold": 2, "dead_letter": false, "critical": true,
        "consumer": "c", "owner": "shop",
    });
    assert_eq!((&report["alarms"][0], &report["not_looked_at"]), (&first, &json!([])));
    let table = estate.world.output(&["alarms"]);
    assert!(table.stdout.ends_with("3 of 2155 queues alarm, 1 of them critical\n"), "{table:?}");
}

#[test]
fn what_may_not_be_looked_at_is_named_and_the_rest_goes_on() {
    let server = Server::enforcing();
    let estate = Estate::new(&server, &consumer());
    estate.python("for n in range(4): queue(f'q{n}-dlq', messages=1)");
    let denied = "
        ('sqs:ListQueueTags', f'arn:aws:sqs:*:*:{prefix}q1-dlq'),
        ('sqs:GetQueueAttributes', f'arn:aws:sqs:*:*:{prefix}q2-dlq')";
    let said = estate.output_as(denied, &["alarms", "--json"]);
    assert_eq!(said.code, 1, "{said:?}");
    let report = json(&said);
    assert_eq!(names(&report["alarms"], "queue", &estate.prefix), ["q0-dlq", "q3-dlq"]);
    let name = |name: &str| format!("{}{name}", estate.prefix);
    let expected = json!([
        {"name": name("q1-dlq"), "reason": "ListQueueTags is denied"},
        {"name": name("q2-dlq"), "reason": "GetQueueAttributes is denied"},
    ]);
    assert_eq!(report["not_looked_at"], expected);
    let table = estate.output_as(denied, &["alarms"]);
    let last = format!(
        "not checked: {}: GetQueueAttributes is denied\n2 of 2 queues alarm; 2 could not be checked\n",
        name("q2-dlq")
    );
    assert!(table.stdout.ends_with(&last), "{table:?}");

    for all in ["('sqs:ListQueueTags', '*')", "('sqs:ListQueues', '*')"] {
        let said = estate.output_as(all, &["alarms"]);
        let denied = ["is denied", "AccessDenied"].iter().any(|word| said.stderr.contains(word));
        assert!(said.code == 69 && denied, "{said:?}");
    }
}

#[test]
fn one_look_tells_the_embedded_queue_as_well() {
    let world = shop();
    let calm = world.output(&["alarms"]);
    assert_eq!((calm.code, calm.stdout.as_str()), (0, "0 of 1 queues alarm\n"), "{calm:?}");
    world.send("orders", ["1", "2", "3"]);
    world.send("orders-dlq", ["dead"]);
    let said = world.output(&["alarms"]);
    let table = "QUEUE       MESSAGES  THRESHOLD  CRITICAL  CONSUMER  OWNER\n\
                 orders             3          3       yes    orders   shop\n\
                 orders-dlq         1          1       yes    orders   shop\n\
                 2 of 2 queues alarm, 2 of them critical\n";
    assert_eq!((said.code, said.stdout.as_str()), (1, table), "{said:?}");
}

#[test]
fn a_fan_out_consumers_queue_counts_once() {
    let world = World::new(&SHOP.replace("channel = 'orders'", "channel = 'shop.orders'"));
    world.send("shop", ["1", "2", "3"]);
    let said = world.output(&["alarms"]);
    let table = "QUEUE   MESSAGES  THRESHOLD  CRITICAL  CONSUMER  OWNER\n\
                 orders         3          3       yes    orders   shop\n\
                 1 of 2 queues alarm, 1 of them critical\n";
    assert_eq!((said.code, said.stdout.as_str()), (1, table), "{said:?}");
}

#[test]
fn a_webhook_that_is_down_at_first_is_told_once() {
    let (world, web) = (shop(), sick(2));
    let alarms = |args: &[&str]| {
        let said =
            Said::new(with_webhook(&world, &web.address, &[&["alarms", "--webhook"], args].concat()).output().unwrap());
        keeps_the_secret(&said);
        said
    };
    assert_eq!(alarms(&[]).code, 0);
    assert_eq!(bodies(&web), [Value::Null; 0], "all is well, and nobody is told");

    world.send("orders", ["1", "2", "3"]);
    let said = alarms(&[]);
    assert_eq!(said.code, 1, "{said:?}");
    let [first, second, slack] = &bodies(&web)[..] else { panic!("{:?}", bodies(&web)) };
    assert!(first == slack && second == slack, "the same is tried again");
    assert_eq!(slack["text"], "CRITICAL: queue alarms: 1 new");
    let line = "CRITICAL new: orders: 3 messages (queue, alarm from 3 on, consumer orders, owner shop)";
    assert_eq!(slack["blocks"][1]["text"], json!({"type": "mrkdwn", "text": line}));

    assert_eq!(alarms(&["--format", "json"]).code, 1);
    let document = bodies(&web).pop().unwrap();
    assert_eq!((&document["source"], &document["kind"]), (&json!("hostler"), &json!("alarms")));
    assert_eq!((&document["critical"], &document["changes"][0]["change"]), (&json!(true), &json!("new")));
    assert_eq!(bodies(&web).len(), 4);
    let request = &web.requests(SECRET)[0];
    assert!(
        request.headers["user-agent"].starts_with("hostler/") && request.headers["content-type"] == "application/json"
    );
}

#[test]
fn a_rehearsal_prints_what_would_be_sent_and_sends_nothing() {
    let (world, web) = (shop(), sick(0));
    world.send("orders", ["1", "2", "3"]);
    let rehearse = |args: &[&str]| {
        let said =
            Said::new(with_webhook(&world, &web.address, &[&["alarms", "--dry-run"], args].concat()).output().unwrap());
        assert_eq!(said.code, 1, "{said:?}");
        keeps_the_secret(&said);
        said
    };
    assert_eq!(json(&rehearse(&["--webhook"]))["text"], "CRITICAL: queue alarms: 1 new");
    assert_eq!(json(&rehearse(&["--format", "json"]))["kind"], "alarms");
    let topic = "arn:aws:sns:eu-west-1:000000000000:nobody";
    let plain = rehearse(&["--sns", topic]);
    assert!(plain.stdout.starts_with("CRITICAL: queue alarms: 1 new\nCRITICAL new: orders: 3 messages"), "{plain:?}");
    assert_eq!(bodies(&web), [Value::Null; 0]);
}

#[test]
fn a_webhook_that_refuses_is_an_error_that_keeps_its_address_secret() {
    let world = shop();
    world.send("orders", ["1", "2", "3"]);
    let repeats = |request: &Request| Reply::Of(404, Vec::new(), format!("Cannot POST {}", request.path).into_bytes());
    let web = Web::start(move |request, _| repeats(request));
    let said = Said::new(with_webhook(&world, &web.address, &["alarms", "--webhook"]).output().unwrap());
    assert_eq!((said.code, said.stderr.as_str()), (1, "hostler: the webhook answers 404 Not Found\n"), "{said:?}");
    keeps_the_secret(&said);
    assert_eq!(web.requests(SECRET).len(), 1, "it is not tried again");

    let elsewhere = Web::start(|_, _| Reply::Of(302, vec![("Location", "http://127.0.0.1:1/".to_owned())], Vec::new()));
    let said = Said::new(with_webhook(&world, &elsewhere.address, &["alarms", "--webhook"]).output().unwrap());
    assert!(said.code == 1 && said.stderr.contains("302"), "{said:?}");
    let said = world.output(&["alarms", "--webhook"]);
    assert!(said.code == 64 && said.stderr.contains("HOSTLER_ALARMS__WEBHOOK"), "{said:?}");
    let mut command = world.command(&["alarms", "--webhook"]);
    let said = Said::new(command.env("HOSTLER_ALARMS__WEBHOOK", "hooks.example.com/hunter2").output().unwrap());
    assert!(said.code == 64 && said.stderr.contains("alarms.webhook"), "{said:?}");
    keeps_the_secret(&said);
}

#[test]
fn rounds_tell_only_what_is_news_until_they_are_stopped() {
    let (world, web) = (World::new(&format!("{SHOP}\n[consumers.archive]\nchannel = 'archive'\n{HANDLER}")), sick(1));
    let mut command = with_webhook(&world, &web.address, &["alarms", "--every", "1s", "--webhook", "--format", "json"]);
    command.stdin(Stdio::null());
    let mut rounds = Host::start(command);
    // The first try of each is answered by 500, which is the first of all only.
    let told = |count: usize| {
        until("the notice", PATIENCE, || (bodies(&web).len() > count).then_some(()));
        let bodies = bodies(&web);
        let last = bodies.last().unwrap();
        let change = &last["changes"][0];
        (
            change["change"].as_str().unwrap().to_owned(),
            change["queue"].as_str().unwrap().to_owned(),
            change["messages"].as_u64().unwrap(),
        )
    };
    world.send("orders", ["1", "2", "3"]);
    assert_eq!(told(1), ("new".into(), "orders".into(), 3));
    world.send("orders", ["4", "5", "6"]);
    assert_eq!(told(2), ("worse".into(), "orders".into(), 6));
    let moved = world.output(&["requeue", "--from", "orders", "--to", "archive"]);
    assert_eq!(moved.code, 0, "{moved:?}");
    assert_eq!(told(3), ("resolved".into(), "orders".into(), 0));
    assert_eq!(bodies(&web).len(), 4, "and no more than that");
    rounds.signal(Signal::TERM);
    assert_eq!(rounds.wait_exit(PATIENCE), 0);
}

#[test]
fn what_still_alarms_is_told_again_after_a_while() {
    let (world, web) = (shop(), sick(0));
    world.send("orders", ["1", "2", "3"]);
    let args = ["alarms", "--every", "1s", "--remind", "2s", "--webhook", "--format", "json"];
    let mut rounds = Host::start(with_webhook(&world, &web.address, &args));
    until("two reminders", PATIENCE, || (bodies(&web).len() >= 3).then_some(()));
    assert_eq!(rounds.stop(), 0);
    let changes: Vec<_> =
        bodies(&web).iter().map(|body| body["changes"][0]["change"].as_str().unwrap().to_owned()).collect();
    assert_eq!(changes[..3], ["new", "reminder", "reminder"]);
}

#[test]
fn a_topic_tells_its_subscribers() {
    let estate = Estate::new(Server::shared(Kind::Ministack), &consumer());
    let topic = estate.python(
        "
queue('orders-dlq', messages=1)
topic = sns.create_topic(Name=prefix + 'people')['TopicArn']
listener = queue('listener', tags={})
sns.subscribe(TopicArn=topic, Protocol='sqs', Endpoint=arn(listener))
print(json.dumps(topic))
",
    );
    let said = estate.world.output(&["alarms", "--sns", topic.as_str().unwrap()]);
    assert_eq!(said.code, 1, "{said:?}");
    let heard = estate.python("print(json.dumps(json.loads(receive(url(prefix + 'listener'), wait=10)[0]['Body'])))");
    assert_eq!(heard["Subject"], "queue alarms: 1 new");
    let text = heard["Message"].as_str().unwrap();
    assert!(
        text.contains("orders-dlq: 1 message (dead-letter queue, alarm from 1 on, consumer c, owner shop)"),
        "{text}"
    );
    let said = estate.world.output(&["alarms", "--sns", "arn:aws:sns:eu-west-1:000000000000:no-such-topic"]);
    assert!(said.code == 1 && said.stderr.contains("no-such-topic"), "{said:?}");
}
