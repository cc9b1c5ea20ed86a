//! Streams and consumers that another host or an operator has changed.

use std::time::Duration;

use async_nats::Client;
use hostler_queue::{Broker, ChannelSpec, Provisioner, QueueError, Receive, SendError, Settlement};
use hostler_queue_nats::{Known, NatsBroker, Options};
use hostler_types::channel::Filter;
use hostler_types::message::Outgoing;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::driver::{LONG, PATIENCE, body, channel, connect, next, send, settle, spec, text};
use super::losses::client;
use crate::support::nats::{Nats, Version};
use crate::support::servers::unique;

async fn call(client: &Client, operation: &str, body: &Value) -> Value {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let answer = client.request(format!("$JS.API.{operation}"), body.into()).await.unwrap();
    let answer: Value = serde_json::from_slice(&answer.payload).unwrap();
    assert!(answer.get("error").is_none(), "{operation}: {answer}");
    answer
}

/// Without the right to create or change anything.
async fn checking(version: Version, prefix: &str) -> NatsBroker {
    let server = Nats::shared(version);
    let options = Options { url: server.url(), prefix: prefix.to_owned(), ..Options::default() };
    NatsBroker::connect(options).await.unwrap()
}

async fn subscription(client: &Client, prefix: &str, queue: &str) -> Value {
    call(client, &format!("CONSUMER.INFO.{prefix}shop~exchange.{queue}"), &Value::Null).await["config"].clone()
}

async fn change_subscription(client: &Client, prefix: &str, queue: &str, config: Value) {
    let stream = format!("{prefix}shop~exchange");
    call(client, &format!("CONSUMER.DELETE.{stream}.{queue}"), &Value::Null).await;
    let request = json!({ "stream_name": stream, "config": config });
    call(client, &format!("CONSUMER.DURABLE.CREATE.{stream}.{queue}"), &request).await;
}

#[tokio::test]
async fn a_subscription_that_misses_messages_or_the_order_is_refused() {
    for version in Version::ALL {
        let prefix = format!("{}-", unique("m"));
        let (maker, client) = (connect(version, &prefix, Vec::new()).await, client(version).await);
        let wanted = spec("shop.jobs");
        maker.declare(&wanted).await.unwrap();
        let checking = checking(version, &prefix).await;
        assert!(checking.open(&wanted).await.is_ok(), "{version:?}");
        let mut config = subscription(&client, &prefix, "jobs").await;
        config.as_object_mut().unwrap().remove("filter_subjects");
        config["filter_subject"] = json!(format!("{prefix}shop.EU"));
        change_subscription(&client, &prefix, "jobs", config).await;
        let refused = checking.open(&wanted).await.err();
        assert!(
            matches!(&refused, Some(QueueError::Refused(text)) if text.contains("filter_subject") && text.contains("shop.EU")),
            "{version:?}: {refused:?}"
        );
        let narrow = ChannelSpec { filter: Filter::Exact(vec!["EU".to_owned()]), ..wanted };
        // An older server cannot be asked for less, so it must send everything.
        assert_eq!(checking.open(&narrow).await.is_ok(), version != Version::Oldest, "{version:?}");

        let plain = spec("shop.plain");
        maker.declare(&plain).await.unwrap();
        let ordered = ChannelSpec { ordered: true, ..plain };
        let refused = checking.open(&ordered).await.err();
        assert!(
            matches!(&refused, Some(QueueError::Refused(text)) if text.contains("max_ack_pending: 512 → 1")),
            "{version:?}: {refused:?}"
        );
    }
}

#[tokio::test]
async fn a_host_with_a_shorter_lease_leaves_the_timer_of_the_others() {
    for version in Version::ALL {
        let prefix = format!("{}-", unique("t"));
        let (one, client) = (connect(version, &prefix, Vec::new()).await, client(version).await);
        let other = connect(version, &prefix, Vec::new()).await;
        let timer = async || {
            let info = call(&client, &format!("CONSUMER.INFO.{prefix}jobs.hostler"), &Value::Null).await;
            info["config"]["ack_wait"].as_u64().map(Duration::from_nanos)
        };
        let of = |seconds| ChannelSpec { lease: Duration::from_secs(seconds), ..spec("jobs") };
        one.open(&of(60)).await.unwrap();
        other.open(&of(10)).await.unwrap();
        assert_eq!(timer().await, Some(Duration::from_secs(62)), "{version:?}");
        other.open(&of(90)).await.unwrap();
        assert_eq!(timer().await, Some(Duration::from_secs(92)), "{version:?}");
    }
}

