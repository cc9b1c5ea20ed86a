//! Finds the changes from one poll to the next. No I/O.
//!
//! An alarm is reported when it begins, when the message count has doubled since the last report, when the reminder
//! interval has passed, and when the alarm is resolved. An alarm is resolved once the count is more than a fifth below
//! the threshold. Therefore, a queue that varies around its threshold is not reported at every poll. If a queue cannot
//! be read, its alarm does not change.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Level;
use hostler_queue::Unread;

/// Factor by which the message count must have grown since the last report for an alarm to count as worse.
const WORSE: u64 = 2;

/// Number of consecutive failed polls after which the failure is reported. A single poll may fail by chance.
const BLIND: u32 = 2;

/// Result of one poll.
#[derive(Debug, Clone, Copy)]
pub enum Look<'a> {
    /// Levels of the queues, and the queues that could not be read.
    Seen(&'a [Level], &'a [Unread]),
    /// The poll failed, for this reason.
    Failed(&'a str),
}

/// Kind of change in an alarm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// The alarm is new.
    New,
    /// The message count has at least doubled since the last report.
    Worse,
    /// The alarm continues, and the reminder interval has passed since the last report.
    Reminder,
    /// The alarm is resolved.
    Resolved,
}

/// A change to report in the alarm of one queue.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct News {
    /// Kind of change.
    pub change: Change,
    /// Current level of the queue.
    #[serde(flatten)]
    pub level: Level,
}

/// A change to report about the polls themselves: they fail, or succeed again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PollHealth {
    /// Polls fail, for this reason, so new alarms are not detected.
    Lost(String),
    /// Polls succeed again.
    Regained,
}

/// All changes to report after one poll.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AlarmDelta {
    /// Changes in the alarms of queues.
    pub news: Vec<News>,
    /// Queues that hostler has no permission to read, except those already denied in the previous poll.
    pub denied: Vec<Unread>,
    /// Set if polls have begun to fail, still fail after the reminder interval, or succeed again.
    pub sight: Option<PollHealth>,
}

impl AlarmDelta {
    /// Returns `true` if there is nothing to report.
    pub fn is_empty(&self) -> bool {
        self.news.is_empty() && self.denied.is_empty() && self.sight.is_none()
    }
}

/// The alarms as last reported, from which changes are derived.
#[derive(Debug, Clone)]
pub struct Watch {
    remind: Duration,
    standing: BTreeMap<String, Standing>,
    denied: BTreeSet<String>,
    failures: u32,
    /// Time of the last report of failing polls. `None`: no failure has been reported since the last successful poll.
    blind_since: Option<Duration>,
}

/// An alarm that was reported and is not yet resolved.
#[derive(Debug, Clone)]
struct Standing {
    told: Level,
    at: Duration,
}

impl Watch {
    /// Creates a watch without alarms. `remind`: interval between reports of a continuing alarm.
    pub fn new(remind: Duration) -> Self {
        Self { remind, standing: BTreeMap::new(), denied: BTreeSet::new(), failures: 0, blind_since: None }
    }

    /// Returns the changes after a poll, and the watch to use once they have been delivered. If the delivery fails, the
    /// caller keeps the current watch, so that the next poll returns the changes again. `now`: current time by any
    /// monotonic clock.
    #[must_use]
    pub fn after(&self, now: Duration, look: &Look<'_>) -> (AlarmDelta, Self) {
        let mut next = self.clone();
        let delta = match look {
            Look::Failed(reason) => next.failed(now, reason),
            Look::Seen(levels, unread) => next.seen(now, levels, unread),
        };
        (delta, next)
    }

    fn failed(&mut self, now: Duration, reason: &str) -> AlarmDelta {
        self.failures = self.failures.saturating_add(1);
        let due = match self.blind_since {
            None => self.failures >= BLIND,
            Some(told) => now.saturating_sub(told) >= self.remind,
        };
        if !due {
            return AlarmDelta::default();
        }
        self.blind_since = Some(now);
        AlarmDelta { sight: Some(PollHealth::Lost(reason.to_owned())), ..AlarmDelta::default() }
    }

