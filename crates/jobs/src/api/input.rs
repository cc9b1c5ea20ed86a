//! Extractors for the parts of a request. Each refuses with a problem that names the faulty part.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{Context, SHA256};
use axum::body::{Body, HttpBody};
use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use serde::de::DeserializeOwned;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

use crate::api::json_scan::{Finding, NESTING, find_nul, pointer, scan};
use crate::api::problem::Problem;
use crate::api::roles::bearer;
use crate::api::state::App;
use crate::limits::MAX_KEY;
use crate::store::IdempotencyKey;

/// Maximum size of a body in bytes.
pub const BODY: usize = 64 << 20;

/// Maximum size of a body in bytes that is read without a permit. Few larger ones are read at a time.
const SMALL_BODY: usize = 1 << 20;

/// Maximum time between two pieces of a body.
const PIECE: Duration = Duration::from_secs(10);

/// Minimum rate of a large body in bytes per second, after the time of one piece. A slower one would hold its permit for long.
const RATE: usize = 256 << 10;

/// Maximum time for the whole of a body.
const WHOLE: Duration = Duration::from_secs(120);

/// The JSON body of a request, and its digest.
#[derive(Debug)]
pub struct Input<T> {
    /// The body.
    pub value: T,
    /// The key of a request that may be repeated, with a digest of route and body.
    pub idempotency: Option<IdempotencyKey>,
    /// Held until the request is answered, because the value takes as much memory as the body.
    _permit: Option<OwnedSemaphorePermit>,
}

impl<T: DeserializeOwned> FromRequest<App> for Input<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        if !is_json(request.headers()) {
            let detail = "the body must be JSON, and Content-Type must be application/json";
            return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail).field("Content-Type"));
        }
        let key = idempotency_key(request.headers())?;
        let key = if app.tokens.is_empty() { key } else { key.map(|key| key_of_token(request.headers(), &key)) };
        let path = request.uri().path().to_owned();
        let (body, permit) = read(request.into_body(), &app.large_bodies).await?;
        let idempotency = key.map(|key| IdempotencyKey { key, hash: fingerprint(&path, &body) });
        Ok(Self { value: parse(&body)?, idempotency, _permit: permit })
    }
}

/// Tells whether the header `Content-Type` names JSON.
fn is_json(headers: &HeaderMap) -> bool {
    let Some(Ok(value)) = headers.get(CONTENT_TYPE).map(|value| value.to_str()) else { return false };
    let essence = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"))
}

/// Reads the header `Idempotency-Key`.
fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    const NAME: &str = "Idempotency-Key";
    let mut values = headers.get_all(NAME).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Problem::invalid(NAME, "is given twice"));
    }
    match value.to_str() {
        Ok(key) if (1..=MAX_KEY).contains(&key.len()) => Ok(Some(key.to_owned())),
        _ => Err(Problem::invalid(NAME, "must have 1 to 200 visible ASCII characters")),
    }
}

/// Returns a digest of a key and the caller's token, so that callers cannot meet the keys of others.
fn key_of_token(headers: &HeaderMap, key: &str) -> String {
    let mut context = Context::new(&SHA256);
    context.update(bearer(headers).unwrap_or_default());
    context.update(b"\n");
    context.update(key.as_bytes());
    crate::hex::encode(context.finish().as_ref())
}

/// Returns a digest of a route and a body, in hexadecimal digits.
fn fingerprint(path: &str, body: &[u8]) -> String {
    let mut context = Context::new(&SHA256);
    context.update(path.as_bytes());
    context.update(b"\n");
    context.update(body);
    crate::hex::encode(context.finish().as_ref())
}

