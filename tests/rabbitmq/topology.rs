//! Queues that others made, delays without a queue, and queues that commands look through.

use std::collections::BTreeSet;
use std::time::Duration;

use hostler_queue::{Admin, Broker, ChannelSpec, Provisioner, QueueError, Settlement};
use hostler_queue_rabbitmq::{Options, RabbitBroker};
use hostler_types::channel::{Channel, Filter};
use hostler_types::message::Outgoing;
use tokio::time::Instant;

use super::driver::{PATIENCE, ack, body, broker, jobs, next, options, receive, send, spec};
use crate::support::rabbitmq::RabbitMq;
use crate::support::servers::unique;

async fn shared() -> &'static RabbitMq {
    tokio::task::spawn_blocking(RabbitMq::shared).await.unwrap()
}

/// Connects with delay queues of this prefix. `creates`: what is missing is created.
async fn with_ladder(server: &RabbitMq, prefix: &str, ladder: &str, creates: bool) -> RabbitBroker {
    let options =
        Options { ladder_prefix: Some(ladder.to_owned()), create_missing: creates, ..options(server.url(), prefix) };
    RabbitBroker::connect(options).await.unwrap()
}

async fn send_to(broker: &RabbitBroker, channel: &str, count: usize, delay: Duration, group: Option<&str>) {
    let message = |n: usize| Outgoing {
        body: n.to_string().into(),
        delay,
        group: group.map(str::to_owned),
        ..Outgoing::default()
    };
    for sent in broker.send(&channel.parse().unwrap(), (0..count).map(message).collect()).await {
        sent.unwrap();
    }
}

/// With `provision = "check"`, the queue was made by someone else.
#[tokio::test]
async fn a_delayed_message_comes_back_to_a_queue_that_others_made() {
    let server = shared().await;
    let (prefix, ladder) = (format!("{}-", unique("others")), format!("{}-", unique("ladder")));
    with_ladder(server, &prefix, "shared-", true).await.open(&spec(false)).await.unwrap();
    let strict = with_ladder(server, &prefix, &ladder, false).await;
    let error = strict.open(&spec(false)).await.map(drop).unwrap_err();
    assert!(matches!(&error, QueueError::Refused(text) if text.contains("queues for delays")), "{error:?}");
    let findings = strict.inspect(&spec(false)).await.unwrap();
    assert!(findings.iter().any(|finding| finding.fatal && finding.fault.contains("delay")), "{findings:?}");
    let plan = strict.plan(&[spec(false)]).await.unwrap();
    assert!(plan.iter().any(|change| change.to_string().contains("delay")), "{plan:?}");

    with_ladder(server, "elsewhere-", &ladder, true).await.declare(&spec(false)).await.unwrap();
    assert_eq!(strict.inspect(&spec(false)).await.unwrap(), []);
    let queue = strict.open(&spec(false)).await.unwrap();
    send_to(&strict, "jobs", 1, Duration::ZERO, None).await;
    let released = Settlement::Release(next(&queue).await.receipt, Duration::from_secs(1));
    queue.settle(vec![released]).await.remove(0).unwrap();
    let again = next(&queue).await;
    assert_eq!(again.attempt, 2);
    ack(&queue, again).await;
}

/// A process that only sends need not know who made the queue.
#[tokio::test]
async fn a_delayed_message_arrives_at_a_queue_that_others_made() {
    let server = shared().await;
    let (prefix, ladder) = (format!("{}-", unique("sent")), format!("{}-", unique("ladder")));
    let queue = with_ladder(server, &prefix, "shared-", true).await.open(&spec(false)).await.unwrap();
    let strict = with_ladder(server, &prefix, &ladder, false).await;
    let delayed = Outgoing { delay: Duration::from_secs(1), ..Outgoing::default() };
    let error = strict.send(&jobs(), vec![delayed]).await.remove(0).unwrap_err().to_string();
    assert!(error.contains("hostler provision"), "{error}");
    let creating = with_ladder(server, &prefix, &ladder, true).await;
    send_to(&creating, "jobs", 1, Duration::from_secs(1), None).await;
    assert_eq!(body(&next(&queue).await), 0);
}

/// A few dozen messages without a queue would stop the lowest level for all queues.
#[tokio::test]
async fn delayed_messages_without_a_queue_stop_no_others_and_are_found() {
    let server = shared().await;
    let (prefix, ladder) = (format!("{}-", unique("lost")), format!("{}-", unique("ladder")));
    let broker = with_ladder(server, &prefix, &ladder, true).await;
    let queue = broker.open(&spec(false)).await.unwrap();
    // From then on, the sender takes it for one that exists.
    send_to(&broker, "gone", 1, Duration::from_secs(1), None).await;
    let deadline = Instant::now() + PATIENCE;
    while broker.depths(&["gone".parse().unwrap()]).await.unwrap()[0].visible == 0 {
        assert!(Instant::now() < deadline, "it does not arrive");
    }
    let gone = format!("{prefix}gone");
    tokio::task::spawn_blocking(move || server.ctl(&["delete_queue", &gone])).await.unwrap();
    send_to(&broker, "gone", 60, Duration::from_secs(1), None).await;
    send_to(&broker, "jobs", 1, Duration::from_secs(3), None).await;
    assert_eq!(body(&next(&queue).await), 0);
    let findings = broker.inspect(&spec(false)).await.unwrap();
    let texts: Vec<_> = findings.iter().map(ToString::to_string).collect();
    assert!(texts.len() == 1 && texts[0].starts_with("60 delayed messages"), "{texts:?}");
}

