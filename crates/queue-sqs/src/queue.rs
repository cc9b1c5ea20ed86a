//! One SQS queue, as a consumer uses it: receives messages and extends leases.

mod settle;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_sqs::operation::receive_message::ReceiveMessageInput;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::batch::MAX_ENTRIES;
use super::calls::Answers;
use super::clients::{BEYOND_WAIT, MAX_WAIT};
use super::fault::Fault;
use super::in_flight::{InFlight, Leased, MessageId};
use super::json::Entry;
use super::not_before::{self, Wait};
use super::place::Place;
use super::wire::{Incoming, SYSTEM_ATTRIBUTES, whole_seconds};
use super::{SQS, Service};
use hostler_queue::{
    Delivery, LeaseError, LeaseHandle, Limits, Origin, Queue, QueueError, Receipt, Receive, Settlement, Unsettled,
};
use hostler_types::channel::Channel;
use hostler_types::message::Message;

/// Maximum duration of a lease with all its extensions, counted from the receive call (AWS limit: 12 h).
const MAX_LEASE: Duration = Duration::from_secs(12 * 60 * 60);

/// Maximum number of seconds that an extension may take to reach SQS. SQS counts an extension from its arrival.
/// Therefore, an extended lease must end at least this long before the limit of 12 h.
const ON_ITS_WAY: u64 = 15;

const LIMITS: Limits = Limits {
    receive_batch: MAX_ENTRIES,
    settle_batch: MAX_ENTRIES,
    settle_linger: Duration::from_millis(100),
    max_wait: MAX_WAIT,
    max_lease: Duration::from_secs(MAX_LEASE.as_secs() - ON_ITS_WAY),
    parallel_receives: 8,
    max_release: MAX_LEASE,
};

/// Maximum time for which a receive call is repeated if its answer was lost. SQS accepts the same
/// ReceiveRequestAttemptId for 5 minutes.
const SAME_RECEIVE: Duration = Duration::from_secs(4 * 60);

const CHANGE: &str = "ChangeMessageVisibilityBatch";

/// An SQS queue from which messages are received.
#[derive(Debug)]
pub(super) struct SqsQueue {
    service: Arc<Service>,
    channel: String,
    place: Place,
    dead_letters: Option<Place>,
    /// Set if this queue owns the stored bodies of its messages. A body is then deleted with its message.
    owns_bodies: bool,
    in_flight: Mutex<InFlight>,
    /// Receive calls to an ordered queue whose answers were lost.
    lost_receives: Mutex<Vec<Attempt>>,
}

/// A receive call to an ordered queue. If the call is repeated with the same id, SQS returns the same messages.
#[derive(Debug, Clone)]
struct Attempt {
    id: String,
    /// Latest time to repeat the call. The messages that SQS leased to it must still be leased at that time. Once they
    /// are visible, another call may receive the first message of a group, and a repetition would return only the
    /// group's later messages.
    until: Instant,
    /// Maximum number of messages that the call requested. A repetition requests the same number.
    max: usize,
    /// Set if an answer to this call was lost.
    is_lost: bool,
}

impl Attempt {
    /// Returns the most recent receive call whose answer was lost and that requested at most `max` messages. If there
    /// is none, returns a new call.
    fn next(lost: &mut Vec<Self>, max: usize, now: Instant, lease: Duration) -> Self {
        lost.retain(|lost| now < lost.until);
        let again = lost.iter().rposition(|lost| lost.max <= max).map(|n| lost.remove(n));
        // The last third of the lease is reserved for a call that is slow to arrive.
        let until = now + SAME_RECEIVE.min(lease * 2 / 3);
        again.unwrap_or_else(|| Self { id: Uuid::now_v7().to_string(), until, max, is_lost: false })
    }
}

impl SqsQueue {
    pub(super) fn new(
        service: Arc<Service>,
        channel: &Channel,
        place: Place,
        dead_letters: Option<Place>,
        owns_bodies: bool,
    ) -> Self {
        let (in_flight, lost_receives) = (Mutex::default(), Mutex::default());
        Self { service, channel: channel.to_string(), place, dead_letters, owns_bodies, in_flight, lost_receives }
    }

