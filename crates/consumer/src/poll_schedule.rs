//! Poll schedule: decides when to start a receive call, and how many messages to request. Also tracks why no receive
//! call starts, and when that reason last changed. No I/O.
//!
//! After each event, the event loop asks the schedule for the next step. While the next step is a receive call, the
//! loop starts the call and asks again. Whether a call starts, and with how many messages, depends on the numbers of
//! free slots and unsettled messages, the rate limit, the operator's pause, the breaker, the calls in progress, and the
//! delay after an error. A busy consumer also waits until several slots are free.

mod rest;

use tokio::time::{Duration, Instant};

use super::Spec;
use super::admission::Admission;
use super::status::Status;
use hostler_queue::{Limits, Receive};
use hostler_types::{Backoff, Bucket};
use rest::{Lull, RestRule};

/// Delays after failed receive calls.
const REST: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(20));

/// Minimum time for which receive calls must have been refused before the consumer gives up. A queue that was just
/// created may not yet be known to all servers of the queue service.
const CERTAIN: Duration = Duration::from_secs(3);

/// Period after the start in which refused receive calls can end the consumer. Later refusals are retried.
const START: Duration = Duration::from_secs(30);

/// Next step of the event loop.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Start this receive call, and query the schedule again.
    Receive(Receive),
    /// Query the schedule again at this time, or after the next event if an event comes first.
    At(Instant),
    /// Query the schedule again after an event.
    Event,
    /// Let the queue rest, and query the schedule again at this time, or after the next event if an event comes first. `None`:
    /// after the next event. Returned once, when the rate limit begins to prevent receives for a long time, or when the breaker
    /// has its probe. The loop itself lets the queue rest on a pause, an open breaker and a drain, because these also stop
    /// receives in progress.
    Rest(Option<Instant>),
}

/// Counts of a consumer's deliveries, by state.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    /// Number of deliveries that hold a slot.
    pub(super) occupied: usize,
    /// Number of deliveries whose guest is running.
    pub(super) running: usize,
    /// Number of unfinished deliveries.
    pub(super) in_hand: usize,
}

/// Result of the last receive call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Brought {
    /// No receive call has ended yet, or only the first one has ended, without messages. The first call does not wait
    /// for messages, so its empty result does not mean that the queue is empty.
    Unknown,
    /// The last receive call returned no messages, or failed.
    Nothing,
    /// The last receive call returned messages, so the queue may contain enough messages for several calls at the same
    /// time.
    Messages,
}

/// Reason why no receive call starts. The health check expects the consumer to poll unless the reason is
/// [`Self::Held`]. The delay after an error and a wait for settlements count as [`Self::Free`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hold {
    /// No reason, or a receive call is in progress.
    Free,
    /// All slots are taken, but no handler is running. Either the processing-timeout hook is deciding, or messages are
    /// waiting for the first message of their FIFO group. Both waits are bounded, so the health check still expects a
    /// poll.
    Taken,
    /// The consumer is not required to poll, because it is paused, the breaker is open, the rate limit is exhausted, or
    /// handlers are running in all slots.
    Held,
}

/// Poll schedule of one consumer.
#[derive(Debug)]
pub(super) struct PollSchedule {
    limits: Limits,
    ordered: bool,
    /// Maximum number of messages that hold a slot, or a place in a batch.
    concurrency: usize,
    lease: Duration,
    wait: Duration,
    bucket: Option<Bucket>,
    /// Maximum number of messages for one receive call.
    batch: usize,
    under_way: usize,
    /// Number of slots reserved for receive calls in progress.
    promised: usize,
    brought: Brought,
    /// Number of consecutive failed receive calls.
    failures: u32,
    rest_until: Option<Instant>,
    /// Time at which a receive call could first have started. Since then, a busy consumer has been waiting for more
    /// free slots, to request a full batch.
    gathering_since: Option<Instant>,
    started_at: Instant,
    /// Time of the first refused receive call. Used only until a receive call has succeeded.
    refused_since: Option<Instant>,
    last_poll_at: Option<Instant>,
    hold: Hold,
    could_poll_since: Option<Instant>,
    rest: RestRule,
}

