//! Targets of hostler, as ratios of values from the same run.

use std::fmt;

use crate::cell::Measured;
use crate::contenders::Contender::{
    self, Bare, BareOneThread, BareUsual, Batch, Component, Each, Loop, Metrics, Traces,
};

/// A target for a ratio of CPU times per message or of messages per second.
#[derive(Debug)]
pub struct Target {
    name: String,
    ratio: f64,
    limit: f64,
    /// Set if the limit is a maximum. Otherwise the limit is a minimum.
    below: bool,
    /// Set if the ratio is within the limit.
    pub held: bool,
}

impl Target {
    /// Compares a ratio with a limit.
    pub fn new(name: String, ratio: f64, limit: f64, below: bool) -> Self {
        Self { name, ratio, limit, below, held: if below { ratio <= limit } else { ratio >= limit } }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verdict, sign) = (if self.held { "PASS" } else { "MISS" }, if self.below { "<=" } else { ">=" });
        write!(f, "{verdict}  {:<62} {:>6.2}  ({sign} {})", self.name, self.ratio, self.limit)
    }
}

/// Targets: the other contender, the limit, and the direction of the ratio. True: hostler divided by the other. False: the
/// inverse.
const TARGETS: [(Contender, f64, bool); 6] = [
    (Bare, 1.3, true),
    (BareOneThread, 1.3, true),
    (BareUsual, 1.3, true),
    (Batch, 4.0, false),
    (Each, 10.0, false),
    (Loop, 6.0, false),
];

/// Minimum fraction of the throughput that hostler must retain with telemetry.
const KEPT: f64 = 0.95;

/// Returns the throughput target of a contender with telemetry. `None`: the contender has no telemetry. The ratio must come from
/// a close comparison (`turns`), because separate measurements cannot resolve a difference of 5 %.
pub fn kept(contender: Contender, ratio: f64) -> Option<Target> {
    let name = || format!("messages/s of {} / without", contender.title());
    matches!(contender, Metrics | Traces).then(|| Target::new(name(), ratio, KEPT, false))
}

/// Checks the targets for which both sides were measured, without latency, with a concurrency above one.
pub fn check(measured: &[Measured]) -> Vec<Target> {
    let mut targets = Vec::new();
    let of = |contender, concurrency| {
        let is = |cell: &&Measured| {
            let setting = &cell.setting;
            setting.contender == contender && setting.load.slots == concurrency && setting.latency_ms == 0
        };
        measured.iter().find(is)
    };
    for concurrency in [10, 64] {
        for (other, limit, below) in TARGETS {
            let (Some(ours), Some(theirs)) = (of(Component, concurrency), of(other, concurrency)) else { continue };
            let (ours, theirs) = (ours.cpu_us, theirs.cpu_us);
            let (above, under) = if below { (Component, other) } else { (other, Component) };
            let ratio = if below { ours / theirs } else { theirs / ours };
            let name = format!("{} / {}, {concurrency} at a time", above.title(), under.title());
            targets.push(Target::new(name, ratio, limit, below));
        }
    }
    targets
}

/// Formats the targets as JSON.
pub fn json(targets: &[Target]) -> serde_json::Value {
    let one = |target: &Target| serde_json::json!({ "name": target.name, "ratio": target.ratio, "limit": target.limit, "held": target.held });
    targets.iter().map(one).collect()
}
