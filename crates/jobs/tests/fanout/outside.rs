//! A worker outside of hostler: consumes the ids of a type's queue, and assigns their items over HTTP.

use std::collections::BTreeMap;

use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicGetOptions, BasicPublishOptions, QueuePurgeOptions};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use serde_json::json;

use crate::support::{Server, until};

/// Returns the queue of a type.
fn queue(kind: &str) -> String {
    format!("hostler.jobs.{kind}")
}

/// The answers that a worker got, and the items that it has processed.
#[derive(Debug, Default)]
pub struct Seen {
    pub processed: BTreeMap<String, usize>,
    pub refused: usize,
}

/// Connects, as soon as the server takes it.
pub async fn channel(url: &str) -> Channel {
    let mut opened = None;
    for _ in 0..200 {
        if let Ok(connection) = Connection::connect(url, ConnectionProperties::default()).await
            && let Ok(channel) = connection.create_channel().await
        {
            opened = Some(channel);
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    opened.expect("RabbitMQ takes a connection in time")
}

/// Gets one id of a type. `None`: the queue is empty or missing; then the channel may be closed.
pub async fn get(channel: &Channel, kind: &str) -> Option<Delivery> {
    let message = channel.basic_get(queue(kind).into(), BasicGetOptions::default()).await.ok()??;
    Some(message.delivery)
}

/// Waits for an id of a type, and acks its message.
pub async fn next(url: &str, kind: &str) -> String {
    let found = std::sync::Mutex::new(None);
    until(|| async {
        let channel = channel(url).await;
        let Some(delivery) = get(&channel, kind).await else { return false };
        delivery.acker.ack(BasicAckOptions::default()).await.unwrap();
        *found.lock().unwrap() = Some(String::from_utf8(delivery.data).unwrap());
        true
    })
    .await;
    found.into_inner().unwrap().unwrap()
}

/// Processes one item, unless it is not available. Acks the message afterwards.
pub async fn process(server: &Server, delivery: Delivery, seen: &mut Seen) {
    let id = String::from_utf8(delivery.data.clone()).unwrap();
    let (status, assigned) = server.poke(&format!("/job_item/{id}/worker/outside")).await;
    if status == 201 {
        let assignment = assigned["assignment_id"].as_str().unwrap();
        let answer = server.post(&format!("/assignment/{assignment}/result"), &json!({ "result": 1 })).await;
        assert_eq!(answer.0, 200, "{answer:?}");
        *seen.processed.entry(id).or_default() += 1;
    } else {
        assert_eq!(status, 409, "{assigned}");
        seen.refused += 1;
    }
    // After a loss of the connection, the id comes again.
    let _ = delivery.acker.ack(BasicAckOptions::default()).await;
}

/// Publishes ids to the queue of a type, as somebody else might.
pub async fn publish(channel: &Channel, kind: &str, ids: &[String]) {
    for id in ids {
        let options = BasicPublishOptions::default();
        channel
            .basic_publish("".into(), queue(kind).into(), options, id.as_bytes(), BasicProperties::default())
            .await
            .unwrap();
    }
}

/// Removes all ready messages of the queue of a type. Returns their number.
pub async fn purge(channel: &Channel, kind: &str) -> u32 {
    channel.queue_purge(queue(kind).into(), QueuePurgeOptions::default()).await.unwrap()
}
