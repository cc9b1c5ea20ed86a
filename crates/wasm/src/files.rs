//! Open files of a sandbox: how many it may have.
//!
//! Each sandbox has a share of the process's descriptors, so that guests leave the host and one another enough.

use wasmtime::component::ResourceTable;
use wasmtime_wasi::filesystem::Descriptor;
use wasmtime_wasi::p2::{DynInputStream, DynOutputStream};

use super::denial::Denials;
use super::listing::Listing;

/// The files that a sandbox may have open where descriptors are not scarce.
pub const MOST_FILES: usize = 1_024;

/// Whether a sandbox that may have so many files open may open another. A stream or a listing keeps a file open after its handle is
/// gone, so that all count.
pub(super) fn may_open(table: &mut ResourceTable, most: usize) -> bool {
    let holds = |entry: &&mut (dyn std::any::Any + Send)| {
        entry.is::<Descriptor>()
            || entry.is::<Listing>()
            || entry.is::<DynInputStream>()
            || entry.is::<DynOutputStream>()
    };
    table.iter_mut().filter(holds).count() < most
}

/// Tells of a file that was not opened because the sandbox has its share open.
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
