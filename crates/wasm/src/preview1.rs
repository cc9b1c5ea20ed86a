//! Access to the original functions of WASI preview 1, for the functions that override them.
//!
//! The functions that wasmtime-wasi adds to the linker find the guest's memory through the module that calls them. An
//! override cannot call such a function, because the caller would be the host. The override therefore calls the
//! underlying function, which has the memory as a parameter.

use wasmtime::{AsContextMut as _, Caller, Extern, Memory};
use wasmtime_wasi::p1::WasiP1Ctx;
use wasmtime_wasi::p1::wasi_snapshot_preview1::WasiSnapshotPreview1 as _;
use wiggle::GuestMemory;

use crate::sandbox::Sandbox;

/// The module name under which guests import WASI preview 1.
pub(crate) const WASI: &str = "wasi_snapshot_preview1";

/// The context of a call to a host function: gives access to the calling module and its sandbox.
pub(crate) type Host<'a> = Caller<'a, Sandbox<WasiP1Ctx>>;

/// Returns the WASI context and the guest's memory, which the original functions take as parameters.
pub(crate) fn parts<'a>(host: &'a mut Host<'_>) -> wasmtime::Result<(&'a mut WasiP1Ctx, GuestMemory<'a>)> {
    let fuel = host.as_context_mut().hostcall_fuel();
    let (memory, sandbox) = memory(host)?.data_and_store_mut(host);
    sandbox.wasi.set_hostcall_fuel(fuel);
    Ok((&mut sandbox.wasi, GuestMemory::Unshared(memory)))
}

/// Returns the guest's memory.
pub(crate) fn memory(host: &mut Host<'_>) -> wasmtime::Result<Memory> {
    let memory = host.get_export("memory").and_then(Extern::into_memory);
    memory.ok_or_else(|| wasmtime::Error::msg("the module does not export its memory as `memory`"))
}
