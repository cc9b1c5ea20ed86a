//! The state of the fake service's queues, and a log of calls. Performs no I/O; the caller supplies the time.

use std::collections::btree_map::Entry as Place;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::{Calls, Ending, Logged};
use crate::{
    ChannelSpec, DEDUPE_WINDOW, DEFAULT_GROUP, Delivery, Depth, LeaseError, LeaseHandle, QueueError, Receipt, Receive,
    Sent, Settlement, dead_letter_attributes,
};
use hostler_types::ScheduleState;
use hostler_types::channel::{Channel, Filter};
use hostler_types::job::JobContext;
use hostler_types::message::{MAX_ATTRIBUTES, Message, Outgoing, TraceContext};

/// The state of all queues.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) queues: BTreeMap<String, Vec<Entry>>,
    pub(super) ordered: BTreeMap<String, bool>,
    pub(super) subscriptions: BTreeMap<(String, String), Filter>,
    /// Id and send time of the first message for each scope and deduplication key.
    pub(super) keys: HashMap<(String, String), (String, Instant)>,
    pub(super) next: u64,
    pub(super) calls: Calls,
    pub(super) settled: Vec<Logged<Ending>>,
    pub(super) extended: Vec<Logged<Duration>>,
    pub(super) failing_receives: VecDeque<QueueError>,
    pub(super) failing_extends: VecDeque<LeaseError>,
    pub(super) failing_settles: VecDeque<LeaseError>,
    pub(super) failing_entries: HashMap<String, VecDeque<LeaseError>>,
    pub(super) settles_held: bool,
    pub(super) receives_held: bool,
    pub(super) rests_held: bool,
    /// Leases that a test has taken away, by queue, until [`Queue::taken_back`](crate::Queue::taken_back) returns them.
    pub(super) taken_back: HashMap<String, Vec<LeaseHandle>>,
    /// Values of [`Delivery::not_before`] that a test has set, by message id.
    pub(super) not_before: HashMap<String, Instant>,
    /// Values of [`Delivery::job`] that a test has set, by message id.
    pub(super) jobs: HashMap<String, Arc<dyn JobContext>>,
    /// States of schedules, by name.
    pub(super) schedules: HashMap<String, ScheduleState>,
}

/// A message in a queue.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) message: Arc<Message>,
    pub(super) visible_at: Instant,
    pub(super) lease: Option<u64>,
    pub(super) attempts: u32,
}

impl Entry {
    fn is_leased(&self, now: Instant) -> bool {
        self.lease.is_some() && self.visible_at > now
    }
}

/// Returns the name of the channel's queue, and the name of its dead-letter queue if the channel has one.
fn queues(spec: &ChannelSpec) -> impl Iterator<Item = String> {
    let dead_letters = spec.max_receives.map(|_| spec.channel.dead_letter_queue());
    std::iter::once(spec.channel.queue().to_owned()).chain(dead_letters)
}

/// Returns the exchange and the queue of a fan-out channel.
fn subscription(spec: &ChannelSpec) -> Option<(String, String)> {
    spec.channel.exchange().map(|exchange| (exchange.to_owned(), spec.channel.queue().to_owned()))
}

impl State {
    /// Creates the missing resources of a channel. Leaves existing resources unchanged.
    pub(super) fn declare(&mut self, spec: &ChannelSpec) {
        for queue in queues(spec) {
            if let Place::Vacant(missing) = self.queues.entry(queue) {
                self.ordered.insert(missing.key().clone(), spec.ordered);
                missing.insert(Vec::new());
            }
        }
        if let Some(subscription) = subscription(spec) {
            self.subscriptions.entry(subscription).or_insert_with(|| spec.filter.clone());
        }
    }

    /// Creates the missing resources of a channel. Updates existing resources to the settings in `spec`.
    pub(super) fn establish(&mut self, spec: &ChannelSpec) {
        self.declare(spec);
        self.ordered.extend(queues(spec).map(|queue| (queue, spec.ordered)));
        self.subscriptions.extend(subscription(spec).map(|subscription| (subscription, spec.filter.clone())));
    }

    pub(super) fn entries(&self, queue: &str) -> &[Entry] {
        self.queues.get(queue).map_or(&[], Vec::as_slice)
    }

    pub(super) fn is_ordered(&self, queue: &str) -> bool {
        self.ordered.get(queue).is_some_and(|ordered| *ordered)
    }