impl PollSchedule {
    /// Creates the schedule of a consumer that starts at `now`, for a queue with these limits.
    ///
    /// A receive call to an ordered queue may return several messages of one group. The messages after the first may
    /// have to go back, although their receive count has increased. Therefore, the schedule starts with calls for one
    /// message. The batch grows by one message after each call that returns no group twice.
    pub(super) fn new(spec: &Spec, limits: Limits, now: Instant) -> Self {
        Self {
            limits,
            ordered: spec.ordered,
            concurrency: spec.capacity(),
            lease: spec.lease,
            wait: limits.max_wait.min(spec.longest_poll),
            bucket: spec.rate_limit.map(|rate| Bucket::empty(rate, now)),
            batch: if spec.ordered { 1 } else { limits.receive_batch.max(1) },
            under_way: 0,
            promised: 0,
            brought: Brought::Unknown,
            failures: 0,
            rest_until: None,
            gathering_since: None,
            started_at: now,
            refused_since: None,
            last_poll_at: None,
            hold: Hold::Free,
            could_poll_since: None,
            rest: RestRule::default(),
        }
    }

    /// Returns the next step at `now`. If the step is a receive call, the call counts as in progress from now on.
    pub(super) fn next<I: Copy + PartialEq>(&mut self, load: Load, admission: &Admission<I>, now: Instant) -> Next {
        let tokens = self.bucket.as_mut().map_or(usize::MAX, |bucket| bucket.available(now));
        let room = admission.room(self.promised).min(tokens);
        if let Some(max) = self.begin(self.free(load).min(room), now) {
            if let Some(bucket) = &mut self.bucket {
                bucket.take(max);
            }
            self.promised += max;
            self.rest.ends();
            // The first receive call does not wait for messages, to find out at once whether the queue refuses it.
            let wait = if self.last_poll_at.is_some() { self.wait } else { Duration::ZERO };
            return Next::Receive(Receive { max, wait, lease: self.lease });
        }
        self.observe(self.hold(load, admission.is_shut(), room), now);
        let gathered = self.gathering_since.map(|since| since + self.limits.settle_linger);
        let token = self.bucket.as_ref().and_then(Bucket::next_at).map(Instant::from);
        // Only future times matter. If a time has passed and no receive call has started, something else prevents the
        // call.
        let ahead = [self.rest_until.or(gathered), token, admission.breaker.next_at()]
            .into_iter()
            .flatten()
            .filter(|at| *at > now);
        let next = ahead.min();
        let lull = match next {
            _ if self.under_way > 0 || admission.is_shut() => Lull::None,
            _ if admission.breaker.has_probe() => Lull::Probe,
            Some(at) if tokens == 0 => Lull::Until(at),
            _ => Lull::None,
        };
        if self.rest.begins(lull, now) { Next::Rest(next) } else { next.map_or(Next::Event, Next::At) }
    }

    /// Returns the number of messages that the consumer can accept. A slot is free once its guest has ended. A separate
    /// limit on the number of unfinished deliveries may permit fewer messages than there are free slots.
    fn free(&self, load: Load) -> usize {
        let slots = self.concurrency.saturating_sub(load.occupied + self.promised);
        let most = 2 * self.concurrency + self.limits.settle_batch;
        slots.min(most.saturating_sub(load.in_hand + self.promised))
    }

    /// Starts a receive call, if one may start, and returns the number of messages to request. A call costs the same
    /// for one message as for a full batch, so a busy consumer waits until several slots are free.
    fn begin(&mut self, free: usize, now: Instant) -> Option<usize> {
        if self.rest_until.is_some_and(|until| now < until) {
            return None;
        }
        self.rest_until = None;
        let busy = self.brought == Brought::Messages;
        let at_once = if busy { self.limits.parallel_receives.max(1) } else { 1 };
        if free == 0 || self.under_way >= at_once {
            return None;
        }
        let since = *self.gathering_since.get_or_insert(now);
        if busy && free < self.batch.min(self.concurrency) && now < since + self.limits.settle_linger {
            return None;
        }
        self.gathering_since = None;
        self.under_way += 1;
        Some(free.min(self.batch))
    }