    fn in_flight(&self) -> MutexGuard<'_, InFlight> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn what(&self, action: &str) -> String {
        format!("{action} on {}", self.place.name)
    }

    async fn change_visibility(&self, entries: &[Entry<'_>], what: &str) -> Answers {
        let (clients, address) = (&self.service.clients, &self.place.address);
        Answers::of_call(clients.change_visibility(address, entries, what).await)
    }

    /// Returns the receive call to make, for at most `max` messages. If possible, returns a call whose answer was lost.
    /// Each lost call is returned to one caller only. `None`: the queue is not ordered.
    fn attempt(&self, max: usize, now: Instant, lease: Duration) -> Option<Attempt> {
        if !self.place.ordered {
            return None;
        }
        let mut lost = self.lost_receives.lock().unwrap_or_else(PoisonError::into_inner);
        Some(Attempt::next(&mut lost, max, now, lease))
    }

    /// Stores a failed receive call if an answer to it was lost, so that the call is repeated with the same id. SQS
    /// leases no messages to a call that it refuses. Therefore, a refused call is stored only if it is itself a
    /// repetition of a call whose answer was lost, and the refusal is temporary.
    fn failed(&self, attempt: Option<Attempt>, fault: &Fault) {
        let is_lost = |attempt: &Attempt| fault.is_unanswered() || (attempt.is_lost && fault.may_pass());
        if let Some(lost) = attempt.filter(is_lost) {
            let lost = Attempt { is_lost: true, ..lost };
            self.lost_receives.lock().unwrap_or_else(PoisonError::into_inner).push(lost);
        }
    }

    /// Returns how long a message that was just received must wait until its start time. Ignores an invalid start time,
    /// so that the message is not lost. Also ignores the start time of a message in a FIFO queue, because later
    /// messages of its group would have to wait too.
    fn wait_of(&self, one: &Incoming, now: Instant) -> Wait {
        let Some(value) = one.message.attributes.get(not_before::ATTRIBUTE) else { return Wait::default() };
        let by_service = self.service.clients.clock.now();
        match not_before::due(value, by_service) {
            _ if self.place.ordered => {
                self.ignore(one, "a message of a FIFO queue would hold up its group");
                Wait::default()
            }
            Ok(due) => Wait::of(due, one.first_received.unwrap_or(one.message.enqueued_at), (by_service, now)),
            Err(fault) => {
                self.ignore(one, &fault);
                Wait::default()
            }
        }
    }

    fn ignore(&self, one: &Incoming, reason: &str) {
        let (queue, message_id, attribute) = (&*self.place.name, &*one.message.id, not_before::ATTRIBUTE);
        tracing::warn!(queue, message_id, attribute, reason, "not-before ignored: the message may start at once");
    }

    /// Records the leases of received messages. Separates messages that are already finished from those to deliver.
    fn take_in(&self, messages: Vec<Incoming>, lease: Duration, since: Instant, taken: ReceiveParams) -> Received {
        let now = Instant::now();
        let mut took = Received::default();
        let mut in_flight = self.in_flight();
        for one in messages {
            let wait = self.wait_of(&one, now);
            let attempt = wait.attempt(one.attempt);
            let receipt = Receipt::new(one.receipt);
            let leased_at = now.min(since + taken.padding);
            let id = MessageId::of(&one.message.id);
            if in_flight.is_finished(&id) {
                // Keep the body, because the copy in the dead-letter queue may have the same body.
                took.finished.push(receipt);
            } else {
                let claim = one.message.claim.clone();
                let leased = Leased { id, until: leased_at + lease, since, attempt, claim };
                in_flight.enter(receipt.lease(), leased, now);
                took.deliveries.push(Delivery {
                    message: Arc::new(one.message),
                    receipt,
                    attempt,
                    leased_at,
                    not_before: wait.not_before,
                    job: None,
                });
            }
        }
        took
    }
}

