//! WASI functions for components, overridden to log denied access to files and sockets.

use std::sync::{Arc, Once};

use wasmtime::component::{ComponentNamedList, Lift, Linker, LinkerInstance, Lower, Resource};
use wasmtime_wasi::filesystem::{Descriptor, WasiFilesystemView as _};
use wasmtime_wasi::p2::bindings::filesystem::types::{
    DescriptorFlags, ErrorCode as FileError, HostDescriptor as _, NewTimestamp, OpenFlags, PathFlags,
};
use wasmtime_wasi::p2::bindings::sockets::ip_name_lookup::ResolveAddressStream;
use wasmtime_wasi::p2::bindings::sockets::network::{ErrorCode as NetworkError, IpAddressFamily, Network};
use wasmtime_wasi::p2::{FsResult, TcpSocket, UdpSocket};

use crate::expected::before;
use crate::files;
use crate::sandbox::{ComponentWasi, Host, Sandbox};
use hostler_handler::Limit;

/// The WASI interface for file operations. Functions of this interface and of [`PREOPENS`] are overridden here.
const TYPES: &str = "wasi:filesystem/types@0.2.12";
const PREOPENS: &str = "wasi:filesystem/preopens@0.2.12";

/// The fixes for a handler that wants sockets.
const TCP_CURE: &str = "add the server to the consumer's allow.tcp; for HTTP, see allow.http";
const UDP_CURE: &str = "handlers have no UDP";

/// The functions that accept a path.
const ASKED: [&str; 10] = [
    "[method]descriptor.open-at",
    "[method]descriptor.stat-at",
    "[method]descriptor.readlink-at",
    "[method]descriptor.create-directory-at",
    "[method]descriptor.remove-directory-at",
    "[method]descriptor.unlink-file-at",
    "[method]descriptor.rename-at",
    "[method]descriptor.symlink-at",
    "[method]descriptor.link-at",
    "[method]descriptor.set-times-at",
];

/// Overrides WASI functions in the linker. `has_folders`: `true` if the consumer grants any folder.
pub(crate) fn add(linker: &mut Linker<Sandbox<ComponentWasi>>, has_folders: bool) -> wasmtime::Result<()> {
    if has_folders {
        before(linker, TYPES, &ASKED, files)?;
    } else {
        before(linker, PREOPENS, &["get-directories"], folders)?;
    }
    type Family = (IpAddressFamily,);
    let (denied, failed) = (NetworkError::AccessDenied, NetworkError::PermanentResolverFailure);
    let (tcp, udp) = ("wasi:sockets/tcp-create-socket@0.2.12", "wasi:sockets/udp-create-socket@0.2.12");
    deny::<Family, Resource<TcpSocket>>(linker, tcp, "create-tcp-socket", "a TCP socket", TCP_CURE, denied)?;
    deny::<Family, Resource<UdpSocket>>(linker, udp, "create-udp-socket", "a UDP socket", UDP_CURE, denied)?;
    let (names, resolve) = ("wasi:sockets/ip-name-lookup@0.2.12", "resolve-addresses");
    type Name = (Resource<Network>, String);
    deny::<Name, Resource<ResolveAddressStream>>(linker, names, resolve, "a name look-up", TCP_CURE, failed)
}

/// Overrides a WASI function that creates a socket or resolves a name: `function` in `interface`. The override logs
/// that `what` was denied, and returns `error`.
fn deny<P, T>(
    linker: &mut Linker<Sandbox<ComponentWasi>>,
    interface: &str,
    function: &str,
    what: &'static str,
    cure: &'static str,
    error: NetworkError,
) -> wasmtime::Result<()>
where
    P: ComponentNamedList + Lift + 'static,
    T: Lower + 'static,
{
    before(linker, interface, &[function], |instance| {
        instance.func_wrap(function, move |host: Host<'_>, _: P| {
            host.data().scope.denials.tell(what, cure);
            Ok((Err::<T, _>(error),))
        })
    })
}

