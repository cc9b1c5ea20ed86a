//! Leases: tracks the end of each lease by the local clock, and selects the leases to extend. No I/O.
//!
//! A deadline is a time on the monotonic clock: the start of the call that set the lease, plus the lease duration, less
//! a margin for stopping a guest. A deadline moves only when the queue confirms the extension of that lease. Therefore,
//! the deadline of a lease passes before the lease ends at the queue.

use std::collections::BTreeSet;

use hashbrown::HashMap;
use tokio::time::{Duration, Instant};

use hostler_queue::{LeaseError, LeaseHandle};

/// A failed heartbeat is retried after the lease duration divided by this number.
const RETRY_FRACTION: u32 = 10;

/// The safety margin is the lease duration divided by this number, limited to the range from [`MIN_MARGIN`] to
/// [`MAX_MARGIN`]. A lease counts as lost when only this margin is left before its end, because the guest must end
/// before another receiver can get the message.
const MARGIN_FRACTION: u32 = 20;
/// Minimum margin: stopping a guest takes up to 50 ms and an epoch tick of 10 ms.
const MIN_MARGIN: Duration = Duration::from_millis(100);
/// Maximum margin: see [`MARGIN_FRACTION`].
const MAX_MARGIN: Duration = Duration::from_secs(1);

/// Change to the lease or the heartbeat of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change<I> {
    /// The lease is lost.
    Lost(I),
    /// The heartbeat that was in progress when a stop was requested has now ended.
    Stopped(I),
}

/// Leases to extend with one call, all to the same duration.
#[derive(Debug, PartialEq, Eq)]
pub struct Heartbeat<I> {
    /// Deliveries to which the leases belong, in the order of `leases`.
    pub ids: Vec<I>,
    /// Leases to extend.
    pub leases: Vec<LeaseHandle>,
    /// New duration of the leases, counted from the time of the call.
    pub by: Duration,
}

#[derive(Debug)]
struct Entry {
    lease: LeaseHandle,
    /// Duration of the lease, and of each extension.
    duration: Duration,
    received_at: Instant,
    deadline: Instant,
    beat: Beat,
}

/// State of the heartbeat of one lease.
#[derive(Debug, Clone, Copy)]
enum Beat {
    /// The next heartbeat is due at this time.
    Due(Instant),
    /// A heartbeat is in progress.
    UnderWay,
    /// The last heartbeat is in progress.
    Last,
    /// No more heartbeats are sent.
    Stopped,
}

/// Leases of one consumer. `I` is the type that identifies a delivery.
#[derive(Debug)]
pub struct Leases<I> {
    lease: Duration,
    max_lease: Duration,
    entries: HashMap<I, Entry>,
    due: BTreeSet<(Instant, I)>,
    deadlines: BTreeSet<(Instant, I)>,
}

impl<I: Copy + Ord + std::hash::Hash> Leases<I> {
    /// Creates an empty set of leases. Each lease lasts `lease`, and can be extended until `max_lease` after its
    /// message was received.
    pub fn new(lease: Duration, max_lease: Duration) -> Self {
        Self { lease, max_lease, entries: HashMap::new(), due: BTreeSet::new(), deadlines: BTreeSet::new() }
    }

    /// Adds the delivery `id`, whose lease the queue started at `leased_at` or later.
    pub fn enter(&mut self, id: I, lease: LeaseHandle, leased_at: Instant) {
        self.enter_for(id, lease, leased_at, self.lease);
    }

    /// Adds a delivery whose lease lasts `duration`, as do its extensions, because the service says so.
    pub fn enter_for(&mut self, id: I, lease: LeaseHandle, leased_at: Instant, duration: Duration) {
        let deadline = deadline_of(leased_at, duration, duration);
        let due = leased_at + duration / 3;
        self.entries.insert(id, Entry { lease, duration, received_at: leased_at, deadline, beat: Beat::Due(due) });
        self.due.insert((due, id));
        self.deadlines.insert((deadline, id));
    }

