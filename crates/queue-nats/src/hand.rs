//! The messages of a queue in this process: their leases, their groups, and the server's timer for each. No I/O.
//!
//! The server has no fence: an acknowledgement of an earlier delivery takes effect as one of the present delivery would. So the
//! ends of leases are kept here, and nothing is sent for a lease that has ended.

pub(crate) mod surplus;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use async_nats::Subject;
use hostler_queue::{LeaseError, LeaseHandle, Receipt};
use hostler_types::Backoff;
use tokio::time::Instant;

use super::envelope::Mail;

/// Delays before another look whether a message is the first of its group, while an earlier one is elsewhere. A follower that has
/// not yet heard of the earlier one's removal hears of it soon.
const AGAIN: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(500));

/// Delay before the attempts of a message are looked up again.
const RECOUNT: Duration = Duration::from_millis(500);

/// Time before the end of the server's timer at which a lease ends at the latest.
const MARGIN: Duration = Duration::from_millis(500);

/// Time before the end of the server's timer from which on nothing is sent that would be the next holder's loss.
const CERTAIN: Duration = Duration::from_secs(1);

/// Time for which a request to let the server's timer begin anew is not repeated.
const TOUCHING: Duration = Duration::from_secs(1);

/// Time for which a returned message counts as visible in this process. Another process may have it since.
const RETURNED: Duration = Duration::from_secs(30);

/// Longest delay of a returned message that is remembered. Those with longer ones may be many, and are not counted as visible from
/// the end of their delays until the server delivers them.
const SOON: Duration = Duration::from_secs(120);

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
    /// It waits for an earlier message of its group, has been looked at so often, and is looked at again at this time.
    Held(u32, Instant),
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
    /// Time at which that number is looked up again.
    recount_at: Instant,
    stage: Stage,
    /// Time at which the server's timer began, at the latest.
    touched: Instant,
    /// Time of the last request to let it begin anew.
    touching: Option<Instant>,
}

impl Entry {
    fn key(&self) -> Key {
        Key { sequence: self.mail.stamp.sequence, deliveries: self.mail.stamp.deliveries }
    }

    fn is_waiting(&self) -> bool {
        matches!(self.stage, Stage::New | Stage::Held(..) | Stage::Ready)
    }

    fn attempt(&self) -> u32 {
        self.mail.stamp.deliveries.saturating_sub(self.uncounted.unwrap_or_default()).max(1)
    }

    /// Returns the time from which on the server may deliver the message again.
    fn timer_end(&self, server: Duration) -> Instant {
        self.touched + server.saturating_sub(MARGIN)
    }

    /// Returns the end of the right to the message, by its lease and by the server's timer. `None`: it is being settled.
    fn end(&self, server: Duration) -> Option<Instant> {
        match self.stage {
            Stage::Leased(until) => Some(until.min(self.timer_end(server))),
            Stage::New | Stage::Held(..) | Stage::Ready => Some(self.timer_end(server)),
            Stage::Leaving => None,
        }
    }

    fn lease_end(&self, server: Duration) -> Option<Instant> {
        self.end(server).filter(|_| matches!(self.stage, Stage::Leased(_)))
    }

    /// Returns the next time at which something is due for this message.
    fn due(&self, server: Duration) -> Option<Instant> {
        [self.end(server), self.touch_at(server)].into_iter().flatten().min()
    }

    /// Returns the time at which the server's timer must begin anew. `None`: the lease ends before.
    fn touch_at(&self, server: Duration) -> Option<Instant> {
        let needs_more = match self.stage {
            Stage::Leased(until) => until > self.timer_end(server),
            Stage::New | Stage::Held(..) | Stage::Ready => true,
            Stage::Leaving => false,
        };
        let half = self.touched + server / 2;
        needs_more.then(|| self.touching.map_or(half, |last| half.max(last + TOUCHING)))
    }

