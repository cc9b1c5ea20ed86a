//! Directory listings for preview-1 modules: `fd_readdir`.
//!
//! In each call, wasmtime-wasi's own function reads and examines the whole folder, even if the buffer is small. The
//! function in this module reads only as many entries as fit in the buffer. The cookies, which mark positions in the
//! listing, are the kernel's own positions. The host therefore stores no state between calls.

use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, statat};
use rustix::io::Errno as SystemError;
use wasmtime::Linker;
use wasmtime_wasi::WasiView as _;
use wasmtime_wasi::filesystem::Descriptor;
use wasmtime_wasi::p1::WasiP1Ctx;
use wasmtime_wasi::p1::types::{Errno, Fd, Filetype};
use wasmtime_wasi::p1::wasi_snapshot_preview1::WasiSnapshotPreview1 as _;

use super::{Entry, apart, entries, open, seek, wasi_type};
use crate::preview1::{Host, WASI, memory, parts};
use crate::sandbox::Sandbox;
use hostler_handler::Limit;

/// Size in bytes of the fixed part of an entry, which precedes its name (`dirent`).
const HEAD: usize = 24;

/// The parameters of `fd_readdir`: the folder, the address and length of the buffer, the cookie, and the address for
/// the number of bytes written.
type Asked = (i32, i32, i32, i64, i32);

/// Overrides the WASI function `fd_readdir` in the linker.
pub(crate) fn add(linker: &mut Linker<Sandbox<WasiP1Ctx>>) -> wasmtime::Result<()> {
    linker.allow_shadowing(true);
    linker.func_wrap_async(WASI, "fd_readdir", |mut host: Host<'_>, asked: Asked| {
        Box::new(async move { Ok(read(&mut host, asked).await? as i32) })
    })?;
    linker.allow_shadowing(false);
    Ok(())
}

/// Reads as many entries of a folder as fit in the guest's buffer.
async fn read(host: &mut Host<'_>, asked: Asked) -> wasmtime::Result<Errno> {
    let (folder, buffer, length, cookie, used) = asked;
    let [buffer, length, used] = [buffer, length, used].map(|number| number.cast_unsigned() as usize);
    let (wasi, mut guest) = parts(host)?;
    let serial = match wasi.fd_filestat_get(&mut guest, Fd::from(folder)).await {
        Ok(stat) if stat.filetype == Filetype::Directory => stat.ino,
        Ok(_) => return Ok(Errno::Notdir),
        Err(error) => return error.downcast(),
    };
    let folders = folders(host);
    let folder = match apart(move || reopen(&folders, serial, cookie.cast_unsigned())).await? {
        Ok(folder) => Arc::new(folder),
        Err(error) => return Ok(fault(host, &error)),
    };
    let mut written = 0;
    while written < length {
        let (opened, room) = (Arc::clone(&folder), length - written);
        let part = match apart(move || part(&opened, serial, room)).await? {
            Ok(part) if part.is_empty() => break,
            Ok(part) => part,
            Err(error) => return Ok(fault(host, &error)),
        };
        if memory(host)?.write(&mut *host, buffer + written, &part).is_err() {
            return Ok(Errno::Fault);
        }
        written += part.len();
    }
    let said = u32::try_from(written).unwrap_or(u32::MAX).to_le_bytes();
    Ok(if memory(host)?.write(&mut *host, used, &said).is_ok() { Errno::Success } else { Errno::Fault })
}

/// Returns the folders that the guest has open.
fn folders(host: &mut Host<'_>) -> Vec<Arc<File>> {
    let folder = |entry: &mut (dyn std::any::Any + Send)| match entry.downcast_ref()? {
        Descriptor::Dir(folder) => Some(Arc::clone(&folder.dir)),
        Descriptor::File(_) => None,
    };
    host.data_mut().wasi.ctx().table.iter_mut().filter_map(folder).collect()
}

/// Finds the guest's open folder with the serial number `serial`, opens the folder a second time, and moves the new
/// descriptor to `position` in the listing.
fn reopen(folders: &[Arc<File>], serial: u64, position: u64) -> io::Result<OwnedFd> {
    for folder in folders {
        let metadata = folder.metadata()?;
        if serial_of(metadata.dev(), metadata.ino()) == serial {
            let opened = open(folder)?;
            seek(&opened, position)?;
            return Ok(opened);
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

/// Returns the serial number of a file (`inode` in preview 1), which identifies the file. The number is computed as in
/// wasmtime-wasi (`metadata_hash`), so a directory entry has the same number as the metadata of the file.
fn serial_of(device: u64, inode: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    (device, inode).hash(&mut hasher);
    hasher.finish()
}

/// Returns the next entries of a folder in the guest's format, up to `room` bytes. The last entry may be truncated.
/// Returns an empty list at the end of the folder. `own`: serial number of the folder.
fn part(folder: &OwnedFd, own: u64, room: usize) -> io::Result<Vec<u8>> {
    let mut part = Vec::new();
    for entry in entries(folder)? {
        if part.len() >= room {
            break;
        }
        part.extend(shown(folder, own, &entry)?);
    }
    part.truncate(room);
    Ok(part)
}

/// Converts an entry to the guest's format. `own`: serial number of the folder.
fn shown(folder: &OwnedFd, own: u64, entry: &Entry) -> io::Result<Vec<u8>> {
    let name = std::str::from_utf8(&entry.name).map_err(|_| io::ErrorKind::InvalidData)?;
    let (serial, kind) = match name {
        // Replaces the serial number of the parent folder with that of this folder, because the guest must learn
        // nothing about the folders above.
        "." | ".." => (own, FileType::Directory),
        // The file may have been removed since the entry was read.
        _ => statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).map_or((0, entry.kind), |stat| {
            (serial_of(stat.st_dev, stat.st_ino), FileType::from_raw_mode(stat.st_mode))
        }),
    };
    // Preview 1 has file types for stream sockets and for datagram sockets, but none for a socket whose kind is
    // unknown.
    let kind = Filetype::try_from(wasi_type(kind)).unwrap_or(Filetype::Unknown);
    let mut shown = Vec::with_capacity(HEAD + name.len());
    shown.extend(entry.next.to_le_bytes());
    shown.extend(serial.to_le_bytes());
    shown.extend(u32::try_from(name.len()).unwrap_or(u32::MAX).to_le_bytes());
    shown.extend([kind as u8, 0, 0, 0]);
    shown.extend(name.bytes());
    Ok(shown)
}

/// Converts the error of a file operation to an `errno` for the guest. If the process has no free file descriptor, also
/// records that the call has reached this host limit.
fn fault(host: &Host<'_>, error: &io::Error) -> Errno {
    if let Some(limit) = Limit::of_descriptors() {
        host.data().scope.reach(limit);
    }
    match SystemError::from_io_error(error) {
        Some(SystemError::ACCESS) => Errno::Acces,
        Some(SystemError::NOENT) => Errno::Noent,
        Some(SystemError::MFILE | SystemError::NFILE) => Errno::Mfile,
        _ if error.kind() == io::ErrorKind::InvalidData => Errno::Ilseq,
        _ => Errno::Io,
    }
}
