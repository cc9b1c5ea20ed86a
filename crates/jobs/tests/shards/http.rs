//! The server over several databases: the routes, the sweeps and the carrier together.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::databases::{joined, shards, tree};
use crate::postgres::Postgres;
use crate::server::Server;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keyed_items_of_several_databases_are_worked_off_over_http() {
    const ITEMS: usize = 8;
    let server = Server::start(shards(2).await).await;
    let mut roots = Vec::new();
    for n in 0..ITEMS {
        let root = json!({"type": "a", "sealed": true, "items": [{"payload": n, "serialize_key": "k"}]});
        let created = server.post("/job", root).await;
        roots.push(created["id"].as_str().unwrap().to_owned());
    }
    let (mut ran, deadline) = (Vec::new(), Instant::now() + Duration::from_secs(120));
    while ran.len() < ITEMS {
        assert!(Instant::now() < deadline, "{ran:?}");
        let wanted = json!({"types": ["a"], "worker_id": "w", "max": 10, "wait_seconds": 20});
        let given = server.post("/claim", wanted).await["assignments"].as_array().unwrap().clone();
        assert!(given.len() <= 1, "{given:?}");
        for one in given {
            ran.push(one["item"]["payload"].as_u64().unwrap());
            let results = json!({"results": [{"assignment_id": one["assignment_id"], "result": true}], "failures": []});
            assert_eq!(server.post("/settle", results).await["settled"][0]["status"], "ok");
        }
    }
    assert!(ran.is_sorted(), "{ran:?}");
    // The fold of each database completes its trees.
    for root in roots {
        loop {
            let status: Value = server.get(&format!("/job/{root}/status")).await.json().await.unwrap();
            assert_eq!(status["succeeded"], 1);
            if status["tree_complete"] == true {
                break;
            }
            assert!(Instant::now() < deadline, "{status}");
        }
    }
    let metrics = server.get("/metrics").await.text().await.unwrap();
    assert!(metrics.contains("hostler_jobs_"), "{metrics}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_database_away_leaves_the_instance_ready_and_is_named() {
    let other = Postgres::start();
    let shards = joined(&[Postgres::shared().database(), other.database()]);
    shards.migrate().await.unwrap();
    let away = shards.stores()[1].place().to_owned();
    let server = Server::start(shards).await;
    assert_eq!(server.ready().await, (200, json!({"status": "ok"})));
    other.freeze();
    let degraded = (200, json!({"status": "degraded", "databases_away": [away]}));
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let (begun, found) = (Instant::now(), server.ready().await);
        assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
        if found == degraded {
            break;
        }
        assert!(found.0 == 200 && Instant::now() < deadline, "{found:?}");
    }
    other.thaw();
    while server.ready().await.1 != json!({"status": "ok"}) {
        assert!(Instant::now() < deadline, "the database is back");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_of_the_other_databases_are_served_while_one_is_away() {
    let mut other = Postgres::start();
    let shards = joined(&[Postgres::shared().database(), other.database()]);
    shards.migrate().await.unwrap();
    let places: Vec<String> = shards.stores().iter().map(|store| store.place().to_owned()).collect();
    shards.stores()[0].create(tree(&json!({"type": "a", "items": [{"payload": 1}]})), None).await.unwrap();
    let server = Server::start(shards).await;
    let metrics = async || {
        let answer = server.get("/metrics").await;
        assert_eq!(answer.status(), 200);
        answer.text().await.unwrap()
    };
    let up = |number: usize, up: u8| format!("\nhostler_jobs_database_up{{database=\"{}\"}} {up}\n", places[number]);
    let found = metrics().await;
    assert!(found.contains(&up(0, 1)) && found.contains(&up(1, 1)), "{found}");
    other.stop();
    let found = metrics().await;
    assert!(found.contains(&up(0, 1)) && found.contains(&up(1, 0)), "{found}");
    assert!(found.contains("\nhostler_jobs_items{type=\"a\",state=\"ready\"} 1\n"), "{found}");
    other.restart();
    let deadline = Instant::now() + Duration::from_secs(20);
    while !metrics().await.contains(&up(1, 1)) {
        assert!(Instant::now() < deadline, "the database is back");
    }
    server.stop().await;
}