    /// Returns the heartbeats that are due at `now`. Each heartbeat covers up to `batch` leases, and counts as in
    /// progress until [`Self::answered`] is called.
    pub fn heartbeats(&mut self, now: Instant, batch: usize) -> Vec<Heartbeat<I>> {
        let mut groups: Vec<Heartbeat<I>> = Vec::new();
        while let Some(&(at, id)) = self.due.first() {
            if at > now {
                break;
            }
            self.due.pop_first();
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            entry.beat = Beat::Stopped;
            // The queue rejects an extension beyond its limit, so the duration is shortened to that limit here.
            let left = (entry.received_at + self.max_lease).saturating_duration_since(now);
            let by = entry.duration.min(Duration::from_secs(left.as_secs()));
            if now + by <= entry.deadline + margin(entry.duration) {
                continue;
            }
            entry.beat = Beat::UnderWay;
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

    /// Handles the queue's answer to a heartbeat that was sent at `sent_at`, and returns the resulting changes. `by`:
    /// new lease duration. `results` has one result for each delivery in `ids`; a missing result counts as a failure.
    pub fn answered(
        &mut self,
        ids: &[I],
        by: Duration,
        results: &[Result<(), LeaseError>],
        sent_at: Instant,
        now: Instant,
    ) -> Vec<Change<I>> {
        let mut changes = Vec::new();
        for (index, id) in ids.iter().enumerate() {
            let Some(entry) = self.entries.get_mut(id) else { continue };
            let due = match results.get(index) {
                Some(Ok(())) => {
                    self.deadlines.remove(&(entry.deadline, *id));
                    entry.deadline = deadline_of(sent_at, by, entry.duration);
                    self.deadlines.insert((entry.deadline, *id));
                    sent_at + entry.duration / 3
                }
                Some(Err(LeaseError::Lost(_))) => {
                    self.remove(*id);
                    changes.push(Change::Lost(*id));
                    continue;
                }
                Some(Err(_)) | None => now + entry.duration / RETRY_FRACTION,
            };
            if matches!(entry.beat, Beat::Last) {
                entry.beat = Beat::Stopped;
                changes.push(Change::Stopped(*id));
            } else {
                entry.beat = Beat::Due(due);
                self.due.insert((due, *id));
            }
        }
        changes
    }

    /// Prevents further heartbeats for a delivery. Returns `true` if no heartbeat is in progress. Otherwise,
    /// [`Self::answered`] later returns [`Change::Stopped`] or [`Change::Lost`] for the delivery, unless its lease
    /// expires first. The deadline stays in effect.
    pub fn stop(&mut self, id: I) -> bool {
        let Some(entry) = self.entries.get_mut(&id) else { return true };
        match entry.beat {
            Beat::Due(due) => {
                self.due.remove(&(due, id));
                entry.beat = Beat::Stopped;
                true
            }
            Beat::UnderWay | Beat::Last => {
                entry.beat = Beat::Last;
                false
            }
            Beat::Stopped => true,
        }
    }

    /// Removes and returns the deliveries whose lease has ended at `now`.
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

    /// Returns the time at which the lease of a delivery counts as lost. `None`: the delivery was removed, or that time
    /// has passed.
    pub fn deadline(&self, id: I) -> Option<Instant> {
        self.entries.get(&id).map(|entry| entry.deadline)
    }

    /// Returns the delivery that owns a lease. `None`: the delivery was removed, or its lease has ended.
    pub fn owner(&self, lease: &LeaseHandle) -> Option<I> {
        self.entries.iter().find(|(_, entry)| entry.lease == *lease).map(|(id, _)| *id)
    }

    /// Returns `true` if the lease of a delivery is still valid at `now`.
    pub fn hold(&self, id: I, now: Instant) -> bool {
        self.deadline(id).is_some_and(|end| end > now)
    }

    /// Removes a delivery that is finished or has lost its lease.
    pub fn remove(&mut self, id: I) {
        if let Some(entry) = self.entries.remove(&id) {
            self.deadlines.remove(&(entry.deadline, id));
            if let Beat::Due(due) = entry.beat {
                self.due.remove(&(due, id));
            }
        }
    }

    /// Returns the next time at which a heartbeat is due or a lease ends.
    pub fn next_at(&self) -> Option<Instant> {
        let due = self.due.first().map(|(at, _)| *at);
        let deadline = self.deadlines.first().map(|(at, _)| *at);
        due.into_iter().chain(deadline).min()
    }
}

fn margin(lease: Duration) -> Duration {
    (lease / MARGIN_FRACTION).clamp(MIN_MARGIN, MAX_MARGIN)
}

/// Returns the time at which a lease that was extended `by` at the time `from` counts as lost. `usual`: duration of the lease.
fn deadline_of(from: Instant, by: Duration, usual: Duration) -> Instant {
    from + by.saturating_sub(margin(usual))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostler_queue::Receipt;

    const LEASE: Duration = Duration::from_secs(30);
    const SECOND: Duration = Duration::from_secs(1);
    /// Equals [`MAX_MARGIN`], because a twentieth of `LEASE` exceeds the maximum.
    const MARGIN: Duration = SECOND;

    fn lease(name: &str) -> LeaseHandle {
        Receipt::new(name).lease()
    }

    fn leases(ids: impl IntoIterator<Item = u64>, at: Instant) -> Leases<u64> {
        let mut leases = Leases::new(LEASE, 12 * 3600 * SECOND);
        for id in ids {
            leases.enter(id, lease(&id.to_string()), at);
        }
        leases
    }

    #[test]
    fn heartbeats_come_every_third_of_the_lease_in_batches() {
        let start = Instant::now();
        let mut leases = leases(0..25, start);
        assert_eq!(leases.next_at(), Some(start + LEASE / 3));
        assert_eq!(leases.heartbeats(start + 9 * SECOND, 10), []);
        let beats = leases.heartbeats(start + 10 * SECOND, 10);
        assert_eq!(beats.iter().map(|beat| beat.ids.len()).collect::<Vec<_>>(), [10, 10, 5]);
        assert_eq!(leases.heartbeats(start + 11 * SECOND, 10), [], "they are under way");

        let sent_at = start + 10 * SECOND;
        for beat in &beats {
            let results = vec![Ok(()); beat.ids.len()];
            assert_eq!(leases.answered(&beat.ids, beat.by, &results, sent_at, sent_at + SECOND), []);
        }
        assert_eq!(leases.deadline(3), Some(sent_at + LEASE - MARGIN), "counted from before the call");
        assert_eq!(leases.next_at(), Some(sent_at + LEASE / 3));
    }

    #[test]
    fn a_deadline_moves_only_for_entries_that_succeeded() {
        let start = Instant::now();
        let mut leases = leases(0..3, start);
        let at = start + 10 * SECOND;
        leases.heartbeats(at, 10);
        let results = [Ok(()), Err(LeaseError::Retry("throttled".into())), Err(LeaseError::Lost("gone".into()))];
        assert_eq!(leases.answered(&[0, 1, 2], LEASE, &results, at, at), [Change::Lost(2)]);
        assert_eq!(leases.deadline(0), Some(at + LEASE - MARGIN));
        assert_eq!(leases.deadline(1), Some(start + LEASE - MARGIN));
        assert_eq!(leases.deadline(2), None);
        let retry = leases.heartbeats(at + LEASE / 10, 10);
        assert_eq!(retry.iter().map(|beat| beat.ids.clone()).collect::<Vec<_>>(), [[1]]);
    }

    #[test]
    fn an_answer_that_is_too_short_counts_as_not_extended() {
        let start = Instant::now();
        let mut leases = leases(0..2, start);
        let at = start + 10 * SECOND;
        leases.heartbeats(at, 10);
        assert_eq!(leases.answered(&[0, 1], LEASE, &[Ok(())], at, at), []);
        assert_eq!(leases.deadline(1), Some(start + LEASE - MARGIN));
        assert!(leases.expire(start + LEASE - MARGIN - SECOND / 100).is_empty());
        assert_eq!(leases.expire(start + LEASE - MARGIN), [1]);
        assert!(leases.expire(start + LEASE).is_empty());
    }

    #[test]
    fn a_stop_waits_for_the_heartbeat_under_way_and_none_follows() {
        let start = Instant::now();
        let mut leases = leases(0..2, start);
        assert!(leases.stop(0), "none is under way");
        let at = start + 10 * SECOND;
        assert_eq!(leases.heartbeats(at, 10).iter().map(|beat| beat.ids.clone()).collect::<Vec<_>>(), [[1]]);
        assert!(!leases.stop(1));
        assert_eq!(leases.answered(&[1], LEASE, &[Ok(())], at, at), [Change::Stopped(1)]);
        assert_eq!(leases.heartbeats(at + LEASE, 10), []);
        assert_eq!(leases.expire(start + LEASE), [0], "the deadline is still watched");
    }

    #[test]
    fn the_shortest_lease_leaves_time_to_stop_a_guest_in() {
        let start = Instant::now();
        let mut leases: Leases<u32> = Leases::new(SECOND, LEASE);
        leases.enter(1, lease("1"), start);
        assert!(leases.expire(start + Duration::from_millis(899)).is_empty());
        assert_eq!(leases.expire(start + Duration::from_millis(900)), [1], "it takes 60 ms to stop a guest");
    }

    #[test]
    fn a_lease_of_the_service_s_own_duration_is_kept_by_that() {
        let start = Instant::now();
        let mut leases = leases(0..1, start);
        leases.enter_for(7, lease("7"), start, 6 * SECOND);
        let margin = Duration::from_millis(300);
        assert_eq!(leases.deadline(7), Some(start + 6 * SECOND - margin));
        assert_eq!(leases.next_at(), Some(start + 2 * SECOND));
        let at = start + 10 * SECOND;
        let beats = leases.heartbeats(at, 10);
        let asked: Vec<_> = beats.iter().map(|beat| (beat.ids.clone(), beat.by)).collect();
        assert_eq!(asked, [(vec![7], 6 * SECOND), (vec![0], LEASE)], "one call for each duration");
        assert_eq!(leases.answered(&[7], 6 * SECOND, &[Ok(())], at, at), []);
        assert_eq!(leases.deadline(7), Some(at + 6 * SECOND - margin));
        assert_eq!(leases.next_at(), Some(at + 2 * SECOND));
    }

    #[test]
    fn a_lease_is_found_until_it_ends() {
        let (start, mut leases) = (Instant::now(), Leases::new(LEASE, LEASE));
        leases.enter(1, lease("a"), start);
        leases.enter(2, lease("b"), start);
        assert_eq!([leases.owner(&lease("b")), leases.owner(&lease("c"))], [Some(2), None]);
        leases.remove(2);
        assert_eq!([leases.owner(&lease("a")), leases.owner(&lease("b"))], [Some(1), None]);
        leases.expire(start + LEASE);
        assert_eq!(leases.owner(&lease("a")), None);
    }

    #[test]
    fn nothing_is_asked_for_beyond_the_queue_s_limit() {
        let start = Instant::now();
        let mut leases = Leases::new(LEASE, 45 * SECOND);
        leases.enter(1, lease("1"), start);
        let at = start + 20 * SECOND;
        let beats = leases.heartbeats(at, 10);
        assert_eq!(beats.first().map(|beat| beat.by), Some(25 * SECOND));
        leases.answered(&[1], 25 * SECOND, &[Ok(())], at, at);
        assert_eq!(leases.heartbeats(at + 10 * SECOND, 10), [], "there is nothing to gain");
        assert_eq!(leases.expire(start + 45 * SECOND), [1]);
    }
}
