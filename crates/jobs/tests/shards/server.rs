//! A running server over databases, and a client of it.

use std::time::Duration;

use hostler_jobs::server::{ServeError, ServerSettings, serve};
use hostler_jobs::shards::Shards;
use reqwest::{Client, Response};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A running server.
pub struct Server {
    base: String,
    client: Client,
    cancel: CancellationToken,
    ended: JoinHandle<Result<(), ServeError>>,
}

impl Server {
    /// Starts a server.
    pub async fn start(databases: impl Into<Shards>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let cancel = CancellationToken::new();
        let ended = tokio::spawn(serve(ServerSettings::default(), listener, databases.into(), cancel.clone()));
        let client = Client::builder().no_proxy().timeout(Duration::from_secs(30)).build().unwrap();
        Self { base, client, cancel, ended }
    }

    /// Gets a path.
    pub async fn get(&self, path: &str) -> Response {
        self.client.get(format!("{}{path}", self.base)).send().await.unwrap()
    }

    /// Posts JSON, which must be accepted.
    pub async fn post(&self, path: &str, body: Value) -> Value {
        let answer = self.client.post(format!("{}{path}", self.base)).json(&body).send().await.unwrap();
        assert!(answer.status().is_success(), "{}", answer.status());
        answer.json().await.unwrap()
    }

    /// The status and the body of `GET /readyz`.
    pub async fn ready(&self) -> (u16, Value) {
        let answer = self.get("/readyz").await;
        (answer.status().as_u16(), answer.json().await.unwrap())
    }

    /// Stops the server, which must end well.
    pub async fn stop(self) {
        self.cancel.cancel();
        self.ended.await.unwrap().unwrap();
    }
}
