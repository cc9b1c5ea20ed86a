//! Ids by RabbitMQ: they arrive, and what is lost or doubled there changes nothing.

use std::time::{Duration, Instant};

use hostler_jobs::fanout::Fanout;
use serde_json::{Value, json};

use crate::outside::{Seen, channel, get, next, process, publish, purge};
use crate::postgres::Postgres;
use crate::rabbitmq;
use crate::support::{DEADLINE, Server, until};
use crate::{by_rabbitmq, serve};

/// Returns the RabbitMQ that tests share.
async fn shared() -> &'static rabbitmq::Server {
    tokio::task::spawn_blocking(rabbitmq::Server::shared).await.unwrap()
}

/// Starts a server that fans out by RabbitMQ.
async fn start(url: &str) -> Server {
    let server = serve(&Postgres::shared().database(), Fanout::RabbitMq(by_rabbitmq(url))).await;
    armed(&server).await;
    server
}

/// Waits until items that become ready are written into the outbox, and the broker is connected.
async fn armed(server: &Server) {
    until(|| async {
        server.store.keep_outbox(1_000, Duration::from_secs(60)).await.is_ok_and(|outbox| outbox.is_open)
    })
    .await;
    until(|| async { server.get("/readyz").await.1["status"] == "ok" }).await;
}

/// Creates a sealed job `j` of a type. Returns the ids of its items.
async fn create(server: &Server, kind: &str, count: usize) -> Vec<String> {
    let items: Vec<Value> = (0..count).map(|n| json!({ "payload": n })).collect();
    let job = json!({ "type": kind, "id": "j", "sealed": true, "items": items });
    let (status, created) = server.post("/job", &job).await;
    assert_eq!(status, 201, "{created}");
    created["item_ids"].as_array().unwrap().iter().map(|id| id.as_str().unwrap().to_owned()).collect()
}

/// Processes what the queue of a type has until `count` items are done, or all if none is given.
async fn work(server: &Server, url: &str, kind: &str, seen: &mut Seen, count: Option<usize>) {
    let deadline = Instant::now() + DEADLINE * 4;
    let mut line = channel(url).await;
    loop {
        if Instant::now() >= deadline {
            let (ready, counts) = (server.get("/readyz").await.1, server.get("/metrics").await.1);
            panic!("{} processed, {} refused, {ready}, {counts}", seen.processed.len(), seen.refused);
        }
        let is_over = match count {
            Some(count) => seen.processed.len() >= count,
            None => server.get("/job/j/status").await.1["tree_complete"] == true,
        };
        if is_over {
            return;
        }
        match get(&line, kind).await {
            Some(delivery) => process(server, delivery, seen).await,
            None => {
                tokio::time::sleep(Duration::from_millis(20)).await;
                if !line.status().connected() {
                    line = channel(url).await;
                }
            }
        }
    }
}

