//! The queue over the real job service and a real PostgreSQL.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by a panic")]

#[path = "../../../tests/support/postgres.rs"]
mod postgres;

use std::time::Duration;

use hostler_jobs::server::{ServerSettings, serve};
use hostler_jobs::store::{Store, StoreSettings};
use hostler_postgres::Database;
use hostler_queue::{Delivery, LeaseError, Queue, Receive, Report, Settlement};
use hostler_queue_jobs::{JobService, Options};
use hostler_types::job::NewJobItem;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

const SECOND: Duration = Duration::from_secs(1);

/// Interval of heartbeats: a busy machine must not miss three, which would be a failure of each item.
const HEARTBEAT: Duration = Duration::from_secs(20);

/// Longest time until items have been received.
const DEADLINE: Duration = Duration::from_secs(60);

struct Service {
    url: String,
    http: reqwest::Client,
    cancel: CancellationToken,
}

impl Service {
    async fn start() -> Self {
        let options =
            hostler_postgres::Options { application: "hostler-jobs-test", connections: 4, deadline: 20 * SECOND };
        let settings = StoreSettings { heartbeat: HEARTBEAT, ..StoreSettings::default() };
        let store = Store::new(Database::new(&postgres::Postgres::shared().database(), options).unwrap(), settings);
        store.migrate().await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let cancel = CancellationToken::new();
        tokio::spawn(serve(ServerSettings::default(), listener, store, cancel.clone()));
        Self { url, http: reqwest::Client::builder().no_proxy().build().unwrap(), cancel }
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        let answer = self.http.post(format!("{}{path}", self.url)).body(body.to_string());
        let answer = answer.header("content-type", "application/json").send().await.unwrap();
        let (status, text) = (answer.status(), answer.text().await.unwrap());
        assert!(status.is_success(), "{status} {text}");
        serde_json::from_str(&text).unwrap()
    }

    async fn get(&self, path: &str) -> Value {
        let text = self.http.get(format!("{}{path}", self.url)).send().await.unwrap().text().await.unwrap();
        serde_json::from_str(&text).unwrap()
    }

    async fn jobs(&self) -> JobService {
        JobService::connect(&Options { url: self.url.clone(), token: None }).await.unwrap()
    }
}

async fn receive(queue: &dyn Queue, max: usize) -> Vec<Delivery> {
    let request = Receive { max, wait: 10 * SECOND, lease: 30 * SECOND };
    queue.receive(request, &CancellationToken::new()).await.unwrap()
}

/// Receives until there are `count` deliveries.
async fn receive_all(queue: &dyn Queue, count: usize) -> Vec<Delivery> {
    let mut received = Vec::new();
    let all = async {
        while received.len() < count {
            received.extend(receive(queue, 10).await);
        }
    };
    let ended = timeout(DEADLINE, all).await;
    assert!(ended.is_ok(), "{} of {count} items in time", received.len());
    received
}

