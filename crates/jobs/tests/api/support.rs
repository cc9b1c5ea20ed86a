//! A running server over a PostgreSQL of its own database, and a client.

use std::net::SocketAddr;
use std::time::Duration;

use hostler_jobs::api::roles::{Role, Tokens};
use hostler_jobs::server::{ServeError, ServerSettings, serve};
use hostler_jobs::store::{Store, StoreSettings};
use hostler_postgres::{Database, Options};
use reqwest::{Client, Method, RequestBuilder, Response};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::postgres::Postgres;

/// Maximum time of everything that a test waits for.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// A running server.
pub struct Server {
    pub address: SocketAddr,
    pub client: Client,
    pub store: Store,
    pub cancel: CancellationToken,
    pub ended: JoinHandle<Result<(), ServeError>>,
}

/// Creates a store over a database.
pub fn store(url: &str) -> Store {
    let options = Options { application: "hostler-jobs-test", connections: 4, deadline: Duration::from_secs(5) };
    let settings = StoreSettings { heartbeat: Duration::from_secs(1), ..StoreSettings::default() };
    Store::new(Database::new(url, options).unwrap(), settings)
}

impl Server {
    /// Starts a server whose database cannot be reached.
    pub async fn without_database(settings: ServerSettings) -> Self {
        // Nothing listens on the discard port.
        Self::over(store("postgres://nobody@127.0.0.1:9/none"), settings).await
    }

    /// Starts a server over a new database of the shared PostgreSQL.
    pub async fn start(settings: ServerSettings) -> Self {
        let store = store(&Postgres::shared().database());
        store.migrate().await.unwrap();
        Self::over(store, settings).await
    }

    /// Starts a server over a store.
    pub async fn over(store: Store, settings: ServerSettings) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let cancel = CancellationToken::new();
        let ended = tokio::spawn(serve(settings, listener, store.clone(), cancel.clone()));
        let client = Client::builder().no_proxy().timeout(DEADLINE).build().unwrap();
        Self { address, client, store, cancel, ended }
    }

    /// Prepares a request.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("http://{}{path}", self.address))
    }

    /// Gets a path. Returns status and body.
    pub async fn get(&self, path: &str) -> (u16, Value) {
        read(self.request(Method::GET, path).send().await.unwrap()).await
    }

    /// Posts JSON. Returns status and body.
    pub async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        read(self.request(Method::POST, path).json(body).send().await.unwrap()).await
    }

    /// Posts nothing. Returns status and body.
    pub async fn poke(&self, path: &str) -> (u16, Value) {
        read(self.request(Method::POST, path).send().await.unwrap()).await
    }

    /// Sends a whole request as it is, and returns all that the server answers until it closes.
    pub async fn raw(&self, request: &[u8]) -> String {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let mut stream = tokio::net::TcpStream::connect(self.address).await.unwrap();
        stream.write_all(request).await.unwrap();
        let mut answer = Vec::new();
        timeout(DEADLINE, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
        String::from_utf8(answer).unwrap()
    }

    /// Stops the server and waits for its end.
    pub async fn stop(self) {
        self.cancel.cancel();
        timeout(DEADLINE, self.ended).await.unwrap().unwrap().unwrap();
    }
}

/// Reads status and JSON body. Every refusal must be a problem that repeats its status.
pub async fn read(response: Response) -> (u16, Value) {
    let status = response.status().as_u16();
    let kind = response.headers().get("content-type").map(|kind| kind.to_str().unwrap().to_owned());
    let body = response.bytes().await.unwrap();
    let json: Value = if body.is_empty() { Value::Null } else { serde_json::from_slice(&body).unwrap() };
    if status >= 400 {
        assert_eq!(kind.as_deref(), Some("application/problem+json"));
        assert_eq!(json["status"], status);
        assert!(json["title"].is_string() && json["detail"].is_string(), "{json}");
    }
    (status, json)
}

/// Returns settings with a token of each role: `p`, `w` and `o`.
pub fn with_tokens() -> ServerSettings {
    let pairs = [(Role::Producer, "p"), (Role::Worker, "w"), (Role::Operator, "o")];
    let mut settings = ServerSettings::default();
    settings.limits.tokens = Tokens::new(pairs.map(|(role, secret)| (role, secret.to_owned())));
    settings
}

/// Waits until a condition holds, which is asked for again and again.
pub async fn until<F: Future<Output = bool>>(mut holds: impl FnMut() -> F) {
    let asked = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(DEADLINE, asked).await.expect("the condition did not come true in time");
}
