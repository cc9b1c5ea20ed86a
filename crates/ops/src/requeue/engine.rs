//! The requeue loop: receives, sorts, sends and removes messages. At the end, releases the messages that did not move.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::calls::{TRIES, back_off, extend, load, settle};
use super::copy::{Extras, Next, after, outgoing};
use super::groups::Groups;
use super::set_aside::{SetAside, extension};
use super::sort::{Sorter, Verdict};
use super::unremoved::Unremoved;
use super::{Ended, LEASE, MAX_HELD, MoveRequest, Note, Report};
use crate::identity::Identities;
use hostler_queue::{Admin, Delivery, Queue, QueueError, Receipt, Receive, Settlement};
use hostler_types::channel::Channel;
use hostler_types::message::Message;
use hostler_types::{BoxFuture, Bucket};

/// Maximum wait of a receive call. Long enough for SQS to query all of its servers.
const WAIT: Duration = Duration::from_secs(1);

/// Number of messages after which the whole queue counts as inspected, if they are received in a row and none is new. The
/// number of held messages is added, because each of them may be received again. A message is new unless this run
/// received it earlier or it is late ([`Verdict::Late`]).
const STALE: usize = 100;

/// Moves messages as `order` requests. If `stop` is cancelled, ends the run after the current batch. Passes each event
/// to `tell`.
///
/// # Errors
/// A queue cannot be opened or counted, and no message has moved. Later errors are in [`Ended`], beside the counts.
pub fn run<'a>(
    broker: &'a dyn Admin,
    order: MoveRequest,
    stop: &'a CancellationToken,
    tell: &'a mut (dyn FnMut(Note<'_>) + Send),
) -> BoxFuture<'a, Result<(Report, Ended), QueueError>> {
    Box::pin(async move { start(broker, order, false, stop, tell).await.map(|(report, ended, _)| (report, ended)) })
}

