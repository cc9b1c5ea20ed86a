//! The messages that the server has delivered on one channel and that are not settled: the prefetch window. No I/O.
//!
//! RabbitMQ has no leases: a delivered message is ours until it is acked, or until the channel ends. So this is the lease clock.
//! A message is handed out with a lease. If the lease ends, the message goes back to the server, or, in an ordered queue, is
//! handed out again from here: the server would deliver it behind its followers.
//!
//! A receipt is `channel:tag:lease`. The number of the channel keeps a receipt from settling another message after a
//! reconnect; the number of the lease keeps a receipt from settling a message that was handed out again.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use hostler_queue::{LeaseError, LeaseHandle, Receipt};
use tokio::time::Instant;

use super::envelope::Mail;
use super::uncounted::Uncounted;

/// State of one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// May be handed out, or, in an ordered queue, waits for the earlier messages of its group.
    Waiting,
    /// Is not handed out before this time.
    Held(Instant),
    /// Handed out.
    Leased { lease: u64, until: Instant },
    /// Being settled. `lease`: `None` if it was never handed out.
    Settling { lease: Option<(u64, Instant)> },
}

#[derive(Debug)]
struct Entry {
    mail: Mail,
    /// Number of the attempt that is next, or under way.
    attempt: u32,
    stage: Stage,
    /// Set once the message was handed out.
    was_handed: bool,
}

impl Entry {
    /// Returns `true` if the message has no lease and is not being settled.
    fn is_free(&self) -> bool {
        matches!(self.stage, Stage::Waiting | Stage::Held(_))
    }
}

/// A message that is handed out, or that is up for being handed out.
#[derive(Debug)]
pub(super) struct Handed<'a> {
    pub(super) mail: &'a Mail,
    pub(super) attempt: u32,
}

/// The unsettled messages of one channel.
#[derive(Debug)]
pub(super) struct Unacked {
    ordered: bool,
    /// Number of the channel, which all receipts contain.
    channel: u64,
    leases: u64,
    entries: BTreeMap<u64, Entry>,
    /// Messages that may be handed out, in the order of delivery.
    ready: BTreeSet<u64>,
    /// Ends of leases and of holds.
    due: BTreeSet<(Instant, u64)>,
    /// Messages of each group in order. Empty if the queue is not ordered.
    groups: HashMap<String, VecDeque<u64>>,
    uncounted: Uncounted,
    /// Messages that went back to the server and may come again at once.
    returning: usize,
    /// Number of changes.
    changes: u64,
}

impl Unacked {
    pub(super) fn new(ordered: bool) -> Self {
        Self {
            ordered,
            channel: 0,
            leases: 0,
            entries: BTreeMap::new(),
            ready: BTreeSet::new(),
            due: BTreeSet::new(),
            groups: HashMap::new(),
            uncounted: Uncounted::default(),
            returning: 0,
            changes: 0,
        }
    }

    /// Begins with a new channel. The server takes back the messages of the old one. Returns their leases, which are lost.
    pub(super) fn begin(&mut self) -> Vec<LeaseHandle> {
        let lost = self.entries.iter().filter_map(|(tag, entry)| match entry.stage {
            Stage::Leased { lease, .. } | Stage::Settling { lease: Some((lease, _)) } => Some((*tag, lease)),
            _ => None,
        });
        let lost = lost.map(|(tag, lease)| receipt(self.channel, tag, lease).lease()).collect();
        self.channel += 1;
        self.changes += 1;
        for entry in self.entries.values().filter(|entry| entry.is_free() && !entry.was_handed) {
            self.uncounted.note(&entry.mail.message.id, entry.mail.deliveries);
        }
        self.entries.clear();
        self.ready.clear();
        self.due.clear();
        self.groups.clear();
        self.returning = 0;
        lost
    }

    /// Returns the number of the channel.
    pub(super) fn channel(&self) -> u64 {
        self.channel
    }

    /// Returns the number of changes up to now.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Adds a message that the server has delivered. `wait`: time for which the message is not handed out.
    pub(super) fn delivered(&mut self, mail: Mail, wait: Option<Duration>, now: Instant) {
        if mail.redelivered {
            self.returning = self.returning.saturating_sub(1);
        }
        let uncounted = self.uncounted.of(&mail.message.id, mail.deliveries);
        let attempt = mail.carried.saturating_add(mail.deliveries).saturating_sub(uncounted).saturating_add(1);
        let tag = mail.tag;
        if let Some(group) = mail.message.group.as_ref().filter(|_| self.ordered) {
            self.groups.entry(group.clone()).or_default().push_back(tag);
        }
        let stage = wait.map_or(Stage::Waiting, |wait| Stage::Held(now + wait));
        self.entries.insert(tag, Entry { mail, attempt, stage, was_handed: false });
        self.arm(tag);
    }

