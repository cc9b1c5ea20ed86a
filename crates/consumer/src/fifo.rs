//! FIFO gate: lets the received messages of each group start one at a time, in order.

use std::collections::{HashMap, VecDeque};

/// Gate that holds back all received deliveries of a group except the oldest one, the head of the group. `I` is the
/// type that identifies a delivery.
#[derive(Debug, Default)]
pub struct Gate<I> {
    groups: HashMap<String, VecDeque<I>>,
}

impl<I: Copy + PartialEq> Gate<I> {
    /// Adds the delivery `id` to `group`. Must be called in the order of receipt. Returns `true` if the delivery may
    /// start at once.
    pub fn enter(&mut self, group: &str, id: I) -> bool {
        match self.groups.get_mut(group) {
            Some(waiting) => {
                waiting.push_back(id);
                false
            }
            None => {
                self.groups.insert(group.to_owned(), VecDeque::from([id]));
                true
            }
        }
    }

    /// Returns the first delivery of a group. `None`: the group has no deliveries.
    pub fn head(&self, group: &str) -> Option<I> {
        self.groups.get(group)?.front().copied()
    }

    /// Removes the acked delivery `id` from `group`. Returns the delivery that may start now, if any.
    pub fn pass(&mut self, group: &str, id: I) -> Option<I> {
        let waiting = self.groups.get_mut(group)?;
        let was_head = waiting.front() == Some(&id);
        waiting.retain(|other| *other != id);
        match waiting.front() {
            Some(next) => was_head.then_some(*next),
            None => {
                self.groups.remove(group);
                None
            }
        }
    }

    /// Removes the whole group of a delivery that failed or lost its lease. Returns the group's other deliveries, which
    /// must go back unprocessed.
    pub fn close(&mut self, group: &str, id: I) -> Vec<I> {
        if !self.groups.get(group).is_some_and(|waiting| waiting.contains(&id)) {
            return Vec::new();
        }
        let waiting = self.groups.remove(group).unwrap_or_default();
        waiting.into_iter().filter(|other| *other != id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_a_group_at_a_time_and_groups_in_parallel() {
        let mut gate = Gate::default();
        assert!(gate.enter("a", 1));
        assert!(!gate.enter("a", 2));
        assert!(gate.enter("b", 3));
        assert_eq!(gate.pass("a", 1), Some(2));
        assert_eq!(gate.pass("a", 2), None);
        assert!(gate.enter("a", 4));
    }

    #[test]
    fn a_failure_sends_its_followers_back() {
        let mut gate = Gate::default();
        for id in 1..=3 {
            gate.enter("a", id);
        }
        assert_eq!(gate.close("a", 1), [2, 3]);
        assert_eq!(gate.pass("a", 2), None);
        assert!(gate.enter("a", 5), "the group is open again for what comes next");
        assert!(gate.close("a", 1).is_empty(), "one that has left closes it no more");
        assert!(!gate.enter("a", 6));
    }

    #[test]
    fn a_follower_that_leaves_lets_nobody_overtake() {
        let mut gate = Gate::default();
        for id in 1..=3 {
            gate.enter("a", id);
        }
        assert_eq!(gate.pass("a", 2), None);
        assert_eq!(gate.pass("a", 1), Some(3));
    }
}
