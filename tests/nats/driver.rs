//! The driver beyond the conformance suite: several hosts, losses, and what servers drop.

use std::sync::Arc;
use std::time::Duration;

use hostler_queue::{Admin, Broker, ChannelSpec, Delivery, Provisioner, Queue, Receive, Settlement};
use hostler_queue_nats::{Known, NatsBroker, Options};
use hostler_types::channel::{Channel, Filter};
use hostler_types::message::Outgoing;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::support::nats::{Nats, Version};
use crate::support::servers::unique;

pub(super) const PATIENCE: Duration = Duration::from_secs(20);
pub(super) const LONG: Duration = Duration::from_secs(60);

pub(super) fn channel(name: &str) -> Channel {
    name.parse().unwrap()
}

pub(super) fn spec(name: &str) -> ChannelSpec {
    ChannelSpec { max_receives: Some(100), ..ChannelSpec::new(channel(name)) }
}

pub(super) async fn connect(version: Version, prefix: &str, consumers: Vec<Known>) -> NatsBroker {
    let server = tokio::task::spawn_blocking(move || Nats::shared(version)).await.unwrap();
    let options =
        Options { url: server.url(), prefix: prefix.to_owned(), create_missing: true, consumers, ..Options::default() };
    NatsBroker::connect(options).await.unwrap()
}

pub(super) async fn send(broker: &NatsBroker, name: &str, batch: Vec<Outgoing>) {
    for sent in broker.send(&channel(name), batch).await {
        sent.unwrap();
    }
}

pub(super) fn text(body: &str) -> Outgoing {
    Outgoing { body: body.into(), ..Outgoing::default() }
}

pub(super) async fn receive(queue: &Arc<dyn Queue>, max: usize, wait: Duration) -> Vec<Delivery> {
    let request = Receive { max, wait, lease: LONG };
    queue.receive(request, &CancellationToken::new()).await.unwrap()
}

pub(super) async fn next(queue: &Arc<dyn Queue>) -> Delivery {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(delivery) = receive(queue, 1, PATIENCE).await.pop() {
            return delivery;
        }
        assert!(Instant::now() < deadline, "no message came");
    }
}

pub(super) async fn settle(queue: &Arc<dyn Queue>, settlement: Settlement) {
    assert!(queue.settle(vec![settlement]).await.remove(0).is_ok());
}

pub(super) fn body(delivery: &Delivery) -> &str {
    std::str::from_utf8(&delivery.message.body).unwrap()
}

/// The next of a group waits for the first, wherever that is, and comes to whoever asks once it is gone.
#[tokio::test]
async fn hosts_share_an_ordered_queue_group_by_group() {
    for version in Version::ALL {
        let prefix = format!("{}-", unique("o"));
        let (one, other) = (connect(version, &prefix, Vec::new()).await, connect(version, &prefix, Vec::new()).await);
        let ordered = ChannelSpec { ordered: true, ..spec("jobs") };
        let (first, second) = (one.open(&ordered).await.unwrap(), other.open(&ordered).await.unwrap());
        let grouped = |body: &str| Outgoing { group: Some(body[..1].to_owned()), ..text(body) };
        send(&one, "jobs", ["a1", "a2", "b1", "a3"].map(grouped).to_vec()).await;
        let head = next(&first).await;
        assert_eq!(body(&head), "a1");
        let of_b = next(&second).await;
        assert_eq!(body(&of_b), "b1");
        assert!(receive(&second, 10, Duration::from_secs(1)).await.is_empty(), "a2 waits for a1");
        settle(&first, Settlement::Ack(head.receipt)).await;
        let after = next(&second).await;
        assert_eq!((body(&after), after.attempt), ("a2", 1));
        settle(&second, Settlement::Ack(after.receipt)).await;
        second.rest().await;
        let last = next(&first).await;
        assert_eq!((body(&last), last.attempt), ("a3", 1), "a rest spends no attempt");
    }
}

/// Redeliveries count as attempts. Deliveries that no handler saw do not, whichever host they came to.
#[tokio::test]
async fn only_what_a_handler_saw_is_an_attempt() {
    for version in Version::ALL {
        let prefix = format!("{}-", unique("a"));
        let (one, other) = (connect(version, &prefix, Vec::new()).await, connect(version, &prefix, Vec::new()).await);
        let (first, second) = (one.open(&spec("jobs")).await.unwrap(), other.open(&spec("jobs")).await.unwrap());
        send(&one, "jobs", vec![Outgoing { delay: Duration::from_secs(1), ..text("late") }]).await;
        for turn in 0..3 {
            let delivery = next(&first).await;
            assert_eq!(delivery.attempt, 1, "{turn}: the delivery before its time is none");
            settle(&first, Settlement::GiveBack(delivery.receipt, Duration::ZERO)).await;
        }
        let again = next(&second).await;
        assert_eq!(again.attempt, 1);
        settle(&second, Settlement::Release(again.receipt, Duration::ZERO)).await;
        assert_eq!(next(&first).await.attempt, 2);
    }
}

