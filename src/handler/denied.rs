//! What WASI denies to components by itself, told in the log: files outside of the granted folders, and sockets.
//!
//! Preview-1 modules get the same errors; their C library asks the host in another way, which has no place for this.

use wasmtime::StoreContextMut;
use wasmtime::component::{Linker, Resource};
use wasmtime_wasi::filesystem::{Descriptor, WasiFilesystemView as _};
use wasmtime_wasi::p2::bindings::filesystem::types::{
    DescriptorFlags, ErrorCode as FileError, HostDescriptor as _, OpenFlags, PathFlags,
};
use wasmtime_wasi::p2::bindings::sockets::ip_name_lookup::ResolveAddressStream;
use wasmtime_wasi::p2::bindings::sockets::network::{ErrorCode as NetworkError, IpAddressFamily, Network};
use wasmtime_wasi::p2::{TcpSocket, UdpSocket};

use super::sandbox::{ComponentWasi, Sandbox};

/// The version of WASI that the linker has; others of 0.2 are matched with it.
const WASI: &str = "0.2.12";

/// What a line says of a guest's path, in characters.
const SHOWN: usize = 256;

type Host<'a> = StoreContextMut<'a, Sandbox<ComponentWasi>>;

/// Puts itself before the functions of WASI, which are in the linker already.
pub(super) fn add(linker: &mut Linker<Sandbox<ComponentWasi>>) -> wasmtime::Result<()> {
    linker.allow_shadowing(true);
    files(linker)?;
    sockets(linker)?;
    linker.allow_shadowing(false);
    Ok(())
}

type OpenAt = (Resource<Descriptor>, PathFlags, String, OpenFlags, DescriptorFlags);

fn files(linker: &mut Linker<Sandbox<ComponentWasi>>) -> wasmtime::Result<()> {
    let mut types = linker.instance(&format!("wasi:filesystem/types@{WASI}"))?;
    types.func_wrap_async("[method]descriptor.open-at", |mut host: Host<'_>, (at, how, path, open, flags): OpenAt| {
        Box::new(async move {
            let shown: String = path.chars().take(SHOWN).collect();
            let opened = host.data_mut().filesystem().open_at(at, how, path, open, flags).await;
            let error = match opened {
                Ok(opened) => return Ok((Ok(opened),)),
                Err(error) => error.downcast()?,
            };
            if matches!(error, FileError::NotPermitted | FileError::ReadOnly) {
                let writes = flags.contains(DescriptorFlags::WRITE) || open.contains(OpenFlags::CREATE);
                let cure = match writes {
                    true => "grant its folder in the consumer's allow.dirs, with mode = \"rw\"",
                    false => "grant the folder that it is really in, in the consumer's allow.dirs",
                };
                host.data().scope.denials.tell(&format!("file {shown:?}"), cure);
            }
            Ok((Err(error),))
        })
    })
}

fn sockets(linker: &mut Linker<Sandbox<ComponentWasi>>) -> wasmtime::Result<()> {
    let deny = |host: &Host<'_>, what: &str| {
        let cure = "handlers have no sockets; HTTP they have: see the consumer's allow.http";
        host.data().scope.denials.tell(what, cure);
    };
    linker.instance(&format!("wasi:sockets/tcp-create-socket@{WASI}"))?.func_wrap(
        "create-tcp-socket",
        move |host: Host<'_>, (_,): (IpAddressFamily,)| {
            deny(&host, "a TCP socket");
            Ok((Err::<Resource<TcpSocket>, _>(NetworkError::AccessDenied),))
        },
    )?;
    linker.instance(&format!("wasi:sockets/udp-create-socket@{WASI}"))?.func_wrap(
        "create-udp-socket",
        move |host: Host<'_>, (_,): (IpAddressFamily,)| {
            deny(&host, "a UDP socket");
            Ok((Err::<Resource<UdpSocket>, _>(NetworkError::AccessDenied),))
        },
    )?;
    linker.instance(&format!("wasi:sockets/ip-name-lookup@{WASI}"))?.func_wrap(
        "resolve-addresses",
        move |host: Host<'_>, (_, _name): (Resource<Network>, String)| {
            deny(&host, "a name look-up");
            Ok((Err::<Resource<ResolveAddressStream>, _>(NetworkError::PermanentResolverFailure),))
        },
    )
}
