//! The requests that wait for a reply, and the times at which they have waited long enough.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use crate::answer::Reply;
use crate::scheduler::{Answer, Millis, millis};
use hostler_queue_embedded::Place;

/// Number of a request, which the last token of its reply subject has.
pub type Token = u64;

#[derive(Debug)]
struct Open {
    place: Place,
    deadline: Millis,
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
        self.deadlines.first().map(|(at, _)| at.saturating_sub(millis(self.timeout)))
    }

    /// Adds a request that is sent now.
    pub fn start(&mut self, place: Place, now: Millis) -> Token {
        self.last += 1;
        let deadline = now.saturating_add(millis(self.timeout));
        self.open.insert(self.last, Open { place, deadline });
        self.deadlines.insert((deadline, self.last));
        self.last
    }

    /// Takes a reply. Returns the delivery that it ends. `None`: the delivery goes on, or has ended already.
    pub fn reply(&mut self, token: Token, reply: Reply, now: Millis) -> Option<(Place, Answer)> {
        match reply {
            Reply::End(answer) => self.end(token).map(|place| (place, answer)),
            Reply::InProgress => {
                let open = self.open.get_mut(&token)?;
                self.deadlines.remove(&(open.deadline, token));
                open.deadline = now.saturating_add(millis(self.timeout));
                self.deadlines.insert((open.deadline, token));
                None
            }
        }
    }

    /// Ends a request.
    pub fn end(&mut self, token: Token) -> Option<Place> {
        let open = self.open.remove(&token)?;
        self.deadlines.remove(&(open.deadline, token));
        Some(open.place)
    }

    /// Ends the requests that have waited long enough.
    pub fn expired(&mut self, now: Millis) -> Vec<(Place, Answer)> {
        let mut expired = Vec::new();
        while let Some(&(at, token)) = self.deadlines.first()
            && at <= now
        {
            let seconds = self.timeout.as_secs_f64();
            let answer = Answer::NoAck(format!("its receiver did not answer within {seconds} s"));
            expired.extend(self.end(token).map(|place| (place, answer)));
        }
        expired
    }

    /// Ends all requests, because the connection that would bring their replies is lost.
    pub fn lost(&mut self) -> Vec<Place> {
        self.deadlines.clear();
        self.open.drain().map(|(_, open)| open.place).collect()
    }

    /// Returns the time at which the next request has waited long enough.
    pub fn wake_at(&self) -> Option<Millis> {
        self.deadlines.first().map(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn place(seq: i64) -> Place {
        Place { queue: 0, enqueued_at: 1, seq }
    }

    #[test]
    fn a_request_ends_by_its_reply_or_after_the_timeout_and_only_once() {
        let mut requests = Requests::new(Duration::from_secs(30));
        let [first, second] = [1, 2].map(|seq| requests.start(place(seq), seq * 1_000));
        assert_eq!((requests.silent_since(), requests.wake_at()), (Some(1_000), Some(31_000)));
        assert_eq!(requests.reply(second, Reply::End(Answer::Ack), 3_000), Some((place(2), Answer::Ack)));
        assert_eq!(requests.reply(second, Reply::End(Answer::Ack), 3_000), None);
        assert!(requests.expired(30_999).is_empty());
        let expired = requests.expired(31_000);
        let reason = "its receiver did not answer within 30 s".to_owned();
        assert_eq!(expired, [(place(1), Answer::NoAck(reason))]);
        assert_eq!(requests.reply(first, Reply::End(Answer::Ack), 31_001), None, "too late");
        assert!(requests.is_empty() && requests.wake_at().is_none() && requests.silent_since().is_none());
    }

    #[test]
    fn work_in_progress_extends_the_wait() {
        let mut requests = Requests::new(Duration::from_secs(30));
        let token = requests.start(place(1), 0);
        assert_eq!(requests.reply(token, Reply::InProgress, 29_000), None);
        assert!(requests.expired(58_999).is_empty());
        assert_eq!(requests.expired(59_000).len(), 1);
        assert_eq!(requests.reply(token, Reply::InProgress, 60_000), None, "it has ended");
        assert!(requests.wake_at().is_none());
    }

    #[test]
    fn a_lost_connection_ends_all() {
        let mut requests = Requests::new(Duration::from_secs(30));
        let tokens = [1, 2].map(|seq| requests.start(place(seq), 0));
        let mut lost = requests.lost();
        lost.sort();
        assert_eq!(lost, [place(1), place(2)]);
        assert_eq!(requests.reply(tokens[0], Reply::End(Answer::Ack), 1), None);
        assert!(requests.is_empty() && requests.expired(Millis::MAX).is_empty());
    }
}
