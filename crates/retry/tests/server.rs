//! The connection over the real NATS server that `tests/servers.sh` installs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by a panic")]

#[path = "../../queue-nats/tests/support/mod.rs"]
mod support;

use std::time::Duration;

use async_nats::Client;
use futures_util::StreamExt as _;
use hostler_retry::engine::{Event, Outbox, Outgoing};
use hostler_retry::nats::Connection;
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use support::{PATIENCE, Server};

/// A service without an engine.
struct Service {
    connection: Connection,
    events: Receiver<Event>,
    outbox: Outbox,
    stop: CancellationToken,
}

impl Service {
    async fn start(server: &Server) -> Self {
        let (mut connection, events) = Connection::open(&server.url()).await.unwrap();
        let stop = CancellationToken::new();
        let outbox = connection.serve("retry", "group", stop.clone()).await.unwrap();
        Self { connection, events, outbox, stop }
    }

    async fn next(&mut self) -> Event {
        timeout(PATIENCE, self.events.recv()).await.expect("the service is deaf").unwrap()
    }

    /// Waits until the service can send on a connection after that of this number. Returns the number.
    async fn connected(&mut self, after: u64) -> u64 {
        loop {
            if let Event::Connected(link) = self.next().await
                && link > after
            {
                return link;
            }
        }
    }

    /// Answers the next request of a producer, and returns its body.
    async fn answer(&mut self) -> String {
        loop {
            if let Event::Incoming(incoming) = self.next().await {
                let stored = Outgoing::Stored { to: incoming.reply.unwrap(), id: "1".to_owned() };
                self.outbox.send(stored).unwrap();
                return String::from_utf8(incoming.body.to_vec()).unwrap();
            }
        }
    }
}

/// Sends a request until it is answered: what is on its way while the service has no connection is lost.
async fn ask(client: &Client, body: String) {
    let request = || client.request("retry.a", body.clone().into());
    while !matches!(timeout(Duration::from_secs(1), request()).await, Ok(Ok(_))) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_over_which_the_client_panics_costs_the_connection_only() {
    let server = Server::start();
    let mut service = Service::start(&server).await;
    let client = async_nats::connect(server.url()).await.unwrap();
    let mut targets = client.subscribe("a").await.unwrap();
    client.flush().await.unwrap();
    let mut link = service.connected(0).await;
    for turn in 0..2 {
        server.send_raw(&[("retry.a", "inbox", "NATS/1.0\r\nname: one\rtwo\r\n\r\n")]);
        link = service.connected(link).await;
        let (asking, body) = (client.clone(), format!("request {turn}"));
        let asked = tokio::spawn(async move { ask(&asking, body).await });
        assert_eq!(service.answer().await, format!("request {turn}"));
        timeout(PATIENCE, asked).await.expect("the producer gets no reply").unwrap();
        // Replies of receivers come too.
        let content = hostler_retry::engine::Content { id: "1".to_owned(), headers: Vec::new(), body: "x".into() };
        let (subject, content) = ("a".into(), content.into());
        service.outbox.send(Outgoing::Request { link, token: 7, subject, attempt: 1, content }).unwrap();
        let delivery = timeout(PATIENCE, targets.next()).await.expect("nothing is delivered").unwrap();
        client.publish(delivery.reply.unwrap(), "+ACK".into()).await.unwrap();
        while !matches!(service.next().await, Event::Reply(7, _)) {}
    }
    service.stop.cancel();
    while !matches!(service.next().await, Event::NoMoreIncoming) {}
    drop((service.outbox, service.events));
    timeout(PATIENCE, service.connection.end()).await.expect("the service does not end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_question_about_the_service_is_answered_as_a_command_to_the_server() {
    let server = Server::start();
    let _service = Service::start(&server).await;
    let client = async_nats::connect(server.url()).await.unwrap();
    let mut answers = client.subscribe(">").await.unwrap();
    client.flush().await.unwrap();
    let verbs = ["PING", "INFO", "STATS"].map(|verb| format!("$SRV.{verb}"));
    for verb in &verbs {
        server.send_raw(&[(verb, "$KV.config.key", "NATS/1.0\r\n\r\n"), (verb, "good", "NATS/1.0\r\n\r\n")]);
        loop {
            let answer = timeout(PATIENCE, answers.next()).await.expect("the service does not answer").unwrap();
            assert_ne!(&*answer.subject, "$KV.config.key");
            if &*answer.subject == "good" {
                break;
            }
        }
    }
}
