//! Settles deliveries: acks, requeues, and confirmed copies before acks.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use hostler_queue::{LeaseError, QueueError, Settlement, Unsettled};
use tokio::time::Instant;

use super::shared::Shared;
use super::triage::{Verdict, goes_back_free};
use crate::envelope::{Mail, Parcel};
use crate::fault::lease_error;
use crate::frame::{self, FrameLimits};
use crate::ladder::{self, Rung};
use crate::publisher::Routed;
use crate::send::cure_of_missing;
use crate::tuning;
use crate::unacked::{Ack, Key};

/// Way in which a message leaves this process.
#[derive(Debug)]
enum Way {
    /// Remove it.
    Ack,
    /// Return it to its queue. `counts`: the attempt counts.
    Requeue { counts: bool },
    /// Keep it, and hand it out again later.
    Keep { delay: Duration, counts: bool },
    /// Publish a copy, and then remove it.
    Copy(Box<Parcel>),
    /// Reject it, as no copy of it can be published in the dead-letter queue.
    Reject,
}

/// Way in which a message is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rejection {
    /// The server dead-letters it.
    DeadLetter,
    /// The server returns it to its queue.
    Return,
    /// It stays in this process.
    Stay,
}

impl Shared {
    /// Settles messages. What was settled counts only after `flush`.
    pub(super) async fn settle_all(
        &self,
        batch: Vec<Settlement>,
        flush: impl Future<Output = Result<(), LeaseError>> + Send,
    ) -> Vec<Result<(), Unsettled>> {
        let begun: Vec<_> = batch.iter().map(|settlement| self.begin(settlement)).collect();
        let (mut work, mut faults) = (Vec::new(), Vec::new());
        for begun in begun {
            match begun {
                Ok(way) => {
                    work.push(way);
                    faults.push(None);
                }
                Err(error) => faults.push(Some(error)),
            }
        }
        let mut done = self.carry_out(work).await;
        if done.iter().any(Result::is_ok)
            && let Err(error) = flush.await
        {
            done.iter_mut().filter(|done| done.is_ok()).for_each(|done| *done = Err(error.clone()));
        }
        let mut done = done.into_iter();
        let result = |(settlement, fault): (Settlement, Option<LeaseError>)| {
            let result = match fault {
                Some(error) => Err(error),
                None => done.next().unwrap_or_else(|| Err(LeaseError::Retry("not settled".to_owned()))),
            };
            result.map_err(|error| Unsettled { settlement, error })
        };
        batch.into_iter().zip(faults).map(result).collect()
    }

    /// Settles messages that are not handed out.
    pub(super) async fn dispose(&self, others: Vec<(Key, Verdict)>) {
        let ways = others.into_iter().filter_map(|(key, verdict)| Some((key, self.way_of(key, verdict)?)));
        self.carry_out_all(ways.collect()).await;
    }

    /// Gives back messages that were sent ahead and are not handed out.
    pub(super) async fn give_back(&self, keys: Vec<Key>) {
        let ways = keys.into_iter().filter_map(|key| Some((key, self.release(key, Duration::ZERO, false)?)));
        self.carry_out_all(ways.collect()).await;
    }

    /// Gives back messages whose leases have ended: by copies that count the attempt, or else as they are.
    pub(super) async fn expire(&self, keys: Vec<Key>) {
        let work: Vec<_> =
            keys.into_iter().filter_map(|key| Some((key, self.release(key, Duration::ZERO, true)?))).collect();
        let keys: Vec<_> = work.iter().map(|(key, _)| *key).collect();
        let results = self.carry_out(work).await;
        let failed = keys.into_iter().zip(results).filter(|(_, result)| result.is_err());
        let again = failed.map(|(key, _)| (key, Way::Requeue { counts: true })).collect();
        self.carry_out_all(again).await;
    }

    /// Carries out settlements that no caller waits for.
    async fn carry_out_all(&self, work: Vec<(Key, Way)>) {
        for error in self.carry_out(work).await.into_iter().filter_map(Result::err) {
            tracing::warn!(queue = self.source.queue, %error, "cannot settle a message that is not handed out");
        }
    }

