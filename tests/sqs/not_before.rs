//! Delays beyond what SQS keeps itself: messages that wait for their time, and queues that are set up for it.

use std::time::SystemTime;

use super::{WORK, send, settlements};
use crate::support::hostler::{PATIENCE, SECOND, until};
use crate::support::servers::Kind;
use crate::support::sqs::Aws;

/// A time so many seconds from now, in whole seconds, and its text.
fn in_seconds(seconds: u32) -> (SystemTime, String) {
    let text = humantime::format_rfc3339_seconds(SystemTime::now() + seconds * SECOND).to_string();
    (humantime::parse_rfc3339(&text).unwrap(), text)
}

/// Sends a message that starts in three seconds, and has it handled twice.
fn waits_and_then_has_its_attempts(kind: Kind) {
    let keys = "retry = { requeues = 1, requeue_delay = '0s', delays = 0 }";
    let world = Aws::new(kind, &format!("{WORK}{keys}"));
    let mut host = world.started();
    let (due, text) = in_seconds(3);
    let stamp = format!("hostler-not-before={text}");
    let id = send(&world, &["work", "--body", "x1", "--attr", &stamp]);
    send(&world, &["work", "--body", "at once"]);
    let lines = host.settled(2);
    assert!(SystemTime::now() >= due, "{lines:?}");
    assert_eq!(lines[1]["message_id"], *id, "the other one went first: {lines:?}");
    let lines: Vec<_> = host.settled(3).into_iter().filter(|line| line["message_id"] == *id).collect();
    let attempts: Vec<_> = lines.iter().map(|line| line["attempt"].as_u64().unwrap()).collect();
    assert_eq!(attempts, [1, 2], "the wait was no attempt: {lines:?}");
    assert!(lines[0]["queue_delay_ms"].as_f64().unwrap() < 3_000.0, "it counts from its time: {lines:?}");
    assert!(lines[1]["reason"].as_str().unwrap().contains("gave up after 2 attempts"), "{lines:?}");
    assert_eq!(host.stop(), 0);
    assert_eq!((world.counts("work"), world.counts("work-dlq")), ([0, 0, 0], [1, 0, 0]));
}

#[test]
fn a_message_waits_for_its_time_and_then_has_all_its_attempts_localstack() {
    waits_and_then_has_its_attempts(Kind::LocalStack);
}

#[test]
fn a_message_waits_for_its_time_and_then_has_all_its_attempts_ministack() {
    waits_and_then_has_its_attempts(Kind::Ministack);
}

#[test]
fn a_time_that_cannot_be_meant_is_named_and_ignored() {
    let world = Aws::new(Kind::LocalStack, WORK);
    let mut host = world.started();
    send(&world, &["work", "--body", "ack", "--attr", "hostler-not-before=9999-12-31T23:59:59Z"]);
    let line = host.wait_for(PATIENCE, |line| line["level"] == "WARN" && line["attribute"] == "hostler-not-before");
    assert!(line["reason"].as_str().unwrap().contains("14 days"), "{line}");
    assert_eq!(host.settled(1)[0]["outcome"], "ack");
    assert_eq!(host.stop(), 0);
}

#[test]
fn a_message_to_an_exchange_waits_in_its_queues() {
    let consumer = "[consumers.mobile]\nchannel = 'news.mobile'\nhandler = 'guests/run-word.wat'";
    let world = Aws::new(Kind::LocalStack, consumer);
    let mut host = world.started();
    let due = SystemTime::now() + 3 * SECOND;
    send(&world, &["news.mobile", "--body", "ack", "--delay", "3s"]);
    let lines = host.settled(1);
    assert!(SystemTime::now() >= due && lines[0]["attempt"] == 1, "{lines:?}");
    assert_eq!(host.stop(), 0);
}

#[test]
fn a_queue_is_set_up_for_the_longest_delay() {
    const REDRIVE: &str = "
queue = url(prefix + 'work')
policy = json.loads(attribute(queue, 'RedrivePolicy'))
print(json.dumps([int(policy['maxReceiveCount']), attribute(queue, 'MessageRetentionPeriod')]))
";
    let world = Aws::new(Kind::LocalStack, WORK);
    assert_eq!(world.output(&["provision"]).code, 0);
    let later = ["send", "work", "--body", "ack", "--delay", "3d"];
    let said = world.output(&later);
    assert_eq!(said.code, 2, "{said:?}");
    assert!(said.stderr.contains("consumers.work.longest_delay, 15m"), "{said:?}");

    // The config says so, and the queue is not yet set up.
    world.config(&format!("{WORK}longest_delay = '3d'"));
    let said = world.output(&later);
    assert_eq!(said.code, 2, "{said:?}");
    for part in ["dead-letters a message after 5 receives", "takes 7", "hostler provision"] {
        assert!(said.stderr.contains(part), "no `{part}`: {said:?}");
    }
    let said = world.output(&["check"]);
    assert!(said.stderr.contains("not 7days") || said.stdout.contains("not 7days"), "{said:?}");
    assert_eq!(world.output(&["provision"]).code, 0);
    assert_eq!(world.python(REDRIVE, &[]), serde_json::json!([12, "604800"]));
    assert!(world.output(&["provision", "--plan"]).stdout.contains("no change"));

    let id = send(&world, &later[1..]);
    until("it is delayed", PATIENCE, || (world.depth("work").delayed == 1).then_some(()));
    let mut host = world.started();
    send(&world, &["work", "--body", "ack"]);
    let lines = host.settled(1);
    assert!(lines[0]["message_id"] != *id, "{lines:?}");
    assert_eq!(host.stop(), 0);
    assert_eq!(settlements(&host).len(), 1);
}
