//! Settles deliveries: acks, requeues, and confirmed copies before acks.

use std::time::Duration;

use hostler_queue::{LeaseError, QueueError, Settlement, Unsettled};
use tokio::time::Instant;

use super::RabbitQueue;
use super::feed::Acks;
use super::triage::Verdict;
use crate::envelope::Parcel;
use crate::fault::lease_error;
use crate::ladder;
use crate::publisher::Routed;
use crate::topology::SERVER_LIMIT;

/// Number of server-counted deliveries from which a message is requeued by a copy, whose deliveries the server counts anew.
const NEAR_THE_LIMIT: u32 = SERVER_LIMIT / 2;

/// How a message leaves this process.
#[derive(Debug)]
enum Way {
    /// Remove it.
    Ack,
    /// Return it to the head of its queue. `counts`: the attempt counts.
    Requeue { counts: bool },
    /// Keep it, and hand it out again later.
    Keep { delay: Duration, counts: bool },
    /// Publish a copy, and then remove it.
    Copy(Box<Parcel>),
}

impl RabbitQueue {
    pub(super) async fn settle_all(&self, batch: Vec<Settlement>) -> Vec<Result<(), Unsettled>> {
        let begun: Vec<_> = batch.iter().map(|settlement| self.begin(settlement)).collect();
        let work = begun.iter().filter_map(|begun| begun.as_ref().ok()).map(|(tag, way)| (*tag, way));
        let mut done = self.carry_out(work.collect()).await.into_iter();
        let result = |(settlement, begun): (Settlement, Result<_, LeaseError>)| {
            let result =
                begun.and_then(|_| done.next().unwrap_or_else(|| Err(LeaseError::Retry("not settled".to_owned()))));
            result.map_err(|error| Unsettled { settlement, error })
        };
        batch.into_iter().zip(begun).map(result).collect()
    }

    /// Settles messages that were not handed out.
    pub(super) async fn dispose(&self, others: Vec<(u64, Verdict)>) {
        let ways: Vec<_> =
            others.iter().filter_map(|(tag, verdict)| Some((*tag, self.way_of(*tag, *verdict)?))).collect();
        let results = self.carry_out(ways.iter().map(|(tag, way)| (*tag, way)).collect()).await;
        for error in results.into_iter().filter_map(Result::err) {
            tracing::warn!(queue = self.shared.source.queue, %error, "cannot settle a message that is not handed out");
        }
    }

    fn way_of(&self, tag: u64, verdict: Verdict) -> Option<Way> {
        let (source, held) = (&self.shared.source, self.shared.lock());
        let message = held.unacked.get(tag)?;
        let (mail, attempts) = (message.mail, message.attempt.saturating_sub(1));
        Some(match verdict {
            Verdict::Deliver => return None,
            Verdict::Refuse => Way::Ack,
            Verdict::Wait(delay) => self.copy_after(delay, |exchange, key| mail.again(exchange, key, attempts)),
            Verdict::WearOut => {
                let reason = format!("received {attempts} times without being settled");
                tracing::warn!(
                    queue = source.queue,
                    message_id = mail.message.id,
                    reason,
                    "dead-lettered by the queue"
                );
                let dead_letters = source.dead_letters.clone()?;
                Way::Copy(Box::new(mail.dead_letter(dead_letters, &reason, &source.channel.to_string(), attempts)))
            }
        })
    }

    /// Begins a settlement, and returns how to carry it out.
    fn begin(&self, settlement: &Settlement) -> Result<(u64, Way), LeaseError> {
        let tag = self.shared.change(|unacked| unacked.settle(settlement.receipt(), Instant::now()))?;
        let way = match settlement {
            Settlement::Ack(_) => Ok(Way::Ack),
            Settlement::Release(_, delay) => Ok(self.release(tag, *delay, true)),
            Settlement::GiveBack(_, delay) => Ok(self.release(tag, *delay, false)),
            Settlement::DeadLetter { reason, .. } => self.dead_letter(tag, reason),
        };
        way.map(|way| (tag, way)).inspect_err(|_| self.shared.change(|unacked| unacked.failed(tag)))
    }