    pub(super) fn send(&mut self, channel: &Channel, message: Outgoing, now: Instant, enqueued_at: SystemTime) -> Sent {
        let (scope, queues) = self.route(channel, message.routing_key.as_deref());
        self.next += 1;
        let id = format!("fake-{}", self.next);
        if let Some(key) = message.dedupe.clone() {
            self.keys.retain(|_, (_, sent_at)| now < *sent_at + DEDUPE_WINDOW);
            let (first, _) = self.keys.entry((scope, key)).or_insert_with(|| (id.clone(), now));
            if *first != id {
                return Sent { id: first.clone(), queues: Some(0) };
            }
        }
        let Outgoing { body, attributes, routing_key, delay, group, claim, .. } = message;
        let trace = TraceContext::of(&attributes).map(Arc::new);
        let original =
            Message { id: id.clone(), body: body.into(), attributes, enqueued_at, group, routing_key, claim, trace };
        for queue in &queues {
            let mut copy = original.clone();
            copy.group = copy.group.or(self.is_ordered(queue).then(|| DEFAULT_GROUP.to_owned()));
            self.put(queue, Arc::new(copy), now + delay);
        }
        Sent { id, queues: Some(queues.len()) }
    }

    /// Returns the scope within which deduplication keys are compared (one queue or one exchange), and the queues that
    /// a message reaches.
    fn route(&mut self, channel: &Channel, routing_key: Option<&str>) -> (String, Vec<String>) {
        let queue = channel.queue().to_owned();
        let exchange = match channel.exchange() {
            Some(exchange) => {
                self.queues.entry(queue.clone()).or_default();
                self.subscriptions.entry((exchange.to_owned(), queue)).or_default();
                exchange
            }
            None if self.queues.contains_key(&queue) || !self.subscriptions.keys().any(|(name, _)| *name == queue) => {
                self.queues.entry(queue.clone()).or_default();
                return (format!("queue {queue}"), vec![queue]);
            }
            None => channel.queue(),
        };
        let subscribed = self.subscriptions.iter().filter(|((name, _), _)| name == exchange);
        let passing = subscribed.filter(|(_, filter)| filter.passes(routing_key));
        (format!("exchange {exchange}"), passing.map(|((_, queue), _)| queue.clone()).collect())
    }

    fn put(&mut self, queue: &str, message: Arc<Message>, visible_at: Instant) {
        let entry = Entry { message, visible_at, lease: None, attempts: 0 };
        self.queues.entry(queue.to_owned()).or_default().push(entry);
    }

    pub(super) fn depth(&self, channel: &Channel, now: Instant, wall_clock: SystemTime) -> Depth {
        let entries = self.entries(channel.queue());
        let waits = entries.iter().filter(|entry| entry.visible_at > now).count();
        let in_flight = entries.iter().filter(|entry| entry.is_leased(now)).count();
        Depth {
            visible: (entries.len() - waits) as u64,
            delayed: Some((waits - in_flight) as u64),
            in_flight: Some(in_flight as u64),
            dead_lettered: self.entries(&channel.dead_letter_queue()).len() as u64,
            missing: !self.queues.contains_key(channel.queue()),
            oldest_age: entries.iter().map(|entry| entry.message.age(wall_clock)).max(),
        }
    }

    /// Returns the index of the first message that may be received. If there is none, the error is the time at which
    /// the next message may become visible, or `None` if the queue is empty.
    pub(super) fn next(&self, queue: &str, now: Instant) -> Result<usize, Option<Instant>> {
        let ordered = self.is_ordered(queue);
        let mut groups = HashSet::new();
        let candidates = self.entries(queue).iter().enumerate().filter_map(|(place, entry)| {
            let is_head = groups.insert(entry.message.group.as_deref());
            (is_head || !ordered).then_some((entry.visible_at, place))
        });
        match candidates.min() {
            Some((visible_at, place)) if visible_at <= now => Ok(place),
            first => Err(first.map(|(visible_at, _)| visible_at)),
        }
    }

    pub(super) fn take(&mut self, spec: &ChannelSpec, request: Receive, now: Instant) -> Vec<Delivery> {
        let queue = spec.channel.queue();
        let mut taken = Vec::new();
        while taken.len() < request.max
            && let Ok(place) = self.next(queue, now)
        {
            self.next += 1;
            let lease = self.next;
            let Some(entry) = self.queues.get_mut(queue).and_then(|entries| entries.get_mut(place)) else { break };
            if spec.max_receives.is_some_and(|max| entry.attempts >= max) {
                let reason = format!("received {} times without being settled", entry.attempts);
                self.bury(spec, place, &reason, now);
                continue;
            }
            entry.attempts += 1;
            entry.lease = Some(lease);
            entry.visible_at = now + request.lease;
            let receipt = Receipt::new(lease.to_string());
            taken.push(Delivery {
                message: entry.message.clone(),
                receipt,
                attempt: entry.attempts,
                leased_at: now,
                not_before: self.not_before.get(&entry.message.id).copied(),
                job: self.jobs.get(&entry.message.id).cloned(),
            });
        }
        taken
    }