/// Checks that each item was processed once.
async fn check(server: &Server, ids: &[String], seen: &Seen) {
    let (_, status) = server.get("/job/j/status").await;
    assert_eq!((&status["succeeded"], &status["failed"]), (&json!(ids.len()), &json!(0)), "{status}");
    assert_eq!(seen.processed.len(), ids.len());
    assert!(ids.iter().all(|id| seen.processed.get(id) == Some(&1)), "{seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_arrive_once_their_items_are_ready() {
    let url = shared().await.url("guest");
    let server = start(&url).await;
    let items = json!([
        { "payload": 1, "id": "first", "serialize_key": "k" },
        { "payload": 2, "id": "second", "serialize_key": "k" },
    ]);
    let job = json!({ "type": "letters", "id": "j", "sealed": true, "items": items });
    assert_eq!(server.post("/job", &job).await.0, 201);
    assert_eq!(next(&url, "letters").await, "first");
    assert_eq!(server.poke("/job_item/second/worker/w").await.0, 409, "its key is held");
    let (status, assigned) = server.poke("/job_item/first/worker/w").await;
    assert_eq!(status, 201, "{assigned}");
    assert_eq!(server.poke("/job_item/first/worker/w").await.0, 409);
    let path = format!("/assignment/{}/result", assigned["assignment_id"].as_str().unwrap());
    assert_eq!(server.post(&path, &json!({ "result": 1 })).await.0, 200);
    // A search may have written the first once more before it was assigned.
    let mut id = next(&url, "letters").await;
    while id == "first" {
        id = next(&url, "letters").await;
    }
    assert_eq!(id, "second");
    let metrics =
        server.client.get(format!("http://{}/metrics", server.address)).send().await.unwrap().text().await.unwrap();
    assert!(metrics.contains("\nhostler_jobs_fanout_up 1\n"), "{metrics}");
    assert!(!metrics.contains("\nhostler_jobs_fanout_published_total 0\n"), "{metrics}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn purged_and_doubled_messages_change_nothing() {
    let (url, kind) = (shared().await.url("guest"), "parcels");
    let server = start(&url).await;
    let ids = create(&server, kind, 100).await;
    let mut seen = Seen::default();
    work(&server, &url, kind, &mut seen, Some(20)).await;
    let line = channel(&url).await;
    assert!(purge(&line, kind).await > 0);
    publish(&line, kind, &ids[..40]).await;
    publish(&line, kind, &ids[..40]).await;
    work(&server, &url, kind, &mut seen, Some(45)).await;
    purge(&line, kind).await;
    work(&server, &url, kind, &mut seen, None).await;
    assert!(seen.refused >= 20, "{}", seen.refused);
    check(&server, &ids, &seen).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_killed_slows_nobody_and_loses_nothing() {
    let mut broker = tokio::task::spawn_blocking(rabbitmq::Server::start).await.unwrap();
    let url = broker.url("guest");
    let server = start(&url).await;
    let ids = create(&server, "mail", 120).await;
    let mut seen = Seen::default();
    work(&server, &url, "mail", &mut seen, Some(30)).await;
    broker.keep_names();
    broker.kill();
    until(|| async { server.get("/readyz").await == (200, degraded(&server).await) }).await;
    // Claims and results go on.
    let claim = json!({ "types": ["mail"], "worker_id": "w", "max": 50 });
    let (_, claimed) = server.post("/claim", &claim).await;
    let claimed = claimed["assignments"].as_array().unwrap().clone();
    assert_eq!(claimed.len(), 50);
    let results: Vec<Value> =
        claimed.iter().map(|one| json!({ "assignment_id": one["assignment_id"], "result": 1 })).collect();
    assert_eq!(server.post("/settle", &json!({ "results": results })).await.0, 200);
    for one in &claimed {
        *seen.processed.entry(one["item"]["id"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    let broker = tokio::task::spawn_blocking(move || {
        broker.restart();
        broker
    });
    let broker = broker.await.unwrap();
    work(&server, &url, "mail", &mut seen, None).await;
    check(&server, &ids, &seen).await;
    until(|| async { server.get("/readyz").await.1 == json!({ "status": "ok" }) }).await;
    server.stop().await;
    drop(broker);
}

/// Returns the answer of a degraded server, with the text that it has now.
async fn degraded(server: &Server) -> Value {
    json!({ "status": "degraded", "fanout": server.get("/readyz").await.1["fanout"] })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_is_shown_without_the_password() {
    let fanout = Fanout::RabbitMq(by_rabbitmq(&shared().await.url("hunter2")));
    assert!(!format!("{fanout:?}").contains("hunter2"));
    let server = serve(&Postgres::shared().database(), fanout).await;
    until(|| async { server.get("/readyz").await.1["status"] == "degraded" }).await;
    let (status, body) = server.get("/readyz").await;
    let text = body["fanout"].as_str().unwrap();
    assert!(status == 200 && text.contains("jobs.rabbitmq") && !text.contains("hunter2"), "{body}");
    create(&server, "mail", 1).await;
    let (_, claimed) = server.post("/claim", &json!({ "types": ["mail"], "worker_id": "w", "max": 1 })).await;
    assert_eq!(claimed["assignments"].as_array().unwrap().len(), 1);
    server.stop().await;
}
