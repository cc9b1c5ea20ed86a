//! Answers that are odd, late or lost, and what is asked for after them.

use hostler_queue::Admin;
use std::sync::Barrier;
use std::time::SystemTime;

use hostler_ops::requeue::{Ended, MoveRequest, run};
use hostler_types::message::AttributeValue;

use super::*;
use crate::support::scripted::{Nature, REQUEST_ID};

#[tokio::test]
async fn an_error_names_the_request() {
    let server = Scripted::start(|action, input| match action {
        "ReceiveMessage" => Answer::Error(400, "AccessDeniedException"),
        _ => Answer::Ok(batch(input, &["a"], "InvalidMessageContents")),
    });
    let (broker, queue) = open(&server, false).await;
    // Without the SDK, and then by it.
    for _ in 0..2 {
        let Err(QueueError::Refused(text)) = receive(&queue).await else { panic!("not refused") };
        assert!(text.contains(REQUEST_ID), "{text}");
    }
    let sent = broker.send(&"jobs".parse().unwrap(), vec![text("a")]).await;
    assert!(sent[0].as_ref().unwrap_err().to_string().contains(REQUEST_ID), "{sent:?}");
}

#[tokio::test]
async fn an_entry_that_fails_names_the_request_of_its_batch() {
    let receives = AtomicUsize::new(0);
    let server = Scripted::start(move |action, input| match action {
        // After it the SDK makes all calls for a while.
        "ReceiveMessage" if receives.fetch_add(1, Ordering::Relaxed) == 1 => Answer::Error(500, "InternalError"),
        "ReceiveMessage" => Answer::Ok(messages(&["a", "b"])),
        _ => Answer::Ok(batch(input, &["r-a"], "InternalError")),
    });
    let (_, queue) = open(&server, false).await;
    for way in ["without the SDK", "by the SDK"] {
        let deliveries = receive(&queue).await.unwrap();
        let leases: Vec<_> = deliveries.iter().map(|delivery| delivery.receipt.lease()).collect();
        let extended = queue.extend(&leases, LEASE).await;
        let [Err(error), Ok(())] = &extended[..] else { panic!("{way}: {extended:?}") };
        assert!(error.to_string().contains(REQUEST_ID), "{way}: {error}");
        let settled = errors(queue.settle(acks(deliveries.into_iter().take(1).collect())).await);
        assert!(settled[0].as_ref().unwrap().to_string().contains(REQUEST_ID), "{way}: {settled:?}");
        if way == "without the SDK" {
            receive(&queue).await.unwrap_err();
        }
    }
}

/// The SDK reads all of an answer or nothing. What it brought is leased, and would be lost until the leases end.
#[tokio::test]
async fn one_odd_message_is_none_of_the_others_fault_by_the_sdk_either() {
    const BINARY: &str = "?";
    let receives = AtomicUsize::new(0);
    let server = Scripted::start(move |_, _| match receives.fetch_add(1, Ordering::Relaxed) {
        0 => Answer::Error(500, "InternalError"),
        1 => {
            let mut brought = messages(&["odd", "a", "unreadable"]);
            let attribute = |value: Value| json!({ "x": { "DataType": "Binary", "BinaryValue": value } });
            brought["Messages"][0]["MessageAttributes"] = attribute(json!(BINARY));
            brought["Messages"][2]["MessageAttributes"] = attribute(json!(7));
            Answer::Ok(brought)
        }
        _ => Answer::Ok(json!({ "Messages": "?" })),
    });
    let (_, queue) = open(&server, false).await;
    receive(&queue).await.unwrap_err();
    let received = receive(&queue).await.unwrap();
    let ids: Vec<_> = received.iter().map(|delivery| &*delivery.message.id).collect();
    assert_eq!(ids, ["odd", "a"]);
    let odd = &received[0].message.attributes["x"];
    assert_eq!(odd, &AttributeValue::Binary(BINARY.into()), "its handler may judge it");
    assert!(receive(&queue).await.is_err(), "what is no list of messages is an error as before");
}

/// The policy that `hostler iam` prints names each queue as what it is, and no dead-letter queue where there is none.
#[tokio::test]
async fn a_kind_that_a_queue_is_not_is_not_asked_for_again() {
    let nature =
        Nature { denied: &["jobs", "jobs-dlq", "plain.fifo", "plain-dlq", "plain-dlq.fifo"], ..Nature::default() };
    let server = Scripted::with(nature, bringing(&[]));
    let (broker, _) = open(&server, true).await;
    let plain = ChannelSpec::new("plain".parse().unwrap());
    broker.open(&plain).await.unwrap();
    let channels = ["jobs".parse().unwrap(), "plain".parse().unwrap()];
    for _ in 0..3 {
        assert_eq!(broker.depths(&channels).await.map(|depths| depths.len()), Ok(2));
    }
    let asked = server.calls("GetQueueUrl");
    let asked: Vec<_> = asked.iter().map(|call| call["QueueName"].as_str().unwrap()).collect();
    let denied: Vec<_> = asked.iter().filter(|name| nature.denied.contains(name)).collect();
    assert_eq!(denied.iter().collect::<BTreeSet<_>>().len(), denied.len(), "each once at most: {denied:?}");
    assert!(!denied.contains(&&"jobs") && !denied.contains(&&"plain.fifo"), "known from the start: {denied:?}");
}

