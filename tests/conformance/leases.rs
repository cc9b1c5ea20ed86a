//! A message is leased to one receiver at a time, and a lease that ended gives no right to anything.

use hostler_queue::{LeaseError, Receipt, Settlement, Unsettled};
use tokio::time::Instant;

use super::*;

/// Clocks of whole milliseconds may end a lease that much early.
const GRAIN: Duration = Duration::from_millis(2);

pub async fn expiry_redelivers<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&spec("jobs")).await.unwrap();
    let sent = send(&broker, "jobs", vec![text("a")]).await;
    let mut leased = Instant::now();
    for attempt in 1..=3 {
        let asked = Instant::now();
        let delivery = next(&queue, H::TICK).await;
        assert_eq!((delivery.attempt, &delivery.message.id), (attempt, &sent[0].id));
        if attempt > 1 {
            assert!(leased.elapsed() + GRAIN >= H::TICK, "redelivered after {:?}", leased.elapsed());
        }
        leased = asked;
    }
}

pub async fn lease_hides_the_message<H: Harness>(harness: &H) {
    let (broker, other) = (harness.broker().await, harness.broker().await);
    let queue = broker.open(&spec("jobs")).await.unwrap();
    send(&broker, "jobs", vec![text("a")]).await;
    let _leased = next(&queue, LONG).await;
    assert!(take(&queue, 10).await.is_empty());
    assert!(take(&other.open(&spec("jobs")).await.unwrap(), 10).await.is_empty());
}

pub async fn expired_lease_is_lost_at_once<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&spec("jobs")).await.unwrap();
    send(&broker, "jobs", vec![text("a")]).await;
    let leased = next(&queue, H::TICK).await;
    until(PATIENCE, async || broker.depths(&[channel("jobs")]).await.unwrap()[0].visible == 1).await;

    assert!(is_lost(&queue.extend(&[leased.receipt.lease()], LONG).await[0]));
    assert!(is_lost(&try_settle(&queue, Settlement::Ack(leased.receipt)).await));
    assert_eq!(take(&queue, 10).await.len(), 1);
}

pub async fn stale_receipt_changes_nothing<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&spec("jobs")).await.unwrap();
    send(&broker, "jobs", vec![text("a")]).await;
    for stale_ending in 0..4 {
        let stale = next(&queue, H::TICK).await;
        let current = next(&queue, LONG).await;
        assert!(is_lost(&queue.extend(&[stale.receipt.lease()], LONG).await[0]));
        let ending = match stale_ending {
            0 => Settlement::Ack(stale.receipt),
            1 => Settlement::Release(stale.receipt, Duration::ZERO),
            2 => Settlement::GiveBack(stale.receipt, Duration::ZERO),
            _ => Settlement::DeadLetter { receipt: stale.receipt, message: stale.message, reason: "late".to_owned() },
        };
        assert!(is_lost(&try_settle(&queue, ending).await));
        assert!(take(&queue, 10).await.is_empty(), "the new lease holds");
        settle(&queue, Settlement::Release(current.receipt, Duration::ZERO)).await;
    }
    assert_eq!(broker.depths(&[channel("jobs")]).await.unwrap()[0].dead_lettered, 0);
}

pub async fn lease_ends_with_the_settlement<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&spec("jobs")).await.unwrap();
    send(&broker, "jobs", vec![text("a"), text("b")]).await;
    for round in 0..2 {
        let delivery = next(&queue, LONG).await;
        let lease = delivery.receipt.lease();
        assert_eq!(queue.extend(std::slice::from_ref(&lease), LONG).await, [Ok(())]);
        let ending = match round {
            0 => Settlement::Ack(delivery.receipt),
            _ => Settlement::Release(delivery.receipt, LONG),
        };
        settle(&queue, ending).await;
        assert!(is_lost(&queue.extend(&[lease], LONG).await[0]));
    }
}

pub async fn extend_keeps_the_lease<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&spec("jobs")).await.unwrap();
    send(&broker, "jobs", vec![text("a")]).await;
    let delivery = next(&queue, H::TICK * 4).await;
    assert_eq!(queue.extend(&[delivery.receipt.lease()], LONG).await, [Ok(())]);
    assert!(receive(&queue, 1, H::TICK * 5, LONG).await.is_empty());
    settle(&queue, Settlement::Ack(delivery.receipt)).await;
}

