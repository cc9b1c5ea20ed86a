//! Deliveries must not be lost on their way: on a stop, a rest, a full host, or a copy that does not fit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::RequestErrorKind;
use hostler_queue::{Admin, Broker, ChannelSpec, Receive, Settlement, SubjectSpec};
use hostler_types::message::Outgoing;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::driver::{LONG, PATIENCE, body, channel, connect, next, receive, send, settle, spec, text};
use crate::support::nats::{Nats, Version};
use crate::support::servers::unique;

/// A client beside hostler.
pub(super) async fn client(version: Version) -> async_nats::Client {
    let server = tokio::task::spawn_blocking(move || Nats::shared(version)).await.unwrap();
    async_nats::connect(server.url()).await.unwrap()
}

/// A delivery that is lost on its way comes again after the server's timer, as attempt 2.
#[tokio::test]
async fn stops_and_rests_lose_no_delivery() {
    const MESSAGES: usize = 600;
    for version in Version::ALL {
        let prefix = format!("{}-", unique("s"));
        let broker = Arc::new(connect(version, &prefix, Vec::new()).await);
        let queue = broker.open(&spec("jobs")).await.unwrap();
        let sender = Arc::clone(&broker);
        let sending = tokio::spawn(async move {
            for _ in 0..MESSAGES / 3 {
                send(&sender, "jobs", vec![text("x"); 3]).await;
            }
        });
        let (mut received, deadline) = (0, Instant::now() + PATIENCE);
        for turn in 0.. {
            if received >= MESSAGES {
                break;
            }
            assert!(Instant::now() < deadline, "{version:?}: {received} of {MESSAGES} came");
            let stop = CancellationToken::new();
            let request = Receive { max: 2, wait: Duration::from_secs(5), lease: LONG };
            let stopping = async {
                sleep(Duration::from_millis(turn % 7)).await;
                stop.cancel();
            };
            let (deliveries, ()) = tokio::join!(queue.receive(request, &stop), stopping);
            for delivery in deliveries.unwrap() {
                assert_eq!(delivery.attempt, 1, "{version:?}: a delivery was lost");
                received += 1;
                settle(&queue, Settlement::Ack(delivery.receipt)).await;
            }
            if turn % 5 == 0 {
                queue.rest().await;
            }
        }
        sending.await.unwrap();
    }
}

/// A request that is lost leaves its sender without an answer.
#[tokio::test]
async fn a_full_host_loses_no_request() {
    for version in Version::ALL {
        let (broker, sender) = (connect(version, "", Vec::new()).await, client(version).await);
        let subject = format!("{}.a", unique("full"));
        let of = SubjectSpec { subject: subject.clone(), queue_group: "all".to_owned() };
        let queue = broker.open(&ChannelSpec { subject: Some(of), window: 2, ..spec("full") }).await.unwrap();
        let done = Arc::new(AtomicBool::new(false));
        let answered = Arc::new(AtomicUsize::new(0));
        let host = tokio::spawn({
            let (queue, done) = (Arc::clone(&queue), Arc::clone(&done));
            async move {
                for turn in 0.. {
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                    for delivery in receive(&queue, 2, Duration::from_millis(20)).await {
                        settle(&queue, Settlement::Ack(delivery.receipt)).await;
                    }
                    if turn % 10 == 9 {
                        queue.rest().await;
                    }
                }
            }
        });
        let asking = (0..8).map(|_| {
            let (sender, subject, answered) = (sender.clone(), subject.clone(), Arc::clone(&answered));
            tokio::spawn(async move {
                for _ in 0..300 {
                    match sender.request(subject.clone(), "x".into()).await {
                        Ok(answer) if answer.payload.starts_with(b"+ACK") => answered.fetch_add(1, Ordering::Relaxed),
                        Ok(_) => 0,
                        Err(error) => {
                            assert_eq!(error.kind(), RequestErrorKind::NoResponders, "no answer came");
                            0
                        }
                    };
                }
            })
        });
        for one in asking.collect::<Vec<_>>() {
            one.await.unwrap();
        }
        done.store(true, Ordering::Relaxed);
        host.await.unwrap();
        assert!(answered.load(Ordering::Relaxed) > 50, "{version:?}: {answered:?}");
    }
}

