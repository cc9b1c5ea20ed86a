//! The messages of a queue in this process: their leases, their groups, and the server's timer for each. No I/O.
//!
//! The server has no fence: an acknowledgement of an earlier delivery takes effect as one of the present delivery would. So the
//! ends of leases are kept here, and nothing is sent for a lease that has ended.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use async_nats::Subject;
use hostler_queue::{LeaseError, LeaseHandle, Receipt};
use tokio::time::Instant;

use super::envelope::Mail;

/// Time before another look whether a message is the first of its group, while an earlier one is elsewhere.
pub(crate) const AGAIN: Duration = Duration::from_millis(500);

/// Time before the end of the server's timer at which a lease ends at the latest.
const MARGIN: Duration = Duration::from_millis(500);

/// Time for which a returned message counts as visible in this process. Another process may have it since.
const RETURNED: Duration = Duration::from_secs(30);

/// A delivery: the message's sequence number, and the number of its deliveries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) sequence: u64,
    pub(crate) deliveries: u32,
}

impl Key {
    fn receipt(self) -> Receipt {
        Receipt::new(format!("{}:{}", self.sequence, self.deliveries))
    }

    fn of(lease: &LeaseHandle) -> Option<Self> {
        let (sequence, deliveries) = lease.as_str().split_once(':')?;
        Some(Self { sequence: sequence.parse().ok()?, deliveries: deliveries.parse().ok()? })
    }
}

/// State of a message in hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It has come, and nothing is decided.
    New,
    /// It waits for an earlier message of its group, and is looked at again at this time.
    Held(Instant),
    /// It can be handed out.
    Ready,
    /// It is handed out, with a lease until this time.
    Leased(Instant),
    /// It is being settled.
    Leaving,
}

#[derive(Debug)]
struct Entry {
    mail: Mail,
    /// Subject for acknowledgements.
    reply: Subject,
    /// Number of deliveries that are no attempts. `None`: not known yet.
    uncounted: Option<u32>,
    stage: Stage,
    /// Time at which the server's timer began, at the latest.
    touched: Instant,
}

impl Entry {
    fn key(&self) -> Key {
        Key { sequence: self.mail.stamp.sequence, deliveries: self.mail.stamp.deliveries }
    }

    fn is_waiting(&self) -> bool {
        matches!(self.stage, Stage::New | Stage::Held(_) | Stage::Ready)
    }

    fn attempt(&self) -> u32 {
        self.mail.stamp.deliveries.saturating_sub(self.uncounted.unwrap_or_default()).max(1)
    }

    /// Returns the end of the lease. The server's timer ends it too.
    fn lease_end(&self, server: Duration) -> Option<Instant> {
        match self.stage {
            Stage::Leased(until) => Some(until.min(self.touched + server.saturating_sub(MARGIN))),
            _ => None,
        }
    }
}

/// A message that is looked at.
#[derive(Debug, Clone)]
pub(crate) struct Handed {
    pub(crate) key: Key,
    pub(crate) mail: Mail,
    pub(crate) reply: Subject,
    pub(crate) attempt: u32,
    pub(crate) uncounted: u32,
    /// Time at which the server's timer began, at the latest.
    pub(crate) touched: Instant,
}

/// The messages in hand.
#[derive(Debug)]
pub(crate) struct Hand {
    ordered: bool,
    /// Time after which the server delivers a message again.
    server: Duration,
    entries: BTreeMap<u64, Entry>,
    /// Messages that went back to the server, and are not known to have been delivered since, with the times from which on they
    /// are visible.
    returned: HashMap<u64, Instant>,
    /// Number of changes after which more may be there to hand out.
    changes: u64,
}

impl Hand {
    pub(crate) fn new(ordered: bool, server: Duration) -> Self {
        Self { ordered, server, entries: BTreeMap::new(), returned: HashMap::new(), changes: 0 }
    }

    /// Takes a delivery that came now. Returns the lease of an earlier delivery that the server has ended.
    pub(crate) fn arrived(&mut self, mail: Mail, reply: Subject, now: Instant) -> Option<LeaseHandle> {
        let (sequence, deliveries) = (mail.stamp.sequence, mail.stamp.deliveries);
        self.returned.remove(&sequence);
        let old = self.entries.get(&sequence);
        if old.is_some_and(|old| old.mail.stamp.deliveries >= deliveries) {
            return None;
        }
        let lost = old.filter(|old| matches!(old.stage, Stage::Leased(_))).map(|old| old.key().receipt().lease());
        let uncounted = (deliveries <= 1).then_some(0);
        self.changes += 1;
        self.entries.insert(sequence, Entry { mail, reply, uncounted, stage: Stage::New, touched: now });
        lost
    }

    /// Returns the number of changes after which more may be there to hand out.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns the messages whose attempts are not known, each with the time at which the server stored it.
    pub(crate) fn uncounted(&self) -> Vec<(Key, u64)> {
        let unknown = self.entries.values().filter(|entry| entry.uncounted.is_none() && entry.is_waiting());
        unknown.map(|entry| (entry.key(), entry.mail.stamp.stored_at)).collect()
    }