/// Inspects messages without moving any. Passes each message that meets the conditions to `tell` as
/// [`Note::WouldMove`]. Because nothing moves, a message that does not meet the conditions does not block later
/// messages of its group. Also returns the groups with messages that could not be read.
pub(in super::super) async fn look(
    broker: &dyn Admin,
    order: MoveRequest,
    stop: &CancellationToken,
    tell: &mut (dyn FnMut(Note<'_>) + Send),
) -> Result<(Report, Ended, Vec<String>), QueueError> {
    start(broker, MoveRequest { dry_run: true, to: None, ..order }, true, stop, tell).await
}

async fn start(
    broker: &dyn Admin,
    order: MoveRequest,
    only_looks: bool,
    stop: &CancellationToken,
    tell: &mut (dyn FnMut(Note<'_>) + Send),
) -> Result<(Report, Ended, Vec<String>), QueueError> {
    let queue = broker.open_stored(&order.from).await?;
    if let Some(to) = &order.to {
        broker.open_stored(to).await?;
    }
    let depth = broker.depths(std::slice::from_ref(&order.from)).await?.pop().unwrap_or_default();
    let there = depth.total();
    tell(Note::Began { total: there.min(order.max.unwrap_or(u64::MAX)) });
    let began = broker.on_its_clock(order.began);
    let mut run = Run {
        sorter: Sorter::new(order.conditions.clone(), began, queue.is_ordered() && !only_looks)
            .with_ids(queue.ids_repeat()),
        identities: Identities::new(&*queue),
        groups: (queue.is_ordered() && only_looks).then(|| Groups::of_batches(queue.limits().receive_batch)),
        bucket: order.rate.filter(|_| !order.dry_run).map(|rate| Bucket::with_one_token(rate, Instant::now())),
        started: Instant::now(),
        held: SetAside::default(),
        extras: Extras { key: true, id: true },
        unremoved: Unremoved::new(queue.ids_repeat()),
        stale: 0,
        lap: 0,
        trouble: None,
        report: Report::default(),
        target: order.to.as_ref().map(Channel::alone),
        broker,
        order,
        queue,
        stop,
        tell,
    };
    let mut ended = run.look_through().await;
    if ended == Ended::Done {
        ended = run.look_again(there).await;
    }
    run.release().await;
    let unfinished = run.groups.as_ref().map(Groups::unfinished).unwrap_or_default();
    let Report { moved, left, failed, .. } = run.report;
    let not_looked_at = there.saturating_sub(moved + left + failed);
    let report = Report { doubled: run.unremoved.count(), not_looked_at, ..run.report };
    Ok((report, ended, unfinished))
}

struct Run<'a> {
    broker: &'a dyn Admin,
    order: MoveRequest,
    queue: Arc<dyn Queue>,
    /// Target queue, without an exchange. `None`: messages are removed instead.
    target: Option<Channel>,
    stop: &'a CancellationToken,
    tell: &'a mut (dyn FnMut(Note<'_>) + Send),
    sorter: Sorter,
    identities: Identities,
    /// Groups received so far. Recorded only by [`look`], and only for an ordered queue.
    groups: Option<Groups>,
    bucket: Option<Bucket>,
    started: Instant,
    held: SetAside,
    /// Additions to the copies that are made from now on. The dedupe key is no longer added once the target has refused
    /// one.
    extras: Extras,
    unremoved: Unremoved,
    /// Number of messages received since the last new one (see [`STALE`]).
    stale: usize,
    /// Number of held messages when the last new message was received.
    lap: usize,
    /// Error because of which nothing more is sent.
    trouble: Option<QueueError>,
    report: Report,
}

/// A message whose copy is to be sent, and the additions to the copy.
struct PendingMove {
    delivery: Delivery,
    extras: Extras,
}

impl Run<'_> {
    async fn look_through(&mut self) -> Ended {
        let mut empty = 0;
        loop {
            if self.stop.is_cancelled() {
                return Ended::Stopped;
            }
            self.extend_held().await;
            let max = self.room().await;
            if max == 0 {
                continue;
            }
            let received = match self.receive(max).await {
                Ok(received) => received,
                Err(error) => return Ended::Broken(error),
            };
            if received.is_empty() {
                empty += 1;
                if empty > 1 || self.is_drained().await {
                    return self.ended_well();
                }
                continue;
            }
            empty = 0;
            self.handle(received).await;
            (self.tell)(Note::Progress(self.report));
            if let Some(error) = self.trouble.take() {
                return Ended::Broken(error);
            }
            if self.left_to_move() == 0 || self.is_lap() {
                return Ended::Done;
            }
            if self.held.len() >= MAX_HELD {
                return Ended::Full;
            }
        }
    }

    /// Receives each incomplete group again, one by one. A group may be incomplete if its batch was full. `there`:
    /// number of messages in the queue at the start of the run.
    async fn look_again(&mut self, there: u64) -> Ended {
        for ids in self.groups.as_ref().map(Groups::to_receive_again).unwrap_or_default() {
            let seen = self.groups.as_ref().map_or(0, Groups::len) as u64;
            if seen >= there || self.left_to_move() == 0 {
                break;
            }
            if self.stop.is_cancelled() {
                return Ended::Stopped;
            }
            self.extend_held().await;
            let given_back = self.held.take(&ids);
            if let Some(groups) = &mut self.groups {
                given_back.iter().for_each(|(id, _)| groups.gave_back(id));
            }
            self.give_back(given_back).await;
            match self.receive(self.queue.limits().receive_batch).await {
                Ok(received) => self.handle(received).await,
                Err(error) => return Ended::Broken(error),
            }
        }
        Ended::Done
    }

    /// Returns the reason why the run ends after an empty receive call. If the run was stopped, an empty call does not
    /// prove that the queue is empty.
    fn ended_well(&self) -> Ended {
        if self.stop.is_cancelled() { Ended::Stopped } else { Ended::Done }
    }

    /// Returns `true` if the queue's own count confirms that no messages are visible.
    async fn is_drained(&mut self) -> bool {
        let depths = self.broker.depths(std::slice::from_ref(&self.order.from)).await;
        depths.is_ok_and(|depths| depths.iter().all(|depth| depth.visible == 0))
    }

    /// Returns `true` if the whole queue counts as inspected, because no message has been new for a long time (see
    /// [`STALE`]).
    fn is_lap(&self) -> bool {
        self.stale > self.lap + STALE
    }

    /// Records that a new message was received.
    fn news(&mut self) {
        self.stale = 0;
        self.lap = self.held.len();
    }

    /// Returns the number of messages that may be received now. If the rate permits none, waits until it permits one,
    /// and then returns zero.
    async fn room(&mut self) -> usize {
        // If there are conditions, most messages of a batch may not match. If there are none, no message beyond the
        // maximum needs to be received.
        let wanted = if self.order.conditions.is_empty() { self.left_to_move() } else { usize::MAX };
        let room = self.queue.limits().receive_batch.min(wanted);
        let Some(bucket) = &mut self.bucket else { return room };
        match bucket.available(Instant::now()) {
            0 => {
                tokio::select! {
                    () = sleep_until(bucket.next_at().map_or_else(Instant::now, Into::into)) => {}
                    () = self.stop.cancelled() => {}
                }
                0
            }
            tokens => room.min(tokens),
        }
    }

    async fn receive(&mut self, max: usize) -> Result<Vec<Delivery>, QueueError> {
        let request = Receive { max, wait: WAIT.min(self.queue.limits().max_wait), lease: LEASE };
        let mut tries = 1;
        loop {
            match self.queue.receive(request, self.stop).await {
                Err(QueueError::Unavailable(_)) if tries < TRIES => back_off(tries).await,
                answer => return answer,
            }
            tries += 1;
        }
    }

    /// Processes a received batch: moves, drops or holds each message.
    async fn handle(&mut self, received: Vec<Delivery>) {
        if self.stop.is_cancelled() {
            return received.into_iter().for_each(|delivery| self.hold(delivery));
        }
        if let Some(groups) = &mut self.groups {
            groups.received(&received);
        }
        for wave in self.sorter.waves(received) {
            if self.trouble.is_some() {
                wave.into_iter().for_each(|delivery| self.hold(delivery));
                continue;
            }
            let mut bodies = self.load(&wave).await;
            let (mut moving, mut again) = (Vec::new(), Vec::new());
            for delivery in wave {
                let id = self.identities.of(&delivery.message);
                if self.unremoved.contains(&delivery.message.id) {
                    again.push(delivery);
                } else if self.came_again(&id).await {
                    self.stale += 1;
                    self.hold(delivery);
                } else {
                    if let Some(groups) = &mut self.groups {
                        groups.add(&delivery.message, id);
                    }
                    let body = bodies.remove(&delivery.message.id);
                    let loaded = body.unwrap_or_else(|| Ok(Arc::clone(&delivery.message)));
                    moving.extend(self.sort(delivery, loaded));
                }
            }
            self.keep_to_maximum(&mut moving);
            match self.target.clone() {
                _ if self.order.dry_run => moving.into_iter().for_each(|delivery| self.would_move(delivery)),
                Some(target) => {
                    let sent = self.send(&target, moving).await;
                    self.remove(sent, again).await;
                }
                None => {
                    if let Some(bucket) = &mut self.bucket {
                        bucket.take(moving.len());
                    }
                    self.remove(moving, again).await;
                }
            }
        }
    }

    /// Returns `true` if the message with this identity was held before, and its lease has ended or was given back.
    async fn came_again(&mut self, id: &str) -> bool {
        self.identities.came_again(&self.queue, &mut self.held, id).await
            || self.groups.as_mut().is_some_and(|groups| groups.came_back(id))
    }

    /// Loads the bodies that are stored outside messages, if a condition reads them.
    async fn load(&mut self, wave: &[Delivery]) -> HashMap<String, Result<Arc<Message>, String>> {
        let elsewhere = wave.iter().filter(|delivery| self.sorter.needs_body() && delivery.message.claim.is_some());
        load(&self.queue, elsewhere.map(|delivery| Arc::clone(&delivery.message)).collect(), LEASE / 3).await
    }

    /// Returns the delivery if its message moves. If it does not, holds and counts the message. `loaded`: the message
    /// with its body, or the reason why the body could not be loaded.
    fn sort(&mut self, delivery: Delivery, loaded: Result<Arc<Message>, String>) -> Option<Delivery> {
        let verdict = match loaded {
            Ok(message) => self.sorter.judge(&message),
            Err(reason) => {
                self.fail(delivery, &reason);
                return None;
            }
        };
        match verdict {
            Verdict::Move => return Some(delivery),
            Verdict::Left => {
                self.report.left += 1;
                self.news();
            }
            Verdict::Behind => self.news(),
            Verdict::Late => self.stale += 1,
        }
        self.hold(delivery);
        None
    }

    /// Holds the messages of `moving` that exceed the request's maximum.
    fn keep_to_maximum(&mut self, moving: &mut Vec<Delivery>) {
        for delivery in moving.split_off(self.left_to_move().min(moving.len())) {
            self.sorter.stays(&delivery.message);
            self.hold(delivery);
        }
    }

    /// Returns the number of messages that may still move until the maximum of the request is reached.
    fn left_to_move(&self) -> usize {
        let left = self.order.max.map_or(u64::MAX, |max| max.saturating_sub(self.report.moved));
        usize::try_from(left).unwrap_or(usize::MAX)
    }

    fn would_move(&mut self, delivery: Delivery) {
        self.news();
        self.report.moved += 1;
        (self.tell)(Note::WouldMove(&delivery.message));
        self.hold(delivery);
    }

    /// Sends copies of messages to the target. Returns the messages whose copies the target accepted, and holds the
    /// others.
    async fn send(&mut self, target: &Channel, moving: Vec<Delivery>) -> Vec<Delivery> {
        let mut sent = Vec::new();
        let mut pending_moves = self.still_ours(moving).await;
        let mut tries = 1;
        while !pending_moves.is_empty() {
            let from = &self.order.from;
            let copy = |pending: &PendingMove| outgoing(&pending.delivery.message, from, pending.extras);
            let batch = pending_moves.iter().map(copy).collect();
            let answers = self.broker.send(target, batch).await;
            let mut later = None;
            for (pending_move, answer) in std::mem::take(&mut pending_moves).into_iter().zip(answers) {
                if let Ok(copy) = &answer {
                    self.sorter.moved(&pending_move.delivery.message, &copy.id);
                }
                match after(answer, pending_move.extras) {
                    Next::Ack => sent.push(pending_move.delivery),
                    Next::Again(extras) => {
                        // Support for dedupe keys depends on the target, whereas the size depends on the message.
                        self.extras.key &= extras.key;
                        pending_moves.push(PendingMove { extras, ..pending_move });
                    }
                    Next::Never(invalid) => self.fail(pending_move.delivery, &invalid.to_string()),
                    Next::Later(error) if self.may_try_again(tries, &pending_move.delivery) => {
                        later = Some(error);
                        pending_moves.push(pending_move);
                    }
                    Next::Later(error) | Next::Refused(error) => {
                        self.fail(pending_move.delivery, &error.to_string());
                        self.trouble = Some(error);
                    }
                }
            }
            if later.is_some() {
                back_off(tries).await;
                tries += 1;
            }
        }
        if !sent.is_empty() {
            // Some copies were accepted. Therefore, the fault lies with the failed messages and not with the queue.
            self.trouble = None;
        }
        if let Some(bucket) = &mut self.bucket {
            bucket.take(sent.len());
        }
        sent
    }

    fn may_try_again(&self, tries: u32, delivery: &Delivery) -> bool {
        tries < TRIES && delivery.leased_at.elapsed() < LEASE / 2
    }

    /// Extends the leases that may be too short for sending and removing their messages. If a lease cannot be extended,
    /// its message counts as failed. Returns the messages to send.
    async fn still_ours(&mut self, moving: Vec<Delivery>) -> Vec<PendingMove> {
        let old = |delivery: &Delivery| delivery.leased_at.elapsed() > LEASE / 4;
        let lease = |(n, one): (usize, &Delivery)| old(one).then(|| (n, one.receipt.lease()));
        let (leases, now) = (moving.iter().enumerate().filter_map(lease).collect(), Instant::now());
        let extended = extend(&self.queue, leases, LEASE).await;
        let mut pending_moves = Vec::new();
        for (n, mut delivery) in moving.into_iter().enumerate() {
            if extended.contains(&n) {
                delivery.leased_at = now;
            } else if old(&delivery) {
                self.fail(delivery, "its lease could not be extended");
                continue;
            }
            pending_moves.push(PendingMove { delivery, extras: self.extras });
        }
        pending_moves
    }

    /// Removes messages from the source. The copies of `sent` were sent, or they are to be dropped. Those of `again` were
    /// sent before, and could not be removed.
    async fn remove(&mut self, sent: Vec<Delivery>, again: Vec<Delivery>) {
        if !sent.is_empty() {
            self.report.moved += sent.len() as u64;
            self.news();
        }
        let all = sent.into_iter().chain(again);
        let acks = all.map(|Delivery { message, receipt, .. }| (message, Settlement::Ack(receipt))).collect();
        for (message, answer) in settle(&self.queue, acks).await {
            match answer {
                Ok(()) => self.unremoved.removed(&message.id),
                Err(error) => {
                    tracing::warn!(message_id = message.id, %error, "not removed from its queue");
                    self.unremoved.add(&message.id);
                }
            }
        }
    }

    /// Counts `delivery` as failed, because its message should move but cannot. Reports the message with `reason`, and
    /// holds it until the end of the run. Later messages of its group do not move either.
    fn fail(&mut self, delivery: Delivery, reason: &str) {
        self.news();
        self.report.failed += 1;
        self.sorter.stays(&delivery.message);
        (self.tell)(Note::Failed { id: &delivery.message.id, reason });
        self.hold(delivery);
    }

    fn hold(&mut self, delivery: Delivery) {
        let id = self.identities.of(&delivery.message);
        self.held.keep(id, delivery.receipt, delivery.leased_at + LEASE);
    }

    /// Extends the leases of held messages. If an extension fails, the next check of the leases retries it. If a lease
    /// is lost, its message is received again and recognized by its id.
    async fn extend_held(&mut self) {
        let now = Instant::now();
        let due = self.held.due(now);
        let by = extension(self.started.elapsed(), self.queue.limits().max_lease);
        for number in extend(&self.queue, due, by).await {
            self.held.extended(number, now + by);
        }
    }

    /// Releases the held messages.
    async fn release(&mut self) {
        let held = self.held.drain();
        self.give_back(held).await;
    }

    async fn give_back(&mut self, held: Vec<(String, Receipt)>) {
        let release = |(id, receipt): (String, Receipt)| (id, Settlement::Release(receipt, Duration::ZERO));
        let releases = held.into_iter().map(release).collect();
        for (id, answer) in settle(&self.queue, releases).await {
            if let Err(error) = answer {
                tracing::warn!(message_id = id, %error, "not released; it becomes visible when its lease ends");
            }
        }
    }
}
