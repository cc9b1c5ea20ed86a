//! Messages to subjects, which a receiver acknowledges. The retry service takes what no receiver does.
//!
//! A request has an inbox of its own, because a receiver may answer more than once: `+WPI`, and then the end.

use std::time::Duration;

use async_nats::client::PublishErrorKind;
use async_nats::{HeaderMap, HeaderValue, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt as _;
use hostler_queue::request::{Terms, check_subject};
use hostler_queue::{QueueError, Request, Requested, SendError};
use hostler_types::message::{Invalid, MAX_ATTRIBUTES, MAX_DELAY};
use serde::Deserialize;
use tokio::time::{Instant, sleep, timeout_at};
use uuid::Uuid;

use super::OWN_HEADERS;
use super::headers::{self, ID};
use super::line::{Line, Unanswered, Watch};
use super::replies::{self, ERROR, RETRY_AFTER, Reply};

/// Header with the wait before the first delivery, which the retry service reads.
const DELAY: &str = "Hostler-Delay";

/// Wait before the retry service is asked again, if it does not name one.
const BUSY: Duration = Duration::from_secs(1);

/// Longest wait for an answer. The clock has no end of any longer one.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

/// A message on its way.
#[derive(Debug, Clone)]
struct Parcel {
    headers: HeaderMap,
    body: Bytes,
}

/// Reason why no receiver acknowledged a message.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Miss {
    /// It may be acknowledged later, after the wait that the receiver asks for.
    ForNow { why: String, delay: Option<Duration> },
    /// No later delivery would change it.
    ForGood(String),
}

impl Miss {
    fn for_now(why: impl Into<String>) -> Self {
        Self::ForNow { why: why.into(), delay: None }
    }

    /// Returns the meaning of an answer. `Ok(true)`: the message is acknowledged. `Ok(false)`: another answer follows.
    fn of(reply: Reply) -> Result<bool, Self> {
        match reply {
            Reply::Ack => Ok(true),
            Reply::InProgress => Ok(false),
            Reply::Nak { delay, why } => {
                let asks = delay.map(|delay| format!(" for {} s", delay.as_secs_f64())).unwrap_or_default();
                Err(Self::ForNow { why: why.unwrap_or_else(|| format!("its receiver refused it{asks}")), delay })
            }
            Reply::Term(why) if why.is_empty() => Err(Self::ForGood("its receiver refused it for good".to_owned())),
            Reply::Term(why) => Err(Self::ForGood(format!("its receiver refused it for good: {why}"))),
            Reply::NoResponders => Err(Self::for_now("nobody listens to the subject")),
            Reply::Other(why) => Err(Self::for_now(why)),
        }
    }
}

/// Answer of the retry service.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Kept {
    /// It has stored the message.
    As(String),
    /// It may store the message after this wait.
    Later(Duration, String),
    /// It does not store the message.
    Not(String),
}

#[derive(Deserialize)]
struct Receipt {
    id: String,
}

impl Kept {
    /// Reads an answer. `status`: status of the server's own answers. `header`: finds a header of the answer.
    fn read<'h>(payload: &[u8], status: Option<u16>, header: impl Fn(&str) -> Option<&'h str>) -> Self {
        if status.is_some() {
            return Self::Not(
                "nobody listens to it: is `hostler retry` running, and is this its `retry.subject`?".to_owned(),
            );
        }
        let Some(error) = header(ERROR) else {
            return match serde_json::from_slice::<Receipt>(payload) {
                Ok(Receipt { id }) => Self::As(id),
                Err(_) => Self::Not("its answer is not that of the retry service".to_owned()),
            };
        };
        let wait = header(RETRY_AFTER).and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
        match wait {
            // Anybody may have written the number.
            Some(wait) => Self::Later(wait.clamp(BUSY, MAX_DELAY), error.to_owned()),
            None => Self::Not(error.to_owned()),
        }
    }
}