/// The driver keeps a lease by the server's timer, so it must hear of another one.
#[tokio::test]
async fn a_lease_holds_though_the_servers_timer_becomes_shorter() {
    let prefix = format!("{}-", unique("w"));
    let version = Version::Newest;
    let (one, other) = (connect(version, &prefix, Vec::new()).await, connect(version, &prefix, Vec::new()).await);
    let long = ChannelSpec { lease: Duration::from_secs(60), ..spec("jobs") };
    let queue = one.open(&long).await.unwrap();
    let rival = other.open(&long).await.unwrap();
    send(&one, "jobs", vec![text("x")]).await;
    let held = next(&queue).await;
    let short = ChannelSpec { lease: Duration::from_secs(14), ..spec("jobs") };
    other.provision(std::slice::from_ref(&short), &mut |_| ()).await.unwrap();
    let request = Receive { max: 1, wait: Duration::from_secs(20), lease: LONG };
    assert!(rival.receive(request, &CancellationToken::new()).await.unwrap().is_empty(), "it is still held");
    settle(&queue, Settlement::Ack(held.receipt)).await;
}

/// Without queues, an exchange drops what it gets.
#[tokio::test]
async fn a_sender_does_not_make_an_exchange_anew() {
    let prefix = format!("{}-", unique("x"));
    let (broker, client) = (connect(Version::Newest, &prefix, Vec::new()).await, client(Version::Newest).await);
    broker.open(&spec("shop.jobs")).await.unwrap();
    send(&broker, "shop.jobs", vec![text("x")]).await;
    call(&client, &format!("STREAM.DELETE.{prefix}shop~exchange"), &Value::Null).await;
    let sent = broker.send(&channel("shop.jobs"), vec![text("y")]).await.remove(0);
    assert!(
        matches!(&sent, Err(SendError::Queue(QueueError::Refused(text))) if text.contains("provision")),
        "{sent:?}"
    );
    // A sender that knows the consumers makes the exchange with their queues.
    let known = connect(Version::Newest, &prefix, vec![Known::new(channel("shop.jobs"))]).await;
    send(&known, "shop.jobs", vec![text("z")]).await;
    let queue = connect(Version::Newest, &prefix, Vec::new()).await.open(&spec("shop.jobs")).await.unwrap();
    assert_eq!(body(&next(&queue).await), "z");
}

/// A stream without a leader looks like one that is missing.
#[tokio::test]
async fn a_stream_for_which_nobody_answers_is_not_taken_for_a_missing_one() {
    let prefix = format!("{}-", unique("u"));
    let (broker, client) = (connect(Version::Newest, &prefix, Vec::new()).await, client(Version::Newest).await);
    broker.open(&spec("jobs")).await.unwrap();
    let stream = format!("{prefix}jobs");
    let mut config = call(&client, &format!("STREAM.INFO.{stream}"), &Value::Null).await["config"].clone();
    let subjects = config["subjects"].take();
    config["subjects"] = json!([format!("{prefix}elsewhere")]);
    call(&client, &format!("STREAM.UPDATE.{stream}"), &config).await;
    let sending = async { broker.send(&channel("jobs"), vec![text("x")]).await.remove(0) };
    let putting_right = async {
        sleep(Duration::from_secs(1)).await;
        config["subjects"] = subjects;
        call(&client, &format!("STREAM.UPDATE.{stream}"), &config).await;
    };
    let (sent, ()) = tokio::join!(sending, putting_right);
    assert!(sent.is_ok(), "{sent:?}");
}

/// The queue itself works, and looks empty.
#[tokio::test]
async fn an_exchange_that_does_not_feed_its_queue_is_reported() {
    let prefix = format!("{}-", unique("e"));
    let (broker, client) = (connect(Version::Newest, &prefix, Vec::new()).await, client(Version::Newest).await);
    let queue = broker.open(&spec("shop.jobs")).await.unwrap();
    call(&client, &format!("CONSUMER.DELETE.{prefix}shop~exchange.jobs"), &Value::Null).await;
    let deadline = Instant::now() + PATIENCE;
    let error = loop {
        let request = Receive { max: 1, wait: Duration::from_secs(2), lease: LONG };
        match queue.receive(request, &CancellationToken::new()).await {
            Ok(none) => assert!(none.is_empty() && Instant::now() < deadline, "no error came"),
            Err(error) => break error.to_string(),
        }
    };
    assert!(error.contains("the exchange `shop`"), "{error}");
}

/// Another client may only choose the subject.
#[tokio::test]
async fn the_group_of_another_clients_message_is_that_of_its_subject() {
    for version in Version::ALL {
        let prefix = format!("{}-", unique("g"));
        let (broker, client) = (connect(version, &prefix, Vec::new()).await, client(version).await);
        let queue = broker.open(&ChannelSpec { ordered: true, ..spec("jobs") }).await.unwrap();
        client.request(format!("{prefix}jobs~group.a=2Fb"), "x".into()).await.unwrap();
        assert_eq!(next(&queue).await.message.group.as_deref(), Some("a/b"));
        send(&broker, "jobs", vec![Outgoing { group: Some("a/b".to_owned()), ..text("y") }]).await;
        let request = Receive { max: 1, wait: Duration::from_millis(300), lease: LONG };
        assert!(queue.receive(request, &CancellationToken::new()).await.unwrap().is_empty(), "it is the same group");
    }
}
