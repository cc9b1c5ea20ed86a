//! Tests of the event loop on the fake queue, as far as they concern a service that pushes, or jobs.

use tokio::time::{sleep, timeout};

use super::*;
use crate::Spec;
use crate::trial::{SECOND, consumer, fake};
use hostler_config::{Breaker, Share};
use hostler_queue::fake::Ending;
use hostler_types::job::{BufferedJob, JobInfo};

#[test]
fn a_move_that_is_given_up_still_reports_its_failure() {
    let message = Arc::new(hostler_types::message::Message::new("1", ""));
    let (receipt, reason) = (hostler_queue::Receipt::new("h"), "bad row".to_owned());
    let release = deliveries::in_place_of(hostler_queue::Settlement::DeadLetter { receipt, message, reason }).unwrap();
    let told = release.receipt().report();
    assert!(matches!(told, Some(hostler_queue::Report::Failure { reason, .. }) if reason == "bad row"), "{told:?}");
    assert!(matches!(&release, hostler_queue::Settlement::Release(_, delay) if delay.is_zero()));
}

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

#[tokio::test(start_paused = true)]
async fn a_handler_gets_the_job_of_its_own_delivery() {
    let (broker, queue) = fake(&["add", "add"]).await;
    let id = broker.id_of(b"add");
    let job = |attempt| {
        let (job_id, root_id, job_type) = ("j".into(), "j".into(), "t".into());
        BufferedJob::new(JobInfo { job_id, root_id, job_type, item_id: id.clone(), attempt })
    };
    let (first, second) = (job(1), job(2));
    broker.job(&id, Arc::clone(&first) as _);
    let (phase, watched) = watch::channel(Phase::Running);
    let running = tokio::spawn(consumer(queue).run(watched));
    // The message without a job is dead-lettered, and the other one fails.
    broker.until_settled(2).await;
    broker.job(&id, Arc::clone(&second) as _);
    broker.until_settled(3).await;
    phase.send_replace(Phase::Draining);
    timeout(60 * SECOND, running).await.expect("not ended").unwrap();

    let settled = broker.settled();
    let no_job = settled.iter().find(|one| one.id != id).unwrap();
    assert_eq!(no_job.what, Ending::DeadLetter("no job".into()));
    let endings: Vec<_> = settled.iter().filter(|one| one.id == id).map(|one| &one.what).collect();
    assert!(matches!(endings[..], [Ending::Release(_), Ending::Ack]), "{endings:?}");
    for (job, payload) in [(first, "1"), (second, "2")] {
        let taken = job.take();
        let payloads: Vec<_> = taken.items.iter().flat_map(|(_, items)| items).map(|item| &*item.payload).collect();
        assert_eq!(payloads, [payload.as_bytes()]);
    }
}
