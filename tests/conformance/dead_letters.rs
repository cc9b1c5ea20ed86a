//! Dead letters: messages that cannot be processed are kept in a separate queue, unchanged and with the reason.

use hostler_queue::{ATTEMPTS_ATTRIBUTE, MAX_REASON, REASON_ATTRIBUTE, SOURCE_ATTRIBUTE};
use hostler_types::message::{AttributeValue, Attributes};

use super::*;

fn attributes(count: usize) -> Attributes {
    (0..count).map(|n| (format!("a{n}"), AttributeValue::Text(n.to_string()))).collect()
}

fn told<'a>(delivery: &'a Delivery, name: &str) -> Option<&'a str> {
    delivery.message.attributes.get(name).and_then(AttributeValue::as_text)
}

pub async fn copy_keeps_what_was_sent<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&spec("jobs")).await.unwrap();
    let dead = broker.open(&alone(spec("jobs-dlq"))).await.unwrap();
    let mut sent = attributes(2);
    sent.insert("bytes".to_owned(), AttributeValue::Binary((0..=255).collect()));
    let message = Outgoing {
        body: (0..=255).rev().collect(),
        attributes: sent.clone(),
        routing_key: Some("EU.order".to_owned()),
        ..grouped("", "tenant-1")
    };
    send(&broker, "jobs", vec![message]).await;
    let first = next(&queue, LONG).await;
    settle(&queue, Settlement::Release(first.receipt, Duration::ZERO)).await;
    dead_letter(&queue, next(&queue, LONG).await, "no such customer").await;

    let copy = next(&dead, LONG).await;
    assert_eq!(copy.attempt, 1, "receives are counted anew");
    assert_eq!(told(&copy, REASON_ATTRIBUTE), Some("no such customer"));
    assert_eq!(told(&copy, SOURCE_ATTRIBUTE), Some("jobs"));
    assert_eq!(told(&copy, ATTEMPTS_ATTRIBUTE), Some("2"));
    let mut message = hostler_types::message::Message::clone(&copy.message);
    message.attributes.retain(|name, _| sent.contains_key(name));
    if !H::TRAITS.copies_keep_ids {
        // There, a copy is another message.
        (message.id, message.enqueued_at) = (first.message.id.clone(), first.message.enqueued_at);
    }
    assert_eq!(&message, &*first.message);

    settle(&dead, Settlement::Ack(copy.receipt)).await;
    let depths = broker.depths(&[channel("jobs"), channel("jobs-dlq")]).await.unwrap();
    assert!(depths.iter().all(|depth| depth.total() + depth.dead_lettered == 0 && !depth.missing), "{depths:?}");
}

pub async fn story_has_no_room<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&spec("jobs")).await.unwrap();
    let dead = broker.open(&alone(spec("jobs-dlq"))).await.unwrap();
    for (own, with_reason) in [(10, false), (9, true)] {
        send(&broker, "jobs", vec![Outgoing { attributes: attributes(own), ..text("a") }]).await;
        dead_letter(&queue, next(&queue, LONG).await, "why").await;
        let copy = next(&dead, LONG).await;
        assert_eq!(copy.message.attributes.len(), 10);
        assert_eq!(told(&copy, REASON_ATTRIBUTE).is_some(), with_reason);
        settle(&dead, Settlement::Ack(copy.receipt)).await;
    }
}

pub async fn long_reason_is_cut<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&spec("jobs")).await.unwrap();
    let dead = broker.open(&alone(spec("jobs-dlq"))).await.unwrap();
    send(&broker, "jobs", vec![text("a")]).await;
    dead_letter(&queue, next(&queue, LONG).await, &format!("x{}", "é".repeat(MAX_REASON))).await;
    let copy = next(&dead, LONG).await;
    assert_eq!(told(&copy, REASON_ATTRIBUTE).map(str::len), Some(MAX_REASON - 1), "é has two bytes");
}

pub async fn second_story_replaces_the_first<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&spec("jobs")).await.unwrap();
    let dead = broker.open(&alone(spec("jobs-dlq"))).await.unwrap();
    let mut redriven = attributes(9);
    redriven.insert(REASON_ATTRIBUTE.to_owned(), AttributeValue::Text("the first time".to_owned()));
    send(&broker, "jobs", vec![Outgoing { attributes: redriven, ..text("a") }]).await;
    dead_letter(&queue, next(&queue, LONG).await, "the second time").await;
    assert_eq!(told(&next(&dead, LONG).await, REASON_ATTRIBUTE), Some("the second time"));
}

pub async fn too_many_receives<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&ChannelSpec { max_receives: Some(2), ..spec("jobs") }).await.unwrap();
    let dead = broker.open(&alone(spec("jobs-dlq"))).await.unwrap();
    send(&broker, "jobs", vec![text("poison")]).await;
    for attempt in 1..=2 {
        let delivery = next(&queue, LONG).await;
        assert_eq!((&*delivery.message.body, delivery.attempt), (&b"poison"[..], attempt));
        settle(&queue, Settlement::Release(delivery.receipt, Duration::ZERO)).await;
    }
    send(&broker, "jobs", vec![text("fine")]).await;
    let other = next(&queue, LONG).await;
    assert_eq!((&*other.message.body, other.attempt), (&b"fine"[..], 1));
    let copy = next(&dead, LONG).await;
    assert_eq!(&*copy.message.body, b"poison");
    if H::TRAITS.tells_why_it_gave_up {
        // SQS moves it without a word, and counts on.
        assert_eq!(copy.attempt, 1);
        assert_eq!(told(&copy, REASON_ATTRIBUTE), Some("received 2 times without being settled"));
        assert_eq!(told(&copy, ATTEMPTS_ATTRIBUTE), Some("2"));
    }
}

pub async fn refused_without_a_queue_for_it<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&ChannelSpec { max_receives: None, ..spec("jobs") }).await.unwrap();
    send(&broker, "jobs", vec![text("a")]).await;
    let Delivery { message, receipt, .. } = next(&queue, LONG).await;
    let mut settled = queue.settle(vec![Settlement::DeadLetter { receipt, message, reason: "why".to_owned() }]).await;
    let unsettled = settled.remove(0).unwrap_err();
    assert!(matches!(unsettled.error, LeaseError::Refused(_)), "{:?}", unsettled.error);
    let Settlement::DeadLetter { receipt, .. } = unsettled.settlement else { panic!("another settlement") };
    settle(&queue, Settlement::Ack(receipt)).await;
    assert_eq!(broker.channels().await.unwrap(), [channel("jobs")]);
}
