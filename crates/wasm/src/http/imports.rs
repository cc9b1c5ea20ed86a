//! Adds `wasi:http` to the linker, with three changes. The strings and lists that the host copies from a guest are
//! limited. The resource with the options of a request is deleted from the guest's table when the request is sent. The
//! body of a request counts as complete only if the guest finished it.

use wasmtime::component::{Linker, LinkerInstance, Resource, WasmList};
use wasmtime_wasi_http::p2::bindings::http::outgoing_handler::Host as _;
use wasmtime_wasi_http::p2::bindings::http::types::{
    ErrorCode, HostFields, HostOutgoingBody as _, HostOutgoingRequest as _, Method, Scheme,
};
use wasmtime_wasi_http::p2::body::HostOutgoingBody;
use wasmtime_wasi_http::p2::types::{HostFutureIncomingResponse, HostOutgoingRequest};
use wasmtime_wasi_http::p2::{HeaderError, HttpError};
use wasmtime_wasi_http::{FieldMap, RequestOptions, WasiHttpCtxView, WasiHttpView as _};

use crate::expected::before;
use crate::lists::{self, MAX_ENTRIES};
use crate::sandbox::{ComponentWasi, Host, Sandbox};

/// The interface that contains the functions for creating a request, its header fields and its body.
const TYPES: &str = "wasi:http/types@0.2.12";

/// The interface that sends requests.
const OUTGOING: &str = "wasi:http/outgoing-handler@0.2.12";

/// The functions of [`TYPES`] that are overridden here.
const FUNCTIONS: [&str; 8] = [
    "[method]outgoing-request.set-path-with-query",
    "[method]outgoing-request.set-authority",
    "[method]outgoing-request.set-method",
    "[method]outgoing-request.set-scheme",
    "[static]fields.from-list",
    "[method]fields.set",
    "[method]outgoing-request.body",
    "[static]outgoing-body.finish",
];

/// Maximum length in bytes of a path, including its query. By default, servers refuse longer ones.
const MAX_PATH: usize = 16 * 1024;

/// Maximum length in bytes of a host, including its port (RFC 1035 allows 253 for a name).
const MAX_AUTHORITY: usize = 512;

/// Maximum length in bytes of the name of a method or scheme.
const MAX_WORD: usize = 64;

type Request = Resource<HostOutgoingRequest>;
type Options = Resource<RequestOptions>;
type Answer = wasmtime::Result<Result<(), ()>>;
type Response = Resource<HostFutureIncomingResponse>;
type Body = Resource<HostOutgoingBody>;

/// Adds `wasi:http/types` and `wasi:http/outgoing-handler` to the linker.
pub(crate) fn add(linker: &mut Linker<Sandbox<ComponentWasi>>) -> wasmtime::Result<()> {
    wasmtime_wasi_http::p2::add_only_http_to_linker_async(linker)?;

    before(linker, TYPES, &FUNCTIONS, requests)?;
    before(linker, OUTGOING, &["handle"], |outgoing| {
        outgoing.func_wrap("handle", |host: Host<'_>, (request, options): (Request, Option<Options>)| {
            Ok((handle(host, request, options)?,))
        })
    })
}

