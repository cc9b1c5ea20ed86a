//! The request for messages that the server has not answered in full. No I/O.

use std::time::Duration;

use async_nats::StatusCode;
use serde_json::{Value, json};
use tokio::time::Instant;

/// Longest time of a request. An inbox closes when its open request has ended, because messages that come for a closed inbox are
/// lost until the server's timers end. So no request lasts for long.
pub(crate) const LONGEST: Duration = Duration::from_secs(1);

/// Time that the server's last word on a request may be late.
const LATE: Duration = Duration::from_secs(2);

/// Requests in a row that may have no answer. A new connection forgets one.
const MOST_UNANSWERED: u32 = 1;

/// Word of the server when the next message has more bytes than the request has left.
const NO_ROOM: &str = "Message Size Exceeds MaxBytes";

/// A request that is open on the server.
#[derive(Debug, Clone, Copy)]
struct Pull {
    number: u64,
    /// Number of messages that may still come.
    left: usize,
    /// Time at which the server's last word is overdue.
    overdue: Instant,
}

/// A request for messages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    /// Maximum number of messages.
    pub(crate) messages: usize,
    /// Maximum number of bytes. `None`: any.
    pub(crate) bytes: Option<usize>,
    /// Time to wait for messages, at most [`LONGEST`]. Zero: those that the server has.
    pub(crate) wait: Duration,
}

/// Returns the subject of requests for messages.
pub(crate) fn subject(stream: &str, consumer: &str) -> String {
    format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}")
}

/// Returns the number of the request that a sign of the server is for: the end of its subject.
pub(crate) fn request_of(subject: &str) -> u64 {
    subject.rsplit('.').next().and_then(|number| number.parse().ok()).unwrap_or_default()
}

/// End of a request, as the server tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// The request goes on.
    None,
    /// It ended as asked for: no more messages in its time, or no more that fit.
    InTime,
    /// It ended early.
    Fault(String),
}

/// The open request of a queue. There is one at a time, as messages do not tell which request they answer.
#[derive(Debug, Default)]
pub(crate) struct Pulls {
    open: Option<Pull>,
    last: u64,
    /// Number of lost connections when the request was sent. A later connection has no request.
    losses: u64,
    /// Set if the last request ended because all came that was asked for.
    is_full: bool,
    /// Number of requests in a row without any answer.
    unanswered: u32,
    /// Time of the first request that may have no answer yet.
    begun_at: Option<Instant>,
}

impl Pulls {
    /// Begins a request. Returns its number and its body. `None`: another one is open.
    pub(crate) fn begin(&mut self, wanted: Wanted, now: Instant, losses: u64) -> Option<(u64, Value)> {
        if self.open(losses).is_some() {
            return None;
        }
        let Wanted { messages, bytes, wait } = wanted;
        self.last += 1;
        if self.unanswered == 0 {
            self.begun_at = Some(now);
        }
        (self.losses, self.is_full) = (losses, false);
        self.open = Some(Pull { number: self.last, left: messages, overdue: now + wait + LATE });
        let mut body = json!({ "batch": messages });
        if wait.is_zero() {
            body["no_wait"] = json!(true);
        } else {
            body["expires"] = json!(super::topology::nanos(wait));
        }
        if let Some(bytes) = bytes {
            body["max_bytes"] = json!(bytes);
        }
        Some((self.last, body))
    }

    /// Notes that a message came. Returns a time before which the server did not deliver it: it may have been on its way for long,
    /// for example while this process was stopped.
    pub(crate) fn message(&mut self, now: Instant) -> Instant {
        let delivered_after = self.begun_at.unwrap_or(now);
        self.unanswered = 0;
        if let Some(pull) = &mut self.open {
            pull.left = pull.left.saturating_sub(1);
            if pull.left == 0 {
                (self.open, self.is_full) = (None, true);
            }
        }
        delivered_after
    }

    /// Notes a sign of the server for a request.
    pub(crate) fn status(&mut self, number: u64, status: StatusCode, text: &str) -> End {
        self.unanswered = 0;
        if status == StatusCode::IDLE_HEARTBEAT || self.open.is_none_or(|pull| pull.number != number) {
            return End::None;
        }
        self.open = None;
        match status {
            StatusCode::NOT_FOUND | StatusCode::TIMEOUT => End::InTime,
            StatusCode::NO_RESPONDERS => End::Fault("nobody answers for the stream".to_owned()),
            _ if text == NO_ROOM => {
                self.is_full = true;
                End::InTime
            }
            status => End::Fault(format!("{text} (NATS status {status})")),
        }
    }

    /// Returns the number of the open request. `None`: none is open on this connection.
    pub(crate) fn open(&self, losses: u64) -> Option<u64> {
        self.open.filter(|_| self.losses == losses).map(|pull| pull.number)
    }

