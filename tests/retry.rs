//! `hostler retry` on real NATS servers.

mod faults;
mod kills;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_nats::{Client, HeaderMap, Message};
use bytes::Bytes;
use futures_util::StreamExt as _;
use rustix::process::Signal;
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::support::hostler::{Host, PATIENCE, SECOND, World, until};
use crate::support::nats::{Nats, Version};
use crate::support::servers::unique;

const HEAD: &str = "
    host.health_file = 'health.json'
";

/// A service on a server, with a subject of its own.
struct Service {
    world: World,
    subject: String,
    client: Client,
}

impl Service {
    async fn new(server: &Nats, config: &str) -> Self {
        let subject = unique("retry");
        let env = vec![("HOSTLER_RETRY__NATS", server.url()), ("HOSTLER_RETRY__SUBJECT", subject.clone())];
        let world = World::with(HEAD, env, &format!("[retry]\nbase = '50ms'\nmax = '100ms'\n{config}"));
        Self { world, subject, client: async_nats::connect(server.url()).await.unwrap() }
    }

    fn start(&self) -> Host {
        let host = Host::start(self.world.command(&["retry"]));
        host.wait_for(PATIENCE, |line| line["message"] == "the retry service takes messages");
        host
    }

    /// Sends a message to the service. Returns its reply.
    async fn send(&self, target: &str, body: &str, headers: &[(&'static str, &str)]) -> Message {
        let mut sent = HeaderMap::new();
        for (name, value) in headers {
            sent.append(*name, *value);
        }
        let subject = format!("{}.{target}", self.subject);
        self.client.request_with_headers(subject, sent, Bytes::copy_from_slice(body.as_bytes())).await.unwrap()
    }

    async fn stored(&self, target: &str, body: &str, headers: &[(&'static str, &str)]) -> String {
        let reply = self.send(target, body, headers).await;
        assert_eq!(reply.headers, None, "{reply:?}");
        let reply: Value = serde_json::from_slice(&reply.payload).unwrap();
        reply["id"].as_str().unwrap().to_owned()
    }

    /// Answers the deliveries to a subject. `answer`: from the body and the number of the delivery.
    async fn receive(&self, subject: &str, answer: impl Fn(&str, u32) -> String + Send + 'static) -> Receiver {
        let mut requests = self.client.subscribe(subject.to_owned()).await.unwrap();
        self.client.flush().await.unwrap();
        let (client, seen) = (self.client.clone(), Arc::<Mutex<Vec<Seen>>>::default());
        let noted = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            while let Some(message) = requests.next().await {
                let headers = message.headers.unwrap();
                let attempt = headers.get("Hostler-Attempt").unwrap().as_str().parse().unwrap();
                let body = String::from_utf8(message.payload.to_vec()).unwrap();
                let answer = answer(&body, attempt);
                noted.lock().unwrap().push(Seen { at: Instant::now(), body, attempt, headers });
                if answer != "silence" {
                    client.publish(message.reply.unwrap(), answer.into()).await.unwrap();
                }
            }
        });
        Receiver { seen, task }
    }

    fn stores(&self) -> Vec<PathBuf> {
        std::fs::read_dir(self.world.path("retry")).unwrap().map(|entry| entry.unwrap().path()).collect()
    }
}

struct Seen {
    at: Instant,
    body: String,
    attempt: u32,
    headers: HeaderMap,
}

struct Receiver {
    seen: Arc<Mutex<Vec<Seen>>>,
    task: JoinHandle<()>,
}

impl Receiver {
    fn wait<T>(&self, what: &str, look: impl Fn(&[Seen]) -> Option<T>) -> T {
        tokio::task::block_in_place(|| until(what, PATIENCE, || look(&self.seen.lock().unwrap())))
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_is_delivered_until_it_is_acknowledged() {
    for version in Version::ALL {
        let service = Service::new(Nats::shared(version), "").await;
        let mut host = service.start();
        let target = unique("webhooks");
        let receiver = service
            .receive(&target, |_, attempt| match attempt {
                1 => "-NAK".to_owned(),
                2 => "thank you".to_owned(),
                _ => "+ACK".to_owned(),
            })
            .await;
        let id = service.stored(&target, "hello", &[("X-Kept", "1"), ("X-Kept", "2")]).await;
        receiver.wait("three deliveries", |seen| (seen.len() == 3).then_some(()));
        let line = host.wait_for(PATIENCE, |line| line["outcome"] == "ack");
        assert_eq!((&line["message_id"], &line["attempt"]), (&Value::from(id), &Value::from(3)));
        let seen = receiver.seen.lock().unwrap();
        let last = seen.last().unwrap();
        let kept: Vec<_> = last.headers.get_all("X-Kept").map(|value| value.as_str()).collect();
        assert_eq!((&*last.body, last.attempt, kept), ("hello", 3, vec!["1", "2"]));
        drop(seen);
        assert_eq!(host.stop(), 0);
        let rows = service.world.queues();
        assert!(rows.as_array().unwrap().iter().all(|row| row["visible"] == 0 && row["delayed"] == 0), "{rows}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_with_a_bad_header_is_refused() {
    let service = Service::new(Nats::shared(Version::Newest), "").await;
    let mut host = service.start();
    let reply = service.send("a", "x", &[("Hostler-Retries", "many")]).await;
    let headers = reply.headers.unwrap();
    assert_eq!(headers.get("Nats-Service-Error-Code").unwrap().as_str(), "400");
    assert!(headers.get("Nats-Service-Error").unwrap().as_str().contains("Hostler-Retries is \"many\""));
    assert_eq!(host.stop(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_that_a_receiver_asks_for_is_kept_for_its_whole_subject() {
    let service = Service::new(Nats::shared(Version::Newest), "").await;
    let mut host = service.start();
    let target = unique("busy");
    let receiver = service
        .receive(&target, |body, attempt| {
            if body == "first" && attempt == 1 { "-NAK {\"delay\": 2}" } else { "+ACK" }.to_owned()
        })
        .await;
    service.stored(&target, "first", &[]).await;
    receiver.wait("the first delivery", |seen| (!seen.is_empty()).then_some(()));
    service.stored(&target, "second", &[]).await;
    receiver.wait("all deliveries", |seen| (seen.len() == 3).then_some(()));
    let seen = receiver.seen.lock().unwrap();
    let waited = seen[1].at - seen[0].at;
    assert!((2 * SECOND..3 * SECOND).contains(&waited), "{waited:?}");
    drop(seen);
    assert_eq!(host.stop(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_given_up_is_a_dead_letter_and_can_go_back() {
    let service = Service::new(Nats::shared(Version::Newest), "").await;
    let mut host = service.start();
    let target = unique("broken");
    let is_mended = Arc::new(Mutex::new(false));
    let mended = Arc::clone(&is_mended);
    let answer = move |_: &str, _| if *mended.lock().unwrap() { "+ACK" } else { "-NAK" }.to_owned();
    let receiver = service.receive(&target, answer).await;
    service.stored(&target, "x", &[("Hostler-Retries", "1"), ("X-Kept", "1")]).await;
    host.wait_for(PATIENCE, |line| line["disposition"] == "dead-letter");
    let shown = service.world.output(&["dlq", "ls", "retry"]);
    assert!(shown.stdout.contains("not acknowledged in 2 deliveries"), "{}", shown.stdout);
    *is_mended.lock().unwrap() = true;
    let requeued = service.world.output(&["requeue", "--from", "retry-dlq", "--to", "retry"]);
    assert_eq!(requeued.code, 0, "{}", requeued.stderr);
    receiver.wait("the third delivery", |seen| (seen.len() == 3).then_some(()));
    let seen = receiver.seen.lock().unwrap();
    assert_eq!((seen[2].attempt, seen[2].headers.get("X-Kept").map(|value| value.as_str())), (1, Some("1")));
    drop(seen);
    assert_eq!(host.stop(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_if_the_service_is_killed_and_others_adopt_its_store() {
    let service = Service::new(Nats::shared(Version::Newest), "adopt_after = '1s'").await;
    let target = unique("work");
    let mut hosts: Vec<_> = (0..3).map(|_| service.start()).collect();
    let mut ids = BTreeMap::new();
    for number in 0..300 {
        let body = number.to_string();
        let delay = format!("{}ms", 1 + number % 1_500);
        ids.insert(service.stored(&target, &body, &[("Hostler-Delay", &delay)]).await, body);
    }
    let receiver = service.receive(&target, |_, _| "+ACK".to_owned()).await;
    for host in hosts.drain(1..) {
        host.kill();
    }
    receiver.wait("all messages", |seen| {
        let bodies: std::collections::BTreeSet<_> = seen.iter().map(|seen| &seen.body).collect();
        (bodies.len() == ids.len()).then_some(())
    });
    let mut host = hosts.remove(0);
    tokio::task::block_in_place(|| {
        until("one store is left", PATIENCE, || (service.stores().len() == 1).then_some(()))
    });
    assert_eq!(host.stop(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_waits_for_the_answers() {
    let service = Service::new(Nats::shared(Version::Newest), "").await;
    let mut host = service.start();
    let target = unique("slow");
    let mut requests = service.client.subscribe(target.clone()).await.unwrap();
    service.client.flush().await.unwrap();
    service.stored(&target, "x", &[]).await;
    let request = requests.next().await.unwrap();
    host.signal(Signal::TERM);
    host.wait_for(PATIENCE, |line| line["message"] == "draining");
    service.client.publish(request.reply.unwrap(), "+ACK".into()).await.unwrap();
    let code = tokio::task::block_in_place(|| host.wait_exit(Duration::from_secs(20)));
    assert_eq!(code, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_service_answers_discovery_by_nats_micro() {
    for version in Version::ALL {
        let service = Service::new(Nats::shared(version), "").await;
        let mut host = service.start();
        service.stored("nobody", "x", &[]).await;
        service.send("nobody", "x", &[("Hostler-Retries", "many")]).await;
        let subject = format!("{}.>", service.subject);
        let ask = async |verb: &str| {
            // Services of other tests may answer too.
            let inbox = service.client.new_inbox();
            let mut answers = service.client.subscribe(inbox.clone()).await.unwrap();
            let asked = format!("$SRV.{verb}.hostler-retry");
            service.client.publish_with_reply(asked, inbox, Bytes::new()).await.unwrap();
            loop {
                let answer = tokio::time::timeout(PATIENCE, answers.next()).await.unwrap().unwrap();
                let answer: Value = serde_json::from_slice(&answer.payload).unwrap();
                if verb == "PING" || answer["endpoints"][0]["subject"] == *subject {
                    return answer;
                }
            }
        };
        assert_eq!(ask("PING").await["type"], "io.nats.micro.v1.ping_response");
        assert_eq!(ask("INFO").await["endpoints"][0]["name"], "ingest");
        let stats = ask("STATS").await;
        let numbers = &stats["endpoints"][0];
        assert_eq!((&numbers["num_requests"], &numbers["num_errors"]), (&Value::from(2), &Value::from(1)), "{stats}");
        assert!(numbers["last_error"].as_str().unwrap().starts_with("400:the header Hostler-Retries"), "{stats}");
        assert_eq!(host.stop(), 0);
    }
}
