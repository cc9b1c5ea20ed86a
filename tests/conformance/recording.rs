//! Runs of idempotency keys: one at a time, done for good, and recorded with the ack or not at all.

use hostler_queue::{
    Begin, Begun, Commit, Done, Finish, Hold, LeaseError, RecordId, Records, Report, RunEnd, Settlement,
};

use super::*;

const TTL: Duration = Duration::from_secs(3_600);

/// A lease that does not end during a test.
const LONG: Duration = Duration::from_secs(600);

async fn store(broker: &Arc<dyn Provisioner>) -> Arc<dyn Records> {
    let records = broker.records().unwrap();
    records.prepare().await.unwrap();
    records
}

fn hold(key: &str, token: i64) -> Hold {
    Hold { record: RecordId::new("jobs", key), token }
}

fn begin(key: &str, token: i64) -> Begin {
    let label = format!("jobs {key}");
    Begin { hold: hold(key, token), label, body: [1; 32], lease: LONG, ttl: TTL, takes_over: true }
}

fn finish(key: &str, token: i64) -> Finish {
    Finish { hold: hold(key, token), ttl: TTL, reply: Some(vec![0, 255]), unsent: Some(vec![1, 0]) }
}

pub async fn one_of_many_runs_starts<H: Harness>(harness: &H) {
    let hosts = [store(&harness.broker().await).await, store(&harness.broker().await).await];
    for key in ["a", "b", "c", "d", "e"] {
        let (one, two) = tokio::join!(hosts[0].begin(begin(key, 1)), hosts[1].begin(begin(key, 2)));
        let begun = [one.unwrap(), two.unwrap()];
        assert_eq!(begun.iter().filter(|begun| **begun == Begun::Started).count(), 1, "{begun:?}");
        assert!(begun.iter().any(|begun| matches!(begun, Begun::Busy(left) if *left <= LONG)), "{begun:?}");
    }
    let other = Begin { body: [2; 32], ..begin("a", 3) };
    assert_eq!(hosts[1].begin(other).await, Ok(Begun::OtherBody));
}

pub async fn success_is_kept_and_another_run_changes_nothing<H: Harness>(harness: &H) {
    let records = store(&harness.broker().await).await;
    assert_eq!(records.begin(begin("a", 1)).await, Ok(Begun::Started));
    let stale = records.finish(vec![finish("a", 2), finish("b", 1)]).await;
    assert!(stale.iter().all(|result| matches!(result, Err(LeaseError::Lost(_)))), "{stale:?}");
    assert_eq!(records.finish(vec![finish("a", 1)]).await, [Ok(())]);
    assert_eq!(records.finish(vec![finish("a", 1)]).await, [Ok(())], "an answer may be lost");
    records.end(&[(hold("a", 1), RunEnd::Forget), (hold("a", 1), RunEnd::Lapse)]).await.unwrap();
    let done = |unsent| Begun::Done(Done { hold: hold("a", 1), reply: Some(vec![0, 255]), unsent });
    assert_eq!(records.begin(begin("a", 3)).await, Ok(done(Some(vec![1, 0]))));
    records.sent(&[hold("a", 1)]).await.unwrap();
    assert_eq!(records.begin(begin("a", 3)).await, Ok(done(None)));
    let extended = records.extend(&[hold("a", 1)], LONG).await;
    assert!(matches!(extended[..], [Err(LeaseError::Lost(_))]), "{extended:?}");
}

