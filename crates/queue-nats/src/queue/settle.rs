//! Settles deliveries: confirmed acknowledgements, returns, and stored copies before acknowledgements.

use std::time::{Duration, SystemTime};

use async_nats::Subject;
use futures_util::future::join_all;
use hostler_queue::{LeaseError, LeaseHandle, QueueError, Settlement, Unsettled};
use tokio::time::Instant;

use super::shared::Shared;
use crate::acks::{DONE, PROGRESS, back_after};
use crate::api::{self, PublishError};
use crate::declare::missing;
use crate::hand::{Handed, lost};
use crate::line::Unanswered;

impl Shared {
    pub(super) async fn settle_all(&self, batch: Vec<Settlement>) -> Vec<Result<(), Unsettled>> {
        let begun: Vec<_> = {
            let now = Instant::now();
            self.change(|hand| batch.iter().map(|settlement| hand.settle(settlement.receipt(), now)).collect())
        };
        let settling = batch.iter().zip(begun).map(|(settlement, begun)| async move {
            let (handed, until) = begun?;
            let settled = self.settle(&handed, settlement).await;
            settled.inspect_err(|_| self.change(|hand| hand.failed(handed.key, until)))
        });
        let settled = join_all(settling).await;
        let unsettled = |(settlement, result): (Settlement, Result<(), LeaseError>)| {
            result.map_err(|error| Unsettled { settlement, error })
        };
        batch.into_iter().zip(settled).map(unsettled).collect()
    }

    async fn settle(&self, handed: &Handed, settlement: &Settlement) -> Result<(), LeaseError> {
        match settlement {
            Settlement::Ack(_) => self.remove(handed).await,
            Settlement::Release(_, delay) => self.back(handed, *delay).await,
            Settlement::GiveBack(_, delay) => {
                self.uncount(handed).await;
                self.back(handed, *delay).await
            }
            Settlement::DeadLetter { reason, .. } => self.dead_letter(handed, reason).await,
        }
    }

    /// Extends leases. The server's timer begins anew for each.
    pub(super) async fn extend_all(&self, leases: &[LeaseHandle], by: Duration) -> Vec<Result<(), LeaseError>> {
        let extending = leases.iter().map(|lease| async move {
            let now = Instant::now();
            let reply = self.lock().hand.reply(lease, now)?;
            self.acknowledge(&reply, PROGRESS.to_owned()).await?;
            // The lease may have ended meanwhile. The time counts from before the request.
            if Instant::now() >= now + by {
                return Err(lost());
            }
            self.change(|hand| hand.extend(lease, now + by, now))
        });
        join_all(extending).await
    }

    /// Removes a message from the queue.
    async fn remove(&self, handed: &Handed) -> Result<(), LeaseError> {
        self.acknowledge(&handed.reply, DONE.to_owned()).await?;
        self.change(|hand| hand.removed(handed.key));
        Ok(())
    }

    /// Returns a message to the queue, where it is visible after `delay`.
    async fn back(&self, handed: &Handed, delay: Duration) -> Result<(), LeaseError> {
        let due = Instant::now() + delay;
        self.acknowledge(&handed.reply, back_after(delay)).await?;
        self.change(|hand| hand.went_back(handed.key, Some(due)));
        Ok(())
    }

    /// Notes that the present delivery of a message is no attempt. A dead letter's attempts count for nothing.
    async fn uncount(&self, handed: &Handed) {
        let stamp = handed.mail.stamp;
        self.service.notes.write(&self.source.stream, handed.key, stamp.stored_at, handed.uncounted + 1).await;
    }

    async fn dead_letter(&self, handed: &Handed, reason: &str) -> Result<(), LeaseError> {
        self.dead_letter_after(handed, reason, handed.attempt).await
    }

    /// Stores a copy in the dead-letter queue, and then removes the message.
    async fn dead_letter_after(&self, handed: &Handed, reason: &str, attempts: u32) -> Result<(), LeaseError> {
        let (source, service) = (&self.source, &self.service);
        let Some(dead_letters) = &source.dead_letters else {
            return Err(LeaseError::Refused(format!("the queue `{}` has no dead-letter queue", source.stream)));
        };
        let (places, story) = ((&*source.stream, &**dead_letters), (reason, &*source.channel.to_string(), attempts));
        let copy = handed.mail.dead_letter(&service.names, places, story, service.line.max_payload());
        api::publish(&service.line, copy).await.map_err(|error| match error {
            PublishError::Missing => {
                LeaseError::Refused(missing(&format!("queue `{}`", service.names.queue(dead_letters))).to_string())
            }
            PublishError::TooLarge(why) => LeaseError::Unfit(why),
            PublishError::Other(QueueError::Refused(why)) => LeaseError::Refused(why),
            PublishError::Other(QueueError::Unavailable(why)) => LeaseError::Retry(why),
        })?;
        self.remove(handed).await
    }

    /// Acknowledges a delivery, and waits until the server has taken notice.
    async fn acknowledge(&self, reply: &Subject, acknowledgement: String) -> Result<(), LeaseError> {
        let answer = self.service.line.request(reply, None, acknowledgement.into()).await;
        answer.map(drop).map_err(|error| match error {
            Unanswered::NoResponders => LeaseError::Retry(format!(
                "nobody answers for the stream `{}`: its leader or the stream itself is gone",
                self.source.stream
            )),
            Unanswered::Denied(why) | Unanswered::TooLarge(why) | Unanswered::Failed(why) => LeaseError::Retry(why),
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
    pub(super) async fn wear_out(&self, messages: Vec<Handed>) {
        let wearing = messages.iter().map(|handed| async move {
            let attempts = handed.attempt.saturating_sub(1);
            let reason = format!("received {attempts} times without being settled");
            let message_id = &handed.mail.message.id;
            tracing::warn!(stream = self.source.stream, message_id, reason, "dead-lettered by the queue");
            if let Err(error) = self.dead_letter_after(handed, &reason, attempts).await {
                tracing::warn!(stream = self.source.stream, message_id, %error, "cannot dead-letter a message");
                self.put_back(handed, Duration::from_secs(1)).await;
            }
        });
        join_all(wearing).await;
    }

    /// Returns a message that no caller waits for. If that fails, the server delivers it again later.
    async fn put_back(&self, handed: &Handed, delay: Duration) {
        if let Err(error) = self.back(handed, delay).await {
            tracing::debug!(stream = self.source.stream, %error, "NATS delivers a message again later");
            self.change(|hand| hand.went_back(handed.key, None));
        }
    }
}
