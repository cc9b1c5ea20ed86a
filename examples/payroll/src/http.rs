//! Requests by `wasi:http`.

use wasip2::http::outgoing_handler::handle;
use wasip2::http::types::{Headers, IncomingResponse, Method, OutgoingBody, OutgoingRequest, Scheme};
use wasip2::io::streams::StreamError;

use crate::bank::Response;

/// Largest part of a body that can be written or read at once.
const CHUNK: usize = 4096;

/// Largest body of a response.
const LARGEST: usize = 64 * 1024;

/// Posts a body. `key`: the idempotency key, by which the bank knows a second attempt.
pub(super) fn post(url: &str, key: &str, body: &[u8]) -> Result<Response, String> {
    let response = handle_post(url, key, body)?;
    let retry_after = response.headers().get("retry-after").pop();
    let retry_after = retry_after.and_then(|value| String::from_utf8(value).ok());
    Ok(Response { status: response.status(), retry_after, body: read(&response)? })
}

fn handle_post(url: &str, key: &str, body: &[u8]) -> Result<IncomingResponse, String> {
    let (scheme, rest) = url.split_once("://").ok_or("the address has no scheme")?;
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let headers = Headers::new();
    let length = body.len().to_string();
    for (name, value) in [("content-type", "application/json"), ("content-length", &length), ("idempotency-key", key)] {
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
    match response.get() {
        Some(Ok(Ok(response))) => Ok(response),
        Some(Ok(Err(error))) => Err(format!("{error:?}")),
        _ => Err("there is none".to_owned()),
    }
}

fn read(response: &IncomingResponse) -> Result<Vec<u8>, String> {
    let body = response.consume().map_err(|()| "the body cannot be read")?;
    let stream = body.stream().map_err(|()| "the body cannot be read")?;
    let mut read = Vec::new();
    loop {
        match stream.blocking_read(CHUNK as u64) {
            Ok(part) => read.extend(part),
            Err(StreamError::Closed) => return Ok(read),
            Err(error) => return Err(format!("{error:?}")),
        }
        if read.len() > LARGEST {
            return Err(format!("the body is longer than {LARGEST} bytes"));
        }
    }
}