    /// Returns `true` if the last request ended because all came that was asked for. There may be more.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Returns the time at which the server's last word is overdue. `None`: no request is open on this connection.
    pub(crate) fn overdue_at(&self, losses: u64) -> Option<Instant> {
        self.open.filter(|_| self.losses == losses).map(|pull| pull.overdue)
    }

    /// Gives up on a request whose end is overdue.
    ///
    /// # Errors
    /// The server has answered none of the last requests.
    pub(crate) fn give_up(&mut self) -> Result<(), String> {
        self.open = None;
        self.unanswered += 1;
        if self.unanswered <= MOST_UNANSWERED {
            return Ok(());
        }
        Err(format!("NATS has not answered the last {} requests for messages", self.unanswered))
    }

    /// Forgets the open request, because it was not sent, or its inbox is closed.
    pub(crate) fn forget(&mut self) {
        self.open = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn wanted(messages: usize, wait: Duration) -> Wanted {
        Wanted { messages, bytes: None, wait }
    }

    #[test]
    fn a_request_ends_with_its_last_message_or_with_the_servers_word() {
        let (mut pulls, now) = (Pulls::default(), Instant::now());
        let (_, body) = pulls.begin(wanted(2, SECOND), now, 1).unwrap();
        assert_eq!(body, json!({ "batch": 2, "expires": 1_000_000_000_u64 }));
        assert_eq!(pulls.begin(wanted(3, SECOND), now, 1), None, "one at a time");
        pulls.message(now);
        pulls.message(now);
        assert!(pulls.is_full());
        let (second, body) = pulls.begin(wanted(3, Duration::ZERO), now, 1).unwrap();
        assert_eq!((body, pulls.open(1)), (json!({ "batch": 3, "no_wait": true }), Some(second)));
        assert_eq!(pulls.status(second, StatusCode::NOT_FOUND, "No Messages"), End::InTime);
        assert_eq!(pulls.status(second, StatusCode::NOT_FOUND, "No Messages"), End::None, "it has ended");
        let (third, body) = pulls.begin(wanted(1, SECOND / 2), now, 1).unwrap();
        assert_eq!(body, json!({ "batch": 1, "expires": 500_000_000 }));
        assert_eq!(pulls.status(second, StatusCode::TIMEOUT, ""), End::None, "it is another one's");
        let conflict = StatusCode::REQUEST_TERMINATED;
        assert!(
            matches!(pulls.status(third, conflict, "Consumer Deleted"), End::Fault(text) if text.contains("Deleted"))
        );
        assert_eq!((pulls.open(1), pulls.is_full()), (None, false));
    }

    #[test]
    fn a_request_whose_bytes_are_used_up_has_ended_in_full() {
        let (mut pulls, now) = (Pulls::default(), Instant::now());
        let (number, body) = pulls.begin(Wanted { bytes: Some(9), ..wanted(2, SECOND) }, now, 1).unwrap();
        assert_eq!(body["max_bytes"], 9);
        pulls.message(now);
        assert_eq!(pulls.status(number, StatusCode::REQUEST_TERMINATED, NO_ROOM), End::InTime);
        assert!(pulls.is_full());
    }

    #[test]
    fn a_message_may_be_as_old_as_the_request_that_it_answers() {
        let (mut pulls, now) = (Pulls::default(), Instant::now());
        pulls.begin(wanted(2, SECOND), now, 1).unwrap();
        assert_eq!(pulls.message(now + SECOND), now);
        pulls.give_up().unwrap();
        pulls.begin(wanted(2, SECOND), now + 9 * SECOND, 1).unwrap();
        assert_eq!(pulls.message(now + 9 * SECOND), now, "it may be the answer to the first");
        pulls.forget();
        pulls.begin(wanted(2, SECOND), now + 9 * SECOND, 1).unwrap();
        assert_eq!(pulls.message(now + 10 * SECOND), now + 9 * SECOND);
    }

    #[test]
    fn a_silent_server_is_noticed() {
        let (mut pulls, now) = (Pulls::default(), Instant::now());
        let (number, _) = pulls.begin(wanted(2, SECOND), now, 1).unwrap();
        assert_eq!(pulls.overdue_at(1), Some(now + 3 * SECOND));
        assert_eq!(pulls.overdue_at(2), None, "a wait for it would end at once, again and again");
        assert_eq!((pulls.open(1), pulls.open(2)), (Some(number), None), "a new connection has no request");
        assert_eq!(pulls.give_up(), Ok(()), "its connection may have been a new one");
        assert_eq!(pulls.overdue_at(1), None);
        pulls.begin(wanted(2, SECOND), now, 1).unwrap();
        assert!(pulls.give_up().is_err());
        let (third, _) = pulls.begin(wanted(2, SECOND), now, 1).unwrap();
        pulls.status(third, StatusCode::TIMEOUT, "");
        pulls.begin(wanted(2, SECOND), now, 1).unwrap();
        assert_eq!(pulls.give_up(), Ok(()), "it has answered since");
    }
}
