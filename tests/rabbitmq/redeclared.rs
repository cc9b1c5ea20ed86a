//! A queue that is deleted and declared again under its consumer, which takes its bindings along.

use std::sync::Arc;
use std::time::Duration;

use hostler_queue::{Broker, ChannelSpec, Provisioner, Queue, QueueError, Settlement};
use hostler_queue_rabbitmq::{Options, RabbitBroker};
use hostler_types::message::Outgoing;
use lapin::options::{QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Connection, ConnectionProperties};

use super::driver::{PATIENCE, ack, next, options, receive, shared};
use super::{WORK, world_at};
use crate::support::hostler::until;
use crate::support::rabbitmq::RabbitMq;

fn fanned() -> ChannelSpec {
    ChannelSpec { max_receives: Some(5), ..ChannelSpec::new("shop.jobs".parse().unwrap()) }
}

async fn connected(server: &RabbitMq, prefix: &str, creates: bool) -> RabbitBroker {
    let options = Options {
        create_missing: creates,
        management_url: Some(server.management_url()),
        ..options(server.url(), prefix)
    };
    RabbitBroker::connect(options).await.unwrap()
}

/// Deletes a queue, and declares it again, as another client would.
async fn redeclare(url: &str, queue: &str) {
    let client = Connection::connect(url, ConnectionProperties::default()).await.unwrap();
    let channel = client.create_channel().await.unwrap();
    channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await.unwrap();
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    channel.queue_declare(queue.into(), QueueDeclareOptions::durable(), arguments).await.unwrap();
}

async fn send_to_exchange(broker: &RabbitBroker) {
    let message = Outgoing { routing_key: Some("EU".to_owned()), ..Outgoing::default() };
    broker.send(&"shop".parse().unwrap(), vec![message]).await.remove(0).unwrap();
}

/// A message comes by the exchange, and after a delay again.
async fn works(broker: &RabbitBroker, queue: &Arc<dyn Queue>) {
    send_to_exchange(broker).await;
    let first = next(queue).await;
    queue.settle(vec![Settlement::Release(first.receipt, Duration::from_secs(1))]).await.remove(0).unwrap();
    let again = next(queue).await;
    assert_eq!(again.attempt, 2);
    ack(queue, again).await;
}

/// Receives until the bindings of the queue are made again.
async fn received_from(queue: &Arc<dyn Queue>) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while let Err(error) = receive(queue, 1, Duration::ZERO).await {
        assert!(tokio::time::Instant::now() < deadline, "{error}");
    }
}

#[tokio::test]
async fn a_host_that_creates_what_is_missing_binds_the_queue_again() {
    let (server, prefix) = shared("rebound").await;
    let broker = connected(server, &prefix, true).await;
    let queue = broker.open(&fanned()).await.unwrap();
    works(&broker, &queue).await;
    let name = format!("{prefix}jobs");

    redeclare(&server.url(), &name).await;
    let findings = broker.inspect(&fanned()).await.unwrap();
    let names = |part: &str| findings.iter().any(|finding| finding.fault.contains(part));
    assert!(names("not bound to the queues for delays") && names("not bound to the exchange"), "{findings:?}");
    received_from(&queue).await;
    works(&broker, &queue).await;

    // No consumer tells of the end of the queue.
    queue.rest().await;
    redeclare(&server.url(), &name).await;
    received_from(&queue).await;
    works(&broker, &queue).await;
}

/// It would otherwise be healthy, and receive nothing.
#[tokio::test]
async fn a_host_that_creates_nothing_says_that_the_queue_gets_no_messages() {
    let (server, prefix) = shared("unbound").await;
    let (creating, strict) = (connected(server, &prefix, true).await, connected(server, &prefix, false).await);
    creating.open(&fanned()).await.unwrap();
    let queue = strict.open(&fanned()).await.unwrap();
    works(&strict, &queue).await;
    redeclare(&server.url(), &format!("{prefix}jobs")).await;
    let is_told = |error: &QueueError| matches!(error, QueueError::Refused(text) if text.contains("is not bound to the exchange"));
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let mut told = 0;
    while told < 2 {
        assert!(tokio::time::Instant::now() < deadline, "{told}");
        told +=
            usize::from(receive(&queue, 1, Duration::from_secs(1)).await.err().is_some_and(|error| is_told(&error)));
    }
    creating.declare(&fanned()).await.unwrap();
    assert!(receive(&queue, 1, Duration::ZERO).await.is_err(), "its bindings to exchanges stay as they are");
    creating.open(&fanned()).await.unwrap();
    works(&strict, &queue).await;
}

/// Without the management API, nothing tells which bindings there are.
#[test]
fn a_host_that_cannot_know_the_bindings_warns() {
    let server = RabbitMq::shared();
    let (mut world, prefix) = world_at(server, &WORK.replace("channel = 'work'", "channel = 'shop.work'"));
    world.set("HOSTLER_QUEUE__RABBITMQ__PROVISION", "check".to_owned());
    world.provision();
    let mut host = world.started();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(redeclare(&server.url(), &format!("{prefix}work")));
    host.wait_for(PATIENCE * 3, |line| {
        let text = line["message"].as_str().unwrap_or_default();
        line["level"] == "WARN" && text.contains("deleted and declared again") && text.contains("hostler provision")
    });
    world.provision();
    world.send("shop", ["ack", "x1"]);
    host.settled(4);
    until("it is a dead letter", PATIENCE * 3, || (world.depth("work").dead_lettered == 1).then_some(()));
    assert_eq!(host.stop(), 0);
}
