//! The state of the fan-out, for health checks and metrics.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// A part of the fan-out that can fail by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Notifications of PostgreSQL.
    Notifications,
    /// The broker.
    Broker,
}

/// The state of the fan-out. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct FanoutState(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// The fault of notifications, and that of the broker.
    faults: Mutex<[Option<String>; 2]>,
    published: AtomicU64,
    searched: AtomicU64,
    notified: AtomicU64,
    outbox: AtomicU64,
}

/// Counts of this instance since it was started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FanoutCounts {
    /// The faults. Empty: all parts work.
    pub faults: Vec<String>,
    /// Ids that the broker confirmed.
    pub published: u64,
    /// Ids that were written again because their messages might be lost.
    pub searched: u64,
    /// Notifications that were sent.
    pub notified: u64,
    /// Entries of the outbox when this instance last looked.
    pub outbox: u64,
}

impl FanoutState {
    /// Notes that a part does not work. Logs it unless it was noted before.
    pub(super) fn failed(&self, part: Part, reason: String) {
        let fault = &mut self.0.faults.lock().unwrap_or_else(PoisonError::into_inner)[part as usize];
        if fault.is_none() {
            tracing::warn!(?part, reason, "the fan-out of jobs is degraded; workers find items by polls meanwhile");
        }
        *fault = Some(reason);
    }

    /// Notes that a part works. Logs it if it did not before.
    pub(super) fn works(&self, part: Part) {
        let fault = self.0.faults.lock().unwrap_or_else(PoisonError::into_inner)[part as usize].take();
        if fault.is_some() {
            tracing::info!(?part, "the fan-out of jobs works again");
        }
    }

    pub(super) fn add_published(&self, count: usize) {
        self.0.published.fetch_add(u64::try_from(count).unwrap_or_default(), Relaxed);
    }

    pub(super) fn add_searched(&self, count: u64) {
        self.0.searched.fetch_add(count, Relaxed);
    }

    pub(super) fn add_notified(&self) {
        self.0.notified.fetch_add(1, Relaxed);
    }

    pub(super) fn set_outbox(&self, entries: u64) {
        self.0.outbox.store(entries, Relaxed);
    }

    /// Returns the counts.
    pub fn counts(&self) -> FanoutCounts {
        let faults = self.0.faults.lock().unwrap_or_else(PoisonError::into_inner).clone();
        FanoutCounts {
            faults: faults.into_iter().flatten().collect(),
            published: self.0.published.load(Relaxed),
            searched: self.0.searched.load(Relaxed),
            notified: self.0.notified.load(Relaxed),
            outbox: self.0.outbox.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_fail_and_recover_by_themselves() {
        let state = FanoutState::default();
        state.failed(Part::Broker, "down".to_owned());
        state.failed(Part::Notifications, "deaf".to_owned());
        assert_eq!(state.counts().faults, ["deaf", "down"]);
        state.works(Part::Notifications);
        assert_eq!(state.counts().faults, ["down"]);
        state.works(Part::Broker);
        assert_eq!(state.counts(), FanoutCounts::default());
    }
}
