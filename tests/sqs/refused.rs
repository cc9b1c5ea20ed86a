//! Calls about messages that the service refuses: they show in the health check while others work, and messages that come rarely
//! are no excuse.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::WORK;
use crate::support::hostler::{PATIENCE, Said, World, until};
use crate::support::scripted::{Answer, Scripted};

/// Length of a lease, and of the health check's limit.
const SHORT: &str =
    "lease = '1s'\nprocessing_timeout = '1s'\nhealthcheck_timeout = '3s'\nretry = { requeues = 0, delays = 0 }";

/// A host's world on this server.
fn world(server: &Scripted) -> World {
    let head = format!(
        "host.health_file = 'health.json'
        queue.driver = 'sqs'
        queue.sqs = {{ region = 'eu-west-1', endpoint_url = '{}' }}",
        server.endpoint()
    );
    let env = vec![("AWS_ACCESS_KEY_ID", "test".to_owned()), ("AWS_SECRET_ACCESS_KEY", "test".to_owned())];
    World::with(&head, env, &format!("{WORK}{SHORT}"))
}

/// An answer to a receive: these bodies, each a message of its own.
fn messages(bodies: &[&str]) -> Answer {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let message = |body: &&str| {
        let id = format!("m{}", NEXT.fetch_add(1, Ordering::Relaxed));
        json!({ "MessageId": id, "ReceiptHandle": format!("r-{id}"), "Body": body, "MD5OfBody": "" })
    };
    Answer::Ok(json!({ "Messages": bodies.iter().map(message).collect::<Vec<_>>() }))
}

/// Every entry of a batch is done.
fn done(input: &Value) -> Answer {
    let entries = input["Entries"].as_array().into_iter().flatten();
    let done = entries.map(|entry| json!({ "Id": entry["Id"], "MessageId": "x", "MD5OfMessageBody": "" }));
    Answer::Ok(json!({ "Successful": done.collect::<Vec<_>>(), "Failed": [] }))
}

/// Waits until the health check says that settlements fail.
fn until_unhealthy(world: &World) -> Said {
    until("an unhealthy verdict", PATIENCE, || {
        let said = world.output(&["check-consumer-health"]);
        (said.code == 1 && said.stderr.contains("none has succeeded")).then_some(said)
    })
}

#[allow(clippy::disallowed_methods, reason = "a server that takes its time")]
fn rest(time: Duration) {
    thread::sleep(time);
}

#[test]
fn dead_letter_copies_that_are_refused_are_not_hidden_by_acks_that_work() {
    let server = Scripted::start(|action, input| match action {
        "ReceiveMessage" => {
            rest(Duration::from_millis(200));
            messages(&["ack", "x65"])
        }
        "SendMessageBatch" => Answer::Error(403, "AccessDeniedException"),
        _ => done(input),
    });
    let world = world(&server);
    let mut host = world.started();
    until_unhealthy(&world);
    let lines = host.settled(2);
    assert!(lines.iter().any(|line| line["disposition"] == "ack"), "acks work: {lines:?}");
    host.stop();
}

/// The failures of two messages are one outage where the second comes 10 s after the first: much later than the first could come
/// again, and no later than a poll of 20 s could bring it.
#[test]
fn failures_of_messages_that_come_rarely_add_up() {
    let brought = Mutex::new(Vec::<Instant>::new());
    let server = Scripted::start(move |action, input| match action {
        "ReceiveMessage" => {
            rest(Duration::from_millis(200));
            let mut brought = brought.lock().unwrap();
            match brought[..] {
                [] => {}
                [first] if first.elapsed() > Duration::from_secs(10) => {}
                _ => return messages(&[]),
            }
            brought.push(Instant::now());
            messages(&["ack"])
        }
        "DeleteMessageBatch" => Answer::Error(403, "AccessDeniedException"),
        _ => done(input),
    });
    let world = world(&server);
    let mut host = world.started();
    let said = until_unhealthy(&world);
    assert!(said.stderr.contains("have failed for 1"), "ten seconds and some: {said:?}");
    host.stop();
}
