//! The groups of an ordered queue from which messages were received. No I/O.
//!
//! SQS returns up to ten messages of a group in one receive call, and no more messages of that group while some of
//! these are leased. Therefore, at most ten messages of a group can be read. If messages of other groups fill part of
//! the batch, fewer than ten are returned, so such a group is received again.

use std::collections::{BTreeMap, HashSet};

use hostler_queue::{DEFAULT_GROUP, Delivery};

/// Maximum number of groups to receive again. Each group takes two calls.
const MOST_AGAIN: usize = 100;

/// The groups of the messages received so far.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// Maximum number of messages that one receive call returns.
    batch: usize,
    seen: BTreeMap<String, Group>,
    ids: HashSet<String>,
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

    /// Records the messages that one receive call returned. `ids`: those by which they are recognized.
    pub(super) fn received(&mut self, batch: &[Delivery], ids: &[String]) {
        let group = |delivery: &Delivery| delivery.message.group.clone().unwrap_or_else(|| DEFAULT_GROUP.to_owned());
        let groups: HashSet<_> = batch.iter().map(group).collect();
        let is_cut = batch.len() >= self.batch && groups.len() > 1;
        for name in groups {
            self.seen.entry(name).or_default().is_cut = is_cut;
        }
        for (delivery, id) in batch.iter().zip(ids) {
            if self.ids.insert(id.clone()) {
                self.seen.entry(group(delivery)).or_default().ids.push(id.clone());
            }
        }
    }

    /// Returns `true` if this message was received.
    pub(super) fn knows(&self, id: &str) -> bool {
        self.ids.contains(id)
    }

    /// Returns the number of messages received.
    pub(super) fn len(&self) -> usize {
        self.ids.len()
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::SystemTime;

    use hostler_queue::Receipt;
    use hostler_types::message::Message;
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
            Delivery { message, receipt, attempt: 1, leased_at: Instant::now(), not_before: None }
        };
        ids.iter().map(delivery).collect()
    }

    #[test]
    fn a_group_that_shared_a_full_batch_is_received_once_more() {
        let mut groups = Groups::of_batches(3);
        let receive = |groups: &mut Groups, ids: &[&str]| {
            groups.received(&batch(ids), &ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>());
        };
        receive(&mut groups, &["a1", "a2", "b1"]);
        receive(&mut groups, &["c1", "d1"]);
        receive(&mut groups, &["e1", "e2", "e3"]);
        assert_eq!(groups.to_receive_again(), [vec!["a1", "a2"], vec!["b1"]]);
        assert_eq!(groups.unfinished(), ["a", "b", "e"]);
        receive(&mut groups, &["a1", "a2"]);
        receive(&mut groups, &["b1", "b2", "b3"]);
        assert!(groups.to_receive_again().is_empty() && groups.knows("b3") && groups.len() == 10);
        assert_eq!(groups.unfinished(), ["b", "e"], "there may be a fourth");
    }
}
