//! An exchange gives each of its queues a copy, if the queue's filter lets the routing key pass.

use super::*;

fn subscribed(name: &str, filter: Filter) -> ChannelSpec {
    ChannelSpec { filter, ..spec(name) }
}

fn keyed(key: Option<&str>) -> Outgoing {
    Outgoing { routing_key: key.map(str::to_owned), ..text(key.unwrap_or("none")) }
}

fn list(key: &str) -> Vec<String> {
    vec![key.to_owned()]
}

pub async fn filters_choose_queues<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let open = async |name: &str, filter| broker.open(&subscribed(name, filter)).await.unwrap();
    let all = open("shop.all", Filter::All).await;
    let exact = open("shop.exact", Filter::Exact(list("EU.order"))).await;
    let prefix = open("shop.prefix", Filter::Prefix(list("EU."))).await;
    let exclude = open("shop.exclude", Filter::Exclude(list("EU.order"))).await;
    let other = open("other.all2", Filter::All).await;

    let keys = [Some("EU.order"), Some("EU.refund"), Some("US.order"), None];
    let sent = send(&broker, "shop.all", keys.map(keyed).to_vec()).await;
    let told = |counts: [usize; 4]| counts.map(|count| H::TRAITS.counts_copies.then_some(count)).to_vec();
    assert_eq!(sent.iter().map(|sent| sent.queues).collect::<Vec<_>>(), told([3, 3, 2, 1]));
    let expected: [(&Arc<dyn Queue>, &[&str]); 5] = [
        (&all, &["EU.order", "EU.refund", "US.order", "none"]),
        (&exact, &["EU.order"]),
        (&prefix, &["EU.order", "EU.refund"]),
        (&exclude, &["EU.refund", "US.order"]),
        (&other, &[]),
    ];
    for (queue, expected) in expected {
        let received = gather(queue, expected.len()).await;
        assert_eq!(sorted(&received), expected);
        for delivery in received {
            let position = keys.iter().position(|key| *key == delivery.message.routing_key.as_deref()).unwrap();
            let has_its_id = delivery.message.id == sent[position].id;
            assert!(has_its_id || !H::TRAITS.copies_keep_ids, "SNS has ids of its own");
        }
    }
}

pub async fn copies_are_independent<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let first = broker.open(&spec("shop.first")).await.unwrap();
    let second = broker.open(&spec("shop.second")).await.unwrap();
    send(&broker, "shop.first", vec![text("a")]).await;
    settle(&first, Settlement::Ack(next(&first, LONG).await.receipt)).await;
    let copy = next(&second, LONG).await;
    assert_eq!((&*copy.message.body, copy.attempt), (&b"a"[..], 1));
}

/// On AWS the two would be queues of two topics.
pub async fn ordered_copies_too<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let first = broker.open(&spec("shop.first")).await.unwrap();
    let second = broker.open(&ordered("shop.second")).await.unwrap();
    send(&broker, "shop.first", vec![text("a")]).await;
    assert_eq!(
        (&*next(&first, LONG).await.message.body, &*next(&second, LONG).await.message.body),
        (&b"a"[..], &b"a"[..])
    );
}

pub async fn filter_can_change<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&subscribed("shop.jobs", Filter::Exact(list("a")))).await.unwrap();
    broker.open(&subscribed("shop.jobs", Filter::Exact(list("b")))).await.unwrap();
    send(&broker, "shop.jobs", vec![keyed(Some("a")), keyed(Some("b"))]).await;
    assert_eq!(bodies(&take(&queue, 10).await), ["b"]);
}

pub async fn exchange_takes_messages_by_its_name<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let first = broker.open(&spec("shop.first")).await.unwrap();
    let second = broker.open(&spec("shop.second")).await.unwrap();
    assert_eq!(send(&broker, "shop", vec![text("a")]).await[0].queues, H::TRAITS.counts_copies.then_some(2));
    assert_eq!((gather(&first, 1).await.len(), gather(&second, 1).await.len()), (1, 1));
}

pub async fn sender_may_come_first<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    assert_eq!(send(&broker, "shop.jobs", vec![keyed(Some("a"))]).await[0].queues, Some(1));
    assert_eq!(send(&broker, "plain", vec![text("b")]).await[0].queues, Some(1));
    let queue = broker.open(&subscribed("shop.jobs", Filter::Exact(list("z")))).await.unwrap();
    assert_eq!(bodies(&take(&queue, 10).await), ["a"]);
    assert_eq!(bodies(&take(&broker.open(&spec("plain")).await.unwrap(), 10).await), ["b"]);
}

pub async fn dedupe_is_per_exchange<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let first = broker.open(&spec("shop.first")).await.unwrap();
    let second = broker.open(&spec("shop.second")).await.unwrap();
    let message = Outgoing { dedupe: Some("k".to_owned()), ..text("a") };
    let sent = send(&broker, "shop.first", vec![message.clone(), message]).await;
    assert_eq!((sent[0].queues, sent[1].queues), (H::TRAITS.counts_copies.then_some(2), Some(0)));
    assert_eq!((take(&first, 10).await.len(), take(&second, 10).await.len()), (1, 1));
}

pub async fn declaring_makes_what_is_missing_and_changes_no_filter<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    broker.declare(&subscribed("shop.jobs", Filter::Exact(list("a")))).await.unwrap();
    broker.declare(&subscribed("shop.jobs", Filter::Exact(list("b")))).await.unwrap();
    send(&broker, "shop.jobs", vec![keyed(Some("a")), keyed(Some("b"))]).await;
    let queue = broker.open(&subscribed("shop.jobs", Filter::Exact(list("a")))).await.unwrap();
    assert_eq!(bodies(&gather(&queue, 1).await), ["a"]);
    let channels = broker.channels().await.unwrap();
    assert!(channels.contains(&channel("jobs-dlq")), "{channels:?}");
}
