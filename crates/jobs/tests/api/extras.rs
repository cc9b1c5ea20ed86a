//! Results that add items, final failures, progress, delayed release, readiness and metrics over HTTP.

use hostler_jobs::api::openapi;
use hostler_jobs::schema::LATEST;
use hostler_jobs::server::ServerSettings;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Server, until};

/// Creates a tree and claims the items of type `a`. Returns the ids of the assignments.
async fn claimed(server: &Server, tree: &Value) -> Vec<String> {
    let (status, body) = server.post("/job", tree).await;
    assert_eq!(status, 201, "{body}");
    let claim = json!({ "types": ["a"], "worker_id": "w", "max": 10 });
    let (_, body) = server.post("/claim", &claim).await;
    let ids = body["assignments"].as_array().unwrap().iter();
    ids.map(|one| one["assignment_id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn results_add_items_and_seal() {
    let server = Server::start(ServerSettings::default()).await;
    let items = vec![json!({ "payload": 1 }); 3];
    let tree = json!({ "type": "a", "id": "r", "sealed": true, "items": items, "children": [{ "type": "b" }] });
    let ids = claimed(&server, &tree).await;
    let added = json!([{ "target": "b", "items": [{ "payload": 2, "dedupe_key": "d", "serialize_key": null, "priority": 1 }] }]);
    let result = json!({ "result": 1, "add_items": added });
    for _ in 0..2 {
        assert_eq!(server.post(&format!("/assignment/{}/result", ids[0]), &result).await.0, 200);
    }
    let batch = json!({ "results": [{ "assignment_id": ids[1], "result": 1, "add_items": added, "seal": ["b"] }] });
    let (status, answer) = server.post("/settle", &batch).await;
    assert_eq!((status, &answer["settled"][0]["status"]), (200, &json!("ok")));
    let late = json!({ "result": 1, "add_items": added });
    assert_eq!(server.post(&format!("/assignment/{}/result", ids[2]), &late).await.0, 200, "a failure, not lost");
    let status = server.get("/job/r/status").await.1;
    assert_eq!((&status["failed"], &status["children"][0]["added"]), (&json!(1), &json!(1)), "{status}");
    let failed = server.get("/job_item?root_id=r&state=failed").await.1;
    let error = failed["items"][0]["failures"][0]["error"].as_str().unwrap();
    assert!(error.contains("\"b\" is sealed"), "{error}");
    let (status, problem) =
        server.post("/settle", &json!({ "results": [{ "assignment_id": ids[0], "result": 1, "seal": [""] }] })).await;
    assert_eq!((status, &problem["field"]), (422, &json!("/results/0/seal/0")));
    server.stop().await;
}

#[tokio::test]
async fn a_fed_payload_that_is_too_deep_fails_the_item() {
    let server = Server::start(ServerSettings::default()).await;
    let child = json!({ "type": "b", "feed": { "payload": { "in": "$" } } });
    let items = vec![json!({ "payload": 1 }); 2];
    let ids = claimed(&server, &json!({ "type": "a", "id": "r", "items": items, "children": [child] })).await;
    let deep = |levels: usize| -> Value { serde_json::from_str(&("[".repeat(levels) + &"]".repeat(levels))).unwrap() };
    // serde_json reads 127 levels by default; the key of the template adds one, and so does this array.
    let whole = json!([deep(127)]);
    assert_eq!(server.post(&format!("/assignment/{}/result", ids[0]), &json!({ "result": whole })).await.0, 200);
    assert_eq!(server.post(&format!("/assignment/{}/result", ids[1]), &json!({ "result": deep(127) })).await.0, 200);
    let status = server.get("/job/r/status").await.1;
    assert_eq!((&status["failed"], &status["children"][0]["added"]), (&json!(1), &json!(1)), "{status}");
    let failed = server.get("/job_item?root_id=r&state=failed").await.1;
    let error = failed["items"][0]["failures"][0]["error"].as_str().unwrap();
    assert!(error.contains("128 levels"), "{error}");
    server.stop().await;
}

#[tokio::test]
async fn final_failures_progress_and_delays() {
    let server = Server::start(ServerSettings::default()).await;
    let items = vec![json!({ "payload": 1 }); 3];
    let ids = claimed(&server, &json!({ "type": "a", "id": "r", "max_failures_per_item": 9, "items": items })).await;
    let (status, answer) =
        server.post(&format!("/assignment/{}/failure", ids[0]), &json!({ "error": 1, "final": true })).await;
    assert_eq!((status, answer), (200, json!({ "retry_at": null })));
    let batch = json!({ "failures": [{ "assignment_id": ids[1], "error": 1, "final": true }] });
    assert_eq!(server.post("/settle", &batch).await.0, 200);
    let beat = |fraction: f64| json!({ "assignment_ids": [ids[2]], "progress": { &ids[2]: { "fraction": fraction, "text": "half" } } });
    assert_eq!(server.post("/heartbeat", &beat(0.5)).await.1, json!({ "stale": [] }));
    assert_eq!(server.post("/heartbeat", &beat(1.5)).await.0, 422);
    let items = server.get("/job_item?job_id=r").await.1;
    let states: Vec<_> =
        items["items"].as_array().unwrap().iter().map(|item| item["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["failed", "failed", "assigned"]);
    assert_eq!(items["items"][2]["progress"], json!({ "fraction": 0.5, "text": "half" }));
    assert!(items["items"][0]["progress"].is_null() && items["items"][0]["created_at"].is_string());
    let release = |delay: f64| json!({ "assignment_ids": [ids[2]], "delay_seconds": delay });
    assert_eq!(server.post("/release", &release(-1.0)).await.0, 422);
    assert_eq!(server.post("/release", &release(60.0)).await.1, json!({ "stale": [] }));
    assert!(server.get("/job_item?job_id=r&state=pending").await.1["items"][0]["retry_at"].is_string());
    server.stop().await;
}

#[tokio::test]
async fn readiness_compares_the_schema_and_metrics_show_lags() {
    let server = Server::start(ServerSettings::default()).await;
    server.post("/job", &json!({ "type": "a", "children": [{ "type": "b" }] })).await;
    until(|| async {
        let text = server.request(Method::GET, "/metrics").send().await.unwrap().text().await.unwrap();
        let has = |start: &str| text.lines().any(|line| line.starts_with(start));
        ["fold", "promote", "expire", "reap"]
            .iter()
            .all(|name| has(&format!("hostler_jobs_sweep_lag_seconds{{sweep=\"{name}\"}}")))
            && has("hostler_jobs_open_jobs 2")
    })
    .await;
    assert_eq!(server.get("/readyz").await.0, 200);
    let migrated = async |version: i32, compatible_from: i32| {
        let sql = format!(
            "INSERT INTO hostler_jobs.migration (version, name, compatible_from) VALUES ({version}, 'later', {compatible_from})"
        );
        server.store.database().client().await.unwrap().batch(&sql).await.unwrap();
    };
    migrated(98, LATEST).await;
    server.store.check_schema().await.unwrap();
    server.store.migrate().await.unwrap();
    migrated(99, 99).await;
    // An answer of the database holds for a second.
    until(|| async { server.get("/readyz").await.0 == 503 }).await;
    let detail = server.get("/readyz").await.1["detail"].to_string();
    assert!(detail.contains("version 99") && detail.contains("run the newer hostler"), "{detail}");
    assert!(server.store.migrate().await.is_err());
    server.stop().await;
}

#[test]
fn the_extras_are_documented() {
    let document = openapi();
    let schemas = &document["components"]["schemas"];
    for (schema, property) in [
        ("ResultBody", "add_items"),
        ("Success", "seal"),
        ("Failure", "final"),
        ("FailureBody", "final"),
        ("Heartbeat", "progress"),
        ("Release", "delay_seconds"),
        ("ItemRow", "created_at"),
        ("ItemRow", "progress"),
        ("AddedTo", "target"),
    ] {
        assert!(schemas[schema]["properties"][property].is_object(), "{schema}.{property}");
    }
}