    fn way_of(&self, key: Key, verdict: Verdict) -> Option<Way> {
        let (source, state) = (&self.source, self.lock());
        let message = state.unacked.get(key)?;
        let (mail, attempts) = (message.mail, message.attempt.saturating_sub(1));
        Some(match verdict {
            Verdict::Deliver => return None,
            Verdict::Refuse => Way::Ack,
            Verdict::Wait(delay) => self.copy_after(mail, delay, message.certain, false),
            Verdict::WearOut => {
                let reason = format!("received {attempts} times without being settled");
                tracing::warn!(
                    queue = source.queue,
                    message_id = mail.message.id,
                    reason,
                    "dead-lettered by the queue"
                );
                let dead_letters = source.dead_letters.clone()?;
                self.dead_letter_of(mail, &dead_letters, &reason, attempts)
            }
        })
    }

    /// Begins a settlement, and returns how to carry it out.
    fn begin(&self, settlement: &Settlement) -> Result<(Key, Way), LeaseError> {
        let key = self.change(|unacked| unacked.settle(settlement.receipt(), Instant::now()))?;
        let way = match settlement {
            Settlement::Ack(_) => Ok(Way::Ack),
            Settlement::Release(_, delay) => self.release(key, *delay, true).ok_or_else(lost),
            Settlement::GiveBack(_, delay) => self.release(key, *delay, false).ok_or_else(lost),
            Settlement::DeadLetter { reason, .. } => self.dead_letter(key, reason),
        };
        way.map(|way| (key, way)).inspect_err(|_| self.change(|unacked| unacked.failed(key, Instant::now())))
    }

    /// Returns how a message is released. `counts`: the attempt counts. `None`: its channel has ended.
    ///
    /// An attempt that counts is carried by a copy. The server's count would not do: from 4.3 it leaves requeues out, and before
    /// it includes messages that no handler has seen.
    fn release(&self, key: Key, delay: Duration, counts: bool) -> Option<Way> {
        let source = &self.source;
        if source.ordered {
            return Some(Way::Keep { delay, counts });
        }
        let state = self.lock();
        let message = state.unacked.get(key)?;
        let (mail, attempts) = (message.mail, message.certain.saturating_add(u32::from(counts)));
        if delay.is_zero() && !counts && goes_back_free(source, mail) {
            return Some(Way::Requeue { counts });
        }
        Some(self.copy_after(mail, delay, attempts, counts))
    }

    /// Returns the way of a copy that comes to this queue after `delay`. `attempts`: the number that the copy carries.
    /// `counts`: the attempt counts.
    fn copy_after(&self, mail: &Mail, delay: Duration, attempts: u32, counts: bool) -> Way {
        let (queue, limits) = (&self.source.queue, self.service.publisher.frame_limits());
        let rung = ladder::rung(&self.service.names, delay, queue);
        match first_fitting(mail, rung, queue, attempts, limits) {
            Some(parcel) => Way::Copy(Box::new(parcel)),
            None => {
                let message_id = &mail.message.id;
                tracing::warn!(
                    queue,
                    message_id,
                    "the headers leave no room for a copy; the message goes back as it is"
                );
                Way::Requeue { counts }
            }
        }
    }

    /// Returns the way of a message to the dead-letter queue.
    fn dead_letter_of(&self, mail: &Mail, dead_letters: &str, reason: &str, attempts: u32) -> Way {
        let (limits, source) = (self.service.publisher.frame_limits(), self.source.channel.to_string());
        let parcel = mail.dead_letter_within(limits.copied(), dead_letters, reason, &source, attempts);
        match copied_within(parcel, limits) {
            Some(parcel) => Way::Copy(Box::new(parcel)),
            None => {
                let (queue, message_id) = (&self.source.queue, &mail.message.id);
                tracing::warn!(
                    queue,
                    message_id,
                    reason,
                    "the headers of the message are too large for a copy, so the server is asked to dead-letter it: {}",
                    tuning::cure()
                );
                Way::Reject
            }
        }
    }

    fn dead_letter(&self, key: Key, reason: &str) -> Result<Way, LeaseError> {
        let source = &self.source;
        let Some(dead_letters) = &source.dead_letters else {
            return Err(LeaseError::Refused(format!("the queue `{}` has no dead-letter queue", source.queue)));
        };
        let state = self.lock();
        let message = state.unacked.get(key).ok_or_else(lost)?;
        Ok(self.dead_letter_of(message.mail, dead_letters, reason, message.attempt))
    }