    /// Notes how many deliveries of a message are no attempts.
    pub(crate) fn count(&mut self, key: Key, uncounted: u32) {
        if let Some(entry) = self.get_mut(key) {
            entry.uncounted = Some(uncounted.min(key.deliveries.saturating_sub(1)));
        }
    }

    /// Takes the new messages for which `is_early` is true out of what can be handed out, because they are about to go back.
    pub(crate) fn early(&mut self, is_early: impl Fn(&Mail) -> bool) -> Vec<Handed> {
        let new = self.entries.values_mut().filter(|entry| entry.stage == Stage::New && entry.uncounted.is_some());
        let early = new.filter(|entry| is_early(&entry.mail)).map(|entry| {
            entry.stage = Stage::Leaving;
            handed(entry)
        });
        early.collect()
    }

    /// Decides on the messages that can be handed out. Returns those of an ordered queue that may be the first of their groups,
    /// with the subjects of their groups: the caller asks the server.
    pub(crate) fn sort(&mut self, now: Instant) -> Vec<(Key, Subject)> {
        if !self.ordered {
            let new = self.entries.values_mut().filter(|entry| entry.stage == Stage::New && entry.uncounted.is_some());
            new.for_each(|entry| entry.stage = Stage::Ready);
            return Vec::new();
        }
        let (mut groups, mut asked) = (HashSet::new(), Vec::new());
        for entry in self.entries.values() {
            // The first of each group in hand decides for the group.
            if groups.insert(entry.mail.subject.as_str()) {
                let is_due = match entry.stage {
                    Stage::New => entry.uncounted.is_some(),
                    Stage::Held(again) => again <= now,
                    Stage::Ready | Stage::Leased(_) | Stage::Leaving => false,
                };
                if is_due {
                    asked.push((entry.key(), entry.mail.subject.clone()));
                }
            }
        }
        asked
    }

    /// Takes the server's answer: the sequence number of the first message of the group. `None`: it is not known.
    pub(crate) fn first_of_group(&mut self, key: Key, first: Option<u64>, now: Instant) {
        let Some(entry) = self.get_mut(key).filter(|entry| entry.is_waiting()) else { return };
        match first {
            Some(first) if first == key.sequence => entry.stage = Stage::Ready,
            // It was acked elsewhere.
            Some(first) if first > key.sequence => drop(self.entries.remove(&key.sequence)),
            _ => entry.stage = Stage::Held(now + AGAIN),
        }
    }