/// Reads a whole body within the limits of size and time. Returns the permit of a large one.
async fn read(body: Body, large_bodies: &Arc<Semaphore>) -> Result<(Bytes, Option<OwnedSemaphorePermit>), Problem> {
    let too_large = || Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "the body is larger than 64 MiB");
    let expected = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if expected > BODY {
        return Err(too_large());
    }
    let deadline = Instant::now() + WHOLE;
    // The time from which a large body has its permit.
    let (mut permit, mut begun) = (None, None);
    let mut pieces = body.into_data_stream();
    let mut whole = BytesMut::with_capacity(expected.min(SMALL_BODY));
    loop {
        let least = begun.map_or(deadline, |begun| begun + allowance(whole.len()));
        let wait = (Instant::now() + PIECE).min(deadline).min(least);
        let piece = match timeout_at(wait, pieces.next()).await {
            Ok(Some(Ok(piece))) => piece,
            Ok(None) => return Ok((whole.freeze(), permit)),
            Ok(Some(Err(_))) => return Err(Problem::new(StatusCode::BAD_REQUEST, "the body ended early")),
            Err(_) => return Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "the body came too slowly")),
        };
        if whole.len() + piece.len() > BODY {
            return Err(too_large());
        }
        if permit.is_none() && (whole.len() + piece.len()).max(expected) > SMALL_BODY {
            permit = timeout(PIECE, Arc::clone(large_bodies).acquire_owned()).await.ok().and_then(Result::ok);
            if permit.is_none() {
                let detail = "too many large requests are under way";
                return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).retry_after(1));
            }
            begun = Some(Instant::now());
        }
        whole.extend_from_slice(&piece);
    }
}

/// Returns the time within which more than these bytes of a large body must have come.
fn allowance(bytes: usize) -> Duration {
    PIECE + Duration::from_secs((bytes / RATE) as u64)
}

/// Parses a body, and refuses it with the place of the fault.
fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    match scan(body) {
        Finding::Clean => {}
        Finding::TooDeep => return Err(Problem::invalid("", format!("is nested deeper than {NESTING} levels"))),
        Finding::Suspicious => match find_nul(body) {
            Ok(None) => {}
            Ok(Some(place)) => return Err(Problem::invalid(place, "contains a NUL character, which cannot be stored")),
            // Valid JSON. The check of the field that has the number names it.
            Err(error) if error.to_string().starts_with("number out of range") => {}
            Err(error) => return Err(malformed(&error)),
        },
    }
    // The second parse tracks the path, which costs time, and so runs for faulty bodies only.
    serde_json::from_slice(body).or_else(|_| match axum::Json::<T>::from_bytes(body) {
        Ok(axum::Json(value)) => Ok(value),
        Err(rejection) => Err(explain(&rejection)),
    })
}

fn malformed(error: &serde_json::Error) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, format!("the body is not valid JSON: {error}"))
}

/// Turns axum's words about a faulty body into a problem.
fn explain(rejection: &axum::extract::rejection::JsonRejection) -> Problem {
    use axum::extract::rejection::JsonRejection;
    let cause = std::error::Error::source(rejection).map_or_else(|| rejection.body_text(), ToString::to_string);
    let (path, detail) = split_cause(&cause);
    match rejection {
        JsonRejection::JsonDataError(_) => {
            let missing = missing_field(detail).map(|name| format!("/{name}")).unwrap_or_default();
            Problem::invalid(pointer(path) + &missing, detail.to_owned())
        }
        _ => Problem::new(StatusCode::BAD_REQUEST, format!("the body is not valid JSON: {detail}")),
    }
}

/// Splits `items[0].payload: the fault` into the path and the fault. A fault at the top has no path.
fn split_cause(cause: &str) -> (&str, &str) {
    match cause.split_once(": ") {
        Some((path, detail)) if !path.contains(' ') => (path, detail),
        _ => ("", cause),
    }
}

/// Returns the name of the field that a fault says is missing.
fn missing_field(detail: &str) -> Option<&str> {
    detail.strip_prefix("missing field `")?.split('`').next()
}

/// The parameter `id` of a path.
#[derive(Debug)]
pub struct Id(pub String);

/// The parameter `worker_id` of a path.
#[derive(Debug)]
pub struct WorkerId(pub String);

impl FromRequestParts<App> for Id {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        path_parameter("id", parts, app).await.map(Self)
    }
}

impl FromRequestParts<App> for WorkerId {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        path_parameter("worker_id", parts, app).await.map(Self)
    }
}

async fn path_parameter(name: &'static str, parts: &mut Parts, app: &App) -> Result<String, Problem> {
    let params = RawPathParams::from_request_parts(parts, app).await;
    let params = params.map_err(|_| Problem::new(StatusCode::BAD_REQUEST, "the path is not valid UTF-8"))?;
    let value = params.iter().find(|(param, _)| *param == name).map(|(_, value)| value).unwrap_or_default();
    check_text(name, value)?;
    Ok(value.to_owned())
}