    /// Carries out settlements that have begun. The result of a copy is `Ok` only after the server has stored it. The others do
    /// not wait for copies, because their leases may end meanwhile.
    async fn carry_out(&self, work: Vec<(Key, Way)>) -> Vec<Result<(), LeaseError>> {
        let mut results: Vec<_> = work.iter().map(|_| Ok(())).collect();
        let (mut removals, mut returns, mut copies, mut rejects) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (n, (key, way)) in work.iter().enumerate() {
            match way {
                Way::Copy(_) => copies.push((n, *key)),
                Way::Ack => removals.push((n, *key)),
                Way::Reject => rejects.push((n, *key)),
                Way::Requeue { counts } => returns.push((n, *key, *counts)),
                Way::Keep { delay, counts } => {
                    self.change(|unacked| unacked.keep(*key, *delay, *counts, Instant::now()));
                }
            }
        }
        let mut failed = self.remove(&removals).await;
        failed.extend(self.requeue(&returns).await);
        let (mut copied, mut stored) = (Vec::new(), self.copy(&work).await.into_iter());
        for (n, key) in copies {
            match stored.next().unwrap_or_else(|| Err(LeaseError::Retry("not copied".to_owned()))) {
                Ok(()) => copied.push((n, key)),
                Err(error) => {
                    self.change(|unacked| unacked.failed(key, Instant::now()));
                    failed.push((n, error));
                }
            }
        }
        failed.extend(self.remove(&copied).await);
        failed.extend(self.reject(&rejects).await);
        for (n, error) in failed {
            if let Some(result) = results.get_mut(n) {
                *result = Err(error);
            }
        }
        results
    }

    /// Publishes the copies. Publishes none of a message that the server has again: it would be a second message.
    async fn copy(&self, work: &[(Key, Way)]) -> Vec<Result<(), LeaseError>> {
        let (mut parcels, mut is_ours) = (Vec::new(), Vec::new());
        for (key, way) in work {
            let Way::Copy(parcel) = way else { continue };
            is_ours.push(self.is_current(key.channel));
            if is_ours.last() == Some(&true) {
                parcels.push((**parcel).clone());
            }
        }
        if parcels.is_empty() {
            return is_ours.iter().map(|_| Err(lost())).collect();
        }
        let coming = parcels.iter().filter(|parcel| parcel.exchange.is_empty() && parcel.key == self.source.queue);
        let coming = coming.count();
        self.change(|unacked| unacked.expect_returns(coming));
        let (published, creates) = (self.service.publisher.publish(parcels).await, self.service.options.create_missing);
        let mut stored = published.into_iter().map(|routed| is_stored(routed, creates));
        let result = |is_ours: bool| if is_ours { stored.next() } else { Some(Err(lost())) };
        is_ours.into_iter().filter_map(result).collect()
    }

    /// Acks messages. Returns the index and the error of each that failed.
    async fn remove(&self, removals: &[(usize, Key)]) -> Vec<(usize, LeaseError)> {
        if removals.is_empty() {
            return Vec::new();
        }
        let keys: Vec<_> = removals.iter().map(|(_, key)| *key).collect();
        let Some((way, acks)) = self.acks_for(&keys) else {
            return removals.iter().map(|(n, _)| (*n, lost())).collect();
        };
        let sent = join_all(acks.iter().map(|ack| way.ack(*ack))).await;
        let failed: Vec<_> = acks.iter().zip(sent).filter_map(|(ack, sent)| Some((*ack, sent.err()?))).collect();
        self.change(|unacked| keys.iter().for_each(|key| unacked.gone(*key)));
        let result = |(n, key): &(usize, Key)| {
            if key.channel != way.number {
                return Some((*n, lost()));
            }
            let of = |ack: &Ack| ack.tag == key.tag || ack.multiple && key.tag < ack.tag;
            if !acks.iter().any(of) {
                return Some((*n, lost()));
            }
            let (_, error) = failed.iter().find(|(ack, _)| of(ack))?;
            Some((*n, LeaseError::Lost(error.to_string())))
        };
        removals.iter().filter_map(result).collect()
    }

