//! Directory listings of granted folders. The host reads a listing in parts, as the guest requests entries.
//!
//! wasmtime-wasi reads a whole folder when the guest opens the listing, and stores every entry until the guest drops
//! the listing. A folder may have any number of entries, so neither the memory nor the time would be limited. In this
//! module, a listing consists of an open folder and the entries from one system call. The CPU time of the system call
//! is charged to the guest (`hostler_handler::charge`).

mod component;
mod preview1;

pub(super) use component::{Listing, add};
pub(super) use preview1::add as add_preview1;

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, SeekFrom};
use rustix::time::{ClockId, clock_gettime};
use wasmtime_wasi::p2::bindings::filesystem::types::DescriptorType;

/// Maximum size in bytes of the entries that one system call reads. Including Rust's overhead for each entry, the
/// entries use less than the maximum host memory per handle.
const PART: usize = 16 * 1024;

/// A directory entry, as returned by the kernel.
struct Entry {
    name: Vec<u8>,
    kind: FileType,
    /// The position of the next entry in the listing.
    next: u64,
}

/// Opens a second descriptor of an open folder. The new descriptor has its own position in the listing.
fn open(folder: &File) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(folder, ".", flags, Mode::empty())?)
}

/// Moves a listing to a position that was read from [`Entry::next`]. Position 0 is the start of the listing.
fn seek(open: &OwnedFd, position: u64) -> io::Result<()> {
    rustix::fs::seek(open, SeekFrom::Start(position))?;
    Ok(())
}

/// Reads the next entries of a listing, including `.` and `..`. Returns an empty list at the end of the listing.
fn entries(open: &OwnedFd) -> io::Result<Vec<Entry>> {
    let mut buffer = [MaybeUninit::uninit(); PART];
    let mut folder = RawDir::new(open, &mut buffer);
    let mut entries = Vec::new();
    while let Some(entry) = folder.next() {
        let entry = entry?;
        let name = entry.file_name();
        let kind = match entry.file_type() {
            // Some file systems do not return the type with the entry.
            FileType::Unknown => rustix::fs::statat(open, name, AtFlags::SYMLINK_NOFOLLOW)
                .map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode)),
            kind => kind,
        };
        entries.push(Entry { name: name.to_bytes().to_vec(), kind, next: entry.next_entry_cookie() });
        if folder.is_buffer_empty() {
            break;
        }
    }
    Ok(entries)
}

/// Converts a file type to the WASI type.
fn wasi_type(kind: FileType) -> DescriptorType {
    match kind {
        FileType::RegularFile => DescriptorType::RegularFile,
        FileType::Directory => DescriptorType::Directory,
        FileType::Symlink => DescriptorType::SymbolicLink,
        FileType::Fifo => DescriptorType::Fifo,
        FileType::Socket => DescriptorType::Socket,
        FileType::CharacterDevice => DescriptorType::CharacterDevice,
        FileType::BlockDevice => DescriptorType::BlockDevice,
        FileType::Unknown => DescriptorType::Unknown,
    }
}

/// Runs `work` on a thread for blocking calls, and charges its CPU time to the guest.
async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> wasmtime::Result<io::Result<T>> {
    let timed = move || {
        let begun = cpu_time();
        let result = work();
        (result, cpu_time().saturating_sub(begun))
    };
    let (result, took) = tokio::task::spawn_blocking(timed).await?;
    hostler_handler::charge(took);
    Ok(result)
}

/// Returns the CPU time that this thread has used.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default()
}
