//! The messages that the server has delivered on one channel and that are not settled: the prefetch window. No I/O.
//!
//! RabbitMQ has no leases: a delivered message is ours until it is acked, or until the channel ends. So this is the lease clock.
//! A message is handed out with a lease. If the lease ends, the message goes back to the server, or, in an ordered queue, is
//! handed out again from here: the server would deliver it behind its followers.
//!
//! A receipt is `channel:tag:lease`. The number of the channel keeps a receipt from settling another message after a
//! reconnect; the number of the lease keeps a receipt from settling a message that was handed out again. Whatever outlasts the
//! lock of the window names a message by its [`Key`], for the same reason.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use hostler_queue::{LeaseError, LeaseHandle, Receipt};
use hostler_types::Backoff;
use tokio::time::Instant;

use super::envelope::Mail;
use super::uncounted::Uncounted;

/// Number of server-counted deliveries up to which a message that no handler has seen goes back to its queue as it is. Beyond, a
/// copy goes, whose deliveries the server counts anew. So up to this number, deliveries are one attempt at most, and it is not
/// certain.
pub(super) const FREE_RETURNS: u32 = 3;

/// The same for an ordered queue, from which no copy can go. After half of them, a host that rests keeps its messages.
const ORDERED_RETURNS: u32 = 32;

/// Number of messages of an ordered queue up to which more are taken while all wait for their groups.
const MOST_STUCK: usize = 4096;

/// The same for the size of their bodies in bytes, which no prefetch of RabbitMQ bounds: 64 MiB.
const MOST_STUCK_BYTES: usize = 64 << 20;

/// Delays after failed attempts to settle a message that is not handed out.
const AGAIN: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// Names a message: AMQP's number of its delivery, and the number of the channel within which AMQP counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) channel: u64,
    pub(super) tag: u64,
}

/// An ack as the server gets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ack {
    pub(super) tag: u64,
    /// Set if the ack is also for all messages before.
    pub(super) multiple: bool,
}

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
    /// Number of attempts that certainly ended before.
    certain: u32,
    stage: Stage,
    /// Set once the message was handed out.
    was_handed: bool,
    /// Number of failed attempts to settle the message while it was not handed out.
    failures: u32,
}

