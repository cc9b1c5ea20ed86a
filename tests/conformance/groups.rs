//! In an ordered queue, a group's messages are handed out one after the other.

use super::*;

pub async fn one_at_a_time_in_order<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&ordered("jobs")).await.unwrap();
    let all: Vec<String> = (0..25).map(|n| n.to_string()).collect();
    send(&broker, "jobs", all.iter().map(|body| grouped(body, "g")).collect()).await;
    for body in &all {
        let delivery = next(&queue, LONG).await;
        assert_eq!((&*delivery.message.body, delivery.message.group.as_deref()), (body.as_bytes(), Some("g")));
        assert!(take(&queue, 10).await.is_empty(), "its group waits for it");
        settle(&queue, Settlement::Ack(delivery.receipt)).await;
    }
    assert!(take(&queue, 10).await.is_empty());
}

/// SQS may hand out several of a group at once, in their order.
pub async fn one_of_a_group_per_receive<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&ordered("jobs")).await.unwrap();
    send(&broker, "jobs", ["a1", "a2", "b1"].map(|body| grouped(body, &body[..1])).to_vec()).await;
    assert_eq!(sorted(&take(&queue, 10).await), ["a1", "b1"]);
}

pub async fn groups_are_parallel<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&ordered("jobs")).await.unwrap();
    let batch = ["a1", "a2", "b1", "a3", "c1", "b2"].map(|body| grouped(body, &body[..1]));
    send(&broker, "jobs", batch.to_vec()).await;
    let heads = gather(&queue, 3).await;
    assert_eq!(sorted(&heads), ["a1", "b1", "c1"]);
    let b = heads.into_iter().find(|head| &*head.message.body == b"b1").unwrap();
    settle(&queue, Settlement::Ack(b.receipt)).await;
    assert_eq!(sorted(&gather(&queue, 1).await), ["b2"]);
}

pub async fn release_at_once_keeps_the_place<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&ordered("jobs")).await.unwrap();
    send(&broker, "jobs", vec![grouped("a1", "a"), grouped("a2", "a"), grouped("b1", "b")]).await;
    let head = next(&queue, LONG).await;
    settle(&queue, Settlement::Release(head.receipt, Duration::ZERO)).await;
    assert_eq!(sorted(&gather(&queue, 2).await), ["a1", "b1"]);
}

pub async fn release_blocks_the_group<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&ordered("jobs")).await.unwrap();
    send(&broker, "jobs", vec![grouped("a1", "a"), grouped("a2", "a")]).await;
    let head = next(&queue, LONG).await;
    settle(&queue, Settlement::Release(head.receipt, H::TICK * 2)).await;
    assert!(take(&queue, 10).await.is_empty());
    for body in ["a1", "a2"] {
        let delivery = next(&queue, LONG).await;
        assert_eq!(&*delivery.message.body, body.as_bytes());
        settle(&queue, Settlement::Ack(delivery.receipt)).await;
    }
}

pub async fn expiry_blocks_the_group<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&ordered("jobs")).await.unwrap();
    send(&broker, "jobs", vec![grouped("a1", "a"), grouped("a2", "a")]).await;
    let _abandoned = next(&queue, H::TICK).await;
    let again = next(&queue, LONG).await;
    assert_eq!((&*again.message.body, again.attempt), (&b"a1"[..], 2));
    assert!(take(&queue, 10).await.is_empty());
}

pub async fn delay_blocks_the_group<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&ordered("jobs")).await.unwrap();
    let delayed = Outgoing { delay: H::TICK, ..grouped("a1", "a") };
    let behind = Outgoing { delay: H::TICK * 4, ..grouped("a2", "a") };
    let sent = Instant::now();
    send(&broker, "jobs", vec![delayed, behind, grouped("a3", "a"), grouped("b1", "b")]).await;
    for (body, due) in [("b1", 0), ("a1", 1), ("a2", 4), ("a3", 4)] {
        let delivery = next(&queue, LONG).await;
        assert_eq!(&*delivery.message.body, body.as_bytes());
        assert!(sent.elapsed() + Duration::from_millis(2) >= H::TICK * due, "{body} came after {:?}", sent.elapsed());
        settle(&queue, Settlement::Ack(delivery.receipt)).await;
    }
}

pub async fn dead_letter_frees_the_group<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&ChannelSpec { max_receives: Some(1), ..ordered("jobs") }).await.unwrap();
    send(&broker, "jobs", ["a1", "a2", "a3"].map(|body| grouped(body, "a")).to_vec()).await;
    dead_letter(&queue, next(&queue, LONG).await, "why").await;
    let worn_out = next(&queue, LONG).await;
    assert_eq!(&*worn_out.message.body, b"a2");
    settle(&queue, Settlement::Release(worn_out.receipt, Duration::ZERO)).await;
    assert_eq!(&*next(&queue, LONG).await.message.body, b"a3");
}

