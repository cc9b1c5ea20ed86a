//! Requests to the job service: each with a deadline, and with the token, which no error contains. Keeps the state of the
//! connection, and the time before which the service wants no request.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hostler_queue::{LeaseError, Link, QueueError};
use hostler_types::error_chain::with_causes;
use hostler_types::printable::shortened;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{RequestBuilder, Response, StatusCode, Url};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::Options;
use crate::shapes::Problem;

/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(5);

/// Time after which an idle connection is closed, below the service's own limit, so that no request meets a closed one.
const IDLE: Duration = Duration::from_secs(30);

/// Longest time for which the service can hold up requests by `Retry-After`.
const LONGEST_HOLD: Duration = Duration::from_secs(5 * 60);

/// Maximum size of an answer in bytes: that of many items with large payloads.
const LARGEST: usize = 256 * 1024 * 1024;

/// Maximum size of a refusal that is read.
const LARGEST_REFUSAL: usize = 64 * 1024;

/// Maximum length of the service's reason in an error, in bytes.
const SHOWN: usize = 300;

/// An error of a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CallError {
    /// The service cannot be reached, or cannot work now. The request may have been carried out.
    #[error("{0}")]
    Away(String),
    /// The service does not let this worker do it.
    #[error("{0}")]
    Denied(String),
    /// The service refuses the request as not valid.
    #[error("{0}")]
    Invalid(String),
}

impl From<CallError> for QueueError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Away(text) => Self::Unavailable(text),
            CallError::Denied(text) | CallError::Invalid(text) => Self::Refused(text),
        }
    }
}

impl From<CallError> for LeaseError {
    fn from(error: CallError) -> Self {
        match error {
            // A token can be replaced while the lease lasts.
            CallError::Away(text) | CallError::Denied(text) => Self::Retry(text),
            CallError::Invalid(text) => Self::Unfit(text),
        }
    }
}

/// A client of the job service.
pub(crate) struct Client {
    http: reqwest::Client,
    /// URL of the service, without a slash at the end.
    url: String,
    authorization: Option<HeaderValue>,
    link: watch::Sender<Link>,
    /// Time before which the service wants no claim.
    held_until: Mutex<Option<Instant>>,
}

impl Client {
    /// Creates a client. Makes no connection.
    ///
    /// # Errors
    /// [`QueueError::Refused`] if the URL or the token is not valid, or HTTPS cannot be set up.
    pub(crate) fn new(options: &Options) -> Result<Self, QueueError> {
        let refused = |fault: &str| QueueError::Refused(fault.to_owned());
        let url = Url::parse(&options.url).map_err(|_| refused("jobs.url: it is not a valid URL"))?;
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return Err(refused("jobs.url: write a URL such as `https://jobs.example.com`"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(refused("jobs.url: it must not contain a user or a password; set jobs.token"));
        }
        let authorization = options.token.as_ref().map(|token| HeaderValue::from_str(&format!("Bearer {token}")));
        let mut authorization = authorization
            .transpose()
            .map_err(|_| refused("jobs.token: it has characters that an HTTP header cannot contain"))?;
        if let Some(value) = &mut authorization {
            value.set_sensitive(true);
        }
        let http = reqwest::Client::builder()
            .user_agent(concat!("hostler/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT)
            .pool_idle_timeout(IDLE)
            // Each request writes a whole body, and waits for the answer.
            .tcp_nodelay(true)
            // Following a redirect would send the token to another address. A proxy of the environment would see it.
            .redirect(Policy::none())
            .no_proxy()
            .build()
            .map_err(|error| refused(&format!("jobs.url: no HTTPS: {}", with_causes(&error))))?;
        let url = url.as_str().trim_end_matches('/').to_owned();
        Ok(Self { http, url, authorization, link: watch::Sender::new(Link::Up), held_until: Mutex::default() })
    }

    /// Returns the URL of the service.
    pub(crate) fn address(&self) -> &str {
        &self.url
    }

    pub(crate) fn link(&self) -> watch::Receiver<Link> {
        self.link.subscribe()
    }

    /// Returns the time before which the service wants no claim. `None`: it can be asked now.
    pub(crate) fn held_until(&self) -> Option<Instant> {
        self.lock().filter(|until| *until > Instant::now())
    }

    /// Sends a request with a body, and reads the answer. `patience`: longest time for both.
    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: Vec<u8>,
        patience: Duration,
    ) -> Result<T, CallError> {
        let request = self.http.post(format!("{}{path}", self.url)).header(CONTENT_TYPE, "application/json").body(body);
        let answer = self.call(request, patience).await?;
        serde_json::from_slice(&answer).map_err(|error| {
            let at = (error.line(), error.column());
            // The text of the error would quote the answer.
            CallError::Away(format!("the answer of {}{path} is not that of a job service (at {at:?})", self.url))
        })
    }

    /// Sends a request without a body, and returns the text of the answer.
    pub(crate) async fn get(&self, path: &str, patience: Duration) -> Result<String, CallError> {
        let answer = self.call(self.http.get(format!("{}{path}", self.url)), patience).await?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    async fn call(&self, mut request: RequestBuilder, patience: Duration) -> Result<Vec<u8>, CallError> {
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization.clone());
        }
        let answered = match request.timeout(patience).send().await {
            Ok(answer) if answer.status().is_success() => read(answer, LARGEST).await,
            Ok(answer) => return Err(self.refused(answer).await),
            Err(error) => Err(with_causes(&error.without_url())),
        };
        match answered {
            Ok(body) => {
                self.up();
                Ok(body)
            }
            Err(why) => Err(self.away(format!("the job service at {} cannot be reached: {why}", self.url))),
        }
    }

    /// Returns the error for an answer that is no success.
    async fn refused(&self, answer: Response) -> CallError {
        let status = answer.status();
        let rest = answer.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
        if let Some(seconds) = rest.filter(|_| is_passing(status)) {
            let until = Instant::now() + Duration::from_secs(seconds).min(LONGEST_HOLD);
            let mut held = self.lock();
            *held = Some(held.map_or(until, |before| before.max(until)));
        }
        let body = read(answer, LARGEST_REFUSAL).await.unwrap_or_default();
        let text = format!("the job service at {} answers {status}{}", self.url, reason(&body));
        match status {
            // It can be reached, and the next request may be let through.
            StatusCode::TOO_MANY_REQUESTS => CallError::Away(text),
            _ if is_passing(status) => self.away(text),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                CallError::Denied(format!("{text}: set jobs.token to a token with the role of a worker"))
            }
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => {
                CallError::Denied(format!("{text}: set jobs.url to the URL of a job service"))
            }
            _ if status.is_redirection() => CallError::Denied(format!("{text}: hostler follows no redirects")),
            _ => CallError::Invalid(text),
        }
    }

