//! The definition of a schedule.

use std::time::Duration;

use hostler_types::Timestamp;
use hostler_types::digest::{hex, sha256};

use crate::cron::Cron;

/// The treatment of due times at which no host could send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missed {
    /// Only the last one is sent late.
    Last,
    /// None is sent late.
    Skip,
    /// Each one is sent late, the oldest first.
    All,
}

impl Missed {
    /// All words, as written in a configuration.
    pub const WORDS: &'static [&'static str] = &["last", "skip", "all"];

    /// Returns the word of the treatment.
    pub fn word(self) -> &'static str {
        match self {
            Self::Last => "last",
            Self::Skip => "skip",
            Self::All => "all",
        }
    }

    /// Returns the treatment that a word of [`Self::WORDS`] names.
    pub fn of_word(word: &str) -> Option<Self> {
        match word {
            "last" => Some(Self::Last),
            "skip" => Some(Self::Skip),
            "all" => Some(Self::All),
            _ => None,
        }
    }
}

/// The definition of a schedule: when messages are due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// Name of the schedule.
    pub name: String,
    /// Due times.
    pub cron: Cron,
    /// Maximum time by which a message is sent after its due time. The time is the same on all hosts, and another one for each due
    /// time. A message is never sent after the next due time because of it.
    pub jitter: Duration,
    /// Treatment of due times at which no host could send.
    pub missed: Missed,
    /// Maximum time after which a missed message is still sent.
    pub catch_up: Duration,
    /// Digest of all that the schedule's messages depend on.
    pub definition: String,
}

impl Schedule {
    /// Returns a digest of the texts, in their order. Other texts, or the same texts in other parts, have another digest.
    pub fn digest<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
        let mut bytes = Vec::new();
        for part in parts {
            bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
            bytes.extend_from_slice(part.as_bytes());
        }
        hex(&sha256(&bytes)[..16])
    }

    /// Returns the time at which the message of a due time is sent, if no host is late.
    pub fn send_time(&self, due: Timestamp) -> Timestamp {
        if self.jitter.is_zero() {
            return due;
        }
        let mut bytes = self.name.clone().into_bytes();
        bytes.extend_from_slice(&due.micros().to_le_bytes());
        let mut seed = [0; 8];
        seed.copy_from_slice(&sha256(&bytes)[..8]);
        let longest = u64::try_from(self.jitter.as_micros()).unwrap_or(u64::MAX).max(1);
        let delay = Duration::from_micros(u64::from_le_bytes(seed) % longest);
        let sent = due.plus(delay);
        // One microsecond before the next due time at the latest, so that messages stay in order.
        self.cron.after(due).map_or(sent, |next| sent.min(next.minus(Duration::from_micros(1))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_digest_do_not_run_together() {
        assert_ne!(Schedule::digest(["ab", "c"]), Schedule::digest(["a", "bc"]));
        assert_ne!(Schedule::digest(["a"]), Schedule::digest(["a", ""]));
        assert_eq!(Schedule::digest(["a", "b"]), Schedule::digest(["a", "b"]));
    }

    #[test]
    fn jitter_spreads_and_keeps_the_order() {
        let schedule = |name: &str, jitter| Schedule {
            name: name.to_owned(),
            cron: Cron::parse("* * * * *", "UTC").unwrap(),
            jitter: Duration::from_secs(jitter),
            missed: Missed::Last,
            catch_up: Duration::from_secs(3600),
            definition: String::new(),
        };
        let dues: Vec<_> = (1..200).map(|minute| Timestamp::from_micros(minute * 60_000_000)).collect();
        let delays = |schedule: &Schedule| -> Vec<Duration> {
            dues.iter().map(|due| schedule.send_time(*due).since(*due)).collect()
        };
        let one = delays(&schedule("one", 30));
        assert_eq!(one, delays(&schedule("one", 30)), "all hosts agree");
        assert_ne!(one, delays(&schedule("two", 30)));
        assert!(one.iter().all(|delay| *delay < Duration::from_secs(30)));
        assert!(
            one.iter().any(|delay| *delay > Duration::from_secs(20))
                && one.iter().any(|delay| *delay < Duration::from_secs(10))
        );
        let long = delays(&schedule("one", 7200));
        assert!(long.iter().all(|delay| *delay < Duration::from_secs(60)), "never beyond the next due time");
        assert!(delays(&schedule("one", 0)).iter().all(Duration::is_zero));
    }
}
