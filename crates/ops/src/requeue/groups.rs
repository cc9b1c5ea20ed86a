//! The groups of an ordered queue from which messages were received. No I/O.
//!
//! SQS returns up to ten messages of a group in one receive call, and no more messages of that group while some of
//! these are leased. Therefore, at most ten messages of a group can be read. If messages of other groups fill part of
//! the batch, fewer than ten are returned, so such a group is received again.

use std::collections::{BTreeMap, HashMap, HashSet};

use hostler_queue::{DEFAULT_GROUP, Delivery};
use hostler_types::message::Message;

/// Maximum number of groups to receive again. Each group takes two calls.
const MOST_AGAIN: usize = 100;

/// The groups of the messages received so far.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// Maximum number of messages that one receive call returns.
    batch: usize,
    seen: BTreeMap<String, Group>,
    /// Number of messages.
    count: usize,
    /// Messages that were given back and not yet received again, counted by identity.
    given_back: HashMap<String, usize>,
}

#[derive(Debug, Default)]
struct Group {
    ids: Vec<String>,
    /// Set if the group's last batch was full and also contained messages of other groups. Further messages of the
    /// group may then be missing.
    is_cut: bool,
}

impl Groups {
    /// Creates an empty record for a queue that returns up to `batch` messages per receive call.
    pub(super) fn of_batches(batch: usize) -> Self {
        Self { batch, ..Self::default() }
    }

    /// Records which groups one receive call returned.
    pub(super) fn received(&mut self, batch: &[Delivery]) {
        let groups: HashSet<_> = batch.iter().map(|delivery| group(&delivery.message)).collect();
        let is_cut = batch.len() >= self.batch && groups.len() > 1;
        for name in groups {
            self.seen.entry(name.to_owned()).or_default().is_cut = is_cut;
        }
    }

    /// Records a message that was not received before. `id`: identity by which it is recognized.
    pub(super) fn add(&mut self, message: &Message, id: String) {
        self.count += 1;
        self.seen.entry(group(message).to_owned()).or_default().ids.push(id);
    }

    /// Records that a message was given back.
    pub(super) fn gave_back(&mut self, id: &str) {
        *self.given_back.entry(id.to_owned()).or_default() += 1;
    }

    /// Returns `true` if a received message was given back before. Of several messages with one identity, as many count as
    /// received again as were given back.
    pub(super) fn came_back(&mut self, id: &str) -> bool {
        let Some(count) = self.given_back.get_mut(id).filter(|count| **count > 0) else { return false };
        *count -= 1;
        true
    }

    /// Returns the number of messages received.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Returns the groups to receive again, one by one. Each group is a list of the ids of its received messages.
    pub(super) fn to_receive_again(&self) -> Vec<Vec<String>> {
        let cut = self.seen.values().filter(|group| group.is_cut && group.ids.len() < self.batch);
        cut.take(MOST_AGAIN).map(|group| group.ids.clone()).collect()
    }

    /// Returns the groups that may have more messages than were received.
    pub(super) fn unfinished(&self) -> Vec<String> {
        let unfinished = self.seen.iter().filter(|(_, group)| group.is_cut || group.ids.len() >= self.batch);
        unfinished.map(|(name, _)| name.clone()).collect()
    }
}

fn group(message: &Message) -> &str {
    message.group.as_deref().unwrap_or(DEFAULT_GROUP)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::SystemTime;

    use hostler_queue::Receipt;
    use tokio::time::Instant;

    use super::*;

    /// Returns messages with these ids, for example `g1`. The first letter of the id is the group.
    fn batch(ids: &[&str]) -> Vec<Delivery> {
        let message = |id: &str| Message {
            id: id.into(),
            body: "".into(),
            attributes: Default::default(),
            enqueued_at: SystemTime::UNIX_EPOCH,
            group: Some(id[..1].into()),
            routing_key: None,
            claim: None,
            trace: None,
        };
        let delivery = |id: &&str| {
            let (message, receipt) = (Arc::new(message(id)), Receipt::new(*id));
            Delivery { message, receipt, attempt: 1, leased_at: Instant::now(), not_before: None, job: None }
        };
        ids.iter().map(delivery).collect()
    }

    #[test]
    fn a_group_that_shared_a_full_batch_is_received_once_more() {
        let mut groups = Groups::of_batches(3);
        let receive = |groups: &mut Groups, ids: &[&str]| {
            let batch = batch(ids);
            groups.received(&batch);
            for Delivery { message, .. } in batch {
                if !groups.came_back(&message.id) {
                    groups.add(&message, message.id.clone());
                }
            }
        };
        receive(&mut groups, &["a1", "a2", "b1"]);
        receive(&mut groups, &["c1", "d1"]);
        receive(&mut groups, &["e1", "e2", "e3"]);
        assert_eq!(groups.to_receive_again(), [vec!["a1", "a2"], vec!["b1"]]);
        assert_eq!(groups.unfinished(), ["a", "b", "e"]);
        ["a1", "a2", "b1"].iter().for_each(|id| groups.gave_back(id));
        receive(&mut groups, &["a1", "a2"]);
        receive(&mut groups, &["b1", "b2", "b3"]);
        assert!(groups.to_receive_again().is_empty() && groups.len() == 10);
        assert_eq!(groups.unfinished(), ["b", "e"], "there may be a fourth");
    }

    #[test]
    fn as_many_equal_messages_come_back_as_were_given_back() {
        let mut groups = Groups::of_batches(3);
        assert!(!groups.came_back("a"));
        ["a", "a"].iter().for_each(|id| groups.gave_back(id));
        assert_eq!([(); 3].map(|()| groups.came_back("a")), [true, true, false]);
    }
}
