//! What the judge keeps of a run: messages, deliveries, processes, and the trace.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::scenario::{End, SHORTEST_LEASE, Scenario};
use super::settling::{Calls, Kind};

/// How long a message that was removed must not be processed again by the process that removed it.
const MEMORY: Duration = Duration::from_secs(600);

/// What became of a message.
#[derive(Debug, Default)]
pub struct Fate {
    pub group: Option<String>,
    pub acked: bool,
    pub replied: bool,
    pub copies: u32,
    pub removed: bool,
    /// How often a handler started on it.
    pub starts: u32,
}

/// One receive of a message.
#[derive(Debug)]
pub struct Delivery {
    /// How many there were before it.
    pub number: usize,
    pub name: String,
    pub attempt: u32,
    pub life: usize,
    /// Until when the queue has promised it to its receiver.
    pub until: Instant,
    pub received_at: Instant,
    /// Until when its receiver may count on it, by what it knows; `None`: it does not know of it.
    pub ours_until: Option<Instant>,
    /// When the last call for it began, and for how long it asked.
    pub called_at: Instant,
    pub called_for: Duration,
    pub started_at: Option<Instant>,
    /// When its handler was gone, and how it ended; `None`: it was stopped.
    pub ended: Option<(Instant, Option<End>)>,
    /// Whether the processing-timeout hook runs for it, and what it has decided.
    pub deciding: bool,
    pub decision: Option<End>,
    pub decided_at: Option<Instant>,
    /// Whether its handler started while the breaker probed.
    pub is_probe: bool,
    pub calls: u32,
    /// Whether the last call was for its settlement, rather than a heartbeat.
    pub settling: bool,
    /// The kind of its removal, as far as it can be told.
    pub removal: Option<Kind>,
    /// Its last heartbeat failed.
    pub heartbeat_failed: bool,
    /// The time of the last answer to a call about it.
    pub answered_at: Option<Instant>,
    /// How often its settlement was asked for.
    pub asked: u32,
    pub settled: bool,
    /// Whether the queue has released it; its process may not know yet.
    pub released: bool,
    pub lost_at: Option<Instant>,
    /// Since when a call is owed to it.
    pub owed: Option<Instant>,
}

/// A process.
#[derive(Debug, Default)]
pub struct Life {
    pub drained_at: Option<Instant>,
    /// The end of its drain's grace.
    pub deadline_at: Option<Instant>,
    pub over: bool,
    pub running: usize,
    /// When receives failed lately.
    pub failed_polls: Vec<Instant>,
    /// When a message came, or a handler started or ended, for the last time.
    pub changed_at: Option<Instant>,
    pub removed: BTreeMap<String, Instant>,
    /// What its handlers acked, whether or not it could be removed.
    pub acked: BTreeSet<String>,
    pub born_at: Option<Instant>,
    /// The last receive that went well.
    pub polled_at: Option<Instant>,
    /// The fate of removals, copies, releases and extensions, by their kind.
    pub calls: [Calls; 4],
    /// Messages that came to be processed.
    pub received: usize,
    /// Since when an operator has paused it, and since when it shows that it rests.
    pub held_since: Option<Instant>,
    pub resumed_at: Option<Instant>,
    pub resting_since: Option<Instant>,
    /// When handlers ended lately, and whether they failed.
    pub ends: VecDeque<(Instant, bool)>,
    /// Handlers that run and started while the breaker probed.
    pub probes: usize,
}

/// All that was seen.
#[derive(Debug, Default)]
pub struct State {
    pub keeps_trace: bool,
    pub trace: Vec<String>,
    pub violations: Vec<String>,
    /// How many of them are in the trace.
    pub told: usize,
    pub order: Vec<String>,
    pub fates: BTreeMap<String, Fate>,
    pub deliveries: BTreeMap<String, Delivery>,
    pub lives: Vec<Life>,
    /// When the run began.
    pub began_at: Option<Instant>,
    /// From when to when the service failed, or does, for the last time.
    pub outage: Option<(Instant, Instant)>,
    /// When something stood still for the last time.
    pub paused_at: Option<Instant>,
}

impl Life {
    /// Whether it has removed this message: should it come again, the driver removes it, and the consumer never gets it.
    pub fn has_finished(&self, name: &str, now: Instant) -> bool {
        self.removed.get(name).is_some_and(|at| now < *at + MEMORY)
    }
}

impl State {
    /// Whether a process is done with a message: should it come again, the driver only tries to remove it, and the consumer never
    /// gets it.
    pub fn is_done(&self, life: usize, name: &str, now: Instant) -> bool {
        let life = &self.lives[life];
        let is_copied = self.fates.get(name).is_some_and(|fate| fate.copies > 0);
        life.has_finished(name, now) || life.acked.contains(name) || is_copied
    }

    /// When the run began.
    pub fn began_at(&self) -> Instant {
        self.began_at.unwrap_or_else(Instant::now)
    }
}

impl Delivery {
    /// How its handler ended, unless it was stopped.
    pub fn end(&self) -> Option<&End> {
        self.ended.as_ref().and_then(|(_, end)| end.as_ref())
    }

    /// Tells if it waits or runs, as far as its process has to know.
    pub fn takes_slot(&self, now: Instant) -> bool {
        let is_held = self.ours_until > Some(now) && self.asked == 0;
        // A follower goes back as soon as its heartbeat that is under way is answered.
        let is_parting = self.started_at.is_none() && self.calls > 0;
        is_held && !is_parting && self.ended.is_none() && self.lost_at.is_none()
    }

    /// Whether a call may be a last heartbeat as well as a release: of a lease of a few seconds, in the very moment in which its
    /// handler or its hook ends.
    pub fn is_unclear(&self, seconds: u64, scenario: &Scenario) -> bool {
        let now = Some(Instant::now());
        let ends_now = self.ended.as_ref().map(|(at, _)| *at) == now || self.decided_at == now;
        scenario.is_short && !scenario.is_exact() && ends_now && seconds == scenario.lease.as_secs()
    }

    /// Whether a call is this delivery's settlement, rather than a heartbeat. The policy of no scenario delays a message for as
    /// long as its shortest lease, or else for longer than any. Leases of a few seconds are no measure; there what has not
    /// started is only ever released at once, and what has ended is only settled.
    pub fn is_settling(&self, seconds: Option<u64>, scenario: &Scenario) -> bool {
        let runs = self.started_at.is_some() && self.ended.is_none();
        let lease = scenario.lease.as_secs();
        seconds.is_none_or(|seconds| match scenario.is_short {
            true if self.started_at.is_none() => seconds < lease,
            true => !runs && !self.deciding && !self.is_unclear(seconds, scenario),
            false => !runs && (seconds < SHORTEST_LEASE || seconds > lease),
        })
    }
}
