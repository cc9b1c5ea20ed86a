//! Delays that exceed the SQS limit of 15 minutes: the timestamp on a delayed message, and the number of times that the
//! message is received while it waits. No I/O.
//!
//! The sender stores the message's start time in an attribute. A consumer that receives the message before that time
//! hides it again, each time for at most one [`TURN`]. SQS counts each time that the message is received. To get the
//! number of attempts, the times before the start time are subtracted from this count. Their number is not stored on
//! the message, but any process can calculate it from the time at which the message was first received and the start
//! time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hostler_types::Timestamp;
use hostler_types::message::AttributeValue;
use tokio::time::Instant;

/// Name of the attribute that contains a message's start time (RFC 3339, in UTC). The message must not be processed
/// before that time.
pub(super) const ATTRIBUTE: &str = "hostler-not-before";

/// Maximum delay that SQS itself supports (AWS limit: DelaySeconds 900).
pub(super) const KEPT: Duration = Duration::from_secs(15 * 60);

/// Maximum time for which a message is hidden again if it is received before its start time. SQS allows 12 h, counted
/// from the time at which the message was received. The remaining hour is a reserve, because the call that hides the
/// message may reach SQS late.
pub(super) const TURN: Duration = Duration::from_secs(11 * 60 * 60);

/// Maximum time from now to a valid start time. A later start time is ignored, because SQS keeps no message for more
/// than 14 days (AWS limit).
const FURTHEST: Duration = Duration::from_secs(14 * 86_400);

/// Maximum error of our estimate of the time by the SQS clock. It is one second, because SQS answers state the time in
/// whole seconds. The sender adds this error to the start time. The consumer hides a message until this long after its
/// start time, so that the message is due when it is received again.
const UNTOLD: Duration = Duration::from_secs(1);

/// Reserve for clock differences and slow calls. The sender adds it to a delay to calculate how many times the message
/// is received during the delay.
const SLACK: Duration = Duration::from_secs(60);

/// Minimum time for which SQS must still keep a message once it is due.
const LEFT: Duration = Duration::from_secs(60 * 60);

/// Number of times that a queue must still let a message be received once it is due: once for an attempt, plus the two
/// spare times that `provision` allows in every queue.
const NEEDED: u32 = 3;

/// Returns the number of times that a delayed message is received before it is due. `kept`: part of the delay that SQS
/// handles itself.
pub(super) fn turns(delay: Duration, kept: Duration) -> u32 {
    let rest = delay.saturating_sub(kept);
    if rest.is_zero() { 0 } else { count(rest + SLACK) }
}

fn count(rest: Duration) -> u32 {
    u32::try_from(rest.as_millis().div_ceil(TURN.as_millis())).unwrap_or(u32::MAX)
}

/// Checks that a message with this delay can wait in the queue `queue` without being dead-lettered or deleted.
/// `max_receives`: number of times that a message can be received before the queue dead-letters it. `None`: the queue
/// dead-letters no messages. `keeps`: retention of the queue. `None`: unknown.
///
/// # Errors
/// Returns a message that says what is wrong and how to fix it.
pub(super) fn check(
    queue: &str,
    delay: Duration,
    max_receives: Option<u32>,
    keeps: Option<Duration>,
) -> Result<(), String> {
    let shown = humantime::format_duration(delay);
    let cure = "raise `longest_delay` of its consumer, and run `hostler provision`";
    if let Some(keeps) = keeps.filter(|keeps| delay + LEFT > *keeps) {
        let keeps = humantime::format_duration(keeps);
        return Err(format!("a delay of {shown} is too long for {queue}, which keeps messages for {keeps}: {cure}"));
    }
    let turns = turns(delay, KEPT);
    match max_receives {
        Some(most) if turns.saturating_add(NEEDED) > most => Err(format!(
            "{queue} dead-letters a message after {most} receives, and a delay of {shown} takes {turns} of them: {cure}"
        )),
        _ => Ok(()),
    }
}

/// Returns the value of [`ATTRIBUTE`] for a message that is sent now with this delay. `now`: current time by the SQS
/// clock.
pub(super) fn stamp(now: SystemTime, delay: Duration) -> String {
    let due = now.checked_add(delay + UNTOLD).unwrap_or_else(latest);
    humantime::format_rfc3339_seconds(due.clamp(UNIX_EPOCH, latest())).to_string()
}

/// Returns the latest time that RFC 3339 can express: the last second of the year 9999. The SQS clock may be wrong, and
/// the formatter panics on later times and on times before 1970.
fn latest() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(253_402_300_799)
}

/// Parses a message's start time from the value of [`ATTRIBUTE`]. `now`: current time by the SQS clock.
///
/// # Errors
/// Returns a message that says why the value must be ignored.
pub(super) fn due(value: &AttributeValue, now: SystemTime) -> Result<SystemTime, String> {
    let text = value.as_text().unwrap_or_default();
    let Ok(due) = humantime::parse_rfc3339_weak(text) else {
        return Err("it is not an RFC 3339 time in UTC, such as 2026-11-28T12:00:00Z".to_owned());
    };
    if due.duration_since(now).is_ok_and(|ahead| ahead > FURTHEST) {
        return Err(format!("{} is more than the 14 days ahead for which SQS keeps a message", Timestamp::from(due)));
    }
    Ok(due)
}

/// The wait of one delivery until the start time of its message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Wait {
    /// Time before which the delivery must not be processed, at most one [`TURN`] ahead. `None`: the message may be
    /// processed at once.
    pub(super) not_before: Option<Instant>,
    /// Total number of times that the message is received before it is due.
    pub(super) turns: u32,
}

