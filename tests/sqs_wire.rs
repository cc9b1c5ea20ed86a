//! Requests of the SQS driver, call by call, and its reactions to responses that no real server gives on demand: partial
//! failures, lost responses, throttling, deletes without effect.

mod answers;
mod copies;
mod groups;
mod not_before;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hostler_queue::{
    Admin, Broker, ChannelSpec, Delivery, LeaseError, Queue, QueueError, Receive, SendError, Settlement, Unsettled,
};
use hostler_queue_sqs::{Options, SqsBroker};
use hostler_types::message::Outgoing;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::support::hostler::{PATIENCE, until};
use crate::support::scripted::{Answer, Scripted};

const LEASE: Duration = Duration::from_secs(60);

/// A broker on a server.
async fn broker_on(server: &Scripted) -> SqsBroker {
    let options = Options {
        region: Some("eu-west-1".to_owned()),
        endpoint_url: Some(server.endpoint()),
        credentials: Some(("test".to_owned(), "test".to_owned())),
        threshold: 1024 * 1024,
        ..Options::default()
    };
    SqsBroker::connect(options).await.unwrap()
}

/// A broker on a server, and its queue `jobs`.
async fn open(server: &Scripted, ordered: bool) -> (SqsBroker, Arc<dyn Queue>) {
    let broker = broker_on(server).await;
    let spec = ChannelSpec { ordered, max_receives: Some(5), ..ChannelSpec::new("jobs".parse().unwrap()) };
    let queue = broker.open(&spec).await.unwrap();
    (broker, queue)
}

/// Messages with these ids; the receipt of `m` is `r-m`.
fn messages(ids: &[&str]) -> Value {
    let message =
        |id: &&str| json!({ "MessageId": id, "ReceiptHandle": format!("r-{id}"), "Body": id, "MD5OfBody": "" });
    json!({ "Messages": ids.iter().map(message).collect::<Vec<_>>() })
}

/// Every entry of a batch is done but those whose receipt or body is among these, which fail with this code.
fn batch(input: &Value, failing: &[&str], code: &str) -> Value {
    let key = |entry: &Value| {
        entry["ReceiptHandle"].as_str().or(entry["MessageBody"].as_str()).unwrap_or_default().to_owned()
    };
    let (failed, done): (Vec<&Value>, Vec<&Value>) =
        input["Entries"].as_array().unwrap().iter().partition(|entry| failing.contains(&key(entry).as_str()));
    let done = done
        .iter()
        .map(|entry| json!({ "Id": entry["Id"], "MessageId": format!("id-{}", key(entry)), "MD5OfMessageBody": "" }));
    let failed = failed.iter().map(|entry| json!({ "Id": entry["Id"], "Code": code, "SenderFault": false }));
    json!({ "Successful": done.collect::<Vec<_>>(), "Failed": failed.collect::<Vec<_>>() })
}

async fn receive(queue: &Arc<dyn Queue>) -> Result<Vec<Delivery>, QueueError> {
    let request = Receive { max: 10, wait: Duration::from_secs(20), lease: LEASE };
    queue.receive(request, &CancellationToken::new()).await
}

fn acks(deliveries: Vec<Delivery>) -> Vec<Settlement> {
    deliveries.into_iter().map(|delivery| Settlement::Ack(delivery.receipt)).collect()
}

fn errors(settled: Vec<Result<(), Unsettled>>) -> Vec<Option<LeaseError>> {
    settled.into_iter().map(|result| result.err().map(|unsettled| unsettled.error)).collect()
}

fn text(body: &str) -> Outgoing {
    Outgoing { body: body.into(), ..Outgoing::default() }
}

/// A script that brings these messages at every receive, and does everything else that is asked.
fn bringing(ids: &'static [&'static str]) -> impl Fn(&str, &Value) -> Answer {
    move |action, input| match action {
        "ReceiveMessage" => Answer::Ok(messages(ids)),
        _ => Answer::Ok(batch(input, &[], "")),
    }
}