/// Parameters of a receive call to SQS, which counts in whole seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ReceiveParams {
    wait: u64,
    visibility: u64,
    /// Time by which the lease that is requested from SQS exceeds ours. Our lease may start up to this long after the
    /// start of the call without outlasting the lease of SQS.
    padding: Duration,
}

impl ReceiveParams {
    /// Converts a request. SQS starts a message's lease at an unknown moment during the wait. We count our lease from
    /// the start of the call, so that it ends no later than the lease in SQS. The wait takes at most two thirds of our
    /// lease, so that a usable part of the lease remains. If our lease is too short for a wait of one second, requests a
    /// longer lease from SQS.
    fn of(request: Receive) -> Self {
        let wait = match request.wait.min(MAX_WAIT).min(request.lease * 2 / 3).as_secs() {
            0 if request.wait.is_zero() => 0,
            seconds => seconds.max(1),
        };
        let padding = whole_seconds(Duration::from_secs(wait).saturating_sub(request.lease * 2 / 3));
        let visibility = (whole_seconds(request.lease) + padding).min(MAX_LEASE.as_secs());
        Self { wait, visibility, padding: Duration::from_secs(padding) }
    }
}

/// Messages that a receive call returned.
#[derive(Default)]
struct Received {
    deliveries: Vec<Delivery>,
    finished: Vec<Receipt>,
}

/// Returns the error for a lease that has expired by our clock.
fn lost() -> LeaseError {
    LeaseError::Lost("its time is over".to_owned())
}

/// Returns an entry that makes a message visible after `seconds` seconds. `since`: start of the receive call, from
/// which the maximum lease of 12 h is counted. If necessary, the time is shortened, so that it ends at least `spare`
/// seconds before the end of that maximum.
fn visibility(n: usize, lease: &str, seconds: u64, (since, now): (Instant, Instant), spare: u64) -> Entry<'_> {
    let left = MAX_LEASE.saturating_sub(now.saturating_duration_since(since)).as_secs().saturating_sub(spare);
    let seconds = i32::try_from(seconds.min(left)).unwrap_or(i32::MAX);
    Entry { id: n.to_string(), receipt_handle: lease, visibility_timeout: Some(seconds) }
}

#[async_trait]
impl Queue for SqsQueue {
    fn limits(&self) -> Limits {
        LIMITS
    }

    fn is_ordered(&self) -> bool {
        self.place.ordered
    }

    fn origin(&self) -> Origin {
        Origin { system: SQS, address: Some(Arc::clone(&self.place.address)) }
    }

    /// Receives messages. If `stop` is already cancelled, makes no call and returns no messages. A call in progress
    /// continues, because SQS may be about to lease a message to it.
    async fn receive(&self, request: Receive, stop: &CancellationToken) -> Result<Vec<Delivery>, QueueError> {
        if stop.is_cancelled() {
            return Ok(Vec::new());
        }
        let (since, taken) = (Instant::now(), ReceiveParams::of(request));
        let max = request.max.clamp(1, MAX_ENTRIES);
        let attempt = self.attempt(max, since, request.lease);
        let max = attempt.as_ref().map_or(max, |attempt| attempt.max);
        let input = ReceiveMessageInput::builder()
            .queue_url(&*self.place.address)
            .max_number_of_messages(i32::try_from(max).unwrap_or(1))
            .wait_time_seconds(i32::try_from(taken.wait).unwrap_or(0))
            .visibility_timeout(i32::try_from(taken.visibility).unwrap_or(i32::MAX))
            .set_message_system_attribute_names(Some(SYSTEM_ATTRIBUTES.to_vec()))
            .message_attribute_names("All")
            .set_receive_request_attempt_id(attempt.as_ref().map(|attempt| attempt.id.clone()));
        let patience = Duration::from_secs(taken.wait) + BEYOND_WAIT;
        let asked = self.service.clients.receive(input, patience, &self.what("ReceiveMessage")).await;
        let messages = asked.map_err(|fault| {
            self.failed(attempt, &fault);
            QueueError::from(fault)
        })?;
        let Received { deliveries, finished } = self.take_in(messages, request.lease, since, taken);
        if !finished.is_empty() {
            self.remove_finished(finished);
        }
        Ok(deliveries)
    }

