//! The end of a server, slow clients, and outages of the database.

use std::time::{Duration, Instant};

use hostler_jobs::server::{ServeError, ServerSettings, serve};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::postgres::Postgres;
use crate::support::{Server, store, until};

#[tokio::test]
async fn long_polls_end_at_once_and_the_port_is_closed() {
    let server = Server::start(ServerSettings::default()).await;
    let claim = json!({ "types": ["a"], "worker_id": "w", "max": 1, "wait_seconds": 60 });
    let begun = Instant::now();
    let poll = async {
        let answer = server.post("/claim", &claim).await;
        assert_eq!(answer, (200, json!({ "assignments": [] })));
    };
    let stop = async {
        // The poll has asked once when the server has counted a healthy answer after it.
        until(|| async { server.get("/readyz").await.0 == 200 }).await;
        server.cancel.cancel();
    };
    tokio::join!(poll, stop);
    assert!(begun.elapsed() < Duration::from_secs(30));
    let address = server.address;
    server.stop().await;
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn a_client_that_never_ends_its_request_does_not_hold_up_the_stop() {
    use tokio::io::AsyncWriteExt as _;
    let settings = ServerSettings { grace: Duration::from_millis(200), ..ServerSettings::default() };
    let server = Server::without_database(settings).await;
    let mut stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
    let head =
        "POST /job HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{";
    stream.write_all(head.as_bytes()).await.unwrap();
    assert_eq!(server.get("/healthz").await.0, 200);
    let begun = Instant::now();
    server.stop().await;
    assert!(begun.elapsed() < Duration::from_secs(9), "the stop waited for the body's time limit");
}

#[tokio::test]
async fn without_tokens_only_loopback_is_listened_on() {
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let store = store("postgres://nobody@127.0.0.1:9/none");
    let outcome = serve(ServerSettings::default(), listener, store, CancellationToken::new()).await;
    assert!(matches!(outcome, Err(ServeError::Exposed(_))), "{outcome:?}");
}

#[tokio::test]
async fn the_service_survives_a_restart_of_the_database() {
    let mut database = tokio::task::spawn_blocking(Postgres::start).await.unwrap();
    let url = database.database();
    let store = store(&url);
    store.migrate().await.unwrap();
    let server = Server::over(store, ServerSettings::default()).await;
    assert_eq!(server.post("/job", &json!({ "type": "a", "id": "j" })).await.0, 201);
    database.kill();
    assert_eq!(server.get("/job/j/status").await.0, 503);
    assert_eq!(server.get("/readyz").await.0, 503);
    assert_eq!(server.get("/healthz").await.0, 200);
    let database = tokio::task::spawn_blocking(move || {
        database.restart();
        database
    });
    let database = database.await.unwrap();
    until(|| async { server.get("/readyz").await.0 == 200 }).await;
    assert_eq!(server.get("/job/j/status").await.0, 200);
    server.stop().await;
    drop(database);
}

#[tokio::test]
async fn idle_connections_keep_nobody_out() {
    let settings = ServerSettings { connections: 3, ..ServerSettings::default() };
    let server = Server::without_database(settings).await;
    let mut idle = Vec::new();
    for _ in 0..3 {
        idle.push(tokio::net::TcpStream::connect(server.address).await.unwrap());
    }
    let begun = Instant::now();
    assert_eq!(server.get("/healthz").await.0, 200);
    assert!(begun.elapsed() < Duration::from_secs(30), "it waited for an idle connection: {:?}", begun.elapsed());
    drop(idle);
    server.stop().await;
}
