//! Client for the endpoints of the ECS agent. Uses plain HTTP to a link-local address, and returns typed answers.

use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder, StatusCode};
use serde_json::{Value, json};

use hostler_types::error_chain::with_causes;

/// Maximum length of an answer in bytes. The client ignores the bytes beyond this length.
const LONGEST_ANSWER: usize = 1024 * 1024;

/// Maximum number of characters that an error message quotes from an unexpected answer.
const SHOWN: usize = 100;

/// Request to change the scale-in protection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    /// Protects this task for this number of minutes from now. ECS accepts 1 to 2880 minutes (ECS guide, "Task scale-in
    /// protection endpoint").
    Protect(u16),
    /// Ends the protection.
    Unprotect,
}

/// Reason why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    /// The agent cannot be reached.
    #[error("the ECS agent cannot be reached: {0}")]
    Unreachable(String),
    /// The agent accepted the connection, but did not send an answer in time.
    #[error("the ECS agent did not answer: {0}")]
    Silent(String),
    /// Too many calls: the agent's own limit (status 429), or ECS's limit per account (`ThrottlingException`).
    #[error("too many calls to the ECS agent, or to ECS: {0}")]
    Throttled(String),
    /// The agent or ECS refused the protection call. `code` is the code of the API error, or of the failure that ECS reported for
    /// the task. Example: `AccessDeniedException` means that the task role lacks `ecs:UpdateTaskProtection`. `TASK_NOT_VALID`
    /// means that the task belongs to no service.
    #[error("refused with {code}: {message}")]
    Refused {
        /// Code from the API.
        code: String,
        /// Message from the API.
        message: String,
    },
    /// The answer does not match the documentation.
    #[error("unexpected response with status {status}: {start}")]
    Unreadable {
        /// HTTP status of the answer.
        status: u16,
        /// Beginning of the answer.
        start: String,
    },
}

impl Fault {
    /// Returns the kind of the fault, for callers that log a fault only if its kind differs from that of the previous fault.
    pub(super) fn kind(&self) -> &str {
        match self {
            Self::Unreachable(_) => "unreachable",
            Self::Silent(_) => "silent",
            Self::Throttled(_) => "throttled",
            Self::Refused { code, .. } => code,
            Self::Unreadable { .. } => "unreadable",
        }
    }

    /// Returns true if the failed call certainly did not change the protection of the task.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Throttled(_) | Self::Refused { .. })
    }
}

/// An address of the agent, from the environment of the container.
#[derive(Debug, Clone)]
pub(super) struct Endpoint {
    client: Client,
    base: String,
}

impl Endpoint {
    /// Creates an endpoint at the address `base`, with this timeout for each call.
    pub(super) fn new(base: &str, timeout: Duration) -> Result<Self, Fault> {
        let builder = Client::builder()
            // A proxy cannot reach a link-local address. Therefore, the client ignores any proxy in the environment.
            .no_proxy()
            .redirect(Policy::none())
            // Calls are minutes apart. The agent may close an idle connection between calls.
            .pool_max_idle_per_host(0)
            .timeout(timeout);
        // Plain HTTP needs no root certificates. Without this line, creating the client could fail for lack of root certificates
        // if another crate enables TLS in the client.
        #[cfg(feature = "oci")]
        let builder = builder.tls_certs_only([]);
        let client = builder.build().map_err(|error| Fault::Unreachable(with_causes(&error)))?;
        Ok(Self { client, base: base.trim_end_matches('/').to_owned() })
    }

    /// Reads the JSON document at `path` below the endpoint.
    pub(super) async fn get(&self, path: &str) -> Result<Value, Fault> {
        let (status, body) = answer(self.client.get(format!("{}{path}", self.base))).await?;
        match (status, serde_json::from_slice(&body)) {
            (StatusCode::OK, Ok(document @ Value::Object(_))) => Ok(document),
            _ => Err(unreadable(status, &body)),
        }
    }

    /// Calls `PUT /task-protection/v1/state`. The agent refuses unknown fields. Therefore, the body contains documented fields
    /// only (amazon-ecs-agent, `ecs-agent/tmds/handlers/taskprotection/v1/handlers/handlers.go`).
    pub(super) async fn set_protection(&self, call: Call) -> Result<(), Fault> {
        let body = match call {
            Call::Protect(minutes) => json!({ "ProtectionEnabled": true, "ExpiresInMinutes": minutes }),
            Call::Unprotect => json!({ "ProtectionEnabled": false }),
        };
        let request = self.client.put(format!("{}/task-protection/v1/state", self.base)).json(&body);
        let (status, body) = answer(request).await?;
        protection(status, &body, call)
    }
}

/// Sends a request. Returns the status and the body of the answer.
async fn answer(request: RequestBuilder) -> Result<(StatusCode, Vec<u8>), Fault> {
    let silent = |error: reqwest::Error| Fault::Silent(with_causes(&error.without_url()));
    let mut response = request.send().await.map_err(|error| {
        if error.is_connect() || error.is_builder() {
            Fault::Unreachable(with_causes(&error.without_url()))
        } else {
            silent(error)
        }
    })?;
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(silent)? {
        body.extend_from_slice(&chunk);
        if body.len() > LONGEST_ANSWER {
            break;
        }
    }
    Ok((response.status(), body))
}

