//! Every route, over a real database.

use std::time::{Duration, Instant};

use hostler_jobs::server::ServerSettings;
use hostler_postgres::{Database, Options};
use reqwest::Method;
use serde_json::{Value, json};

use crate::postgres::Postgres;
use crate::support::{DEADLINE, Server, read, store, until};

fn claim(kind: &str, max: u32, wait: f64) -> Value {
    json!({ "types": [kind], "worker_id": "w", "max": max, "wait_seconds": wait })
}

/// Claims items. Returns the assignments.
async fn claimed(server: &Server, kind: &str, max: u32, wait: f64) -> Vec<Value> {
    let (status, body) = server.post("/claim", &claim(kind, max, wait)).await;
    assert_eq!(status, 200, "{body}");
    body["assignments"].as_array().unwrap().clone()
}

#[tokio::test]
async fn a_tree_lives_from_creation_to_deletion() {
    let server = Server::start(ServerSettings::default()).await;
    assert_eq!(server.get("/readyz").await.0, 200);
    let tree = json!({
        "type": "outer", "id": "root", "sealed": true, "metadata": { "a": 1 },
        "items": [{ "payload": { "n": 1 } }, { "payload": null, "dedupe_key": "d" }],
        "children": [{ "type": "inner", "final_stage": true }],
    });
    let (status, created) = server.post("/job", &tree).await;
    assert_eq!(status, 201, "{created}");
    assert_eq!((&created["id"], &created["root_id"]), (&json!("root"), &json!("root")));
    assert_eq!(created["jobs"].as_array().unwrap().len(), 2);
    assert_eq!(created["item_ids"].as_array().unwrap().len(), 2);

    let (status, page) = server.get("/job?root_id=root&limit=1").await;
    assert_eq!((status, page["jobs"].as_array().unwrap().len()), (200, 1), "{page}");
    let next = format!("/job?root_id=root&limit=1&cursor={}", page["next"].as_str().unwrap());
    let (status, rest) = server.get(&next).await;
    assert_eq!((status, &rest["jobs"][0]["type"], &rest["next"]), (200, &json!("inner"), &Value::Null), "{rest}");

    let assignments = claimed(&server, "outer", 10, 0.0).await;
    assert_eq!(assignments.len(), 2);
    let first = assignments[0]["assignment_id"].as_str().unwrap();
    let second = assignments[1]["assignment_id"].as_str().unwrap();
    assert_eq!(server.poke(&format!("/assignment/{first}/heartbeat")).await.0, 200);
    let result = format!("/assignment/{first}/result");
    assert_eq!(server.post(&result, &json!({ "result": null })).await.0, 200);
    assert_eq!(server.post(&result, &json!({ "result": null })).await.0, 200, "a repeated result");
    let failure = format!("/assignment/{second}/failure");
    let (status, answer) = server.post(&failure, &json!({ "error": "no" })).await;
    assert_eq!((status, &answer), (200, &json!({ "retry_at": null })));

    let (status, page) = server.get("/job_item?root_id=root&state=failed").await;
    assert_eq!((status, &page["items"][0]["failures"][0]["error"]), (200, &json!("no")), "{page}");
    let (status, retried) = server.poke("/job/root/retry").await;
    assert_eq!((status, &retried), (200, &json!({ "retried": 1 })));
    assert_eq!(claimed(&server, "outer", 10, 0.0).await.len(), 1);

    let (status, progress) = server.get("/job/root/status").await;
    assert_eq!((status, &progress["succeeded"], &progress["assigned"]), (200, &json!(1), &json!(1)), "{progress}");
    let delete = || server.request(Method::DELETE, "/job/root").send();
    assert_eq!(read(delete().await.unwrap()).await.0, 204);
    assert_eq!(read(delete().await.unwrap()).await.0, 404);
    assert_eq!(server.get("/job/root/status").await.0, 404);
    server.stop().await;
}

