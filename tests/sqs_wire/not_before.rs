//! Delays beyond the maximum of SQS: the messages that are sent, and their receives.

use std::time::SystemTime;

use super::*;
use crate::support::scripted::Nature;

const HOUR: Duration = Duration::from_secs(3600);

/// A message that came so often, first at this time, with this stamp.
fn stamped(stamp: &str, count: u32, first: SystemTime) -> Value {
    let first = first.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis().to_string();
    json!({ "Messages": [{
        "MessageId": "a", "ReceiptHandle": "r-a", "Body": "a", "MD5OfBody": "",
        "Attributes": { "ApproximateReceiveCount": count.to_string(), "ApproximateFirstReceiveTimestamp": first },
        "MessageAttributes": { "hostler-not-before": { "DataType": "String", "StringValue": stamp } },
    }] })
}

fn at(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}

/// A server that brings this message.
fn with(message: Value) -> Scripted {
    Scripted::start(move |action, input| match action {
        "ReceiveMessage" => Answer::Ok(message.clone()),
        _ => Answer::Ok(batch(input, &[], "")),
    })
}

#[tokio::test]
async fn a_message_that_is_not_due_says_until_when_it_is_to_be_hidden() {
    let now = SystemTime::now();
    let server = with(stamped(&at(now + 72 * HOUR), 3, now - 24 * HOUR));
    let (_, queue) = open(&server, false).await;
    let asked = tokio::time::Instant::now();
    let Delivery { receipt, not_before, attempt, .. } = receive(&queue).await.unwrap().remove(0);
    let rest = not_before.unwrap() - asked;
    assert!((11 * HOUR..11 * HOUR + PATIENCE).contains(&rest), "{rest:?}");
    assert_eq!(attempt, 1);
    assert_eq!(errors(queue.settle(vec![Settlement::GiveBack(receipt, rest)]).await), [None]);
    let hidden = server.calls("ChangeMessageVisibilityBatch")[0]["Entries"][0]["VisibilityTimeout"].as_u64();
    assert!((39_600..39_700).contains(&hidden.unwrap()), "{hidden:?}");
}

#[tokio::test]
async fn receives_before_its_time_are_no_attempts() {
    let now = SystemTime::now();
    // It was hidden for 11 h, for 11 h again, and for one.
    let server = with(stamped(&at(now - 2 * HOUR), 5, now - 25 * HOUR));
    let (_, queue) = open(&server, false).await;
    let delivery = receive(&queue).await.unwrap().remove(0);
    assert_eq!(delivery.attempt, 2);
    assert!(delivery.not_before.is_none_or(|at| at < tokio::time::Instant::now()));
    let reason = "it failed".to_owned();
    let dead = Settlement::DeadLetter { receipt: delivery.receipt, message: delivery.message, reason };
    assert_eq!(errors(queue.settle(vec![dead]).await), [None]);
    let attributes = &server.calls("SendMessageBatch")[0]["Entries"][0]["MessageAttributes"];
    assert_eq!(attributes["hostler-attempts"]["StringValue"], "2");
    assert_eq!(attributes["hostler-not-before"]["StringValue"], *at(now - 2 * HOUR), "a copy keeps it");
}

#[tokio::test]
async fn a_time_that_cannot_be_meant_and_one_of_an_ordered_queue_are_ignored() {
    let now = SystemTime::now();
    for (stamp, ordered) in [("soon", false), ("9999-12-31T23:59:59Z", false), (&at(now + HOUR), true)] {
        let server = with(stamped(stamp, 2, now));
        let (_, queue) = open(&server, ordered).await;
        let delivery = receive(&queue).await.unwrap().remove(0);
        assert_eq!((delivery.not_before, delivery.attempt), (None, 2), "{stamp}");
    }
}

#[tokio::test]
async fn a_message_waits_by_the_clock_of_the_service() {
    let ahead = Duration::from_secs(600);
    let due = SystemTime::now() + ahead - Duration::from_secs(5);
    let message = stamped(&at(due), 1, due);
    let server = Scripted::with(Nature { ahead, ..Nature::default() }, move |action, input| match action {
        "ReceiveMessage" => Answer::Ok(message.clone()),
        _ => Answer::Ok(batch(input, &[], "")),
    });
    let (_, queue) = open(&server, false).await;
    let delivery = receive(&queue).await.unwrap().remove(0);
    assert!(delivery.not_before.is_none_or(|at| at <= tokio::time::Instant::now()), "it is due there");
}

#[tokio::test]
async fn a_long_delay_is_kept_by_sqs_as_far_as_it_can_and_stamped() {
    let server = Scripted::start(|_, input| Answer::Ok(batch(input, &[], "")));
    let (broker, _) = open(&server, false).await;
    let now = SystemTime::now();
    let delayed = |hours| Outgoing { delay: hours * HOUR, ..text("later") };
    let short = Outgoing { delay: Duration::from_secs(900), ..text("soon") };
    let sent = broker.send(&"jobs".parse().unwrap(), vec![delayed(72), short]).await;
    assert!(sent.iter().all(Result::is_ok), "{sent:?}");
    let entries = &server.calls("SendMessageBatch")[0]["Entries"];
    assert_eq!((&entries[0]["DelaySeconds"], &entries[1]["DelaySeconds"]), (&json!(900), &json!(900)));
    let stamp = entries[0]["MessageAttributes"]["hostler-not-before"]["StringValue"].as_str().unwrap();
    let due = humantime::parse_rfc3339(stamp).unwrap();
    assert!((now + 72 * HOUR..now + 72 * HOUR + PATIENCE).contains(&due), "{stamp}");
    assert_eq!(entries[1]["MessageAttributes"], Value::Null);
}