    fn seen(&mut self, now: Duration, levels: &[Level], unread: &[Unread]) -> AlarmDelta {
        self.failures = 0;
        let sight = self.blind_since.take().map(|_| PollHealth::Regained);
        let mut news: Vec<News> = Vec::new();
        for level in levels.iter().filter(|level| level.alarms()) {
            let change = match self.standing.get(&level.queue) {
                None => Change::New,
                Some(standing) if level.messages >= standing.told.messages.saturating_mul(WORSE) => Change::Worse,
                Some(standing) if now.saturating_sub(standing.at) >= self.remind => Change::Reminder,
                Some(_) => continue,
            };
            self.standing.insert(level.queue.clone(), Standing { told: level.clone(), at: now });
            news.push(News { change, level: level.clone() });
        }
        news.extend(self.resolved(levels, unread));
        let denied: Vec<_> = unread.iter().filter(|unread| unread.denied).collect();
        let new = denied.iter().filter(|unread| !self.denied.contains(&unread.name)).map(|unread| (*unread).clone());
        let new: Vec<_> = new.collect();
        self.denied = denied.iter().map(|unread| unread.name.clone()).collect();
        AlarmDelta { news, denied: new, sight }
    }

    /// Removes and returns the resolved alarms. If a queue no longer exists, its alarm counts as resolved.
    fn resolved(&mut self, levels: &[Level], unread: &[Unread]) -> Vec<News> {
        let hidden: BTreeSet<_> = unread.iter().map(|unread| unread.name.as_str()).collect();
        let now: BTreeMap<_, _> = levels.iter().map(|level| (level.queue.as_str(), level)).collect();
        let mut over = Vec::new();
        self.standing.retain(|queue, standing| {
            let level = now.get(queue.as_str()).copied();
            if hidden.contains(queue.as_str()) || level.is_some_and(|level| !is_over(level)) {
                return true;
            }
            let level = level.cloned().unwrap_or_else(|| Level { messages: 0, ..standing.told.clone() });
            over.push(News { change: Change::Resolved, level });
            false
        });
        over
    }
}