fn requests(types: &mut LinkerInstance<'_, Sandbox<ComponentWasi>>) -> wasmtime::Result<()> {
    let [set_path, set_authority, set_method, set_scheme, from_list, set_fields, get_body, finish_body] = FUNCTIONS;
    types.func_wrap(set_path, |host: Host<'_>, (to, path): (Request, Option<String>)| {
        let fits = path.as_ref().is_none_or(|path| path.len() <= MAX_PATH);
        set(host, fits, |http| http.set_path_with_query(to, path))
    })?;
    types.func_wrap(set_authority, |host: Host<'_>, (to, authority): (Request, Option<String>)| {
        let fits = authority.as_ref().is_none_or(|authority| authority.len() <= MAX_AUTHORITY);
        set(host, fits, |http| http.set_authority(to, authority))
    })?;
    types.func_wrap(set_method, |host: Host<'_>, (to, method): (Request, Method)| {
        let fits = !matches!(&method, Method::Other(word) if word.len() > MAX_WORD);
        set(host, fits, |http| http.set_method(to, method))
    })?;
    types.func_wrap(set_scheme, |host: Host<'_>, (to, scheme): (Request, Option<Scheme>)| {
        let fits = !matches!(&scheme, Some(Scheme::Other(word)) if word.len() > MAX_WORD);
        set(host, fits, |http| http.set_scheme(to, scheme))
    })?;
    types.func_wrap(from_list, |mut host: Host<'_>, (list,): (WasmList<(String, Vec<u8>)>,)| {
        // `from-list` has no error for a list that is too long, so the call traps.
        let entries = lists::take(&mut host, &list, MAX_ENTRIES)?.map_err(wasmtime::Error::msg)?;
        Ok((answered(host.data_mut().http().from_list(entries), HeaderError::downcast)?,))
    })?;
    types.func_wrap(
        set_fields,
        |mut host: Host<'_>, (to, name, list): (Resource<FieldMap>, String, WasmList<Vec<u8>>)| {
            let values = lists::take(&mut host, &list, MAX_ENTRIES)?.map_err(wasmtime::Error::msg)?;
            let set = HostFields::set(&mut host.data_mut().http(), to, name, values);
            Ok((answered(set, HeaderError::downcast)?,))
        },
    )?;
    types.func_wrap(get_body, |host: Host<'_>, (of,): (Request,)| Ok((body(host, of)?,)))?;
    types.func_wrap(finish_body, |host: Host<'_>, (body, trailers): (Body, Option<Resource<FieldMap>>)| {
        Ok((finish(host, body, trailers)?,))
    })
}

/// Sends a request, and deletes its options from the guest's table. The guest passes ownership of the options to the
/// host, but wasmtime-wasi-http does not delete them. Without the deletion, each request would use up one entry of the
/// table.
fn handle(
    mut host: Host<'_>,
    request: Request,
    options: Option<Options>,
) -> wasmtime::Result<Result<Response, ErrorCode>> {
    let mut http = host.data_mut().http();
    let taken = options.as_ref().map(|options| Options::new_own(options.rep()));
    let sent = http.handle(request, options);
    if let Some(taken) = taken {
        http.table.delete(taken)?;
    }
    answered(sent, HttpError::downcast)
}

/// Returns the body of a request, so that the guest can write to it. The server receives the end of the body only after
/// [`finish`].
fn body(mut host: Host<'_>, of: Request) -> wasmtime::Result<Result<Body, ()>> {
    let request = Request::new_own(of.rep());
    let sandbox = host.data_mut();
    let Ok(body) = sandbox.http().body(of)? else { return Ok(Err(())) };
    let (table, uploads) = sandbox.wasi.uploads();
    let request = table.get_mut(&request)?;
    request.body = request.body.take().map(|sent| uploads.guard(body.rep(), &request.headers, sent));
    Ok(Ok(body))
}

/// Finishes the body of a request, so that the server receives the end of the body.
fn finish(
    mut host: Host<'_>,
    body: Body,
    trailers: Option<Resource<FieldMap>>,
) -> wasmtime::Result<Result<(), ErrorCode>> {
    let handle = body.rep();
    let sandbox = host.data_mut();
    // Mark the body as finished first, because the client may read the end of the body on another thread at once.
    sandbox.wasi.uploads().1.finish(handle, true);
    let finished = sandbox.http().finish(body, trailers);
    if finished.is_err() {
        sandbox.wasi.uploads().1.finish(handle, false);
    }
    answered(finished, HttpError::downcast)
}

/// Converts a result for the guest. A `wasi:http` error is returned to the guest. Any other error makes the guest trap.
fn answered<T, F, E>(
    result: Result<T, F>,
    own: impl FnOnce(F) -> wasmtime::Result<E>,
) -> wasmtime::Result<Result<T, E>> {
    result.map_or_else(|error| own(error).map(Err), |answer| Ok(Ok(answer)))
}

/// Calls a setter of a request. If the value is too long (`fits` is `false`), returns an error to the guest instead of
/// calling the setter.
fn set(
    mut host: Host<'_>,
    fits: bool,
    setter: impl FnOnce(&mut WasiHttpCtxView<'_>) -> Answer,
) -> wasmtime::Result<(Result<(), ()>,)> {
    if fits { Ok((setter(&mut host.data_mut().http())?,)) } else { Ok((Err(()),)) }
}