    /// Puts a message where its stage belongs: among those that are ready, or due at a time.
    fn arm(&mut self, tag: u64) {
        self.changes += 1;
        let Some(stage) = self.entries.get(&tag).map(|entry| entry.stage) else { return };
        match stage {
            Stage::Waiting if self.is_head(tag) => drop(self.ready.insert(tag)),
            Stage::Held(at) | Stage::Leased { until: at, .. } => drop(self.due.insert((at, tag))),
            Stage::Waiting | Stage::Settling { .. } => {}
        }
    }

    fn disarm(&mut self, tag: u64) {
        self.ready.remove(&tag);
        if let Some(Entry { stage: Stage::Held(at) | Stage::Leased { until: at, .. }, .. }) = self.entries.get(&tag) {
            self.due.remove(&(*at, tag));
        }
    }

    fn set(&mut self, tag: u64, stage: Stage) {
        self.disarm(tag);
        if let Some(entry) = self.entries.get_mut(&tag) {
            entry.stage = stage;
        }
        self.arm(tag);
    }

    /// Returns `true` unless an earlier message of the same group is unsettled.
    fn is_head(&self, tag: u64) -> bool {
        let group = self.entries.get(&tag).and_then(|entry| entry.mail.message.group.as_ref());
        let heads = group.and_then(|group| self.groups.get(group));
        heads.is_none_or(|group| group.front() == Some(&tag))
    }

    /// Removes a message that is settled.
    fn remove(&mut self, tag: u64) -> Option<Entry> {
        self.disarm(tag);
        let entry = self.entries.remove(&tag)?;
        self.changes += 1;
        if let Some(group) = entry.mail.message.group.as_ref().filter(|_| self.ordered)
            && let Some(tags) = self.groups.get_mut(group)
        {
            tags.retain(|other| *other != tag);
            match tags.front().copied() {
                Some(next) => self.arm(next),
                None => drop(self.groups.remove(group)),
            }
        }
        Some(entry)
    }

    /// Handles the ends of leases and holds. Returns the messages that must go back to the server.
    pub(super) fn tick(&mut self, now: Instant) -> Vec<u64> {
        let mut back = Vec::new();
        while let Some((_, tag)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            let is_leased = self.entries.get(&tag).is_some_and(|entry| matches!(entry.stage, Stage::Leased { .. }));
            if is_leased && !self.ordered {
                self.remove(tag);
                self.returning += 1;
                back.push(tag);
                continue;
            }
            self.set(tag, Stage::Waiting);
            if let Some(entry) = self.entries.get_mut(&tag).filter(|_| is_leased) {
                entry.attempt = entry.attempt.saturating_add(1);
            }
        }
        back
    }