#[tokio::test]
async fn items_are_added_until_a_job_is_sealed() {
    let server = Server::start(ServerSettings::default()).await;
    server.post("/job", &json!({ "type": "a", "id": "j" })).await;
    let items = json!({ "items": [{ "payload": 1, "id": "mine" }, { "payload": 2 }] });
    let (status, added) = server.post("/job/j/items", &items).await;
    assert_eq!((status, &added["item_ids"][0]), (201, &json!("mine")), "{added}");
    let (status, problem) = server.post("/job/j/items", &json!({ "items": [{ "payload": 1, "id": "i-1-1" }] })).await;
    assert_eq!((status, &problem["field"]), (422, &json!("/items/0/id")));
    assert_eq!(server.poke("/job/j/seal").await.0, 200);
    assert_eq!(server.poke("/job/j/seal").await.0, 200);
    let (status, problem) = server.post("/job/j/items", &json!({ "items": [{ "payload": 3 }] })).await;
    assert_eq!((status, &problem["reason"]), (409, &json!("sealed")));
    assert_eq!(server.post("/job/none/items", &json!({ "items": [] })).await.0, 404);
    assert_eq!(server.poke("/job/none/seal").await.0, 404);
    assert_eq!(server.poke("/job/none/retry").await.0, 404);
    server.stop().await;
}

#[tokio::test]
async fn a_job_with_a_feed_cannot_be_sealed_by_hand() {
    let server = Server::start(ServerSettings::default()).await;
    let child = json!({ "type": "b", "id": "fed", "feed": { "payload": "$" } });
    let tree = json!({ "type": "a", "id": "top", "items": [{ "payload": 1 }], "children": [child] });
    assert_eq!(server.post("/job", &tree).await.0, 201);
    let (status, problem) = server.poke("/job/fed/seal").await;
    assert_eq!((status, &problem["reason"]), (409, &json!("feed")), "{problem}");
    assert_eq!(server.get("/job/fed/status").await.1["sealed"], json!(false));
    assert_eq!(server.poke("/job/top/seal").await.0, 200);
    server.stop().await;
}

#[tokio::test]
async fn repeated_requests_with_a_key_return_the_first_answer() {
    let server = Server::start(ServerSettings::default()).await;
    let send = |path: &'static str, key: &'static str, body: Value| {
        let request = server.request(Method::POST, path).header("idempotency-key", key).json(&body);
        async move { read(request.send().await.unwrap()).await }
    };
    let job = json!({ "type": "a", "id": "once" });
    let first = send("/job", "k1", job.clone()).await;
    assert_eq!(first.0, 201);
    assert_eq!(send("/job", "k1", job).await, first);
    let (status, problem) = send("/job", "k1", json!({ "type": "b" })).await;
    assert_eq!((status, &problem["field"]), (422, &json!("Idempotency-Key")));
    let items = json!({ "items": [{ "payload": 1 }] });
    let first = send("/job/once/items", "k2", items.clone()).await;
    assert_eq!(first.0, 201, "{}", first.1);
    assert_eq!(send("/job/once/items", "k2", items).await, first);
    assert_eq!(server.get("/job/once/status").await.1["added"], 1);
    server.stop().await;
}

#[tokio::test]
async fn taken_keys_are_conflicts_that_name_the_job() {
    let server = Server::start(ServerSettings::default()).await;
    let (_, created) = server.post("/job", &json!({ "type": "a", "dedupe_key": "k" })).await;
    let (status, problem) = server.post("/job", &json!({ "type": "a", "dedupe_key": "k" })).await;
    assert_eq!((status, &problem["job_id"], &problem["reason"]), (409, &created["id"], &json!("dedupe_key")));
    server.stop().await;
}

