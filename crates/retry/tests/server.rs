//! The connections over the real NATS server that `tests/servers.sh` installs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by a panic")]

#[path = "../../queue-nats/tests/support/mod.rs"]
mod support;

use std::time::Duration;

use async_nats::{Client, ConnectOptions, Subscriber};
use futures_util::StreamExt as _;
use hostler_queue::Link;
use hostler_retry::engine::{Event, Outbox, Outgoing};
use hostler_retry::nats::Connection;
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use support::{PATIENCE, Server, VERSIONS};

/// A service without an engine.
struct Service {
    connection: Connection,
    events: Receiver<Event>,
    outbox: Outbox,
    stop: CancellationToken,
}

impl Service {
    async fn start(server: &Server) -> Self {
        Self::start_at(&server.url()).await
    }

    async fn start_at(url: &str) -> Self {
        let (mut connection, events) = Connection::open(url).await.unwrap();
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

    /// Answers the next request of a producer, and returns its body. Nothing else may happen.
    async fn answer(&mut self) -> String {
        match self.next().await {
            Event::Incoming(incoming) => {
                let stored = Outgoing::Stored { to: incoming.reply.unwrap(), id: "1".to_owned() };
                self.outbox.send(stored).unwrap();
                String::from_utf8(incoming.body.to_vec()).unwrap()
            }
            other => panic!("{other:?}"),
        }
    }

    /// Sends a message to the subject `a`.
    fn request(&self, link: u64) {
        let content = hostler_retry::engine::Content { id: "1".to_owned(), headers: Vec::new(), body: "x".into() };
        let (subject, content) = ("a".into(), content.into());
        self.outbox.send(Outgoing::Request { link, token: 7, subject, attempt: 1, content }).unwrap();
    }

    /// Delivers a message to the subject `a`. Returns the subject for the reply.
    async fn deliver(&self, link: u64, targets: &mut Subscriber) -> String {
        self.request(link);
        let delivery = timeout(PATIENCE, targets.next()).await.expect("nothing is delivered").unwrap();
        delivery.reply.unwrap().to_string()
    }

    /// Drains.
    async fn end(mut self) {
        self.stop.cancel();
        while !matches!(self.next().await, Event::NoMoreIncoming) {}
        drop((self.outbox, self.events));
        timeout(PATIENCE, self.connection.end()).await.expect("the service does not end");
    }
}

/// Subscribes to the subject `a`. Waits until the server knows it.
async fn listen(client: &Client) -> Subscriber {
    let mut targets = client.subscribe("a").await.unwrap();
    client.publish("a", "echo".into()).await.unwrap();
    timeout(PATIENCE, targets.next()).await.expect("the server is deaf").unwrap();
    targets
}

/// Sends a request until it is answered: what is on its way while the service has no connection is lost.
async fn ask(client: &Client, body: String) {
    let request = || client.request("retry.a", body.clone().into());
    while !matches!(timeout(Duration::from_secs(1), request()).await, Ok(Ok(_))) {}
}

/// Headers that the client refuses to read, and over which it panics.
const GARBAGE: [&[u8]; 2] = [b"NATS/1.0\r\nX: \xff\xfe\r\n\r\n", b"NATS/1.0\r\nname: one\rtwo\r\n\r\n"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_of_a_producer_breaks_no_delivery() {
    let server = Server::start();
    let mut service = Service::start(&server).await;
    let client = async_nats::connect(server.url()).await.unwrap();
    let mut targets = listen(&client).await;
    let link = service.connected(0).await;
    let reply = service.deliver(link, &mut targets).await;
    for turn in 0..6 {
        server.send_raw(&[("retry.zz", "inbox", GARBAGE[turn % 2])]);
        let (asking, body) = (client.clone(), format!("request {turn}"));
        let asked = tokio::spawn(async move { ask(&asking, body).await });
        assert_eq!(service.answer().await, format!("request {turn}"));
        timeout(PATIENCE, asked).await.expect("the producer gets no reply").unwrap();
    }
    client.publish(reply, "+ACK".into()).await.unwrap();
    loop {
        match service.next().await {
            Event::Reply(7, _) => break,
            Event::Incoming(_) => {}
            other => panic!("the connection to receivers is touched: {other:?}"),
        }
    }
    service.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_of_a_receiver_costs_the_connection_only() {
    let server = Server::start();
    let mut service = Service::start(&server).await;
    let client = async_nats::connect(server.url()).await.unwrap();
    let mut targets = listen(&client).await;
    let mut link = service.connected(0).await;
    for garbage in GARBAGE {
        let reply = service.deliver(link, &mut targets).await;
        server.send_raw(&[(&reply, "inbox", garbage)]);
        link = service.connected(link).await;
        let reply = service.deliver(link, &mut targets).await;
        client.publish(reply, "+ACK".into()).await.unwrap();
        while !matches!(service.next().await, Event::Reply(7, _)) {}
    }
    service.end().await;
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
        server.send_raw(&[(verb, "$KV.config.key", b"NATS/1.0\r\n\r\n"), (verb, "good", b"NATS/1.0\r\n\r\n")]);
        loop {
            let answer = timeout(PATIENCE, answers.next()).await.expect("the service does not answer").unwrap();
            assert_ne!(&*answer.subject, "$KV.config.key");
            if &*answer.subject == "good" {
                break;
            }
        }
    }
}

/// Returns the config of a server whose user `a` has these permissions.
fn users(permissions: &str) -> String {
    format!(
        "authorization {{ users: [{{ user: a, password: b, permissions: {{ {permissions} }} }}, {{ user: c, password: d }}] }}"
    )
}

fn url_of(server: &Server, user: &str) -> String {
    server.url().replace("nats://", &format!("nats://{user}@"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_delivery_is_told_and_the_service_works_on() {
    for version in VERSIONS {
        let server = Server::start_of(version, &users("publish: { deny: [\"a\"] }"));
        let mut service = Service::start_at(&url_of(&server, "a:b")).await;
        let link = service.connected(0).await;
        service.request(link);
        match service.next().await {
            Event::Denied(subject) => assert_eq!(subject, "a", "{version}"),
            other => panic!("{version}: {other:?}"),
        }
        server.reload(&users("publish: [\">\"]"));
        let other = ConnectOptions::with_user_and_password("c".to_owned(), "d".to_owned());
        let client = other.connect(server.url()).await.unwrap();
        let mut targets = listen(&client).await;
        // Until the server has read its config.
        let delivery = loop {
            service.request(link);
            match timeout(Duration::from_secs(1), targets.next()).await {
                Ok(delivery) => break delivery.unwrap(),
                Err(_) => assert!(matches!(service.next().await, Event::Denied(_))),
            }
        };
        client.publish(delivery.reply.unwrap(), "+ACK".into()).await.unwrap();
        while !matches!(service.next().await, Event::Reply(7, _)) {}
        service.end().await;
    }
}

/// The server ends the subscription, and says so only once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_permission_that_is_withdrawn_later_shows_in_the_health() {
    for version in VERSIONS {
        let server = Server::start_of(version, &users("publish: [\">\"]"));
        let service = Service::start_at(&url_of(&server, "a:b")).await;
        let mut link = service.connection.link();
        assert_eq!(*link.borrow_and_update(), Link::Up);
        server.reload(&users("subscribe: { deny: [\"retry.>\"] }"));
        let is_told = |link: &Link| matches!(link, Link::Down { why, .. } if why.contains("retry.>"));
        let told = timeout(PATIENCE, link.wait_for(is_told)).await;
        assert!(told.is_ok(), "{version}: the service is deaf, and does not say so");
        service.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_subscription_is_an_error_of_the_start() {
    let config =
        "authorization { users: [{ user: a, password: b, permissions: { subscribe: { deny: [\"retry.>\"] } } }] }";
    let server = Server::start_with(config);
    let url = server.url().replace("nats://", "nats://a:b@");
    let (mut connection, _events) = Connection::open(&url).await.unwrap();
    let error = connection.serve("retry", "group", CancellationToken::new()).await.unwrap_err();
    assert!(error.contains("Permissions Violation") && error.contains("retry.>"), "{error}");
}