pub async fn dead_letter_queue_keeps_the_order<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&ordered("jobs")).await.unwrap();
    let dead = broker.open(&alone(ordered("jobs-dlq"))).await.unwrap();
    send(&broker, "jobs", ["a1", "a2", "a3"].map(|body| grouped(body, "a")).to_vec()).await;
    for _ in 0..3 {
        dead_letter(&queue, next(&queue, LONG).await, "why").await;
    }
    for body in ["a1", "a2", "a3"] {
        let copy = next(&dead, LONG).await;
        assert_eq!(&*copy.message.body, body.as_bytes());
        settle(&dead, Settlement::Ack(copy.receipt)).await;
    }
}

pub async fn no_group_is_one_group<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&ordered("jobs")).await.unwrap();
    send(&broker, "jobs", vec![text("1"), grouped("2", hostler_queue::DEFAULT_GROUP)]).await;
    let received = gather(&queue, 1).await;
    assert_eq!(bodies(&received), ["1"]);
    assert_eq!(received[0].message.group.as_deref(), Some(hostler_queue::DEFAULT_GROUP));
}

pub async fn duplicate_is_dropped_in_order<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&ordered("jobs")).await.unwrap();
    let keyed = |body: &str, key: &str| Outgoing { dedupe: Some(key.to_owned()), ..text(body) };
    let batch = vec![keyed("1", "k"), keyed("2", "k"), keyed("3", "other"), text("4"), text("4")];
    send(&broker, "jobs", batch).await;
    send(&broker, "jobs", vec![keyed("5", "k")]).await;
    for body in ["1", "3", "4", "4"] {
        let delivery = next(&queue, LONG).await;
        assert_eq!(&*delivery.message.body, body.as_bytes());
        settle(&queue, Settlement::Ack(delivery.receipt)).await;
    }
    assert!(take(&queue, 10).await.is_empty());
}

/// A sender may declare the queue before its consumer says that it is ordered.
pub async fn queue_becomes_ordered<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    send(&broker, "jobs", ["a1", "a2", "b1", "b2"].map(|body| grouped(body, &body[..1])).to_vec()).await;
    let before = broker.open(&spec("jobs")).await.unwrap();
    assert_eq!(take(&before, 1).await.len(), 1);
    let queue = broker.open(&ordered("jobs")).await.unwrap();
    let mut received = take(&queue, 10).await;
    assert_eq!(bodies(&received), ["b1"], "a1 is leased and blocks its group");
    settle(&queue, Settlement::Ack(received.remove(0).receipt)).await;
    assert_eq!(bodies(&take(&queue, 10).await), ["b2"]);
}

pub async fn queue_becomes_unordered<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    broker.open(&ordered("jobs")).await.unwrap();
    send(&broker, "jobs", ["a1", "a2", "a3"].map(|body| grouped(body, "a")).to_vec()).await;
    let queue = broker.open(&spec("jobs")).await.unwrap();
    assert_eq!(sorted(&take(&queue, 10).await), ["a1", "a2", "a3"]);
}

pub async fn declaring_changes_no_order<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&ordered("jobs")).await.unwrap();
    send(&broker, "jobs", vec![grouped("a1", "a"), grouped("a2", "a")]).await;
    let head = next(&queue, LONG).await;
    broker.declare(&spec("jobs")).await.unwrap();
    assert!(take(&queue, 10).await.is_empty(), "its group waits for it");
    settle(&queue, Settlement::Ack(head.receipt)).await;
    assert_eq!(bodies(&take(&queue, 10).await), ["a2"]);

    send(&broker, "plain", vec![grouped("a1", "a"), grouped("a2", "a")]).await;
    let plain = broker.open(&spec("plain")).await.unwrap();
    let _first = next(&plain, LONG).await;
    broker.declare(&ordered("plain")).await.unwrap();
    assert_eq!(bodies(&take(&plain, 10).await), ["a2"], "nothing waits for another");
}

/// Messages that were sent before their queue became ordered may have no group. They form one group.
pub async fn dead_letters_without_a_group_keep_their_order<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    send(&broker, "jobs", vec![text("1"), text("2")]).await;
    let queue = broker.open(&ordered("jobs")).await.unwrap();
    for body in ["1", "2"] {
        let delivery = next(&queue, LONG).await;
        assert_eq!(&*delivery.message.body, body.as_bytes());
        dead_letter(&queue, delivery, "why").await;
    }
    let dead = broker.open(&alone(ordered("jobs-dlq"))).await.unwrap();
    let mut received = take(&dead, 10).await;
    assert_eq!(bodies(&received), ["1"], "the second waits for the first");
    settle(&dead, Settlement::Ack(received.remove(0).receipt)).await;
    assert_eq!(bodies(&take(&dead, 10).await), ["2"]);
}
