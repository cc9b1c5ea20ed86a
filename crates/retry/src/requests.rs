//! The requests that wait for a reply, and the times at which they have waited long enough.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::answer::Reply;
use crate::scheduler::{Answer, Millis, millis};
use hostler_queue_embedded::Place;

/// Number of a request, which the last token of its reply subject has.
pub type Token = u64;

/// Longest time for which a receiver may work on a message, however often it says so.
const LONGEST_WORK: Duration = Duration::from_secs(12 * 3600);

#[derive(Debug)]
struct Open {
    place: Place,
    subject: Arc<str>,
    started: Millis,
    /// Time of the start, or of the receiver's last word.
    since: Millis,
    deadline: Millis,
    /// Set once a receiver has said something.
    is_received: bool,
    /// Set if the request waits anew since then, because the connection was stuck.
    is_renewed: bool,
}

/// A request that has ended.
#[derive(Debug, PartialEq, Eq)]
pub struct Ended {
    /// The message.
    pub place: Place,
    /// Subject of the request.
    pub subject: Arc<str>,
}

/// Requests that wait for a reply.
#[derive(Debug)]
pub struct Requests {
    timeout: Duration,
    last: Token,
    open: HashMap<Token, Open>,
    deadlines: BTreeSet<(Millis, Token)>,
}

impl Requests {
    /// Creates a table. `timeout`: longest wait for a reply, and for each further one while the receiver is working.
    pub fn new(timeout: Duration) -> Self {
        Self { timeout, last: 0, open: HashMap::new(), deadlines: BTreeSet::new() }
    }

    /// Returns the number of requests that wait.
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Returns `true` if no request waits.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Returns the time since which a request has been without any reply: the oldest such time.
    pub fn silent_since(&self) -> Option<Millis> {
        self.deadlines.first().and_then(|(_, token)| self.open.get(token)).map(|open| open.since)
    }

    /// Adds a request that is sent now.
    pub fn start(&mut self, place: Place, subject: Arc<str>, now: Millis) -> Token {
        self.last += 1;
        let deadline = now.saturating_add(millis(self.timeout));
        let (started, since, is_received, is_renewed) = (now, now, false, false);
        self.open.insert(self.last, Open { place, subject, started, since, deadline, is_received, is_renewed });
        self.deadlines.insert((deadline, self.last));
        self.last
    }

    /// Takes a reply. Returns the delivery that it ends. `None`: the delivery goes on, or has ended already.
    pub fn reply(&mut self, token: Token, reply: Reply, now: Millis) -> Option<(Ended, Answer)> {
        match reply {
            Reply::End(answer) => self.end(token).map(|ended| (ended, answer)),
            Reply::InProgress => {
                let open = self.open.get_mut(&token)?;
                self.deadlines.remove(&(open.deadline, token));
                let longest = open.started.saturating_add(millis(LONGEST_WORK));
                (open.since, open.is_received, open.is_renewed) = (now, true, false);
                open.deadline = now.saturating_add(millis(self.timeout)).min(longest);
                self.deadlines.insert((open.deadline, token));
                None
            }
        }
    }

    /// Returns the subject of a request that waits.
    pub fn subject(&self, token: Token) -> Option<&Arc<str>> {
        self.open.get(&token).map(|open| &open.subject)
    }

    /// Ends a request.
    pub fn end(&mut self, token: Token) -> Option<Ended> {
        let Open { place, subject, deadline, .. } = self.open.remove(&token)?;
        self.deadlines.remove(&(deadline, token));
        Some(Ended { place, subject })
    }

    /// Ends the requests that have waited long enough. `heard_at`: the last time at which the connection is known to have
    /// worked. A request that was sent after it may have been lost on the way, so it goes on until the connection has shown
    /// that it works, or is lost.
    pub fn expired(&mut self, now: Millis, heard_at: Millis) -> Vec<(Ended, Answer)> {
        let due = self.deadlines.iter().take_while(|(at, _)| *at <= now).map(|(_, token)| *token);
        let is_proven = |token: &Token| self.open.get(token).is_some_and(|open| open.since < heard_at);
        let due: Vec<_> = due.filter(is_proven).collect();
        let mut expired = Vec::with_capacity(due.len());
        for token in due {
            let worked = self.open.get(&token).map_or(0, |open| now.saturating_sub(open.started));
            let answer = Answer::NoAck(if worked >= millis(LONGEST_WORK) {
                format!("its receiver did not finish within {} h", LONGEST_WORK.as_secs() / 3600)
            } else {
                format!("its receiver did not answer within {} s", self.timeout.as_secs_f64())
            });
            expired.extend(self.end(token).map(|ended| (ended, answer)));
        }
        expired
    }

