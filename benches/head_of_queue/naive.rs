//! A consumer that requeues what fails, by `basic.nack` with `requeue`. It has as many slots as hostler.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lapin::message::DeliveryResult;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicNackOptions, BasicPublishOptions, BasicQosOptions, QueueDeclareOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use tokio::time::{sleep, timeout};

use crate::{BAD, GOOD, LENGTH, Result, SLOTS, WORK};

/// Times at which the good messages were acked.
#[derive(Clone)]
struct Acks {
    begun: Instant,
    times: Arc<Mutex<Vec<f64>>>,
}

/// Runs the consumer on a classic queue. Returns the seconds at which the good messages were acked.
pub async fn run(url: &str, queue: &str) -> Result<Vec<f64>> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(queue.into(), durable, FieldTable::default()).await?;
    fill(&channel, queue).await?;
    channel.basic_qos(SLOTS, BasicQosOptions::default()).await?;
    let acks = Acks { begun: Instant::now(), times: Arc::default() };
    let consuming =
        channel.basic_consume(queue.into(), "".into(), BasicConsumeOptions::default(), FieldTable::default());
    let (consumer, seen) = (consuming.await?, acks.clone());
    // The client runs this for each message, up to the prefetch at a time.
    consumer.set_delegate(move |delivered: DeliveryResult| {
        let acks = acks.clone();
        async move {
            if let Err(error) = handle(delivered, &acks).await
                && acks.begun.elapsed() < LENGTH
            {
                eprintln!("the naive consumer: {error}");
            }
        }
    });
    let all_done = async {
        while seen.times.lock().unwrap_or_else(PoisonError::into_inner).len() < GOOD {
            sleep(Duration::from_millis(50)).await;
        }
    };
    let _ = timeout(LENGTH, all_done).await;
    connection.close(200, "the measurement is over".into()).await?;
    Ok(seen.times.lock().unwrap_or_else(PoisonError::into_inner).clone())
}

/// Sends the bad messages, and the good ones behind them.
async fn fill(channel: &Channel, queue: &str) -> Result<()> {
    let bodies = std::iter::repeat_n(b"bad", BAD).map(|body| &body[..]).chain(std::iter::repeat_n(&b"good"[..], GOOD));
    let properties = BasicProperties::default().with_delivery_mode(2);
    for body in bodies {
        let options = BasicPublishOptions::default();
        channel.basic_publish("".into(), queue.into(), options, body, properties.clone()).await?.await?;
    }
    Ok(())
}

async fn handle(delivered: DeliveryResult, acks: &Acks) -> lapin::Result<()> {
    let Some(delivery) = delivered? else { return Ok(()) };
    sleep(WORK).await;
    if delivery.data.starts_with(b"b") {
        return delivery.acker.nack(BasicNackOptions { requeue: true, ..BasicNackOptions::default() }).await.map(drop);
    }
    delivery.acker.ack(BasicAckOptions::default()).await?;
    acks.times.lock().unwrap_or_else(PoisonError::into_inner).push(acks.begun.elapsed().as_secs_f64());
    Ok(())
}