/// Parses the agent's answer to a protection call. The agent sends `protection` on success, `failure` with status 200, or `error`
/// with status 4xx or 5xx (same source as for `set_protection`).
fn protection(status: StatusCode, body: &[u8], call: Call) -> Result<(), Fault> {
    let answer: Value = serde_json::from_slice(body).unwrap_or_default();
    let text = |value: &Value, name: &str| value[name].as_str().unwrap_or("without a reason").to_owned();
    if let Some(enabled) = answer["protection"]["ProtectionEnabled"].as_bool().filter(|_| status == StatusCode::OK) {
        let wanted = matches!(call, Call::Protect(_));
        return if enabled == wanted { Ok(()) } else { Err(unreadable(status, body)) };
    }
    let (failure, error) = (&answer["failure"], &answer["error"]);
    let refused = |code: String, message: String| {
        if code.contains("Throttling") || status.as_u16() == 429 {
            Fault::Throttled(format!("{code}: {message}"))
        } else {
            Fault::Refused { code, message }
        }
    };
    // `Detail` is usually null.
    match () {
        () if failure.is_object() => Err(refused(text(failure, "Reason"), text(failure, "Detail"))),
        // The agent stopped waiting for ECS. ECS may have made the change.
        () if status == StatusCode::GATEWAY_TIMEOUT => Err(Fault::Silent(text(error, "Message"))),
        () if error.is_object() => Err(refused(text(error, "Code"), text(error, "Message"))),
        () if status == StatusCode::TOO_MANY_REQUESTS => Err(Fault::Throttled(start(body))),
        () => Err(unreadable(status, body)),
    }
}

fn unreadable(status: StatusCode, body: &[u8]) -> Fault {
    Fault::Unreadable { status: status.as_u16(), start: start(body) }
}

/// Returns the beginning of an answer on one line.
fn start(body: &[u8]) -> String {
    String::from_utf8_lossy(body).chars().take(SHOWN).collect::<String>().escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ON: Call = Call::Protect(2);

    fn read(status: u16, body: &str, call: Call) -> Result<(), Fault> {
        protection(StatusCode::from_u16(status).unwrap(), body.as_bytes(), call)
    }

    #[test]
    fn a_protection_counts_if_it_is_the_one_asked_for() {
        let answer = |enabled: bool| {
            let mut protection = json!({ "TaskArn": "arn", "ProtectionEnabled": enabled });
            if enabled {
                protection["ExpirationDate"] = "2026-11-21T14:00:00Z".into();
            }
            json!({ "protection": protection }).to_string()
        };
        assert_eq!(read(200, &answer(true), ON), Ok(()));
        assert_eq!(read(200, &answer(false), Call::Unprotect), Ok(()));
        assert_eq!(read(200, &answer(false), ON).unwrap_err().kind(), "unreadable");
        assert_eq!(read(500, &answer(true), ON).unwrap_err().kind(), "unreadable");
    }

    #[test]
    fn failures_and_errors_have_their_code() {
        let failure = r#"{"failure":{"Arn":"arn","Detail":null,"Reason":"TASK_NOT_VALID"}}"#;
        let fault = read(200, failure, ON).unwrap_err();
        assert_eq!((fault.kind(), fault.is_refusal()), ("TASK_NOT_VALID", true));

        let denied = r#"{"requestID":"r","error":{"Arn":"arn","Code":"AccessDeniedException","Message":"not you"}}"#;
        let fault = read(400, denied, ON).unwrap_err();
        assert_eq!(fault.to_string(), "refused with AccessDeniedException: not you");
        assert!(fault.is_refusal());

        let late = r#"{"error":{"Arn":"arn","Code":"RequestCanceled","Message":"Timed out calling ECS"}}"#;
        let fault = read(504, late, ON).unwrap_err();
        assert_eq!((fault.kind(), fault.is_refusal()), ("silent", false));
    }

    #[test]
    fn throttles_are_told_by_status_and_by_code() {
        assert_eq!(read(429, "You have reached maximum request limit.", ON).unwrap_err().kind(), "throttled");
        let rate = r#"{"error":{"Arn":"arn","Code":"ThrottlingException","Message":"Rate exceeded"}}"#;
        assert_eq!(read(400, rate, ON).unwrap_err().kind(), "throttled");
    }

    #[test]
    fn anything_else_is_unreadable() {
        for body in ["", "<html>\n", "null", "[]", "{}", r#"{"protection":1}"#, r#"{"failure":"x"}"#, "\u{0}\u{ff}"] {
            for status in [200, 404, 503] {
                let fault = read(status, body, ON).unwrap_err();
                assert_eq!((fault.kind(), fault.is_refusal()), ("unreadable", false), "{body}");
                assert!(!fault.to_string().contains('\n'));
            }
        }
    }
}
