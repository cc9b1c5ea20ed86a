//! Groups of an ordered queue on a real server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by a panic")]

mod support;

use std::time::Duration;

use hostler_queue::{Broker as _, ChannelSpec, Receive, Settlement};
use hostler_queue_nats::{Known, NatsBroker, Options};
use hostler_types::channel::Channel;
use hostler_types::message::Outgoing;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use support::{PATIENCE, Server};

/// Delay of the first of the group.
const PAUSE: Duration = Duration::from_secs(3600);

/// The first of a group waits for long, and more messages follow it than are held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_is_held_up_keeps_no_other_group_waiting() {
    let server = Server::start();
    let channel: Channel = "work".parse().unwrap();
    let known = Known { ordered: true, ..Known::new(channel.clone()) };
    let options = Options { url: server.url(), create_missing: true, consumers: vec![known], ..Options::default() };
    let broker = NatsBroker::connect(options).await.unwrap();
    let queue = broker.open(&ChannelSpec { ordered: true, ..ChannelSpec::new(channel.clone()) }).await.unwrap();
    let message = |group: &str, size: usize| Outgoing {
        group: Some(group.to_owned()),
        body: vec![b'x'; size],
        ..Outgoing::default()
    };
    let (receive, stop) =
        (Receive { max: 64, wait: Duration::from_secs(1), lease: Duration::from_secs(30) }, CancellationToken::new());
    let send = async |batch: Vec<Outgoing>| {
        assert!(broker.send(&channel, batch).await.iter().all(Result::is_ok));
    };
    send(vec![message("a", 1)]).await;
    let first = queue.receive(receive, &stop).await.unwrap().remove(0);
    assert!(queue.settle(vec![Settlement::Release(first.receipt, PAUSE)]).await[0].is_ok());
    // Together more than the bytes that are held.
    for _ in 0..16 {
        send((0..16).map(|_| message("a", 1 << 19)).collect()).await;
    }
    send(vec![message("b", 1)]).await;
    let received = async || loop {
        let received = queue.receive(receive, &stop).await.unwrap();
        if let Some(delivery) = received.into_iter().next() {
            return delivery;
        }
    };
    let other = timeout(PATIENCE, received()).await.expect("the other group waits");
    assert_eq!(other.message.group.as_deref(), Some("b"));
}
