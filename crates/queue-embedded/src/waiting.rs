//! A receive call that waits in the worker until it is answered.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::clock::{Job, QueueTime, Session};
use super::lease::{Received, Source, Ticket, next_visible, release, take};
use super::registration::Registration;
use hostler_queue::{Delivery, QueueError, Receive};

/// A receive call that is not yet answered.
pub(super) struct Waiting {
    source: Arc<Source>,
    request: Receive,
    /// Deadline by the monotonic clock. If no message is visible by then, the call returns without messages.
    deadline: Duration,
    stop: CancellationToken,
    reply: oneshot::Sender<Result<Vec<Delivery>, QueueError>>,
    /// Time at which the next message becomes visible, in milliseconds by the queue's clock. The worker checks the
    /// queue at this time, even if the file has not been written. `None`: no message will become visible unless the
    /// file is written.
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

    /// Returns the time until the worker must check this receive call again.
    pub(super) fn patience(&self, time: &QueueTime) -> Duration {
        let deadline = self.deadline.saturating_sub(time.monotonic());
        match self.due {
            Some(due) => {
                deadline.min(Duration::from_millis(u64::try_from(due.saturating_sub(time.now())).unwrap_or(0)))
            }
            None => deadline,
        }
    }

    /// Returns `true` if a message is visible for this receive call. `changed` is set if the file was written since the
    /// last check of the waiting receive calls. If `changed` is not set and no message is due, returns `false` without
    /// reading the file.
    pub(super) fn look(&mut self, db: &Session<'_>, changed: bool) -> rusqlite::Result<bool> {
        let now = db.now();
        if self.reply.is_closed() || !(changed || self.due.is_some_and(|due| due <= now)) {
            return Ok(false);
        }
        self.due = next_visible(db, self.source.queue)?;
        Ok(self.due.is_some_and(|due| due <= now))
    }

    /// Returns `true` if the rows of the queue and of its dead-letter queue in the table of queues are among the
    /// `registered` rows, which are known to be unchanged.
    pub(super) fn is_registered(&self, registered: &HashSet<Registration>) -> bool {
        self.source.registrations.iter().all(|row| registered.contains(row))
    }

    /// Checks the rows of the queue and of its dead-letter queue in the table of queues, except the `registered` ones.
    /// Adds the unchanged rows to these. Returns what happened to a row. `None`: the rows are unchanged.
    pub(super) fn registration_fault(
        &self,
        db: &Connection,
        registered: &mut HashSet<Registration>,
    ) -> rusqlite::Result<Option<String>> {
        for row in &self.source.registrations {
            if registered.contains(row) {
                continue;
            }
            if let Some(fault) = row.fault(db)? {
                return Ok(Some(fault));
            }
            registered.insert(row.clone());
        }
        Ok(None)
    }

    /// Returns the queue id and the channel of the receive.
    pub(super) fn queue(&self) -> (i64, &str) {
        (self.source.queue, &self.source.name)
    }

    /// Returns the length of the leases under which the receive takes messages.
    pub(super) fn lease(&self) -> Duration {
        self.request.lease
    }

    /// Returns `true` if the receive call must end: the caller has dropped or stopped the call, or the deadline has
    /// passed.
    pub(super) fn is_over(&self, time: &QueueTime) -> bool {
        self.reply.is_closed() || self.stop.is_cancelled() || time.monotonic() >= self.deadline
    }

    pub(super) fn answer(self, answer: Result<Vec<Delivery>, QueueError>) {
        // This answer contains no messages, so nothing is lost if the caller has dropped the receive call.
        let _ = self.reply.send(answer);
    }
}

/// A job that takes visible messages for one receive call.
pub(super) struct Take {
    waiting: Waiting,
    taken: Received,
}

impl Take {
    pub(super) fn new(waiting: Waiting) -> Self {
        Self { waiting, taken: Received::default() }
    }

    /// Returns `true` if the job moved messages to a dead-letter queue.
    pub(super) fn has_buried(&self) -> bool {
        self.taken.buried > 0 || !self.taken.set_aside.is_empty()
    }

    /// Answers the receive call. If there was no message to take and the call may wait longer, does not answer and
    /// returns the call as `Ok(Some(_))`. If the caller has dropped the call, returns, as `Err`, a job that makes the
    /// messages visible again.
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

/// Returns a job that makes the messages of a dropped receive call visible again.
pub(super) fn give_back(
    queue: i64,
    unclaimed: &[Delivery],
) -> impl FnMut(&Session<'_>) -> rusqlite::Result<()> + Send + use<> {
    let tickets: Vec<_> = unclaimed.iter().filter_map(|one| Ticket::parse(one.receipt.as_str())).collect();
    move |db| tickets.iter().try_for_each(|ticket| release(db, queue, *ticket, Duration::ZERO).map(drop))
}