    /// Lets the requests that have waited long enough begin to wait anew, because the connection was stuck. Each does so once
    /// until its receiver's next word: over a connection that is always slow, it would otherwise wait for ever.
    pub fn renew(&mut self, now: Millis) {
        let due: Vec<_> = self.deadlines.iter().copied().take_while(|(at, _)| *at <= now).collect();
        for (at, token) in due {
            let Some(open) = self.open.get_mut(&token).filter(|open| !open.is_renewed) else { continue };
            open.is_renewed = true;
            (open.since, open.deadline) = (now, now.saturating_add(millis(self.timeout).max(1)));
            self.deadlines.remove(&(at, token));
            self.deadlines.insert((open.deadline, token));
        }
    }

    /// Ends the requests on a subject that the server refuses. Those that a receiver has heard of go on.
    pub fn denied(&mut self, subject: &str) -> Vec<Ended> {
        let is_denied = |open: &Open| &*open.subject == subject && !open.is_received;
        let mut denied: Vec<_> =
            self.open.iter().filter(|(_, open)| is_denied(open)).map(|(token, _)| *token).collect();
        denied.sort_unstable();
        denied.into_iter().filter_map(|token| self.end(token)).collect()
    }

    /// Returns `true` if a request has waited long enough. After [`Self::expired`], it is one that was sent after the
    /// connection was last known to work.
    pub fn has_overdue(&self, now: Millis) -> bool {
        self.deadlines.first().is_some_and(|(at, _)| *at <= now)
    }

    /// Ends all requests, because the connection that would bring their replies is lost.
    pub fn lost(&mut self) -> Vec<Ended> {
        self.deadlines.clear();
        self.open.drain().map(|(_, Open { place, subject, .. })| Ended { place, subject }).collect()
    }

