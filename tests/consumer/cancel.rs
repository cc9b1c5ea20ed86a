//! An operator's requests: the list of messages in flight, and what a cancel does.

use std::sync::mpsc::Receiver;
use std::time::Duration;

use hostler_consumer::{Cancellation, InFlight, Phase, Spec, Stage as Shown};
use hostler_handler::Outcome;
use hostler_queue::fake::Ending;
use tokio::time::{Instant, sleep};

use super::{SECOND, Script, Stage, spec};

/// The answer to a request, once the loop has taken it.
async fn answered<T>(answer: Receiver<T>) -> Option<T> {
    sleep(Duration::from_millis(1)).await;
    answer.try_recv().ok()
}

impl Stage {
    async fn in_flight(&self) -> Vec<InFlight> {
        answered(self.requests.list()).await.expect("no answer")
    }

    async fn cancel(&self, delivery: u64) -> Option<Cancellation> {
        answered(self.requests.cancel(delivery, Instant::now() + SECOND)).await
    }
}

#[tokio::test(start_paused = true)]
async fn the_list_has_what_runs_and_its_times() {
    let stage = Stage::start(Spec { concurrency: 2, ..spec() }, ["hang", "work 5", "ack"]).await;
    stage.until_started(2).await;
    sleep(20 * SECOND).await;
    let [shown] = <[InFlight; 1]>::try_from(stage.in_flight().await).unwrap();
    let seconds = |time: Duration| time.as_secs_f64().round();
    assert_eq!((shown.attempt, shown.stage), (1, Shown::Running));
    assert_eq!([seconds(shown.age), seconds(shown.time_left)], [20.0, 40.0]);
    assert!((10.0..=30.0).contains(&seconds(shown.lease_left)), "{shown:?}");
    assert!(!shown.message_id.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_message_fails_at_once_and_follows_the_policy() {
    let stage = Stage::start(spec(), ["hang"]).await;
    let mut delivery = None;
    for (attempt, ending) in [
        (1, Ending::Release(5 * SECOND)),
        (2, Ending::Release(60 * SECOND)),
        (3, Ending::DeadLetter("cancelled by an operator (gave up after 3 attempts)".into())),
    ] {
        stage.until_started(attempt).await;
        let shown = stage.in_flight().await;
        assert_eq!((shown.len(), shown[0].attempt as usize), (1, attempt));
        assert_ne!(Some(shown[0].delivery), delivery.replace(shown[0].delivery));
        let (asked_at, delivery) = (Instant::now(), shown[0].delivery);
        assert_eq!(stage.cancel(delivery).await, Some(Cancellation::Stopping));
        stage.until_settled(attempt).await;
        assert!(asked_at.elapsed() < SECOND, "{:?}", asked_at.elapsed());
        match (stage.endings().last().unwrap(), &ending) {
            // Delays have jitter.
            (Ending::Release(delay), Ending::Release(most)) => assert!(delay <= most, "{delay:?}"),
            (last, expected) => assert_eq!(last, expected),
        }
    }
    let failures = stage.status.failures();
    assert_eq!((failures.len(), failures[0].outcome, &*failures[2].reason), (3, "failed", "cancelled by an operator"));
    assert_eq!(stage.drained().await.failed, 3);
}

#[tokio::test(start_paused = true)]
async fn a_cancel_hits_its_own_delivery_and_not_the_next_of_the_message() {
    let stage = Stage::start(spec(), ["hang"]).await;
    stage.until_started(1).await;
    let first = stage.in_flight().await[0].delivery;
    assert_eq!(stage.cancel(first).await, Some(Cancellation::Stopping));
    stage.until_started(2).await;
    assert_eq!(stage.cancel(first).await, Some(Cancellation::Ended));
    assert_eq!(stage.in_flight().await[0].stage, Shown::Running, "the redelivery goes on");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_nobody_waits_for_any_more_cancels_nothing() {
    let stage = Stage::start(spec(), ["hang"]).await;
    stage.until_started(1).await;
    let delivery = stage.in_flight().await[0].delivery;
    let late = stage.requests.cancel(delivery, Instant::now() - SECOND);
    assert_eq!(answered(late).await, None);
    assert_eq!(stage.in_flight().await[0].stage, Shown::Running);
}

#[tokio::test(start_paused = true)]
async fn the_followers_of_a_cancelled_head_go_back_and_keep_their_order() {
    let script = Script::default();
    let spec = Spec { ordered: true, ..spec() };
    let stage = Stage::with(spec, script, [("hang", Some("a")), ("ack 2", Some("a")), ("ack 3", Some("a"))]).await;
    for attempt in 1..=3 {
        stage.until_started(attempt).await;
        let shown = stage.in_flight().await;
        assert_eq!(shown.len(), 1, "followers are not in flight");
        assert_eq!(stage.cancel(shown[0].delivery).await, Some(Cancellation::Stopping));
    }
    stage.until_started(5).await;
    assert_eq!(stage.bodies(), ["hang", "hang", "hang", "ack 2", "ack 3"]);
}

#[tokio::test(start_paused = true)]
async fn a_cancel_during_a_drain_fails_the_message_and_lets_the_host_end() {
    let stage = Stage::start(spec(), ["hang"]).await;
    stage.until_started(1).await;
    stage.phase.send_replace(Phase::Draining);
    let delivery = stage.in_flight().await[0].delivery;
    assert_eq!(stage.cancel(delivery).await, Some(Cancellation::Stopping));
    let requests = stage.requests.clone();
    let (broker, summary) = (stage.broker.clone(), stage.ended().await);
    assert_eq!((summary.failed, summary.abandoned), (1, 0));
    assert_eq!(broker.settled()[0].what, Ending::Release(5 * SECOND));
    assert_eq!(answered(requests.list()).await, None, "it is over");
}

#[tokio::test(start_paused = true)]
async fn what_its_processing_timeout_has_ended_is_the_hook_s_and_cannot_be_cancelled() {
    let script = Script { timeout_decision: Some(Outcome::Ack), hook_takes: 2 * SECOND, ..Script::default() };
    let stage = Stage::with(spec(), script, [("hang", None)]).await;
    stage.until_started(1).await;
    sleep(61 * SECOND).await;
    let shown = stage.in_flight().await;
    assert_eq!((shown[0].stage, shown[0].time_left), (Shown::Deciding, Duration::ZERO));
    assert_eq!(stage.cancel(shown[0].delivery).await, Some(Cancellation::Deciding));
    stage.until_settled(1).await;
    assert_eq!(stage.endings(), [Ending::Ack]);
}
