//! Decides when to log that a collector is unreachable: at the beginning and at the end of an outage, and not for each
//! batch.

use std::sync::{Mutex, PoisonError};

/// Number of spans lost in the current outage. `None`: the collector is reachable.
#[derive(Debug, Default)]
pub(super) struct Outage(Mutex<Option<u64>>);

/// An event to log.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    /// The outage began.
    Began,
    /// The outage has ended. Contains the number of lost spans.
    Over(u64),
}

impl Outage {
    /// Records an attempt to send `spans` spans. `sent` is set if it succeeded. Returns the event to log. `None`:
    /// nothing is logged.
    pub(super) fn note(&self, spans: usize, sent: bool) -> Option<News> {
        let mut lost = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match (sent, *lost) {
            (true, None) => None,
            (true, Some(count)) => {
                *lost = None;
                Some(News::Over(count))
            }
            (false, before) => {
                *lost = Some(before.unwrap_or(0) + spans as u64);
                before.is_none().then_some(News::Began)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_news_at_its_begin_and_at_its_end() {
        let outage = Outage::default();
        let news: Vec<_> =
            [true, false, false, true, true, false].map(|sent| outage.note(3, sent)).into_iter().flatten().collect();
        assert_eq!(news, [News::Began, News::Over(6), News::Began]);
    }
}
