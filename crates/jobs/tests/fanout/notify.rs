//! Notifications between instances.

use std::time::{Duration, Instant};

use hostler_jobs::fanout::Fanout;
use serde_json::json;

use crate::postgres::{PgBouncer, Postgres};
use crate::serve;
use crate::support::{Server, until};

/// Waits until a server notifies and is notified.
async fn listening(database: &str, count: usize) {
    until(|| async {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query = 'LISTEN hostler_jobs'";
        Postgres::shared().psql(database, sql) == count.to_string()
    })
    .await;
}

/// Lets a long poll of one server wait for an item that another server adds. Returns the time from the addition to the answer.
async fn handover(adds: &Server, waits: &Server) -> Duration {
    let claim = json!({ "types": ["mail"], "worker_id": "w", "max": 1, "wait_seconds": 30 });
    let poll = async {
        let (_, claimed) = waits.post("/claim", &claim).await;
        assert_eq!(claimed["assignments"].as_array().unwrap().len(), 1, "{claimed}");
        Instant::now()
    };
    let add = async {
        // The pauses of the notifier and of the poll are over by then.
        tokio::time::sleep(Duration::from_millis(150 + fastrand::u64(0..250))).await;
        let begun = Instant::now();
        assert_eq!(adds.post("/job/j/items", &json!({ "items": [{ "payload": 1 }] })).await.0, 201);
        begun
    };
    let (answered, begun) = tokio::join!(poll, add);
    answered.saturating_duration_since(begun)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_notification_wakes_the_long_poll_of_another_instance() {
    let database = Postgres::shared().new_database();
    let url = Postgres::shared().url(&database);
    let (first, second) = (serve(&url, Fanout::Notify).await, serve(&url, Fanout::Notify).await);
    listening(&database, 2).await;
    assert_eq!(first.post("/job", &json!({ "type": "mail", "id": "j" })).await.0, 201);
    let mut times = Vec::new();
    for _ in 0..15 {
        times.push(handover(&first, &second).await);
    }
    times.sort_unstable();
    // Polls alone would need 125 ms on average.
    assert!(times[7] < Duration::from_millis(100), "{times:?}");
    assert!(times[12] < Duration::from_millis(200), "{times:?}");
    first.stop().await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_connection_is_made_again() {
    let database = Postgres::shared().new_database();
    let url = Postgres::shared().url(&database);
    let server = serve(&url, Fanout::Notify).await;
    listening(&database, 1).await;
    Postgres::shared().cut(&database);
    until(|| async { server.get("/readyz").await == (200, json!({ "status": "ok" })) }).await;
    listening(&database, 1).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn through_pgbouncer_workers_poll() {
    let database = Postgres::shared().new_database();
    let bouncer = tokio::task::spawn_blocking(|| PgBouncer::start(Postgres::shared(), 10)).await.unwrap();
    let direct = serve(&Postgres::shared().url(&database), Fanout::Poll).await;
    let server = serve(&bouncer.url(&database), Fanout::Notify).await;
    until(|| async { server.get("/readyz").await.1["status"] == "degraded" }).await;
    let (status, body) = server.get("/readyz").await;
    assert!(status == 200 && body["fanout"].as_str().unwrap().contains("pooler"), "{body}");
    assert_eq!(direct.post("/job", &json!({ "type": "mail", "id": "j" })).await.0, 201);
    assert!(handover(&direct, &server).await < Duration::from_secs(10));
    server.stop().await;
    direct.stop().await;
}
