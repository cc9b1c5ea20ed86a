//! Settles deliveries on SQS: deletes, visibility changes, and copies to the dead-letter queue.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::super::batch::MAX_ENTRIES;
use super::super::calls::Answers;
use super::super::fault::Fault;
use super::super::in_flight::Leased;
use super::super::json::Entry;
use super::super::payload::is_body;
use super::super::place::Place;
use super::super::send::forward;
use super::super::wire::{beside, is_carried, size, whole_seconds};
use super::{CHANGE, SqsQueue, lost, visibility};
use hostler_queue::parallel::{side_by_side, stopping};
use hostler_queue::{LeaseError, Receipt, Settlement, Unsettled, dead_letter_attributes};
use hostler_types::message::{Claim, MAX_ATTRIBUTES, Message, Outgoing};

const DELETE: &str = "DeleteMessageBatch";

/// A leased delivery and its settlement.
struct Ending {
    /// Position in the caller's batch.
    index: usize,
    settlement: Settlement,
    leased: Leased,
}

type Settled = Vec<(Ending, Result<(), LeaseError>)>;

impl SqsQueue {
    /// Carries out settlements, with separate calls for acks, for releases and for dead letters. Returns the results in
    /// the order of `batch`.
    pub(super) async fn settle_all(&self, batch: Vec<Settlement>) -> Vec<Result<(), Unsettled>> {
        let (now, count) = (Instant::now(), batch.len());
        let (mut acks, mut releases, mut copies, mut settled) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (index, settlement) in batch.into_iter().enumerate() {
            let leased = self.in_flight().get(&settlement.receipt().lease(), now).cloned();
            let list = match (&leased, &settlement) {
                (None, _) => {
                    settled.push((index, Err(Unsettled { settlement, error: lost() })));
                    continue;
                }
                (_, Settlement::Ack(_)) => &mut acks,
                // The dead-letter queue already has a copy, and only the deletion has failed. If the message became
                // visible, another consumer would process it again and send a second copy.
                (Some(leased), Settlement::Release(..) | Settlement::GiveBack(..))
                    if self.in_flight().is_finished(&leased.id) =>
                {
                    &mut acks
                }
                // SQS counts every receive and cannot undo a count. Therefore, giving a message back works like a
                // release.
                (_, Settlement::Release(..) | Settlement::GiveBack(..)) => &mut releases,
                (_, Settlement::DeadLetter { .. }) => &mut copies,
            };
            list.extend(leased.map(|leased| Ending { index, settlement, leased }));
        }
        // The three kinds of settlement run in parallel, so that acks do not wait for copies: the leases of acked
        // messages are no longer extended. Futures that most batches do not need are boxed, so that they are not moved
        // with every batch.
        let (acked, released, dead_lettered) = tokio::join!(
            in_batches(acks, |batch| self.ack(batch)),
            in_batches(releases, |batch| Box::pin(self.release(batch))),
            in_batches(copies, |batch| Box::pin(self.dead_letter(batch))),
        );
        settled.extend(acked.into_iter().chain(released).chain(dead_lettered).map(|(ending, result)| {
            let Ending { index, settlement, .. } = ending;
            (index, result.map_err(|error| Unsettled { settlement, error }))
        }));
        debug_assert_eq!(settled.len(), count);
        settled.sort_by_key(|(index, _)| *index);
        settled.into_iter().map(|(_, result)| result).collect()
    }

    /// Deletes messages that are still leased.
    async fn ack(&self, endings: Vec<Ending>) -> Settled {
        let what = self.what(DELETE);
        let answers = while_leased(&what, &endings, self.ask_to_delete(&endings, &what)).await;
        self.deleted(endings, answers, &what).await
    }

    async fn ask_to_delete(&self, endings: &[Ending], what: &str) -> Answers {
        let entries: Vec<_> = deletes(endings.iter().map(|ending| ending.settlement.receipt())).collect();
        let (clients, address) = (&self.service.clients, &self.place.address);
        Answers::of_call(clients.delete(address, &entries, what).await)
    }

