//! The limit on the open files of a sandbox.
//!
//! Each sandbox has a share of the process's descriptors, so that guests leave enough for the host and for each other.

use wasmtime::component::ResourceTable;
use wasmtime_wasi::filesystem::Descriptor;
use wasmtime_wasi::p2::{DynInputStream, DynOutputStream};

use super::denial::Denials;
use super::listing::Listing;

/// The most files that a sandbox may have open if descriptors are not scarce.
pub const MOST_FILES: usize = 1_024;

/// Returns `true` if a sandbox with a limit of `most` open files may open another. Streams and listings keep a file open
/// after its handle is gone, so all of them count.
pub(super) fn may_open(table: &mut ResourceTable, most: usize) -> bool {
    let holds = |entry: &&mut (dyn std::any::Any + Send)| {
        entry.is::<Descriptor>()
            || entry.is::<Listing>()
            || entry.is::<DynInputStream>()
            || entry.is::<DynOutputStream>()
    };
    table.iter_mut().filter(holds).count() < most
}

/// Logs that a file was not opened because the sandbox has reached its limit.
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
