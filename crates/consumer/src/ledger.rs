//! The lease ledger: when each lease ends by our own clock, and which are to be extended. No I/O.
//!
//! A deadline is counted on the monotonic clock from before the call that set it, less a margin in which a guest can be
//! stopped, and moves only when the queue has said so for that very entry. So a lease ends here before it ends at the
//! queue.

use std::collections::BTreeSet;

use hashbrown::HashMap;
use tokio::time::{Duration, Instant};

use hostler_queue::{LeaseError, LeaseHandle};

/// After a failed heartbeat the next comes after this fraction of the lease.
const RETRY_FRACTION: u32 = 10;

/// A lease counts as lost this fraction of it before it ends, within [`MIN_MARGIN`] and [`MAX_MARGIN`]: its guest must be gone
/// when another receiver can get the message.
const MARGIN_FRACTION: u32 = 20;
/// The least: to stop a guest takes up to 50 ms and an epoch tick of 10 ms.
const MIN_MARGIN: Duration = Duration::from_millis(100);
/// See [`MARGIN_FRACTION`].
const MAX_MARGIN: Duration = Duration::from_secs(1);

/// What the ledger found out about a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change<I> {
    /// Its lease is lost.
    Lost(I),
    /// Its heartbeat, asked to stop while one was under way, has stopped.
    Stopped(I),
}

/// Leases that one call extends, all by the same time.
#[derive(Debug, PartialEq, Eq)]
pub struct Heartbeat<I> {
    /// Whose they are, in the order of `leases`.
    pub ids: Vec<I>,
    /// The leases.
    pub leases: Vec<LeaseHandle>,
    /// How far from now they are to end.
    pub by: Duration,
}

#[derive(Debug)]
struct Entry {
    lease: LeaseHandle,
    received_at: Instant,
    deadline: Instant,
    /// When the next heartbeat is due; `None` while one is under way, and once no more shall come.
    due: Option<Instant>,
    under_way: bool,
    stopping: bool,
}

/// The leases of one consumer. `I` names a delivery.
#[derive(Debug)]
pub struct Ledger<I> {
    lease: Duration,
    max_lease: Duration,
    entries: HashMap<I, Entry>,
    due: BTreeSet<(Instant, I)>,
    deadlines: BTreeSet<(Instant, I)>,
}

impl<I: Copy + Ord + std::hash::Hash> Ledger<I> {
    /// A ledger of leases of `lease` each, which can reach at most `max_lease` from their receive.
    pub fn new(lease: Duration, max_lease: Duration) -> Self {
        Self { lease, max_lease, entries: HashMap::new(), due: BTreeSet::new(), deadlines: BTreeSet::new() }
    }

    /// Enters a delivery whose lease began no earlier than `leased_at`.
    pub fn enter(&mut self, id: I, lease: LeaseHandle, leased_at: Instant) {
        let deadline = self.deadline_of(leased_at, self.lease);
        let due = leased_at + self.lease / 3;
        let entry =
            Entry { lease, received_at: leased_at, deadline, due: Some(due), under_way: false, stopping: false };
        self.entries.insert(id, entry);
        self.due.insert((due, id));
        self.deadlines.insert((deadline, id));
    }

    /// The heartbeats that are due at `now`, at most `batch` leases each. Each is under way until [`Self::answered`].
    pub fn heartbeats(&mut self, now: Instant, batch: usize) -> Vec<Heartbeat<I>> {
        let mut groups: Vec<Heartbeat<I>> = Vec::new();
        let margin = self.margin();
        while let Some(&(at, id)) = self.due.first() {
            if at > now {
                break;
            }
            self.due.pop_first();
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            entry.due = None;
            // The queue refuses to extend beyond its limit rather than clamping, so the clamp is ours.
            let left = (entry.received_at + self.max_lease).saturating_duration_since(now);
            let by = self.lease.min(Duration::from_secs(left.as_secs()));
            if now + by <= entry.deadline + margin {
                continue;
            }
            entry.under_way = true;
            match groups.iter_mut().find(|group| group.by == by && group.ids.len() < batch) {
                Some(group) => {
                    group.ids.push(id);
                    group.leases.push(entry.lease.clone());
                }
                None => groups.push(Heartbeat { ids: vec![id], leases: vec![entry.lease.clone()], by }),
            }
        }
        groups
    }

