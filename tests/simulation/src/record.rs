//! Records of the judge about a run: messages, deliveries, processes, and the trace.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::keyed::{MAX_REST, Subject};
use super::runs::{Keys, OfKey};
use super::scenario::{End, SHORTEST_LEASE, Scenario};
use super::settling::{Calls, Kind};

const SECOND: Duration = Duration::from_secs(1);

/// Time for which a removed message must not be processed again by the process that removed it.
const MEMORY: Duration = Duration::from_secs(600);

/// The time for which a message that is not due is hidden at most.
pub const TURN: Duration = Duration::from_secs(11 * 3600);

/// Fate of a message.
#[derive(Debug, Default)]
pub struct Fate {
    pub group: Option<String>,
    pub acked: bool,
    pub replied: bool,
    pub copies: u32,
    pub removed: bool,
    /// Earliest start.
    pub not_before: Option<Instant>,
    /// Number of handler starts on the message.
    pub starts: u32,
    /// The key, if the consumer has idempotency.
    pub subject: Option<Subject>,
}

/// One receive of a message.
#[derive(Debug)]
pub struct Delivery {
    /// Number of deliveries before this one.
    pub number: usize,
    pub name: String,
    pub attempt: u32,
    pub life: usize,
    /// Time until which the queue has leased the message to the receiver.
    pub until: Instant,
    pub received_at: Instant,
    /// Due time of its message, if the queue delivered it before, or so shortly after that its process may not know yet.
    pub waits_until: Option<Instant>,
    /// Time until which the receiver may rely on the lease, by the receiver's knowledge. `None`: the receiver does not know the
    /// delivery.
    pub ours_until: Option<Instant>,
    /// Start of the last call for the delivery. `called_for`: the requested time.
    pub called_at: Instant,
    pub called_for: Duration,
    pub started_at: Option<Instant>,
    /// Time at which the handler had ended, with its result. The result is `None` if the handler was stopped.
    pub ended: Option<(Instant, Option<End>)>,
    /// Set while the processing-timeout hook runs for the delivery. `decision`: the decision of the hook.
    pub deciding: bool,
    pub decision: Option<End>,
    pub decided_at: Option<Instant>,
    /// Set if the handler started while the breaker probed.
    pub is_probe: bool,
    pub calls: u32,
    /// Set if the last call was a settlement, rather than a heartbeat.
    pub settling: bool,
    /// Kind of the removal, if known.
    pub removal: Option<Kind>,
    /// Set if the last heartbeat failed.
    pub heartbeat_failed: bool,
    /// Time of the last answer to a call for the delivery.
    pub answered_at: Option<Instant>,
    /// Number of settlement calls.
    pub asked: u32,
    pub settled: bool,
    /// Set if the queue has released the message. The process may not know this yet.
    pub released: bool,
    pub lost_at: Option<Instant>,
    /// Time at which the service took the lease back, which its process knows at once.
    pub taken_at: Option<Instant>,
    /// Time since which a call for the delivery is due.
    pub owed: Option<Instant>,
    /// True if an operator has cancelled it, or is about to.
    pub is_cancelled: bool,
    pub of_key: OfKey,
}

/// A process.
#[derive(Debug, Default)]
pub struct Life {
    pub drained_at: Option<Instant>,
    /// End of the grace of the drain.
    pub deadline_at: Option<Instant>,
    pub over: bool,
    pub running: usize,
    /// Times of recent failed receives.
    pub failed_polls: Vec<Instant>,
    /// Time at which a message last arrived, or a handler last started or ended.
    pub changed_at: Option<Instant>,
    pub removed: BTreeMap<String, Instant>,
    /// Messages that its handlers acked, whether or not the messages could be removed.
    pub acked: BTreeSet<String>,
    pub born_at: Option<Instant>,
    /// Time of the last successful receive.
    pub polled_at: Option<Instant>,
    /// Results of removals, copies, releases and extensions, by kind.
    pub calls: [Calls; 4],
    /// Time of the last failure of the store of idempotency records, or of a send that a settlement waits for.
    pub store_failed_at: Option<Instant>,
    /// Number of messages received for processing.
    pub received: usize,
    /// Time since which an operator has paused the process.
    pub held_since: Option<Instant>,
    pub resumed_at: Option<Instant>,
    pub resting_since: Option<Instant>,
    /// Times of recent handler ends, each with true if the handler failed.
    pub ends: VecDeque<(Instant, bool)>,
    /// Number of running handlers that started while the breaker probed.
    pub probes: usize,
}

