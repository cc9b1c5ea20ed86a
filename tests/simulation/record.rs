//! What the judge keeps of a run: messages, deliveries, processes, and the trace.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::scenario::{End, SHORTEST_LEASE};

/// What became of a message.
#[derive(Debug, Default)]
pub struct Fate {
    pub group: Option<String>,
    pub acked: bool,
    pub replied: bool,
    pub copies: u32,
    pub removed: bool,
}

/// One receive of a message.
#[derive(Debug)]
pub struct Delivery {
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
    pub calls: u32,
    /// Whether the last call was for its settlement, rather than a heartbeat.
    pub settling: bool,
    /// How often its settlement was asked for.
    pub asked: u32,
    pub settled: bool,
    pub lost_at: Option<Instant>,
    /// Since when a call is owed to it.
    pub owed: Option<Instant>,
}

/// A process.
#[derive(Debug, Default)]
pub struct Life {
    pub drained_at: Option<Instant>,
    pub over: bool,
    pub running: usize,
    /// When receives failed lately.
    pub failed_polls: Vec<Instant>,
    /// When a message came, or a handler started or ended, for the last time.
    pub changed_at: Option<Instant>,
    pub removed: BTreeMap<String, Instant>,
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
    /// When something stood still for the last time.
    pub paused_at: Option<Instant>,
}

impl Delivery {
    /// Whether a call is this delivery's settlement, rather than a heartbeat. The policy of no scenario delays a message
    /// for as long as its shortest lease.
    pub fn is_settling(&self, seconds: Option<u64>) -> bool {
        let runs = self.started_at.is_some() && self.ended.is_none();
        seconds.is_none_or(|seconds| !runs && seconds < SHORTEST_LEASE)
    }
}
