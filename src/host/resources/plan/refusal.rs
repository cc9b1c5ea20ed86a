//! Refusal of a config whose sandboxes do not fit into the memory. The error message shows a sum that users can verify, and
//! fixes.

use std::fmt;

use super::super::{Limit, mib};
use super::Demand;

const MIB: u64 = 1 << 20;

/// Error for sandboxes that do not fit into the memory. The error message shows the calculation line by line, and the
/// fixes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    limit: Limit,
    demands: Vec<Demand>,
    /// Memory for hostler itself, in bytes.
    host: u64,
    /// Size of all compiled handlers in bytes.
    code: u64,
    /// Total memory needed, in bytes.
    needed: u64,
    /// Table of the config that has the settings of the demands.
    table: &'static str,
}

impl Refusal {
    pub(super) fn new(limit: &Limit, demands: &[Demand], (host, code): (u64, u64), needed: u64) -> Self {
        Self { limit: limit.clone(), demands: demands.to_vec(), host, code, needed, table: "consumers" }
    }

    /// Returns the error for demands whose settings are in another table than `consumers`.
    #[must_use]
    pub fn in_table(self, table: &'static str) -> Self {
        Self { table, ..self }
    }

    /// Returns fixes for the operator: changes to the settings of the consumer with the largest demand, and a higher memory
    /// limit. Each fix is sufficient by itself.
    fn cures(&self) -> Vec<String> {
        let cost = |demand: &Demand| {
            let (slots, memory) = demand.least();
            demand.cost(slots, memory)
        };
        let mut cures = Vec::new();
        if let Some(largest) = self.demands.iter().max_by_key(|demand| cost(demand)) {
            let (slots, memory) = largest.least();
            let left = self.limit.bytes.saturating_sub(self.needed - cost(largest));
            let (table, name) = (self.table, &largest.consumer);
            if let Some(fewer) = (1..slots).rev().find(|slots| largest.cost(*slots, memory) <= left) {
                cures.push(format!("fewer slots ({table}.{name}.concurrency = {fewer})"));
            }
            if let Some(less) = largest.largest(slots, left, MIB) {
                cures.push(format!("less memory per sandbox ({table}.{name}.limits.memory = \"{}MiB\")", less / MIB));
            }
        }
        cures.push(format!("a memory limit of at least {}", mib(self.needed)));
        cures
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Limit { bytes, by } = &self.limit;
        write!(f, "the sandboxes may need {}, but the memory limit is {} ({by})", mib(self.needed), mib(*bytes))?;
        write!(f, "\n  {:>9}  hostler itself", mib(self.host))?;
        if self.code > 0 {
            write!(f, "\n  {:>9}  compiled handlers", mib(self.code))?;
        }
        for demand in &self.demands {
            let (slots, memory) = demand.least();
            write!(f, "\n  {:>9}  {}.{}: ", mib(demand.cost(slots, memory)), self.table, demand.consumer)?;
            let slot = demand.slot(memory);
            let beside = slot - memory * demand.sandboxes();
            let least = |said: bool| if said { "" } else { " at least" };
            write!(f, "{slots} slot{}{}", if slots == 1 { "" } else { "s" }, least(demand.slots.is_some()))?;
            write!(f, " × {} ({} sandbox", mib(slot), demand.sandboxes())?;
            write!(f, "{} of {}", if demand.hooks_apart { "es" } else { "" }, mib(memory))?;
            write!(f, "{}, {} beside)", least(demand.memory.is_some()), mib(beside))?;
            if demand.observes_states {
                write!(f, " + {} for its state-changed hook", mib(demand.observer(memory)))?;
            }
        }
        write!(f, "\n  cure: {}", self.cures().join(", or "))
    }
}

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::resources::{HOST, LimitedBy, plan};

    fn refused(mib: u64, demands: &[Demand]) -> String {
        let limit = Limit { bytes: mib * MIB, by: LimitedBy::Cgroup("/sys/fs/cgroup/memory.max".into()) };
        plan(&limit, HOST, demands).unwrap_err().to_string()
    }

    fn demand(name: &str, slots: Option<usize>, memory: Option<u64>) -> Demand {
        let memory = memory.map(|mib| mib * MIB);
        let consumer = name.to_owned();
        Demand {
            consumer,
            slots,
            memory,
            output: 64 << 10,
            messages: 0,
            hooks_apart: false,
            http: false,
            connections: 0,
            tls: false,
            observes_states: false,
            code: 0,
        }
    }

    #[test]
    fn a_refusal_shows_the_arithmetic_and_three_cures() {
        let demands = [demand("thumbnails", Some(4), Some(128)), demand("mails", None, None)];
        assert_eq!(
            refused(512, &demands),
            "the sandboxes may need 845 MiB, but the memory limit is 512 MiB (cgroup, /sys/fs/cgroup/memory.max)
     40 MiB  hostler itself
    788 MiB  consumers.thumbnails: 4 slots × 197 MiB (1 sandbox of 128 MiB, 69 MiB beside)
     17 MiB  consumers.mails: 1 slot at least × 17 MiB (1 sandbox of 8 MiB at least, 9 MiB beside)
  cure: fewer slots (consumers.thumbnails.concurrency = 2), or less memory per sandbox \
             (consumers.thumbnails.limits.memory = \"72MiB\"), or a memory limit of at least 845 MiB"
        );
    }

    #[test]
    fn it_names_all_that_was_counted() {
        let all = Demand { hooks_apart: true, observes_states: true, code: 5 * MIB, ..demand("a", None, Some(64)) };
        let text = refused(128, &[all]);
        assert!(text.contains("\n      5 MiB  compiled handlers\n"), "{text}");
        assert!(text.contains("(2 sandboxes of 64 MiB, 72 MiB beside) + 99 MiB for its state-changed hook"), "{text}");
        assert!(!text.contains("fewer slots"), "{text}");
    }

    /// Checks that every proposed fix works. A fix that fails would be worse than none.
    #[test]
    fn every_cure_cures() {
        let demands = |slots, memory| [demand("thumbnails", slots, memory), demand("mails", None, None)];
        for (slots, memory) in [(Some(2), Some(128)), (Some(4), Some(72))] {
            let limit = |mib| Limit { bytes: mib * MIB, by: LimitedBy::Task };
            assert!(plan(&limit(512), HOST, &demands(slots, memory)).is_ok());
            assert!(plan(&limit(845), HOST, &demands(Some(4), Some(128))).is_ok());
        }
    }

    #[test]
    fn a_hopeless_container_is_told_how_large_it_must_be() {
        let text = refused(40, &[demand("a", None, None)]);
        assert!(text.ends_with("\n  cure: a memory limit of at least 57 MiB"), "{text}");
    }
}
