//! Shares out the memory among the consumers: the number of slots, and the memory of each sandbox.
//!
//! Everything that a guest can make the process allocate is bounded and counted here. So a guest that takes all it can is refused
//! memory, and the container never runs out. The sum covers
//!
//! - hostler itself: its code and heap, what compiling leaves behind, the queue's caches, and log lines that wait for a slow
//!   reader ([`telemetry`](hostler_telemetry) bounds these in bytes), and with an OTLP endpoint spans that wait to be sent;
//! - the compiled code and data of each handler;
//! - for each slot one message of up to 1 MiB, the output kept of it, and the output as it is logged;
//! - for each sandbox its linear memory, all that the host holds on the guest's behalf (what it passes to a call of the
//!   host, buffers of streams), its stack, tables and handles: see [`footprint`]; with `allow.http` the buffers of its open
//!   requests as well.
//!
//! A slot has one sandbox, or two if its hooks are in a separate component. The `processing-timeout` hook runs in the slot of its
//! message, after the guest is gone; `state-changed` runs beside the slots, one at a time.
//!
//! The sum leaves out larger messages (the embedded queue takes 16 MiB, the claim check more) and compiling before the first
//! message.

mod refusal;

use super::{Limit, mib};
use hostler_wasm::{HTTP_FOOTPRINT, footprint};
pub use refusal::Refusal;

const MIB: u64 = 1 << 20;

/// Memory of hostler itself, in bytes: 18 MiB idle and 13 MiB left behind by compiling, as measured; the rest is for log lines
/// and for the allocator.
pub const HOST: u64 = 40 * MIB;

/// Slots of a consumer that does not set their number, if the memory suffices.
pub const SLOTS: usize = 16;

/// Memory of a sandbox whose consumer does not set it, if there is enough.
pub const MEMORY: u64 = 128 * MIB;

/// The memory of a sandbox below which there are fewer than four slots instead.
const COMFORTABLE: u64 = 16 * MIB;

/// The least memory of a sandbox, unless its consumer sets it.
const LEAST: u64 = 8 * MIB;

/// The size of a message that is counted for a slot, in bytes: SQS's own limit.
const MESSAGE: u64 = MIB;

/// The number of slots that share the memory before any slot gets more than the comfortable amount.
const FIRST_SLOTS: u64 = 4;

/// The demand of one consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Demand {
    /// Its name.
    pub consumer: String,
    /// Its slots, if set.
    pub slots: Option<usize>,
    /// Bytes of linear memory of a sandbox, if set.
    pub memory: Option<u64>,
    /// Bytes of output kept per message.
    pub output: u64,
    /// Set if its hooks are in a separate component, which takes a second sandbox per slot.
    pub hooks_apart: bool,
    /// Set if its guests may send HTTP requests, which take buffers.
    pub http: bool,
    /// Set if it has a `state-changed` hook, which takes one more sandbox. Known once its handler is loaded.
    pub observes_states: bool,
    /// Bytes of its compiled code and data. Known once its handler is loaded.
    pub code: u64,
}

/// The shares of all consumers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The memory that was shared out.
    pub limit: Limit,
    /// The shares, in the order of the demands.
    pub shares: Vec<Share>,
}

/// The share of one consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// Its name.
    pub consumer: String,
    /// Messages that it processes at a time: at least 1.
    pub slots: usize,
    /// Bytes of linear memory of each sandbox.
    pub memory: u64,
}

impl std::fmt::Display for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let plural = if self.slots == 1 { "" } else { "s" };
        write!(f, "{}: {} slot{plural} of {}", self.consumer, self.slots, mib(self.memory))
    }
}

impl Demand {
    /// Returns the sandboxes per slot.
    pub(super) fn sandboxes(&self) -> u64 {
        if self.hooks_apart { 2 } else { 1 }
    }

    /// Returns the bytes that one of its sandboxes may cost.
    fn sandbox(&self, memory: u64) -> u64 {
        footprint(memory).saturating_add(if self.http { HTTP_FOOTPRINT } else { 0 })
    }

    /// Returns the bytes that a slot may cost, in whole MiB like every term of the sum, which can thus be checked by hand.
    pub(super) fn slot(&self, memory: u64) -> u64 {
        let output = self.output.saturating_mul(2);
        whole(self.sandbox(memory).saturating_mul(self.sandboxes()).saturating_add(MESSAGE).saturating_add(output))
    }