    /// Returns the time at which this is looked at again. `None`: no time is set.
    fn next_look(&self) -> Option<Instant> {
        match self.stage {
            Stage::New if self.uncounted.is_none() => Some(self.recount_at),
            Stage::Held(_, again) => Some(again),
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

impl Handed {
    /// Returns the time until which an acknowledgement certainly comes before the server delivers the message again. `server`: time
    /// after which it does.
    pub(crate) fn certain_until(&self, server: Duration) -> Instant {
        certain(self.touched, server)
    }
}

/// Returns the time until which an acknowledgement takes effect on this delivery, whose timer on the server began at `touched`.
pub(crate) fn certain(touched: Instant, server: Duration) -> Instant {
    touched + server.saturating_sub(CERTAIN)
}

/// The messages in hand.
#[derive(Debug)]
pub(crate) struct Hand {
    ordered: bool,
    /// Time after which the server delivers a message again.
    server: Duration,
    entries: BTreeMap<u64, Entry>,
    /// Messages that went back to the server for at most [`SOON`], and are not known to have been delivered since, with the times
    /// from which on they are visible.
    returned: HashMap<u64, Instant>,
    /// Number of changes after which more may be there to hand out.
    changes: u64,
    /// Next time at which something is due, or an earlier time.
    planned: Option<Instant>,
    /// Set if something is due earlier than [`Self::next_due`] last returned.
    is_sooner: bool,
}

impl Hand {
    pub(crate) fn new(ordered: bool, server: Duration) -> Self {
        let (entries, returned) = (BTreeMap::new(), HashMap::new());
        Self { ordered, server, entries, returned, changes: 0, planned: None, is_sooner: false }
    }

    /// Takes a delivery that the server made at `at`, or later. Returns the lease of an earlier delivery that the server has ended.
    pub(crate) fn arrived(&mut self, mail: Mail, reply: Subject, at: Instant) -> Option<LeaseHandle> {
        let (sequence, deliveries) = (mail.stamp.sequence, mail.stamp.deliveries);
        self.returned.remove(&sequence);
        let old = self.entries.get(&sequence);
        if old.is_some_and(|old| old.mail.stamp.deliveries >= deliveries) {
            return None;
        }
        let lost = old.filter(|old| matches!(old.stage, Stage::Leased(_))).map(|old| old.key().receipt().lease());
        let uncounted = (deliveries <= 1).then_some(0);
        self.changes += 1;
        let (stage, touched, recount_at) = (Stage::New, at, at);
        let entry = Entry { mail, reply, uncounted, recount_at, stage, touched, touching: None };
        self.entries.insert(sequence, entry);
        self.plan(sequence);
        lost
    }

    /// Returns the number of changes after which more may be there to hand out.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns the time after which the server delivers a message again.
    pub(crate) fn server(&self) -> Duration {
        self.server
    }

    /// Takes over the time after which the server delivers a message again. Another host may have changed it.
    pub(crate) fn set_server(&mut self, server: Duration) {
        self.server = server;
        self.is_sooner = true;
    }

    /// Returns `true` if there are no messages in hand.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the messages whose attempts are to be looked up now, each with the time at which the server stored it.
    pub(crate) fn uncounted(&self, now: Instant) -> Vec<(Key, u64)> {
        let unknown = self.entries.values().filter(|entry| entry.stage == Stage::New && entry.uncounted.is_none());
        let due = unknown.filter(|entry| entry.recount_at <= now);
        due.map(|entry| (entry.key(), entry.mail.stamp.stored_at)).collect()
    }

    /// Notes how many deliveries of a message are no attempts. `None`: that cannot be told now. The message waits until it can,
    /// because it may have no attempt left by a wrong number.
    pub(crate) fn count(&mut self, key: Key, uncounted: Option<u32>, now: Instant) {
        if let Some(entry) = self.get_mut(key) {
            entry.uncounted = uncounted.map(|uncounted| uncounted.min(key.deliveries.saturating_sub(1)));
            entry.recount_at = now + RECOUNT;
        }
    }

    /// Returns `true` if there are messages whose attempts cannot be told.
    pub(crate) fn has_uncounted(&self) -> bool {
        self.entries.values().any(|entry| entry.stage == Stage::New && entry.uncounted.is_none())
    }

    /// Takes the new messages for which `is_early` is true out of what can be handed out, because they are about to go back.
    pub(crate) fn early(&mut self, is_early: impl Fn(&Mail) -> bool) -> Vec<Handed> {
        let new = self.entries.values_mut().filter(|entry| entry.stage == Stage::New && entry.uncounted.is_some());
        new.filter(|entry| is_early(&entry.mail)).map(leaving).collect()
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
                    Stage::Held(_, again) => again <= now,
                    Stage::Ready | Stage::Leased(_) | Stage::Leaving => false,
                };
                if is_due {
                    asked.push((entry.key(), entry.mail.subject.clone()));
                }
            }
        }
        asked
    }

    /// Takes the server's answer: the number of the first message under the group's subject, and if the message itself is stored.
    /// The client library reads some subjects as shorter ones, under which the server does not find it.
    pub(crate) fn first_of_group(&mut self, key: Key, first: Option<u64>, is_stored: bool, now: Instant) {
        let Some(entry) = self.get_mut(key).filter(|entry| entry.is_waiting()) else { return };
        if first.is_some_and(|first| first < key.sequence) {
            let looks = if let Stage::Held(looks, _) = entry.stage { looks + 1 } else { 0 };
            entry.stage = Stage::Held(looks, now + AGAIN.ceiling(looks));
        } else if is_stored {
            entry.stage = Stage::Ready;
        } else {
            self.entries.remove(&key.sequence); // It was acked elsewhere.
        }
    }