    /// Deletes finished messages that were delivered again. Runs in the background. If a deletion fails, the message is
    /// delivered once more.
    pub(super) fn remove_finished(&self, receipts: Vec<Receipt>) {
        let (service, address, what) = (Arc::clone(&self.service), Arc::clone(&self.place.address), self.what(DELETE));
        tracing::info!(
            queue = &*self.place.name,
            count = receipts.len(),
            "finished messages were redelivered; removing them"
        );
        self.service.runtime.spawn(async move {
            let entries: Vec<_> = deletes(receipts.iter()).collect();
            let answers = Answers::of_call(service.clients.delete(&address, &entries, &what).await);
            for error in (0..receipts.len()).filter_map(|n| answers.of(&what, n).err()) {
                tracing::debug!(%error, "cannot remove a finished message yet");
            }
        });
    }

    /// Processes the answers to a delete call. Remembers the deleted messages as finished. If this queue owns the
    /// stored bodies of its messages, deletes the bodies of acked messages.
    async fn deleted(&self, endings: Vec<Ending>, answers: Answers, what: &str) -> Settled {
        let settled = share_out(&answers, what, endings);
        let now = Instant::now();
        let mut bodies = Vec::new();
        {
            let mut in_flight = self.in_flight();
            for (ending, _) in settled.iter().filter(|(_, result)| result.is_ok()) {
                in_flight.finish(&ending.leased.id, now);
                in_flight.remove(&ending.settlement.receipt().lease());
                let is_gone = matches!(ending.settlement, Settlement::Ack(_)) && self.owns_bodies;
                bodies.extend(ending.leased.claim.as_ref().filter(|_| is_gone).cloned());
            }
        }
        // Delete the message first, then the object. In the reverse order, a crash could leave a message without its
        // body.
        if !bodies.is_empty() {
            Box::pin(self.discard_all(bodies)).await;
        }
        settled
    }

    /// Deletes the bodies of deleted messages. If a topic may have sent the same message to other queues too, deletes
    /// only bodies that hostler stored for a single queue, according to their keys.
    async fn discard_all(&self, mut bodies: Vec<Arc<Claim>>) {
        let has_others = bodies.iter().any(|body| !is_body(&body.key));
        if has_others && self.service.may_share(&self.place).await {
            bodies.retain(|body| is_body(&body.key));
        }
        let discard = |body: Arc<Claim>| {
            let service = Arc::clone(&self.service);
            async move { service.discard(&body).await }
        };
        side_by_side(bodies.into_iter().map(discard)).await;
    }

    /// Makes messages visible again, each after its own delay.
    async fn release(&self, endings: Vec<Ending>) -> Settled {
        let now = Instant::now();
        let what = self.what(CHANGE);
        let answers = {
            let entries = endings.iter().enumerate().filter_map(|(n, ending)| {
                let (Settlement::Release(receipt, delay) | Settlement::GiveBack(receipt, delay)) = &ending.settlement
                else {
                    return None;
                };
                let seconds = whole_seconds(*delay);
                Some(visibility(n, receipt.as_str(), seconds, (ending.leased.since, now), RELEASE_ON_ITS_WAY))
            });
            let entries: Vec<_> = entries.collect();
            while_leased(&what, &endings, self.change_visibility(&entries, &what)).await
        };
        let settled = share_out(&answers, &what, endings);
        let mut in_flight = self.in_flight();
        for (ending, _) in settled.iter().filter(|(_, result)| result.is_ok()) {
            in_flight.remove(&ending.settlement.receipt().lease());
        }
        drop(in_flight);
        settled
    }