    /// Returns the next time at which [`Self::tick`] has work.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Returns the first message that may be handed out.
    pub(super) fn next(&self) -> Option<Handed<'_>> {
        let entry = self.entries.get(self.ready.first()?)?;
        Some(Handed { mail: &entry.mail, attempt: entry.attempt })
    }

    /// Hands a message out until `until`.
    pub(super) fn lease(&mut self, tag: u64, until: Instant) -> Receipt {
        self.leases += 1;
        let lease = self.leases;
        if let Some(entry) = self.entries.get_mut(&tag) {
            entry.was_handed = true;
        }
        self.set(tag, Stage::Leased { lease, until });
        receipt(self.channel, tag, lease)
    }

    /// Begins to settle a message that is not handed out.
    pub(super) fn set_aside(&mut self, tag: u64) {
        self.set(tag, Stage::Settling { lease: None });
    }

    /// Extends a lease.
    ///
    /// # Errors
    /// [`LeaseError::Lost`]: the lease has ended, or the message is being settled.
    pub(super) fn extend(&mut self, lease: &LeaseHandle, until: Instant, now: Instant) -> Result<(), LeaseError> {
        let (tag, lease, _) = self.leased(lease, now)?;
        self.set(tag, Stage::Leased { lease, until });
        Ok(())
    }

    /// Begins to settle a message that is handed out. The lease does not end meanwhile.
    ///
    /// # Errors
    /// [`LeaseError::Lost`]: the lease has ended, or the message is being settled.
    pub(super) fn settle(&mut self, receipt: &Receipt, now: Instant) -> Result<u64, LeaseError> {
        let (tag, lease, until) = self.leased(&receipt.lease(), now)?;
        self.set(tag, Stage::Settling { lease: Some((lease, until)) });
        Ok(tag)
    }

    /// Returns a message.
    pub(super) fn get(&self, tag: u64) -> Option<Handed<'_>> {
        self.entries.get(&tag).map(|entry| Handed { mail: &entry.mail, attempt: entry.attempt })
    }

    /// Ends a settlement: the message is removed from the queue.
    pub(super) fn gone(&mut self, tag: u64) {
        if let Some(entry) = self.remove(tag) {
            self.uncounted.forget(&entry.mail.message.id);
        }
    }

    /// Ends a settlement: the message goes back to the server. `counts`: the attempt counts, if there was one.
    pub(super) fn back(&mut self, tag: u64, counts: bool) {
        let Some(entry) = self.remove(tag) else { return };
        self.returning += 1;
        if !counts || !entry.was_handed {
            self.uncounted.note(&entry.mail.message.id, entry.mail.deliveries);
        }
    }

    /// Ends a settlement: the message is handed out again from here after `delay`. `counts`: the attempt counts.
    pub(super) fn keep(&mut self, tag: u64, delay: Duration, counts: bool, now: Instant) {
        if let Some(entry) = self.entries.get_mut(&tag) {
            entry.attempt = entry.attempt.saturating_add(u32::from(counts));
        }
        self.set(tag, if delay.is_zero() { Stage::Waiting } else { Stage::Held(now + delay) });
    }

    /// Ends a settlement that failed: the lease goes on. A message that was not handed out may be handed out again.
    pub(super) fn failed(&mut self, tag: u64) {
        let stage = match self.entries.get(&tag).map(|entry| entry.stage) {
            Some(Stage::Settling { lease: Some((lease, until)) }) => Stage::Leased { lease, until },
            Some(Stage::Settling { lease: None }) => Stage::Waiting,
            _ => return,
        };
        self.set(tag, stage);
    }

    /// Gives back all messages that are not in hand, and returns them. The delivery of a message that was never handed out does
    /// not count as an attempt.
    pub(super) fn rest(&mut self) -> Vec<u64> {
        let tags: Vec<_> = self.entries.iter().filter(|(_, entry)| entry.is_free()).map(|(tag, _)| *tag).collect();
        for tag in &tags {
            self.back(*tag, true);
        }
        tags
    }

    /// Returns `true` if no message is handed out or being settled.
    pub(super) fn is_idle(&self) -> bool {
        !self.entries.values().any(|entry| matches!(entry.stage, Stage::Leased { .. } | Stage::Settling { .. }))
    }

    /// Returns the number of messages that are not handed out, and of those which may be at once.
    pub(super) fn waiting(&self) -> (usize, usize) {
        let waiting = self.entries.values().filter(|entry| matches!(entry.stage, Stage::Waiting));
        (waiting.count(), self.ready.len())
    }

    /// Returns the number of all messages.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns `true` if a message went back to the server and has not come again.
    pub(super) fn expects_returns(&self) -> bool {
        self.returning > 0
    }

    /// Stops to expect messages that went back to the server. Other receivers have them.
    pub(super) fn give_up_returns(&mut self) {
        self.returning = 0;
    }

    fn leased(&self, handle: &LeaseHandle, now: Instant) -> Result<(u64, u64, Instant), LeaseError> {
        let lost = || LeaseError::Lost("it has ended, the connection was lost, or the message was settled".to_owned());
        let mut parts = handle.as_str().splitn(3, ':').map(|part| part.parse::<u64>().ok());
        let mut part = || parts.next().flatten().ok_or_else(lost);
        let (channel, tag, number) = (part()?, part()?, part()?);
        match self.entries.get(&tag).map(|entry| entry.stage) {
            Some(Stage::Leased { lease, until }) if (channel, number) == (self.channel, lease) && until > now => {
                Ok((tag, lease, until))
            }
            _ => Err(lost()),
        }
    }
}

fn receipt(channel: u64, tag: u64, lease: u64) -> Receipt {
    Receipt::new(format!("{channel}:{tag}:{lease}"))
}

#[cfg(test)]
mod tests;
