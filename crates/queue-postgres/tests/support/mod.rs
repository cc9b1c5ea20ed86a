//! Brokers over a real server, and calls to them.
#![allow(dead_code, reason = "no test needs all of it")]

use std::sync::Arc;
use std::time::Duration;

use hostler_queue::{Broker as _, ChannelSpec, Delivery, Queue, Receive};
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
