//! Long polls: who asks the database next, so that many waiting workers cost as little as one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};

/// The period at which one of the waiting workers asks for items, which other servers may have added.
pub const POLL: Duration = Duration::from_millis(250);

/// Minimum time between two empty answers to workers that wait for the same types.
const PAUSE: Duration = Duration::from_millis(10);

/// The workers that wait, grouped by the types they ask for.
#[derive(Debug, Default)]
pub struct Waiting {
    groups: Mutex<HashMap<Vec<String>, Arc<Group>>>,
    /// Changes with each commit of this server that may have made items ready.
    committed: watch::Sender<()>,
}

/// The workers that wait for the same types.
#[derive(Debug)]
struct Group {
    wake: Notify,
    /// The time of the last empty answer.
    empty_at: Mutex<Instant>,
}

/// A worker's place in its group. Leaving the last place removes the group.
#[derive(Debug)]
pub struct Place<'a> {
    waiting: &'a Waiting,
    key: Vec<String>,
    group: Arc<Group>,
}

impl Waiting {
    /// Wakes one worker of each group, because a commit of this server may have made items ready.
    pub fn wake(&self) {
        self.hint(None);
        self.committed.send_replace(());
    }

    /// Wakes one worker of each group with one of the types, because another server's items may be ready. `None`: of any type.
    pub fn hint(&self, types: Option<&[&str]>) {
        for (key, group) in &*self.groups.lock().unwrap_or_else(PoisonError::into_inner) {
            if types.is_none_or(|types| key.iter().any(|kind| types.contains(&kind.as_str()))) {
                group.wake.notify_one();
            }
        }
    }

    /// Returns the commits of this server that may have made items ready.
    pub fn committed(&self) -> watch::Receiver<()> {
        self.committed.subscribe()
    }

    /// Takes a place in the group of the types, in any order.
    pub fn join(&self, types: &[String]) -> Place<'_> {
        let mut key = types.to_vec();
        key.sort_unstable();
        key.dedup();
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = || Group { wake: Notify::new(), empty_at: Mutex::new(Instant::now()) };
        let group = Arc::clone(groups.entry(key.clone()).or_insert_with(|| Arc::new(fresh())));
        Place { waiting: self, key, group }
    }
}

impl Place<'_> {
    /// Notes that the database had nothing for the group just now.
    pub fn found_nothing(&self) {
        *self.group.empty_at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Passes the turn on, because there may be more than this worker took.
    pub fn found_some(&self) {
        self.group.wake.notify_one();
    }

    /// Waits until it is this worker's turn to ask, and no longer than until `deadline`.
    ///
    /// A worker that leaves after it was woken costs the others one poll.
    pub async fn turn(&self, deadline: Instant) {
        loop {
            let empty_at = self.empty_at();
            tokio::select! {
                () = self.group.wake.notified() => {
                    // A burst of commits is one question.
                    sleep_until(deadline.min(self.empty_at() + PAUSE)).await;
                    return;
                }
                () = sleep_until(deadline.min(empty_at + POLL)) => {
                    let mut last = self.group.empty_at.lock().unwrap_or_else(PoisonError::into_inner);
                    if *last == empty_at {
                        // The others of the group wait for this worker's answer.
                        *last = Instant::now();
                        return;
                    }
                    if Instant::now() >= deadline {
                        return;
                    }
                }
            }
        }
    }

    fn empty_at(&self) -> Instant {
        *self.group.empty_at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut groups = self.waiting.groups.lock().unwrap_or_else(PoisonError::into_inner);
        // The map and this place have one each.
        if Arc::strong_count(&self.group) == 2 {
            groups.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn types() -> Vec<String> {
        vec!["a".to_owned(), "b".to_owned()]
    }

    #[tokio::test(start_paused = true)]
    async fn one_worker_of_a_group_polls_at_a_time() {
        let waiting = Waiting::default();
        let (first, second) = (waiting.join(&types()), waiting.join(&types()));
        let start = Instant::now();
        let far = start + Duration::from_secs(60);
        tokio::select! {
            biased;
            () = first.turn(far) => first.found_nothing(),
            () = second.turn(far) => panic!("the second asked, too"),
        }
        assert_eq!(start.elapsed(), POLL);
        second.turn(far).await;
        assert_eq!(start.elapsed(), 2 * POLL);
    }

    #[tokio::test(start_paused = true)]
    async fn a_commit_wakes_one_worker_and_success_the_next() {
        let waiting = Waiting::default();
        let (first, second) = (waiting.join(&types()), waiting.join(&["b".to_owned(), "a".to_owned()]));
        let start = Instant::now();
        let far = start + Duration::from_secs(60);
        waiting.wake();
        first.turn(far).await;
        assert_eq!(start.elapsed(), PAUSE);
        first.found_some();
        second.turn(far).await;
        assert_eq!(start.elapsed(), PAUSE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_hint_wakes_only_those_who_wait_for_its_types() {
        let waiting = Waiting::default();
        let place = waiting.join(&types());
        let start = Instant::now();
        let far = start + Duration::from_secs(60);
        waiting.hint(Some(&["c"]));
        place.turn(far).await;
        assert_eq!(start.elapsed(), POLL);
        waiting.hint(Some(&["c", "b"]));
        place.turn(far).await;
        assert_eq!(start.elapsed(), POLL + PAUSE);
        assert!(!waiting.committed().has_changed().unwrap(), "a hint is no commit of this server");
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_ends_at_the_deadline() {
        let waiting = Waiting::default();
        let place = waiting.join(&types());
        let start = Instant::now();
        place.turn(start + Duration::from_millis(7)).await;
        assert_eq!(start.elapsed(), Duration::from_millis(7));
    }

    #[tokio::test]
    async fn the_last_to_leave_removes_the_group() {
        let waiting = Waiting::default();
        let (first, second) = (waiting.join(&types()), waiting.join(&types()));
        drop(first);
        assert_eq!(waiting.groups.lock().unwrap().len(), 1);
        drop(second);
        assert!(waiting.groups.lock().unwrap().is_empty());
    }
}