async fn settle(queue: &dyn Queue, batch: Vec<Settlement>) -> Vec<Option<LeaseError>> {
    let settled = queue.settle(batch).await;
    settled.into_iter().map(|result| result.err().map(|unsettled| unsettled.error)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn items_are_processed_retried_given_back_and_lost() {
    let service = Service::start().await;
    let items: Vec<_> = (0..5).map(|n| json!({"payload": {"n": n}, "id": format!("it-{n}")})).collect();
    let job = json!({"type": "resize", "max_failures_per_item": 1, "sealed": true, "items": items});
    let job = service.post("/job", job).await;
    let id = job["id"].as_str().unwrap();
    let jobs = service.jobs().await;
    let queue = jobs.queue("resize", "w-1");
    assert_eq!(jobs.depth("resize").await.unwrap().visible, 5);

    let mut received = receive_all(&*queue, 5).await;
    assert!(received.iter().all(|one| one.attempt == 1));
    let leases: Vec<_> = received.iter().map(|one| one.receipt.lease()).collect();
    assert!(queue.extend(&leases, 2 * HEARTBEAT).await.iter().all(Result::is_ok));
    let report = |n: usize, receipt: hostler_queue::Receipt| match n {
        0 => Settlement::Ack(receipt.with_report(Report::Result(b"{\"w\": 1.50}".to_vec()))),
        1 => Settlement::Ack(receipt),
        2 => {
            let failed = Report::Failure { reason: "boom".to_owned(), retry_in: Some(Duration::ZERO) };
            Settlement::Release(receipt.with_report(failed), Duration::ZERO)
        }
        3 => Settlement::Ack(receipt.with_report(Report::Result(b"\"\\u0000\"".to_vec()))),
        _ => Settlement::GiveBack(receipt, Duration::ZERO),
    };
    received.sort_by(|one, other| one.message.id.cmp(&other.message.id));
    let batch = received.into_iter().enumerate().map(|(n, one)| report(n, one.receipt)).collect();
    assert_eq!(settle(&*queue, batch).await, [None, None, None, None, None]);

    let mut again = receive_all(&*queue, 3).await;
    again.sort_by(|one, other| one.message.id.cmp(&other.message.id));
    let attempts: Vec<_> = again.iter().map(|one| (&*one.message.id, one.attempt)).collect();
    assert_eq!(attempts, [("it-2", 2), ("it-3", 2), ("it-4", 1)], "what was given back has spent no attempt");
    let state = service.get(&format!("/job_item?job_id={id}&state=succeeded")).await;
    assert_eq!(state["items"].as_array().map(Vec::len), Some(2), "{state}");

    let gone = service.http.delete(format!("{}/job/{id}", service.url)).send().await.unwrap();
    assert_eq!(gone.status(), 204);
    let leases: Vec<_> = again.iter().map(|one| one.receipt.lease()).collect();
    let lost = queue.extend(&leases, 2 * HEARTBEAT).await;
    assert!(lost.iter().all(|result| matches!(result, Err(LeaseError::Lost(_)))), "{lost:?}");
    service.cancel.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_that_is_repeated_is_accepted() {
    let service = Service::start().await;
    service.post("/job", json!({"type": "t", "items": [{"payload": 1}]})).await;
    let jobs = service.jobs().await;
    let queue = jobs.queue("t", "w-1");
    let handle = receive(&*queue, 1).await.remove(0).receipt.as_str().to_owned();
    let ack = || Settlement::Ack(hostler_queue::Receipt::new(&*handle).with_report(Report::Result(b"7".to_vec())));
    assert_eq!(settle(&*queue, vec![ack()]).await, [None]);
    assert_eq!(settle(&*queue, vec![ack()]).await, [None], "the answer was lost");
    service.cancel.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn items_of_a_handler_are_added_with_the_result() {
    let service = Service::start().await;
    let job = json!({"type": "a", "sealed": true, "items": [{"payload": 1}], "children": [{"type": "b"}]});
    service.post("/job", job).await;
    let jobs = service.jobs().await;
    let queue = jobs.queue("a", "w");
    let Delivery { receipt, job, .. } = receive(&*queue, 1).await.remove(0);
    let job = job.unwrap();
    job.add_items("b", vec![NewJobItem { payload: "2".into(), ..NewJobItem::default() }]).unwrap();
    job.seal("b").unwrap();
    job.progress(0.5, "half").unwrap();
    assert_eq!(queue.extend(&[receipt.lease()], 2 * HEARTBEAT).await, [Ok(())]);
    let listed = service.get("/job_item?state=assigned").await;
    assert_eq!(listed["items"][0]["progress"], json!({"fraction": 0.5, "text": "half"}), "{listed}");
    assert_eq!(settle(&*queue, vec![Settlement::Ack(receipt)]).await, [None]);
    assert_eq!(receive(&*jobs.queue("b", "w"), 1).await.len(), 1);
    service.cancel.cancel();
}
