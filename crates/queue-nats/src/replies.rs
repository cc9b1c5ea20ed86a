//! Answers of receivers to requests. No I/O.
//!
//! Only an empty answer and `+ACK` acknowledge a message. An error of a NATS service, a text of another protocol or a
//! receiver's own words do not. Nor does a stream that stores the messages of the subject, for example to archive them: it answers
//! beside the receiver.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use hostler_types::message::MAX_DELAY;

/// Status with which the server answers if nobody listens.
const NO_RESPONDERS: u16 = 503;

/// Name of the header with which NATS services report errors.
pub const ERROR: &str = "Nats-Service-Error";
/// Name of the header with the code of such an error.
pub const ERROR_CODE: &str = "Nats-Service-Error-Code";
/// Name of the header with a wait in seconds.
pub const RETRY_AFTER: &str = "Retry-After";

/// Longest part of an answer that a reason shows, in bytes.
const SHOWN: usize = 200;

/// Length that no answer of a stream has, in bytes.
const MOST_OF_STREAM: usize = 4096;

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The message is acknowledged.
    Ack,
    /// The receiver is still working on the message, or a stream has answered before it.
    InProgress,
    /// The receiver refused the message for now.
    Nak {
        /// The wait that it asks for.
        delay: Option<Duration>,
        /// The reason, if it is an error of a service.
        why: Option<String>,
    },
    /// The receiver refused the message for good. The text is the reason.
    Term(String),
    /// Nobody listens to the subject.
    NoResponders,
    /// The answer is no acknowledgement. The text says what it is, to follow the name of the receiver.
    Other(String),
}

#[derive(Deserialize)]
struct Refusal {
    /// Seconds.
    delay: Option<f64>,
}

/// Reads an answer. `status`: status of the server's own answers. `header`: finds a header of the answer.
pub fn read<'h>(payload: &[u8], status: Option<u16>, header: impl Fn(&str) -> Option<&'h str>) -> Reply {
    match status {
        Some(NO_RESPONDERS) => return Reply::NoResponders,
        Some(status) => return Reply::Other(format!("the server answered with status {status}")),
        None => {}
    }
    let (code, error) = (header(ERROR_CODE), header(ERROR));
    if code.is_some() || error.is_some() {
        let (code, error) = (shown(code.unwrap_or("without a code")), shown(error.unwrap_or_default()));
        let why = format!("its receiver failed with the service error {code}: {error}");
        return match header(RETRY_AFTER).and_then(|text| text.trim().parse().ok()).and_then(wait) {
            Some(delay) => Reply::Nak { delay: Some(delay), why: Some(why) },
            None => Reply::Other(why),
        };
    }
    let text = String::from_utf8_lossy(payload);
    let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((&text, ""));
    match word {
        "" if payload.is_empty() => Reply::Ack,
        "+ACK" if rest.trim().is_empty() => Reply::Ack,
        "+WPI" => Reply::InProgress,
        "+TERM" => Reply::Term(shown(rest.trim()).to_owned()),
        "-NAK" => {
            let refusal: Option<Refusal> = serde_json::from_str(rest).ok();
            Reply::Nak { delay: refusal.and_then(|refusal| refusal.delay).and_then(wait), why: None }
        }
        _ if is_of_stream(payload) => Reply::InProgress,
        _ => Reply::Other(format!("its receiver answered {:?}, which is no acknowledgement", shown(&text))),
    }
}

/// Returns `true` for the answer with which a stream confirms that it has stored a message, or reports that it has not.
pub(crate) fn is_of_stream(payload: &[u8]) -> bool {
    // Larger ones are something else.
    let answer =
        (payload.first() == Some(&b'{') && payload.len() < MOST_OF_STREAM).then(|| serde_json::from_slice(payload));
    let answer: Value = answer.and_then(Result::ok).unwrap_or_default();
    answer["stream"].is_string() && answer["seq"].is_u64()
}

/// Returns a wait of so many seconds. `None`: the number is no wait. Nor is zero, so that a receiver that refuses everything is not
/// kept busy: the sender's own backoff applies.
fn wait(seconds: f64) -> Option<Duration> {
    let seconds = Some(seconds).filter(|seconds| *seconds > 0.0)?;
    Some(Duration::try_from_secs_f64(seconds).unwrap_or(MAX_DELAY).min(MAX_DELAY))
}