/// A host that receives nothing for a while, because its slots are taken, does not keep messages that others could have.
#[tokio::test]
async fn a_busy_host_gives_back_what_waits_for_its_groups() {
    let prefix = format!("{}-", unique("b"));
    let version = Version::Newest;
    let (one, other) = (connect(version, &prefix, Vec::new()).await, connect(version, &prefix, Vec::new()).await);
    let ordered = ChannelSpec { ordered: true, ..spec("jobs") };
    let (first, second) = (one.open(&ordered).await.unwrap(), other.open(&ordered).await.unwrap());
    let grouped = |body: &str| Outgoing { group: Some("a".to_owned()), ..text(body) };
    send(&one, "jobs", ["a1", "a2", "a3"].map(grouped).to_vec()).await;
    let head = receive(&first, 10, PATIENCE).await.remove(0);
    assert!(receive(&first, 10, Duration::from_millis(200)).await.is_empty(), "the others wait for the first");
    settle(&first, Settlement::Ack(head.receipt)).await;
    let begun = Instant::now();
    let after = next(&second).await;
    assert_eq!((body(&after), after.attempt), ("a2", 1));
    assert!(begun.elapsed() < Duration::from_secs(10), "not only when the server's timer ends: {:?}", begun.elapsed());
}

/// Another client may send messages as large as the server takes, which leaves no room for the headers of a copy.
#[tokio::test]
async fn a_message_without_room_for_more_headers_passes_its_exchange_and_can_be_dead_lettered() {
    for version in Version::ALL {
        let prefix = format!("{}-", unique("l"));
        let (broker, sender) = (connect(version, &prefix, Vec::new()).await, client(version).await);
        let queue = broker.open(&spec("shop.jobs")).await.unwrap();
        let most = vec![b'x'; 1 << 20];
        sender.request(format!("{prefix}shop.EU"), most.clone().into()).await.unwrap();
        send(&broker, "shop", vec![text("small")]).await;
        let mut sizes = Vec::new();
        for _ in 0..2 {
            let delivery = next(&queue).await;
            sizes.push(delivery.message.body.len());
            let (receipt, message) = (delivery.receipt, delivery.message);
            settle(&queue, Settlement::DeadLetter { receipt, message, reason: "why".to_owned() }).await;
        }
        sizes.sort_unstable();
        assert_eq!(sizes, [5, most.len()], "{version:?}");
        let depth = broker.depths(&[channel("shop.jobs")]).await.unwrap()[0];
        assert_eq!((depth.dead_lettered, depth.visible), (2, 0), "{version:?}");
    }
}

/// Without that, each would stay for weeks.
#[tokio::test]
async fn a_note_goes_with_its_message() {
    for version in Version::ALL {
        let prefix = format!("{}-", unique("n"));
        let (broker, sender) = (connect(version, &prefix, Vec::new()).await, client(version).await);
        let queue = broker.open(&spec("jobs")).await.unwrap();
        let notes = async || {
            let subject = format!("$JS.API.STREAM.INFO.{prefix}hostler~notes");
            let info = sender.request(subject, "".into()).await.unwrap();
            serde_json::from_slice::<serde_json::Value>(&info.payload).unwrap()["state"]["messages"].as_u64()
        };
        send(&broker, "jobs", vec![text("x")]).await;
        let delivery = next(&queue).await;
        settle(&queue, Settlement::GiveBack(delivery.receipt, Duration::ZERO)).await;
        assert_eq!(notes().await, Some(1));
        let again = next(&queue).await;
        assert_eq!(again.attempt, 1);
        settle(&queue, Settlement::Ack(again.receipt)).await;
        let deadline = Instant::now() + PATIENCE;
        while notes().await != Some(0) {
            assert!(Instant::now() < deadline, "{version:?}: the note stays");
            sleep(Duration::from_millis(10)).await;
        }
    }
}
