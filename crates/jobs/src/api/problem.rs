//! Refusals of the API as `application/problem+json` (RFC 9457).

use std::borrow::Cow;

use axum::http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

/// The media type of every refusal.
pub const PROBLEM_JSON: &str = "application/problem+json";

/// A refused request: the reason, and the faulty field if there is one.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(example = json!({
    "title": "Unprocessable Entity", "status": 422, "detail": "missing field `payload`", "field": "/items/0/payload"
}))]
pub struct Problem {
    /// The name of the status.
    #[schema(value_type = String)]
    title: &'static str,
    /// The HTTP status of the answer.
    #[schema(minimum = 400, maximum = 599)]
    status: u16,
    /// A sentence for people.
    #[schema(value_type = String)]
    detail: Cow<'static, str>,
    /// The faulty field: a JSON pointer into the body, or the name of a parameter or header.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    field: Option<String>,
    /// The cause of a conflict, for programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    reason: Option<Box<str>>,
    /// The job that has the dedupe key or the id already.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    job_id: Option<Box<str>>,
    /// Seconds after which the request may be repeated. Becomes the header `Retry-After`.
    #[serde(skip)]
    retry_after: Option<u32>,
}

impl Problem {
    /// Creates a refusal with a status and a sentence that says why.
    pub fn new(status: StatusCode, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            title: status.canonical_reason().unwrap_or("Error"),
            status: status.as_u16(),
            detail: detail.into(),
            field: None,
            reason: None,
            job_id: None,
            retry_after: None,
        }
    }

    /// Creates a 422 for `field`, a JSON pointer or the name of a parameter.
    pub fn invalid(field: impl Into<String>, detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, detail).field(field)
    }

    /// Names the faulty field.
    #[must_use]
    pub fn field(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    /// Adds the cause of a conflict for programs.
    #[must_use]
    pub fn reason(mut self, reason: impl Into<Box<str>>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// Names the job that the request collides with.
    #[must_use]
    pub fn job(mut self, id: impl Into<Box<str>>) -> Self {
        self.job_id = Some(id.into());
        self
    }

    /// Asks the client to wait this many seconds.
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// Returns the status of the answer.
    pub fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.status();
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        match status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            // The rest of such a body is not read, so the connection cannot be used again.
            StatusCode::REQUEST_TIMEOUT | StatusCode::PAYLOAD_TOO_LARGE => {
                headers.insert(axum::http::header::CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        response
    }
}

/// Refuses a path that has no route.
pub async fn no_route() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "there is no such route; /openapi.json lists them all")
}

/// Refuses a method that the route does not have. axum adds the header `Allow`.
pub async fn no_method() -> Response {
    let response = Problem::new(StatusCode::METHOD_NOT_ALLOWED, "the route does not have this method; see Allow");
    let response = response.into_response();
    debug_assert!(!response.headers().contains_key(ALLOW));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_status_and_field() {
        let problem = Problem::invalid("/items/0", "missing");
        let text = serde_json::to_value(&problem).unwrap();
        let want = serde_json::json!({
            "title": "Unprocessable Entity", "status": 422, "detail": "missing", "field": "/items/0"
        });
        assert_eq!(text, want);
        let response = problem.retry_after(3).into_response();
        assert_eq!(response.headers()[CONTENT_TYPE], PROBLEM_JSON);
        assert_eq!(response.headers()[RETRY_AFTER], "3");
    }

    #[test]
    fn a_401_asks_for_a_token() {
        let response = Problem::new(StatusCode::UNAUTHORIZED, "no").into_response();
        assert_eq!(response.headers()[WWW_AUTHENTICATE], "Bearer");
    }
}
