//! The delivery of callbacks to a real receiver, and to a channel.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::post;
use hostler_jobs::callbacks::signature::signature;
use hostler_jobs::callbacks::{CallbackSettings, ChannelError, ChannelSender};
use hostler_jobs::server::ServerSettings;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::support::{Server, until};

type Received = Arc<Mutex<Vec<(HeaderMap, Bytes)>>>;

/// Starts a receiver whose paths answer as they are named. Returns its address and all that it received.
async fn receiver() -> (String, Received) {
    async fn answer(State(received): State<Received>, headers: HeaderMap, body: Bytes) -> impl IntoResponse {
        let mut received = received.lock().unwrap();
        received.push((headers, body));
        // The first attempt fails, so that the second shows what stays the same.
        if received.len() == 1 { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::NO_CONTENT }
    }
    async fn gone(State(received): State<Received>, headers: HeaderMap, body: Bytes) -> StatusCode {
        received.lock().unwrap().push((headers, body));
        StatusCode::GONE
    }
    async fn elsewhere(State(received): State<Received>, headers: HeaderMap, body: Bytes) -> impl IntoResponse {
        received.lock().unwrap().push((headers, body));
        (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, "/gone")])
    }
    let received = Received::default();
    let routes = Router::new().route("/again", post(answer)).route("/gone", post(gone));
    let routes = routes.route("/elsewhere", post(elsewhere)).with_state(Arc::clone(&received));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, routes).await });
    (address, received)
}

fn settings() -> ServerSettings {
    let callbacks = CallbackSettings { secret: Some("secret".to_owned()), channels: None };
    ServerSettings { callbacks, ..ServerSettings::default() }
}

/// Creates a job that is complete at once.
async fn complete(server: &Server, id: &str, callback: Value) {
    let job = json!({ "type": "a", "id": id, "sealed": true, "callback": callback });
    let (status, body) = server.post("/job", &job).await;
    assert_eq!(status, 201, "{body}");
}

#[tokio::test]
async fn a_status_is_signed_and_sent_until_it_is_accepted() {
    let server = Server::start(settings()).await;
    let (address, received) = receiver().await;
    complete(&server, "done", json!({ "url": format!("{address}/again") })).await;
    until(|| async { received.lock().unwrap().len() >= 2 }).await;
    {
        let received = received.lock().unwrap();
        let event = |index: usize| received[index].0["hostler-event-id"].to_str().unwrap().to_owned();
        assert_eq!(event(0), event(1));
        let (headers, body) = &received[1];
        let given = headers["hostler-signature"].to_str().unwrap();
        let seconds = given.split([',', '=']).nth(1).unwrap().parse().unwrap();
        assert_eq!(given, signature(b"secret", seconds, body));
        let status: Value = serde_json::from_slice(body).unwrap();
        assert_eq!((&status["id"], &status["tree_complete"]), (&json!("done"), &json!(true)));
    }
    until(|| async { server.store.counts().await.unwrap().callbacks == 0 }).await;
    assert_eq!(server.store.counts().await.unwrap().dead_callbacks, 0);
    server.stop().await;
}

#[tokio::test]
async fn a_receiver_that_is_gone_is_not_asked_again() {
    let server = Server::start(settings()).await;
    let (address, received) = receiver().await;
    complete(&server, "gone", json!({ "url": format!("{address}/gone") })).await;
    until(|| async { server.store.counts().await.unwrap().dead_callbacks == 1 }).await;
    assert_eq!(received.lock().unwrap().len(), 1);
    server.stop().await;
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let server = Server::start(settings()).await;
    let (address, received) = receiver().await;
    complete(&server, "moved", json!({ "url": format!("{address}/elsewhere") })).await;
    until(|| async { !received.lock().unwrap().is_empty() }).await;
    until(|| async { received.lock().unwrap().len() >= 2 }).await;
    assert_eq!(server.store.counts().await.unwrap().dead_callbacks, 0, "the redirect to /gone was followed");
    server.stop().await;
}

#[tokio::test]
async fn a_receiver_that_hangs_delays_no_other() {
    let server = Server::start(settings()).await;
    let (address, received) = receiver().await;
    // It takes connections, and never answers.
    let hanging = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", hanging.local_addr().unwrap());
    tokio::spawn(async move {
        let mut taken = Vec::new();
        loop {
            taken.push(hanging.accept().await);
        }
    });
    for n in 0..40 {
        complete(&server, &format!("hangs{n}"), json!({ "url": url })).await;
    }
    let begun = std::time::Instant::now();
    complete(&server, "works", json!({ "url": format!("{address}/gone") })).await;
    until(|| async { received.lock().unwrap().len() == 1 }).await;
    assert!(begun.elapsed() < std::time::Duration::from_secs(8), "it waited for the others: {:?}", begun.elapsed());
    server.cancel.cancel();
}

/// A queue that keeps what it is sent.
#[derive(Default)]
struct Queue(Mutex<Vec<(String, String, Bytes)>>);

#[async_trait]
impl ChannelSender for Queue {
    async fn send(&self, channel: &str, event_id: &str, body: Bytes) -> Result<(), ChannelError> {
        self.0.lock().unwrap().push((channel.to_owned(), event_id.to_owned(), body));
        Ok(())
    }
}

#[tokio::test]
async fn a_channel_gets_the_status() {
    let queue = Arc::new(Queue::default());
    let callbacks = CallbackSettings { secret: None, channels: Some(Arc::clone(&queue) as Arc<dyn ChannelSender>) };
    let server = Server::start(ServerSettings { callbacks, ..ServerSettings::default() }).await;
    complete(&server, "j", json!({ "channel": "done" })).await;
    until(|| async { !queue.0.lock().unwrap().is_empty() }).await;
    let (channel, _, body) = queue.0.lock().unwrap()[0].clone();
    let status: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!((channel.as_str(), &status["id"]), ("done", &json!("j")));
    server.stop().await;
}
