//! Messages of producers that do not keep to what hostler sends.

use std::time::{Duration, Instant};

use hostler_queue::{Admin, Broker, ChannelSpec, Delivery, LeaseError, Receive, Settlement};
use hostler_queue_rabbitmq::{Options, RabbitBroker};
use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Connection, ConnectionProperties};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use super::driver::{ack, body, broker, jobs, next, options, receive, shared, spec};
use super::{PATIENCE, WORK, field, world_at};
use crate::support::hostler::until;
use crate::support::rabbitmq::RabbitMq;
use crate::support::servers::unique;

/// Size of a frame on which client and server agree: RabbitMQ's default.
const FRAME_MAX: usize = 131_072;

/// Bytes of the frame with the headers of [`large`] that are not the value.
const AROUND: usize = 36;

/// Properties with a header of this size, as Erlang terms.
fn large(size: usize) -> String {
    format!("{{headers, [{{<<\"big\">>, longstr, binary:copy(<<\"x\">>, {size})}}]}}, {{delivery_mode, 2}}")
}

/// Publishes a message with these properties, which are Erlang terms.
fn publish(server: &RabbitMq, queue: &str, properties: &str, body: &str) {
    server.publish(queue, &format!("[{properties}]"), &format!("<<\"{body}\">>"), 1);
}

/// The client library ends its connection over a short string that is not UTF-8, and its thread over headers in many levels.
#[test]
fn messages_that_the_client_library_cannot_read_hinder_nobody() {
    let server = RabbitMq::shared();
    let (world, prefix) = world_at(server, WORK);
    let mut host = world.started();
    let queue = format!("{prefix}work");
    let deep = "lists:foldl(fun (_, A) -> [{array, A}] end, [], lists:seq(1, 20000))";
    let deep = format!("{{headers, [{{<<\"h\">>, array, {deep}}}]}}");
    publish(server, &queue, "{app_id, <<\"caf\", 16#e9>>}", "x1");
    publish(server, &queue, "{message_id, <<255>>}, {headers, [{<<255>>, longstr, <<255>>}]}", "ack");
    publish(server, &queue, &deep, "x1");
    world.send("work", ["ack"]);
    let lines = host.settled(8);
    let acked: Vec<_> = lines.iter().filter(|line| line["outcome"] == "ack").collect();
    assert!(acked.len() == 2 && acked.iter().all(|line| line["attempt"] == 1), "{lines:?}");
    assert!(acked.iter().any(|line| line["message_id"] == "?"), "{lines:?}");
    assert!(lines.iter().all(|line| line["outcome"] != "lease-lost"), "{lines:?}");
    let told = |line: &serde_json::Value| line["message"].as_str().is_some_and(|text| text.contains("not UTF-8"));
    assert!(host.lines().iter().any(told), "{:?}", host.lines());
    until("they are dead letters", PATIENCE, || (world.depth("work").dead_lettered == 2).then_some(()));
    let peeked = world.output(&["peek", "work-dlq", "--json"]);
    assert!(peeked.code == 0 && peeked.stdout.contains("caf?"), "{peeked:?}");
    assert_eq!(host.stop(), 0);
}

/// Commands leave out what was sent after they began. A producer need not give the time.
#[test]
fn messages_without_a_time_are_shown_and_moved() {
    let server = RabbitMq::shared();
    let (world, prefix) = world_at(server, WORK);
    world.provision();
    publish(server, &format!("{prefix}work-dlq"), "{delivery_mode, 2}", "ack");
    for (args, shown) in [(["peek", "work-dlq"].as_slice(), "unknown (its producer"), (&["dlq", "ls", "work"], "amqp-")]
    {
        let said = world.output(args);
        assert!(said.code == 0 && said.stdout.contains(shown), "{said:?}");
    }
    let said = world.output(&["requeue", "--from", "work-dlq", "--to", "work"]);
    assert_eq!(said.code, 0, "{said:?}");
    let mut host = world.started();
    assert_eq!(host.settled(1)[0]["outcome"], "ack");
    assert_eq!(host.stop(), 0);
}

/// The server adds the count of deliveries to the headers, and sends the frame though it is then too large.
#[test]
fn headers_that_outgrow_a_frame_end_no_connection() {
    let server = RabbitMq::shared();
    let (world, prefix) = world_at(server, WORK);
    let mut host = world.started();
    let queue = format!("{prefix}work");
    publish(server, &queue, &large(FRAME_MAX - AROUND), "x1");
    let failed = host.settled(3);
    assert_eq!(field(&failed, "attempt"), [1, 2, 3], "{failed:?}");
    until("it is a dead letter", PATIENCE, || (world.depth("work").dead_lettered == 1).then_some(()));
    // As if it had been dead-lettered from queue to queue before.
    publish(server, &queue, &large(FRAME_MAX + 15 * 1024), "ack");
    assert_eq!(host.settled(4)[3]["outcome"], "ack");
    // No copy of it fits in a frame, so the server moves it.
    publish(server, &queue, &large(FRAME_MAX + 8 * 1024), "x1");
    let failed = host.settled(7);
    assert_eq!(field(&failed[4..], "attempt"), [1, 2, 3], "{failed:?}");
    until("the server has dead-lettered it", PATIENCE, || (world.depth("work").dead_lettered == 2).then_some(()));
    assert_eq!(world.depth("work").visible, 0, "it is settled");
    let is_lost = |line: &serde_json::Value| line["message"] == "lost the connection to RabbitMQ";
    assert!(!host.lines().iter().any(is_lost), "{:?}", host.lines());
    let peeked = world.output(&["peek", "work-dlq", "--json"]);
    assert!(peeked.code == 0 && peeked.stdout.len() > 2 * FRAME_MAX, "{}", peeked.stderr);
    assert_eq!(host.stop(), 0);
}