/// An ordered queue in another form could not be opened later.
#[tokio::test]
async fn who_comes_first_makes_an_ordered_queue_ordered() {
    let server = shared().await;
    let at = |channel: &str| ChannelSpec {
        ordered: true,
        max_receives: Some(5),
        ..ChannelSpec::new(channel.parse::<Channel>().unwrap())
    };
    let known =
        Options { ordered: vec!["jobs".parse().unwrap()], ..options(server.url(), &format!("{}-", unique("order"))) };
    let broker = RabbitBroker::connect(known).await.unwrap();
    send_to(&broker, "jobs", 1, Duration::ZERO, None).await;
    send_to(&broker, "jobs-dlq", 1, Duration::ZERO, None).await;
    broker.open(&at("jobs")).await.unwrap();
    // Another config has the consumer.
    send_to(&broker, "foreign", 1, Duration::ZERO, Some("g")).await;
    broker.open(&at("foreign")).await.unwrap();
    let plan = broker.plan(&[at("jobs"), at("foreign")]).await.unwrap();
    assert!(plan.is_empty(), "{plan:?}");
}

/// The destination of one consumer may be another's ordered channel.
#[tokio::test]
async fn a_destination_that_is_known_to_be_ordered_is_made_so() {
    let known = Options { ordered: vec![jobs()], ..options(shared().await.url(), &format!("{}-", unique("made"))) };
    let broker = RabbitBroker::connect(known).await.unwrap();
    broker.make_destination(&jobs()).await.unwrap();
    broker.open(&spec(true)).await.unwrap();
}

#[tokio::test]
async fn an_ordered_queue_is_looked_through_in_order() {
    let known = Options { ordered: vec![jobs()], ..options(shared().await.url(), &format!("{}-", unique("see"))) };
    let broker = RabbitBroker::connect(known).await.unwrap();
    broker.open(&spec(true)).await.unwrap();
    send(&broker, 3, Some("g")).await;
    let stored = broker.open_stored(&jobs()).await.unwrap();
    assert!(stored.is_ordered());
    for n in 0..3 {
        let mut shown = receive(&stored, 10, Duration::from_secs(2)).await.unwrap();
        assert_eq!(shown.iter().map(body).collect::<Vec<_>>(), [n], "one of a group");
        ack(&stored, shown.remove(0)).await;
    }
}

/// Messages that a command does not ask for stay on the server, for others at once and without an attempt.
#[tokio::test]
async fn a_look_takes_only_what_it_asks_for() {
    let server = shared().await;
    let prefix = format!("{}-", unique("look"));
    let (looking, working) = (broker(server, &prefix).await, broker(server, &prefix).await);
    let queue = working.open(&spec(false)).await.unwrap();
    send(&looking, 20, None).await;
    let stored = looking.open_stored(&jobs()).await.unwrap();
    let shown = receive(&stored, 3, Duration::from_secs(2)).await.unwrap();
    assert_eq!(shown.iter().map(body).collect::<Vec<_>>(), [0, 1, 2]);
    let mut seen = BTreeSet::new();
    for _ in 0..17 {
        let delivery = next(&queue).await;
        assert_eq!(delivery.attempt, 1, "{}", body(&delivery));
        seen.insert(body(&delivery));
        ack(&queue, delivery).await;
    }
    assert_eq!(seen, (3..20).collect());
    let mut shown = shown.into_iter().map(|delivery| delivery.receipt);
    let batch = vec![
        Settlement::Ack(shown.next().unwrap()),
        Settlement::Release(shown.next().unwrap(), Duration::ZERO),
        Settlement::GiveBack(shown.next().unwrap(), Duration::ZERO),
    ];
    assert!(stored.settle(batch).await.iter().all(Result::is_ok));
    for n in 1..3 {
        let delivery = next(&queue).await;
        assert_eq!(body(&delivery), n);
        ack(&queue, delivery).await;
    }
    assert!(receive(&stored, 3, Duration::ZERO).await.unwrap().is_empty());
}

