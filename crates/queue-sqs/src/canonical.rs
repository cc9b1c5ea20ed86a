//! The text of a call that is signed: its canonical request, as Signature Version 4 defines it.

use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use http::Uri;

/// Headers that are changed on the way, and the signature itself.
const UNSIGNED: [&str; 4] = ["authorization", "transfer-encoding", "user-agent", "x-amzn-trace-id"];
/// What a path's bytes may be, besides letters and digits, without being encoded.
const PLAIN: &[u8] = b"-._~/";

/// A canonical request.
pub(super) struct Canonical {
    /// All of it.
    pub(super) text: String,
    /// The names of the headers in it.
    pub(super) headers: String,
}

/// The canonical request of a call with a body of this digest; `None` if its address names no host.
///
/// A query is not looked at: calls of SQS have none.
pub(super) fn of(request: &HttpRequest, digest: &str) -> Option<Canonical> {
    let uri: Uri = request.uri().parse().ok()?;
    let host = host(&uri)?;
    let mut headers: Vec<(&str, &str)> =
        request.headers().iter().filter(|(name, _)| !UNSIGNED.contains(name)).collect();
    if !request.headers().contains_key("host") {
        headers.push(("host", &host));
    }
    headers.sort_by_key(|(name, _)| *name);
    let mut text = format!("{}\n{}\n\n", request.method(), path(uri.path()));
    for (name, value) in &headers {
        text.extend([name, ":"]);
        for (index, word) in value.split_ascii_whitespace().enumerate() {
            text.extend([if index == 0 { "" } else { " " }, word]);
        }
        text.push('\n');
    }
    let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
    let headers = names.join(";");
    text.extend(["\n", &headers, "\n", digest]);
    Some(Canonical { text, headers })
}

/// The host header that the HTTP client will send: without the scheme's own port.
fn host(uri: &Uri) -> Option<String> {
    let host = uri.host()?;
    Some(match (uri.scheme_str(), uri.port_u16()) {
        (_, None) | (Some("http"), Some(80)) | (Some("https"), Some(443)) => host.to_owned(),
        (_, Some(port)) => format!("{host}:{port}"),
    })
}

/// A path without `.`, `..` and empty segments, and encoded once more.
fn path(path: &str) -> String {
    let mut segments: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            other => segments.push(other),
        }
    }
    let mut text = String::from("/");
    text.push_str(&segments.join("/"));
    if text.len() > 1 && ["/", "/.", "/.."].iter().any(|end| path.ends_with(end)) {
        text.push('/');
    }
    if text.bytes().all(|byte| byte.is_ascii_alphanumeric() || PLAIN.contains(&byte)) {
        return text;
    }
    text.bytes().fold(String::new(), |mut encoded, byte| {
        match byte.is_ascii_alphanumeric() || PLAIN.contains(&byte) {
            true => encoded.push(char::from(byte)),
            false => encoded.push_str(&format!("%{byte:02X}")),
        }
        encoded
    })
}