    /// Returns the bytes that its `state-changed` hook may cost.
    pub(super) fn observer(&self, memory: u64) -> u64 {
        if self.observes_states { whole(self.sandbox(memory)) } else { 0 }
    }

    /// Returns the bytes that this many slots and the hook may cost.
    pub(super) fn cost(&self, slots: usize, memory: u64) -> u64 {
        self.slot(memory).saturating_mul(slots as u64).saturating_add(self.observer(memory))
    }

    /// Returns the least that it can run with: slots and memory.
    pub(super) fn least(&self) -> (usize, u64) {
        (self.slots.unwrap_or(1), self.memory.unwrap_or(LEAST))
    }

    /// Returns the most that it can use, in bytes.
    fn most(&self) -> u64 {
        self.cost(self.slots.unwrap_or(SLOTS), self.memory.unwrap_or(MEMORY))
    }

    /// Returns the best slots and memory for `bytes`, which suffice for the least.
    fn fit(&self, bytes: u64) -> (usize, u64) {
        let memory = self.memory.unwrap_or_else(|| match self.slots {
            Some(slots) => self.largest(slots, bytes, LEAST).unwrap_or(LEAST),
            None => {
                let quarter = self.slot_within(bytes / FIRST_SLOTS).unwrap_or(COMFORTABLE);
                // If `bytes` do not suffice for one comfortable slot, the single slot gets all of them.
                if self.cost(1, quarter) <= bytes { quarter } else { self.largest(1, bytes, LEAST).unwrap_or(LEAST) }
            }
        });
        let carried = bytes.saturating_sub(self.observer(memory)) / self.slot(memory).max(1);
        let carried = usize::try_from(carried).unwrap_or(usize::MAX).clamp(1, SLOTS);
        (self.slots.unwrap_or(carried), memory)
    }

    /// Returns the most memory of a sandbox whose slot costs at most `bytes`, if that is comfortable.
    fn slot_within(&self, bytes: u64) -> Option<u64> {
        choices(COMFORTABLE, MEMORY).find(|memory| self.slot(*memory) <= bytes)
    }

    /// Returns the most memory with which this many slots cost at most `bytes`.
    pub(super) fn largest(&self, slots: usize, bytes: u64, least: u64) -> Option<u64> {
        choices(least, MEMORY.max(self.memory.unwrap_or(0))).find(|memory| self.cost(slots, *memory) <= bytes)
    }
}

/// Rounds up to whole MiB.
fn whole(bytes: u64) -> u64 {
    bytes.div_ceil(MIB).saturating_mul(MIB)
}

/// Returns the whole MiB in this range, largest first.
fn choices(least: u64, most: u64) -> impl Iterator<Item = u64> {
    (least / MIB..=most / MIB).rev().map(|mib| mib * MIB)
}

/// Shares out `limit`, less `host` bytes for hostler itself: each consumer gets its least, and the rest is shared evenly among
/// those that can use more.
///
/// # Errors
/// [`Refusal`] if not even the least fits.
pub fn plan(limit: &Limit, host: u64, demands: &[Demand]) -> Result<Plan, Refusal> {
    let least = |demand: &Demand| {
        let (slots, memory) = demand.least();
        demand.cost(slots, memory)
    };
    let code = whole(demands.iter().map(|demand| demand.code).fold(0, u64::saturating_add));
    let needed = demands.iter().map(least).fold(host.saturating_add(code), u64::saturating_add);
    let Some(mut rest) = limit.bytes.checked_sub(needed) else {
        return Err(Refusal::new(limit, demands, (host, code), needed));
    };
    // Consumers that can use little more come first: the others share what these leave.
    let mut order: Vec<&Demand> = demands.iter().collect();
    order.sort_by_key(|demand| demand.most().saturating_sub(least(demand)));
    let mut shares = Vec::new();
    for (index, demand) in order.iter().enumerate() {
        let even = rest / (order.len() - index) as u64;
        let bytes = least(demand).saturating_add(even);
        let (slots, memory) = demand.fit(bytes);
        rest -= demand.cost(slots, memory).saturating_sub(least(demand)).min(rest);
        shares.push(Share { consumer: demand.consumer.clone(), slots, memory });
    }
    let place = |share: &Share| demands.iter().position(|demand| demand.consumer == share.consumer);
    shares.sort_by_key(place);
    Ok(Plan { limit: limit.clone(), shares })
}

#[cfg(test)]
mod tests {
    use super::super::LimitedBy;
    use super::*;

