//! Copies to the dead-letter queue that take their time.

use std::sync::{Condvar, Mutex};

use super::*;

fn dead(delivery: Delivery) -> Settlement {
    let Delivery { message, receipt, .. } = delivery;
    Settlement::DeadLetter { receipt, message, reason: "why".to_owned() }
}

/// By then another may have the message, and whatever is done with it is the other's.
#[tokio::test]
async fn a_message_whose_copy_outlasts_its_lease_is_not_settled() {
    let server = Scripted::start(|action, input| match action {
        "ReceiveMessage" => Answer::Ok(messages(&["a"])),
        "SendMessageBatch" => {
            #[allow(clippy::disallowed_methods, reason = "a server that takes longer than the lease")]
            std::thread::sleep(Duration::from_secs(3));
            Answer::Ok(batch(input, &[], ""))
        }
        _ => Answer::Ok(batch(input, &[], "")),
    });
    let (_, queue) = open(&server, false).await;
    let request = Receive { max: 10, wait: Duration::ZERO, lease: Duration::from_secs(1) };
    let delivery = queue.receive(request, &CancellationToken::new()).await.unwrap().remove(0);
    let settled = queue.settle(vec![dead(delivery)]).await.remove(0);
    assert!(matches!(&settled, Err(Unsettled { error: LeaseError::Retry(_), .. })), "{settled:?}");
    let again = queue.settle(vec![settled.unwrap_err().settlement]).await.remove(0);
    assert!(matches!(&again, Err(Unsettled { error: LeaseError::Lost(_), .. })), "{again:?}");
    assert_eq!(server.calls("DeleteMessageBatch").len(), 0);
}

/// Its ten attributes leave no room for a `traceparent`.
#[tokio::test]
async fn a_copy_keeps_the_trace_that_sqs_carries() {
    const TRACE: &str = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1";
    let server = Scripted::start(|action, input| match action {
        "ReceiveMessage" => {
            let mut brought = messages(&["a"]);
            brought["Messages"][0]["Attributes"] = json!({ "AWSTraceHeader": TRACE });
            let own = (0..10).map(|n| (format!("a{n}"), json!({ "DataType": "String", "StringValue": "x" })));
            brought["Messages"][0]["MessageAttributes"] = Value::Object(own.collect());
            Answer::Ok(brought)
        }
        _ => Answer::Ok(batch(input, &[], "")),
    });
    let (_, queue) = open(&server, false).await;
    let delivery = receive(&queue).await.unwrap().remove(0);
    assert_eq!(errors(queue.settle(vec![dead(delivery)]).await), [None]);
    let entry = &server.calls("SendMessageBatch")[0]["Entries"][0];
    assert_eq!(entry["MessageSystemAttributes"]["AWSTraceHeader"]["StringValue"], TRACE);
}

/// A call takes 1 MiB: three messages of 600 KB take three.
#[tokio::test]
async fn copies_that_need_several_calls_are_made_side_by_side() {
    let (under_way, all) = (Mutex::new(0), Condvar::new());
    let server = Scripted::start(move |action, input| match action {
        "ReceiveMessage" => {
            let mut brought = messages(&["a", "b", "c"]);
            for message in brought["Messages"].as_array_mut().unwrap() {
                message["Body"] = json!("x".repeat(600_000));
            }
            Answer::Ok(brought)
        }
        "SendMessageBatch" => {
            let mut under_way = under_way.lock().unwrap();
            *under_way += 1;
            all.notify_all();
            let (count, waited) = all.wait_timeout_while(under_way, PATIENCE, |under_way| *under_way < 3).unwrap();
            drop(count);
            if waited.timed_out() { Answer::Lost } else { Answer::Ok(batch(input, &[], "")) }
        }
        _ => Answer::Ok(batch(input, &[], "")),
    });
    let (_, queue) = open(&server, false).await;
    let deliveries = receive(&queue).await.unwrap();
    let settled = errors(queue.settle(deliveries.into_iter().map(dead).collect()).await);
    assert_eq!(settled, [None, None, None]);
}