    /// Returns the time at which messages are looked at again: those that wait for their groups, and those whose attempts are not
    /// known. `None`: no time is set.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        if !self.ordered {
            return self.entries.values().filter_map(Entry::next_look).min();
        }
        let mut groups = HashSet::new();
        let first_ones = self.entries.values().filter(|entry| groups.insert(entry.mail.subject.as_str()));
        first_ones.filter_map(Entry::next_look).min()
    }

    /// Returns the messages that can be handed out, without handing them out.
    pub(crate) fn ready(&self, max: usize) -> Vec<Handed> {
        self.entries.values().filter(|entry| entry.stage == Stage::Ready).take(max).map(handed).collect()
    }

    /// Hands a message out. Returns the receipt, and the time at which the lease began. `None`: the message is no longer here.
    /// One whose timer has run for long is dropped, because the server did not let it begin anew: it delivers the message again
    /// soon.
    pub(crate) fn lease(&mut self, key: Key, lease: Duration, now: Instant) -> Option<(Receipt, Instant)> {
        let half = self.server / 2;
        let entry = self.get_mut(key).filter(|entry| entry.stage == Stage::Ready)?;
        if now >= entry.touched + half {
            self.entries.remove(&key.sequence);
            return None;
        }
        let touched = entry.touched;
        entry.stage = Stage::Leased(touched + lease);
        self.plan(key.sequence);
        Some((key.receipt(), touched))
    }

    /// Extends a lease until `until`, because the server's timer began anew at `now`, or later.
    ///
    /// # Errors
    /// [`LeaseError::Lost`]: the lease has ended.
    pub(crate) fn extend(&mut self, lease: &LeaseHandle, until: Instant, now: Instant) -> Result<(), LeaseError> {
        let key = self.leased(lease, now)?;
        if let Some(entry) = self.get_mut(key) {
            (entry.stage, entry.touched) = (Stage::Leased(until), now);
            self.plan(key.sequence);
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

    /// Begins to settle a leased message. Returns the end of its lease too.
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
            self.plan(key.sequence);
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
    pub(crate) fn went_back(&mut self, key: Key, due: Option<Instant>, now: Instant) {
        if self.get_mut(key).is_some() {
            self.changes += 1;
            self.entries.remove(&key.sequence);
            if let Some(due) = due.filter(|due| *due <= now + SOON) {
                self.returned.insert(key.sequence, due);
            }
        }
    }

    /// Takes out the messages whose leases have ended, because they are about to go back. Forgets those that wait here and whose
    /// timers have ended, because the server delivers them again.
    pub(crate) fn expired(&mut self, now: Instant) -> Vec<Handed> {
        let server = self.server;
        self.returned.retain(|_, due| *due + RETURNED > now);
        self.entries.retain(|_, entry| !entry.is_waiting() || entry.timer_end(server) > now);
        let ended = self.entries.values_mut().filter(|entry| entry.lease_end(server).is_some_and(|end| end <= now));
        ended.map(leaving).collect()
    }

    /// Takes out the messages that are not handed out, because they are about to go back.
    pub(crate) fn give_back(&mut self) -> Vec<Handed> {
        let waiting = self.entries.values_mut().filter(|entry| entry.is_waiting());
        waiting.map(leaving).collect()
    }

    /// Returns the messages whose timers on the server must begin anew. The caller asks the server for that.
    pub(crate) fn begin_touching(&mut self, now: Instant) -> Vec<(Key, Subject)> {
        let server = self.server;
        let due = self.entries.values_mut().filter(|entry| entry.touch_at(server).is_some_and(|at| at <= now));
        let due = due.map(|entry| {
            entry.touching = Some(now);
            (entry.key(), entry.reply.clone())
        });
        due.collect()
    }

    /// Notes that the timer of a message began anew at `at`, or later.
    pub(crate) fn touched(&mut self, key: Key, at: Instant) {
        if let Some(entry) = self.get_mut(key) {
            entry.touched = entry.touched.max(at);
        }
    }

    /// Returns the next time at which a lease ends, or a timer must begin anew.
    pub(crate) fn next_due(&mut self) -> Option<Instant> {
        self.planned = self.entries.values().filter_map(|entry| entry.due(self.server)).min();
        self.is_sooner = false;
        self.planned
    }

    /// Returns `true` once if something is due earlier than [`Self::next_due`] last returned.
    pub(crate) fn is_sooner(&mut self) -> bool {
        std::mem::take(&mut self.is_sooner)
    }

    fn plan(&mut self, sequence: u64) {
        let due = self.entries.get(&sequence).and_then(|entry| entry.due(self.server));
        if let Some(due) = due.filter(|due| self.planned.is_none_or(|planned| *due < planned)) {
            (self.planned, self.is_sooner) = (Some(due), true);
        }
    }

    /// Returns the number of messages in hand that are not handed out, and of all bytes in hand.
    pub(crate) fn waiting(&self) -> (usize, usize) {
        let waiting = self.entries.values().filter(|entry| entry.is_waiting());
        waiting.fold((0, 0), |(count, bytes), entry| (count + 1, bytes + entry.mail.size()))
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

/// Takes a message out of what can be handed out, because it is about to leave.
fn leaving(entry: &mut Entry) -> Handed {
    entry.stage = Stage::Leaving;
    handed(entry)
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