/// Everything that the judge has observed.
#[derive(Debug, Default)]
pub struct State {
    pub keeps_trace: bool,
    pub trace: Vec<String>,
    pub violations: Vec<String>,
    /// Number of violations that are already in the trace.
    pub told: usize,
    pub order: Vec<String>,
    pub fates: BTreeMap<String, Fate>,
    /// The names of messages, by their ids.
    pub ids: BTreeMap<String, String>,
    pub deliveries: BTreeMap<String, Delivery>,
    pub keys: Keys,
    pub lives: Vec<Life>,
    /// Start of the run.
    pub began_at: Option<Instant>,
    /// Start and end of the latest outage of the service.
    pub outage: Option<(Instant, Instant)>,
    /// Time of the latest freeze.
    pub paused_at: Option<Instant>,
}

impl Life {
    /// Returns true if the process has removed this message. If the message is received again, the driver removes it, and the
    /// consumer never gets it.
    pub fn has_finished(&self, name: &str, now: Instant) -> bool {
        self.removed.get(name).is_some_and(|at| now < *at + MEMORY)
    }
}

impl State {
    /// Returns true if a process has finished a message. If the message is received again, the driver only tries to remove it,
    /// and the consumer never gets it.
    pub fn is_done(&self, life: usize, name: &str, now: Instant) -> bool {
        let life = &self.lives[life];
        let is_copied = self.fates.get(name).is_some_and(|fate| fate.copies > 0);
        life.has_finished(name, now) || life.acked.contains(name) || is_copied
    }

    /// Returns the start of the run.
    pub fn began_at(&self) -> Instant {
        self.began_at.unwrap_or_else(Instant::now)
    }
}

impl Delivery {
    /// Returns the result of the handler. `None`: the handler was stopped, or has not ended.
    pub fn end(&self) -> Option<&End> {
        self.ended.as_ref().and_then(|(_, end)| end.as_ref())
    }

    /// Returns true if the delivery waits or runs, as far as its process must know.
    pub fn takes_slot(&self, now: Instant) -> bool {
        let is_held = self.ours_until > Some(now) && self.asked == 0;
        // A delivery behind a released one is released as soon as its heartbeat under way is answered.
        let is_refused = self.of_key.refusals.are_any();
        let is_parting = self.started_at.is_none() && (self.calls > 0 || is_refused);
        // One that is not due goes back at once.
        let is_there = is_held && !is_parting && self.waits_until.is_none();
        is_there && self.ended.is_none() && self.lost_at.is_none()
    }

    /// The fault of a release for so many seconds of what was given away before its time: it is to come again when it is due, or
    /// after a turn of 11 h. A push broker tells the end of the turn.
    pub fn fault_of_wait(&self, seconds: u64, scenario: &Scenario) -> Option<String> {
        let due = self.waits_until.filter(|_| self.started_at.is_none())?;
        let due = if scenario.pushes() { due.min(self.received_at + scenario.max_release) } else { due };
        let left = due.saturating_duration_since(Instant::now()).min(TURN);
        let most = due.saturating_duration_since(self.received_at).min(TURN) + scenario.unsure().max(SECOND);
        let hidden = Duration::from_secs(seconds);
        (!(left..=most).contains(&hidden)).then(|| format!("hidden for {seconds} s, and it is due after {left:?}"))
    }

    /// Returns true if a call may be either a last heartbeat or a release. With leases of a few seconds, this occurs at the
    /// moment when the handler or its hook ends.
    pub fn is_unclear(&self, seconds: u64, scenario: &Scenario) -> bool {
        let now = Some(Instant::now());
        let ends_now = self.ended.as_ref().map(|(at, _)| *at) == now || self.decided_at == now;
        scenario.is_short && !scenario.is_exact() && ends_now && seconds == scenario.lease.as_secs()
    }

    /// Returns true if a call is the settlement of this delivery, rather than a heartbeat. With normal leases, the delay
    /// distinguishes them: no policy of a scenario delays a message for a time between the shortest lease and the scenario's
    /// lease. With leases of a few seconds, the delay does not distinguish them. A delivery that has not started is then only
    /// released without a delay, and a delivery that has ended is only settled.
    pub fn is_settling(&self, seconds: Option<u64>, scenario: &Scenario) -> bool {
        let runs = self.started_at.is_some() && self.ended.is_none();
        let lease = scenario.lease.as_secs();
        let goes_back = self.waits_until.is_some() && self.started_at.is_none();
        goes_back
            || seconds.is_none_or(|seconds| match scenario.is_short {
                true if self.started_at.is_none() => seconds < lease,
                _ if scenario.keyed.is_some() => !runs && (seconds <= MAX_REST || seconds > lease),
                true => !runs && !self.deciding && !self.is_unclear(seconds, scenario),
                false => !runs && (seconds < SHORTEST_LEASE || seconds > lease),
            })
    }
}