/// Returns `true` if the message count is more than a fifth below the threshold. For a threshold below 5, returns
/// `true` if the count is below the threshold.
fn is_over(level: &Level) -> bool {
    level.messages < level.threshold - level.threshold / 5
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn level(queue: &str, messages: u64) -> Level {
        let queue = queue.to_owned();
        Level { queue, messages, threshold: 10, dead_letter: false, critical: false, consumer: None, owner: None }
    }

    fn unread(name: &str, denied: bool) -> Unread {
        Unread { name: name.to_owned(), reason: "no".to_owned(), denied }
    }

    /// A watch whose changes are all delivered.
    struct Told(Watch);

    impl Told {
        fn new() -> Self {
            Self(Watch::new(12 * HOUR))
        }

        fn look(&mut self, hour: u32, look: Look<'_>) -> AlarmDelta {
            let (delta, next) = self.0.after(hour * HOUR, &look);
            self.0 = next;
            delta
        }

        /// Returns the changes after a poll with these levels.
        fn seen(&mut self, hour: u32, levels: &[Level]) -> Vec<(Change, String, u64)> {
            let delta = self.look(hour, Look::Seen(levels, &[]));
            assert!(delta.denied.is_empty() && delta.sight.is_none());
            delta.news.into_iter().map(|news| (news.change, news.level.queue, news.level.messages)).collect()
        }
    }

    fn news(change: Change, queue: &str, messages: u64) -> Vec<(Change, String, u64)> {
        vec![(change, queue.to_owned(), messages)]
    }

    #[test]
    fn an_alarm_is_told_once_and_again_when_it_is_worse_and_when_it_is_over() {
        let mut watch = Told::new();
        assert_eq!(watch.seen(0, &[level("a", 9)]), []);
        assert_eq!(watch.seen(1, &[level("a", 10)]), news(Change::New, "a", 10));
        for messages in [10, 12, 19, 11] {
            assert_eq!(watch.seen(2, &[level("a", messages)]), []);
        }
        assert_eq!(watch.seen(3, &[level("a", 20)]), news(Change::Worse, "a", 20));
        assert_eq!(watch.seen(4, &[level("a", 39)]), []);
        assert_eq!(watch.seen(5, &[level("a", 7)]), news(Change::Resolved, "a", 7));
        assert_eq!(watch.seen(6, &[level("a", 0)]), []);
        assert_eq!(watch.seen(7, &[level("a", 11)]), news(Change::New, "a", 11));
    }

    #[test]
    fn a_queue_about_its_threshold_is_told_of_once() {
        let mut watch = Told::new();
        assert_eq!(watch.seen(0, &[level("a", 10)]), news(Change::New, "a", 10));
        for messages in [9, 10, 8, 11, 9] {
            assert_eq!(watch.seen(1, &[level("a", messages)]), []);
        }
        assert_eq!(watch.seen(2, &[level("a", 7)]), news(Change::Resolved, "a", 7));
        assert_eq!(watch.seen(3, &[level("a", 9)]), []);
        let few = |messages| Level { threshold: 1, ..level("b", messages) };
        assert_eq!(watch.seen(4, &[few(1)]), news(Change::New, "b", 1));
        assert_eq!(watch.seen(5, &[few(0)]), news(Change::Resolved, "b", 0));
    }

    #[test]
    fn what_still_holds_is_told_again_after_the_time_of_a_reminder() {
        let mut watch = Told::new();
        assert_eq!(watch.seen(0, &[level("a", 50)]), news(Change::New, "a", 50));
        assert_eq!(watch.seen(6, &[level("a", 100)]), news(Change::Worse, "a", 100));
        assert_eq!(watch.seen(17, &[level("a", 60)]), [], "12 hours count from when it was last told");
        assert_eq!(watch.seen(18, &[level("a", 60)]), news(Change::Reminder, "a", 60));
        assert_eq!(watch.seen(29, &[level("a", 60)]), []);
        assert_eq!(watch.seen(30, &[level("a", 60)]), news(Change::Reminder, "a", 60));
    }

    #[test]
    fn a_queue_that_is_gone_is_over_and_one_that_cannot_be_seen_is_not() {
        let mut watch = Told::new();
        assert_eq!(watch.seen(0, &[level("a", 50)]), news(Change::New, "a", 50));
        for denied in [false, true] {
            let hidden = watch.look(1, Look::Seen(&[], &[unread("a", denied)]));
            assert_eq!(hidden.news, []);
        }
        assert_eq!(watch.seen(2, &[level("a", 50)]), [], "it was never over");
        assert_eq!(watch.seen(3, &[]), news(Change::Resolved, "a", 0));
    }

    #[test]
    fn a_denial_is_told_once_and_a_passing_fault_is_not() {
        let mut watch = Told::new();
        let both = [unread("a", true), unread("b", false)];
        assert_eq!(watch.look(0, Look::Seen(&[], &both)).denied, [unread("a", true)]);
        assert!(watch.look(1, Look::Seen(&[], &both)).is_empty());
        assert!(watch.look(2, Look::Seen(&[], &[])).is_empty());
        assert_eq!(watch.look(3, Look::Seen(&[], &both)).denied.len(), 1, "it was allowed in between");
    }

    #[test]
    fn that_nothing_can_be_seen_is_told_from_the_second_time_on_and_reminded() {
        let mut watch = Told::new();
        assert_eq!(watch.seen(0, &[level("a", 50)]), news(Change::New, "a", 50));
        assert!(watch.look(1, Look::Failed("no network")).is_empty());
        assert_eq!(watch.seen(2, &[level("a", 50)]), [], "one failure is none");
        assert!(watch.look(3, Look::Failed("no network")).is_empty());
        let lost = Some(PollHealth::Lost("no network".into()));
        assert_eq!(watch.look(4, Look::Failed("no network")).sight, lost);
        assert!(watch.look(15, Look::Failed("no network")).is_empty());
        assert_eq!(watch.look(16, Look::Failed("no network")).sight, lost);
        let back = watch.look(17, Look::Seen(&[level("a", 50)], &[]));
        assert_eq!((back.sight, back.news.len()), (Some(PollHealth::Regained), 1), "and a reminder is due");
    }

    #[test]
    fn what_could_not_be_told_is_told_after_the_next_look() {
        let watch = Watch::new(12 * HOUR);
        let levels = [level("a", 50)];
        let (delta, told) = watch.after(Duration::ZERO, &Look::Seen(&levels, &[]));
        assert_eq!(delta.news.len(), 1);
        let (again, _) = watch.after(HOUR, &Look::Seen(&levels, &[]));
        assert_eq!(again, delta, "it was not told");
        assert!(told.after(HOUR, &Look::Seen(&levels, &[])).0.is_empty());
    }
}