    fn demand(name: &str) -> Demand {
        Demand {
            consumer: name.to_owned(),
            slots: None,
            memory: None,
            output: 64 << 10,
            hooks_apart: false,
            http: false,
            observes_states: false,
            code: 0,
        }
    }

    fn limit(mib: u64) -> Limit {
        Limit { bytes: mib * MIB, by: LimitedBy::Cgroup("/sys/fs/cgroup/memory.max".into()) }
    }

    /// Returns slots and MiB per sandbox.
    fn planned(mib: u64, demands: &[Demand]) -> Vec<(usize, u64)> {
        let plan = plan(&limit(mib), HOST, demands).unwrap_or_else(|refusal| panic!("{refusal}"));
        let used: u64 = plan
            .shares
            .iter()
            .zip(demands)
            .map(|(share, demand)| demand.cost(share.slots, share.memory) + demand.code)
            .sum();
        assert!(used + HOST <= mib * MIB, "{used} bytes are more than there are");
        plan.shares.iter().map(|share| (share.slots, share.memory / MIB)).collect()
    }

    #[test]
    fn where_nothing_is_scarce_the_documented_defaults_hold() {
        assert_eq!(planned(8192, &[demand("a")]), [(16, 128)]);
        assert_eq!(planned(8192, &[demand("a"), demand("b")]), [(16, 128); 2]);
    }

    #[test]
    fn small_containers_have_fewer_slots_and_then_smaller_sandboxes() {
        let one = |mib| planned(mib, &[demand("a")])[0];
        assert_eq!(one(2048), (10, 128));
        assert_eq!(one(512), (4, 75));
        assert_eq!(one(128), (3, 16));
        assert_eq!(one(64), (1, 13));
    }

    #[test]
    fn no_plan_is_over_the_limit_or_below_the_least() {
        let demands = |hooks_apart, observes_states, code| {
            let demand = Demand { hooks_apart, observes_states, code, ..demand("a") };
            [
                demand.clone(),
                Demand { consumer: "b".into(), slots: Some(3), ..demand.clone() },
                Demand { consumer: "c".into(), memory: Some(24 * MIB), ..demand },
            ]
        };
        for mib in (300..4000).step_by(37) {
            for (hooks, observes, code) in [(false, false, 0), (true, true, 10 * MIB), (false, true, 0)] {
                let demands = demands(hooks, observes, code);
                if plan(&limit(mib), HOST, &demands).is_err() {
                    assert!(mib < 400, "{mib}");
                    continue;
                }
                let shares = planned(mib, &demands);
                assert!(shares.iter().all(|(slots, memory)| (1..=16).contains(slots) && (8..=128).contains(memory)));
                assert_eq!((shares[1].0, shares[2].1), (3, 24));
            }
        }
    }

    #[test]
    fn what_is_said_is_kept_and_the_rest_derived() {
        let four = Demand { slots: Some(4), ..demand("flights") };
        assert_eq!(planned(128, std::slice::from_ref(&four)), [(4, 11)]);
        assert_eq!(planned(8192, &[four]), [(4, 128)]);
        let large = Demand { memory: Some(256 * MIB), ..demand("a") };
        assert_eq!(planned(1024, &[large]), [(2, 256)]);
        let both = Demand { slots: Some(64), memory: Some(2 * MIB), ..demand("a") };
        assert_eq!(planned(1024, &[both]), [(64, 2)]);
    }

    #[test]
    fn what_one_has_no_use_for_is_the_others() {
        let small = Demand { slots: Some(1), memory: Some(8 * MIB), ..demand("small") };
        assert_eq!(planned(2100, &[demand("a"), small]), [(10, 128), (1, 8)]);
    }

    #[test]
    fn hooks_are_paid_for_by_those_who_have_them() {
        let http = Demand { http: true, ..demand("a") };
        assert_eq!(http.slot(64 * MIB) - demand("a").slot(64 * MIB), HTTP_FOOTPRINT);
        let apart = Demand { hooks_apart: true, ..demand("a") };
        assert!(planned(2048, &[apart])[0].0 < planned(2048, &[demand("a")])[0].0);
        let observer = Demand { slots: Some(4), observes_states: true, ..demand("a") };
        assert_eq!(planned(128, &[observer]), [(4, 8)]);
    }

    #[test]
    fn large_handlers_leave_less() {
        let large = Demand { code: 60 * MIB, ..demand("a") };
        assert_eq!(planned(512, &[large])[0], (4, 65));
    }
}