    /// Rejects messages of which no copy can be made. Returns the index and the error of each that failed.
    async fn reject(&self, rejects: &[(usize, Key)]) -> Vec<(usize, LeaseError)> {
        if rejects.is_empty() {
            return Vec::new();
        }
        let source = &self.source;
        if !self.has_net.load(Ordering::SeqCst) {
            self.has_net.store(self.service.has_net(&source.channel, source.ordered).await, Ordering::SeqCst);
        }
        let has_net = self.has_net.load(Ordering::SeqCst);
        let mut failed = Vec::new();
        for (n, key) in rejects {
            let was_tried = self.lock().unacked.was_tried(*key);
            let rejected = match rejection(has_net, source.ordered, was_tried) {
                Rejection::DeadLetter => self.send_rejection(*key, false).await,
                Rejection::Return => {
                    let returned = self.send_rejection(*key, true).await;
                    returned.and_then(|()| Err(LeaseError::Lost(too_large(&source.queue))))
                }
                Rejection::Stay => Err(LeaseError::Refused(too_large(&source.queue))),
            };
            if let Err(error) = rejected {
                self.change(|unacked| unacked.failed(*key, Instant::now()));
                failed.push((*n, error));
            }
        }
        failed
    }

    /// Rejects a message. `returns`: the server returns it to its queue.
    async fn send_rejection(&self, key: Key, returns: bool) -> Result<(), LeaseError> {
        let (way, _) = self.acks_for(&[]).ok_or_else(lost)?;
        // What is settled already must not be rejected: the server would close the channel.
        let is_ours = key.channel == way.number && self.lock().unacked.get(key).is_some();
        if !is_ours || returns && !self.change(|unacked| unacked.back(key, true)) {
            return Err(lost());
        }
        let sent = way.reject(key.tag, returns).await;
        // Until then, an ack for several messages leaves this one out.
        self.change(|unacked| if returns { unacked.left(key) } else { unacked.gone(key) });
        sent.map_err(|error| LeaseError::Lost(error.to_string()))
    }

    /// Gives messages back to their queue. Returns the index and the error of each that failed.
    async fn requeue(&self, returns: &[(usize, Key, bool)]) -> Vec<(usize, LeaseError)> {
        if returns.is_empty() {
            return Vec::new();
        }
        let Some((way, _)) = self.acks_for(&[]) else { return returns.iter().map(|(n, ..)| (*n, lost())).collect() };
        let way = &way;
        let send = |(_, key, counts): &(usize, Key, bool)| {
            let (key, counts) = (*key, *counts);
            async move {
                if key.channel != way.number {
                    return Err(lost());
                }
                // What is settled already must not be returned: the server would close the channel.
                if !self.change(|unacked| unacked.back(key, counts)) {
                    return Err(lost());
                }
                let sent = way.requeue(key.tag).await;
                self.change(|unacked| unacked.left(key));
                sent.map_err(|error| LeaseError::Lost(error.to_string()))
            }
        };
        let sent = join_all(returns.iter().map(send)).await;
        returns.iter().zip(sent).filter_map(|((n, ..), sent)| Some((*n, sent.err()?))).collect()
    }
}

/// Returns the dead letter if it can be published.
fn copied_within(parcel: Parcel, limits: FrameLimits) -> Option<Parcel> {
    Some(parcel).filter(|parcel| frame::size(&parcel.properties) <= limits.any())
}

/// Returns how a message is rejected. `has_net`: the server dead-letters what is rejected. `was_tried`: the message was handed
/// out, or rejecting it has failed before.
///
/// Without the net, a message goes back, and the server counts the delivery: a limit to them may end it. A message that was not
/// handed out stays for a while first, as it comes again at once. A message of an ordered queue stays, as its followers would
/// overtake it.
fn rejection(has_net: bool, ordered: bool, was_tried: bool) -> Rejection {
    match (has_net, ordered) {
        (true, _) => Rejection::DeadLetter,
        (false, false) if was_tried => Rejection::Return,
        (false, _) => Rejection::Stay,
    }
}

