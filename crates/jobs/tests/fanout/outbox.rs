//! The bound of the outbox, and its end.

use std::time::Duration;

use hostler_jobs::fanout::Fanout;
use serde_json::{Value, json};

use crate::postgres::Postgres;
use crate::serve;
use crate::support::{Server, until};

/// Creates a job with 50 items.
async fn create(server: &Server) {
    let items: Vec<Value> = (0..50).map(|n| json!({ "payload": n })).collect();
    let (status, created) = server.post("/job", &json!({ "type": "mail", "items": items })).await;
    assert_eq!(status, 201, "{created}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_gone_fills_the_outbox_up_to_its_bound() {
    let database = Postgres::shared().new_database();
    let url = Postgres::shared().url(&database);
    let sql = |sql: &str| Postgres::shared().psql(&database, sql);
    let poller = serve(&url, Fanout::Poll).await;
    create(&poller).await;
    assert_eq!(sql("SELECT count(*) FROM hostler_jobs.fanout"), "0", "nothing is written in another mode");
    poller.stop().await;

    // Nothing listens on the discard port.
    let mut settings = hostler_jobs::fanout::RabbitMq::new("amqp://127.0.0.1:9").unwrap();
    settings.most = 40;
    let server = serve(&url, Fanout::RabbitMq(settings)).await;
    until(|| async {
        sql("SELECT hostler_jobs.fanout_is_armed() AND open_until > now() FROM hostler_jobs.fanout_gate") == "t"
    })
    .await;
    create(&server).await;
    until(|| async { sql("SELECT open_until < now() FROM hostler_jobs.fanout_gate") == "t" }).await;
    create(&server).await;
    assert_eq!(sql("SELECT count(*) FROM hostler_jobs.fanout"), "50", "the outbox was full");
    assert_eq!(server.get("/readyz").await.0, 200);
    // It opens again once it has room.
    sql("DELETE FROM hostler_jobs.fanout");
    until(|| async { sql("SELECT open_until > now() FROM hostler_jobs.fanout_gate") == "t" }).await;
    // Before it is full again, and the gate closes.
    assert!(!server.store.end_outbox().await.unwrap(), "an instance needs it");
    create(&server).await;
    assert_eq!(sql("SELECT count(*) FROM hostler_jobs.fanout"), "50");
    server.stop().await;

    sql("UPDATE hostler_jobs.fanout_gate SET open_until = now()");
    let poller = serve(&url, Fanout::Poll).await;
    // A statement of the server that has stopped may have opened it again.
    until(|| async {
        sql("UPDATE hostler_jobs.fanout_gate SET open_until = now()");
        sql("SELECT hostler_jobs.fanout_is_armed()") == "f"
    })
    .await;
    assert_eq!(sql("SELECT count(*) FROM hostler_jobs.fanout"), "0");
    poller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn items_are_written_again_at_growing_ages() {
    let database = Postgres::shared().new_database();
    let store = crate::store(&Postgres::shared().url(&database));
    store.migrate().await.unwrap();
    let sql = |sql: &str| Postgres::shared().psql(&database, sql);
    store.keep_outbox(1_000, Duration::from_secs(600)).await.unwrap();
    let turns = sql(
        "SELECT string_agg(hostler_jobs.fanout_turns(x)::text, ' ') FROM unnest('{0.9,1,1.9,2,4,63,64,127,128}'::float8[]) x",
    );
    assert_eq!(turns, "0 1 1 2 3 6 7 7 8");
    let job = json!({ "type": "mail", "items": [{ "payload": 1 }, { "payload": 2 }] }).to_string();
    store.create(serde_json::from_str(&job).unwrap(), None).await.unwrap();
    let hints = store.take_hints(10, Duration::from_secs(600)).await.unwrap();
    store.drop_hints(&hints.iter().map(|hint| hint.id).collect::<Vec<_>>()).await.unwrap();
    assert_eq!(hints.len(), 2);
    let period = Duration::from_secs(60);
    let mut found = Vec::new();
    // Each round is one period later.
    for _ in 0..9 {
        sql("UPDATE hostler_jobs.ready SET at = at - interval '61 s'; \
             UPDATE hostler_jobs.fanout_gate SET searched_at = searched_at - interval '61 s'");
        found.push(store.search_lost_hints(period, 1_000).await.unwrap());
        assert_eq!(store.search_lost_hints(period, 1_000).await.unwrap(), 0, "another instance has just searched");
    }
    assert_eq!(found, [2, 2, 0, 2, 0, 0, 0, 2, 0]);
}