/// A consumer without a dead-letter queue, under a policy that names no queue: each count would ask for both kinds of one.
#[tokio::test]
async fn a_dead_letter_queue_that_is_not_there_is_not_looked_for_with_every_count() {
    let nature = Nature { missing: &["jobs-dlq", "jobs-dlq.fifo", "gone", "gone.fifo"], ..Nature::default() };
    let server = Scripted::with(nature, bringing(&[]));
    let broker = broker_on(&server).await;
    let channels = ["jobs".parse().unwrap(), "gone".parse().unwrap()];
    for _ in 0..3 {
        let depths = broker.depths(&channels).await.unwrap();
        assert_eq!(depths.iter().map(|depth| depth.missing).collect::<Vec<_>>(), [false, true]);
    }
    let asked = server.calls("GetQueueUrl");
    let asked = |name: &str| asked.iter().filter(|call| call["QueueName"] == *name).count();
    assert_eq!((asked("jobs-dlq"), asked("jobs-dlq.fifo")), (1, 1));
    assert_eq!(asked("gone"), 3, "a queue may come to be at any time");
}

/// The call is never answered. While the consumer waits for it, the leases of the others run.
#[tokio::test]
async fn a_receive_does_not_wait_until_finished_messages_are_removed() {
    let deletes = AtomicUsize::new(0);
    let server = Scripted::start(move |action, input| match action {
        "ReceiveMessage" => Answer::Ok(messages(&["a", "b"])),
        "DeleteMessageBatch" if deletes.fetch_add(1, Ordering::Relaxed) > 0 => loop {
            std::thread::park();
        },
        _ => Answer::Ok(batch(input, &[], "")),
    });
    let (_, queue) = open(&server, false).await;
    let mut first = receive(&queue).await.unwrap();
    first.truncate(1);
    assert_eq!(errors(queue.settle(acks(first)).await), [None]);
    let begun = Instant::now();
    let again = receive(&queue).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5), "it waited as long as such a call may take");
    assert_eq!(again.iter().map(|delivery| &*delivery.message.id).collect::<Vec<_>>(), ["b"]);
}

/// Both may have leased messages, which come at once only under the id of their own receive.
#[tokio::test]
async fn each_of_two_fifo_receives_whose_answers_are_lost_is_asked_for_again() {
    let (receives, both) = (AtomicUsize::new(0), Barrier::new(2));
    let server = Scripted::start(move |action, input| match action {
        "ReceiveMessage" if receives.fetch_add(1, Ordering::Relaxed) < 2 => {
            both.wait();
            Answer::Lost
        }
        "ReceiveMessage" => Answer::Ok(messages(&[])),
        _ => Answer::Ok(batch(input, &[], "")),
    });
    let (_, queue) = open(&server, true).await;
    let (one, other) = tokio::join!(receive(&queue), receive(&queue));
    assert!(one.is_err() && other.is_err());
    for _ in 0..3 {
        receive(&queue).await.unwrap();
    }
    let calls = server.calls("ReceiveMessage");
    let ids: Vec<_> = calls.iter().map(|call| call["ReceiveRequestAttemptId"].as_str().unwrap()).collect();
    let lost: BTreeSet<_> = ids[..2].iter().collect();
    assert_eq!((lost.len(), ids[2..4].iter().collect::<BTreeSet<_>>()), (2, lost), "{ids:?}");
    assert!(!ids[..4].contains(&ids[4]), "{ids:?}");
}

/// Messages that were sent before the run began have a later time than our clock shows.
#[tokio::test]
async fn a_requeue_goes_by_the_clock_of_the_service() {
    const AHEAD: Duration = Duration::from_secs(3600);
    let receives = AtomicUsize::new(0);
    let sent = SystemTime::now() + AHEAD - Duration::from_secs(5);
    let sent = sent.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis().to_string();
    let server = Scripted::with(Nature { ahead: AHEAD, ..Nature::default() }, move |action, input| match action {
        "ReceiveMessage" if receives.fetch_add(1, Ordering::Relaxed) > 0 => Answer::Ok(messages(&[])),
        "ReceiveMessage" => {
            let mut brought = messages(&["a"]);
            brought["Messages"][0]["Attributes"] = json!({ "SentTimestamp": sent });
            Answer::Ok(brought)
        }
        _ => Answer::Ok(batch(input, &[], "")),
    });
    let broker = broker_on(&server).await;
    let order = MoveRequest {
        from: "jobs-dlq".parse().unwrap(),
        to: Some("jobs".parse().unwrap()),
        conditions: Vec::new(),
        max: None,
        rate: None,
        dry_run: false,
        began: SystemTime::now(),
    };
    let (report, ended) = run(&broker, order, &CancellationToken::new(), &mut |_| {}).await.unwrap();
    assert_eq!((report.moved, ended), (1, Ended::Done));
}