    async fn extend(&self, leases: &[LeaseHandle], by: Duration) -> Vec<Result<(), LeaseError>> {
        let now = Instant::now();
        let mut results = vec![Err(lost()); leases.len()];
        let entries: Vec<(usize, Entry<'_>)> = {
            let in_flight = self.in_flight();
            let entry = |(n, lease)| {
                let leased = in_flight.get(lease, now)?;
                Some((n, visibility(n, lease.as_str(), whole_seconds(by), (leased.since, now), 1)))
            };
            leases.iter().enumerate().filter_map(entry).collect()
        };
        let what = self.what(CHANGE);
        for batch in entries.chunks(MAX_ENTRIES) {
            let asked: Vec<_> = batch.iter().map(|(_, entry)| entry.clone()).collect();
            let answers = self.change_visibility(&asked, &what).await;
            let mut in_flight = self.in_flight();
            for (n, _) in batch {
                let (Some(result), Some(lease)) = (results.get_mut(*n), leases.get(*n)) else { continue };
                *result = answers.of(&what, *n);
                if result.is_ok() {
                    in_flight.extend(lease, now + by);
                }
            }
        }
        results
    }

    async fn settle(&self, batch: Vec<Settlement>) -> Vec<Result<(), Unsettled>> {
        self.settle_all(batch).await
    }

    async fn load(&self, message: &Arc<Message>) -> Result<Arc<Message>, String> {
        let Some(claim) = message.claim.clone() else { return Ok(Arc::clone(message)) };
        let (service, message) = (Arc::clone(&self.service), Arc::clone(message));
        let fetched = self.service.runtime.spawn(async move { service.check_out(&message, &claim).await });
        fetched.await.map_err(|error| format!("hostler is shutting down: {error}"))?.map(Arc::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receive_is_asked_for_again_only_where_there_is_room_for_all_that_it_brings() {
        let now = Instant::now();
        let lease = Duration::from_secs(30);
        let attempt = |max: usize, now| Attempt { id: max.to_string(), until: now + lease * 2 / 3, max, is_lost: true };
        let mut lost = vec![attempt(10, now), attempt(2, now), attempt(3, now)];
        let mut next = |max, after: u64| {
            let Attempt { id, max, is_lost, .. } =
                Attempt::next(&mut lost, max, now + Duration::from_secs(after), lease);
            (is_lost.then_some(id), max)
        };
        assert_eq!(next(1, 0), (None, 1));
        assert_eq!(next(9, 0), (Some("3".into()), 3));
        assert_eq!(next(2, 0), (Some("2".into()), 2));
        assert_eq!(next(9, 0), (None, 9));
        assert_eq!(next(10, 20), (None, 10), "what it brought may be another's soon");
    }

    #[test]
    fn a_lease_outlasts_its_wait() {
        let taken = |wait: u64, lease: u64| {
            let (wait, lease) = (Duration::from_secs(wait), Duration::from_secs(lease));
            let ReceiveParams { wait, visibility, padding } = ReceiveParams::of(Receive { max: 10, wait, lease });
            (wait, visibility, padding.as_secs())
        };
        assert_eq!(taken(20, 30), (20, 30, 0));
        assert_eq!(taken(25, 600), (20, 600, 0));
        assert_eq!(taken(20, 6), (4, 6, 0));
        assert_eq!(taken(20, 1), (1, 2, 1));
        assert_eq!(taken(0, 1), (0, 1, 0));
        assert_eq!(taken(20, 12 * 3600), (20, 43_200, 0));
    }

    #[test]
    fn visibility_is_clamped_to_twelve_hours_from_the_receive() {
        let (lease, since) = (Receipt::new("r").lease(), Instant::now());
        let seconds = |after: u64, wanted: u64| {
            let now = since + Duration::from_secs(after);
            visibility(0, lease.as_str(), wanted, (since, now), 1).visibility_timeout.unwrap()
        };
        assert_eq!(seconds(0, 30), 30);
        assert_eq!(seconds(43_190, 30), 9);
        assert_eq!(seconds(50_000, 30), 0);
    }
}
