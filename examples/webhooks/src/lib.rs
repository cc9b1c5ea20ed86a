//! Posts the body of a message to a webhook. The last token of the message's subject names the webhook, and the status of the
//! response decides the outcome.

#[cfg(target_family = "wasm")]
mod http;

use std::time::Duration;

use hostler_guest::{Failure, Message, Outcome, handler};

/// Longest wait that a receiver may ask for.
const LONGEST: Duration = Duration::from_secs(12 * 3600);

/// The response of a receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Response {
    status: u16,
    retry_after: Option<String>,
}

#[handler]
fn handle(message: Message) -> Result<Outcome, Failure> {
    let name = webhook(message.routing_key.as_deref().unwrap_or_default())?;
    let base = std::env::var("WEBHOOKS").map_err(|_| Failure::error("allow.env gives no WEBHOOKS"))?;
    judge(&post(&format!("{}/{name}", base.trim_end_matches('/')), &message)?)
}

/// Returns the name of the webhook that a subject is for.
fn webhook(subject: &str) -> Result<&str, Failure> {
    let name = subject.rsplit('.').next().unwrap_or_default();
    let is_plain = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    if is_plain { Ok(name) } else { Err(Failure::dead_letter(format!("the subject `{subject}` names no webhook"))) }
}

/// Returns the outcome of a message by the receiver's response.
fn judge(response: &Response) -> Result<Outcome, Failure> {
    let Response { status, retry_after } = response;
    let wait = retry_after.as_deref().and_then(wait);
    match (status, wait) {
        (200..300, _) => Ok(Outcome::Ack),
        (429 | 503, Some(wait)) => Ok(Outcome::Delay(wait)),
        (408 | 425 | 429 | 500.., _) => Err(Failure::error(format!("the receiver said {status}"))),
        _ => Err(Failure::dead_letter(format!("the receiver said {status}"))),
    }
}

/// Reads a header `Retry-After` with a number of seconds.
fn wait(text: &str) -> Option<Duration> {
    let seconds: u64 = text.trim().parse().ok()?;
    Some(Duration::from_secs(seconds.max(1)).min(LONGEST))
}

#[cfg(target_family = "wasm")]
fn post(url: &str, message: &Message) -> Result<Response, Failure> {
    http::post(url, &message.id, &message.body).map_err(|why| Failure::error(format!("no response: {why}")))
}

/// Answers in place of a receiver. A test has none.
#[cfg(not(target_family = "wasm"))]
fn post(_: &str, _: &Message) -> Result<Response, Failure> {
    Ok(Response { status: 204, retry_after: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_decides() {
        let judge = |status, retry_after: Option<&str>| {
            super::judge(&Response { status, retry_after: retry_after.map(str::to_owned) })
        };
        let seconds = |count| Ok(Outcome::Delay(Duration::from_secs(count)));
        assert_eq!([judge(200, None), judge(204, Some("9"))], [Ok(Outcome::Ack), Ok(Outcome::Ack)]);
        assert_eq!([judge(429, Some("33")), judge(503, Some(" 0 "))], [seconds(33), seconds(1)]);
        assert_eq!(judge(429, Some("99999999")), seconds(12 * 3600));
        for status in [408, 429, 500, 503] {
            assert_eq!(judge(status, Some("soon")), Err(Failure::Error(format!("the receiver said {status}"))));
        }
        for status in [302, 404, 422] {
            assert_eq!(judge(status, Some("1")), Err(Failure::DeadLetter(format!("the receiver said {status}"))));
        }
    }

    #[test]
    fn the_subject_names_the_webhook() {
        assert_eq!([webhook("webhooks.archive"), webhook("archive")], [Ok("archive"), Ok("archive")]);
        for odd in ["", "webhooks.", "webhooks.a/b", "webhooks.ä"] {
            assert!(matches!(webhook(odd), Err(Failure::DeadLetter(_))), "{odd}");
        }
    }
}
