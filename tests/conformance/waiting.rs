//! A receive waits for the first message as long as it may, and no longer than it must.

use std::sync::Mutex;

use super::*;

pub async fn send_wakes<H: Harness>(harness: &H) {
    let (broker, sender) = (harness.broker().await, harness.broker().await);
    let queue = broker.open(&spec("jobs")).await.unwrap();
    let (received, sent) = tokio::join!(woken(&queue), send(&sender, "jobs", vec![text("a")]));
    assert_eq!(received.message.id, sent[0].id);
}

pub async fn release_wakes<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&spec("jobs")).await.unwrap();
    send(&broker, "jobs", vec![text("a")]).await;
    let leased = next(&queue, LONG).await;
    let (received, ()) =
        tokio::join!(woken(&queue), settle(&queue, Settlement::Release(leased.receipt, Duration::ZERO)));
    assert_eq!(received.attempt, 2);
}

pub async fn next_of_group_wakes<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&ordered("jobs")).await.unwrap();
    send(&broker, "jobs", vec![grouped("1", "g"), grouped("2", "g")]).await;
    let leased = next(&queue, LONG).await;
    let (received, ()) = tokio::join!(woken(&queue), settle(&queue, Settlement::Ack(leased.receipt)));
    assert_eq!(&*received.message.body, b"2");
}

pub async fn no_wait_answers_at_once<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&spec("jobs")).await.unwrap();
    let started = Instant::now();
    assert!(take(&queue, 10).await.is_empty());
    assert!(started.elapsed() < PATIENCE / 2);
}

pub async fn wait_ends_empty<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&spec("jobs")).await.unwrap();
    send(&broker, "jobs", vec![Outgoing { delay: LONG, ..text("later") }]).await;
    let started = Instant::now();
    assert!(receive(&queue, 10, H::TICK, LONG).await.is_empty());
    assert!((H::TICK..PATIENCE / 2).contains(&started.elapsed()), "{:?}", started.elapsed());
}

pub async fn stop_ends_the_wait<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&spec("jobs")).await.unwrap();
    let stop = CancellationToken::new();
    let request = Receive { max: 10, wait: PATIENCE, lease: LONG };
    let started = Instant::now();
    let (received, ()) = tokio::join!(queue.receive(request, &stop), async { stop.cancel() });
    assert!(received.unwrap().is_empty());
    assert!(started.elapsed() < PATIENCE / 2, "{:?}", started.elapsed());
}

pub async fn stopped_before<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&spec("jobs")).await.unwrap();
    send(&broker, "jobs", vec![text("a")]).await;
    let stop = CancellationToken::new();
    stop.cancel();
    let request = Receive { max: 10, wait: PATIENCE, lease: LONG };
    assert!(queue.receive(request, &stop).await.unwrap().is_empty());
    assert_eq!(take(&queue, 10).await[0].attempt, 1, "it took nothing");
}

pub async fn batch_size_is_kept<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    // Nothing is settled, so a window would end the test.
    let queue = broker.open(&ChannelSpec { window: 1000, ..spec("jobs") }).await.unwrap();
    let limit = queue.limits().receive_batch;
    send(&broker, "jobs", vec![text("a"); limit + 3]).await;
    assert_eq!(take(&queue, 2).await.len(), 2);
    let mut left = limit + 1;
    while left > 0 {
        let received = receive(&queue, limit, PATIENCE, LONG).await.len();
        assert!((1..=limit.min(left)).contains(&received));
        left -= received;
    }
}

pub async fn receivers_share<H: Harness>(harness: &H) {
    const MESSAGES: usize = 200;
    let broker = harness.broker().await;
    let queue = broker.open(&spec("jobs")).await.unwrap();
    let received = Mutex::new(Vec::new());
    let drain = async || {
        let queue = harness.broker().await.open(&spec("jobs")).await.unwrap();
        while received.lock().unwrap().len() < MESSAGES {
            for delivery in receive(&queue, 7, H::TICK, LONG).await {
                received.lock().unwrap().push(delivery.message.id.clone());
                settle(&queue, Settlement::Ack(delivery.receipt)).await;
            }
        }
    };
    let sending = async {
        for _ in 0..MESSAGES / 20 {
            send(&broker, "jobs", vec![text("a"); 20]).await;
        }
    };
    tokio::join!(drain(), drain(), sending);
    assert!(take(&queue, 10).await.is_empty());
    let mut ids = received.into_inner().unwrap();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), MESSAGES, "each message once");
}

/// A message that comes while the receive waits, well before the wait ends.
async fn woken(queue: &Arc<dyn Queue>) -> Delivery {
    let started = Instant::now();
    let delivery = next(queue, LONG).await;
    assert!(started.elapsed() < PATIENCE / 2, "{:?}", started.elapsed());
    delivery
}