    fn up(&self) {
        self.link.send_if_modified(|link| std::mem::replace(link, Link::Up) != Link::Up);
    }

    /// Notes that the service cannot be used, and returns the error for the request.
    fn away(&self, why: String) -> CallError {
        self.link.send_if_modified(|link| {
            let was_up = *link == Link::Up;
            if was_up {
                *link = Link::Down { since: Instant::now(), why: why.clone() };
            }
            was_up
        });
        CallError::Away(why)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.held_until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns `true` if the same request may succeed later.
fn is_passing(status: StatusCode) -> bool {
    status.is_server_error()
        || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY)
}

/// Reads a body of at most `most` bytes.
async fn read(mut answer: Response, most: usize) -> Result<Vec<u8>, String> {
    let mut body = Vec::new();
    while let Some(part) = answer.chunk().await.map_err(|error| with_causes(&error.without_url()))? {
        if body.len() + part.len() > most {
            return Err(format!("its answer has more than {most} bytes"));
        }
        body.extend_from_slice(&part);
    }
    Ok(body)
}

/// Returns the reason of a refusal, with a colon before it. Returns an empty text if the answer states none.
fn reason(body: &[u8]) -> String {
    let Problem { title, detail, field } = serde_json::from_slice(body).unwrap_or_default();
    let Some(reason) = detail.or(title) else { return String::new() };
    let reason = shortened(&reason, SHOWN);
    match field {
        Some(field) => format!(": {}: {reason}", shortened(&field, SHOWN)),
        None => format!(": {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(url: &str, token: Option<&str>) -> Option<String> {
        let options = Options { url: url.to_owned(), token: token.map(str::to_owned) };
        Client::new(&options).err().map(|error| error.to_string())
    }

    #[test]
    fn urls_and_tokens_are_checked_and_not_shown() {
        assert_eq!(refusal("https://jobs.example.com/base/", Some("t")), None);
        for url in ["jobs.example.com", "ftp://a", "http://", "http://hunter2:pw@a", "http://:hunter2@a"] {
            let told = refusal(url, None).unwrap_or_default();
            assert!(told.starts_with("jobs.url") && !told.contains("hunter2"), "{url}: {told}");
        }
        let told = refusal("http://a", Some("hunter2\n")).unwrap_or_default();
        assert!(told.starts_with("jobs.token") && !told.contains("hunter2"), "{told}");
    }

    #[test]
    fn a_refusal_is_quoted_shortly() {
        assert_eq!(reason(br#"{"title":"t","detail":"d","field":"/results/0"}"#), ": /results/0: d");
        assert_eq!((reason(br#"{"title":"t"}"#), reason(b"<html>")), (": t".to_owned(), String::new()));
        let long = format!(r#"{{"detail":"{}"}}"#, "x".repeat(10_000));
        assert!(reason(long.as_bytes()).len() < 1000);
    }
}
