//! Limit on the number of files that a sandbox has open.
//!
//! Each sandbox may use only a share of the process's file descriptors, so that the host and the other guests always
//! have enough.

use wasmtime::component::ResourceTable;
use wasmtime_wasi::filesystem::Descriptor;
use wasmtime_wasi::p2::{DynInputStream, DynOutputStream};

use super::denial::Denials;
use super::listing::Listing;

/// Maximum number of open files per sandbox. The actual limit is lower if the process has few file descriptors.
pub const MOST_FILES: usize = 1_024;

/// Returns `true` if a sandbox with a limit of `most` open files may open another file. A stream or listing counts as
/// an open file, because it keeps the file open after the guest drops the file's own handle.
pub(super) fn may_open(table: &mut ResourceTable, most: usize) -> bool {
    let holds = |entry: &&mut (dyn std::any::Any + Send)| {
        entry.is::<Descriptor>()
            || entry.is::<Listing>()
            || entry.is::<DynInputStream>()
            || entry.is::<DynOutputStream>()
    };
    table.iter_mut().filter(holds).count() < most
}

/// Logs that the sandbox has reached its limit of `most` open files.
pub(super) fn tell(denials: &Denials, most: usize) {
    let cure = "close files, or raise the limit of open files (`ulimit -n`, or `ulimits` of the container), or lower concurrency";
    denials.tell(&format!("more than {most} open files"), cure);
}

#[cfg(test)]
mod tests {
    use super::*;
    use wasmtime_wasi::p2::pipe::MemoryInputPipe;

    #[test]
    fn streams_count_as_the_files_that_they_keep_open() {
        let mut table = ResourceTable::new();
        let stream = || -> DynInputStream { Box::new(MemoryInputPipe::new("")) };
        table.push(1_u8).unwrap();
        let first = table.push(stream()).unwrap();
        table.push(stream()).unwrap();
        assert!(may_open(&mut table, 3));
        assert!(!may_open(&mut table, 2));
        table.delete(first).unwrap();
        assert!(may_open(&mut table, 2));
    }
}
