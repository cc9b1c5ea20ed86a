//! Divides the memory among the consumers. Computes the number of slots and the memory of each sandbox.
//!
//! All memory that a guest can make the process allocate is limited, and counts in the sum below. If a guest exceeds its limits,
//! hostler refuses memory to the guest. The container itself never runs out of memory. The sum includes:
//!
//! - hostler itself: code and heap, memory that compiling leaves behind, caches of the queue, and log lines that wait for a slow
//!   reader ([`telemetry`](hostler_telemetry) bounds these in bytes). With an OTLP endpoint, also spans that wait to be sent.
//! - For each handler: the compiled code and data.
//! - For each slot: one message of up to 1 MiB, or a batch of messages, its stored output, and the same output as logged.
//! - For each sandbox: its linear memory, memory that the host allocates for the guest (arguments of host calls, buffers of
//!   streams), its stack, tables and handles. See [`footprint`]. With `allow.http`, also the buffers of open requests. With
//!   `allow.tcp`, also the buffers of connections, and of TLS if a server is granted with it.
//!
//! A slot has one sandbox. If the hooks are in a separate component, a slot has two. The `processing-timeout` hook runs in the
//! slot of its message, after the guest has ended. The `state-changed` hook runs outside the slots, one call at a time.
//!
//! The sum does not include larger messages (up to 16 MiB in the embedded queue, more with the claim check), nor the memory for
//! compiling before the first message.

mod refusal;

use super::{Limit, mib};
use hostler_wasm::{CONNECTION_FOOTPRINT, HTTP_FOOTPRINT, TLS_FOOTPRINT, footprint};
pub use refusal::Refusal;

const MIB: u64 = 1 << 20;

/// Memory of hostler itself in bytes. Measurements: 18 MiB when idle, and 13 MiB that remain allocated after compiling. The rest
/// is for log lines and for the allocator.
pub const HOST: u64 = 40 * MIB;

/// Number of slots of a consumer without `concurrency`. The consumer gets fewer slots if the memory is too small for this number.
pub const SLOTS: usize = 16;

/// Memory of each sandbox in bytes, for a consumer without `limits.memory`. The sandboxes get less memory if the memory limit is
/// too low for this size.
pub const MEMORY: u64 = 128 * MIB;

/// Minimum memory of a sandbox in bytes if a consumer has several slots. If [`FIRST_SLOTS`] slots of this size do not fit, the
/// consumer gets fewer slots.
const COMFORTABLE: u64 = 16 * MIB;

/// Minimum memory of a sandbox in bytes, for a consumer without `limits.memory`.
const LEAST: u64 = 8 * MIB;

/// Size of the message that the sum counts per slot, in bytes. Equals the maximum size of an SQS message.
const MESSAGE: u64 = MIB;

/// Number of slots with [`COMFORTABLE`] memory that must fit before sandboxes get more than [`COMFORTABLE`] memory.
const FIRST_SLOTS: u64 = 4;

/// Memory demand of one consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Demand {
    /// Name of the consumer.
    pub consumer: String,
    /// Number of slots (`concurrency`), if set.
    pub slots: Option<usize>,
    /// Linear memory of each sandbox in bytes (`limits.memory`), if set.
    pub memory: Option<u64>,
    /// Maximum output stored per message, in bytes.
    pub output: u64,
    /// Maximum size of the messages of a batch in bytes. 0 if the handler gets one message at a time.
    pub messages: u64,
    /// Set if the hooks are in a separate component. In that case, each slot needs a second sandbox.
    pub hooks_apart: bool,
    /// Set if guests may send HTTP requests, which need buffers.
    pub http: bool,
    /// Maximum number of TCP connections of each sandbox, which need buffers. 0 if guests may connect to no server.
    pub connections: u64,
    /// Set if the host adds TLS to connections, which needs further buffers.
    pub tls: bool,
    /// Set if the consumer has a `state-changed` hook, which needs one more sandbox. Unset until the handler is loaded.
    pub observes_states: bool,
    /// Size of the compiled code and data in bytes. 0 until the handler is loaded.
    pub code: u64,
}

/// Memory shares of all consumers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Memory that was divided.
    pub limit: Limit,
    /// Shares in the order of the demands.
    pub shares: Vec<Share>,
}

/// The share of one consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// Name of the consumer.
    pub consumer: String,
    /// Number of messages that are processed concurrently. At least 1.
    pub slots: usize,
    /// Linear memory of each sandbox in bytes.
    pub memory: u64,
}

impl std::fmt::Display for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let plural = if self.slots == 1 { "" } else { "s" };
        write!(f, "{}: {} slot{plural} of {}", self.consumer, self.slots, mib(self.memory))
    }
}

impl Demand {
    /// Returns the number of sandboxes per slot.
    pub(super) fn sandboxes(&self) -> u64 {
        if self.hooks_apart { 2 } else { 1 }
    }

    /// Returns the maximum cost of one sandbox in bytes. `memory` is its linear memory.
    fn sandbox(&self, memory: u64) -> u64 {
        let http = if self.http { HTTP_FOOTPRINT } else { 0 };
        let connection = CONNECTION_FOOTPRINT + if self.tls { TLS_FOOTPRINT } else { 0 };
        let connections = self.connections.saturating_mul(connection);
        footprint(memory).saturating_add(http).saturating_add(connections)
    }

