//! Settlements whose answers are lost: nobody knows if they took effect.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by a panic")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hostler_queue::{Broker as _, ChannelSpec, Delivery, LeaseError, Queue, Receive, Settlement};
use hostler_queue_nats::{Known, NatsBroker, Options};
use hostler_types::channel::Channel;
use hostler_types::message::Outgoing;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use support::{PATIENCE, Server};

const WAIT: Duration = Duration::from_secs(2);

/// A network that loses the connection right after it has carried a return to the server, once it is armed.
struct Network {
    url: String,
    armed: Arc<AtomicBool>,
}

impl Network {
    async fn before(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("nats://{}", listener.local_addr().unwrap());
        let (target, armed) = (server.url().replace("nats://", ""), Arc::new(AtomicBool::new(false)));
        let arms = Arc::clone(&armed);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&target).await.unwrap();
                tokio::spawn(carry(client, server, Arc::clone(&arms)));
            }
        });
        Self { url, armed }
    }
}

/// Carries what both sides say until one of them closes, or until a return is to be lost.
async fn carry(mut client: TcpStream, mut server: TcpStream, armed: Arc<AtomicBool>) {
    let (mut asked, mut told) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        tokio::select! {
            read = client.read(&mut asked) => {
                let Ok(count @ 1..) = read else { return };
                let said = &asked[..count];
                if server.write_all(said).await.is_err() {
                    return;
                }
                if said.windows(4).any(|part| part == b"-NAK") && armed.swap(false, Ordering::Relaxed) {
                    // The server takes what it was sent before the close.
                    let _ = server.shutdown().await;
                    while let Ok(1..) = server.read(&mut told).await {}
                    return;
                }
            }
            read = server.read(&mut told) => {
                let Ok(count @ 1..) = read else { return };
                if client.write_all(&told[..count]).await.is_err() {
                    return;
                }
            }
        }
    }
}

async fn open(url: &str, channel: &Channel) -> (NatsBroker, Arc<dyn Queue>) {
    let consumers = vec![Known::new(channel.clone())];
    let options = Options { url: url.to_owned(), create_missing: true, consumers, ..Options::default() };
    let broker = NatsBroker::connect(options).await.unwrap();
    let queue = broker.open(&ChannelSpec::new(channel.clone())).await.unwrap();
    (broker, queue)
}

async fn receive(queue: &Arc<dyn Queue>) -> Vec<Delivery> {
    let request = Receive { max: 1, wait: WAIT, lease: Duration::from_secs(30) };
    queue.receive(request, &CancellationToken::new()).await.unwrap()
}

/// The server knows no earlier delivery from the present one, so a second return would take the message from who has it since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_return_whose_answer_is_lost_is_not_repeated() {
    let server = Server::start();
    let (network, channel): (_, Channel) = (Network::before(&server).await, "work".parse().unwrap());
    let (_broker, first) = open(&network.url, &channel).await;
    let (sender, second) = open(&server.url(), &channel).await;
    assert!(sender.send(&channel, vec![Outgoing::default()]).await[0].is_ok());
    let delivery = receive(&first).await.remove(0);
    network.armed.store(true, Ordering::Relaxed);
    let mut settled = first.settle(vec![Settlement::Release(delivery.receipt, Duration::ZERO)]).await;
    assert!(!network.armed.load(Ordering::Relaxed), "the return was carried");
    let held = timeout(PATIENCE, async {
        loop {
            if let Some(delivery) = receive(&second).await.pop() {
                return delivery;
            }
        }
    });
    assert_eq!(held.await.unwrap().attempt, 2);
    // What a consumer does with an error that lets it.
    while let Some(Err(unsettled)) = settled.pop() {
        if !matches!(unsettled.error, LeaseError::Retry(_)) {
            break;
        }
        settled = first.settle(vec![unsettled.settlement]).await;
    }
    assert_eq!(receive(&second).await.len(), 0, "it was taken from its holder");
}
