//! Settles deliveries: confirmed acknowledgements, returns, and stored copies before acknowledgements.
//!
//! The server has no fence, so an acknowledgement that comes late takes effect on the next delivery. Before each one, the lease is
//! looked at again: a copy or a note may have taken long.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_nats::Subject;
use futures_util::future::join_all;
use hostler_queue::{LeaseError, LeaseHandle, QueueError, Settlement, Unsettled};
use tokio::time::Instant;

use super::STALE;
use super::shared::Shared;
use crate::acks::{DONE, PROGRESS, back_after};
use crate::api::{self, PublishError};
use crate::declare::missing;
use crate::hand::surplus::away;
use crate::hand::{Handed, certain, lost};
use crate::line::Unanswered;

/// Maximum time to wait until a dead letter is stored. The other settlements of a batch wait for it.
const STORED: Duration = Duration::from_secs(3);

/// Maximum time to wait for the answer that shows that an acknowledgement would not come late.
const PROMPT: Duration = Duration::from_secs(1);

/// Delay before a message that cannot be dead-lettered is received again. One that does not fit will not fit soon.
const NOT_YET: Duration = Duration::from_secs(1);
const UNFIT: Duration = Duration::from_secs(60);

impl Shared {
    pub(super) async fn settle_all(self: &Arc<Self>, batch: Vec<Settlement>) -> Vec<Result<(), Unsettled>> {
        let begun: Vec<_> = {
            let now = Instant::now();
            self.change(|hand| batch.iter().map(|settlement| hand.settle(settlement.receipt(), now)).collect())
        };
        let settling = batch.iter().zip(begun).map(|(settlement, begun)| async move {
            let (handed, until) = begun?;
            let end = until.min(handed.certain_until(self.timer()));
            let settled = self.settle(&handed, settlement, end).await;
            settled.inspect_err(|_| self.change(|hand| hand.failed(handed.key, until)))
        });
        let settled = join_all(settling).await;
        let unsettled = |(settlement, result): (Settlement, Result<(), LeaseError>)| {
            result.map_err(|error| Unsettled { settlement, error })
        };
        batch.into_iter().zip(settled).map(unsettled).collect()
    }

    /// Settles a delivery whose lease ends at `end`.
    async fn settle(
        self: &Arc<Self>,
        handed: &Handed,
        settlement: &Settlement,
        end: Instant,
    ) -> Result<(), LeaseError> {
        match settlement {
            Settlement::Ack(_) => self.remove(handed, end).await,
            Settlement::Release(_, delay) => self.back(handed, *delay, end).await,
            Settlement::GiveBack(_, delay) => {
                self.uncount(handed).await;
                self.back(handed, *delay, end).await
            }
            Settlement::DeadLetter { reason, .. } => self.dead_letter(handed, (reason, handed.attempt), end).await,
        }
    }

    /// Extends leases. The server's timer begins anew for each.
    pub(super) async fn extend_all(&self, leases: &[LeaseHandle], by: Duration) -> Vec<Result<(), LeaseError>> {
        let extending = leases.iter().map(|lease| async move {
            let now = Instant::now();
            let reply = self.lock().hand.reply(lease, now)?;
            self.acknowledge(&reply, PROGRESS.to_owned()).await.map_err(|error| self.retry(error))?;
            // The lease may have ended meanwhile. The time counts from before the request.
            if Instant::now() >= now + by {
                return Err(lost());
            }
            self.change(|hand| hand.extend(lease, now + by, now))
        });
        join_all(extending).await
    }

    /// Removes a message from the queue, until `end`.
    async fn remove(self: &Arc<Self>, handed: &Handed, end: Instant) -> Result<(), LeaseError> {
        in_time(end)?;
        self.acknowledge(&handed.reply, DONE.to_owned()).await.map_err(|error| self.retry(error))?;
        self.change(|hand| hand.removed(handed.key));
        if handed.uncounted > 0 {
            let (shared, key) = (Arc::clone(self), handed.key);
            // A task, because nobody waits for it.
            tokio::spawn(async move { shared.service.notes.remove(&shared.source.stream, key).await });
        }
        Ok(())
    }

