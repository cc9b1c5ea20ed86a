//! Sends to a FIFO queue of which the service takes a part.

use super::*;

fn of(group: &str, body: &str) -> Outgoing {
    Outgoing { group: Some(group.to_owned()), ..text(body) }
}

/// The bodies of each call.
fn calls(server: &Scripted) -> Vec<Vec<String>> {
    let bodies = |call: &Value| -> Vec<String> {
        let entries = call["Entries"].as_array().unwrap().iter();
        entries.map(|entry| entry["MessageBody"].as_str().unwrap().to_owned()).collect()
    };
    server.calls("SendMessageBatch").iter().map(bodies).collect()
}

/// A server that refuses these bodies in its first call.
fn refusing_once(bodies: &'static [&'static str]) -> Scripted {
    let sends = AtomicUsize::new(0);
    Scripted::start(move |_, input| match sends.fetch_add(1, Ordering::Relaxed) {
        0 => Answer::Ok(batch(input, bodies, "InternalError")),
        _ => Answer::Ok(batch(input, &[], "")),
    })
}

#[tokio::test]
async fn what_a_later_message_of_its_group_has_passed_is_not_sent_again() {
    let server = refusing_once(&["a2"]);
    let (broker, _) = open(&server, true).await;
    let batch = [of("a", "a1"), of("a", "a2"), of("a", "a3"), of("b", "b1")].to_vec();
    let sent = broker.send(&"jobs".parse().unwrap(), batch).await;
    assert_eq!(calls(&server), [["a1", "a2", "a3", "b1"]]);
    assert!(matches!(&sent[..], [Ok(_), Err(SendError::Queue(_)), Ok(_), Ok(_)]), "{sent:?}");
    assert!(sent[1].as_ref().unwrap_err().to_string().contains("group"), "{sent:?}");
}

#[tokio::test]
async fn what_is_sent_again_goes_one_by_one_of_a_group() {
    let server = refusing_once(&["a2", "a3", "b1"]);
    let (broker, _) = open(&server, true).await;
    let batch = [of("a", "a1"), of("a", "a2"), of("a", "a3"), of("b", "b1")].to_vec();
    let sent = broker.send(&"jobs".parse().unwrap(), batch).await;
    assert!(sent.iter().all(Result::is_ok), "{sent:?}");
    assert_eq!(calls(&server), [vec!["a1", "a2", "a3", "b1"], vec!["a2", "b1"], vec!["a3"]]);
}

/// Eleven messages take two calls.
#[tokio::test]
async fn a_group_ends_with_its_first_failure() {
    let server = refusing_once(&["a2"]);
    let (broker, _) = open(&server, true).await;
    let bodies = ["a1", "a2", "a3", "b1", "b2", "b3", "b4", "b5", "b6", "b7", "a4", "b8"];
    let batch = bodies.map(|body| of(&body[..1], body)).to_vec();
    let sent = broker.send(&"jobs".parse().unwrap(), batch).await;
    let failed: Vec<_> = bodies.iter().zip(&sent).filter(|(_, sent)| sent.is_err()).map(|(body, _)| *body).collect();
    assert_eq!(failed, ["a2", "a4"]);
    assert_eq!(calls(&server)[1..], [["b8"]]);
}
