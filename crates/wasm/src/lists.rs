//! Lists that a guest passes to the host. The host checks the length of a list before it copies any entry.
//!
//! A guest cannot be stopped during a call to the host, and copying a list takes time for each entry. With a list of
//! millions of entries, the guest would run long after its processing timeout.

use wasmtime::AsContextMut as _;
use wasmtime::component::{Lift, Linker, Resource, WasmList};
use wasmtime_wasi::WasiView as _;
use wasmtime_wasi::p2::DynPollable;
use wasmtime_wasi_io::bindings::wasi::io::poll::Host as _;

use crate::expected::before;
use crate::sandbox::{ComponentWasi, Host, Sandbox};

/// Maximum number of entries in a list: attributes or metadata of a message, or fields of an HTTP head. The maximum is
/// a hundred times the SQS limit on message attributes. Copying this many entries takes less than a millisecond.
pub(crate) const MAX_ENTRIES: usize = 1_000;

/// The interface that contains [`FUNCTION`], the function that is overridden here.
const POLL: &str = "wasi:io/poll@0.2.12";
const FUNCTION: &str = "poll";

/// Copies a list of up to `most` entries. If the list is too long, the inner error gives its length and the maximum.
///
/// # Errors
/// An entry is not valid. This outer error makes the guest trap.
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

/// Overrides the WASI function `poll` in the linker. The override limits the number of pollables in a list to the
/// maximum number of handles that the guest may have.
pub(crate) fn add(linker: &mut Linker<Sandbox<ComponentWasi>>) -> wasmtime::Result<()> {
    before(linker, POLL, &[FUNCTION], |poll| {
        poll.func_wrap_async(FUNCTION, |mut host: Host<'_>, (list,): (WasmList<Resource<DynPollable>>,)| {
            let most = host.data().limits.handles;
            let taken = take(&mut host, &list, most);
            Box::new(async move {
                // `poll` cannot return an error, so a list that is too long traps.
                let pollables = taken?.map_err(wasmtime::Error::msg)?;
                Ok((host.data_mut().ctx().table.poll(pollables).await?,))
            })
        })
    })
}
