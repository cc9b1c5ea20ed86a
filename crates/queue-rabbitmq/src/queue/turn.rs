//! The turn to receive from an ordered queue, which one host has at a time.
//!
//! A single active consumer keeps two hosts from receiving at the same time. When it ends, however, RabbitMQ sends later messages
//! to a consumer that waits before it sends those that the first had (seen on 3.10). So no consumer waits on the server: a host
//! begins to receive only after the server has taken back the messages of the last one. A queue that is exclusive to the host's
//! connection keeps two hosts from beginning at once.

use std::sync::atomic::Ordering;

use hostler_queue::QueueError;
use lapin::Channel;
use lapin::options::{QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use tokio::time::Instant;

use super::answer::answer;
use super::shared::Shared;
use crate::fault::{is_locked, queue_error};

/// Returns `true` if this host may begin to receive. It then has the turn until [`release`], or until its connection ends.
/// `channel`: used for this alone, because a refusal closes it.
///
/// # Errors
/// The server cannot be asked.
pub(super) async fn take(shared: &Shared, channel: &Channel) -> Result<bool, QueueError> {
    let (queue, turn) = (shared.source.queue.as_str(), name(shared));
    let failed = |error: lapin::Error| queue_error(&format!("cannot take the turn to receive from `{queue}`"), &error);
    let is_free = async || {
        let options = QueueDeclareOptions::durable().passive();
        let found = answer(channel.queue_declare(queue.into(), options, FieldTable::default()), failed).await?;
        Ok::<_, QueueError>(found.consumer_count() == 0)
    };
    // Asked first, because the server logs each refusal of the turn as an error.
    if !is_free().await? {
        return Ok(false);
    }
    let options = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
    let declaring = async {
        match channel.queue_declare(turn.as_str().into(), options, FieldTable::default()).await {
            Err(error) if is_locked(&error) => Ok(false),
            declared => declared.map(|_| true),
        }
    };
    if !answer(declaring, failed).await? {
        return Ok(false);
    }
    shared.has_turn.store(true, Ordering::SeqCst);
    is_free().await
}

/// Gives up the turn, if this host has it.
pub(super) async fn release(shared: &Shared) {
    if !shared.has_turn.swap(false, Ordering::SeqCst) {
        return;
    }
    let turn = name(shared);
    let released = async {
        let channel = shared.service.consuming.channel(Instant::now()).await?;
        let deleting = channel.queue_delete(turn.as_str().into(), QueueDeleteOptions::default());
        answer(deleting, |error| queue_error("cannot give up the turn", &error)).await
    };
    if let Err(error) = released.await {
        tracing::debug!(%error, "the turn ends with the connection");
    }
}

fn name(shared: &Shared) -> String {
    shared.service.names.turn(&shared.source.queue)
}