    /// Copies messages to the dead-letter queue, then deletes the copied messages from their queue.
    async fn dead_letter(&self, endings: Vec<Ending>) -> Settled {
        let Some(target) = &self.dead_letters else {
            let refused = || LeaseError::Refused(format!("{} has no dead-letter queue", self.channel));
            return endings.into_iter().map(|ending| (ending, Err(refused()))).collect();
        };
        let (copied, to_copy): (Vec<_>, Vec<_>) = {
            let in_flight = self.in_flight();
            endings.into_iter().partition(|ending| in_flight.is_finished(&ending.leased.id))
        };
        let results = self.copy_all(target, to_copy).await;
        let now = Instant::now();
        let (mut settled, mut gone): (Settled, Vec<Ending>) = (Vec::new(), copied);
        for (ending, result) in results {
            match result {
                Ok(()) => {
                    // The copy exists now, so no second copy may be sent, even if the deletion fails.
                    self.in_flight().finish(&ending.leased.id, now);
                    if ending.leased.until > now { gone.push(ending) } else { settled.push((ending, Err(lost()))) }
                }
                Err(error) => settled.push((ending, Err(error))),
            }
        }
        if !gone.is_empty() {
            let bodies = gone.iter().filter_map(|ending| ending.leased.claim.clone()).map(|body| {
                let service = Arc::clone(&self.service);
                async move { service.try_to_renew(&body).await }
            });
            let renewed = side_by_side(bodies.collect::<Vec<_>>());
            let (removed, _) = tokio::join!(self.ack(gone), renewed);
            settled.extend(removed);
        }
        settled
    }

    /// Copies messages to the dead-letter queue. Messages whose leases end at about the same time share a call. When
    /// the first of these leases ends, the call is abandoned, because SQS may then deliver that message again, and a
    /// copy made later would be a duplicate.
    async fn copy_all(&self, target: &Place, to_copy: Vec<Ending>) -> Settled {
        let calls = by_lease_end(to_copy);
        let work = calls.iter().map(|endings| {
            let (service, target) = (Arc::clone(&self.service), target.clone());
            let copies = endings.iter().map(|ending| self.copy(ending, target.max_message)).collect();
            let first_end = first_end(endings);
            async move { forward(&service, &target, copies, first_end).await }
        });
        let forwarded = side_by_side(work.collect::<Vec<_>>()).await;
        let mut copied = Settled::new();
        for (endings, results) in calls.into_iter().zip(forwarded) {
            let died = || vec![Err(LeaseError::Retry(stopping().to_string())); endings.len()];
            let results = results.unwrap_or_else(died);
            copied.extend(endings.into_iter().zip(results));
        }
        copied
    }

    /// Creates the copy of a message that is sent to the dead-letter queue. `most`: maximum size in bytes of a message
    /// in that queue. SQS gives the copy a new id, so a copy from an ordered queue has the original id as its dedupe
    /// key.
    fn copy(&self, ending: &Ending, most: usize) -> Outgoing {
        let Settlement::DeadLetter { message, reason, .. } = &ending.settlement else {
            return Outgoing::default();
        };
        let dedupe = self.place.ordered.then(|| message.id.clone());
        with_story(bare_copy(message, dedupe), reason, &self.channel, ending.leased.attempt, most)
    }
}

/// Converts a received message to an outgoing one with the same content.
fn bare_copy(message: &Message, dedupe: Option<String>) -> Outgoing {
    Outgoing {
        body: message.body.to_vec(),
        attributes: message.attributes.clone(),
        routing_key: message.routing_key.clone(),
        delay: Duration::ZERO,
        group: message.group.clone(),
        dedupe,
        claim: message.claim.clone(),
        trace: message.trace.clone(),
    }
}

/// Maximum length in bytes of a shortened reason. A reason is shortened if the copy would be too large with the full
/// reason.
const SHORT_REASON: usize = 1024;

/// Adds attributes to a copy that state the reason for the dead-lettering and its circumstances. If there is not enough
/// room, shortens the reason or leaves attributes out. `most`: maximum size in bytes of a message in the dead-letter
/// queue.
fn with_story(mut copy: Outgoing, reason: &str, channel: &str, attempt: u32, most: usize) -> Outgoing {
    let reason: String = reason.chars().map(|char| if is_carried(char) { char } else { ' ' }).collect();
    let reason = if reason.is_empty() { "no reason given" } else { &reason };
    // If the body alone is too large, it is stored in the bucket, and its pointer needs an attribute.
    let goes_apart = copy.claim.is_none() && size(&copy) > most;
    let has_claim = goes_apart || copy.claim.is_some();
    let room = MAX_ATTRIBUTES.saturating_sub(beside(&copy.body, copy.routing_key.is_some(), has_claim));
    let own = copy.attributes;
    // If the copy becomes too large, shorten the reason or omit these attributes, so that the copy can be sent.
    for reason in [reason, &reason[..reason.floor_char_boundary(SHORT_REASON)]] {
        copy.attributes = dead_letter_attributes(&own, reason, channel, Some(attempt), room);
        if goes_apart || size(&copy) <= most {
            return copy;
        }
    }
    copy.attributes = own;
    copy
}

