//! Directory listings for components: `read-directory` and `directory-entry-stream` in WASI 0.2.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use wasmtime::component::{Linker, Resource, ResourceType};
use wasmtime_wasi::WasiView as _;
use wasmtime_wasi::filesystem::Descriptor;
use wasmtime_wasi::p2::bindings::filesystem::types::{DirectoryEntry, ErrorCode};

use super::{Entry, apart, entries, open, wasi_type};
use crate::expected::before;
use crate::files;
use crate::sandbox::{ComponentWasi, Host, Sandbox};
use hostler_handler::Limit;

/// The WASI interface whose functions are overridden here.
const TYPES: &str = "wasi:filesystem/types@0.2.12";

/// Name of the function that opens a listing. [`add`] overrides this function, the function [`NEXT`], which reads the
/// listing, and the resource type of a listing.
const READ: &str = "[method]descriptor.read-directory";
const NEXT: &str = "[method]directory-entry-stream.read-directory-entry";

/// The WIT resource `directory-entry-stream`.
pub(crate) struct Listing {
    folder: Arc<OwnedFd>,
    /// Entries that were read but not yet returned to the guest.
    ready: VecDeque<Result<DirectoryEntry, ErrorCode>>,
}

/// Overrides the WASI functions in the linker.
pub(crate) fn add(linker: &mut Linker<Sandbox<ComponentWasi>>) -> wasmtime::Result<()> {
    before(linker, TYPES, &[READ, NEXT], |types| {
        types.resource("directory-entry-stream", ResourceType::host::<Listing>(), |mut host, handle| {
            host.data_mut().ctx().table.delete(Resource::<Listing>::new_own(handle))?;
            Ok(())
        })?;
        types.func_wrap_async(READ, |mut host: Host<'_>, (folder,): (Resource<Descriptor>,)| {
            Box::new(async move { Ok((read(&mut host, &folder).await?,)) })
        })?;
        types.func_wrap_async(NEXT, |mut host: Host<'_>, (listing,): (Resource<Listing>,)| {
            Box::new(async move { Ok((next(&mut host, &listing).await?,)) })
        })
    })
}

/// Opens a listing of `folder`. The listing counts as an open file.
async fn read(
    host: &mut Host<'_>,
    folder: &Resource<Descriptor>,
) -> wasmtime::Result<Result<Resource<Listing>, ErrorCode>> {
    let most = host.data().limits.files;
    let table = host.data_mut().ctx().table;
    let Descriptor::Dir(folder) = table.get(folder)? else { return Ok(Err(ErrorCode::NotDirectory)) };
    let folder = Arc::clone(&folder.dir);
    if !files::may_open(table, most) {
        files::tell(&host.data().scope.denials, most);
        return Ok(Err(ErrorCode::Quota));
    }
    let folder = match apart(move || open(&folder)).await? {
        Ok(folder) => Arc::new(folder),
        Err(error) => {
            if let Some(limit) = Limit::of_descriptors() {
                host.data().scope.reach(limit);
            }
            return Ok(Err(error.into()));
        }
    };
    let listing = Listing { folder, ready: VecDeque::new() };
    Ok(Ok(host.data_mut().ctx().table.push(listing)?))
}

/// Returns the next entry. `None`: the end of the listing was reached.
async fn next(
    host: &mut Host<'_>,
    listing: &Resource<Listing>,
) -> wasmtime::Result<Result<Option<DirectoryEntry>, ErrorCode>> {
    loop {
        let known = host.data_mut().ctx().table.get_mut(listing)?;
        if let Some(entry) = known.ready.pop_front() {
            return Ok(entry.map(Some));
        }
        let folder = Arc::clone(&known.folder);
        let part = match apart(move || entries(&folder)).await? {
            Ok(part) if part.is_empty() => return Ok(Ok(None)),
            Ok(part) => part,
            Err(error) => return Ok(Err(error.into())),
        };
        host.data_mut().ctx().table.get_mut(listing)?.ready = part.into_iter().filter_map(shown).collect();
    }
}

/// Converts a directory entry to the form that guests receive. `None`: guests do not receive the entry (`.` or `..`).
fn shown(entry: Entry) -> Option<Result<DirectoryEntry, ErrorCode>> {
    if matches!(&*entry.name, b"." | b"..") {
        return None;
    }
    let name = String::from_utf8(entry.name).map_err(|_| ErrorCode::IllegalByteSequence);
    Some(name.map(|name| DirectoryEntry { type_: wasi_type(entry.kind), name }))
}
