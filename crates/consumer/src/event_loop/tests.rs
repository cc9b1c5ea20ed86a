//! Tests of the event loop on the fake queue, as far as they concern a service that pushes.

use tokio::time::timeout;

use super::*;
use crate::trial::{SECOND, consumer, fake};

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