impl Wait {
    /// Calculates the wait of a delivery. `due`: start time of the message. `first`: time at which the message was
    /// received for the first time. `now`: current time by the SQS clock and by ours.
    pub(super) fn of(due: SystemTime, first: SystemTime, now: (SystemTime, Instant)) -> Self {
        let turns = (due + UNTOLD).duration_since(first).map_or(0, count);
        let (by_service, by_us) = now;
        let not_before = match due.duration_since(by_service) {
            Ok(rest) if !rest.is_zero() => Some(by_us + (rest + UNTOLD).min(TURN)),
            Ok(_) => Some(by_us),
            Err(past) => by_us.checked_sub(past.duration()),
        };
        Self { not_before, turns }
    }

    /// Returns the number of the attempt. `receives`: number of times that the message has been received, as counted by
    /// SQS. The times before the start time are subtracted from it.
    pub(super) fn attempt(&self, receives: u32) -> u32 {
        receives.saturating_sub(self.turns).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const HOUR: Duration = Duration::from_secs(3600);
    const DAY: Duration = Duration::from_secs(86_400);

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds)
    }

    fn said(text: &str) -> Result<SystemTime, String> {
        due(&AttributeValue::Text(text.to_owned()), at(0))
    }

    #[test]
    fn a_delay_takes_a_receive_for_each_turn_beyond_what_sqs_keeps() {
        let of = |delay| turns(delay, KEPT);
        assert_eq!([Duration::ZERO, KEPT, KEPT + SECOND, 11 * HOUR].map(of), [0, 0, 1, 1]);
        assert_eq!([KEPT + TURN, DAY, 3 * DAY, 13 * DAY].map(of), [2, 3, 7, 29]);
        assert_eq!([SECOND, TURN - SLACK, TURN].map(|delay| turns(delay, Duration::ZERO)), [1, 1, 2], "SNS keeps none");
    }

    #[test]
    fn a_queue_that_would_drop_or_dead_letter_it_meanwhile_is_named() {
        let fits = |delay, receives, keeps| check("jobs", delay, receives, Some(keeps));
        assert_eq!(fits(3 * DAY, Some(10), 4 * DAY), Ok(()));
        assert_eq!(fits(3 * DAY, None, 4 * DAY), Ok(()), "nothing counts its receives");
        let fault = fits(3 * DAY, Some(9), 4 * DAY).unwrap_err();
        assert!(fault.contains("jobs dead-letters a message after 9 receives"), "{fault}");
        assert!(fault.contains("3days takes 7") && fault.contains("longest_delay"), "{fault}");
        let fault = fits(4 * DAY, None, 4 * DAY).unwrap_err();
        assert!(fault.contains("keeps messages for 4days") && fault.contains("hostler provision"), "{fault}");
        assert_eq!(check("jobs", 13 * DAY, None, None), Ok(()));
    }

    #[test]
    fn a_stamp_is_read_back_and_never_early() {
        let sent = at(0) + Duration::from_millis(999);
        let due = said(&stamp(sent, DAY)).unwrap();
        assert!((sent + DAY..sent + DAY + SECOND).contains(&due), "{due:?}");
        assert_eq!(said("2023-11-14T22:13:20Z"), Ok(at(0)));
        assert_eq!(said("2023-11-14 22:13:21.5"), Ok(at(1) + SECOND / 2));
    }

    #[test]
    fn a_stamp_by_a_wrong_clock_is_a_time_nevertheless() {
        assert_eq!(stamp(latest(), DAY), "9999-12-31T23:59:59Z");
        assert_eq!(stamp(latest() + 9 * DAY, DAY), "9999-12-31T23:59:59Z");
        assert_eq!(stamp(UNIX_EPOCH - 9 * DAY, DAY), "1970-01-01T00:00:00Z");
    }

    #[test]
    fn what_cannot_be_meant_is_ignored() {
        for text in
            ["", "soon", "1700000000", "9999-12-31T23:59:59Z", "2023-11-28T22:13:21Z", "2023-11-14T22:13:20+01:00"]
        {
            assert!(said(text).is_err(), "{text}");
        }
        assert!(said("2023-11-28T22:13:20Z").is_ok(), "14 days");
        assert!(said("1970-01-01T00:00:00Z").is_ok(), "long ago");
        assert!(due(&AttributeValue::Binary(vec![0xff]), at(0)).is_err());
    }

    #[test]
    fn a_message_that_is_not_due_is_hidden_for_a_turn_at_most() {
        let now = Instant::now() + DAY;
        let of = |ahead: Duration| Wait::of(at(0) + ahead, at(0), (at(0), now)).not_before;
        assert_eq!(of(5 * SECOND), Some(now + 6 * SECOND), "it is due when it comes again");
        assert_eq!(of(3 * DAY), Some(now + TURN));
        assert_eq!(of(Duration::ZERO), Some(now));
        let past = Wait::of(at(0), at(0), (at(60), now));
        assert_eq!(past.not_before, Some(now - 60 * SECOND));
    }

    #[test]
    fn the_receives_that_waited_are_no_attempts() {
        let wait = |due: SystemTime| Wait::of(due, at(0), (due + SECOND, Instant::now()));
        let three = wait(at(0) + 2 * TURN + HOUR);
        assert_eq!([1, 3, 4, 5, 9].map(|receives| three.attempt(receives)), [1, 1, 1, 2, 6]);
        // The first receive is after the start time, because no consumer ran before.
        let none = wait(at(0) - SECOND);
        assert_eq!((none.turns, none.attempt(1), none.attempt(3)), (0, 1, 3));
        assert_eq!(wait(at(0)).turns, 1, "the service's time is known to the second");
    }
}
