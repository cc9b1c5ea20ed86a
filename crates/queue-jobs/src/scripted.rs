//! A job service by script, for tests: answers requests on a real socket in a given order, and keeps what was asked.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::Options;
use crate::client::Client;

/// Answer to one request.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    /// Status with further headers, and body.
    Says(&'static str, String),
    /// The request is read, and the connection closed.
    Hangs,
    /// Nothing is answered until this much later, and then the body.
    Late(Duration, String),
}

/// Returns an answer with the status 200.
pub(crate) fn ok(body: impl Into<String>) -> Answer {
    Answer::Says("200 OK", body.into())
}

/// A request as it came.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) path: String,
    pub(crate) head: String,
    pub(crate) body: Value,
}

/// The service.
pub(crate) struct Scripted {
    pub(crate) client: Arc<Client>,
    state: Arc<State>,
    _serving: JoinSet<()>,
}

#[derive(Default)]
struct State {
    answers: Mutex<VecDeque<Answer>>,
    asked: Mutex<Vec<Asked>>,
    connections: Mutex<usize>,
    changed: Notify,
}

impl Scripted {
    pub(crate) async fn with(answers: impl IntoIterator<Item = Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let state = Arc::new(State { answers: Mutex::new(answers.into_iter().collect()), ..State::default() });
        let (serving, mut tasks) = (Arc::clone(&state), JoinSet::new());
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                *serving.connections.lock().unwrap() += 1;
                let state = Arc::clone(&serving);
                connections.spawn(async move { while serve(&state, &mut stream).await.is_some() {} });
            }
        });
        let client = Client::new(&Options { url, token: Some("hunter2".to_owned()) }).unwrap();
        Self { client: Arc::new(client), state, _serving: tasks }
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.state.asked.lock().unwrap().clone()
    }

    pub(crate) fn paths(&self) -> Vec<String> {
        self.asked().into_iter().map(|asked| asked.path).collect()
    }

    pub(crate) fn connections(&self) -> usize {
        *self.state.connections.lock().unwrap()
    }

    /// Waits until this many requests have come.
    pub(crate) async fn until_asked(&self, count: usize) {
        let waiting = async {
            loop {
                let changed = self.state.changed.notified();
                if self.asked().len() >= count {
                    return;
                }
                changed.await;
            }
        };
        timeout(Duration::from_secs(20), waiting).await.expect("no such request");
    }
}

async fn serve(state: &State, stream: &mut TcpStream) -> Option<()> {
    let asked = request(stream).await?;
    state.asked.lock().unwrap().push(asked);
    state.changed.notify_waiters();
    let answer = state.answers.lock().unwrap().pop_front();
    let (status, body) = match answer.unwrap_or(Answer::Says("500 Internal Server Error", String::new())) {
        Answer::Says(status, body) => (status, body),
        Answer::Late(after, body) => {
            tokio::time::sleep(after).await;
            ("200 OK", body)
        }
        Answer::Hangs => return None,
    };
    let text = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(text.as_bytes()).await.ok()
}

async fn request(stream: &mut TcpStream) -> Option<Asked> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
            if bytes.len() >= end + 4 + length {
                let path = head.split(' ').nth(1)?.to_owned();
                let body = serde_json::from_slice(&bytes[end + 4..]).unwrap_or(Value::Null);
                return Some(Asked { path, head, body });
            }
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}
