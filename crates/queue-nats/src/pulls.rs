//! The request for messages that the server has not answered in full. No I/O.

use std::time::Duration;

use async_nats::StatusCode;
use serde_json::{Value, json};
use tokio::time::Instant;

/// Longest interval of the server's signs of life for a request.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// Shortest time of a request for which the server gives signs of life.
const WITH_HEARTBEAT: Duration = Duration::from_secs(1);

/// Time that a sign of life may be late.
const LATE: Duration = Duration::from_secs(2);

/// A request that is open on the server.
#[derive(Debug, Clone, Copy)]
struct Pull {
    number: u64,
    /// Number of messages that may still come.
    left: usize,
    /// Time at which the server's next sign is overdue.
    overdue: Instant,
    /// Interval of signs. `None`: there are none before the end.
    heartbeat: Option<Duration>,
}

/// End of a request, as the server tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// The request goes on.
    None,
    /// It ended as asked for: no more messages in its time.
    InTime,
    /// It ended early.
    Fault(String),
}

/// The open request of a queue. There is one at a time, as messages do not tell which request they answer.
#[derive(Debug, Default)]
pub(crate) struct Pulls {
    open: Option<Pull>,
    last: u64,
    /// Number of connections when the request was sent. A later connection has no request.
    connection: u64,
    /// Set if the last request ended because all messages came that were asked for.
    is_full: bool,
}

impl Pulls {
    /// Begins a request for up to `max` messages within `wait`. Zero: those that the server has. Returns its number and its body.
    /// `None`: another one is open.
    pub(crate) fn begin(&mut self, max: usize, wait: Duration, now: Instant, connection: u64) -> Option<(u64, Value)> {
        if self.open(connection).is_some() {
            return None;
        }
        self.last += 1;
        (self.connection, self.is_full) = (connection, false);
        let heartbeat = (wait >= WITH_HEARTBEAT).then(|| (wait / 2).min(HEARTBEAT));
        let overdue = now + heartbeat.map_or(wait, |heartbeat| heartbeat * 2) + LATE;
        self.open = Some(Pull { number: self.last, left: max, overdue, heartbeat });
        let mut body = json!({ "batch": max });
        if wait.is_zero() {
            body["no_wait"] = json!(true);
        } else {
            body["expires"] = json!(nanos(wait));
        }
        if let Some(heartbeat) = heartbeat {
            body["idle_heartbeat"] = json!(nanos(heartbeat));
        }
        Some((self.last, body))
    }

    /// Notes that a message came.
    pub(crate) fn message(&mut self, now: Instant) {
        let Some(pull) = &mut self.open else { return };
        pull.left = pull.left.saturating_sub(1);
        pull.sign(now);
        if pull.left == 0 {
            (self.open, self.is_full) = (None, true);
        }
    }

    /// Notes that the server gave a sign of life.
    pub(crate) fn sign(&mut self, now: Instant) {
        if let Some(pull) = &mut self.open {
            pull.sign(now);
        }
    }

    /// Notes a sign of the server.
    pub(crate) fn status(&mut self, number: u64, status: StatusCode, text: &str, now: Instant) -> End {
        let Some(pull) = self.open.as_mut().filter(|pull| pull.number == number) else { return End::None };
        if status == StatusCode::IDLE_HEARTBEAT {
            pull.sign(now);
            return End::None;
        }
        self.open = None;
        match status {
            StatusCode::NOT_FOUND | StatusCode::TIMEOUT => End::InTime,
            StatusCode::NO_RESPONDERS => End::Fault("nobody answers for the stream".to_owned()),
            status => End::Fault(format!("{text} (NATS status {status})")),
        }
    }

    /// Returns the number of the open request. `None`: none is open on this connection.
    pub(crate) fn open(&self, connection: u64) -> Option<u64> {
        self.open.filter(|_| self.connection == connection).map(|pull| pull.number)
    }

    /// Returns `true` if the last request ended because all messages came that were asked for. There may be more.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Returns the time at which a sign is overdue.
    pub(crate) fn overdue_at(&self) -> Option<Instant> {
        self.open.map(|pull| pull.overdue)
    }

    /// Forgets the open request, for example because the server's signs are overdue.
    pub(crate) fn forget(&mut self) {
        self.open = None;
    }
}

impl Pull {
    fn sign(&mut self, now: Instant) {
        if let Some(heartbeat) = self.heartbeat {
            self.overdue = now + heartbeat * 2 + LATE;
        }
    }
}

fn nanos(time: Duration) -> u64 {
    super::topology::nanos(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_request_ends_with_its_last_message_or_with_the_servers_word() {
        let (mut pulls, now) = (Pulls::default(), Instant::now());
        let (_, body) = pulls.begin(2, 20 * SECOND, now, 1).unwrap();
        assert_eq!(body, json!({ "batch": 2, "expires": 20_000_000_000_u64, "idle_heartbeat": 5_000_000_000_u64 }));
        assert_eq!(pulls.begin(3, SECOND, now, 1), None, "one at a time");
        pulls.message(now);
        pulls.message(now);
        assert!(pulls.is_full());
        let (second, body) = pulls.begin(3, Duration::ZERO, now, 1).unwrap();
        assert_eq!((body, pulls.open(1)), (json!({ "batch": 3, "no_wait": true }), Some(second)));
        assert_eq!(pulls.status(second, StatusCode::NOT_FOUND, "No Messages", now), End::InTime);
        assert_eq!(pulls.status(second, StatusCode::NOT_FOUND, "No Messages", now), End::None, "it has ended");
        let (third, body) = pulls.begin(1, SECOND / 2, now, 1).unwrap();
        assert_eq!(body, json!({ "batch": 1, "expires": 500_000_000 }));
        assert_eq!(pulls.status(second, StatusCode::TIMEOUT, "", now), End::None, "it is another one's");
        let conflict = StatusCode::REQUEST_TERMINATED;
        assert!(
            matches!(pulls.status(third, conflict, "Consumer Deleted", now), End::Fault(text) if text.contains("Deleted"))
        );
        assert_eq!((pulls.open(1), pulls.is_full()), (None, false));
    }

    #[test]
    fn a_silent_server_is_noticed() {
        let (mut pulls, now) = (Pulls::default(), Instant::now());
        let (number, _) = pulls.begin(2, 20 * SECOND, now, 1).unwrap();
        assert_eq!(pulls.overdue_at(), Some(now + 12 * SECOND));
        pulls.status(number, StatusCode::IDLE_HEARTBEAT, "", now + 5 * SECOND);
        assert_eq!(pulls.overdue_at(), Some(now + 17 * SECOND));
        assert_eq!((pulls.open(1), pulls.open(2)), (Some(number), None), "a new connection has no request");
        pulls.forget();
        assert_eq!(pulls.overdue_at(), None);
    }
}
