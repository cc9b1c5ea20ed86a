//! The limits of a sandbox: linear memory, tables, instances, and the memory that the host allocates for the guest.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use wasmtime::ResourceLimiter;

use super::Definition;
use super::files::MOST_FILES;
use super::host_limit;
use hostler_handler::Limit;
use hostler_telemetry::metrics::ConsumerMetrics;

/// Maximum number of elements in all tables of one sandbox. The pool reserves this number for each table.
pub(super) const TABLE_ELEMENTS: usize = 100_000;

/// Maximum number of elements in the passive segments of all instances in a sandbox. The engine uses 16 bytes per
/// element.
pub(super) const PASSIVE_ELEMENTS: u64 = 32 * 1024;

/// Maximum number of core instances in one sandbox. Components of dynamic languages have dozens of core instances.
pub(super) const CORE_INSTANCES: u32 = 256;

/// Maximum number of linear memories in one sandbox. The number is lower if a pool with this number of memories for
/// each sandbox would reserve too much address space.
pub(super) const MEMORIES: u32 = 16;

/// Maximum number of tables in one sandbox.
pub(super) const TABLES: u32 = 64;

/// Maximum number of handles to resources that a guest implements itself.
pub(super) const GUEST_HANDLES: usize = 16 * 1024;

/// Maximum number of handles to host resources (files, streams, pollables). The maximum is lower if `limits.memory` is
/// small.
const MAX_HANDLES: usize = 1_024;

/// Maximum host memory per handle, in bytes. For an open file stream, wasmtime-wasi reads ahead up to this many bytes.
/// For an unsent request, up to half of this memory is used for headers.
pub(super) const HELD_PER_HANDLE: usize = 64 * 1024;

const MIB: u64 = 1 << 20;

/// Fixed memory of a sandbox in bytes, in addition to the linear memory and the memory that the host allocates for the
/// guest. The fixed memory consists of the stack (512 KiB for the guest's frames, plus the host's frames), the tables
/// (8 bytes per element), the passive segments (16 bytes per element), the handle table, and the memory that the pool
/// does not release when the sandbox is idle.
const SANDBOX: u64 = 3 * MIB;

/// Returns the maximum number of bytes of host memory that a sandbox can use: the sum of `memory` (its linear memory),
/// the memory that the host allocates for the guest, and the fixed memory of a sandbox.
pub fn footprint(memory: u64) -> u64 {
    memory.saturating_add(held(memory)).saturating_add(SANDBOX)
}

/// Returns the maximum number of bytes that the host allocates for a guest with `memory` bytes of linear memory. The
/// maximum is half of `memory`, but at least 4 MiB, because even small guests need 4 MiB to run.
fn held(memory: u64) -> u64 {
    (memory / 2).max(4 * MIB)
}

/// The limits of one sandbox. Also records which resource was last refused to the guest, because a guest that aborts
/// for lack of a resource rarely reports the cause.
#[derive(Debug, Clone)]
pub(super) struct Limits {
    /// Maximum total size of all linear memories of the sandbox, in bytes.
    memory: usize,
    /// Maximum number of bytes that the host may copy from the guest during one call to a host function.
    pub(super) transfer: usize,
    /// Maximum number of handles to host resources.
    pub(super) handles: usize,
    /// Maximum number of files that the sandbox may have open.
    pub(super) files: usize,
    used: usize,
    elements: usize,
    refused: Option<Refused>,
    /// The host limit that the call has reached. `None`: the call has reached none.
    pub(super) reached: Option<Limit>,
    /// Highest memory use of any sandbox of the consumer, in bytes. `None`: sandboxes are not measured.
    peak: Option<Arc<AtomicU64>>,
}

/// The resource that was last refused to the guest.
#[derive(Debug, Clone, Copy)]
enum Refused {
    Memory,
    Elements,
}

impl Limits {
    /// Creates the limits for a component. Half of the memory that the host may allocate for a component is for a
    /// single call to a host function, and half is for the read-ahead of streams.
    pub(super) fn component(memory: u64) -> Self {
        Self::new(memory, held(memory) / 2)
    }

    /// Creates the limits for a command. A command's files have no streams. Therefore, a single read or write may use
    /// all of the memory that the host may allocate for a command.
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

    /// Returns these limits with `files` as the maximum number of open files. If `definition` has metrics, the memory
    /// use is recorded there.
    pub(super) fn of(self, files: usize, definition: &Definition) -> Self {
        let peak = definition.metrics.as_ref().map(ConsumerMetrics::memory_peak);
        Self { files, peak, ..self }
    }

    /// Returns the probable cause of a trap: the resource that was last refused to the guest. `None`: nothing was
    /// refused.
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
        // Checks the maximum that the memory declares. The engine would refuse the growth too, but only after the
        // growth has been counted here.
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
        // This check must come first, because every table in the pool has this limit as its maximum.
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

    // An engine with a pool refuses components that exceed these limits at load time. An engine without a pool checks
    // the limits here.
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
        // A table in the pool has this maximum, regardless of the maximum that the guest declares for the table.
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
