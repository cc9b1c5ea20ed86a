//! Messages that the server has sent ahead: their way back, and the count of their attempts.

use std::sync::Arc;
use std::time::Duration;

use hostler_queue::{Admin, Broker, ChannelSpec, Receive, Settlement};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::driver::{PATIENCE, PUBLISHING, ack, body, broker, ctl, jobs, next, queue_back, send, shared, spec};
use crate::support::rabbitmq::RabbitMq;
use crate::support::servers::unique;

/// Each host that returns messages unprocessed is a new one, which knows nothing of the others. RabbitMQ 3.10 counts each return.
#[tokio::test]
async fn returns_by_many_hosts_wear_no_message_out() {
    let (server, prefix) = shared("returns").await;
    let spec = ChannelSpec { max_receives: Some(5), ..spec(false) };
    let last = broker(server, &prefix).await;
    let queue = last.open(&spec).await.unwrap();
    send(&last, 10, None).await;
    for _ in 0..12 {
        let host = broker(server, &prefix).await;
        let queue = host.open(&spec).await.unwrap();
        let in_hand = next(&queue).await;
        queue.rest().await;
        queue_back(&queue, vec![in_hand]).await;
    }
    let mut bodies = Vec::new();
    for _ in 0..10 {
        let delivery = next(&queue).await;
        assert!(delivery.attempt <= 2, "{}", delivery.attempt);
        bodies.push(body(&delivery));
        ack(&queue, delivery).await;
    }
    bodies.sort_unstable();
    assert_eq!(bodies, (0..10).collect::<Vec<_>>());
    assert_eq!(last.depths(&[jobs()]).await.unwrap()[0].dead_lettered, 0);
}

/// A breaker that opens again and again has a probe each time. RabbitMQ 3.10 would count a delivery of all that came along.
#[tokio::test]
async fn probes_cost_the_messages_behind_them_no_deliveries() {
    let server = tokio::task::spawn_blocking(RabbitMq::shared).await.unwrap();
    for ordered in [false, true] {
        let prefix = format!("{}-", unique("probes"));
        let (one, other) = (broker(server, &prefix).await, broker(server, &prefix).await);
        let spec = ChannelSpec { window: 16, ..spec(ordered) };
        let (queue, second) = (one.open(&spec).await.unwrap(), other.open(&spec).await.unwrap());
        send(&one, 10, Some("g").filter(|_| ordered)).await;
        for _ in 0..6 {
            queue.rest().await;
            let probe = next(&queue).await;
            queue.rest().await;
            queue_back(&queue, vec![probe]).await;
        }
        let mut attempts = Vec::new();
        for n in 0..10 {
            let delivery = next(&second).await;
            assert!(!ordered || body(&delivery) == n, "{n}: {}", body(&delivery));
            attempts.push(delivery.attempt);
            ack(&second, delivery).await;
        }
        attempts.sort_unstable();
        assert_eq!(attempts[..9], [1; 9], "only the probe came before: {ordered}");
    }
}

#[tokio::test]
async fn attempts_that_end_without_a_delay_count_for_all_hosts() {
    let (server, prefix) = shared("attempts").await;
    let first = broker(server, &prefix).await;
    let queue = first.open(&spec(false)).await.unwrap();
    send(&first, 1, None).await;
    for attempt in 1..=3 {
        let delivery = next(&queue).await;
        assert_eq!(delivery.attempt, attempt);
        queue.settle(vec![Settlement::Release(delivery.receipt, Duration::ZERO)]).await.remove(0).unwrap();
    }
    let short = Receive { max: 1, wait: PATIENCE, lease: Duration::from_millis(50) };
    let held = queue.receive(short, &CancellationToken::new()).await.unwrap();
    assert_eq!(held[0].attempt, 4);
    let again = next(&queue).await;
    assert_eq!(again.attempt, 5, "its lease ended");
    queue_back(&queue, vec![again]).await;
    queue.rest().await;
    let other = broker(server, &prefix).await.open(&spec(false)).await.unwrap();
    assert!((5..=6).contains(&next(&other).await.attempt), "a return tells of one attempt at most");
}