/// Returns the first copy of a message whose headers fit: down the delay ladder, if it has a rung, or to the queue at once.
fn first_fitting(mail: &Mail, rung: Option<Rung>, queue: &str, attempts: u32, limits: FrameLimits) -> Option<Parcel> {
    let fits = |parcel: &Parcel, most: usize| frame::size(&parcel.properties) <= most;
    let delayed = rung.map(|rung| mail.again(rung.exchange, rung.key, attempts));
    let delayed = delayed.filter(|parcel| fits(parcel, limits.delayed()));
    let at_once = || mail.again(String::new(), queue.to_owned(), attempts);
    delayed.or_else(|| Some(at_once()).filter(|parcel| fits(parcel, limits.copied())))
}

/// Returns the result of a settlement by a copy. `creates`: missing queues are created when a host starts.
fn is_stored(routed: Result<Routed, QueueError>, creates: bool) -> Result<(), LeaseError> {
    match routed {
        Ok(Routed::Stored) => Ok(()),
        Ok(Routed::Nowhere) => {
            Err(LeaseError::Refused(format!("the queue for the copy is missing: {}", cure_of_missing(creates))))
        }
        Err(error) => Err(lease_error(&error)),
    }
}

/// Returns the error of a message that cannot get into the dead-letter queue.
fn too_large(queue: &str) -> String {
    format!(
        "the headers of the message are too large for a copy in the dead-letter queue, and `{queue}` lacks the arguments by which \
         RabbitMQ moves a message itself: {}",
        tuning::cure()
    )
}

fn lost() -> LeaseError {
    LeaseError::Lost("the channel has ended, so RabbitMQ has the message again".to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use lapin::BasicProperties;
    use lapin::message::Delivery;
    use lapin::types::{AMQPValue, FieldTable};

    use super::*;

    /// Its copy does not fit, so it would be worn out again and again.
    #[test]
    fn a_message_without_a_dead_letter_is_rejected() {
        use Rejection::{DeadLetter, Return, Stay};

        let all = [true, false].map(|has_net| {
            [true, false].map(|ordered| [true, false].map(|was_tried| rejection(has_net, ordered, was_tried)))
        });
        assert_eq!(all, [[[DeadLetter; 2]; 2], [[Stay, Stay], [Return, Stay]]]);
    }

    /// A header frame that is too large ends the connection.
    #[test]
    fn a_copy_that_would_grow_too_large_takes_another_way() {
        let limits = FrameLimits::new(10_000);
        let way = |headers: usize, rung: Option<Rung>| {
            let mut delivery = Delivery::mock(1, "".into(), "jobs".into(), false, Vec::new());
            let mut table = FieldTable::default();
            table.insert("h".into(), AMQPValue::LongString("x".repeat(headers).into()));
            delivery.properties = BasicProperties::default().with_headers(table);
            let mail = Mail::read(delivery, |_| false, false, SystemTime::now());
            first_fitting(&mail, rung, "jobs", 2, limits).map(|parcel| parcel.exchange)
        };
        let dead_letter = |most: u32| {
            let mut delivery = Delivery::mock(1, "".into(), "jobs".into(), false, Vec::new());
            let mut table = FieldTable::default();
            table.insert("h".into(), AMQPValue::LongString("x".repeat(9000).into()));
            delivery.properties = BasicProperties::default().with_headers(table);
            let size = u32::try_from(frame::size(&delivery.properties)).unwrap();
            let mail = Mail::read(delivery, |_| false, false, SystemTime::now());
            let limits = FrameLimits::new(size - most);
            copied_within(mail.dead_letter_within(limits.copied(), "dead", "why", "jobs", 3), limits).is_some()
        };
        assert_eq!([0, 8, 9].map(dead_letter), [true, true, false], "the server tolerates 8 bytes");
        let rung = || Some(Rung { exchange: "ladder".to_owned(), key: "1.jobs".to_owned() });
        assert_eq!(way(7000, rung()).as_deref(), Some("ladder"));
        assert_eq!(way(8000, rung()).as_deref(), Some(""), "each level would add to it");
        assert_eq!(way(8000, None).as_deref(), Some(""));
        assert_eq!(way(9800, None), None);
    }
}