    /// Returns the time at which a message of an ordered queue is looked at again. `None`: no time is set.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        if !self.ordered {
            return None;
        }
        let mut groups = HashSet::new();
        let first_ones = self.entries.values().filter(|entry| groups.insert(entry.mail.subject.as_str()));
        let held = first_ones.filter_map(|entry| match entry.stage {
            Stage::Held(again) => Some(again),
            _ => None,
        });
        held.min()
    }

    /// Returns the messages that can be handed out, without handing them out.
    pub(crate) fn ready(&self, max: usize) -> Vec<Handed> {
        self.entries.values().filter(|entry| entry.stage == Stage::Ready).take(max).map(handed).collect()
    }

    /// Hands a message out. Returns the receipt, and the time at which the lease began. `None`: the message is no longer here.
    pub(crate) fn lease(&mut self, key: Key, lease: Duration) -> Option<(Receipt, Instant)> {
        let entry = self.get_mut(key).filter(|entry| entry.stage == Stage::Ready)?;
        entry.stage = Stage::Leased(entry.touched + lease);
        Some((key.receipt(), entry.touched))
    }

    /// Extends a lease until `until`, because the server's timer began anew at `now`, or later.
    ///
    /// # Errors
    /// [`LeaseError::Lost`]: the lease has ended.
    pub(crate) fn extend(&mut self, lease: &LeaseHandle, until: Instant, now: Instant) -> Result<(), LeaseError> {
        let key = self.leased(lease, now)?;
        if let Some(entry) = self.get_mut(key) {
            (entry.stage, entry.touched) = (Stage::Leased(until), now);
        }
        Ok(())
    }

    /// Returns the delivery of a lease, and the subject for its acknowledgements.
    ///
    /// # Errors
    /// [`LeaseError::Lost`]: the lease has ended.
    pub(crate) fn reply(&self, lease: &LeaseHandle, now: Instant) -> Result<Subject, LeaseError> {
        let key = self.leased(lease, now)?;
        self.entries.get(&key.sequence).map(|entry| entry.reply.clone()).ok_or_else(lost)
    }

    /// Begins to settle a leased message.
    ///
    /// # Errors
    /// [`LeaseError::Lost`]: the lease has ended.
    pub(crate) fn settle(&mut self, receipt: &Receipt, now: Instant) -> Result<(Handed, Instant), LeaseError> {
        let key = self.leased(&receipt.lease(), now)?;
        let entry = self.get_mut(key).ok_or_else(lost)?;
        let Stage::Leased(until) = entry.stage else { return Err(lost()) };
        entry.stage = Stage::Leaving;
        Ok((handed(entry), until))
    }

    /// Takes a message out of what can be handed out, because it is about to leave.
    pub(crate) fn set_aside(&mut self, key: Key) {
        if let Some(entry) = self.get_mut(key) {
            entry.stage = Stage::Leaving;
        }
    }

    /// Gives a lease back that could not be settled.
    pub(crate) fn failed(&mut self, key: Key, until: Instant) {
        if let Some(entry) = self.get_mut(key) {
            entry.stage = Stage::Leased(until);
        }
    }

    /// Forgets a message that was removed from the queue. Every delivery of it is void.
    pub(crate) fn removed(&mut self, key: Key) {
        self.changes += 1;
        self.entries.remove(&key.sequence);
        self.returned.remove(&key.sequence);
    }

    /// Forgets a delivery that went back to the server. `due`: the time from which on the message is visible. `None`: it is not
    /// known if the message went back.
    pub(crate) fn went_back(&mut self, key: Key, due: Option<Instant>) {
        if self.get_mut(key).is_some() {
            self.changes += 1;
            self.entries.remove(&key.sequence);
            if let Some(due) = due {
                self.returned.insert(key.sequence, due);
            }
        }
    }

    /// Takes out the messages whose leases have ended, because they are about to go back.
    pub(crate) fn expired(&mut self, now: Instant) -> Vec<Handed> {
        let server = self.server;
        self.returned.retain(|_, due| *due + RETURNED > now);
        let ended = self.entries.values_mut().filter(|entry| entry.lease_end(server).is_some_and(|end| end <= now));
        let ended = ended.map(|entry| {
            entry.stage = Stage::Leaving;
            handed(entry)
        });
        ended.collect()
    }

    /// Takes out the messages that are not handed out, because they are about to go back.
    pub(crate) fn give_back(&mut self) -> Vec<Handed> {
        let waiting = self.entries.values_mut().filter(|entry| entry.is_waiting());
        let waiting = waiting.map(|entry| {
            entry.stage = Stage::Leaving;
            handed(entry)
        });
        waiting.collect()
    }

    /// Returns the messages whose timers on the server must begin anew.
    pub(crate) fn to_touch(&self, now: Instant) -> Vec<(Key, Subject)> {
        let due = self.entries.values().filter(|entry| self.touch_at(entry).is_some_and(|at| at <= now));
        due.map(|entry| (entry.key(), entry.reply.clone())).collect()
    }

    /// Notes that the timer of a message began anew at `at`, or later.
    pub(crate) fn touched(&mut self, key: Key, at: Instant) {
        if let Some(entry) = self.get_mut(key) {
            entry.touched = entry.touched.max(at);
        }
    }

    /// Returns the time at which the server's timer of a message must begin anew. `None`: its lease ends before.
    fn touch_at(&self, entry: &Entry) -> Option<Instant> {
        let needs_more = match entry.stage {
            Stage::Leased(until) => until > entry.touched + self.server.saturating_sub(MARGIN),
            Stage::New | Stage::Held(_) | Stage::Ready => true,
            Stage::Leaving => false,
        };
        needs_more.then(|| entry.touched + self.server / 2)
    }

    /// Returns the next time at which a lease ends, or a timer must begin anew.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let dues = |entry: &Entry| [entry.lease_end(self.server), self.touch_at(entry)].into_iter().flatten().min();
        self.entries.values().filter_map(dues).min()
    }

    /// Returns the number of messages in hand that are not handed out, and of all bytes in hand.
    pub(crate) fn waiting(&self) -> (usize, usize) {
        let waiting = self.entries.values().filter(|entry| entry.is_waiting());
        waiting.fold((0, 0), |(count, bytes), entry| (count + 1, bytes + entry.mail.message.body.len()))
    }

    /// Returns the number of messages that this process knows to be visible, though the server counts them as delivered.
    pub(crate) fn visible(&self, now: Instant) -> usize {
        let returned = self.returned.values().filter(|due| **due <= now && now < **due + RETURNED);
        self.waiting().0 + returned.count()
    }

    fn leased(&self, lease: &LeaseHandle, now: Instant) -> Result<Key, LeaseError> {
        let key = Key::of(lease).ok_or_else(lost)?;
        let entry = self.entries.get(&key.sequence).filter(|entry| entry.key() == key).ok_or_else(lost)?;
        entry.lease_end(self.server).filter(|end| *end > now).map(|_| key).ok_or_else(lost)
    }

    fn get_mut(&mut self, key: Key) -> Option<&mut Entry> {
        self.entries.get_mut(&key.sequence).filter(|entry| entry.key() == key)
    }
}

fn handed(entry: &Entry) -> Handed {
    Handed {
        key: entry.key(),
        mail: entry.mail.clone(),
        reply: entry.reply.clone(),
        attempt: entry.attempt(),
        uncounted: entry.uncounted.unwrap_or_default(),
        touched: entry.touched,
    }
}

pub(crate) fn lost() -> LeaseError {
    LeaseError::Lost("it has ended, the server delivered the message again, or the message was settled".to_owned())
}

#[cfg(test)]
mod tests;