    /// Returns how a message is released. `counts`: the attempt counts.
    fn release(&self, tag: u64, delay: Duration, counts: bool) -> Way {
        let source = &self.shared.source;
        if source.ordered {
            return Way::Keep { delay, counts };
        }
        let held = self.shared.lock();
        let Some(message) = held.unacked.get(tag) else { return Way::Ack };
        let (mail, attempts) = (message.mail, message.attempt.saturating_sub(u32::from(!counts)));
        if delay.is_zero() && mail.deliveries < NEAR_THE_LIMIT {
            return Way::Requeue { counts };
        }
        self.copy_after(delay, |exchange, key| mail.again(exchange, key, attempts))
    }

    /// Returns the way of a copy that comes to this queue after `delay`.
    fn copy_after(&self, delay: Duration, copy: impl FnOnce(String, String) -> Parcel) -> Way {
        let queue = &self.shared.source.queue;
        let parcel = match ladder::rung(&self.shared.service.names, delay, queue) {
            Some(rung) => copy(rung.exchange, rung.key),
            None => copy(String::new(), queue.clone()),
        };
        Way::Copy(Box::new(parcel))
    }

    fn dead_letter(&self, tag: u64, reason: &str) -> Result<Way, LeaseError> {
        let source = &self.shared.source;
        let Some(dead_letters) = &source.dead_letters else {
            return Err(LeaseError::Refused(format!("the queue `{}` has no dead-letter queue", source.queue)));
        };
        let held = self.shared.lock();
        let Some(message) = held.unacked.get(tag) else { return Ok(Way::Ack) };
        let (mail, source) = (message.mail, source.channel.to_string());
        Ok(Way::Copy(Box::new(mail.dead_letter(dead_letters.clone(), reason, &source, message.attempt))))
    }

    /// Carries out settlements that have begun. The result of a copy is `Ok` only after the server has stored it.
    async fn carry_out(&self, work: Vec<(u64, &Way)>) -> Vec<Result<(), LeaseError>> {
        if work.is_empty() {
            return Vec::new();
        }
        let Some(acks) = self.feed.lock().await.as_ref().map(super::feed::Feed::acks) else {
            return work.iter().map(|_| Err(lost())).collect();
        };
        let copies = work
            .iter()
            .filter_map(|(_, way)| if let Way::Copy(parcel) = way { Some((**parcel).clone()) } else { None });
        let copies: Vec<_> = copies.collect();
        let mut stored =
            if copies.is_empty() { Vec::new() } else { self.shared.service.publisher.publish(copies).await }
                .into_iter();
        let mut results = Vec::new();
        for (tag, way) in work {
            let stored = match way {
                Way::Copy(_) => {
                    stored.next().map_or_else(|| Err(LeaseError::Retry("not copied".to_owned())), is_stored)
                }
                _ => Ok(()),
            };
            let result = match stored {
                Ok(()) => self.finish(tag, way, &acks).await,
                Err(error) => {
                    self.shared.change(|unacked| unacked.failed(tag));
                    Err(error)
                }
            };
            results.push(result);
        }
        results
    }

    async fn finish(&self, tag: u64, way: &Way, acks: &Acks) -> Result<(), LeaseError> {
        if !acks.are_of(self.shared.lock().unacked.channel()) {
            return Err(lost());
        }
        let sent = match way {
            Way::Ack | Way::Copy(_) => {
                let acked = acks.ack(tag).await;
                self.shared.change(|unacked| unacked.gone(tag));
                acked
            }
            Way::Requeue { counts } => {
                self.shared.change(|unacked| unacked.back(tag, *counts));
                acks.requeue(tag).await
            }
            Way::Keep { delay, counts } => {
                self.shared.change(|unacked| unacked.keep(tag, *delay, *counts, Instant::now()));
                Ok(())
            }
        };
        sent.map_err(|error| LeaseError::Lost(error.to_string()))
    }
}

fn is_stored(routed: Result<Routed, QueueError>) -> Result<(), LeaseError> {
    match routed {
        Ok(Routed::Stored) => Ok(()),
        Ok(Routed::Nowhere) => Err(LeaseError::Refused(
            "the queue for the copy is missing: run `hostler provision`, or set queue.rabbitmq.provision = \"auto\""
                .to_owned(),
        )),
        Err(error) => Err(lease_error(&error)),
    }
}

fn lost() -> LeaseError {
    LeaseError::Lost("the channel has ended, so RabbitMQ has the message again".to_owned())
}
