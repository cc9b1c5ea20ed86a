//! Sending: a message arrives unchanged when it is due, or is refused; and it is counted.

use std::time::SystemTime;

use hostler_queue::{Depth, SendError};
use hostler_types::message::{AttributeValue, Invalid, MAX_DELAY};

use super::*;

pub async fn arrives_as_sent<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&spec("jobs")).await.unwrap();
    let message = Outgoing {
        body: (0..=255).collect(),
        attributes: [
            ("text".to_owned(), AttributeValue::Text("żółć \u{1F980} \"quoted\"\n{\"base64\":\"\"}".to_owned())),
            ("bytes".to_owned(), AttributeValue::Binary((0..=255).collect())),
        ]
        .into(),
        routing_key: Some("clé".to_owned()),
        group: Some("tenant/1".to_owned()),
        ..Outgoing::default()
    };
    let sent = send(&broker, "jobs", vec![message.clone(), Outgoing::default()]).await;
    let mut received = gather(&queue, 2).await;
    received.sort_by_key(|delivery| delivery.message.body.is_empty());
    for (delivery, sent) in received.iter().zip(&sent) {
        assert_eq!((&delivery.message.id, delivery.attempt, sent.queues), (&sent.id, 1, Some(1)));
        assert!(delivery.message.age(SystemTime::now()) < Duration::from_secs(60));
    }
    let full = &received[0].message;
    assert_eq!((&*full.body, &full.attributes), (&*message.body, &message.attributes));
    assert_eq!((&full.routing_key, &full.group), (&message.routing_key, &message.group));
    let empty = &received[1].message;
    assert!(empty.body.is_empty() && empty.attributes.is_empty());
    assert_eq!((&empty.routing_key, &empty.group), (&None, &None));
}

pub async fn limits_hold_per_message<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&spec("jobs")).await.unwrap();
    let too_large = Outgoing { body: vec![b'x'; H::MAX_MESSAGE + 1], ..Outgoing::default() };
    let largest = Outgoing { body: vec![b'x'; H::MAX_MESSAGE], ..Outgoing::default() };
    let too_late = Outgoing { delay: MAX_DELAY + Duration::from_secs(1), ..text("late") };
    let misnamed = Outgoing { attributes: [("a b".to_owned(), AttributeValue::Text("x".into()))].into(), ..text("") };
    let answers = broker.send(&channel("jobs"), vec![too_large, text("a"), too_late, misnamed, largest]).await;
    assert!(matches!(answers[0], Err(SendError::Invalid(Invalid::TooLarge { .. }))));
    assert!(matches!(answers[2], Err(SendError::Invalid(Invalid::DelayTooLong { .. }))));
    assert!(matches!(answers[3], Err(SendError::Invalid(Invalid::AttributeName { .. }))));
    let mut received = gather(&queue, 2).await;
    received.sort_by_key(|delivery| delivery.message.body.len());
    let (first, last) = (answers[1].as_ref().unwrap(), answers[4].as_ref().unwrap());
    assert_eq!((&received[0].message.id, &received[1].message.id), (&first.id, &last.id));
    assert_eq!((received.len(), received[1].message.body.len()), (2, H::MAX_MESSAGE));
}

pub async fn delay_holds_a_message_back<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&spec("jobs")).await.unwrap();
    let sent = Instant::now();
    send(&broker, "jobs", vec![Outgoing { delay: H::TICK, ..text("late") }, text("now")]).await;
    assert_eq!(&*next(&queue, LONG).await.message.body, b"now");
    assert_eq!(&*next(&queue, LONG).await.message.body, b"late");
    assert!(sent.elapsed() + Duration::from_millis(2) >= H::TICK, "visible after {:?}", sent.elapsed());
}

/// However a driver keeps its word: by the service, or by a consumer that gives the message back until it is due.
pub async fn long_delay_holds_a_message_back<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let days = Duration::from_secs(86_400) * 3;
    let queue = broker.open(&ChannelSpec { longest_delay: days, ..spec("jobs") }).await.unwrap();
    let delayed = |delay, body| Outgoing { delay, ..text(body) };
    send(&broker, "jobs", vec![delayed(days, "days"), delayed(H::TICK, "soon"), text("now")]).await;
    for body in ["now", "soon"] {
        let delivery = next(&queue, LONG).await;
        assert_eq!(&*delivery.message.body, body.as_bytes());
        assert!(delivery.not_before.is_none_or(|at| at <= Instant::now()), "{body} is due");
    }
    let early = take(&queue, 10).await;
    assert!(early.iter().all(|delivery| delivery.not_before > Some(Instant::now())), "{early:?}");
}

