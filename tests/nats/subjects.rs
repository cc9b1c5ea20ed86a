//! Subjects whose requests a handler answers, without a stream.

use std::time::Duration;

use async_nats::{Client, HeaderMap, Message};
use futures_util::StreamExt as _;
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::world;
use crate::support::hostler::{Host, PATIENCE, World, until};
use crate::support::nats::{Nats, Version};
use crate::support::servers::unique;

/// A sender, and the subjects of one test.
struct Sender {
    runtime: Runtime,
    client: Client,
    root: String,
}

impl Sender {
    fn of(server: &Nats) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let client = runtime.block_on(async_nats::connect(server.url())).unwrap();
        Self { runtime, client, root: unique("hooks") }
    }

    fn config(&self, keys: &str) -> String {
        format!(
            "
            [consumers.hooks]
            subject = '{}.*'
            handler = 'guests/run-word.wat'
            concurrency = 2
            lease = '3s'
            processing_timeout = '30s'
            healthcheck_timeout = '60s'
            {keys}
            ",
            self.root
        )
    }

    /// Returns the answers to a request, up to the one that ends it.
    fn ask(&self, target: &str, body: &str, headers: HeaderMap) -> Vec<String> {
        let subject = format!("{}.{target}", self.root);
        self.runtime.block_on(async {
            let inbox = self.client.new_inbox();
            let mut answers = self.client.subscribe(inbox.clone()).await.unwrap();
            let sent = self.client.publish_with_reply_and_headers(subject, inbox, headers, body.to_owned().into());
            sent.await.unwrap();
            let mut told = Vec::new();
            while told.last().is_none_or(|last| last == "+WPI") {
                let answer: Message = timeout(PATIENCE, answers.next()).await.unwrap().unwrap();
                told.push(match answer.status {
                    Some(status) => status.to_string(),
                    None => String::from_utf8(answer.payload.to_vec()).unwrap(),
                });
            }
            told
        })
    }

    fn answer(&self, body: &str) -> String {
        self.ask("a", body, HeaderMap::new()).pop().unwrap()
    }
}

fn listening(world: &World, sender: &Sender) -> Host {
    let host = world.started();
    until("the host listens", PATIENCE, || (sender.answer("ack") == "+ACK").then_some(()));
    host
}

#[test]
fn each_outcome_has_its_answer() {
    for version in Version::ALL {
        let server = Nats::shared(version);
        let sender = Sender::of(server);
        let retry = "retry = { requeues = 1, requeue_delay = '2500ms', delays = 1, delay = '0s' }";
        let world = world(server, &sender.config(retry));
        let host = listening(&world, &sender);
        assert_eq!(sender.answer("x1"), "-NAK {\"delay\":2.5}");
        assert_eq!(sender.answer("x65"), "+TERM bad row");
        let attempt = |number: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("Hostler-Attempt", number);
            sender.ask("a", "x1", headers).pop().unwrap()
        };
        assert_eq!(attempt("2"), "-NAK {\"delay\":0}");
        let last = attempt("3");
        assert!(last.starts_with("+TERM ") && last.contains("gave up after 3 attempts"), "{last}");
        // Nobody has this subject, so nobody acknowledges it.
        let subject = format!("{}.a.b", sender.root);
        let unknown = sender.runtime.block_on(sender.client.request(subject, "ack".into()));
        assert!(unknown.is_err(), "{unknown:?}");
        let mut host = host;
        let line = host.settled(1).remove(0);
        assert_eq!(line["channel"], Value::from(format!("{}.*", sender.root)));
        assert_eq!(host.stop(), 0);
        let after = sender.ask("a", "ack", HeaderMap::new());
        assert_eq!(after, ["503"], "nobody listens any more");
    }
}

#[test]
fn a_handler_that_takes_long_keeps_its_sender_waiting() {
    let server = Nats::shared(Version::Oldest);
    let sender = Sender::of(server);
    let world = world(server, &sender.config(""));
    let host = listening(&world, &sender);
    let answers = sender.ask("a", "w4000", HeaderMap::new());
    assert!(answers.len() >= 3, "{answers:?}");
    assert_eq!((answers.first().map(String::as_str), answers.last().map(String::as_str)), (Some("+WPI"), Some("+ACK")));
    let mut host = host;
    assert_eq!(host.stop(), 0);
}

