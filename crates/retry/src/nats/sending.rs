//! Sends what the engine puts into the outbox: deliveries over one line, answers to producers over the other.

use std::str::FromStr as _;
use std::sync::Arc;

use async_nats::client::PublishErrorKind;
use async_nats::{HeaderMap, HeaderName, HeaderValue};
use bytes::Bytes;
use tokio::sync::mpsc::{Sender, UnboundedReceiver, UnboundedSender};

use super::inbox::{ECHO, Inbox};
use super::line::Line;
use crate::answer;
use crate::engine::{Content, Event, Outgoing};
use crate::micro::Tally;

/// Name of the header with the number of the delivery.
const ATTEMPT: &str = "Hostler-Attempt";

/// Sends the requests to receivers, until the engine has ended. Passes on the answers to producers, which must not wait for
/// this line, nor this line for theirs.
pub(super) async fn deliver(
    line: Arc<Line>,
    inbox: Arc<Inbox>,
    mut outgoing: UnboundedReceiver<Outgoing>,
    answers: UnboundedSender<Outgoing>,
    events: Sender<Event>,
) {
    while let Some(message) = outgoing.recv().await {
        match message {
            Outgoing::Request { link, token, subject, attempt, content } => {
                // The engine knows that another connection of the request is lost, or will know soon, and sends it again.
                let Some((_, client)) = line.link().filter(|(now, _)| *now == link) else { continue };
                let headers = headers(&content, attempt);
                let (reply, body) = (inbox.reply_to(token), content.body.clone());
                let sent = client.publish_with_reply_and_headers(subject.to_string(), reply, headers, body).await;
                if let Err(error) = sent {
                    // A request that fails otherwise has no reply in time.
                    let is_final =
                        matches!(error.kind(), PublishErrorKind::MaxPayloadExceeded | PublishErrorKind::InvalidSubject);
                    if is_final {
                        let _ = events.send(Event::Unsendable(token, format!("it cannot be sent: {error}"))).await;
                    }
                }
            }
            Outgoing::Probe(at) => {
                // On another connection, it would come too late. The engine asks again.
                let Some((_, client)) = line.link() else { continue };
                log_unsent(client.publish(inbox.reply_to(ECHO), at.to_string().into()).await);
            }
            answer @ (Outgoing::Stored { .. } | Outgoing::Refused { .. }) => {
                let _ = answers.send(answer);
            }
        }
    }
}

/// Sends the answers to producers, until the engine has ended.
pub(super) async fn answer(line: Arc<Line>, mut answers: UnboundedReceiver<Outgoing>, tally: Tally) {
    while let Some(answer) = answers.recv().await {
        match answer {
            Outgoing::Stored { to, id } => {
                tally.answered(None);
                let body = serde_json::json!({ "id": id }).to_string();
                log_unsent(line.client.present().client.publish(to, body.into()).await);
            }
            Outgoing::Refused { to, code, reason, retry_after } => {
                tally.answered(Some((code, &reason)));
                let mut headers = HeaderMap::new();
                insert(&mut headers, answer::ERROR, &reason);
                insert(&mut headers, answer::ERROR_CODE, &code.to_string());
                if let Some(wait) = retry_after {
                    insert(&mut headers, answer::RETRY_AFTER, &wait.as_secs().max(1).to_string());
                }
                log_unsent(line.client.present().client.publish_with_headers(to, headers, Bytes::new()).await);
            }
            Outgoing::Request { .. } | Outgoing::Probe(_) => {}
        }
    }
}

fn log_unsent(sent: Result<(), async_nats::PublishError>) {
    if let Err(error) = sent {
        tracing::debug!(%error, "a message to a producer, or to the service itself, cannot be sent");
    }
}

/// Returns the headers of a request: those of the message, and the number of the delivery.
fn headers(content: &Content, attempt: u32) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in content.headers.iter().filter(|(name, _)| !name.eq_ignore_ascii_case(ATTEMPT)) {
        // The client panics at headers that are not valid, which only a damaged store can have.
        if let (Ok(name), Ok(value)) = (HeaderName::from_str(name), HeaderValue::from_str(value)) {
            headers.append(name, value);
        }
    }
    headers.insert(ATTEMPT, attempt.to_string());
    headers
}

fn insert(headers: &mut HeaderMap, name: &str, value: &str) {
    let value = value.replace(['\r', '\n'], " ");
    headers.insert(name, value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_kept_and_the_attempt_is_added() {
        let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let kept = vec![
            header("A", "1"),
            header("A", "2"),
            header("hostler-attempt", "9"),
            header("B:", "x"),
            header("C", "x\ny"),
        ];
        let content = Content { id: "1".to_owned(), headers: kept, body: Bytes::new() };
        let headers = headers(&content, 3);
        let values: Vec<_> = headers.get_all("A").map(HeaderValue::as_str).collect();
        assert_eq!((values, headers.len()), (vec!["1", "2"], 2));
        assert_eq!(headers.get(ATTEMPT).map(HeaderValue::as_str), Some("3"));
    }

    #[test]
    fn an_error_with_line_breaks_can_be_told() {
        let mut headers = HeaderMap::new();
        insert(&mut headers, answer::ERROR, "a\r\nb");
        assert_eq!(headers.get(answer::ERROR).map(HeaderValue::as_str), Some("a  b"));
    }
}