impl Entry {
    fn handed(&self) -> Handed<'_> {
        Handed { mail: &self.mail, attempt: self.attempt, certain: self.certain }
    }

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
    /// Number of attempts that certainly ended before, for a copy to carry on.
    pub(super) certain: u32,
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
    /// Set if the server's count of deliveries tells nothing: each look at a dead letter is one.
    ignores_count: bool,
    /// Messages that went back to the server and may come again at once.
    returning: usize,
    /// Tags of messages that are being returned: removed here, and not yet returned to the server.
    leaving: BTreeSet<u64>,
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
            ignores_count: false,
            returning: 0,
            leaving: BTreeSet::new(),
            changes: 0,
        }
    }

    /// Takes no attempts from the server's count of deliveries.
    pub(super) fn ignore_count(mut self) -> Self {
        self.ignores_count = true;
        self
    }

    /// Ends the channel, and begins with the next number. The server takes back the messages of the old channel. Returns their
    /// leases, which are lost.
    pub(super) fn begin(&mut self) -> Vec<LeaseHandle> {
        let lost = self.entries.iter().filter_map(|(tag, entry)| match entry.stage {
            Stage::Leased { lease, .. } | Stage::Settling { lease: Some((lease, _)) } => Some((*tag, lease)),
            _ => None,
        });
        let lost = lost.map(|(tag, lease)| receipt(self.channel, tag, lease).lease()).collect();
        self.channel += 1;
        self.changes += 1;
        for entry in self.entries.values() {
            let mail = &entry.mail;
            match entry.stage {
                _ if !entry.was_handed => self.uncounted.note(mail),
                Stage::Waiting | Stage::Held(_) => self.uncounted.note_ended(mail, entry.attempt.saturating_sub(1)),
                Stage::Leased { .. } | Stage::Settling { .. } => self.uncounted.note_ended(mail, entry.attempt),
            }
        }
        self.entries.clear();
        self.ready.clear();
        self.due.clear();
        self.groups.clear();
        self.leaving.clear();
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
        if mail.came_before() {
            self.returning = self.returning.saturating_sub(1);
        }
        let uncounted = self.uncounted.of(&mail);
        // The server counts lost connections, and before 4.3 each return, also of messages that hosts had ahead and never began.
        let unexplained = if self.ignores_count { 0 } else { mail.deliveries.saturating_sub(uncounted) };
        let free = if self.ordered { ORDERED_RETURNS } else { FREE_RETURNS };
        let certain = mail.carried.saturating_add(unexplained.saturating_sub(free));
        let certain = certain.max(self.uncounted.ended(&mail));
        let attempt = certain.max(mail.carried.saturating_add(unexplained.min(1))).saturating_add(1);
        let tag = mail.tag;
        if let Some(group) = mail.message.group.as_ref().filter(|_| self.ordered) {
            self.groups.entry(group.clone()).or_default().push_back(tag);
        }
        let stage = wait.map_or(Stage::Waiting, |wait| Stage::Held(now + wait));
        self.entries.insert(tag, Entry { mail, attempt, certain, stage, was_handed: false, failures: 0 });
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

    /// Handles the ends of leases and holds. Returns the messages whose leases have ended, and which must go back to the server.
    /// Their settlement has begun.
    pub(super) fn tick(&mut self, now: Instant) -> Vec<Key> {
        let mut ended = Vec::new();
        while let Some((_, tag)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            let is_leased = self.entries.get(&tag).is_some_and(|entry| matches!(entry.stage, Stage::Leased { .. }));
            if is_leased && !self.ordered {
                ended.push(self.set_aside(tag));
                continue;
            }
            self.set(tag, Stage::Waiting);
            if let Some(entry) = self.entries.get_mut(&tag).filter(|_| is_leased) {
                entry.attempt = entry.attempt.saturating_add(1);
            }
        }
        ended
    }

    /// Returns the next time at which [`Self::tick`] has work.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Returns the first message that may be handed out.
    pub(super) fn next(&self) -> Option<Handed<'_>> {
        let entry = self.entries.get(self.ready.first()?)?;
        Some(entry.handed())
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
    pub(super) fn set_aside(&mut self, tag: u64) -> Key {
        self.set(tag, Stage::Settling { lease: None });
        self.key(tag)
    }

    fn key(&self, tag: u64) -> Key {
        Key { channel: self.channel, tag }
    }

    /// Returns the tag of a message, if it is one of the current channel.
    fn tag(&self, key: Key) -> Option<u64> {
        (key.channel == self.channel && self.entries.contains_key(&key.tag)).then_some(key.tag)
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
    pub(super) fn settle(&mut self, receipt: &Receipt, now: Instant) -> Result<Key, LeaseError> {
        let (tag, lease, until) = self.leased(&receipt.lease(), now)?;
        self.set(tag, Stage::Settling { lease: Some((lease, until)) });
        Ok(self.key(tag))
    }

    /// Returns a message. `None`: it is settled, or its channel has ended.
    pub(super) fn get(&self, key: Key) -> Option<Handed<'_>> {
        let entry = self.entries.get(&self.tag(key)?)?;
        Some(entry.handed())
    }

    /// Returns the acks for messages whose settlement has begun. An ack for several messages is for all messages before it, so it
    /// ends before the first message that is not among these, and that the server has as unacked. Leaves out the messages of other
    /// channels.
    pub(super) fn acks(&self, keys: &[Key]) -> Vec<Ack> {
        let mut tags: Vec<_> = keys.iter().filter_map(|key| self.tag(*key)).collect();
        tags.sort_unstable();
        let most = self.leaving.first().copied().unwrap_or(u64::MAX);
        let first = self.entries.keys().zip(&tags).take_while(|(tag, acked)| tag == acked && **tag < most).count();
        let (together, single) = tags.split_at(first);
        let together = together.last().map(|last| Ack { tag: *last, multiple: first > 1 });
        together.into_iter().chain(single.iter().map(|tag| Ack { tag: *tag, multiple: false })).collect()
    }

    /// Ends a settlement: the message is removed from the queue.
    pub(super) fn gone(&mut self, key: Key) {
        if let Some(entry) = self.tag(key).and_then(|tag| self.remove(tag)) {
            self.uncounted.forget(&entry.mail);
        }
    }

    /// Ends a settlement: the message goes back to the server next. `counts`: the attempt counts, if there was one. Returns `false`
    /// if the message is settled, or its channel has ended.
    #[must_use]
    pub(super) fn back(&mut self, key: Key, counts: bool) -> bool {
        let Some(entry) = self.tag(key).and_then(|tag| self.remove(tag)) else { return false };
        self.leaving.insert(key.tag);
        self.returning += 1;
        if counts && entry.was_handed {
            self.uncounted.note_ended(&entry.mail, entry.attempt);
        } else {
            self.uncounted.note(&entry.mail);
        }
        true
    }

    /// Notes that a message was returned to the server.
    pub(super) fn left(&mut self, key: Key) {
        if key.channel == self.channel {
            self.leaving.remove(&key.tag);
        }
    }

    /// Ends a settlement: the message is handed out again from here after `delay`. `counts`: the attempt counts.
    pub(super) fn keep(&mut self, key: Key, delay: Duration, counts: bool, now: Instant) {
        let Some(tag) = self.tag(key) else { return };
        if let Some(entry) = self.entries.get_mut(&tag) {
            entry.attempt = entry.attempt.saturating_add(u32::from(counts));
        }
        self.set(tag, if delay.is_zero() { Stage::Waiting } else { Stage::Held(now + delay) });
    }

    /// Ends a settlement that failed: the lease goes on. A message that was not handed out is held for a while, as the same
    /// settlement may be due again at once.
    pub(super) fn failed(&mut self, key: Key, now: Instant) {
        let Some(entry) = self.tag(key).and_then(|tag| self.entries.get_mut(&tag)) else { return };
        let stage = match entry.stage {
            Stage::Settling { lease: Some((lease, until)) } => Stage::Leased { lease, until },
            Stage::Settling { lease: None } => {
                let delay = AGAIN.ceiling(entry.failures);
                entry.failures = entry.failures.saturating_add(1);
                Stage::Held(now + delay)
            }
            _ => return,
        };
        self.set(key.tag, stage);
    }

    /// Returns `true` if a message is being settled that was handed out, or whose settlement has failed before.
    pub(super) fn was_tried(&self, key: Key) -> bool {
        let entry = self.tag(key).and_then(|tag| self.entries.get(&tag));
        entry.is_some_and(|entry| matches!(entry.stage, Stage::Settling { lease: Some(_) }) || entry.failures > 0)
    }

    /// Begins to give back all messages that are not in hand, and returns them.
    pub(super) fn rest(&mut self) -> Vec<Key> {
        let free = self.entries.iter().filter(|(_, entry)| entry.is_free());
        let tags: Vec<_> = free.map(|(tag, _)| *tag).collect();
        tags.into_iter().map(|tag| self.set_aside(tag)).collect()
    }

    /// Returns `true` if a message has gone back so often that further returns would soon count as attempts.
    pub(super) fn is_worn(&self) -> bool {
        self.entries.values().any(|entry| entry.mail.deliveries >= ORDERED_RETURNS / 2)
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

    /// Returns the number of messages from this tag on.
    pub(super) fn len_from(&self, tag: u64) -> usize {
        self.entries.range(tag..).count()
    }

    /// Returns the number of messages from this tag on that may stay here for long: those that are in hand or held.
    pub(super) fn busy_from(&self, tag: u64) -> usize {
        let is_busy = |(tag, entry): &(&u64, &Entry)| {
            !self.ready.contains(*tag) && !matches!(entry.stage, Stage::Settling { lease: None })
        };
        self.entries.range(tag..).filter(is_busy).count()
    }

    /// Returns a tag that is greater than those of all messages.
    pub(super) fn next_tag(&self) -> u64 {
        self.entries.last_key_value().map_or(0, |(tag, _)| tag + 1)
    }

    /// Returns `true` if as many messages as the server sends ahead are here, from the tag `from` on, and none of the window can
    /// be handed out.
    pub(super) fn is_stuck(&self, from: u64, window: usize) -> bool {
        let bytes = || self.entries.values().map(|entry| entry.mail.message.body.len()).sum::<usize>();
        self.ready.is_empty() && self.len() < MOST_STUCK && self.len_from(from) >= window && bytes() < MOST_STUCK_BYTES
    }

    /// Returns the number of all messages.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Expects copies of messages, which may come at once.
    pub(super) fn expect_returns(&mut self, count: usize) {
        self.returning += count;
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