/// Refuses a parameter that no id can equal.
fn check_text(name: &str, value: &str) -> Result<(), Problem> {
    if !(1..=MAX_KEY).contains(&value.len()) {
        return Err(Problem::invalid(name, "must have 1 to 200 bytes"));
    }
    if value.contains('\0') {
        return Err(Problem::invalid(name, "contains a NUL character"));
    }
    Ok(())
}

/// Refuses a path whose percent-encoding is broken or is not UTF-8.
pub fn check_encoding(path: &str) -> Result<(), Problem> {
    match decode(path, false) {
        Some(_) => Ok(()),
        None => Err(Problem::new(StatusCode::BAD_REQUEST, "the percent-encoding of the path is not valid UTF-8")),
    }
}

/// Decodes percent-encoding, and `+` as a space in a query. Returns `None` if it is broken.
fn decode(text: &str, query: bool) -> Option<Cow<'_, str>> {
    if !(text.contains('%') || query && text.contains('+')) {
        return Some(Cow::Borrowed(text));
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        bytes.push(match first {
            b'%' => {
                let [high, low, tail @ ..] = tail else { return None };
                rest = tail;
                let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
                digit(high)? << 4 | digit(low)?
            }
            b'+' if query => b' ',
            other => *other,
        });
    }
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

/// The parameters of a query, each known and given at most once.
#[derive(Debug)]
pub struct Parameters(Vec<(String, String)>);

