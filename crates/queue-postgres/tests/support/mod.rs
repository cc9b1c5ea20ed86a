//! Brokers over a real server, and calls to them.
#![allow(dead_code, reason = "no test needs all of it")]

use std::sync::Arc;
use std::time::Duration;

use hostler_queue::{
    Begin, Broker as _, ChannelSpec, Delivery, Finish, Hold, Queue, QueueError, Receive, RecordId, Records,
};
use hostler_queue_postgres::{Options, PostgresBroker};
use hostler_types::message::Outgoing;
use tokio_util::sync::CancellationToken;

pub const LONG: Duration = Duration::from_secs(60);
pub const PATIENCE: Duration = Duration::from_secs(30);

pub async fn connect(url: &str) -> PostgresBroker {
    broker(Options { url: url.to_owned(), create_missing: true, ..Options::default() }).await
}

pub async fn broker(options: Options) -> PostgresBroker {
    PostgresBroker::connect(options).await.unwrap()
}

pub fn spec(channel: &str) -> ChannelSpec {
    ChannelSpec { max_receives: Some(5), ..ChannelSpec::new(channel.parse().unwrap()) }
}

pub fn text(body: &str) -> Outgoing {
    Outgoing { body: body.into(), ..Outgoing::default() }
}

pub async fn send(broker: &PostgresBroker, channel: &str, batch: Vec<Outgoing>) {
    for sent in broker.send(&channel.parse().unwrap(), batch).await {
        sent.unwrap();
    }
}

pub async fn receive(queue: &Arc<dyn Queue>, max: usize, wait: Duration) -> Vec<Delivery> {
    let request = Receive { max, wait, lease: LONG };
    queue.receive(request, &CancellationToken::new()).await.unwrap()
}

pub fn records(broker: &PostgresBroker) -> Arc<dyn Records> {
    broker.records().unwrap()
}

pub fn hold(key: &str, token: i64) -> Hold {
    Hold { record: RecordId::new("orders", key), token }
}

/// Returns the start of a run that does not take over.
pub fn run(key: &str, token: i64) -> Begin {
    let (label, body) = (format!("orders {key}"), [1; 32]);
    Begin { hold: hold(key, token), label, body, lease: LONG, ttl: LONG * 60, takes_over: false }
}

pub fn taking_over(key: &str, token: i64) -> Begin {
    Begin { takes_over: true, ..run(key, token) }
}

pub fn finish(key: &str, token: i64, reply: &str) -> Finish {
    Finish { hold: hold(key, token), ttl: LONG * 60, reply: Some(reply.into()), unsent: None }
}

pub fn refusal<T>(answer: Result<T, QueueError>) -> String {
    match answer {
        Err(QueueError::Refused(text)) => text,
        Err(error) => panic!("not refused: {error}"),
        Ok(_) => panic!("not refused"),
    }
}
