//! Messages that come before their time: they go back until then, and nothing counts that.

use hostler_queue::fake::Ending;
use tokio::time::{Instant, sleep};

use super::{SECOND, Stage, spec};

#[tokio::test(start_paused = true)]
async fn a_message_that_is_not_due_goes_back_until_it_is() {
    let stage = Stage::start(spec(), ["ack", "ack"]).await;
    let due = Instant::now() + 500 * SECOND;
    stage.broker.not_before("fake-1", due);
    stage.until_settled(3).await;
    let runs = stage.runs();
    assert!(runs[0].started_at < due && runs[1].started_at >= due, "{runs:?}");
    assert!(runs[1].started_at < due + SECOND, "{runs:?}");
    assert_eq!(runs[1].attempt, 1);
    let settled = stage.broker.settled();
    let of_it: Vec<_> = settled.iter().filter(|settled| settled.id == "fake-1").map(|settled| &settled.what).collect();
    assert!(matches!(of_it[..], [Ending::Release(wait), Ending::Ack] if *wait > 499 * SECOND), "{of_it:?}");
    let status = stage.status.get();
    assert_eq!((status.processed, status.failed), (2, 0));
    let summary = stage.drained().await;
    assert_eq!((summary.processed, summary.failed, summary.late), (2, 0, 0), "its age counts from when it was due");
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_not_due_takes_no_slot_and_is_no_failure() {
    let mut spec = spec();
    spec.concurrency = 1;
    let stage = Stage::start(spec, ["fail", "work 5", "ack"]).await;
    stage.broker.not_before("fake-1", Instant::now() + 10 * SECOND);
    let begin = Instant::now();
    stage.until_started(1).await;
    let first = stage.runs()[0].clone();
    assert!(first.body == "work 5" && first.started_at < begin + SECOND, "it has the only slot: {first:?}");
    stage.until_settled(6).await;
    let attempts: Vec<_> = stage.runs().into_iter().filter(|run| run.body == "fail").map(|run| run.attempt).collect();
    assert_eq!(attempts, [1, 2, 3], "the policy's attempts begin when it is due");
}

#[tokio::test(start_paused = true)]
async fn a_drain_sends_back_a_message_that_is_not_due_no_sooner_than_its_time() {
    let stage = Stage::start(spec(), ["ack"]).await;
    stage.broker.not_before("fake-1", Instant::now() + 500 * SECOND);
    stage.broker.hold_settles(true);
    // Its release is under way when the drain begins.
    sleep(SECOND).await;
    let broker = stage.broker.clone();
    tokio::spawn(async move {
        sleep(SECOND).await;
        broker.hold_settles(false);
    });
    let broker = stage.broker.clone();
    assert_eq!(stage.drained().await.processed, 0);
    let settled = broker.settled();
    assert!(
        matches!(settled[..], [ref one] if matches!(one.what, Ending::Release(wait) if wait > 490 * SECOND)),
        "{settled:?}"
    );
}
