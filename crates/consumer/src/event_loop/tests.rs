//! Tests of the event loop on the fake queue, as far as they concern a service that pushes.

use tokio::time::{sleep, timeout};

use super::*;
use crate::Spec;
use crate::trial::{SECOND, consumer, fake};
use hostler_config::{Breaker, Share};

#[tokio::test(start_paused = true)]
async fn a_rest_that_hangs_does_not_keep_a_refused_consumer_from_ending() {
    let (broker, queue) = fake(&[]).await;
    broker.fail_receives(100, &QueueError::Refused("denied".into()));
    broker.hold_rests(true);
    let (_phase, watched) = watch::channel(Phase::Running);
    let begin = Instant::now();
    let summary = timeout(600 * SECOND, consumer(queue).run(watched)).await.expect("not ended");
    assert!(summary.refused.is_some(), "{summary:?}");
    assert!((10..20).contains(&begin.elapsed().as_secs()), "{:?}", begin.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_breaker_that_has_its_probe_keeps_no_message_that_was_sent_ahead() {
    let (broker, queue) = fake(&["fail"]).await;
    let breaker = Some(Breaker { failures: Share::new(0.5).unwrap(), over: 60 * SECOND, min: 1, pause: 30 * SECOND });
    let consumer = consumer(queue);
    let consumer = Consumer { spec: Spec { breaker, ..consumer.spec }, ..consumer };
    let (phase, watched) = watch::channel(Phase::Running);
    let running = tokio::spawn(consumer.run(watched));
    broker.until_settled(1).await;
    sleep(SECOND).await;
    assert_eq!(broker.calls().rest, 1, "the breaker is open");
    broker.until_settled(2).await;
    sleep(SECOND).await;
    assert_eq!(broker.calls().rest, 3, "one for the probe, and one for the breaker that opens again");
    phase.send_replace(Phase::Draining);
    timeout(60 * SECOND, running).await.expect("not ended").unwrap();
}
