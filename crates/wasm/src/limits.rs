//! The limits on a guest's use of the machine: linear memory, tables, instances, and memory that the host holds for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use wasmtime::ResourceLimiter;

use super::Definition;
use super::files::MOST_FILES;
use super::host_limit;
use hostler_handler::Limit;
use hostler_telemetry::metrics::ConsumerMetrics;

/// The most elements that the tables of one sandbox may have together. The pool reserves as many for each table.
pub(super) const TABLE_ELEMENTS: usize = 100_000;

/// The most elements that the passive segments of all instances of a sandbox may have together. The engine keeps 16 bytes for
/// each.
pub(super) const PASSIVE_ELEMENTS: u64 = 32 * 1024;

/// The most core instances in one sandbox; components of dynamic languages have dozens.
pub(super) const CORE_INSTANCES: u32 = 256;

/// The most linear memories in one sandbox. The pool has fewer where addresses are scarce.
pub(super) const MEMORIES: u32 = 16;

/// The most tables in one sandbox.
pub(super) const TABLES: u32 = 64;

/// The most handles to resources of its own that a guest may have.
pub(super) const GUEST_HANDLES: usize = 16 * 1024;

/// The most handles to resources of the host (files, streams, pollables), if memory does not bound them earlier.
const MAX_HANDLES: usize = 1_024;

/// The bytes that a handle may make the host hold: the read-ahead of an open file stream (wasmtime-wasi's own limit), or a
/// request that is not sent yet (half of it is for its headers).
pub(super) const HELD_PER_HANDLE: usize = 64 * 1024;

const MIB: u64 = 1 << 20;

/// The cost of a sandbox in addition to its memory and the memory that the host holds for it, in bytes: its stack (512 KiB of
/// the guest's frames, and the host's), its tables (8 bytes an element), its passive segments (16 bytes an element), the
/// handles themselves, and the part of an idle sandbox that the pool keeps.
const SANDBOX: u64 = 3 * MIB;

/// Returns the most memory that a sandbox may cost the host, in bytes, whatever its guest does: its linear memory, the memory
/// that the host holds for it, and the cost of every sandbox.
pub fn footprint(memory: u64) -> u64 {
    memory.saturating_add(held(memory)).saturating_add(SANDBOX)
}

/// Returns the bytes that the host may hold for a guest with `memory` bytes: half of that, but at least 4 MiB, which small
/// guests need to work.
fn held(memory: u64) -> u64 {
    (memory / 2).max(4 * MIB)
}

/// The limits of one sandbox. They remember a refusal, because a guest rarely reports it when it aborts.
#[derive(Debug, Clone)]
pub(super) struct Limits {
    /// Bytes of all linear memories of the sandbox together.
    memory: usize,
    /// Bytes that one call of the host may take over from the guest.
    pub(super) transfer: usize,
    /// Handles to resources of the host.
    pub(super) handles: usize,
    /// Files that may be open.
    pub(super) files: usize,
    used: usize,
    elements: usize,
    refused: Option<Refused>,
    /// The host limit that the call reached, if any.
    pub(super) reached: Option<Limit>,
    /// The highest memory of any sandbox, if it is measured.
    peak: Option<Arc<AtomicU64>>,
}

/// The last refusal.
#[derive(Debug, Clone, Copy)]
enum Refused {
    Memory,
    Elements,
}

impl Limits {
    /// Creates the limits of a component. Half of the memory that the host may hold is for one call, half for the read-ahead
    /// of streams.
    pub(super) fn component(memory: u64) -> Self {
        Self::new(memory, held(memory) / 2)
    }

    /// Creates the limits of a command. Its files have no streams, so one read or write may take all of the memory that the
    /// host may hold.
    pub(super) fn command(memory: u64) -> Self {
        Self::new(memory, held(memory))
    }

    fn new(memory: u64, transfer: u64) -> Self {
        let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let handles = bytes(held(memory) / 2 / HELD_PER_HANDLE as u64).min(MAX_HANDLES);
        Self {
            memory: bytes(memory),
            transfer: bytes(transfer),
            handles,
            files: MOST_FILES,
            used: 0,
            elements: 0,
            refused: None,
            reached: None,
            peak: None,
        }
    }

    /// Returns the same limits with `files` open files, and measured if `definition` has metrics.
    pub(super) fn of(self, files: usize, definition: &Definition) -> Self {
        let peak = definition.metrics.as_ref().map(ConsumerMetrics::memory_peak);
        Self { files, peak, ..self }
    }

