//! `wasi:http` by hand: requests that the tests ask for.

use wasip2::http::outgoing_handler::handle;
use wasip2::http::types::{
    ErrorCode, FutureIncomingResponse, Headers, IncomingResponse, Method, OutgoingBody, OutgoingRequest,
    RequestOptions, Scheme,
};
use wasip2::io::streams::StreamError;

/// `GET`; the status and the body.
pub fn get(url: &str) -> Result<Vec<u8>, String> {
    answer(wait(&start(url, Method::Get, None, None)?)?)
}

/// `POST` of this body.
pub fn post(url: &str, body: &[u8]) -> Result<Vec<u8>, String> {
    answer(wait(&start(url, Method::Post, Some(body), None)?)?)
}

/// `GET`, and wherever the answers lead; the last one.
pub fn follow(url: &str) -> Result<Vec<u8>, String> {
    let mut url = url.to_owned();
    for _ in 0..5 {
        let response = wait(&start(&url, Method::Get, None, None)?)?;
        match response.headers().get("location").first() {
            Some(next) => url = String::from_utf8_lossy(next).into_owned(),
            None => return answer(response),
        }
    }
    Err("too many redirects".into())
}

/// Opens so many requests and reads none of the answers; what became of them.
pub fn open_many(url: &str, count: usize) -> String {
    let started: Vec<_> = (0..count).filter_map(|_| start(url, Method::Get, None, None).ok()).collect();
    let answers: Vec<_> = started.iter().map(wait).collect();
    let refused = answers.iter().filter(|answer| matches!(answer, Err(text) if text.contains("LimitReached"))).count();
    format!("{} opened, {refused} refused", answers.iter().filter(|answer| answer.is_ok()).count())
}

/// So many `GET`s, one after the other, each with options of its own; the last answer.
pub fn get_often(url: &str, count: usize) -> Result<Vec<u8>, String> {
    let mut last = Err("none was asked for".into());
    for _ in 0..count {
        let options = RequestOptions::new();
        options.set_first_byte_timeout(Some(60_000_000_000)).map_err(|()| "this limit is refused")?;
        last = Ok(answer(wait(&start(url, Method::Get, None, Some(options))?)?)?);
    }
    last
}

/// An upload that is not finished yet.
pub struct Upload {
    outgoing: OutgoingBody,
    response: FutureIncomingResponse,
}

impl Upload {
    /// A `POST` that announces this length, if any, of whose body these bytes are written.
    pub fn begin(url: &str, length: Option<&str>, bytes: &[u8]) -> Result<Self, String> {
        let headers = Headers::new();
        if let Some(length) = length {
            headers.set("content-length", &[length.into()]).map_err(|error| format!("{error:?}"))?;
        }
        let (outgoing, response) = open(url, Method::Post, headers, None)?;
        write(&outgoing, bytes)?;
        Ok(Self { outgoing, response })
    }

    /// Ends the body; the answer.
    pub fn finish(self) -> Result<Vec<u8>, String> {
        OutgoingBody::finish(self.outgoing, None).map_err(said)?;
        answer(wait(&self.response)?)
    }
}

fn start(
    url: &str,
    method: Method,
    body: Option<&[u8]>,
    options: Option<RequestOptions>,
) -> Result<FutureIncomingResponse, String> {
    let (outgoing, response) = open(url, method, Headers::new(), options)?;
    if let Some(bytes) = body {
        write(&outgoing, bytes)?;
    }
    OutgoingBody::finish(outgoing, None).map_err(said)?;
    Ok(response)
}

fn open(
    url: &str,
    method: Method,
    headers: Headers,
    options: Option<RequestOptions>,
) -> Result<(OutgoingBody, FutureIncomingResponse), String> {
    let (scheme, rest) = url.split_once("://").ok_or("no scheme")?;
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let scheme = if scheme == "https" { Scheme::Https } else { Scheme::Http };
    let request = OutgoingRequest::new(headers);
    request.set_method(&method).map_err(|()| "this method is refused")?;
    request.set_scheme(Some(&scheme)).map_err(|()| "this scheme is refused")?;
    request.set_authority(Some(authority)).map_err(|()| "this authority is refused")?;
    request.set_path_with_query(Some(path)).map_err(|()| "this path is refused")?;
    let outgoing = request.body().map_err(|()| "it has no body")?;
    let response = handle(request, options).map_err(said)?;
    Ok((outgoing, response))
}

fn write(outgoing: &OutgoingBody, bytes: &[u8]) -> Result<(), String> {
    let stream = outgoing.write().map_err(|()| "its body cannot be written")?;
    for chunk in bytes.chunks(4096) {
        stream.blocking_write_and_flush(chunk).map_err(|error| format!("{error:?}"))?;
    }
    Ok(())
}

fn wait(response: &FutureIncomingResponse) -> Result<IncomingResponse, String> {
    response.subscribe().block();
    match response.get() {
        Some(Ok(Ok(response))) => Ok(response),
        Some(Ok(Err(error))) => Err(said(error)),
        _ => Err("there is no answer".into()),
    }
}

fn answer(response: IncomingResponse) -> Result<Vec<u8>, String> {
    let mut text = format!("{} ", response.status()).into_bytes();
    let body = response.consume().map_err(|()| "its body was read")?;
    let stream = body.stream().map_err(|()| "its body was read")?;
    loop {
        match stream.blocking_read(64 * 1024) {
            Ok(bytes) => text.extend(bytes),
            Err(StreamError::Closed) => return Ok(text),
            Err(error) => return Err(format!("the body broke off: {error:?}")),
        }
    }
}

fn said(error: ErrorCode) -> String {
    format!("{error:?}")
}