/// The acks of the first of each group are for single messages, and many of them wait in the channel.
#[tokio::test]
async fn acks_of_a_command_hold_when_it_ends() {
    let server = shared().await;
    let known = Options { ordered: vec![jobs()], ..options(server.url(), &format!("{}-", unique("held"))) };
    let making = RabbitBroker::connect(known.clone()).await.unwrap();
    making.open(&spec(true)).await.unwrap();
    for group in 0..60 {
        send(&making, 2, Some(&format!("g{group}"))).await;
    }
    let command = RabbitBroker::connect(known).await.unwrap();
    let stored = command.open_stored(&jobs()).await.unwrap();
    let (mut heads, deadline) = (Vec::new(), Instant::now() + PATIENCE);
    while heads.len() < 60 {
        assert!(Instant::now() < deadline, "{}", heads.len());
        heads.extend(receive(&stored, 60 - heads.len(), Duration::from_secs(1)).await.unwrap());
    }
    let acks = heads.into_iter().map(|head| Settlement::Ack(head.receipt)).collect();
    assert!(stored.settle(acks).await.iter().all(Result::is_ok));
    drop((stored, command));
    let queue = making.open(&spec(true)).await.unwrap();
    for _ in 0..60 {
        let delivery = next(&queue).await;
        assert_eq!(body(&delivery), 1, "the first of its group is in the queue again");
        ack(&queue, delivery).await;
    }
}

/// RabbitMQ keeps the bindings of an earlier filter.
#[tokio::test]
async fn a_filter_that_is_narrowed_holds_at_once() {
    let server = shared().await;
    let broker = broker(server, &format!("{}-", unique("narrow"))).await;
    let channel: Channel = "shop.jobs".parse().unwrap();
    let fed = |keys: &[&str]| {
        let filter = Filter::Exact(keys.iter().map(|key| (*key).to_owned()).collect());
        ChannelSpec { channel: channel.clone(), filter, ..spec(false) }
    };
    broker.open(&fed(&["EU", "US"])).await.unwrap();
    let queue = broker.open(&fed(&["EU"])).await.unwrap();
    for key in ["US", "EU"] {
        let message = Outgoing { body: key.into(), routing_key: Some(key.to_owned()), ..Outgoing::default() };
        broker.send(&channel, vec![message]).await.remove(0).unwrap();
    }
    let delivery = next(&queue).await;
    assert_eq!(&*delivery.message.body, b"EU");
    ack(&queue, delivery).await;
    assert_eq!(receive(&queue, 10, Duration::ZERO).await.unwrap().len(), 0);
    queue.rest().await;
    assert_eq!(broker.depths(std::slice::from_ref(&channel)).await.unwrap()[0].total(), 0, "it was removed");

    let error = broker.open(&fed(&[&"k".repeat(256)])).await.map(drop).unwrap_err();
    assert!(matches!(&error, QueueError::Refused(text) if text.contains("shop.jobs")), "{error:?}");
}

/// None of these acks is for several messages, and all are of one receive.
#[tokio::test]
async fn acks_of_a_command_that_are_sent_one_by_one_hold_when_it_ends() {
    let server = shared().await;
    let known = Options { ordered: vec![jobs()], ..options(server.url(), &format!("{}-", unique("single"))) };
    let making = RabbitBroker::connect(known.clone()).await.unwrap();
    making.open(&spec(true)).await.unwrap();
    for group in 0..60 {
        send(&making, 1, Some(&format!("g{group}"))).await;
    }
    let command = RabbitBroker::connect(known).await.unwrap();
    let stored = command.open_stored(&jobs()).await.unwrap();
    let (mut heads, deadline) = (Vec::new(), Instant::now() + PATIENCE);
    while heads.len() < 60 {
        assert!(Instant::now() < deadline, "{}", heads.len());
        heads.extend(receive(&stored, 60 - heads.len(), Duration::from_secs(1)).await.unwrap());
    }
    for head in heads.into_iter().rev() {
        ack(&stored, head).await;
    }
    drop((stored, command));
    let queue = making.open(&spec(true)).await.unwrap();
    let left = receive(&queue, 10, Duration::from_secs(2)).await.unwrap();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(making.depths(&[jobs()]).await.unwrap()[0].visible, 0);
}

/// A command goes through a queue of any length with the messages of one prefetch in memory.
#[tokio::test]
async fn a_command_has_no_more_of_an_ordered_queue_than_its_prefetch() {
    const PREFETCH: u64 = 1000;
    const MORE: u64 = 100;
    let server = shared().await;
    let known = Options { ordered: vec![jobs()], ..options(server.url(), &format!("{}-", unique("ahead"))) };
    let making = RabbitBroker::connect(known.clone()).await.unwrap();
    making.open(&spec(true)).await.unwrap();
    send(&making, usize::try_from(PREFETCH + MORE).unwrap(), Some("g")).await;
    let command = RabbitBroker::connect(known).await.unwrap();
    let stored = command.open_stored(&jobs()).await.unwrap();
    for settled in 0..5 {
        ack(&stored, next(&stored).await).await;
        let on_server = making.depths(&[jobs()]).await.unwrap()[0].visible;
        assert!(on_server >= MORE - settled - 1, "{on_server} of {MORE} after {settled} rounds");
    }
}
