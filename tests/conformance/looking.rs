//! A look at a queue shows what is there, and leaves it there.

use hostler_ops::{Look, look};
use hostler_queue::REASON_ATTRIBUTE;
use hostler_types::message::{AttributeValue, Attributes};

use super::*;

fn everything(name: &str) -> Look {
    // What is sent now may be a little later by the service's clock.
    let began = std::time::SystemTime::now() + LONG;
    Look { at: channel(name), conditions: Vec::new(), max: 1000, began }
}

async fn seen(broker: &Arc<dyn Provisioner>, wanted: Look) -> Vec<String> {
    let mut seen = Vec::new();
    let mut show = |message: &hostler_types::message::Message| {
        let reason = message.attributes.get(REASON_ATTRIBUTE).and_then(AttributeValue::as_text);
        seen.push(format!("{} {}", str::from_utf8(&message.body).unwrap(), reason.unwrap_or("-")));
    };
    look(&**broker, wanted, &CancellationToken::new(), &mut show).await.unwrap();
    seen.sort();
    seen
}

pub async fn look_shows_all_and_changes_nothing<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&alone(spec("jobs"))).await.unwrap();
    let attributes: Attributes = [(REASON_ATTRIBUTE.to_owned(), AttributeValue::Text("why".to_owned()))].into();
    let batch = (0..25).map(|n| Outgoing { attributes: attributes.clone(), ..text(&format!("{n:02}")) });
    for message in batch {
        send(&broker, "jobs", vec![message]).await;
    }
    let all: Vec<String> = (0..25).map(|n| format!("{n:02} why")).collect();
    assert_eq!(seen(&broker, everything("jobs")).await, all);
    assert_eq!(seen(&broker, everything("jobs")).await, all, "a second time, at once");
    let some = Look { conditions: vec!["body~07".parse().unwrap()], ..everything("jobs") };
    assert_eq!(seen(&broker, some).await, ["07 why"]);
    assert_eq!(seen(&broker, Look { max: 3, ..everything("jobs") }).await.len(), 3);
    let received = gather(&queue, 25).await;
    if H::TRAITS.looks_are_free {
        assert!(received.iter().all(|delivery| delivery.attempt == 1), "a look is no attempt");
    }
    let missing = look(&*broker, everything("jbos"), &CancellationToken::new(), &mut |_| {}).await;
    assert!(matches!(missing, Err(hostler_queue::QueueError::Refused(_))), "{missing:?}");
}

/// AWS: only who receives a message sees it.
pub async fn look_sees_what_is_leased_or_delayed<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&alone(spec("jobs"))).await.unwrap();
    send(&broker, "jobs", vec![text("leased"), Outgoing { delay: LONG, ..text("delayed") }]).await;
    let leased = next(&queue, LONG).await;
    assert_eq!(seen(&broker, everything("jobs")).await, ["delayed -", "leased -"]);
    settle(&queue, Settlement::Ack(leased.receipt)).await;
}
