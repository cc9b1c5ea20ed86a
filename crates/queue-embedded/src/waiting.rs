//! A receive on its way through the thread: it waits, takes, and is answered.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::clock::{Job, QueueTime, Session};
use super::lease::{Source, Taken, Ticket, next_visible, release, take};
use hostler_queue::{Delivery, QueueError, Receive};

/// A receive that has not been answered yet.
pub(super) struct Waiting {
    source: Arc<Source>,
    request: Receive,
    /// When it ends empty, by the monotonic clock.
    deadline: Duration,
    stop: CancellationToken,
    reply: oneshot::Sender<Result<Vec<Delivery>, QueueError>>,
    /// When a look at the queue is worth while even if nothing is written, in milliseconds since 1970.
    due: Option<i64>,
}

impl Waiting {
    pub(super) fn new(
        source: Arc<Source>,
        request: Receive,
        deadline: Duration,
        stop: CancellationToken,
        reply: oneshot::Sender<Result<Vec<Delivery>, QueueError>>,
    ) -> Self {
        Self { source, request, deadline, stop, reply, due: Some(0) }
    }

    /// How long it can be left alone.
    pub(super) fn patience(&self, time: &QueueTime) -> Duration {
        let deadline = self.deadline.saturating_sub(time.monotonic());
        match self.due {
            Some(due) => {
                deadline.min(Duration::from_millis(u64::try_from(due.saturating_sub(time.now())).unwrap_or(0)))
            }
            None => deadline,
        }
    }

    /// Whether a message is visible. `changed`: something was written since the last look.
    pub(super) fn look(&mut self, db: &Session<'_>, changed: bool) -> rusqlite::Result<bool> {
        let now = db.now();
        if self.reply.is_closed() || !(changed || self.due.is_some_and(|due| due <= now)) {
            return Ok(false);
        }
        self.due = next_visible(db, self.source.queue)?;
        Ok(self.due.is_some_and(|due| due <= now))
    }

    /// The queue that it waits for, and its channel, if that keeps an order.
    pub(super) fn ordered_queue(&self) -> Option<(i64, &str)> {
        self.source.ordered.then_some((self.source.queue, &*self.source.name))
    }

    /// Whether there is nothing more to wait for.
    pub(super) fn is_over(&self, time: &QueueTime) -> bool {
        self.reply.is_closed() || self.stop.is_cancelled() || time.monotonic() >= self.deadline
    }

    pub(super) fn answer(self, answer: Result<Vec<Delivery>, QueueError>) {
        // Only empty answers and errors come this way; nothing is lost with them.
        let _ = self.reply.send(answer);
    }
}

/// A receive that takes what is visible.
pub(super) struct Take {
    waiting: Waiting,
    taken: Taken,
}

impl Take {
    pub(super) fn new(waiting: Waiting) -> Self {
        Self { waiting, taken: Taken::default() }
    }

    /// Whether messages went to the dead-letter queue by it.
    pub(super) fn has_buried(&self) -> bool {
        self.taken.buried > 0 || !self.taken.set_aside.is_empty()
    }

    /// Answers the receive. If it got nothing, because another process was faster, it may wait on; if nobody listens
    /// any more, what it took must go back.
    pub(super) fn end(
        self,
        outcome: Result<(), QueueError>,
        time: &QueueTime,
    ) -> Result<Option<Waiting>, impl Job + use<>> {
        let Self { waiting, taken } = self;
        if outcome.is_ok() {
            taken.set_aside.iter().for_each(|message| message.log(&waiting.source.name));
        }
        let taken = taken.deliveries;
        if outcome.is_ok() && taken.is_empty() && !waiting.is_over(time) {
            return Ok(Some(waiting));
        }
        match waiting.reply.send(outcome.map(|()| taken)) {
            Err(Ok(unclaimed)) => Err(give_back(waiting.source.queue, &unclaimed)),
            Ok(()) | Err(Err(_)) => Ok(None),
        }
    }
}

impl Job for Take {
    fn run(&mut self, db: &Session<'_>) -> rusqlite::Result<()> {
        self.taken = take(db, &self.waiting.source, self.waiting.request)?;
        Ok(())
    }
}

/// Makes messages visible again that were taken for a receive which nobody awaits any more.
pub(super) fn give_back(
    queue: i64,
    unclaimed: &[Delivery],
) -> impl FnMut(&Session<'_>) -> rusqlite::Result<()> + Send + use<> {
    let tickets: Vec<_> = unclaimed.iter().filter_map(|one| Ticket::parse(one.receipt.as_str())).collect();
    move |db| tickets.iter().try_for_each(|ticket| release(db, queue, *ticket, Duration::ZERO).map(drop))
}