/// A consumer that a stop left half begun would keep what the server sends it.
#[tokio::test]
async fn a_stop_at_any_time_leaves_no_messages_behind() {
    let (server, prefix) = shared("stops").await;
    let (one, other) = (broker(server, &prefix).await, broker(server, &prefix).await);
    let queue = one.open(&spec(false)).await.unwrap();
    send(&one, 10, None).await;
    queue_back(&queue, vec![next(&queue).await]).await;
    queue.rest().await;
    for n in 0..60 {
        let stop = CancellationToken::new();
        let request = Receive { max: 1, wait: PATIENCE, lease: PATIENCE };
        let stopping = async {
            tokio::time::sleep(Duration::from_micros(200 * n)).await;
            stop.cancel();
        };
        let (received, ()) = tokio::join!(queue.receive(request, &stop), stopping);
        queue_back(&queue, received.unwrap()).await;
        queue.rest().await;
    }
    let second = other.open(&spec(false)).await.unwrap();
    for _ in 0..10 {
        let delivery = next(&second).await;
        ack(&second, delivery).await;
    }
    assert_eq!(one.depths(&[jobs()]).await.unwrap()[0].total(), 0);
}

/// A receive of several messages after a probe needs a larger window, and a stop may come while the server is asked for it.
#[tokio::test]
async fn a_stop_while_the_window_grows_leaves_no_messages_behind() {
    let (server, prefix) = shared("widens").await;
    let (one, other) = (broker(server, &prefix).await, broker(server, &prefix).await);
    let queue = one.open(&spec(false)).await.unwrap();
    send(&one, 10, None).await;
    for n in 0..40 {
        queue.rest().await;
        let probe = next(&queue).await;
        let stop = CancellationToken::new();
        let request = Receive { max: 4, wait: PATIENCE, lease: PATIENCE };
        let stopping = async {
            tokio::time::sleep(Duration::from_micros(200 * n)).await;
            stop.cancel();
        };
        let (received, ()) = tokio::join!(queue.receive(request, &stop), stopping);
        queue_back(&queue, received.unwrap()).await;
        queue_back(&queue, vec![probe]).await;
    }
    queue.rest().await;
    let second = other.open(&spec(false)).await.unwrap();
    for _ in 0..10 {
        let delivery = next(&second).await;
        ack(&second, delivery).await;
    }
    assert_eq!(one.depths(&[jobs()]).await.unwrap()[0].total(), 0);
}

/// The head of a group is held here for its delay. The window is full of its followers.
#[tokio::test]
async fn a_group_that_waits_does_not_hold_up_the_groups_behind_it() {
    let (server, prefix) = shared("groups").await;
    let broker = broker(server, &prefix).await;
    let queue = broker.open(&spec(true)).await.unwrap();
    send(&broker, 40, Some("a")).await;
    send(&broker, 3, Some("b")).await;
    let head = next(&queue).await;
    assert_eq!(body(&head), 0);
    queue.settle(vec![Settlement::Release(head.receipt, Duration::from_secs(10))]).await.remove(0).unwrap();
    for n in 0..3 {
        let delivery = next(&queue).await;
        assert_eq!((delivery.message.group.as_deref(), body(&delivery)), (Some("b"), n));
        ack(&queue, delivery).await;
    }
    for n in 0..40 {
        let delivery = next(&queue).await;
        assert_eq!((delivery.message.group.as_deref(), body(&delivery)), (Some("a"), n));
        ack(&queue, delivery).await;
    }
}

/// A message that is worn out cannot be dead-lettered while the server accepts no messages.
#[tokio::test]
async fn a_message_does_not_wait_for_the_disposal_of_others() {
    let server = Arc::new(tokio::task::spawn_blocking(RabbitMq::start).await.unwrap());
    let broker = broker(&server, "worn-").await;
    let queue = broker.open(&ChannelSpec { max_receives: Some(1), ..spec(false) }).await.unwrap();
    send(&broker, 1, None).await;
    let worn = next(&queue).await;
    queue.settle(vec![Settlement::Release(worn.receipt, Duration::ZERO)]).await.remove(0).unwrap();
    send(&broker, 1, None).await;
    ctl(&server, &["set_vm_memory_high_watermark", "absolute", "1MB"]).await;
    let begun = Instant::now();
    let good = next(&queue).await;
    assert!(good.attempt == 1 && begun.elapsed() < PUBLISHING, "{:?}", begun.elapsed());
    ack(&queue, good).await;
    ctl(&server, &["set_vm_memory_high_watermark", "0.6"]).await;
    let deadline = Instant::now() + 2 * PATIENCE;
    while broker.depths(&[jobs()]).await.unwrap()[0].dead_lettered == 0 {
        assert!(Instant::now() < deadline, "it is tried again");
        let wait = Duration::from_millis(100);
        assert!(
            queue
                .receive(Receive { max: 1, wait, lease: PATIENCE }, &CancellationToken::new())
                .await
                .unwrap()
                .is_empty()
        );
    }
}
