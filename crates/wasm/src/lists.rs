//! Lists that a guest passes to the host, bounded before any entry is taken over.
//!
//! A guest cannot be stopped within a call of the host. Taking over a list costs the host work for each entry, so a list of
//! millions would keep its guest running long after its processing timeout.

use wasmtime::AsContextMut as _;
use wasmtime::component::{Lift, Linker, Resource, WasmList};
use wasmtime_wasi::WasiView as _;
use wasmtime_wasi::p2::DynPollable;
use wasmtime_wasi_io::bindings::wasi::io::poll::Host as _;

use crate::expected::before;
use crate::sandbox::{ComponentWasi, Host, Sandbox};

/// The most attributes of a message, entries of its metadata, or fields of an HTTP head that may be passed at once: a hundred
/// times what SQS allows, and less than a millisecond's work.
pub(crate) const MAX_ENTRIES: usize = 1_000;

/// The interface and the function that this file overrides.
const POLL: &str = "wasi:io/poll@0.2.12";
const FUNCTION: &str = "poll";

/// Takes over a list of up to `most` entries. The inner error gives the number of entries.
///
/// # Errors
/// An entry is not valid. This traps.
pub(crate) fn take<T: Lift + 'static>(
    host: &mut Host<'_>,
    list: &WasmList<T>,
    most: usize,
) -> wasmtime::Result<Result<Vec<T>, String>> {
    if list.len() > most {
        return Ok(Err(format!("a list of {} entries was passed, of which {most} are the most", list.len())));
    }
    list.iter(host.as_context_mut())?.collect::<wasmtime::Result<_>>().map(Ok)
}

/// Overrides `poll` of WASI, which is in the linker already. A guest may wait for as many things at once as it may have handles.
pub(crate) fn add(linker: &mut Linker<Sandbox<ComponentWasi>>) -> wasmtime::Result<()> {
    before(linker, POLL, &[FUNCTION], |poll| {
        poll.func_wrap_async(FUNCTION, |mut host: Host<'_>, (list,): (WasmList<Resource<DynPollable>>,)| {
            let most = host.data().limits.handles;
            let taken = take(&mut host, &list, most);
            Box::new(async move {
                // WASI has no error for this function.
                let pollables = taken?.map_err(wasmtime::Error::msg)?;
                Ok((host.data_mut().ctx().table.poll(pollables).await?,))
            })
        })
    })
}