/// Sends a message to a subject, and waits until a receiver has acknowledged it, or the retry service has stored it.
pub(crate) async fn request(line: &Line, request: Request) -> Result<Requested, SendError> {
    let Request { subject, mut message, terms } = request;
    check_subject(&subject)
        .map_err(|fault| Invalid::Unsupported(format!("cannot send to the subject {subject:?}: {fault}")))?;
    message.validate(line.max_payload().saturating_sub(OWN_HEADERS))?;
    message.carry_trace(MAX_ATTRIBUTES);
    let id = Uuid::now_v7().to_string();
    let mut headers = headers::of(&message.attributes);
    headers.insert(ID, id.as_str());
    let parcel = Parcel { headers, body: message.body.into() };
    let Terms { timeout, fallback } = terms;
    let timeout = timeout.min(LONGEST);
    line.up(Instant::now() + timeout).await?;
    let (why, delay) = match deliver(line, &subject, parcel.clone(), timeout).await {
        Ok(()) => return Ok(Requested::Accepted { id }),
        Err(Miss::ForNow { why, delay }) => (why, delay),
        Err(Miss::ForGood(why)) => return Err(QueueError::Refused(why).into()),
    };
    let Some(fallback) = fallback else { return Err(QueueError::Unavailable(why).into()) };
    let place = format!("{fallback}.{subject}");
    match hand_over(line, &place, with_delay(parcel, delay), timeout).await {
        Ok(id) => Ok(Requested::HandedOver { id, why }),
        Err(fault) => {
            let text = format!("{why}; and the retry service on `{place}` did not take it: {fault}");
            Err(QueueError::Unavailable(text).into())
        }
    }
}

/// Lets the retry service wait for as long as the receiver asked for, unless the sender names a wait itself.
fn with_delay(mut parcel: Parcel, delay: Option<Duration>) -> Parcel {
    let is_named = parcel.headers.iter().any(|(name, _)| AsRef::<str>::as_ref(name).eq_ignore_ascii_case(DELAY));
    if let Some(delay) = delay.filter(|_| !is_named) {
        let millis = delay.as_nanos().div_ceil(1_000_000);
        parcel.headers.insert(DELAY, format!("{millis}ms").as_str());
    }
    parcel
}

/// Requests a message, and waits for the answer that ends the request.
async fn deliver(line: &Line, subject: &str, parcel: Parcel, timeout: Duration) -> Result<(), Miss> {
    let mut answers = publish(line, subject, parcel).await?;
    let mut deadline = Instant::now() + timeout;
    loop {
        let read = |message: async_nats::Message| {
            let header = |name: &str| message.headers.as_ref()?.get(name).map(HeaderValue::as_str);
            replies::read(&message.payload, message.status.map(|status| status.as_u16()), header)
        };
        let reply = answers.next(deadline).await.map(read);
        let reply = reply.map_err(|why| Miss::for_now(why.unwrap_or_else(|| unanswered(timeout))))?;
        if Miss::of(reply)? {
            return Ok(());
        }
        deadline = Instant::now() + timeout;
    }
}

/// Requests a message of the retry service, again if the service asks for a wait, until `timeout` has passed. Returns the id.
async fn hand_over(line: &Line, place: &str, parcel: Parcel, timeout: Duration) -> Result<String, String> {
    let deadline = Instant::now() + timeout;
    loop {
        let sent = publish(line, place, parcel.clone()).await;
        let mut answers = sent.map_err(|(Miss::ForNow { why, .. } | Miss::ForGood(why))| why)?;
        let read = |message: async_nats::Message| {
            let header = |name: &str| message.headers.as_ref()?.get(name).map(HeaderValue::as_str);
            Kept::read(&message.payload, message.status.map(|status| status.as_u16()), header)
        };
        let answer = loop {
            match answers.next(deadline).await {
                Ok(message) if message.status.is_none() && replies::is_of_stream(&message.payload) => {}
                answer => break answer.map(read),
            }
        };
        match answer.map_err(|why| why.unwrap_or_else(|| unanswered(timeout)))? {
            Kept::As(id) => return Ok(id),
            Kept::Later(wait, why) if Instant::now() + wait >= deadline => return Err(why),
            Kept::Later(wait, _) => sleep(wait).await,
            Kept::Not(why) => return Err(why),
        }
    }
}

fn unanswered(timeout: Duration) -> String {
    format!("no answer came within {} s", timeout.as_secs_f64())
}

/// Publishes a message with an inbox for the answers.
async fn publish(line: &Line, subject: &str, parcel: Parcel) -> Result<Answers, Miss> {
    let watch = line.watch();
    if let Some(why) = line.is_down() {
        return Err(Miss::for_now(why));
    }
    let inbox = line.client.new_inbox();
    let messages = line.client.subscribe(inbox.clone()).await.map_err(|error| Miss::for_now(error.to_string()))?;
    let Parcel { headers, body } = parcel;
    let sent = line.client.publish_with_reply_and_headers(subject.to_owned(), inbox.clone(), headers, body).await;
    match sent {
        Ok(()) => Ok(Answers { messages, needs: [subject.to_owned(), inbox], watch }),
        Err(error) if error.kind() == PublishErrorKind::MaxPayloadExceeded => {
            Err(Miss::ForGood(format!("it is larger than the server takes: {error}")))
        }
        Err(error) => Err(Miss::for_now(error.to_string())),
    }
}