pub async fn extend_counts_from_now<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&spec("jobs")).await.unwrap();
    send(&broker, "jobs", vec![text("a")]).await;
    let delivery = next(&queue, LONG).await;
    assert_eq!(queue.extend(&[delivery.receipt.lease()], H::TICK).await, [Ok(())]);
    assert_eq!(next(&queue, LONG).await.attempt, 2);
}

pub async fn entries_are_independent<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&spec("jobs")).await.unwrap();
    send(&broker, "jobs", vec![text("a"), text("b"), text("c")]).await;
    let stale = next(&queue, H::TICK).await.receipt;
    let mut current = Vec::new();
    while current.len() < 3 {
        current.extend(receive(&queue, 3, PATIENCE, LONG).await);
    }

    let leases = [current[0].receipt.lease(), stale.lease(), current[1].receipt.lease()];
    let extended = queue.extend(&leases, LONG).await;
    assert_eq!((&extended[0], is_lost(&extended[1]), &extended[2]), (&Ok(()), true, &Ok(())));

    let mut receipts = current.into_iter().map(|delivery| delivery.receipt);
    let mut receipt = || receipts.next().unwrap();
    let batch = vec![
        Settlement::Ack(receipt()),
        Settlement::Ack(Receipt::new(stale.as_str())),
        Settlement::Release(receipt(), Duration::ZERO),
        Settlement::Ack(Receipt::new("no receipt of this queue")),
        Settlement::Ack(receipt()),
    ];
    let settled = queue.settle(batch).await;
    let done: Vec<bool> = settled.iter().map(Result::is_ok).collect();
    assert_eq!(done, [true, false, true, false, true]);
    let given_back: Vec<Unsettled> = settled.into_iter().filter_map(Result::err).collect();
    assert_eq!(given_back[0].settlement.receipt(), &stale);
    assert!(given_back.iter().all(|unsettled| matches!(unsettled.error, LeaseError::Lost(_))));
    assert_eq!(take(&queue, 10).await.len(), 1, "only the released one is left");
}

/// The queue decides if the attempt counts. It counts at most once.
pub async fn give_back<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&spec("jobs")).await.unwrap();
    send(&broker, "jobs", vec![text("a")]).await;
    let first = next(&queue, LONG).await;
    settle(&queue, Settlement::GiveBack(first.receipt, Duration::ZERO)).await;
    let again = next(&queue, LONG).await;
    assert_eq!(again.message, first.message);
    assert!((1..=2).contains(&again.attempt), "{}", again.attempt);
    settle(&queue, Settlement::Release(again.receipt, Duration::ZERO)).await;
    let third = next(&queue, LONG).await;
    assert_eq!(third.attempt, again.attempt + 1, "a release counts");
    assert!(take(&queue, 10).await.is_empty());
}

pub async fn release_at_once<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&spec("jobs")).await.unwrap();
    send(&broker, "jobs", vec![text("a")]).await;
    let first = next(&queue, LONG).await;
    settle(&queue, Settlement::Release(first.receipt, Duration::ZERO)).await;
    let again = take(&queue, 10).await;
    assert_eq!((again.len(), again[0].attempt, &again[0].message), (1, 2, &first.message));
}

pub async fn release_with_delay<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&spec("jobs")).await.unwrap();
    send(&broker, "jobs", vec![text("a")]).await;
    let first = next(&queue, LONG).await;
    let released = Instant::now();
    settle(&queue, Settlement::Release(first.receipt, H::TICK)).await;
    assert_eq!(next(&queue, LONG).await.attempt, 2);
    assert!(released.elapsed() + GRAIN >= H::TICK, "visible after {:?}", released.elapsed());
}

/// A lease that ends at its time, or is settled, is not taken back, and a service that does not push takes none back at all.
pub async fn no_lease_is_taken_back<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&spec("jobs")).await.unwrap();
    send(&broker, "jobs", vec![text("a")]).await;
    let uses = async {
        let expired = next(&queue, H::TICK).await;
        let again = next(&queue, LONG).await;
        assert!(is_lost(&try_settle(&queue, Settlement::Ack(expired.receipt)).await));
        queue.rest().await;
        settle(&queue, Settlement::Release(again.receipt, Duration::ZERO)).await;
        let last = next(&queue, LONG).await;
        settle(&queue, Settlement::Ack(last.receipt)).await;
        assert!(receive(&queue, 1, H::TICK, LONG).await.is_empty());
    };
    tokio::select! {
        biased;
        leases = queue.taken_back() => panic!("{leases:?} were taken back"),
        () = uses => {}
    }
}

fn is_lost(answer: &Result<(), LeaseError>) -> bool {
    matches!(answer, Err(LeaseError::Lost(_)))
}