fn shown(text: &str) -> &str {
    &text[..text.floor_char_boundary(SHOWN)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(payload: &str) -> Reply {
        read(payload.as_bytes(), None, |_| None)
    }

    #[test]
    fn not_any_reply_is_an_acknowledgement() {
        assert_eq!([of(""), of("+ACK"), of("+ACK \n")], [const { Reply::Ack }; 3]);
        for other in [" ", "OK", "+ack", "ACK", "+ACKED", "+ACK but", "-ERR", "{}", "null", "\u{0}", "+NXT"] {
            let Reply::Other(reason) = of(other) else { panic!("{other:?}") };
            assert!(reason.contains("no acknowledgement"), "{reason}");
        }
        assert!(matches!(read(&[0xff, 0xfe], None, |_| None), Reply::Other(_)));
        let long = of(&"ä".repeat(9_999));
        assert!(matches!(long, Reply::Other(reason) if reason.len() < 300));
    }

    #[test]
    fn a_stream_beside_the_receiver_neither_acknowledges_nor_refuses() {
        for answer in [
            "{\"stream\":\"AUDIT\", \"seq\":7}",
            "{\"stream\":\"AUDIT\",\"domain\":\"hub\",\"seq\":7,\"duplicate\":true}",
            "{\"error\":{\"code\":400},\"stream\":\"AUDIT\",\"seq\":0}",
        ] {
            assert_eq!(of(answer), Reply::InProgress, "{answer}");
        }
        for other in
            ["{\"stream\":\"AUDIT\"}", "{\"seq\":7}", "{\"stream\":7,\"seq\":7}", "{\"stream\":\"AUDIT\",\"seq\":7"]
        {
            assert!(matches!(of(other), Reply::Other(_)), "{other}");
        }
    }

    #[test]
    fn a_refusal_may_name_its_delay() {
        let delay = |text: &str| match of(text) {
            Reply::Nak { delay, why: None } => delay.map(|delay| delay.as_secs_f64()),
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!([delay("-NAK {\"delay\": 30}"), delay("-NAK {\"delay\":0.25}")], [Some(30.0), Some(0.25)]);
        for none in [
            "-NAK",
            "-NAK {\"delay\":0}",
            "-NAK ",
            "-NAK {}",
            "-NAK {\"delay\":-1}",
            "-NAK {\"delay\":\"x\"}",
            "-NAK soon",
        ] {
            assert_eq!(delay(none), None, "{none}");
        }
        assert_eq!(delay("-NAK {\"delay\":1e300}"), Some(MAX_DELAY.as_secs_f64()));
    }

    #[test]
    fn other_words_of_the_protocol() {
        assert_eq!(of("+WPI"), Reply::InProgress);
        assert_eq!(
            [of("+TERM no such order"), of("+TERM")],
            ["no such order", ""].map(|why| Reply::Term(why.to_owned()))
        );
        assert_eq!(read(b"", Some(503), |_| None), Reply::NoResponders);
        assert!(matches!(read(b"", Some(408), |_| None), Reply::Other(_)));
    }

    #[test]
    fn an_empty_reply_with_a_service_error_is_no_acknowledgement() {
        let error = |headers: &[(&str, &'static str)]| {
            read(b"", None, |name| headers.iter().find(|(known, _)| *known == name).map(|(_, value)| *value))
        };
        let failed = error(&[(ERROR_CODE, "500"), (ERROR, "database is down")]);
        let Reply::Other(reason) = failed else { panic!("{failed:?}") };
        assert!(reason.ends_with("the service error 500: database is down"), "{reason}");
        let busy = error(&[(ERROR_CODE, "429"), (RETRY_AFTER, "12")]);
        assert!(matches!(busy, Reply::Nak { delay: Some(wait), why: Some(_) } if wait.as_secs() == 12), "{busy:?}");
        assert_eq!(error(&[(RETRY_AFTER, "12")]), Reply::Ack, "an error only with a code or a text");
    }
}