/// Its handler takes its hosts down, for example. The server moves it, whatever tells that the queue lets it do so.
#[tokio::test]
async fn a_worn_out_message_without_room_for_a_copy_becomes_a_dead_letter() {
    let server = spawn_blocking(RabbitMq::shared).await.unwrap();
    let spec = ChannelSpec { max_receives: Some(1), ..spec(false) };
    let management = || Some(server.management_url());
    for (create_missing, management_url) in [(true, None), (false, None), (false, management())] {
        let prefix = format!("{}-", unique("large"));
        broker(server, &prefix).await.open(&spec).await.unwrap();
        let options = Options { create_missing, management_url, ..options(server.url(), &prefix) };
        let broker = RabbitBroker::connect(options).await.unwrap();
        let queue = broker.open(&spec).await.unwrap();
        spawn_blocking(move || publish(server, &format!("{prefix}jobs"), &large(FRAME_MAX + 8 * 1024), "0"))
            .await
            .unwrap();
        let worn = next(&queue).await;
        queue.settle(vec![Settlement::Release(worn.receipt, Duration::ZERO)]).await.remove(0).unwrap();
        let deadline = Instant::now() + PATIENCE;
        while broker.depths(&[jobs()]).await.unwrap()[0].dead_lettered == 0 {
            assert!(Instant::now() < deadline, "it is not dead-lettered");
            let request = Receive { max: 1, wait: Duration::from_millis(100), lease: PATIENCE };
            assert!(queue.receive(request, &CancellationToken::new()).await.unwrap().is_empty());
        }
    }
}

/// Declares a queue that hands what it rejects to no other.
async fn declare_without_net(server: &RabbitMq, queue: &str, ordered: bool) {
    let client = Connection::connect(&server.url(), ConnectionProperties::default()).await.unwrap();
    let channel = client.create_channel().await.unwrap();
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    if ordered {
        arguments.insert("x-single-active-consumer".into(), AMQPValue::Boolean(true));
    }
    channel.queue_declare(queue.into(), QueueDeclareOptions::durable(), arguments).await.unwrap();
}

/// The queue of others has no net, so the server would lose what is rejected. What cannot be dead-lettered goes back or, where the
/// order counts, stays in hand.
#[tokio::test]
async fn a_message_without_room_for_a_copy_and_without_a_net_is_kept() {
    for ordered in [false, true] {
        let (server, prefix) = shared("netless").await;
        let name = format!("{prefix}jobs");
        declare_without_net(server, &name, ordered).await;
        let broker = broker(server, &prefix).await;
        let queue = broker.open(&spec(ordered)).await.unwrap();
        spawn_blocking(move || {
            publish(server, &name, &large(FRAME_MAX + 8 * 1024), "0");
            publish(server, &name, "{delivery_mode, 2}", "1");
        })
        .await
        .unwrap();
        let Delivery { receipt, message, .. } = next(&queue).await;
        let letter = Settlement::DeadLetter { receipt, message, reason: "why".to_owned() };
        let kept = queue.settle(vec![letter]).await.remove(0).unwrap_err();
        assert!(kept.error.to_string().contains("lacks the arguments") && kept.error.is_final(), "{:?}", kept.error);
        if ordered {
            assert!(matches!(kept.error, LeaseError::Refused(_)), "{:?}", kept.error);
            let more = receive(&queue, 1, Duration::from_secs(1)).await.unwrap();
            assert!(more.is_empty(), "the next one of its group came past it");
            let Settlement::DeadLetter { receipt, .. } = kept.settlement else { panic!("it is another settlement") };
            queue.settle(vec![Settlement::Release(receipt, Duration::ZERO)]).await.remove(0).unwrap();
        }
        let mut bodies = Vec::new();
        for _ in 0..2 {
            let delivery = next(&queue).await;
            bodies.push((body(&delivery), delivery.attempt));
            ack(&queue, delivery).await;
        }
        bodies.sort_unstable();
        assert_eq!(bodies, [(0, 2), (1, 1)]);
        assert_eq!(broker.depths(&[jobs()]).await.unwrap()[0].dead_lettered, 0);
    }
}

/// The client library would reserve memory for frames of any size.
#[test]
fn a_server_without_a_limit_to_frames_takes_no_host_down() {
    let server = RabbitMq::with("frame_max = 0\n");
    let (world, prefix) = world_at(&server, WORK);
    let mut host = world.started();
    publish(&server, &format!("{prefix}work"), &large(FRAME_MAX), "ack");
    assert_eq!(host.settled(1)[0]["outcome"], "ack");
    assert_eq!(host.stop(), 0);
}