    /// Returns an addition to the reason of a trap that the limit probably caused.
    pub(super) fn hint(&self) -> Option<String> {
        match self.refused? {
            Refused::Memory => {
                Some(format!("out of memory: limits.memory is {}", bytesize::ByteSize(self.memory as u64)))
            }
            Refused::Elements => Some(format!("its tables are full: {TABLE_ELEMENTS} elements at most")),
        }
    }
}

impl ResourceLimiter for Limits {
    fn memory_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        // The memory's own maximum. The engine would refuse it too, but only after it counts here as used.
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        let used = self.used.saturating_add(desired.saturating_sub(current));
        if used > self.memory {
            self.refused = Some(Refused::Memory);
            return Ok(false);
        }
        self.used = used;
        if let Some(peak) = &self.peak {
            peak.fetch_max(used as u64, Ordering::Relaxed);
        }
        Ok(true)
    }

    fn memory_grow_failed(&mut self, error: wasmtime::Error) -> wasmtime::Result<()> {
        match host_limit::of(error.as_ref()) {
            Some(limit) => self.reached = Some(limit),
            None => self.refused = Some(Refused::Memory),
        }
        Ok(())
    }

    fn table_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        let elements = self.elements.saturating_add(desired.saturating_sub(current));
        // Comes first, because a table of the pool has this limit as its maximum.
        if elements > TABLE_ELEMENTS {
            self.refused = Some(Refused::Elements);
            return Ok(false);
        }
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        self.elements = elements;
        Ok(true)
    }

    // The pool refuses components with more when they are loaded. These limits apply without a pool.
    fn instances(&self) -> usize {
        CORE_INSTANCES as usize
    }

    fn tables(&self) -> usize {
        TABLES as usize
    }

    fn memories(&self) -> usize {
        MEMORIES as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memories_share_one_limit_and_a_refusal_is_remembered() {
        let mut limits = Limits::component(100);
        assert!(limits.memory_growing(0, 60, None).unwrap());
        assert!(limits.memory_growing(0, 40, None).unwrap());
        assert_eq!(limits.hint(), None);
        assert!(!limits.memory_growing(60, 61, None).unwrap());
        assert!(limits.hint().unwrap().contains("limits.memory is 100 B"));
    }

    #[test]
    fn memory_that_the_kernel_refuses_is_the_host_s_limit_and_not_the_guest_s() {
        let mut limits = Limits::component(MIB);
        limits.memory_grow_failed(std::io::Error::from_raw_os_error(12).into()).unwrap();
        assert_eq!((limits.reached, limits.hint()), (Some(Limit::Memory), None));
        limits.memory_grow_failed(wasmtime::Error::msg("the pool's own maximum")).unwrap();
        assert!(limits.hint().is_some());
    }

    #[test]
    fn tables_share_one_limit() {
        let mut limits = Limits::component(MIB);
        assert!(limits.table_growing(0, TABLE_ELEMENTS / 2, None).unwrap());
        assert!(limits.table_growing(0, TABLE_ELEMENTS / 2, None).unwrap());
        assert_eq!(limits.hint(), None);
        assert!(!limits.table_growing(TABLE_ELEMENTS / 2, TABLE_ELEMENTS / 2 + 1, None).unwrap());
        assert!(limits.hint().unwrap().contains("100000 elements"));
    }

    #[test]
    fn what_the_guest_itself_forbids_is_neither_counted_nor_told() {
        let mut limits = Limits::component(100);
        for _ in 0..3 {
            assert!(!limits.memory_growing(10, 70, Some(60)).unwrap());
            assert!(!limits.memory_growing(10, 1000, Some(60)).unwrap());
            assert!(!limits.table_growing(10, TABLE_ELEMENTS, Some(60)).unwrap());
        }
        assert!(limits.memory_growing(0, 100, Some(100)).unwrap());
        assert!(limits.table_growing(0, TABLE_ELEMENTS, Some(TABLE_ELEMENTS)).unwrap());
        assert_eq!(limits.hint(), None);
        // A table of the pool has this maximum, whatever its guest declares.
        assert!(!limits.table_growing(TABLE_ELEMENTS, TABLE_ELEMENTS + 1, Some(TABLE_ELEMENTS)).unwrap());
        assert!(limits.hint().unwrap().contains("100000 elements"));
    }

    #[test]
    fn the_footprint_covers_all_that_the_host_may_hold() {
        for memory in [MIB, 8 * MIB, 128 * MIB, 4096 * MIB] {
            let beside = footprint(memory) - memory - SANDBOX;
            let component = Limits::component(memory);
            assert!(component.transfer as u64 + (component.handles * HELD_PER_HANDLE) as u64 <= beside, "{memory}");
            assert!(Limits::command(memory).transfer as u64 <= beside, "{memory}");
            assert!(component.handles >= 32);
        }
    }
}