    /// Returns the time after `now` at which the next request has waited long enough.
    pub fn wake_at(&self, now: Millis) -> Option<Millis> {
        self.deadlines.range((now.saturating_add(1), 0)..).next().map(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn place(seq: i64) -> Place {
        Place { queue: 0, enqueued_at: 1, seq }
    }

    fn start(requests: &mut Requests, seq: i64, now: Millis) -> Token {
        requests.start(place(seq), "a".into(), now)
    }

    fn seq(expired: Vec<(Ended, Answer)>) -> Vec<i64> {
        expired.into_iter().map(|(ended, _)| ended.place.seq).collect()
    }

    #[test]
    fn a_request_ends_by_its_reply_or_after_the_timeout_and_only_once() {
        let mut requests = Requests::new(Duration::from_secs(30));
        let [first, second] = [1, 2].map(|seq| start(&mut requests, seq, seq * 1_000));
        assert_eq!((requests.silent_since(), requests.wake_at(0)), (Some(1_000), Some(31_000)));
        let ended = |seq| Ended { place: place(seq), subject: "a".into() };
        assert_eq!(requests.reply(second, Reply::End(Answer::Ack), 3_000), Some((ended(2), Answer::Ack)));
        assert_eq!(requests.reply(second, Reply::End(Answer::Ack), 3_000), None);
        assert!(requests.expired(30_999, Millis::MAX).is_empty());
        let expired = requests.expired(31_000, Millis::MAX);
        let reason = "its receiver did not answer within 30 s".to_owned();
        assert_eq!(expired, [(ended(1), Answer::NoAck(reason))]);
        assert_eq!(requests.reply(first, Reply::End(Answer::Ack), 31_001), None, "too late");
        assert!(requests.is_empty() && requests.wake_at(0).is_none() && requests.silent_since().is_none());
    }

    #[test]
    fn a_request_expires_only_if_the_connection_has_worked_since() {
        let mut requests = Requests::new(Duration::from_secs(30));
        start(&mut requests, 1, 0);
        start(&mut requests, 2, 10);
        assert!(!requests.has_overdue(29_999));
        assert_eq!(seq(requests.expired(40_000, 5)), [1]);
        assert!(requests.has_overdue(40_000), "the other one needs a proof");
        assert_eq!(requests.wake_at(40_000), None, "no time will bring it");
        assert_eq!(seq(requests.expired(40_000, 11)), [2]);
        assert!(!requests.has_overdue(40_000));
    }

    #[test]
    fn requests_on_a_connection_that_was_stuck_wait_anew() {
        let mut requests = Requests::new(Duration::from_secs(30));
        let tokens = [1, 2].map(|seq| start(&mut requests, seq, seq * 10_000));
        requests.renew(45_000);
        assert!(!requests.has_overdue(49_999));
        assert_eq!(seq(requests.expired(50_000, 50_000)), [2], "only the first one was overdue");
        assert!(requests.expired(74_999, 74_999).is_empty());
        assert_eq!(seq(requests.expired(75_000, 75_000)), [1]);
        assert!(tokens.iter().all(|token| requests.end(*token).is_none()));
    }

    /// A proof takes 600 ms each time, as on a connection over a great distance.
    #[test]
    fn a_request_on_a_slow_connection_waits_anew_once() {
        let mut requests = Requests::new(Duration::from_secs(30));
        let token = start(&mut requests, 1, 0);
        requests.renew(30_600);
        assert!(requests.expired(30_600, 30_000).is_empty());
        assert_eq!(requests.reply(token, Reply::InProgress, 40_000), None);
        requests.renew(70_600);
        assert!(requests.expired(70_600, 70_000).is_empty(), "its receiver said something");
        assert!(requests.has_overdue(100_600));
        requests.renew(101_200);
        assert_eq!(seq(requests.expired(101_200, 100_600)), [1]);
    }

    #[test]
    fn work_in_progress_extends_the_wait_but_not_for_ever() {
        let mut requests = Requests::new(Duration::from_secs(30));
        let token = start(&mut requests, 1, 0);
        assert_eq!(requests.reply(token, Reply::InProgress, 29_000), None);
        assert!(requests.expired(58_999, Millis::MAX).is_empty());
        assert_eq!(requests.expired(59_000, Millis::MAX).len(), 1);
        assert_eq!(requests.reply(token, Reply::InProgress, 60_000), None, "it has ended");
        assert!(requests.wake_at(0).is_none());

        let token = start(&mut requests, 2, 0);
        let longest = millis(LONGEST_WORK);
        for at in (20_000..longest).step_by(20_000) {
            assert!(requests.expired(at, Millis::MAX).is_empty());
            requests.reply(token, Reply::InProgress, at);
        }
        assert_eq!(seq(requests.expired(longest, Millis::MAX)), [2]);
    }

    #[test]
    fn a_refused_subject_ends_its_requests_that_nobody_has_heard_of() {
        let mut requests = Requests::new(Duration::from_secs(30));
        let [heard, ..] = [1, 2, 3].map(|seq| start(&mut requests, seq, 0));
        requests.start(place(4), "b".into(), 0);
        assert_eq!(requests.reply(heard, Reply::InProgress, 1), None);
        let denied: Vec<_> = requests.denied("a").into_iter().map(|ended| ended.place.seq).collect();
        assert_eq!((denied, requests.len()), (vec![2, 3], 2));
        assert_eq!(requests.denied("a"), [], "the server says it for each");
    }

    #[test]
    fn a_lost_connection_ends_all() {
        let mut requests = Requests::new(Duration::from_secs(30));
        let tokens = [1, 2].map(|seq| start(&mut requests, seq, 0));
        let mut lost: Vec<_> = requests.lost().into_iter().map(|ended| ended.place).collect();
        lost.sort();
        assert_eq!(lost, [place(1), place(2)]);
        assert_eq!(requests.reply(tokens[0], Reply::End(Answer::Ack), 1), None);
        assert!(requests.is_empty() && requests.expired(Millis::MAX, Millis::MAX).is_empty());
    }
}