/// Answers to a request.
struct Answers {
    messages: Subscriber,
    /// Subjects that the user must be allowed to use.
    needs: [String; 2],
    watch: Watch,
}

impl Answers {
    /// Waits for the next answer. `Err(None)`: none came in time. `Err(Some(_))`: none can come any more.
    async fn next(&mut self, deadline: Instant) -> Result<async_nats::Message, Option<String>> {
        let needs = self.needs.each_ref().map(String::as_str);
        tokio::select! {
            // An answer that has come counts.
            biased;
            answer = timeout_at(deadline, self.messages.next()) => match answer {
                Ok(Some(answer)) => Ok(answer),
                Ok(None) => Err(Some("the connection to NATS is closed".to_owned())),
                Err(_) => Err(None),
            },
            fault = self.watch.fault(&needs) => Err(Some(told(fault))),
        }
    }
}

/// Returns the reason why no answer can come, for people.
fn told(fault: Unanswered) -> String {
    match fault {
        Unanswered::Denied(why) => format!("NATS refuses it: {why}: check the permissions of the user"),
        Unanswered::NoResponders => "nobody listens to the subject".to_owned(),
        Unanswered::TooLarge(why) | Unanswered::Unsent(why) | Unanswered::Failed(why) => why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_acknowledgement_ends_well() {
        assert_eq!([Miss::of(Reply::Ack), Miss::of(Reply::InProgress)], [Ok(true), Ok(false)]);
        let nak = |delay| Miss::of(Reply::Nak { delay, why: None }).unwrap_err();
        assert_eq!(nak(None), Miss::for_now("its receiver refused it"));
        let delay = Some(Duration::from_millis(2500));
        assert_eq!(nak(delay), Miss::ForNow { why: "its receiver refused it for 2.5 s".to_owned(), delay });
        assert_eq!(Miss::of(Reply::NoResponders).unwrap_err(), Miss::for_now("nobody listens to the subject"));
        let term = Miss::of(Reply::Term("no such user".to_owned())).unwrap_err();
        assert_eq!(term, Miss::ForGood("its receiver refused it for good: no such user".to_owned()));
        assert!(matches!(Miss::of(Reply::Other("x".to_owned())), Err(Miss::ForNow { delay: None, .. })));
    }

    #[test]
    fn only_a_receipt_of_the_retry_service_is_one() {
        let read = |payload: &str, headers: &[(&str, &'static str)]| {
            let header = |name: &str| headers.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
            Kept::read(payload.as_bytes(), None, header)
        };
        assert_eq!(read("{\"id\":\"7\"}", &[]), Kept::As("7".to_owned()));
        for other in ["", "+ACK", "{}", "{\"id\":7}", "7"] {
            assert!(matches!(read(other, &[]), Kept::Not(_)), "{other}");
        }
        let full = [(ERROR, "the store is full"), (replies::ERROR_CODE, "503"), (RETRY_AFTER, "5")];
        assert_eq!(read("", &full), Kept::Later(Duration::from_secs(5), "the store is full".to_owned()));
        let never = [(ERROR, "x"), (RETRY_AFTER, "18446744073709551615")];
        assert_eq!(read("", &never), Kept::Later(MAX_DELAY, "x".to_owned()), "the clock has no such time");
        assert_eq!(read("{\"id\":\"7\"}", &full[..1]), Kept::Not("the store is full".to_owned()));
        let nobody = Kept::read(b"", Some(503), |_| None);
        assert!(matches!(nobody, Kept::Not(why) if why.contains("is `hostler retry` running")));
    }

    #[test]
    fn a_wait_goes_along_unless_the_sender_names_one() {
        let parcel = |headers: HeaderMap| Parcel { headers, body: Bytes::new() };
        let delay = |parcel: Parcel| parcel.headers.get(DELAY).map(|value| value.as_str().to_owned());
        let wait = Some(Duration::from_micros(2_500_100));
        assert_eq!(delay(with_delay(parcel(HeaderMap::new()), wait)).as_deref(), Some("2501ms"));
        assert_eq!(delay(with_delay(parcel(HeaderMap::new()), None)), None);
        let mut named = HeaderMap::new();
        named.insert(DELAY, "1h");
        assert_eq!(delay(with_delay(parcel(named), wait)).as_deref(), Some("1h"));
    }
}