    fn bury(&mut self, spec: &ChannelSpec, place: usize, reason: &str, now: Instant) {
        let Some(entries) = self.queues.get_mut(spec.channel.queue()) else { return };
        let entry = entries.remove(place);
        let mut copy = Message::clone(&entry.message);
        copy.attributes = dead_letter_attributes(
            &copy.attributes,
            reason,
            &spec.channel.to_string(),
            Some(entry.attempts),
            MAX_ATTRIBUTES,
        );
        self.put(&spec.channel.dead_letter_queue(), Arc::new(copy), now);
    }

    /// Notes the leases of a message as taken away.
    pub(super) fn take_back(&mut self, id: &str) {
        for (queue, entries) in &self.queues {
            let leases = entries.iter().filter(|entry| entry.message.id == id).filter_map(|entry| entry.lease);
            let handles: Vec<_> = leases.map(|lease| Receipt::new(lease.to_string()).lease()).collect();
            if !handles.is_empty() {
                self.taken_back.entry(queue.clone()).or_default().extend(handles);
            }
        }
    }

    /// Returns the index of the message that is leased under this receipt. Fails if the lease has ended, or if a test
    /// requested a failure for the message.
    pub(super) fn leased(&mut self, queue: &str, receipt: &str, now: Instant) -> Result<usize, LeaseError> {
        let lost = || LeaseError::Lost("it has ended, or the message was settled".to_owned());
        let lease: u64 = receipt.parse().map_err(|_| lost())?;
        let mut entries = self.queues.get(queue).into_iter().flatten();
        let place = entries.position(|entry| entry.lease == Some(lease) && entry.is_leased(now)).ok_or_else(lost)?;
        let id = self.queues.get(queue).and_then(|entries| entries.get(place)).map(|entry| &entry.message.id);
        match id.and_then(|id| self.failing_entries.get_mut(id)).and_then(VecDeque::pop_front) {
            Some(error) => Err(error),
            None => Ok(place),
        }
    }

    pub(super) fn extend(&mut self, queue: &str, receipt: &str, by: Duration, now: Instant) -> Result<(), LeaseError> {
        let place = self.leased(queue, receipt, now)?;
        let Some(entry) = self.queues.get_mut(queue).and_then(|entries| entries.get_mut(place)) else { return Ok(()) };
        entry.visible_at = now + by;
        self.extended.push(Logged { id: entry.message.id.clone(), attempt: entry.attempts, at: now, what: by });
        Ok(())
    }

    pub(super) fn settle(
        &mut self,
        spec: &ChannelSpec,
        settlement: &Settlement,
        now: Instant,
    ) -> Result<(), LeaseError> {
        let queue = spec.channel.queue();
        let place = self.leased(queue, settlement.receipt().as_str(), now)?;
        let Some(entry) = self.queues.get_mut(queue).and_then(|entries| entries.get_mut(place)) else { return Ok(()) };
        let (id, attempt) = (entry.message.id.clone(), entry.attempts);
        let what = match settlement {
            Settlement::Ack(_) => {
                self.queues.get_mut(queue).map(|entries| entries.remove(place));
                Ending::Ack
            }
            Settlement::Release(_, delay) => {
                entry.lease = None;
                entry.visible_at = now + *delay;
                Ending::Release(*delay)
            }
            Settlement::GiveBack(_, delay) => {
                entry.lease = None;
                entry.visible_at = now + *delay;
                entry.attempts = entry.attempts.saturating_sub(1);
                Ending::Release(*delay)
            }
            Settlement::DeadLetter { .. } if spec.max_receives.is_none() => {
                return Err(LeaseError::Refused("the queue has no dead-letter queue".to_owned()));
            }
            Settlement::DeadLetter { reason, .. } => {
                self.bury(spec, place, reason, now);
                Ending::DeadLetter(reason.clone())
            }
        };
        self.settled.push(Logged { id, attempt, at: now, what });
        Ok(())
    }
}
