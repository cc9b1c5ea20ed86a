//! Listings of preview-1 modules: `fd_readdir`.
//!
//! The one of wasmtime-wasi reads and examines the whole folder in each call, however little the guest's buffer holds. This one reads
//! what fits. Its cookies are the kernel's own positions, so that nothing is kept between two calls.

use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, statat};
use rustix::io::Errno;
use wasmtime::{Caller, Val};
use wasmtime_wasi::WasiView as _;
use wasmtime_wasi::filesystem::Descriptor;

use super::{Entry, apart, entries, open, seek};
use crate::denied::{Between, FILESTAT, Preview1, memory};
use crate::sandbox::Sandbox;
use hostler_handler::Limit;

/// `errno`s of WASI preview 1.
mod errno {
    pub(super) const SUCCESS: i32 = 0;
    pub(super) const ACCES: i32 = 2;
    pub(super) const FAULT: i32 = 21;
    pub(super) const ILSEQ: i32 = 25;
    pub(super) const IO: i32 = 29;
    pub(super) const MFILE: i32 = 33;
    pub(super) const NOENT: i32 = 44;
    pub(super) const NOTDIR: i32 = 54;
}

/// The size of a `filestat`, and where in it are the serial number and the type of a file.
const FILESTAT_SIZE: usize = 64;
const SERIAL: usize = 8;
const TYPE: usize = 16;

/// The type `directory`.
const DIRECTORY: u8 = 3;

/// The bytes of an entry before its name (`dirent`).
const HEAD: usize = 24;

type Host<'a> = Caller<'a, Sandbox<Preview1>>;

/// The parameters of `fd_readdir`: the folder, the buffer and its length, where to go on, and where to say how much was written.
pub(crate) type Asked = (i32, i32, i32, i64, i32);

/// Reads as many entries of a folder as fit the guest's buffer; the `errno`.
pub(crate) async fn read(between: &Between, host: &mut Host<'_>, asked: Asked) -> wasmtime::Result<i32> {
    let (folder, buffer, length, cookie, used) = asked;
    let [buffer, length, used] = [buffer, length, used].map(|number| number.cast_unsigned() as usize);
    let serial = match serial(between, host, folder).await? {
        Ok(serial) => serial,
        Err(errno) => return Ok(errno),
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
            return Ok(errno::FAULT);
        }
        written += part.len();
    }
    let said = u32::try_from(written).unwrap_or(u32::MAX).to_le_bytes();
    Ok(if memory(host)?.write(&mut *host, used, &said).is_ok() { errno::SUCCESS } else { errno::FAULT })
}

/// The serial number by which WASI knows a folder of the guest, or the `errno`. WASI writes it into the guest's memory, where it is taken back.
async fn serial(between: &Between, host: &mut Host<'_>, folder: i32) -> wasmtime::Result<Result<u64, i32>> {
    let memory = memory(host)?;
    let mut before = [0; FILESTAT_SIZE];
    if memory.read(&mut *host, 0, &mut before).is_err() {
        return Ok(Err(errno::FAULT));
    }
    let mut answer = [Val::I32(errno::IO)];
    between.call(host, FILESTAT, &[Val::I32(folder), Val::I32(0)], &mut answer).await?;
    let mut stat = [0; FILESTAT_SIZE];
    memory.read(&mut *host, 0, &mut stat)?;
    memory.write(&mut *host, 0, &before)?;
    let serial = stat.get(SERIAL..).and_then(|rest| rest.first_chunk().copied()).map_or(0, u64::from_le_bytes);
    Ok(match answer[0] {
        Val::I32(errno::SUCCESS) if stat[TYPE] == DIRECTORY => Ok(serial),
        Val::I32(errno::SUCCESS) => Err(errno::NOTDIR),
        Val::I32(errno) => Err(errno),
        _ => Err(errno::IO),
    })
}

/// The folders that the guest has open.
fn folders(host: &mut Host<'_>) -> Vec<Arc<File>> {
    let folder = |entry: &mut (dyn std::any::Any + Send)| match entry.downcast_ref()? {
        Descriptor::Dir(folder) => Some(Arc::clone(&folder.dir)),
        Descriptor::File(_) => None,
    };
    host.data_mut().wasi.ctx.ctx().table.iter_mut().filter_map(folder).collect()
}

/// Opens the folder with this serial number again, to go on from a position.
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

/// The serial number of a file as WASI makes it up (`metadata_hash` of wasmtime-wasi), so that an entry has the one that its file has.
fn serial_of(device: u64, inode: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    (device, inode).hash(&mut hasher);
    hasher.finish()
}

/// The next entries of a folder as guests see them, of which the last is cut where there is no more room; nothing at the end.
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

/// An entry as guests see it.
fn shown(folder: &OwnedFd, own: u64, entry: &Entry) -> io::Result<Vec<u8>> {
    let name = std::str::from_utf8(&entry.name).map_err(|_| io::ErrorKind::InvalidData)?;
    let (serial, kind) = match name {
        // What lies above is none of the guest's business.
        "." | ".." => (own, FileType::Directory),
        // It may be gone by now.
        _ => statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).map_or((0, entry.kind), |stat| {
            (serial_of(stat.st_dev, stat.st_ino), FileType::from_raw_mode(stat.st_mode))
        }),
    };
    let kind = match kind {
        FileType::BlockDevice => 1,
        FileType::CharacterDevice => 2,
        FileType::Directory => DIRECTORY,
        FileType::RegularFile => 4,
        FileType::Symlink => 7,
        FileType::Fifo | FileType::Socket | FileType::Unknown => 0_u8,
    };
    let mut shown = Vec::with_capacity(HEAD + name.len());
    shown.extend(entry.next.to_le_bytes());
    shown.extend(serial.to_le_bytes());
    shown.extend(u32::try_from(name.len()).unwrap_or(u32::MAX).to_le_bytes());
    shown.extend([kind, 0, 0, 0]);
    shown.extend(name.bytes());
    Ok(shown)
}

/// The `errno` for an error. A limit of the host is noted.
fn fault(host: &Host<'_>, error: &io::Error) -> i32 {
    if let Some(limit) = Limit::of_descriptors() {
        host.data().scope.reach(limit);
    }
    match Errno::from_io_error(error) {
        Some(Errno::ACCESS) => errno::ACCES,
        Some(Errno::NOENT) => errno::NOENT,
        Some(Errno::MFILE | Errno::NFILE) => errno::MFILE,
        _ if error.kind() == io::ErrorKind::InvalidData => errno::ILSEQ,
        _ => errno::IO,
    }
}