    /// Returns the maximum cost of one slot in bytes. Rounds each term of the sum up to whole MiB, so that users can verify the
    /// sum.
    pub(super) fn slot(&self, memory: u64) -> u64 {
        let output = self.output.saturating_mul(2);
        whole(
            self.sandbox(memory)
                .saturating_mul(self.sandboxes())
                .saturating_add(self.messages.max(MESSAGE))
                .saturating_add(output),
        )
    }

    /// Returns the maximum cost of the `state-changed` hook in bytes. 0 without this hook.
    pub(super) fn observer(&self, memory: u64) -> u64 {
        if self.observes_states { whole(self.sandbox(memory)) } else { 0 }
    }

    /// Returns the maximum cost of this many slots, plus the cost of the `state-changed` hook, in bytes.
    pub(super) fn cost(&self, slots: usize, memory: u64) -> u64 {
        self.slot(memory).saturating_mul(slots as u64).saturating_add(self.observer(memory))
    }

    /// Returns the minimum number of slots and the minimum memory per sandbox.
    pub(super) fn least(&self) -> (usize, u64) {
        (self.slots.unwrap_or(1), self.memory.unwrap_or(LEAST))
    }

    /// Returns the maximum memory that the consumer can use, in bytes.
    fn most(&self) -> u64 {
        self.cost(self.slots.unwrap_or(SLOTS), self.memory.unwrap_or(MEMORY))
    }

    /// Returns the best number of slots and the best memory per sandbox with a total cost of at most `bytes`. `bytes` must be
    /// enough for the minimum that [`Self::least`] returns.
    fn fit(&self, bytes: u64) -> (usize, u64) {
        let memory = self.memory.unwrap_or_else(|| match self.slots {
            Some(slots) => self.largest(slots, bytes, LEAST).unwrap_or(LEAST),
            None => {
                let quarter = self.slot_within(bytes / FIRST_SLOTS).unwrap_or(COMFORTABLE);
                // If `bytes` cannot hold a slot with [`COMFORTABLE`] memory, a single slot gets all of `bytes`.
                if self.cost(1, quarter) <= bytes { quarter } else { self.largest(1, bytes, LEAST).unwrap_or(LEAST) }
            }
        });
        let carried = bytes.saturating_sub(self.observer(memory)) / self.slot(memory).max(1);
        let carried = usize::try_from(carried).unwrap_or(usize::MAX).clamp(1, SLOTS);
        (self.slots.unwrap_or(carried), memory)
    }

    /// Returns the largest memory per sandbox with which a slot costs at most `bytes`. `None`: a slot costs more even with
    /// [`COMFORTABLE`] memory.
    fn slot_within(&self, bytes: u64) -> Option<u64> {
        choices(COMFORTABLE, MEMORY).find(|memory| self.slot(*memory) <= bytes)
    }

    /// Returns the largest memory per sandbox with which this many slots cost at most `bytes`. `None`: they cost more even with
    /// `least` memory.
    pub(super) fn largest(&self, slots: usize, bytes: u64, least: u64) -> Option<u64> {
        choices(least, MEMORY.max(self.memory.unwrap_or(0))).find(|memory| self.cost(slots, *memory) <= bytes)
    }
}

/// Rounds bytes up to whole MiB.
fn whole(bytes: u64) -> u64 {
    bytes.div_ceil(MIB).saturating_mul(MIB)
}

/// Returns the multiples of one MiB in this range, largest first.
fn choices(least: u64, most: u64) -> impl Iterator<Item = u64> {
    (least / MIB..=most / MIB).rev().map(|mib| mib * MIB)
}

/// Divides the memory limit among the consumers. First subtracts `host` bytes for hostler itself. Each consumer gets its minimum.
/// The consumers that can use more share the rest evenly.
///
/// # Errors
/// [`Refusal`] if the sum of all minimums exceeds the limit.
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
    // Serves first the consumers that can use the least memory beyond their minimum. The later ones share the memory that
    // remains.
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
            messages: 0,
            hooks_apart: false,
            http: false,
            connections: 0,
            tls: false,
            observes_states: false,
            code: 0,
        }
    }

    fn limit(mib: u64) -> Limit {
        Limit { bytes: mib * MIB, by: LimitedBy::Cgroup("/sys/fs/cgroup/memory.max".into()) }
    }

    /// Returns the number of slots and the MiB per sandbox of each consumer.
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
        let tcp = Demand { connections: 8, ..demand("a") };
        assert_eq!(tcp.slot(64 * MIB) - demand("a").slot(64 * MIB), 8 * CONNECTION_FOOTPRINT);
        let tls = Demand { tls: true, ..tcp.clone() };
        assert_eq!(tls.slot(64 * MIB) - tcp.slot(64 * MIB), 8 * TLS_FOOTPRINT);
        let apart = Demand { hooks_apart: true, ..demand("a") };
        assert!(planned(2048, &[apart])[0].0 < planned(2048, &[demand("a")])[0].0);
        let observer = Demand { slots: Some(4), observes_states: true, ..demand("a") };
        assert_eq!(planned(128, &[observer]), [(4, 8)]);
    }

    #[test]
    fn a_large_batch_costs_its_bytes_in_each_slot() {
        let batches = |messages| Demand { messages, ..demand("a") }.slot(64 * MIB);
        assert_eq!(batches(MIB), demand("a").slot(64 * MIB));
        assert_eq!(batches(9 * MIB) - batches(MIB), 8 * MIB);
    }

    #[test]
    fn large_handlers_leave_less() {
        let large = Demand { code: 60 * MIB, ..demand("a") };
        assert_eq!(planned(512, &[large])[0], (4, 65));
    }
}