/// A sender that wants no answer.
#[test]
fn a_message_without_a_reply_subject_is_handled_in_silence() {
    let server = Nats::shared(Version::Newest);
    let sender = Sender::of(server);
    let world = world(server, &sender.config(""));
    let mut host = listening(&world, &sender);
    let before = host.lines().iter().filter(|line| line["outcome"] == "ack").count();
    let subject = format!("{}.a", sender.root);
    sender.runtime.block_on(async {
        sender.client.publish(subject, "ack".into()).await.unwrap();
        sender.client.flush().await.unwrap();
    });
    host.settled(before + 1);
    assert_eq!(host.stop(), 0);
}

/// The server lets a sender name any subject for the answer, and hostler's user may use more subjects than the sender.
#[test]
fn no_answer_is_a_command_to_the_server() {
    let server = Nats::shared(Version::Newest);
    let sender = Sender::of(server);
    let world = world(server, &sender.config(""));
    let mut host = listening(&world, &sender);
    // A server refuses `$JS.ACK` itself. This one would write a key.
    let (subject, command) = (format!("{}.a", sender.root), format!("$KV.{}.key", sender.root));
    let mut commands = sender.runtime.block_on(sender.client.subscribe(command.clone())).unwrap();
    sender.runtime.block_on(sender.client.publish_with_reply(subject, command, "ack".into())).unwrap();
    assert_eq!(sender.answer("ack"), "+ACK");
    host.settled(3);
    assert_eq!(sender.answer("ack"), "+ACK", "it comes behind all earlier ones");
    let command = sender.runtime.block_on(async { timeout(Duration::ZERO, commands.next()).await });
    assert!(command.is_err(), "{command:?}");
    assert_eq!(host.stop(), 0);
}

#[test]
fn receivers_of_a_group_share_the_requests() {
    let server = Nats::shared(Version::Middle);
    let sender = Sender::of(server);
    let (one, other) =
        (world(server, &sender.config("queue_group = 'all'")), world(server, &sender.config("queue_group = 'all'")));
    let (mut first, mut second) = (listening(&one, &sender), listening(&other, &sender));
    for _ in 0..40 {
        assert_eq!(sender.ask("a", "ack", HeaderMap::new()), ["+ACK"], "one answer each");
    }
    let acked = |host: &Host| host.lines().iter().filter(|line| line["outcome"] == "ack").count();
    until("all are counted", PATIENCE, || (acked(&first) + acked(&second) >= 42).then_some(()));
    assert!(acked(&first) > 5 && acked(&second) > 5, "{} {}", acked(&first), acked(&second));
    assert_eq!((first.stop(), second.stop()), (0, 0));
}

/// Requests that cannot start in time are not kept from other hosts: with as many waiting as there are slots, the host listens no
/// more, and the sender hears it at once.
#[test]
fn a_host_with_its_hands_full_takes_no_more() {
    let server = Nats::shared(Version::Newest);
    let sender = Sender::of(server);
    let world = world(server, &sender.config(""));
    let host = listening(&world, &sender);
    let subject = format!("{}.a", sender.root);
    let refused = sender.runtime.block_on(async {
        let mut refused = 0;
        for _ in 0..200 {
            let request = async_nats::Request::new().payload("w10000".into()).timeout(Some(Duration::from_millis(50)));
            let answer = sender.client.send_request(subject.clone(), request).await;
            refused +=
                usize::from(answer.is_err_and(|error| error.kind() == async_nats::RequestErrorKind::NoResponders));
            if refused > 0 {
                break;
            }
        }
        refused
    });
    assert_eq!(refused, 1);
    drop(host.kill());
}

#[test]
fn commands_do_not_take_a_subject_for_a_queue() {
    let server = Nats::shared(Version::Newest);
    let sender = Sender::of(server);
    let world = world(server, &sender.config(""));
    let checked = world.output(&["check"]);
    assert!(checked.code == 0 && checked.stdout.contains("subject   ok  hooks: "), "{checked:?}");
    assert_eq!(world.output(&["provision"]).code, 0);
    assert_eq!(world.queues(), Value::Array(Vec::new()));
}
