//! Tells of a collector that cannot be reached when that begins and when it is over, and not with each batch.

use std::sync::{Mutex, PoisonError};

/// How it stands with the collector.
#[derive(Debug, Default)]
pub(super) struct Outage(Mutex<Option<u64>>);

/// What is worth a line in the log.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    /// It has just begun.
    Began,
    /// It is over; so many spans were lost.
    Over(u64),
}

impl Outage {
    /// Takes what became of so many spans.
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