impl Parameters {
    /// Parses a query. Refuses parameters that are not in `known`.
    pub fn parse(query: Option<&str>, known: &[&str]) -> Result<Self, Problem> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let Some(name) = decode(name, true) else {
                return Err(Problem::new(StatusCode::BAD_REQUEST, "the percent-encoding of the query is broken"));
            };
            if !known.contains(&&*name) {
                return Err(Problem::invalid(name.replace('\0', "\u{fffd}"), "is not a parameter of this route"));
            }
            let broken = || Problem::new(StatusCode::BAD_REQUEST, "the percent-encoding is broken").field(&*name);
            let value = decode(value, true).ok_or_else(broken)?.into_owned();
            if pairs.iter().any(|(known, _)| *known == name) {
                return Err(Problem::invalid(name, "is given twice"));
            }
            pairs.push((name.into_owned(), value));
        }
        Ok(Self(pairs))
    }

    /// Takes a text of 1 to 200 bytes.
    pub fn text(&self, name: &str) -> Result<Option<String>, Problem> {
        let Some((_, value)) = self.0.iter().find(|(known, _)| known == name) else { return Ok(None) };
        check_text(name, value)?;
        Ok(Some(value.clone()))
    }

    /// Takes a value that `parse` understands; `wanted` names what it must be.
    pub fn value<T>(
        &self,
        name: &str,
        wanted: &'static str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, Problem> {
        let Some((_, value)) = self.0.iter().find(|(known, _)| known == name) else { return Ok(None) };
        parse(value).map(Some).ok_or_else(|| Problem::invalid(name, wanted))
    }

    /// Takes `true` or `false`.
    pub fn flag(&self, name: &str) -> Result<Option<bool>, Problem> {
        self.value(name, "must be true or false", |text| text.parse().ok())
    }

    /// Takes the length of a page.
    pub fn limit(&self) -> Result<Option<u32>, Problem> {
        let parse = |text: &str| {
            let digits = text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|limit| digits && (1..=1000).contains(limit))
        };
        self.value("limit", "must be a number from 1 to 1000", parse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::NewJob;

    fn refusal(body: &str) -> (u16, serde_json::Value) {
        let problem = parse::<NewJob>(body.as_bytes()).unwrap_err();
        let json = serde_json::to_value(&problem).unwrap();
        (problem.status().as_u16(), json["field"].clone())
    }

    #[test]
    fn a_faulty_body_is_refused_with_its_place() {
        assert_eq!(refusal(r#"{"type":"#), (400, serde_json::Value::Null));
        assert_eq!(refusal(r#"{"type":"a","what":1}"#), (422, "/what".into()));
        assert_eq!(refusal(r#"{"type":7}"#), (422, "/type".into()));
        assert_eq!(refusal(r#"{"type":"a","items":[{"payload":1},{"id":2}]}"#), (422, "/items/1/id".into()));
        assert_eq!(refusal("{}"), (422, "/type".into()));
        assert_eq!(refusal(r#"{"type":"a","items":[{"payload":1},{}]}"#), (422, "/items/1/payload".into()));
        assert_eq!(refusal(r#"{"type":"a","items":[{"payload":"\u0000"}]}"#), (422, "/items/0/payload".into()));
        assert_eq!(refusal(r#"{"type":"a","items":[{"payload":"\ud800"}]}"#).0, 400);
        let deep = format!(r#"{{"type":"a","metadata":{}}}"#, "[".repeat(300) + &"]".repeat(300));
        assert_eq!(refusal(&deep), (422, "".into()));
    }

    #[test]
    fn a_whole_pair_of_surrogates_is_text() {
        assert!(parse::<NewJob>(br#"{"type":"a","items":[{"payload":"\ud83d\ude00"}]}"#).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_body_that_trickles_loses_its_permit() {
        assert_eq!(allowance(0), PIECE);
        assert_eq!(allowance(4 * RATE), PIECE + Duration::from_secs(4));
        let trickle = futures_util::stream::unfold(SMALL_BODY + 1, |size| async move {
            tokio::time::sleep(Duration::from_secs(9)).await;
            Some((Ok::<_, std::io::Error>(Bytes::from(vec![b' '; size])), 1))
        });
        let large_bodies = Arc::new(Semaphore::new(1));
        let begun = Instant::now();
        let refused = read(Body::from_stream(trickle), &large_bodies).await.unwrap_err();
        assert_eq!(refused.status(), StatusCode::REQUEST_TIMEOUT);
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
        assert_eq!(large_bodies.available_permits(), 1);
    }

    #[tokio::test]
    async fn the_permit_of_a_large_body_outlives_its_reading() {
        let large_bodies = Arc::new(Semaphore::new(1));
        let (_body, permit) = read(Body::from(vec![b' '; SMALL_BODY + 1]), &large_bodies).await.unwrap();
        assert_eq!(large_bodies.available_permits(), 0);
        drop(permit);
        let (_body, permit) = read(Body::from(vec![b' '; SMALL_BODY]), &large_bodies).await.unwrap();
        assert!(permit.is_none());
    }

    #[test]
    fn content_types_of_json_are_known() {
        let ask = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, axum::http::HeaderValue::from_static(value));
            is_json(&headers)
        };
        assert!(ask("application/json") && ask("Application/JSON; charset=utf-8") && ask("application/merge+json"));
        assert!(!ask("text/plain") && !ask("application/jsonx") && !ask("") && !is_json(&HeaderMap::new()));
    }

    #[test]
    fn percent_encoding_is_checked() {
        assert!(check_encoding("/job/a%20b").is_ok());
        for broken in ["/job/%", "/job/%2", "/job/%zz", "/job/%ff", "/job/%+1"] {
            assert!(check_encoding(broken).is_err(), "{broken}");
        }
        assert_eq!(decode("a+b%2B", true).as_deref(), Some("a b+"));
        assert_eq!(decode("a+b", false).as_deref(), Some("a+b"));
    }

    #[test]
    fn queries_name_the_faulty_parameter() {
        let parse = |query| Parameters::parse(Some(query), &["limit", "complete", "cursor"]);
        assert!(parse("what=1").is_err() && parse("limit=1&limit=1").is_err() && parse("limit=%zz").is_err());
        let limit = |query| parse(query).unwrap().limit().map_err(|_| ());
        assert_eq!(limit("limit=1000"), Ok(Some(1000)));
        assert_eq!(limit(""), Ok(None));
        for wrong in ["limit=0", "limit=1001", "limit=", "limit=-1", "limit=+1", "limit=1.0", "limit"] {
            assert_eq!(limit(wrong), Err(()), "{wrong}");
        }
        assert_eq!(parse("complete=true").unwrap().flag("complete").unwrap(), Some(true));
        assert!(parse("complete=1").unwrap().flag("complete").is_err());
        assert!(parse("cursor=%00").unwrap().text("cursor").is_err());
    }

    #[test]
    fn causes_split_at_their_path() {
        assert_eq!(split_cause("items[0].id: invalid type: integer"), ("items[0].id", "invalid type: integer"));
        assert_eq!(split_cause("invalid type: integer"), ("", "invalid type: integer"));
    }
}