    /// Returns a message to the queue, where it is visible after `delay`. Does so until `end`. If it is not known whether that took
    /// effect, the lease counts as lost, and the server delivers the message after its own timer at the latest.
    async fn back(&self, handed: &Handed, delay: Duration, end: Instant) -> Result<(), LeaseError> {
        in_time(end)?;
        let due = Instant::now() + delay;
        let back = self.acknowledge(&handed.reply, back_after(delay)).await;
        let (due, result) = match back {
            Ok(()) => (Some(due), Ok(())),
            // If the message went back, another process may have it by now, and a second return would take it from there.
            Err(Unanswered::Failed(why)) => (None, Err(LeaseError::Lost(format!("it may have gone back: {why}")))),
            Err(error) => return Err(self.retry(error)),
        };
        self.change(|hand| hand.went_back(handed.key, due, Instant::now()));
        result
    }

    /// Notes that the present delivery of a message is no attempt. A dead letter's attempts count for nothing.
    async fn uncount(&self, handed: &Handed) {
        let stamp = handed.mail.stamp;
        self.service.notes.write(&self.source.stream, handed.key, stamp.stored_at, handed.uncounted + 1).await;
    }

    /// Stores a copy in the dead-letter queue, and then removes the message, until `end`. `story`: the reason, and the number of
    /// attempts.
    async fn dead_letter(
        self: &Arc<Self>,
        handed: &Handed,
        story: (&str, u32),
        end: Instant,
    ) -> Result<(), LeaseError> {
        let (source, service) = (&self.source, &self.service);
        let Some(dead_letters) = &source.dead_letters else {
            return Err(LeaseError::Refused(format!("the queue `{}` has no dead-letter queue", source.stream)));
        };
        let (channel, stream) = (source.channel.to_string(), service.names.queue(dead_letters));
        let (places, story) = ((&*source.stream, &**dead_letters), (story.0, &*channel, story.1));
        let copy = handed.mail.dead_letter(&service.names, places, story, service.line.max_payload());
        api::publish_within(STORED, &service.line, &stream, copy).await.map_err(|error| match error {
            PublishError::Missing => LeaseError::Refused(missing(&format!("queue `{stream}`")).to_string()),
            PublishError::TooLarge(why) => LeaseError::Unfit(why),
            PublishError::Other(QueueError::Refused(why)) => LeaseError::Refused(why),
            PublishError::Other(QueueError::Unavailable(why))
            | PublishError::Unattended(why)
            | PublishError::Conflict(why) => LeaseError::Retry(why),
        })?;
        self.remove(handed, end).await
    }

    /// Acknowledges a delivery, and waits until the server has taken notice.
    async fn acknowledge(&self, reply: &Subject, acknowledgement: String) -> Result<(), Unanswered> {
        self.service.line.request(reply, None, acknowledgement.into()).await.map(drop)
    }

    /// Returns the error for an acknowledgement that may be repeated.
    fn retry(&self, error: Unanswered) -> LeaseError {
        LeaseError::Retry(match error {
            Unanswered::NoResponders => format!(
                "nobody answers for the stream `{}`: its leader or the stream itself is gone",
                self.source.stream
            ),
            Unanswered::Denied(why) | Unanswered::TooLarge(why) | Unanswered::Unsent(why) | Unanswered::Failed(why) => {
                why
            }
        })
    }

    /// Gives back messages that no handler has seen.
    pub(super) async fn give_back(&self, messages: Vec<Handed>) {
        let giving = messages.iter().map(|handed| async move {
            self.uncount(handed).await;
            self.put_back(handed, Duration::ZERO).await;
        });
        join_all(giving).await;
    }