fn share_out(answers: &Answers, what: &str, endings: Vec<Ending>) -> Settled {
    endings.into_iter().enumerate().map(|(n, ending)| (ending, answers.of(what, n))).collect()
}

/// Awaits a call that settles leased messages. Abandons the call when the first of their leases ends. A later
/// confirmation would prove nothing: SQS may by then have delivered the message again with a new receipt, but may still
/// confirm a call with the old one.
async fn while_leased(what: &str, endings: &[Ending], call: impl Future<Output = Answers>) -> Answers {
    match tokio::time::timeout_at(first_end(endings), call).await {
        Ok(answers) => answers,
        Err(_) => Answers::of_call(Err(Fault::Unanswered(format!("{what}: no answer before the lease's end")))),
    }
}

/// Returns the end of the lease that ends first.
fn first_end(endings: &[Ending]) -> Instant {
    endings.iter().map(|ending| ending.leased.until).min().unwrap_or_else(Instant::now)
}

/// Maximum difference between the lease ends of the messages in one call. A call is abandoned when the first of its
/// leases ends, so the other messages lose at most this much of their leases.
const TOGETHER: Duration = Duration::from_secs(1);

/// Groups deliveries by the ends of their leases, earliest first. Within a group, leases end at most [`TOGETHER`]
/// apart.
fn by_lease_end(mut endings: Vec<Ending>) -> Vec<Vec<Ending>> {
    endings.sort_by_key(|ending| ending.leased.until);
    let mut parts: Vec<Vec<Ending>> = Vec::new();
    for ending in endings {
        match parts.last_mut() {
            Some(part) if ending.leased.until <= first_end(part) + TOGETHER => part.push(ending),
            _ => parts.push(vec![ending]),
        }
    }
    parts
}

/// Returns the entries of a call that deletes messages.
fn deletes<'a>(receipts: impl Iterator<Item = &'a Receipt>) -> impl Iterator<Item = Entry<'a>> {
    receipts.enumerate().map(|(n, receipt)| Entry {
        id: n.to_string(),
        receipt_handle: receipt.as_str(),
        visibility_timeout: None,
    })
}

/// Maximum number of seconds that a release may take to reach SQS, including retries by the SDK. SQS counts a release's
/// delay from the arrival of the release, and refuses a delay that ends more than 12 h after the receive call.
/// Therefore, a delay is shortened to end at least this long before the limit of 12 h.
const RELEASE_ON_ITS_WAY: u64 = 60;

/// Splits the endings into batches and makes one call for each batch, one call after the other. If there are no
/// endings, makes no call.
async fn in_batches<F: Future<Output = Settled>>(mut endings: Vec<Ending>, call: impl Fn(Vec<Ending>) -> F) -> Settled {
    let mut settled = Settled::new();
    while !endings.is_empty() {
        let rest = endings.split_off(endings.len().min(MAX_ENTRIES));
        settled.extend(call(std::mem::replace(&mut endings, rest)).await);
    }
    settled
}

#[cfg(test)]
mod tests {
    use super::super::super::calls::Told;
    use super::super::super::in_flight::MessageId;
    use super::super::super::place::example;
    use super::super::super::scripted::Service as Scripted;
    use super::*;
    use hostler_queue::REASON_ATTRIBUTE;
    use hostler_types::message::AttributeValue;

