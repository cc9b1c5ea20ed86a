//! A service that pushes messages: it is told when nothing will be received for a while, and may take leases away.

use std::sync::atomic::Ordering;

use hostler_consumer::{Phase, Spec};
use hostler_queue::Broker;
use hostler_types::Rate;
use hostler_types::message::Outgoing;
use tokio::time::{Instant, sleep};

use super::{SECOND, Stage, spec, work};

#[tokio::test(start_paused = true)]
async fn a_lease_that_the_service_takes_away_stops_its_handler_at_once() {
    let stage = Stage::start(spec(), ["hang", "work 20"]).await;
    stage.until_started(2).await;
    let id = stage.broker.id_of(b"hang");
    let taken_at = Instant::now();
    stage.broker.take_back(&id);
    stage.until_started(3).await;
    assert!(taken_at.elapsed() < SECOND, "{:?}", taken_at.elapsed());
    assert_eq!(stage.runs()[2].body, "hang");
    assert_eq!(stage.script.most_at_once.load(Ordering::SeqCst), 2, "the first run ended before the second began");
    stage.until_settled(1).await;
    assert_eq!(stage.broker.settled().len(), 1, "the other message is not affected");
}

/// The service may take a lease away before the consumer knows of the delivery.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_taken_away_before_its_delivery_arrives_starts_no_handler() {
    let stage = Stage::start(spec(), []).await;
    sleep(SECOND).await;
    stage.broker.hold_receives(true);
    let hang = Outgoing { body: "hang".into(), ..Outgoing::default() };
    stage.broker.send(&work(), vec![hang]).await.remove(0).unwrap();
    sleep(SECOND).await;
    stage.broker.take_back(&stage.broker.id_of(b"hang"));
    sleep(SECOND).await;
    stage.broker.hold_receives(false);
    stage.until_started(1).await;
    sleep(20 * SECOND).await;
    assert_eq!(stage.runs().iter().map(|run| run.attempt).collect::<Vec<_>>(), [2]);
}

#[tokio::test(start_paused = true)]
async fn a_receive_and_the_end_of_a_drain_wait_for_the_rest_before_them() {
    let stage = Stage::start(spec(), ["ack"]).await;
    stage.until_settled(1).await;
    stage.broker.hold_rests(true);
    stage.pause.send_replace(true);
    sleep(SECOND).await;
    let receives = stage.broker.calls().receive;
    stage.pause.send_replace(false);
    sleep(SECOND).await;
    assert_eq!(stage.broker.calls().receive, receives, "the rest would end what the receive call begins");
    stage.broker.hold_rests(false);
    sleep(SECOND).await;
    assert_eq!(stage.broker.calls().receive, receives + 1);

    stage.broker.hold_rests(true);
    stage.phase.send_replace(Phase::Draining);
    sleep(SECOND).await;
    assert!(!stage.running.is_finished(), "messages are being given back");
    stage.broker.hold_rests(false);
    stage.ended().await;
}

#[tokio::test(start_paused = true)]
async fn a_rest_that_hangs_holds_up_no_drain_beyond_its_deadline() {
    let stage = Stage::start(spec(), ["ack"]).await;
    stage.until_settled(1).await;
    stage.broker.hold_rests(true);
    for pause in [true, false] {
        stage.pause.send_replace(pause);
        sleep(SECOND).await;
    }
    for phase in [Phase::Draining, Phase::Deadline] {
        assert!(!stage.running.is_finished());
        stage.phase.send_replace(phase);
        sleep(SECOND).await;
    }
    assert!(stage.running.is_finished(), "a receive call waits for the rest");
}

#[tokio::test(start_paused = true)]
async fn a_queue_rests_during_a_pause_and_a_drain() {
    let stage = Stage::start(spec(), ["ack"]).await;
    stage.until_settled(1).await;
    assert_eq!(stage.broker.calls().rest, 0);
    stage.pause.send_replace(true);
    sleep(SECOND).await;
    assert_eq!(stage.broker.calls().rest, 1);
    stage.pause.send_replace(false);
    sleep(SECOND).await;
    assert_eq!(stage.broker.calls().rest, 1);
    let broker = stage.broker.clone();
    stage.drained().await;
    assert_eq!(broker.calls().rest, 2);
}

#[tokio::test(start_paused = true)]
async fn a_queue_rests_between_the_messages_of_a_low_rate() {
    let rate_limit = Some(Rate { permits: 2, per: 60 * SECOND });
    let stage = Stage::start(Spec { rate_limit, ..spec() }, ["ack", "ack", "ack"]).await;
    stage.until_settled(3).await;
    assert!((3..=4).contains(&stage.broker.calls().rest), "{:?}", stage.broker.calls());
}
