//! What hostler is to reach, as ratios of figures of one and the same run.

use std::fmt;

use crate::cell::Measured;
use crate::contenders::Contender::{
    self, Bare, BareOneThread, BareUsual, Batch, Component, Each, Loop, Metrics, Traces,
};

/// One ratio, of CPU time per message or of messages per second.
#[derive(Debug)]
pub struct Target {
    name: String,
    ratio: f64,
    limit: f64,
    /// Whether the ratio is to be as small as the limit; otherwise as large.
    below: bool,
    /// Whether it is.
    pub held: bool,
}

impl Target {
    fn new(name: String, ratio: f64, limit: f64, below: bool) -> Self {
        Self { name, ratio, limit, below, held: if below { ratio <= limit } else { ratio >= limit } }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verdict, sign) = (if self.held { "PASS" } else { "MISS" }, if self.below { "<=" } else { ">=" });
        write!(f, "{verdict}  {:<62} {:>6.2}  ({sign} {})", self.name, self.ratio, self.limit)
    }
}

/// Each with whom it is compared, and what the ratio is to be: of hostler to it (true), or of it to hostler.
const TARGETS: [(Contender, f64, bool); 6] = [
    (Bare, 1.3, true),
    (BareOneThread, 1.3, true),
    (BareUsual, 1.3, true),
    (Batch, 4.0, false),
    (Each, 10.0, false),
    (Loop, 6.0, false),
];

/// What of its messages per second hostler is to keep with telemetry on.
const KEPT: f64 = 0.95;

/// What one with telemetry keeps of the messages per second, if it has any; it is compared closely (`turns`), as a single
/// measurement after another cannot tell five hundredths.
pub fn kept(contender: Contender, ratio: f64) -> Option<Target> {
    let name = || format!("messages/s of {} / without", contender.title());
    matches!(contender, Metrics | Traces).then(|| Target::new(name(), ratio, KEPT, false))
}

/// The targets of which both sides were measured, without latency, at more than one message at a time.
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

/// As JSON.
pub fn json(targets: &[Target]) -> serde_json::Value {
    let one = |target: &Target| serde_json::json!({ "name": target.name, "ratio": target.ratio, "limit": target.limit, "held": target.held });
    targets.iter().map(one).collect()
}