    /// Gives back messages that wait for their groups, for a while. No handler has seen them.
    pub(super) async fn send_away(&self, messages: Vec<Handed>) {
        tracing::debug!(
            stream = self.source.stream,
            messages = messages.len(),
            "messages go back whose groups are held up, to make room for other groups"
        );
        let sending = messages.iter().map(|handed| async move {
            self.uncount(handed).await;
            self.put_back(handed, away(handed)).await;
        });
        join_all(sending).await;
    }

    /// Gives back messages whose leases have ended. The attempts count.
    pub(super) async fn expire(&self, messages: Vec<Handed>) {
        join_all(messages.iter().map(|handed| self.put_back(handed, Duration::ZERO))).await;
    }

    /// Gives back messages whose time has not come.
    pub(super) async fn postpone(&self, messages: Vec<Handed>) {
        let postponing = messages.iter().map(|handed| async move {
            self.uncount(handed).await;
            let wait = handed.mail.not_before.and_then(|at| at.duration_since(SystemTime::now()).ok());
            self.put_back(handed, wait.unwrap_or_default()).await;
        });
        join_all(postponing).await;
    }

    /// Dead-letters messages that were received too often without being settled.
    pub(super) async fn wear_out(self: &Arc<Self>, messages: Vec<Handed>) {
        let wearing = messages.iter().map(|handed| async move {
            let attempts = handed.attempt.saturating_sub(1);
            let reason = format!("received {attempts} times without being settled");
            let (stream, message_id) = (&self.source.stream, &handed.mail.message.id);
            let end = handed.certain_until(self.timer());
            match self.dead_letter(handed, (&reason, attempts), end).await {
                Ok(()) => tracing::warn!(stream, message_id, reason, "dead-lettered by the queue"),
                Err(error @ LeaseError::Unfit(_)) => {
                    tracing::error!(
                        stream,
                        message_id,
                        %error,
                        "a message that was received too often cannot be dead-lettered, and stays: raise max_payload of NATS"
                    );
                    self.put_back(handed, UNFIT).await;
                }
                Err(error) => {
                    tracing::warn!(stream, message_id, %error, "cannot dead-letter a message yet");
                    self.put_back(handed, NOT_YET).await;
                }
            }
        });
        join_all(wearing).await;
    }

    /// Returns a message that no caller waits for. If that fails, or would come late, the server delivers it again later.
    async fn put_back(&self, handed: &Handed, delay: Duration) {
        let end = self.certain_end(handed).await;
        if let Err(error) = self.back(handed, delay, end).await {
            tracing::debug!(stream = self.source.stream, %error, "NATS delivers a message again later");
            self.change(|hand| hand.went_back(handed.key, None, Instant::now()));
        }
    }

    /// Returns the time until which an acknowledgement takes effect on this delivery and on no other. For a message that has been in
    /// hand for a while, the server first must answer at once: what is sent may wait somewhere on its way.
    async fn certain_end(&self, handed: &Handed) -> Instant {
        let (now, end) = (Instant::now(), handed.certain_until(self.timer()));
        if now.saturating_duration_since(handed.touched) < STALE || now >= end {
            return end;
        }
        let answer = self.service.line.request_within(PROMPT, &handed.reply, None, PROGRESS.into()).await;
        // This message's timer has begun anew, or nothing is certain.
        if answer.is_ok() { certain(now, self.timer()) } else { now }
    }
}

/// # Errors
/// The lease has ended.
fn in_time(end: Instant) -> Result<(), LeaseError> {
    if Instant::now() < end { Ok(()) } else { Err(lost()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn nothing_is_settled_at_the_end_of_a_lease_or_after_it() {
        let end = Instant::now() + PROMPT;
        assert_eq!(in_time(end), Ok(()));
        tokio::time::advance(PROMPT).await;
        assert_eq!(in_time(end), Err(lost()));
    }
}
