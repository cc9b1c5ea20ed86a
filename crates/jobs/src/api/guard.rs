//! The middleware around every route: admits or refuses callers, and counts requests.

use std::net::SocketAddr;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::api::input::check_encoding;
use crate::api::problem::Problem;
use crate::api::roles::{Access, admit_local};
use crate::api::state::App;

/// The address of the client. The server adds it to each request.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub SocketAddr);

/// Admits a request, runs it, and counts it.
pub async fn guard(State(app): State<App>, request: Request, next: Next) -> Response {
    let start = Instant::now();
    let method = method_name(request.method());
    let route = request.extensions().get::<MatchedPath>().cloned();
    let pattern = route.as_ref().map_or("", MatchedPath::as_str);
    let mut response = match admit(&app, &request, pattern, method) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    };
    app.metrics.count(method, pattern, response.status().as_u16(), start.elapsed());
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Returns the name of a method, from a bounded set.
fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

fn admit(app: &App, request: &Request, pattern: &str, method: &'static str) -> Result<(), Problem> {
    if app.tokens.is_empty() {
        let Some(Peer(peer)) = request.extensions().get() else {
            return Err(Problem::new(StatusCode::FORBIDDEN, "the address of the client is unknown"));
        };
        admit_local(*peer, request.uri(), request.headers())?;
    }
    check_encoding(request.uri().path())?;
    let now = Instant::now();
    let limited = !matches!(pattern, "/healthz" | "/readyz");
    if limited {
        app.instance_rate.pass(0, now).map_err(too_many)?;
    }
    let method = if method == "HEAD" { "GET" } else { method };
    // A route or method without an entry does not exist: the router refuses it.
    let access = app.access.get(&(pattern.to_owned(), method.to_owned())).unwrap_or(&Access::Open);
    let caller = app.tokens.admit(access, request.headers())?;
    if limited {
        app.token_rate.pass(caller.0.unwrap_or(app.tokens.len()), now).map_err(too_many)?;
    }
    Ok(())
}

fn too_many(seconds: u64) -> Problem {
    let seconds = u32::try_from(seconds).unwrap_or(u32::MAX);
    Problem::new(StatusCode::TOO_MANY_REQUESTS, "too many requests; see Retry-After").retry_after(seconds)
}
