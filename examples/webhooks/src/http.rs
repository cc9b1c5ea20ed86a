//! Requests by `wasi:http`.

use wasip2::http::outgoing_handler::handle;
use wasip2::http::types::{Headers, Method, OutgoingBody, OutgoingRequest, Scheme};

use super::Response;

/// Largest part of a body that can be written at once.
const CHUNK: usize = 4096;

/// Posts a body. `id`: the message's id, by which the receiver knows a second attempt.
pub(super) fn post(url: &str, id: &str, body: &[u8]) -> Result<Response, String> {
    let (scheme, rest) = url.split_once("://").ok_or("the address has no scheme")?;
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let headers = Headers::new();
    for (name, value) in [("content-type", "application/json"), ("idempotency-key", id)] {
        headers.set(name, &[value.into()]).map_err(|error| format!("{error:?}"))?;
    }
    let request = OutgoingRequest::new(headers);
    let scheme = if scheme == "https" { Scheme::Https } else { Scheme::Http };
    request.set_method(&Method::Post).map_err(|()| "the method is refused")?;
    request.set_scheme(Some(&scheme)).map_err(|()| "the scheme is refused")?;
    request.set_authority(Some(authority)).map_err(|()| "the host is refused")?;
    request.set_path_with_query(Some(path)).map_err(|()| "the path is refused")?;
    let outgoing = request.body().map_err(|()| "the request has no body")?;
    let response = handle(request, None).map_err(|error| format!("{error:?}"))?;
    let stream = outgoing.write().map_err(|()| "the body cannot be written")?;
    for chunk in body.chunks(CHUNK) {
        stream.blocking_write_and_flush(chunk).map_err(|error| format!("{error:?}"))?;
    }
    drop(stream);
    OutgoingBody::finish(outgoing, None).map_err(|error| format!("{error:?}"))?;
    response.subscribe().block();
    let response = match response.get() {
        Some(Ok(Ok(response))) => response,
        Some(Ok(Err(error))) => return Err(format!("{error:?}")),
        _ => return Err("there is none".to_owned()),
    };
    let retry_after = response.headers().get("retry-after").pop();
    let retry_after = retry_after.and_then(|value| String::from_utf8(value).ok());
    Ok(Response { status: response.status(), retry_after })
}