/// Overrides a WASI function that reads or changes a path. After the linker, the macro has four arguments: the name of
/// the function; the method that implements it, with the parameters that follow the folder; the parameter that contains
/// the path to log; and `true` if the function writes. Example:
/// `asks!(types, "readlink-at", readlink_at(path: String), path, false)`.
macro_rules! asks {
    ($types:ident, $name:literal, $method:ident($($parameter:ident: $type:ty),*), $path:ident, $writes:expr) => {
        $types.func_wrap_async(
            concat!("[method]descriptor.", $name),
            |mut host: Host<'_>, (at, $($parameter),*): (Resource<Descriptor>, $($type),*)| {
                Box::new(async move {
                    let (path, writes): (String, bool) = ($path.clone(), $writes);
                    let answer = host.data_mut().filesystem().$method(at, $($parameter),*).await;
                    Ok((told(&host, answer, &path, writes)?,))
                })
            },
        )?;
    };
}

fn files(types: &mut LinkerInstance<'_, Sandbox<ComponentWasi>>) -> wasmtime::Result<()> {
    types.func_wrap_async("[method]descriptor.open-at", |host: Host<'_>, asked: Open| {
        Box::new(async move { Ok((open(host, asked).await?,)) })
    })?;
    asks!(types, "stat-at", stat_at(how: PathFlags, path: String), path, false);
    asks!(types, "readlink-at", readlink_at(path: String), path, false);
    asks!(types, "create-directory-at", create_directory_at(path: String), path, true);
    asks!(types, "remove-directory-at", remove_directory_at(path: String), path, true);
    asks!(types, "unlink-file-at", unlink_file_at(path: String), path, true);
    asks!(types, "rename-at", rename_at(path: String, to: Resource<Descriptor>, name: String), path, true);
    asks!(types, "symlink-at", symlink_at(old: String, path: String), path, true);
    asks!(types, "link-at", link_at(how: PathFlags, path: String, to: Resource<Descriptor>, name: String), path, true);
    asks!(
        types,
        "set-times-at",
        set_times_at(how: PathFlags, path: String, accessed: NewTimestamp, changed: NewTimestamp),
        path,
        true
    );
    Ok(())
}

/// The parameters of `open-at`.
type Open = (Resource<Descriptor>, PathFlags, String, OpenFlags, DescriptorFlags);

/// Opens a file for the guest. Returns an error to the guest if the sandbox has reached its limit on open files.
async fn open(mut host: Host<'_>, asked: Open) -> wasmtime::Result<Result<Resource<Descriptor>, FileError>> {
    let (at, how, path, create, flags) = asked;
    let writes = flags.contains(DescriptorFlags::WRITE) || create.contains(OpenFlags::CREATE);
    let most = host.data().limits.files;
    if !files::may_open(host.data_mut().filesystem().table, most) {
        files::tell(&host.data().scope.denials, most);
        return Ok(Err(FileError::Quota));
    }
    let answer = host.data_mut().filesystem().open_at(at, how, path.clone(), create, flags).await;
    let answer = told(&host, answer, &path, writes)?;
    // WASI uses the code `Io` for every error that has no code of its own. The error may mean that the process has no
    // free file descriptor.
    if matches!(answer, Err(FileError::Io))
        && let Some(limit) = Limit::of_descriptors()
    {
        host.data().scope.reach(limit);
    }
    Ok(answer)
}

fn folders(preopens: &mut LinkerInstance<'_, Sandbox<ComponentWasi>>) -> wasmtime::Result<()> {
    let judged = Arc::new(Once::new());
    preopens.func_wrap("get-directories", move |host: Host<'_>, (): ()| {
        host.data().scope.denials.looked_for_folders(&judged);
        Ok((Vec::<(Resource<Descriptor>, String)>::new(),))
    })
}

/// Returns the result of a file operation in the form that the guest receives. If WASI denied the operation, logs the
/// denial.
fn told<T>(host: &Host<'_>, answer: FsResult<T>, path: &str, writes: bool) -> wasmtime::Result<Result<T, FileError>> {
    let error = match answer {
        Ok(value) => return Ok(Ok(value)),
        Err(error) => error.downcast()?,
    };
    if matches!(error, FileError::NotPermitted | FileError::ReadOnly) {
        super::file(&host.data().scope.denials, path, writes);
    }
    Ok(Err(error))
}