    fn hold(&self, load: Load, is_shut: bool, room: usize) -> Hold {
        let is_full = load.occupied >= self.concurrency;
        match load.running {
            _ if is_shut => Hold::Held,
            _ if self.under_way > 0 => Hold::Free,
            _ if room == 0 => Hold::Held,
            0 if is_full => Hold::Taken,
            _ if is_full => Hold::Held,
            _ => Hold::Free,
        }
    }

    /// Records the reason why no receive call starts. If the reason has changed, records `now` as the time of the
    /// change.
    fn observe(&mut self, hold: Hold, now: Instant) {
        if std::mem::replace(&mut self.hold, hold) != hold {
            self.could_poll_since = Some(now);
        }
    }

    /// Records that a receive call for `asked` messages returned `count` messages. `followers`: number of these
    /// messages that wait for an earlier message of their group.
    pub(super) fn received(&mut self, asked: usize, count: usize, followers: usize, now: Instant) {
        self.answered(asked, count);
        if self.ordered && count > 0 {
            self.batch = if followers > 0 { 1 } else { self.limits.receive_batch.min(self.batch + 1).max(1) };
        }
        self.brought = match count {
            0 if self.last_poll_at.is_none() => Brought::Unknown,
            0 => Brought::Nothing,
            _ => Brought::Messages,
        };
        self.last_poll_at = Some(now);
        self.failures = 0;
    }

    /// Records that a receive call for `asked` messages failed. `refused`: `true` if the queue does not permit the
    /// call. `random`: number from 0 to 1. Returns the delay before the next call, and `true` if the consumer must give
    /// up because the queue has refused all calls since the start.
    pub(super) fn failed(&mut self, asked: usize, refused: bool, now: Instant, random: f64) -> (Duration, bool) {
        self.answered(asked, 0);
        self.brought = Brought::Nothing;
        // Failures of simultaneous calls count as one failure.
        let rest = match self.rest_until.filter(|until| now < *until) {
            Some(until) => until - now,
            None => {
                let rest = REST.rest(self.failures, random);
                self.failures = self.failures.saturating_add(1);
                rest
            }
        };
        self.rest_until = Some(now + rest);
        let gives_up = refused && self.last_poll_at.is_none() && {
            let since = *self.refused_since.get_or_insert(now);
            now >= since + CERTAIN && now < self.started_at + START
        };
        (rest, gives_up)
    }

    fn answered(&mut self, asked: usize, count: usize) {
        self.under_way = self.under_way.saturating_sub(1);
        self.promised = self.promised.saturating_sub(asked);
        if let Some(bucket) = &mut self.bucket {
            bucket.give_back(asked.saturating_sub(count));
            // If the queue returned more messages than requested, the excess is charged to the rate limit too.
            bucket.take(count.saturating_sub(asked));
        }
    }

    /// Records that a received message is not due yet and goes back. The message does not count toward the rate limit.
    pub(super) fn not_due(&mut self) {
        if let Some(bucket) = &mut self.bucket {
            bucket.give_back(1);
        }
    }

    /// Returns the number of receive calls in progress.
    pub(super) fn under_way(&self) -> usize {
        self.under_way
    }

    /// Returns `true` if the last receive call failed or returned no messages. Returns `false` if only the first call
    /// has ended, without messages, because that call did not wait for messages.
    pub(super) fn is_idle(&self) -> bool {
        self.brought == Brought::Nothing
    }

    /// Sets the fields of `status` that the health check uses to judge whether the consumer polls.
    pub(super) fn show(&self, status: &mut Status) {
        status.last_poll_at = self.last_poll_at;
        status.could_poll_since = self.could_poll_since;
        status.held_back = self.hold == Hold::Held;
    }
}

#[cfg(test)]
mod tests;