    /// Takes the queue's answer to a heartbeat that was sent at `sent_at`, entry by entry.
    pub fn answered(
        &mut self,
        ids: &[I],
        by: Duration,
        results: &[Result<(), LeaseError>],
        sent_at: Instant,
        now: Instant,
    ) -> Vec<Change<I>> {
        let mut changes = Vec::new();
        let deadline = self.deadline_of(sent_at, by);
        for (index, id) in ids.iter().enumerate() {
            let Some(entry) = self.entries.get_mut(id) else { continue };
            entry.under_way = false;
            match results.get(index) {
                Some(Ok(())) => {
                    self.deadlines.remove(&(entry.deadline, *id));
                    entry.deadline = deadline;
                    self.deadlines.insert((entry.deadline, *id));
                    entry.due = Some(sent_at + self.lease / 3);
                }
                Some(Err(LeaseError::Lost(_))) => {
                    self.remove(*id);
                    changes.push(Change::Lost(*id));
                    continue;
                }
                Some(Err(LeaseError::Retry(_) | LeaseError::Refused(_))) | None => {
                    entry.due = Some(now + self.lease / RETRY_FRACTION)
                }
            }
            match (entry.stopping, entry.due) {
                (true, _) => {
                    entry.due = None;
                    changes.push(Change::Stopped(*id));
                }
                (false, Some(due)) => {
                    self.due.insert((due, *id));
                }
                (false, None) => {}
            }
        }
        changes
    }

    /// No heartbeat shall start any more; whether none is under way. If one is, [`Change::Stopped`] or [`Change::Lost`]
    /// follows. The deadline is still watched.
    pub fn stop(&mut self, id: I) -> bool {
        let Some(entry) = self.entries.get_mut(&id) else { return true };
        entry.stopping = true;
        if let Some(due) = entry.due.take() {
            self.due.remove(&(due, id));
        }
        !entry.under_way
    }

    /// The deliveries whose lease has ended at `now`; they are out of the ledger.
    pub fn expire(&mut self, now: Instant) -> Vec<I> {
        let mut lost = Vec::new();
        while let Some(&(deadline, id)) = self.deadlines.first() {
            if deadline > now {
                break;
            }
            self.remove(id);
            lost.push(id);
        }
        lost
    }

    fn margin(&self) -> Duration {
        (self.lease / MARGIN_FRACTION).clamp(MIN_MARGIN, MAX_MARGIN)
    }

    fn deadline_of(&self, from: Instant, lease: Duration) -> Instant {
        from + lease.saturating_sub(self.margin())
    }

    /// When a lease ends, while it is in the ledger.
    pub fn deadline(&self, id: I) -> Option<Instant> {
        self.entries.get(&id).map(|entry| entry.deadline)
    }

    /// Takes a delivery out: it is over.
    pub fn remove(&mut self, id: I) {
        if let Some(entry) = self.entries.remove(&id) {
            self.deadlines.remove(&(entry.deadline, id));
            if let Some(due) = entry.due {
                self.due.remove(&(due, id));
            }
        }
    }