#[tokio::test]
async fn a_receive_asks_for_all_that_is_needed() {
    let server = Scripted::start(bringing(&["a"]));
    let (_, queue) = open(&server, false).await;
    receive(&queue).await.unwrap();
    let asked = &server.calls("ReceiveMessage")[0];
    assert_eq!(asked["MaxNumberOfMessages"], 10);
    assert_eq!((&asked["WaitTimeSeconds"], &asked["VisibilityTimeout"]), (&json!(20), &json!(60)));
    assert_eq!(asked["MessageAttributeNames"], json!(["All"]));
    assert_eq!(asked["ReceiveRequestAttemptId"], Value::Null, "for FIFO queues only");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finished_message_that_comes_again_is_removed_and_not_delivered() {
    let server = Scripted::start(bringing(&["a", "b"]));
    let (_, queue) = open(&server, false).await;
    let mut first = receive(&queue).await.unwrap();
    let b = first.pop().unwrap();
    assert_eq!(errors(queue.settle(acks(first)).await), [None]);
    let again = receive(&queue).await.unwrap();
    assert_eq!(again.iter().map(|delivery| &*delivery.message.id).collect::<Vec<_>>(), ["b"]);
    let another = || Some(server.calls("DeleteMessageBatch")).filter(|deletes| deletes.len() > 1);
    let deletes = until("a's delete, which did nothing, and another", PATIENCE, another);
    assert_eq!(deletes[1]["Entries"][0]["ReceiptHandle"], "r-a");
    drop(b);
}

#[tokio::test]
async fn every_entry_of_a_batch_is_looked_at() {
    let server = Scripted::start(|action, input| match action {
        "ReceiveMessage" => Answer::Ok(messages(&["a", "b", "c"])),
        "DeleteMessageBatch" => Answer::Ok(batch(input, &["r-b"], "InternalError")),
        _ => Answer::Ok(batch(input, &["r-a"], "ReceiptHandleIsInvalid")),
    });
    let (_, queue) = open(&server, false).await;
    let deliveries = receive(&queue).await.unwrap();
    let leases: Vec<_> = deliveries.iter().map(|delivery| delivery.receipt.lease()).collect();
    let extended = queue.extend(&leases, LEASE).await;
    assert!(matches!(extended[..], [Err(LeaseError::Lost(_)), Ok(()), Ok(())]), "{extended:?}");
    let settled = errors(queue.settle(acks(deliveries)).await);
    assert!(matches!(settled[..], [None, Some(LeaseError::Retry(_)), None]), "{settled:?}");
}

#[tokio::test]
async fn an_entry_that_the_answer_does_not_mention_was_not_done() {
    let server = Scripted::start(|action, _| match action {
        "ReceiveMessage" => Answer::Ok(messages(&["a"])),
        _ => Answer::Ok(json!({ "Successful": [], "Failed": [] })),
    });
    let (_, queue) = open(&server, false).await;
    let settled = errors(queue.settle(acks(receive(&queue).await.unwrap())).await);
    assert!(matches!(settled[..], [Some(LeaseError::Retry(_))]), "{settled:?}");
}

#[tokio::test]
async fn a_copy_that_is_there_is_not_made_twice() {
    let deletes = AtomicUsize::new(0);
    let server = Scripted::start(move |action, input| match action {
        "ReceiveMessage" => Answer::Ok(messages(&["a"])),
        "DeleteMessageBatch" if deletes.fetch_add(1, Ordering::Relaxed) == 0 => {
            Answer::Ok(batch(input, &["r-a"], "InternalError"))
        }
        _ => Answer::Ok(batch(input, &[], "")),
    });
    let (_, queue) = open(&server, false).await;
    let Delivery { message, receipt, .. } = receive(&queue).await.unwrap().remove(0);
    let settlement = Settlement::DeadLetter { receipt, message, reason: "why".to_owned() };
    let unsettled = queue.settle(vec![settlement]).await.remove(0).unwrap_err();
    assert!(matches!(unsettled.error, LeaseError::Retry(_)));
    assert_eq!(errors(queue.settle(vec![unsettled.settlement]).await), [None]);
    let copies = server.calls("SendMessageBatch");
    assert_eq!(copies.len(), 1);
    assert!(copies[0]["QueueUrl"].as_str().unwrap().ends_with("jobs-dlq"));
}

#[tokio::test]
async fn nothing_is_removed_whose_copy_failed() {
    let server = Scripted::start(|action, input| match action {
        "ReceiveMessage" => Answer::Ok(messages(&["a", "b"])),
        "SendMessageBatch" => Answer::Ok(batch(input, &["a"], "InternalError")),
        _ => Answer::Ok(batch(input, &[], "")),
    });
    let (_, queue) = open(&server, false).await;
    let dead = receive(&queue)
        .await
        .unwrap()
        .into_iter()
        .map(|Delivery { message, receipt, .. }| Settlement::DeadLetter { receipt, message, reason: "why".to_owned() });
    let settled = errors(queue.settle(dead.collect()).await);
    assert!(matches!(settled[..], [Some(LeaseError::Retry(_)), None]), "{settled:?}");
    let deletes = server.calls("DeleteMessageBatch");
    assert_eq!((deletes.len(), deletes[0]["Entries"].as_array().unwrap().len()), (1, 1));
    assert_eq!(deletes[0]["Entries"][0]["ReceiptHandle"], "r-b");
}

#[tokio::test]
async fn settlements_go_ten_to_a_call() {
    let next = AtomicUsize::new(0);
    let server = Scripted::start(move |action, input| match action {
        "ReceiveMessage" => {
            let n = next.fetch_add(10, Ordering::Relaxed);
            let ids: Vec<String> = (n..n + 10).map(|n| n.to_string()).collect();
            Answer::Ok(messages(&ids.iter().map(String::as_str).collect::<Vec<_>>()))
        }
        _ => Answer::Ok(batch(input, &[], "")),
    });
    let (_, queue) = open(&server, false).await;
    let mut deliveries = Vec::new();
    for _ in 0..3 {
        deliveries.extend(receive(&queue).await.unwrap());
    }
    deliveries.truncate(25);
    let leases: Vec<_> = deliveries.iter().map(|delivery| delivery.receipt.lease()).collect();
    assert_eq!(queue.extend(&leases, LEASE).await, vec![Ok(()); 25]);
    assert_eq!(errors(queue.settle(acks(deliveries)).await), vec![None; 25]);
    for action in ["ChangeMessageVisibilityBatch", "DeleteMessageBatch"] {
        let sizes: Vec<_> = server.calls(action).iter().map(|call| call["Entries"].as_array().unwrap().len()).collect();
        assert_eq!(sizes, [10, 10, 5], "{action}");
    }
}

#[tokio::test]
async fn no_more_than_twelve_hours_are_asked_for() {
    let server = Scripted::start(bringing(&["a", "b"]));
    let (_, queue) = open(&server, false).await;
    let mut deliveries = receive(&queue).await.unwrap();
    let long = Duration::from_secs(13 * 60 * 60);
    assert_eq!(queue.extend(&[deliveries[0].receipt.lease()], long).await, [Ok(())]);
    let release = Settlement::Release(deliveries.remove(1).receipt, long);
    assert_eq!(errors(queue.settle(vec![release]).await), [None]);
    let asked = server.calls("ChangeMessageVisibilityBatch");
    for call in asked {
        let seconds = call["Entries"][0]["VisibilityTimeout"].as_u64().unwrap();
        assert!((43_100..43_200).contains(&seconds), "{seconds}");
    }
}

#[tokio::test]
async fn a_fifo_receive_whose_answer_is_lost_is_asked_for_again() {
    let receives = AtomicUsize::new(0);
    let server = Scripted::start(move |action, input| match action {
        "ReceiveMessage" if receives.fetch_add(1, Ordering::Relaxed) < 2 => Answer::Lost,
        "ReceiveMessage" => Answer::Ok(messages(&["a"])),
        _ => Answer::Ok(batch(input, &[], "")),
    });
    let (_, queue) = open(&server, true).await;
    let mut received = receive(&queue).await;
    while received.is_err() {
        assert!(matches!(received, Err(QueueError::Unavailable(_))), "{received:?}");
        received = receive(&queue).await;
    }
    receive(&queue).await.unwrap();
    let calls = server.calls("ReceiveMessage");
    let ids: Vec<_> = calls.iter().map(|call| call["ReceiveRequestAttemptId"].as_str().unwrap()).collect();
    assert_eq!((ids.len(), ids[..3].iter().collect::<BTreeSet<_>>().len()), (4, 1), "{ids:?}");
    assert_ne!(ids[2], ids[3], "a receive that was answered is not asked for again");
}

/// A refused receive has leased nothing, so it is not repeated with the same id. A receive whose answer was lost is.
#[tokio::test]
async fn a_fifo_receive_that_is_throttled_is_asked_for_anew() {
    let receives = AtomicUsize::new(0);
    let server = Scripted::start(move |action, input| match action {
        "ReceiveMessage" => match receives.fetch_add(1, Ordering::Relaxed) {
            0 | 2 => Answer::Error(400, "ThrottlingException"),
            1 => Answer::Lost,
            _ => Answer::Ok(messages(&["a"])),
        },
        _ => Answer::Ok(batch(input, &[], "")),
    });
    let (_, queue) = open(&server, true).await;
    for _ in 0..3 {
        let received = receive(&queue).await;
        assert!(matches!(received, Err(QueueError::Unavailable(_))), "{received:?}");
    }
    receive(&queue).await.unwrap();
    let calls = server.calls("ReceiveMessage");
    let ids: Vec<_> = calls.iter().map(|call| call["ReceiveRequestAttemptId"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), 4, "{ids:?}");
    assert_ne!(ids[0], ids[1], "it was refused");
    assert_eq!(ids[2..], [ids[1]; 2], "its answer was lost, and then it was refused");
}

/// Messages of a second try would be leased by a clock that began with the first.
#[tokio::test]
async fn a_poll_is_not_tried_again_by_itself() {
    for lost in [true, false] {
        let answer = move || if lost { Answer::Lost } else { Answer::Error(503, "ServiceUnavailable") };
        let server = Scripted::start(move |_, _| answer());
        let (_, queue) = open(&server, false).await;
        // Directly, and then by the SDK.
        for calls in [1, 2] {
            let received = receive(&queue).await;
            assert!(matches!(received, Err(QueueError::Unavailable(_))), "{received:?}");
            assert_eq!(server.calls("ReceiveMessage").len(), calls);
        }
        let agents = server.agents("ReceiveMessage");
        assert!(agents[0].starts_with("hostler/") && agents[1].starts_with("aws-sdk-rust/"), "{agents:?}");
    }
}

#[tokio::test]
async fn only_what_was_throttled_is_sent_again() {
    let sends = AtomicUsize::new(0);
    let server = Scripted::start(move |_, input| match sends.fetch_add(1, Ordering::Relaxed) {
        0 => Answer::Error(503, "ServiceUnavailable"),
        1 => Answer::Error(400, "ThrottlingException"),
        2 => Answer::Ok(batch(input, &["b", "d"], "RequestThrottled")),
        _ => Answer::Ok(batch(input, &[], "")),
    });
    let (broker, _) = open(&server, false).await;
    let sent = broker.send(&"jobs".parse().unwrap(), ["a", "b", "c", "d"].map(text).to_vec()).await;
    let ids: Vec<_> = sent.into_iter().map(|sent| sent.unwrap().id).collect();
    assert_eq!(ids, ["id-a", "id-b", "id-c", "id-d"]);
    let bodies = |call: &Value| -> Vec<String> {
        let entries = call["Entries"].as_array().unwrap().iter();
        entries.map(|entry| entry["MessageBody"].as_str().unwrap().to_owned()).collect()
    };
    let calls: Vec<_> = server.calls("SendMessageBatch").iter().map(bodies).collect();
    assert_eq!(calls, [vec!["a", "b", "c", "d"], vec!["a", "b", "c", "d"], vec!["a", "b", "c", "d"], vec!["b", "d"]]);
}

#[tokio::test]
async fn a_send_gives_up_after_15_to_20_seconds() {
    let server = Scripted::start(|_, _| Answer::Error(400, "ThrottlingException"));
    let (broker, _) = open(&server, false).await;
    let begun = Instant::now();
    let sent = broker.send(&"jobs".parse().unwrap(), vec![text("a")]).await;
    assert!(matches!(&sent[..], [Err(SendError::Queue(QueueError::Unavailable(_)))]), "{sent:?}");
    let took = begun.elapsed().as_secs_f64();
    assert!((12.0..20.0).contains(&took), "{took}");
}

#[tokio::test]
async fn a_message_that_is_refused_is_not_sent_again() {
    let server = Scripted::start(|_, input| {
        let entries = input["Entries"].as_array().unwrap().iter();
        let failed =
            entries.map(|entry| json!({ "Id": entry["Id"], "Code": "InvalidMessageContents", "SenderFault": true }));
        Answer::Ok(json!({ "Successful": [], "Failed": failed.collect::<Vec<_>>() }))
    });
    let (broker, _) = open(&server, false).await;
    let sent = broker.send(&"jobs".parse().unwrap(), vec![text("a")]).await;
    assert!(matches!(&sent[..], [Err(SendError::Invalid(_))]), "{sent:?}");
    assert_eq!(server.calls("SendMessageBatch").len(), 1);
}

#[tokio::test]
async fn a_receive_that_is_denied_says_so() {
    let server = Scripted::start(|_, _| Answer::Error(400, "AccessDeniedException"));
    let (_, queue) = open(&server, false).await;
    let Err(QueueError::Refused(text)) = receive(&queue).await else { panic!("not refused") };
    assert!(text.contains("ReceiveMessage on jobs") && text.contains("AccessDenied"), "{text}");
}

/// As with the policy that `hostler iam` prints: it names the queues that there are, and no others.
#[tokio::test]
async fn a_queue_is_found_where_only_its_own_kind_may_be_asked_for() {
    let server = Scripted::denying(&["jobs"], bringing(&["a"]));
    let (broker, _) = open(&server, true).await;
    let jobs = "jobs".parse().unwrap();
    assert!(matches!(&broker.send(&jobs, vec![text("a")]).await[..], [Ok(_)]));
    let stored = broker.open_stored(&jobs).await.unwrap();
    assert_eq!(receive(&stored).await.unwrap().len(), 1);
    assert!(stored.is_ordered());

    let server = Scripted::denying(&["jobs", "jobs.fifo"], bringing(&[]));
    let broker = broker_on(&server).await;
    let Err(QueueError::Refused(text)) = broker.open_stored(&jobs).await.map(|_| ()) else { panic!("not refused") };
    assert!(text.contains("GetQueueUrl of jobs") && text.contains("AccessDenied"), "{text}");
}

/// As with that policy where a consumer has no dead-letter queue.
#[tokio::test]
async fn a_queue_is_counted_whose_dead_letters_may_not_be_counted() {
    let jobs = ["jobs".parse().unwrap()];
    let server = Scripted::denying(&["jobs.fifo", "jobs-dlq", "jobs-dlq.fifo"], bringing(&[]));
    let depths = broker_on(&server).await.depths(&jobs).await;
    assert_eq!(depths.map(|depths| depths.len()), Ok(1));

    let server = Scripted::denying(&["jobs", "jobs.fifo"], bringing(&[]));
    let Err(QueueError::Refused(text)) = broker_on(&server).await.depths(&jobs).await else { panic!("not refused") };
    assert!(text.contains("AccessDenied"), "{text}");
}

#[tokio::test]
async fn a_fifo_copy_keeps_its_group_and_has_a_dedupe_key() {
    let server = Scripted::start(|action, input| match action {
        "ReceiveMessage" => {
            let mut answer = messages(&["a"]);
            answer["Messages"][0]["Attributes"] = json!({ "MessageGroupId": "g", "ApproximateReceiveCount": "4" });
            Answer::Ok(answer)
        }
        _ => Answer::Ok(batch(input, &[], "")),
    });
    let (_, queue) = open(&server, true).await;
    let Delivery { message, receipt, attempt, .. } = receive(&queue).await.unwrap().remove(0);
    assert_eq!(attempt, 4);
    let dead = Settlement::DeadLetter { receipt, message, reason: "why".to_owned() };
    assert_eq!(errors(queue.settle(vec![dead]).await), [None]);
    let entry = &server.calls("SendMessageBatch")[0]["Entries"][0];
    assert_eq!((&entry["MessageGroupId"], &entry["MessageDeduplicationId"]), (&json!("g"), &json!("a")));
    let told = |name: &str| entry["MessageAttributes"][name]["StringValue"].clone();
    assert_eq!((told("hostler-dead-letter-reason"), told("hostler-attempts")), (json!("why"), json!("4")));
}