pub async fn duplicate_is_dropped<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let keyed = |key: &str| Outgoing { dedupe: Some(key.to_owned()), ..text(key) };
    let sent = send(&broker, "jobs", vec![keyed("k"), keyed("k"), keyed("other"), text("k")]).await;
    assert_eq!(sent.iter().map(|sent| sent.queues).collect::<Vec<_>>(), [1, 0, 1, 1].map(Some));
    assert_eq!(sent[1].id, sent[0].id);
    assert_eq!(send(&broker, "elsewhere", vec![keyed("k")]).await[0].queues, Some(1), "the key is the queue's own");
    let queue = broker.open(&spec("jobs")).await.unwrap();
    assert_eq!(bodies(&take(&queue, 10).await), ["k", "other", "k"]);
}

pub async fn dedupe_key_is_forgotten<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let keyed = || Outgoing { dedupe: Some("k".to_owned()), ..text("a") };
    let started = Instant::now();
    let sent = send(&broker, "jobs", vec![keyed(), keyed()]).await;
    assert_eq!(sent[1].queues, Some(0));
    until(H::DEDUPE_WINDOW + PATIENCE, async || send(&broker, "jobs", vec![keyed()]).await[0].queues == Some(1)).await;
    assert!(started.elapsed() + Duration::from_millis(2) >= H::DEDUPE_WINDOW, "after {:?}", started.elapsed());
}

pub async fn depths_count<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&spec("jobs")).await.unwrap();
    let delayed = Outgoing { delay: LONG, ..text("later") };
    let mut batch = vec![delayed; 2];
    batch.extend(vec![text("now"); 6]);
    send(&broker, "jobs", batch).await;
    dead_letter(&queue, next(&queue, LONG).await, "why").await;
    settle(&queue, Settlement::Release(next(&queue, LONG).await.receipt, LONG)).await;
    let leased = take(&queue, 2).await;
    assert_eq!(leased.len(), 2);

    let asked = [channel("jobs"), channel("jobs-dlq"), channel("never-heard-of")];
    let depths = broker.depths(&asked).await.unwrap();
    let (age, dead_age) = (depths[0].oldest_age, depths[1].oldest_age);
    let is_recent = |age: Option<Duration>| age.is_some_and(|age| age < PATIENCE);
    assert!(!H::TRAITS.tells_ages || is_recent(age) && is_recent(dead_age));
    let (delayed, in_flight) = match H::TRAITS.counts {
        Counts::Everything => (Some(3), Some(2)),
        Counts::DelayedAsLeased => (Some(2), Some(3)),
        Counts::Visible => (depths[0].delayed, depths[0].in_flight),
    };
    let jobs = Depth { visible: 2, delayed, in_flight, dead_lettered: 1, missing: false, oldest_age: age };
    assert_eq!(depths[0], jobs);
    assert_eq!((depths[1].total(), depths[1].dead_lettered, depths[1].missing), (1, 0, false));
    assert_eq!((depths[2].total(), depths[2].dead_lettered, depths[2].missing), (0, 0, true));

    let queue = broker.open(&ordered("in-order")).await.unwrap();
    send(&broker, "in-order", ["1", "2", "3"].map(|body| grouped(body, "g")).to_vec()).await;
    let _head = next(&queue, LONG).await;
    let depth = broker.depths(&[channel("in-order")]).await.unwrap()[0];
    let leased = (H::TRAITS.counts != Counts::Visible).then_some((Some(0), Some(1)));
    let leased = leased.unwrap_or((depth.delayed, depth.in_flight));
    assert_eq!(
        (depth.visible, depth.delayed, depth.in_flight),
        (2, leased.0, leased.1),
        "what waits for its turn is visible"
    );
}

pub async fn channels_are_listed<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    broker.open(&spec("shop.first")).await.unwrap();
    broker.open(&ChannelSpec { max_receives: None, ..spec("plain") }).await.unwrap();
    send(&broker, "sent-to", vec![text("a")]).await;
    let mut channels = harness.broker().await.channels().await.unwrap();
    channels.sort();
    // Which exchange feeds a queue, some services do not know.
    let mut expected =
        [if H::TRAITS.lists_exchanges { "shop.first" } else { "first" }, "first-dlq", "plain", "sent-to"].map(channel);
    expected.sort();
    assert_eq!(channels, expected);
}

pub async fn plain_queue_keeps_its_order<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&spec("jobs")).await.unwrap();
    let all: Vec<String> = (0..30).map(|n| n.to_string()).collect();
    for part in all.chunks(10) {
        send(&broker, "jobs", part.iter().map(|body| text(body)).collect()).await;
    }
    let mut received = Vec::new();
    while received.len() < all.len() {
        received.push(next(&queue, LONG).await);
    }
    assert_eq!(bodies(&received), all);
}
