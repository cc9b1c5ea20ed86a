//! RabbitMQ by lapin alone: the bare loop, the publisher of the messages, and the counts of a queue.

use std::future::poll_fn;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use futures_core::Stream as _;
use futures_util::future::join_all;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
    QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, Consumer};
use serde_json::Value;
use tokio::task::JoinSet;

use crate::Result;
use crate::messages::{self, Form};

/// Number of channels that publish at the same time.
const CHANNELS: u32 = 16;

/// Number of messages that a channel publishes before it waits for their confirms.
const BATCH: usize = 200;

/// Bodies have at least this size in bytes.
const BODY_BYTES: usize = 256;

/// Persistent messages in AMQP (delivery mode).
const PERSISTENT: u8 = 2;

/// Queue and number of messages that the server may send ahead.
#[derive(Debug)]
pub struct Bare {
    /// URL of the server.
    pub url: String,
    /// Name of the queue.
    pub queue: String,
    /// Number of messages that the server may send ahead.
    pub prefetch: u16,
    /// Set if one ack is for all messages that had arrived.
    pub multiple: bool,
}

/// Consumes without end. One task does the work on the messages in their order, so an ack may be for all messages before.
pub async fn consume(bare: Bare) -> Result<()> {
    let connection = connect(&bare.url).await?;
    let channel = connection.create_channel().await?;
    channel.basic_qos(bare.prefetch, BasicQosOptions::default()).await?;
    let (options, none) = (BasicConsumeOptions::default(), FieldTable::default());
    let mut consumer = channel.basic_consume(bare.queue.as_str().into(), "".into(), options, none).await?;
    loop {
        let mut tags = Vec::new();
        for delivery in arrived(&mut consumer).await? {
            if !work::holds(&delivery.data) {
                return Err("a body is not what it says".into());
            }
            tags.push(delivery.delivery_tag);
        }
        if bare.multiple {
            tags.drain(..tags.len() - 1);
        }
        let ack = |tag| channel.basic_ack(tag, BasicAckOptions { multiple: bare.multiple });
        // In one go: the client library wakes its thread once.
        for acked in join_all(tags.into_iter().map(ack)).await {
            acked?;
        }
    }
}

/// Waits for a message. Returns all that have arrived.
async fn arrived(consumer: &mut Consumer) -> Result<Vec<Delivery>> {
    let ended = || "the server sends no more messages";
    let mut deliveries = vec![poll_fn(|cx| Pin::new(&mut *consumer).poll_next(cx)).await.ok_or_else(ended)??];
    let mut cx = Context::from_waker(Waker::noop());
    while let Poll::Ready(next) = Pin::new(&mut *consumer).poll_next(&mut cx) {
        deliveries.push(next.ok_or_else(ended)??);
    }
    Ok(deliveries)
}

/// Connects to a server.
pub async fn connect(url: &str) -> Result<Connection> {
    Ok(Connection::connect(url, ConnectionProperties::default()).await?)
}

/// Returns the number of ready messages in a queue, and the number of its consumers.
pub async fn count(connection: &Connection, queue: &str) -> Result<(u32, u32)> {
    let channel = connection.create_channel().await?;
    let options = QueueDeclareOptions { passive: true, durable: true, ..QueueDeclareOptions::default() };
    let found = channel.queue_declare(queue.into(), options, FieldTable::default()).await?;
    channel.close(200, "".into()).await?;
    Ok((found.message_count(), found.consumer_count()))
}

/// Publishes the orders with these numbers, and waits until the server has confirmed all of them.
pub async fn publish(connection: &Connection, queue: &str, form: Form, numbers: Range<u32>) -> Result<()> {
    let mut tasks: JoinSet<Result<()>> = JoinSet::new();
    for first in 0..CHANNELS {
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        let (queue, numbers) = (queue.to_owned(), numbers.clone());
        tasks.spawn(async move {
            let numbers = numbers.skip(first as usize).step_by(CHANNELS as usize);
            publish_all(&channel, &queue, form, numbers).await?;
            Ok(channel.close(200, "".into()).await?)
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

async fn publish_all(channel: &Channel, queue: &str, form: Form, numbers: impl Iterator<Item = u32>) -> Result<()> {
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let mut numbers = numbers.peekable();
    while numbers.peek().is_some() {
        let mut confirms = Vec::with_capacity(BATCH);
        for number in numbers.by_ref().take(BATCH) {
            let (body, properties) = message(form, number)?;
            let published = channel.basic_publish("".into(), queue.into(), options, body.as_bytes(), properties);
            confirms.push(published.await?);
        }
        for confirm in confirms {
            if !matches!(confirm.await?, Confirmation::Ack(None)) {
                return Err(format!("the server did not store a message in the queue `{queue}`").into());
            }
        }
    }
    Ok(())
}

/// Returns the body and the properties of the message with this number.
fn message(form: Form, number: u32) -> Result<(String, BasicProperties)> {
    let body = messages::body(number, BODY_BYTES)?;
    let properties = BasicProperties::default()
        .with_message_id(number.to_string().into())
        .with_content_type("application/json".into())
        .with_delivery_mode(PERSISTENT);
    Ok(match form {
        Form::Plain => (body, properties),
        Form::Celery => {
            let (body, id, headers) = messages::celery_call(&body, number);
            let properties = properties.with_content_encoding("utf-8".into()).with_correlation_id(id.into());
            (body, properties.with_headers(table(&headers)))
        }
    })
}

/// Returns headers in AMQP's form.
fn table(headers: &Value) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in headers.as_object().into_iter().flatten() {
        table.insert(name.as_str().into(), header(value));
    }
    table
}

fn header(value: &Value) -> AMQPValue {
    match value {
        Value::Null => AMQPValue::Void,
        Value::Bool(value) => AMQPValue::Boolean(*value),
        Value::Number(number) => AMQPValue::LongLongInt(number.as_i64().unwrap_or_default()),
        Value::String(text) => AMQPValue::LongString(text.as_str().into()),
        Value::Array(values) => AMQPValue::FieldArray(values.iter().map(header).collect::<Vec<_>>().into()),
        Value::Object(_) => AMQPValue::FieldTable(table(value)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn headers_keep_their_types() {
        let headers = table(&json!({ "task": "t", "retries": 0, "eta": null, "timelimit": [null], "stamps": {} }));
        let kinds: String = headers.inner().values().map(|value| value.get_type().get_id()).collect();
        assert_eq!(kinds.chars().collect::<std::collections::BTreeSet<_>>(), "SlVAF".chars().collect());
    }

    #[test]
    fn both_forms_carry_the_same_order() {
        let (plain, _) = message(Form::Plain, 7).unwrap();
        let (celery, properties) = message(Form::Celery, 7).unwrap();
        assert_eq!(plain.len(), BODY_BYTES);
        assert!(work::holds(plain.as_bytes()) && celery.contains(&plain), "{celery}");
        assert!(properties.headers().as_ref().unwrap().contains_key("task"));
    }
}
