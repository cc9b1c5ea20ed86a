//! Receives that fail or are refused: when the queue is asked again, and when its consumer ends.

use hostler_consumer::{Spec, Summary};
use hostler_queue::{Broker, QueueError};
use hostler_types::message::Outgoing;
use tokio::time::{Instant, sleep};

use super::{SECOND, Stage, spec, work};

#[tokio::test(start_paused = true)]
async fn a_queue_that_fails_is_asked_again_and_shown_as_not_polled() {
    // One receive takes all slots, which must not be mistaken for being full.
    let stage = Stage::start(Spec { concurrency: 4, ..spec() }, []).await;
    stage.broker.fail_receives(4, &QueueError::Unavailable("down".into()));
    while stage.broker.calls().receive < 4 {
        assert_eq!(stage.status.get().last_poll_at, None);
        sleep(SECOND / 10).await;
    }
    stage.broker.send(&work(), vec![Outgoing { body: "ack".into(), ..Outgoing::default() }]).await;
    stage.until_settled(1).await;
    assert!(stage.status.get().last_poll_at.is_some());
    assert!(stage.broker.calls().receive >= 5);
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_refuses_the_first_receive_ends_its_consumer() {
    let stage = Stage::start(spec(), ["ack"]).await;
    stage.broker.fail_receives(1, &QueueError::Unavailable("down".into()));
    stage.broker.fail_receives(100, &QueueError::Refused("denied".into()));
    let begin = Instant::now();
    let summary = stage.ended().await;
    assert_eq!(summary, Summary { refused: Some("consumer test cannot receive: denied".into()), ..Summary::default() });
    assert!((3..10).contains(&begin.elapsed().as_secs()), "{:?}", begin.elapsed());
}

/// SQS needs a second or more until a queue that was made is known everywhere.
#[tokio::test(start_paused = true)]
async fn a_queue_that_is_not_known_yet_is_waited_for() {
    let stage = Stage::start(spec(), ["ack"]).await;
    stage.broker.fail_receives(2, &QueueError::Refused("there is none".into()));
    stage.until_settled(1).await;
    assert_eq!(stage.drained().await.refused, None);
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_is_resumed_long_after_its_start_does_not_end_for_a_refusal() {
    let stage = Stage::start(spec(), ["ack"]).await;
    stage.broker.fail_receives(1, &QueueError::Unavailable("down".into()));
    stage.pause.send_replace(true);
    sleep(60 * SECOND).await;
    stage.broker.fail_receives(10, &QueueError::Refused("denied".into()));
    stage.pause.send_replace(false);
    stage.until_settled(1).await;
    assert_eq!(stage.drained().await.refused, None);
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_refuses_a_later_receive_is_asked_again() {
    let stage = Stage::start(spec(), []).await;
    while stage.status.get().last_poll_at.is_none() {
        sleep(SECOND / 10).await;
    }
    stage.broker.fail_receives(3, &QueueError::Refused("denied".into()));
    while stage.broker.calls().receive < 5 {
        sleep(SECOND / 10).await;
    }
    stage.broker.send(&work(), vec![Outgoing { body: "ack".into(), ..Outgoing::default() }]).await;
    stage.until_settled(1).await;
    assert_eq!(stage.drained().await.refused, None);
}
