//! Pauses of hosts, while the server is slow or does not do what it is asked to.

use std::sync::Arc;
use std::time::Duration;

use hostler_queue::{Admin, Broker, QueueError};
use hostler_queue_rabbitmq::{Options, RabbitBroker};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};

use super::driver::{HEARTBEAT, PATIENCE, ack, body, broker, jobs, next, options, receive, send, spec};
use crate::support::rabbitmq::RabbitMq;
use crate::support::servers::unique;

async fn own_server() -> Arc<RabbitMq> {
    Arc::new(spawn_blocking(RabbitMq::start).await.unwrap())
}

async fn eval(server: &Arc<RabbitMq>, expression: String) {
    let server = Arc::clone(server);
    spawn_blocking(move || server.eval(&expression)).await.unwrap();
}

/// Lets the server do nothing on the channels with this number of consumers, as if it waited for the leader of a queue.
async fn hold(server: &Arc<RabbitMq>, consumers: usize) {
    let is_meant = format!("(catch rabbit_channel:info(P, [consumer_count])) =:= [{{consumer_count, {consumers}}}]");
    let held = format!("Held = [P || P <- rabbit_channel:list(), {is_meant}]");
    let kept = "application:set_env(rabbit, held, Held), [sys:suspend(P) || P <- Held].";
    eval(server, format!("{held}, {kept}")).await;
}

async fn let_go(server: &Arc<RabbitMq>) {
    eval(server, "{ok, Held} = application:get_env(rabbit, held), [sys:resume(P) || P <- Held].".to_owned()).await;
}

/// The leases are good as long as the connection lives, and what is not in hand goes back as soon as the server can take it.
#[tokio::test]
async fn a_rest_while_the_channel_waits_loses_no_leases() {
    let server = own_server().await;
    let watchful = || Options { heartbeat: HEARTBEAT, ..options(server.url(), "slow-") };
    let one = RabbitBroker::connect(watchful()).await.unwrap();
    let other = RabbitBroker::connect(watchful()).await.unwrap();
    let (first, second) = (one.open(&spec(false)).await.unwrap(), other.open(&spec(false)).await.unwrap());
    send(&one, 10, None).await;
    let in_hand = next(&first).await;
    hold(&server, 1).await;
    let rested = Instant::now();
    first.rest().await;
    assert!(rested.elapsed() > 2 * HEARTBEAT, "time enough to see that the connection lives");
    assert!(timeout(Duration::from_millis(1), first.taken_back()).await.is_err(), "they are good");
    let error = receive(&first, 1, Duration::ZERO).await.unwrap_err();
    assert!(matches!(&error, QueueError::Unavailable(text) if text.contains("no answer")), "{error:?}");
    assert!(timeout(Duration::from_millis(1), first.taken_back()).await.is_err(), "they are good");
    first.rest().await;
    let_go(&server).await;
    for _ in 0..9 {
        let delivery = next(&second).await;
        // Another process cannot tell that no handler has seen the message.
        assert!(delivery.attempt <= 2, "{}: {}", body(&delivery), delivery.attempt);
        ack(&second, delivery).await;
    }
    ack(&first, in_hand).await;
    assert_eq!(one.depths(&[jobs()]).await.unwrap()[0].total(), 0);
    send(&one, 1, None).await;
    second.rest().await;
    ack(&first, next(&first).await).await;
}

/// In a pause, nothing else would make the server take the messages back.
#[tokio::test]
async fn a_channel_that_is_given_up_is_closed() {
    let server = own_server().await;
    let (one, other) = (broker(&server, "given-").await, broker(&server, "given-").await);
    let (first, second) = (one.open(&spec(false)).await.unwrap(), other.open(&spec(false)).await.unwrap());
    send(&one, 1, None).await;
    let in_hand = next(&first).await;
    // No sign of life, though the connection lives.
    hold(&server, 0).await;
    assert_eq!(timeout(PATIENCE, first.taken_back()).await.unwrap(), [in_hand.receipt.lease()]);
    let again = next(&second).await;
    assert_eq!(again.attempt, 2);
    ack(&second, again).await;
}

/// The server logs each refusal, and a host that stands by asks every second.
#[tokio::test]
async fn a_host_that_stands_by_is_refused_nothing() {
    let server = own_server().await;
    let (one, other) = (broker(&server, "turn-").await, broker(&server, "turn-").await);
    let (first, second) = (one.open(&spec(true)).await.unwrap(), other.open(&spec(true)).await.unwrap());
    send(&one, 1, Some("g")).await;
    let in_hand = next(&first).await;
    assert_eq!(receive(&second, 1, Duration::from_secs(3)).await.unwrap().len(), 0);
    ack(&first, in_hand).await;
    let log = server.log();
    assert!(log.contains("guest") && !log.contains("RESOURCE_LOCKED"), "{log}");
}

/// A user without the right to read finds out only after it has the turn.
#[tokio::test]
async fn a_host_that_cannot_receive_gives_up_the_turn() {
    let server = spawn_blocking(RabbitMq::shared).await.unwrap();
    let prefix = format!("{}-", unique("given-up"));
    let able = broker(server, &prefix).await;
    let queue = able.open(&spec(true)).await.unwrap();
    send(&able, 1, Some("g")).await;
    let user = unique("user");
    let url = server.url().replace("guest:guest", &format!("{user}:secret"));
    spawn_blocking(move || {
        server.ctl(&["add_user", &user, "secret"]);
        server.ctl(&["set_permissions", &user, ".*", ".*", "^$"]);
    })
    .await
    .unwrap();
    let unable = Options { create_missing: false, ..options(url, &prefix) };
    let unable = RabbitBroker::connect(unable).await.unwrap();
    let deaf = unable.open(&spec(true)).await.unwrap();
    assert!(matches!(receive(&deaf, 1, Duration::ZERO).await, Err(QueueError::Refused(_))));
    ack(&queue, next(&queue).await).await;
}