/// Servers before 2.10 know no filters with several subjects, and drop them without a word.
#[tokio::test]
async fn a_filter_holds_on_servers_that_drop_it() {
    for version in Version::ALL {
        let prefix = format!("{}-", unique("f"));
        let filter = Filter::Exact(vec!["EU.order".to_owned(), "US.order".to_owned()]);
        let known = Known { filter: filter.clone(), ..Known::new(channel("shop.jobs")) };
        let broker = connect(version, &prefix, vec![known]).await;
        let queue = broker.open(&ChannelSpec { filter, ..spec("shop.jobs") }).await.unwrap();
        let keyed = |key: &str| Outgoing { routing_key: Some(key.to_owned()), ..text(key) };
        send(&broker, "shop", ["EU.refund", "EU.order", "US.order"].map(keyed).to_vec()).await;
        let depth = broker.depths(&[channel("shop.jobs")]).await.unwrap()[0];
        assert!(depth.visible >= 2, "those on their way count: {depth:?}");
        let received = [next(&queue).await, next(&queue).await];
        let mut bodies = received.each_ref().map(body);
        bodies.sort_unstable();
        assert_eq!(bodies, ["EU.order", "US.order"]);
        assert!(receive(&queue, 10, Duration::ZERO).await.is_empty());
        assert!(broker.plan(&[spec("shop.jobs")]).await.unwrap().len() <= 1, "only the filter differs");
    }
}

#[tokio::test]
async fn what_differs_is_found_and_put_right() {
    for version in Version::ALL {
        let prefix = format!("{}-", unique("d"));
        let broker = connect(version, &prefix, Vec::new()).await;
        let short = spec("jobs");
        let long = ChannelSpec { lease: Duration::from_secs(300), ..spec("jobs") };
        broker.declare(&short).await.unwrap();
        assert_eq!(broker.inspect(&short).await.unwrap(), [], "{version:?}");
        assert_eq!(broker.plan(std::slice::from_ref(&short)).await.unwrap(), []);
        let findings = broker.inspect(&long).await.unwrap();
        assert!(
            findings.iter().all(|finding| !finding.fatal && finding.fault.contains("ack_wait: 32s → 5m 2s")),
            "{findings:?}"
        );
        let mut changes = Vec::new();
        broker.provision(std::slice::from_ref(&long), &mut |change| changes.push(change.to_string())).await.unwrap();
        assert_eq!(changes.len(), 2, "{changes:?}");
        assert_eq!(broker.inspect(&long).await.unwrap(), []);
    }
}

/// A host that is gone sends no more signs of life.
#[tokio::test]
async fn a_message_of_a_host_that_died_comes_again_after_its_lease() {
    let prefix = format!("{}-", unique("k"));
    let (one, other) =
        (connect(Version::Newest, &prefix, Vec::new()).await, connect(Version::Newest, &prefix, Vec::new()).await);
    let short = ChannelSpec { lease: Duration::from_secs(1), ..spec("jobs") };
    let (first, second) = (one.open(&short).await.unwrap(), other.open(&short).await.unwrap());
    send(&one, "jobs", vec![text("x")]).await;
    let begun = Instant::now();
    let held = next(&first).await;
    drop((first, one, held));
    let again = next(&second).await;
    assert_eq!(again.attempt, 2);
    assert!((Duration::from_secs(1)..Duration::from_secs(6)).contains(&begun.elapsed()), "{:?}", begun.elapsed());
}

/// A lease that is longer than the server's timer is kept up by the driver.
#[tokio::test]
async fn a_long_lease_outlasts_the_servers_timer() {
    let prefix = format!("{}-", unique("l"));
    let broker = connect(Version::Oldest, &prefix, Vec::new()).await;
    let other = connect(Version::Oldest, &prefix, Vec::new()).await;
    let short = ChannelSpec { lease: Duration::from_secs(1), ..spec("jobs") };
    let (queue, rival) = (broker.open(&short).await.unwrap(), other.open(&short).await.unwrap());
    send(&broker, "jobs", vec![text("x")]).await;
    let held = next(&queue).await;
    assert!(receive(&rival, 1, Duration::from_secs(7)).await.is_empty(), "two timers of the server have passed");
    settle(&queue, Settlement::Ack(held.receipt)).await;
}
