//! WASI functions for preview-1 modules, overridden to log denied access to files.

use std::sync::{Arc, Once};

use wasmtime::Linker;
use wasmtime_wasi::WasiView as _;
use wasmtime_wasi::p1::types::Errno;
use wasmtime_wasi::p1::{WasiP1Ctx, wasi_snapshot_preview1};

use crate::files;
use crate::preview1::{Host, WASI, memory, parts};
use crate::sandbox::Sandbox;
use hostler_handler::Limit;

/// The `errno` values with which WASI denies an operation.
const DENIED: [i32; 3] = [Errno::Perm as i32, Errno::Rofs as i32, Errno::Notcapable as i32];

/// The open flag `creat` of WASI preview 1. This flag and the rights in [`WRITES`] (`fd_write` and `fd_allocate`) show
/// that the guest requests write access.
const CREATE: i32 = 1;
const WRITES: i64 = 1 << 6 | 1 << 8;

/// Maximum number of bytes of a guest's path to read for a log line.
const MOST_SHOWN: usize = 4 * super::SHOWN;

/// Overrides WASI functions in the linker. If folders are granted, overrides the functions that accept a path.
/// Otherwise, overrides only the function with which a guest requests the list of granted folders.
pub(crate) fn add(linker: &mut Linker<Sandbox<WasiP1Ctx>>, has_folders: bool) -> wasmtime::Result<()> {
    linker.allow_shadowing(true);
    if has_folders {
        paths(linker)?
    } else {
        folders(linker)?
    }
    linker.allow_shadowing(false);
    Ok(())
}

fn folders(linker: &mut Linker<Sandbox<WasiP1Ctx>>) -> wasmtime::Result<()> {
    let judged = Arc::new(Once::new());
    linker.func_wrap(WASI, "fd_prestat_get", move |host: Host<'_>, _: i32, _: i32| {
        host.data().scope.denials.looked_for_folders(&judged);
        Errno::Badf as i32
    })?;
    Ok(())
}

/// Overrides a WASI function. After the linker, the macro has three arguments: the name and the parameters of the
/// function; the two parameters that contain the address and the length of the path to log; and `true` if the function
/// writes. The signatures follow the specification (`wasi_snapshot_preview1.witx`).
macro_rules! asks {
    ($linker:ident, $name:ident($($parameter:ident: $type:ty),*), ($path:ident, $length:ident), $writes:expr) => {
        $linker.func_wrap_async(WASI, stringify!($name), |mut host: Host<'_>, ($($parameter,)*): ($($type,)*)| {
            Box::new(async move {
                let (wasi, mut guest) = parts(&mut host)?;
                let errno = wasi_snapshot_preview1::$name(wasi, &mut guest, $($parameter),*).await?;
                Ok(told(&mut host, errno, $path, $length, $writes))
            })
        })?;
    };
}

fn paths(linker: &mut Linker<Sandbox<WasiP1Ctx>>) -> wasmtime::Result<()> {
    linker.func_wrap_async(WASI, "path_open", |host: Host<'_>, asked: Open| Box::new(open(host, asked)))?;
    asks!(linker, path_filestat_get(at: i32, how: i32, path: i32, length: i32, to: i32), (path, length), false);
    asks!(linker, path_readlink(at: i32, path: i32, length: i32, to: i32, room: i32, used: i32), (path, length), false);
    asks!(linker, path_create_directory(at: i32, path: i32, length: i32), (path, length), true);
    asks!(linker, path_remove_directory(at: i32, path: i32, length: i32), (path, length), true);
    asks!(linker, path_unlink_file(at: i32, path: i32, length: i32), (path, length), true);
    asks!(linker, path_rename(at: i32, path: i32, length: i32, to: i32, new: i32, rest: i32), (path, length), true);
    asks!(linker, path_symlink(old: i32, rest: i32, at: i32, path: i32, length: i32), (path, length), true);
    asks!(
        linker,
        path_link(at: i32, how: i32, path: i32, length: i32, to: i32, new: i32, rest: i32),
        (path, length),
        true
    );
    asks!(
        linker,
        path_filestat_set_times(at: i32, how: i32, path: i32, length: i32, accessed: i64, changed: i64, which: i32),
        (path, length),
        true
    );
    Ok(())
}

/// The parameters of `path_open`.
type Open = (i32, i32, i32, i32, i32, i64, i64, i32, i32);

/// Opens a file for the guest. Returns an error to the guest if the sandbox has reached its limit on open files.
async fn open(mut host: Host<'_>, asked: Open) -> wasmtime::Result<i32> {
    let (at, how, path, length, flags, rights, inherited, mode, opened) = asked;
    let most = host.data().limits.files;
    if !files::may_open(host.data_mut().wasi.ctx().table, most) {
        files::tell(&host.data().scope.denials, most);
        return Ok(Errno::Mfile as i32);
    }
    let (wasi, mut guest) = parts(&mut host)?;
    let errno = wasi_snapshot_preview1::path_open(
        wasi, &mut guest, at, how, path, length, flags, rights, inherited, mode, opened,
    );
    let errno = errno.await?;
    // WASI uses the code `Io` for every error that has no code of its own. The error may mean that the process has no
    // free file descriptor.
    if errno == Errno::Io as i32
        && let Some(limit) = Limit::of_descriptors()
    {
        host.data().scope.reach(limit);
    }
    Ok(told(&mut host, errno, path, length, flags & CREATE != 0 || rights & WRITES != 0))
}

/// Returns `errno` unchanged. If `errno` means that WASI denied the operation, logs the path. Logs nothing if the
/// address range of the path is outside the guest's memory.
fn told(host: &mut Host<'_>, errno: i32, path: i32, length: i32, writes: bool) -> i32 {
    if DENIED.contains(&errno)
        && let Ok(memory) = memory(host)
    {
        let [start, length] = [path, length].map(|number| number.cast_unsigned() as usize);
        let end = start.saturating_add(length.min(MOST_SHOWN));
        if let Some(path) = memory.data(&*host).get(start..end) {
            super::file(&host.data().scope.denials, &String::from_utf8_lossy(path), writes);
        }
    }
    errno
}
