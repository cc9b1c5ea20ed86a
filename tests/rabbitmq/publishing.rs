//! What publishing a batch says about each of its messages.

use std::sync::Arc;
use std::time::Duration;

use hostler_queue::{Admin, Broker, ChannelSpec, Delivery, LeaseError, Queue, QueueError, Settlement};
use hostler_queue_rabbitmq::{Options, RabbitBroker};
use hostler_types::message::{AttributeValue, Outgoing};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::driver::{Network, PATIENCE, ack, connect, jobs, next, options, receive, send, spec};
use crate::support::rabbitmq::RabbitMq;
use crate::support::servers::unique;

/// Receives this many messages.
async fn taken(queue: &Arc<dyn Queue>, count: usize) -> Vec<Delivery> {
    let (mut taken, deadline) = (Vec::new(), Instant::now() + PATIENCE);
    while taken.len() < count {
        assert!(Instant::now() < deadline, "{} of {count}", taken.len());
        taken.extend(receive(queue, count - taken.len(), Duration::from_secs(1)).await.unwrap());
    }
    taken
}

fn dead_letter(delivery: Delivery) -> Settlement {
    Settlement::DeadLetter { receipt: delivery.receipt, message: delivery.message, reason: "why".to_owned() }
}

/// The server confirms messages that it has returned like others, and several at once.
#[tokio::test]
async fn a_copy_that_reached_no_queue_is_told_from_those_that_did() {
    const BATCHES: usize = 8;
    const SIZE: usize = 64;
    let server = tokio::task::spawn_blocking(RabbitMq::shared).await.unwrap();
    let prefix = format!("{}-", unique("returned"));
    let broker = connect(server.url(), &prefix).await;
    let wide = ChannelSpec { window: BATCHES * SIZE, ..spec(false) };
    let queue = broker.open(&wide).await.unwrap();
    send(&broker, BATCHES * SIZE, None).await;
    let dlq = format!("{prefix}jobs-dlq");
    tokio::task::spawn_blocking(move || server.ctl(&["delete_queue", &dlq])).await.unwrap();
    let mut settling = JoinSet::new();
    for _ in 0..BATCHES {
        let batch = taken(&queue, SIZE).await.into_iter().enumerate().map(|(n, delivery)| match n % 2 {
            0 => Settlement::Release(delivery.receipt, Duration::from_secs(1)),
            _ => dead_letter(delivery),
        });
        let (queue, batch) = (Arc::clone(&queue), batch.collect());
        settling.spawn(async move { queue.settle(batch).await });
    }
    let mut wrong = Vec::new();
    for settled in settling.join_all().await {
        for (n, settled) in settled.into_iter().enumerate() {
            let is_right = match settled.as_ref().map_err(|unsettled| &unsettled.error) {
                Ok(()) => n % 2 == 0,
                Err(error) => n % 2 == 1 && matches!(error, LeaseError::Refused(_)),
            };
            wrong.extend((!is_right).then(|| format!("{n}: {:?}", settled.err().map(|unsettled| unsettled.error))));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// A message that the server refuses ends the channel, and with it the confirms of others.
#[tokio::test]
async fn a_refused_copy_does_not_fail_the_others() {
    let server = tokio::task::spawn_blocking(RabbitMq::shared).await.unwrap();
    let prefix = format!("{}-", unique("refused"));
    let own_ladder = Options { ladder_prefix: None, ..options(server.url(), &prefix) };
    let broker = RabbitBroker::connect(own_ladder).await.unwrap();
    let queue = broker.open(&spec(false)).await.unwrap();
    send(&broker, 20, None).await;
    let level = format!("rabbit_misc:r(<<\"/\">>, exchange, <<\"{prefix}hostler.delay.05\">>)");
    let deletion = format!("rabbit_exchange:delete({level}, false, <<\"a test\">>).");
    tokio::task::spawn_blocking(move || server.ctl(&["eval", &deletion])).await.unwrap();
    let batch = taken(&queue, 20).await.into_iter().enumerate().map(|(n, delivery)| match n {
        10 => Settlement::Release(delivery.receipt, Duration::from_secs(32)),
        _ => dead_letter(delivery),
    });
    let settled = queue.settle(batch.collect()).await;
    let failed: Vec<_> = settled.iter().enumerate().filter(|(_, settled)| settled.is_err()).map(|(n, _)| n).collect();
    assert_eq!(failed, [10], "{settled:?}");
    assert!(broker.depths(&[jobs()]).await.unwrap()[0].dead_lettered >= 19);
}

/// By these headers, the server would route a message to further queues.
#[tokio::test]
async fn a_message_goes_to_its_channel_alone() {
    let server = tokio::task::spawn_blocking(RabbitMq::shared).await.unwrap();
    let prefix = format!("{}-", unique("cc"));
    let broker = connect(server.url(), &prefix).await;
    let queue = broker.open(&spec(false)).await.unwrap();
    let attributes = [("CC".to_owned(), AttributeValue::Text(format!("{prefix}jobs-dlq")))].into();
    let sent = broker.send(&jobs(), vec![Outgoing { attributes, ..Outgoing::default() }]).await;
    sent.into_iter().for_each(|sent| drop(sent.unwrap()));
    ack(&queue, next(&queue).await).await;
    assert_eq!(broker.depths(&[jobs()]).await.unwrap()[0].dead_lettered, 0);
}

/// A silent network, which the heartbeats would notice only after minutes.
#[tokio::test]
async fn a_server_that_does_not_answer_is_given_up_in_time() {
    let server = tokio::task::spawn_blocking(RabbitMq::shared).await.unwrap();
    let network = Network::before(server).await;
    let prefix = format!("{}-", unique("mute"));
    let url = format!("amqp://guest:guest@127.0.0.1:{}", network.port);
    let slow = Options { heartbeat: Duration::from_secs(120), ..options(url, &prefix) };
    let broker = RabbitBroker::connect(slow).await.unwrap();
    broker.open(&spec(false)).await.unwrap();
    network.silent.send_replace(true);
    let (channels, channel) = ([jobs()], jobs());
    let asked = async { tokio::join!(broker.depths(&channels), broker.send(&channel, vec![Outgoing::default()])) };
    let (depths, mut sent) = timeout(2 * PATIENCE, asked).await.unwrap();
    assert!(matches!(depths, Err(QueueError::Unavailable(_))), "{depths:?}");
    assert!(sent.remove(0).is_err());
}