    #[tokio::test(start_paused = true)]
    async fn a_call_is_given_up_when_the_first_of_its_leases_ends() {
        let now = Instant::now();
        let ending = |seconds| {
            let until = now + Duration::from_secs(seconds);
            let leased = Leased { id: MessageId::of("m"), until, since: now, attempt: 1, claim: None };
            Ending { index: 0, settlement: Settlement::Ack(Receipt::new("r")), leased }
        };
        let endings = [ending(7), ending(3), ending(5)];
        let after = |seconds| async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            Answers::of_call(Ok(Told { done: vec!["0".to_owned()], ..Told::default() }))
        };
        assert_eq!(while_leased("x", &endings, after(2)).await.of("x", 0), Ok(()));
        let answers = while_leased("x", &endings, after(9)).await;
        assert_eq!(now.elapsed(), Duration::from_secs(3));
        assert!(matches!(answers.of("x", 0), Err(LeaseError::Retry(_))));
    }

    #[tokio::test]
    async fn a_message_that_is_finished_is_deleted_instead_of_released() {
        let service = Scripted::answering(200);
        let queue = SqsQueue::new(service.behind().await, &"jobs".parse().unwrap(), example("jobs"), None, true);
        let now = Instant::now();
        for name in ["copied", "other"] {
            let id = MessageId::of(name);
            let leased = Leased { id, until: now + Duration::from_secs(30), since: now, attempt: 1, claim: None };
            queue.in_flight().enter(Receipt::new(name).lease(), leased, now);
        }
        queue.in_flight().finish(&MessageId::of("copied"), now);
        let settled = ["copied", "other"].map(|name| Settlement::Release(Receipt::new(name), Duration::ZERO));
        let settled = queue.settle_all(settled.into()).await;
        assert_eq!(settled.len(), 2);
        let calls = service.calls();
        let of = |target: &str| {
            let call = calls.iter().find(|call| call.headers().get("x-amz-target") == Some(target)).unwrap();
            String::from_utf8_lossy(call.body().bytes().unwrap()).into_owned()
        };
        let (deleted, released) = (of("AmazonSQS.DeleteMessageBatch"), of("AmazonSQS.ChangeMessageVisibilityBatch"));
        assert!(deleted.contains("copied") && !deleted.contains("other"), "{deleted}");
        assert!(released.contains("other") && !released.contains("copied"), "{released}");
    }

    #[test]
    fn only_leases_that_end_together_share_a_call() {
        let now = Instant::now();
        let ending = |millis| {
            let until = now + Duration::from_millis(millis);
            let leased = Leased { id: MessageId::of("m"), until, since: now, attempt: 1, claim: None };
            Ending { index: 0, settlement: Settlement::Ack(Receipt::new("r")), leased }
        };
        let parts = by_lease_end([9000, 1000, 2500, 1900, 2000, 2001, 3002].into_iter().map(ending).collect());
        let ends = |part: &Vec<Ending>| part.iter().map(|one| (one.leased.until - now).as_millis()).collect::<Vec<_>>();
        let ends: Vec<_> = parts.iter().map(ends).collect();
        assert_eq!(ends, [vec![1000, 1900, 2000], vec![2001, 2500], vec![3002], vec![9000]]);
    }

    #[test]
    fn a_copy_tells_its_story_as_far_as_the_dead_letter_queue_has_room() {
        let message = |attributes: usize, bytes: usize| Outgoing {
            body: vec![b'x'; bytes],
            attributes: (0..attributes).map(|n| (format!("a{n}"), AttributeValue::Text("x".into()))).collect(),
            ..Outgoing::default()
        };
        let most = 10_000;
        let told = |attributes, bytes| with_story(message(attributes, bytes), "why", "jobs", 3, most).attributes.len();
        let reason = |bytes| {
            let copy = with_story(message(0, bytes), &"x".repeat(5000), "jobs", 3, most);
            copy.attributes.get(REASON_ATTRIBUTE).map(AttributeValue::len)
        };
        assert_eq!((reason(4000), reason(8000), reason(9900)), (Some(5000), Some(SHORT_REASON), None));
        assert_eq!((told(0, 9000), told(7, 9000), told(9, 9000)), (3, 10, 10));
        assert_eq!(told(2, 9970), 2, "it fits without its story only");
        // The stored body's pointer needs one of the ten attributes.
        assert_eq!((told(0, 10_001), told(7, 10_001), told(9, 10_001)), (3, 9, 9));
    }

    #[test]
    fn what_is_moved_for_each_batch_is_small() {
        fn size<F>(_: impl Fn(&'static SqsQueue, Vec<Settlement>) -> F) -> usize {
            size_of::<F>()
        }
        let bytes = size(|queue, batch| queue.settle_all(batch));
        assert!(bytes <= 6 * 1024, "{bytes}");
    }
}
