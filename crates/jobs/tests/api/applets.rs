//! Feeds by applets over HTTP: refusals of unknown ones, and results that an instance cannot take.

use std::sync::Arc;

use hostler_jobs::api::openapi;
use hostler_jobs::applets::{AppletError, Applets, Bytes};
use hostler_jobs::server::ServerSettings;
use reqwest::Method;
use serde_json::json;

use crate::postgres::Postgres;
use crate::support::{Server, read, store};

/// The applet `one`, which makes the item 1 of each result.
struct One;

#[async_trait::async_trait]
impl Applets for One {
    fn knows(&self, name: &str) -> bool {
        name == "one"
    }

    fn slots(&self, _: &str) -> usize {
        1
    }

    async fn run(&self, _: &str, _: Bytes) -> Result<Vec<u8>, AppletError> {
        Ok(br#"[{"payload":1}]"#.to_vec())
    }
}

/// Starts a server without applets and one with them, on one database.
async fn servers() -> (Server, Server) {
    let store = store(&Postgres::shared().database());
    store.migrate().await.unwrap();
    let new = store.clone().with_applets(Arc::new(One));
    (Server::over(store, ServerSettings::default()).await, Server::over(new, ServerSettings::default()).await)
}

#[tokio::test]
async fn feeds_are_refused_with_their_field() {
    let (old, new) = servers().await;
    let root = |feed: serde_json::Value| json!({ "type": "a", "children": [{ "type": "b", "feed": feed }] });
    for (feed, field) in [
        (json!({ "applet": "two" }), "/children/0/feed/applet"),
        (json!({ "applet": "" }), "/children/0/feed/applet"),
        (json!({ "applet": null }), "/children/0/feed"),
        (json!({ "applet": "one", "payload": null }), "/children/0/feed"),
        (json!({}), "/children/0/feed"),
        (json!("one"), "/children/0/feed"),
        (json!({ "applets": "one" }), "/children/0/feed/applets"),
    ] {
        let (status, problem) = new.post("/job", &root(feed.clone())).await;
        assert_eq!((status, &problem["field"]), (422, &json!(field)), "{feed}: {problem}");
    }
    let applet = root(json!({ "applet": "one" }));
    assert_eq!(old.post("/job", &applet).await.0, 422);
    assert_eq!(new.post("/job", &applet).await.0, 201);
    assert_eq!(old.post("/job", &root(json!({ "payload": null }))).await.0, 201, "null is a template");
    old.stop().await;
    new.stop().await;
}

#[tokio::test]
async fn an_instance_without_the_applet_asks_for_another_try() {
    let (old, new) = servers().await;
    let root = json!({ "type": "a", "id": "r", "sealed": true, "items": [{ "payload": 1 }],
        "children": [{ "type": "b", "feed": { "applet": "one" } }] });
    assert_eq!(new.post("/job", &root).await.0, 201);
    let (_, claimed) = old.post("/claim", &json!({ "types": ["a"], "worker_id": "w", "max": 1 })).await;
    let id = claimed["assignments"][0]["assignment_id"].as_str().unwrap();
    let path = format!("/assignment/{id}/result");
    let response = old.request(Method::POST, &path).json(&json!({ "result": 1 })).send().await.unwrap();
    assert_eq!(response.headers()["retry-after"], "1");
    let (status, problem) = read(response).await;
    assert_eq!(status, 503);
    assert!(problem["detail"].as_str().unwrap().contains("the applet \"one\" cannot run here"), "{problem}");
    for _ in 0..2 {
        assert_eq!(new.post(&path, &json!({ "result": 1 })).await.0, 200);
    }
    assert_eq!(old.post(&path, &json!({ "result": 1 })).await.0, 200, "a repeated result needs no applet");
    let status = new.get("/job/r/status").await.1;
    assert_eq!((&status["succeeded"], &status["children"][0]["added"]), (&json!(1), &json!(1)), "{status}");
    old.stop().await;
    new.stop().await;
}

#[test]
fn both_forms_of_a_feed_are_documented() {
    let feed = &openapi()["components"]["schemas"]["Feed"];
    let forms: Vec<_> = feed["oneOf"].as_array().unwrap().iter().map(|form| form["required"][0].as_str()).collect();
    assert_eq!(forms, [Some("payload"), Some("applet")], "{feed}");
    assert_eq!(openapi()["components"]["schemas"]["AddedItem"]["properties"]["metadata"]["type"], "object");
}
