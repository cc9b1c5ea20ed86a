//! A service that sends messages ahead sends none while its consumer rests.

use super::*;

/// Two receivers. The first has received so many of the messages `0`, `1` and so on, and the service has sent it the others ahead.
async fn ahead<H: Harness>(
    harness: &H,
    sent: usize,
    received: usize,
) -> (Arc<dyn Provisioner>, Arc<dyn Queue>, Arc<dyn Queue>, Vec<Delivery>) {
    let (broker, other) = (harness.broker().await, harness.broker().await);
    let spec = ChannelSpec { window: sent, ..spec("jobs") };
    let (queue, rival) = (broker.open(&spec).await.unwrap(), other.open(&spec).await.unwrap());
    send(&broker, "jobs", (0..sent).map(|number| text(&number.to_string())).collect()).await;
    let mut leased = Vec::new();
    while leased.len() < received {
        let came = receive(&queue, received - leased.len(), PATIENCE, LONG).await;
        assert!(!came.is_empty(), "nothing came");
        leased.extend(came);
    }
    assert!(receive(&rival, sent, H::TICK, LONG).await.is_empty(), "not sent ahead");
    (broker, queue, rival, leased)
}

pub async fn rest_gives_back_what_was_sent_ahead<H: Harness>(harness: &H) {
    let (_, queue, rival, leased) = ahead(harness, 10, 2).await;
    queue.rest().await;
    let others = gather(&rival, 8).await;
    let mut bodies = [sorted(&leased), sorted(&others)].concat();
    bodies.sort_unstable();
    assert_eq!(bodies, (0..10).map(|number| number.to_string()).collect::<Vec<_>>());
    assert!(others.iter().all(|one| one.attempt <= 2), "a return spends one attempt at most: {others:?}");
}

pub async fn leases_survive_a_rest<H: Harness>(harness: &H) {
    let (_, queue, rival, leased) = ahead(harness, 3, 2).await;
    queue.rest().await;
    let leases: Vec<_> = leased.iter().map(|one| one.receipt.lease()).collect();
    assert_eq!(queue.extend(&leases, LONG).await, [Ok(()), Ok(())]);
    let settled = queue.settle(leased.into_iter().map(|one| Settlement::Ack(one.receipt)).collect()).await;
    assert!(settled.iter().all(Result::is_ok), "{settled:?}");
    assert_eq!(gather(&rival, 1).await.len(), 1, "only the one that was sent ahead is left");
}

pub async fn receive_ends_a_rest<H: Harness>(harness: &H) {
    let (broker, queue, rival, leased) = ahead(harness, 3, 2).await;
    queue.rest().await;
    for other in gather(&rival, 1).await {
        settle(&rival, Settlement::Ack(other.receipt)).await;
    }
    rival.rest().await;
    send(&broker, "jobs", vec![text("later")]).await;
    assert_eq!(bodies(&[next(&queue, LONG).await]), ["later"]);
    for one in leased {
        settle(&queue, Settlement::Ack(one.receipt)).await;
    }
}

pub async fn stopped_receive_ends_no_rest<H: Harness>(harness: &H) {
    let (_, queue, rival, leased) = ahead(harness, 3, 2).await;
    queue.rest().await;
    let stop = CancellationToken::new();
    stop.cancel();
    let request = Receive { max: 10, wait: PATIENCE, lease: LONG };
    assert!(queue.receive(request, &stop).await.unwrap().is_empty());
    assert_eq!(gather(&rival, 1).await.len(), 1, "it was not sent to the first again");
    drop(leased);
}

/// For example the probe of a circuit breaker. Messages that came along would have to go back, which a service may count.
pub async fn receive_of_one_after_a_rest_takes_no_others<H: Harness>(harness: &H) {
    let (broker, other) = (harness.broker().await, harness.broker().await);
    let spec = ChannelSpec { window: 10, ..spec("jobs") };
    let (queue, rival) = (broker.open(&spec).await.unwrap(), other.open(&spec).await.unwrap());
    queue.rest().await;
    send(&broker, "jobs", (0..10).map(|number| text(&number.to_string())).collect()).await;
    let probe = next(&queue, LONG).await;
    let others = gather(&rival, 9).await;
    assert!(others.iter().all(|one| one.attempt == 1), "they were sent to one receiver only: {others:?}");
    for one in others {
        settle(&rival, Settlement::Ack(one.receipt)).await;
    }
    rival.rest().await;
    send(&broker, "jobs", vec![text("a"), text("b")]).await;
    assert_eq!(gather(&queue, 2).await.len(), 2, "the first receive was the only one that takes no others");
    settle(&queue, Settlement::Ack(probe.receipt)).await;
}