    /// When there is something to do next.
    pub fn next_at(&self) -> Option<Instant> {
        let due = self.due.first().map(|(at, _)| *at);
        let deadline = self.deadlines.first().map(|(at, _)| *at);
        due.into_iter().chain(deadline).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostler_queue::Receipt;

    const LEASE: Duration = Duration::from_secs(30);
    const SECOND: Duration = Duration::from_secs(1);
    /// A twentieth of the lease would be more.
    const MARGIN: Duration = SECOND;

    fn lease(name: &str) -> LeaseHandle {
        Receipt::new(name).lease()
    }

    fn ledger(ids: impl IntoIterator<Item = u64>, at: Instant) -> Ledger<u64> {
        let mut ledger = Ledger::new(LEASE, 12 * 3600 * SECOND);
        for id in ids {
            ledger.enter(id, lease(&id.to_string()), at);
        }
        ledger
    }

    #[test]
    fn heartbeats_come_every_third_of_the_lease_in_batches() {
        let start = Instant::now();
        let mut ledger = ledger(0..25, start);
        assert_eq!(ledger.next_at(), Some(start + LEASE / 3));
        assert_eq!(ledger.heartbeats(start + 9 * SECOND, 10), []);
        let beats = ledger.heartbeats(start + 10 * SECOND, 10);
        assert_eq!(beats.iter().map(|beat| beat.ids.len()).collect::<Vec<_>>(), [10, 10, 5]);
        assert_eq!(ledger.heartbeats(start + 11 * SECOND, 10), [], "they are under way");

        let sent_at = start + 10 * SECOND;
        for beat in &beats {
            let results = vec![Ok(()); beat.ids.len()];
            assert_eq!(ledger.answered(&beat.ids, beat.by, &results, sent_at, sent_at + SECOND), []);
        }
        assert_eq!(ledger.deadline(3), Some(sent_at + LEASE - MARGIN), "counted from before the call");
        assert_eq!(ledger.next_at(), Some(sent_at + LEASE / 3));
    }

    #[test]
    fn a_deadline_moves_only_for_entries_that_succeeded() {
        let start = Instant::now();
        let mut ledger = ledger(0..3, start);
        let at = start + 10 * SECOND;
        ledger.heartbeats(at, 10);
        let results = [Ok(()), Err(LeaseError::Retry("throttled".into())), Err(LeaseError::Lost("gone".into()))];
        assert_eq!(ledger.answered(&[0, 1, 2], LEASE, &results, at, at), [Change::Lost(2)]);
        assert_eq!(ledger.deadline(0), Some(at + LEASE - MARGIN));
        assert_eq!(ledger.deadline(1), Some(start + LEASE - MARGIN));
        assert_eq!(ledger.deadline(2), None);
        let retry = ledger.heartbeats(at + LEASE / 10, 10);
        assert_eq!(retry.iter().map(|beat| beat.ids.clone()).collect::<Vec<_>>(), [[1]]);
    }

    #[test]
    fn an_answer_that_is_too_short_counts_as_not_extended() {
        let start = Instant::now();
        let mut ledger = ledger(0..2, start);
        let at = start + 10 * SECOND;
        ledger.heartbeats(at, 10);
        assert_eq!(ledger.answered(&[0, 1], LEASE, &[Ok(())], at, at), []);
        assert_eq!(ledger.deadline(1), Some(start + LEASE - MARGIN));
        assert!(ledger.expire(start + LEASE - MARGIN - SECOND / 100).is_empty());
        assert_eq!(ledger.expire(start + LEASE - MARGIN), [1]);
        assert!(ledger.expire(start + LEASE).is_empty());
    }

    #[test]
    fn a_stop_waits_for_the_heartbeat_under_way_and_none_follows() {
        let start = Instant::now();
        let mut ledger = ledger(0..2, start);
        assert!(ledger.stop(0), "none is under way");
        let at = start + 10 * SECOND;
        assert_eq!(ledger.heartbeats(at, 10).iter().map(|beat| beat.ids.clone()).collect::<Vec<_>>(), [[1]]);
        assert!(!ledger.stop(1));
        assert_eq!(ledger.answered(&[1], LEASE, &[Ok(())], at, at), [Change::Stopped(1)]);
        assert_eq!(ledger.heartbeats(at + LEASE, 10), []);
        assert_eq!(ledger.expire(start + LEASE), [0], "the deadline is still watched");
    }

    #[test]
    fn the_shortest_lease_leaves_time_to_stop_a_guest_in() {
        let start = Instant::now();
        let mut ledger: Ledger<u32> = Ledger::new(SECOND, LEASE);
        ledger.enter(1, lease("1"), start);
        assert!(ledger.expire(start + Duration::from_millis(899)).is_empty());
        assert_eq!(ledger.expire(start + Duration::from_millis(900)), [1], "it takes 60 ms to stop a guest");
    }

    #[test]
    fn nothing_is_asked_for_beyond_the_queue_s_limit() {
        let start = Instant::now();
        let mut ledger = Ledger::new(LEASE, 45 * SECOND);
        ledger.enter(1, lease("1"), start);
        let at = start + 20 * SECOND;
        let beats = ledger.heartbeats(at, 10);
        assert_eq!(beats.first().map(|beat| beat.by), Some(25 * SECOND));
        ledger.answered(&[1], 25 * SECOND, &[Ok(())], at, at);
        assert_eq!(ledger.heartbeats(at + 10 * SECOND, 10), [], "there is nothing to gain");
        assert_eq!(ledger.expire(start + 45 * SECOND), [1]);
    }
}