#[tokio::test]
async fn one_item_is_assigned_once() {
    let server = Server::start(ServerSettings::default()).await;
    let items = json!([{ "payload": 1, "id": "one" }, { "payload": 2, "id": "k1", "serialize_key": "k" },
        { "payload": 2, "id": "k2", "serialize_key": "k" }]);
    server.post("/job", &json!({ "type": "a", "items": items })).await;
    let (status, assigned) = server.poke("/job_item/one/worker/w1").await;
    assert_eq!((status, &assigned["item"]["id"], &assigned["heartbeat_seconds"]), (201, &json!("one"), &json!(1)));
    for (item, reason) in [("one", "assigned"), ("k2", "serialize_key")] {
        let (status, problem) = server.poke(&format!("/job_item/{item}/worker/w2")).await;
        assert_eq!((status, &problem["reason"]), (409, &json!(reason)), "{item}");
    }
    assert_eq!(server.poke("/job_item/none/worker/w").await.0, 404);
    let id = assigned["assignment_id"].as_str().unwrap();
    assert_eq!(server.post(&format!("/assignment/{id}/result"), &json!({ "result": 1 })).await.0, 200);
    let (status, problem) = server.poke("/job_item/one/worker/w2").await;
    assert_eq!((status, &problem["reason"]), (409, &json!("done")));
    assert_eq!(server.poke(&format!("/assignment/{id}/heartbeat")).await.0, 410);
    assert_eq!(server.post(&format!("/assignment/{id}/failure"), &json!({ "error": 1 })).await.0, 410);
    server.stop().await;
}

#[tokio::test]
async fn batches_tell_live_assignments_from_stale_ones() {
    let server = Server::start(ServerSettings::default()).await;
    let items: Vec<_> = (0..4).map(|n| json!({ "payload": n })).collect();
    server.post("/job", &json!({ "type": "a", "max_failures_per_item": 1, "items": items })).await;
    let ids: Vec<_> = claimed(&server, "a", 4, 0.0).await.iter().map(|one| one["assignment_id"].clone()).collect();
    let gone = json!("a-1-1-0123456789abcdef");
    let (status, answer) = server.post("/heartbeat", &json!({ "assignment_ids": [ids[0], gone] })).await;
    assert_eq!((status, &answer), (200, &json!({ "stale": [gone] })));
    let (status, answer) = server.post("/release", &json!({ "assignment_ids": [ids[3], gone] })).await;
    assert_eq!((status, &answer), (200, &json!({ "stale": [gone] })));
    let batch = json!({
        "results": [{ "assignment_id": ids[0], "result": 1 }, { "assignment_id": ids[3], "result": 1 }],
        "failures": [{ "assignment_id": ids[1], "error": "e", "retry_in_seconds": 0 }],
    });
    let (status, answer) = server.post("/settle", &batch).await;
    let statuses: Vec<_> = answer["settled"].as_array().unwrap().iter().map(|one| one["status"].clone()).collect();
    assert_eq!((status, statuses), (200, vec![json!("ok"), json!("stale"), json!("ok")]), "{answer}");
    server.stop().await;
}

#[tokio::test]
async fn a_waiting_worker_gets_what_is_created_meanwhile() {
    let server = Server::start(ServerSettings::default()).await;
    let begun = Instant::now();
    assert!(claimed(&server, "a", 1, 0.3).await.is_empty());
    assert!(begun.elapsed() >= Duration::from_millis(300));
    let begun = Instant::now();
    let job = json!({ "type": "a", "items": [{ "payload": 1 }] });
    let (given, _) = tokio::join!(claimed(&server, "a", 1, 30.0), server.post("/job", &job));
    assert_eq!(given.len(), 1);
    assert!(begun.elapsed() < Duration::from_secs(15));
    server.stop().await;
}