pub async fn runs_lapse_and_are_forgotten<H: Harness>(harness: &H) {
    let records = store(&harness.broker().await).await;
    records.begin(begin("a", 1)).await.unwrap();
    records.end(&[(hold("a", 2), RunEnd::Lapse), (hold("a", 2), RunEnd::Forget)]).await.unwrap();
    assert!(matches!(records.begin(begin("a", 3)).await, Ok(Begun::Busy(_))), "a stale run ended another one");
    records.end(&[(hold("a", 1), RunEnd::Lapse)]).await.unwrap();
    assert_eq!(records.begin(Begin { takes_over: false, ..begin("a", 3) }).await, Ok(Begun::Unknown));
    assert_eq!(records.begin(begin("a", 3)).await, Ok(Begun::TakenOver));
    let extended = records.extend(&[hold("a", 3), hold("a", 1)], LONG).await;
    assert!(matches!(extended[..], [Ok(()), Err(LeaseError::Lost(_))]), "{extended:?}");
    records.end(&[(hold("a", 3), RunEnd::Forget)]).await.unwrap();
    assert_eq!(records.begin(Begin { takes_over: false, ..begin("a", 4) }).await, Ok(Begun::Started));
    // A lease that ends by itself.
    assert_eq!(records.begin(Begin { lease: H::TICK, ..begin("b", 1) }).await, Ok(Begun::Started));
    let lapsed = async {
        while records.begin(begin("b", 2)).await != Ok(Begun::TakenOver) {
            tokio::time::sleep(H::TICK / 10).await;
        }
    };
    tokio::time::timeout(PATIENCE, lapsed).await.unwrap();
}

/// An ack with its success and messages.
fn ack(delivery: Delivery, finish: Option<Finish>, bodies: &[&str]) -> Settlement {
    let messages = bodies.iter().map(|body| (channel("out"), text(body))).collect();
    Settlement::Ack(delivery.receipt.with_report(Report::Commit(Arc::new(Commit { finish, messages }))))
}

pub async fn ack_records_and_sends_in_one_step<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let (queue, out) = (broker.open(&spec("jobs")).await.unwrap(), broker.open(&spec("out")).await.unwrap());
    let records = store(&broker).await;
    broker.send(&channel("jobs"), vec![text("a"), text("b"), text("c")]).await;
    let mut received = gather(&queue, 3).await.into_iter();
    let mut next = || received.next().unwrap();
    records.begin(begin("a", 1)).await.unwrap();
    records.begin(begin("b", 1)).await.unwrap();
    // The second run has lost its key, and the third message only sends.
    let batch = vec![
        ack(next(), Some(finish("a", 1)), &["1", "2"]),
        ack(next(), Some(finish("b", 2)), &["3"]),
        ack(next(), None, &["4"]),
    ];
    let settled = queue.settle(batch).await;
    assert!(settled[0].is_ok() && settled[2].is_ok(), "{settled:?}");
    assert!(matches!(&settled[1], Err(unsettled) if matches!(unsettled.error, LeaseError::Lost(_))), "{settled:?}");
    assert_eq!(sorted(&gather(&out, 3).await), ["1", "2", "4"]);
    assert!(matches!(records.begin(begin("a", 2)).await, Ok(Begun::Done(_))));
    assert!(matches!(records.begin(begin("b", 3)).await, Ok(Begun::Busy(_))));
    assert!(take(&out, 10).await.is_empty());
}

pub async fn ack_without_its_lease_records_nothing<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let (queue, out) = (broker.open(&spec("jobs")).await.unwrap(), broker.open(&spec("out")).await.unwrap());
    let records = store(&broker).await;
    broker.send(&channel("jobs"), vec![text("a")]).await;
    let first = gather(&queue, 1).await.remove(0);
    records.begin(begin("a", 1)).await.unwrap();
    let receipt = hostler_queue::Receipt::new(first.receipt.as_str());
    queue.settle(vec![Settlement::Release(receipt, Duration::ZERO)]).await.remove(0).unwrap();
    let settled = queue.settle(vec![ack(first, Some(finish("a", 1)), &["1"])]).await;
    assert!(matches!(&settled[0], Err(unsettled) if matches!(unsettled.error, LeaseError::Lost(_))), "{settled:?}");
    assert!(matches!(records.begin(begin("a", 2)).await, Ok(Begun::Busy(_))));
    assert!(take(&out, 10).await.is_empty());
    assert_eq!(gather(&queue, 1).await.len(), 1, "the message is still there");
}
