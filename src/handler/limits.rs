//! What a guest may use of the machine: linear memory, tables, instances.

use wasmtime::ResourceLimiter;

/// The most elements that one table may have; also what the pool reserves for each.
pub(super) const TABLE_ELEMENTS: usize = 100_000;

/// The most core instances, memories and tables in one sandbox; components of dynamic languages have dozens.
const MAX_PARTS: usize = 1_000;

/// Bounds one sandbox, and remembers that it hit the bound, since a guest rarely says so when it then aborts.
#[derive(Debug, Clone)]
pub(super) struct Limits {
    /// Bytes, all linear memories of the sandbox together.
    memory: usize,
    used: usize,
    refused: bool,
}

impl Limits {
    pub(super) fn new(memory: u64) -> Self {
        Self { memory: usize::try_from(memory).unwrap_or(usize::MAX), used: 0, refused: false }
    }

    /// What to add to the reason of a trap that the limit probably caused.
    pub(super) fn hint(&self) -> Option<String> {
        self.refused.then(|| format!("out of memory: limits.memory is {}", bytesize::ByteSize(self.memory as u64)))
    }
}

impl ResourceLimiter for Limits {
    fn memory_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let used = self.used.saturating_add(desired.saturating_sub(current));
        if used > self.memory {
            self.refused = true;
            return Ok(false);
        }
        self.used = used;
        Ok(true)
    }

    fn memory_grow_failed(&mut self, _: wasmtime::Error) -> wasmtime::Result<()> {
        self.refused = true;
        Ok(())
    }

    fn table_growing(&mut self, _: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        Ok(desired <= TABLE_ELEMENTS)
    }

    fn instances(&self) -> usize {
        MAX_PARTS
    }

    fn tables(&self) -> usize {
        MAX_PARTS
    }

    fn memories(&self) -> usize {
        MAX_PARTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memories_share_one_limit_and_a_refusal_is_remembered() {
        let mut limits = Limits::new(100);
        assert!(limits.memory_growing(0, 60, None).unwrap());
        assert!(limits.memory_growing(0, 40, None).unwrap());
        assert_eq!(limits.hint(), None);
        assert!(!limits.memory_growing(60, 61, None).unwrap());
        assert!(limits.hint().unwrap().contains("limits.memory is 100 B"));
    }
}