#[tokio::test]
async fn a_worker_that_goes_away_loses_no_items() {
    let url = Postgres::shared().database();
    let store = store(&url);
    store.migrate().await.unwrap();
    let server = Server::over(store, ServerSettings::default()).await;
    server.post("/job", &json!({ "type": "a", "items": [{ "payload": 1 }] })).await;
    let options = Options { application: "lock", connections: 2, deadline: DEADLINE };
    let other = Database::new(&url, options).unwrap();
    let (mut locks, looks) = (other.client().await.unwrap(), other.client().await.unwrap());
    // The worker goes away while the claim waits for the database.
    let lock = locks.transaction().await.unwrap();
    lock.batch("LOCK TABLE hostler_jobs.assignment IN SHARE MODE").await.unwrap();
    let request = tokio::spawn(server.request(Method::POST, "/claim").json(&claim("a", 1, 0.0)).send());
    let blocked = "SELECT 1 FROM pg_locks WHERE relation = 'hostler_jobs.assignment'::regclass AND NOT granted";
    until(|| async { !looks.query(blocked, &[]).await.unwrap().is_empty() }).await;
    request.abort();
    assert!(request.await.unwrap_err().is_cancelled());
    // The server has seen the end of that connection when it has answered on another.
    assert_eq!(server.get("/healthz").await.0, 200);
    lock.commit().await.unwrap();
    let given = claimed(&server, "a", 1, 30.0).await;
    assert_eq!(given.len(), 1);
    assert_eq!(given[0]["item"]["failures"], json!([]), "an item was taken by nobody until its heartbeats failed");
    server.stop().await;
}

#[tokio::test]
async fn metrics_count_items_and_requests() {
    let server = Server::start(ServerSettings::default()).await;
    server.post("/job", &json!({ "type": "a", "items": [{ "payload": 1 }, { "payload": 2 }] })).await;
    claimed(&server, "a", 1, 0.0).await;
    let up = format!("hostler_jobs_database_up{{database=\"{}\"}} 1", server.store.place());
    let ask = || async { server.request(Method::GET, "/metrics").send().await.unwrap().text().await.unwrap() };
    until(|| async {
        let text = ask().await;
        [
            "hostler_jobs_items{type=\"a\",state=\"ready\"} 1",
            "hostler_jobs_items{type=\"a\",state=\"assigned\"} 1",
            "hostler_jobs_open_trees 1",
            up.as_str(),
            "hostler_jobs_requests_total{route=\"/claim\",method=\"POST\",status=\"200\"} 1",
        ]
        .iter()
        .all(|line| text.lines().any(|known| known == *line))
    })
    .await;
    server.stop().await;
}

#[tokio::test]
async fn values_pass_through_unchanged() {
    let server = Server::start(ServerSettings::default()).await;
    let body = r#"{"type":"a","id":"j","items":[{"payload":{"b":1.10,"a":12345678901234567890123,"c":"\u00e9\ud83d\ude00"}}]}"#;
    let request = server.request(Method::POST, "/job").header("content-type", "application/json").body(body);
    assert_eq!(read(request.send().await.unwrap()).await.0, 201);
    let text = server.request(Method::GET, "/job_item?job_id=j").send().await.unwrap().text().await.unwrap();
    assert!(text.contains("1.10") && text.contains("12345678901234567890123"), "{text}");
    server.stop().await;
}

#[tokio::test]
async fn bad_cursors_are_refused() {
    let server = Server::start(ServerSettings::default()).await;
    for path in ["/job?cursor=nonsense", "/job_item?cursor=%25%25", "/job?cursor=99999999999999999999999"] {
        let (status, problem) = server.get(path).await;
        assert_eq!((status, &problem["field"]), (422, &json!("cursor")), "{path}");
    }
    server.stop().await;
}

#[tokio::test]
async fn idempotency_keys_belong_to_their_tokens() {
    let server = Server::start(crate::support::with_tokens()).await;
    let send = |token: &'static str, id: &'static str| {
        let job = json!({ "type": "a", "id": id });
        let request = server.request(Method::POST, "/job").header("idempotency-key", "k").bearer_auth(token).json(&job);
        async move { read(request.send().await.unwrap()).await }
    };
    let first = send("p", "one").await;
    assert_eq!(first.0, 201, "{}", first.1);
    assert_eq!(send("p", "one").await, first);
    let other = send("o", "two").await;
    assert_eq!((other.0, &other.1["id"]), (201, &json!("two")), "{}", other.1);
    server.stop().await;
}
