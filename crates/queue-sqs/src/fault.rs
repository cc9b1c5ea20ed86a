//! AWS errors, classified by what the caller must do next.

use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_sqs::operation::RequestId;
use aws_sdk_sqs::types::BatchResultErrorEntry;

use super::json::Refusal;
use hostler_queue::{LeaseError, QueueError};
use hostler_types::error_chain::with_causes;

/// Error codes for a resource that does not exist.
const MISSING: &[&str] = &[
    "AWS.SimpleQueueService.NonExistentQueue",
    "QueueDoesNotExist",
    "NonExistentQueue",
    "NotFound",
    "NotFoundException",
    "NoSuchKey",
    "NoSuchBucket",
    "ResourceNotFound",
    "ResourceNotFoundException",
];

/// Error codes for temporary failures. AWS sends some of them with an HTTP status for client errors (4xx).
const LATER: &[&str] = &[
    "Throttling",
    "ThrottlingException",
    "Throttled",
    "ThrottledException",
    "RequestThrottled",
    "RequestThrottledException",
    "TooManyRequestsException",
    "RequestLimitExceeded",
    "SlowDown",
    "OverLimit",
    "AWS.SimpleQueueService.OverLimit",
    "KMS.ThrottlingException",
    "KMSThrottling",
    "KMSThrottlingException",
    "KmsThrottled",
    "ConcurrentAccess",
    "ConcurrentAccessException",
    "StaleTag",
    "StaleTagException",
    "QueueDeletedRecently",
    "AWS.SimpleQueueService.QueueDeletedRecently",
    "InternalError",
    "InternalFailure",
    "ServiceUnavailable",
    "RequestTimeout",
    "RequestTimeTooSkewed",
];

/// Prefixes of error messages for a signature that is refused only because of its timestamp. The answer also contains
/// the time by AWS's clock, and the client uses it to sign the next attempt.
const SKEWED: &[&str] = &["Signature expired", "Signature not yet current"];

/// Error codes for a receipt that is no longer valid.
const STALE: &[&str] = &[
    "ReceiptHandleIsInvalid",
    "InvalidReceiptHandle",
    "MessageNotInflight",
    "AWS.SimpleQueueService.MessageNotInflight",
];

/// Suffix of an error message: the AWS request id, which AWS Support needs. Empty if there is no id.
pub(super) struct Request<'a>(pub(super) Option<&'a str>);

impl std::fmt::Display for Request<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.map_or(Ok(()), |id| write!(f, " (request id {id})"))
    }
}

/// Reason why a call, or one entry of a batch, failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// The requested resource does not exist.
    Missing(String),
    /// The receipt is stale.
    Stale(String),
    /// Refused temporarily. Retry.
    Later(String),
    /// No answer arrived, or the answer does not tell whether the call was carried out. Retry.
    Unanswered(String),
    /// Refused permanently: denied, malformed or above a limit. Retrying is useless.
    Never(String),
    /// Refused permanently, but only for one entry of a batch, because of the entry's message. Retrying is useless.
    Message(String),
}

impl Fault {
    /// Returns the fault for a failed call. `what` describes the call, for example `ReceiveMessage on orders`.
    pub(super) fn of<E>(what: &str, error: &SdkError<E>) -> Self
    where
        E: ProvideErrorMetadata + std::error::Error + 'static,
    {
        let SdkError::ServiceError(answer) = error else {
            let text = no_credentials(error, |name| std::env::var(name).ok()).unwrap_or_else(|| with_causes(error));
            let text = format!("{what}: {text}{}", Request(error.request_id()));
            return if matches!(error, SdkError::ConstructionFailure(_)) {
                Self::Never(text)
            } else {
                Self::Unanswered(text)
            };
        };
        let request = Request(error.request_id());
        Self::of_answer(what, answer.raw().status().as_u16(), error.code(), error.message(), request)
    }

    /// Returns the fault for a direct call that SQS refused. `what` describes the call.
    pub(super) fn of_refusal(what: &str, refusal: &Refusal) -> Self {
        let request = Request(refusal.request_id.as_deref());
        Self::of_answer(what, refusal.status, refusal.code.as_deref(), refusal.message.as_deref(), request)
    }

    fn of_answer(what: &str, status: u16, code: Option<&str>, message: Option<&str>, request: Request<'_>) -> Self {
        let code = code.map_or_else(|| format!("HTTP status {status}"), str::to_owned);
        let by_the_clock = message.is_some_and(|text| SKEWED.iter().any(|begin| text.starts_with(begin)));
        let text = format!("{what}: {code}: {}{request}", message.unwrap_or("no message"));
        match Self::by_code(&code, text, status == 429 || by_the_clock) {
            Self::Later(text) | Self::Never(text) if status >= 500 => Self::Unanswered(text),
            fault => fault,
        }
    }

    /// Returns the fault for one failed entry of a batch. `what` describes the call. `request` is the AWS request id of
    /// the batch.
    pub(super) fn of_entry(what: &str, entry: &BatchResultErrorEntry, request: Option<&str>) -> Self {
        let text = format!("{what}: {}: {}{}", entry.code(), entry.message().unwrap_or("no message"), Request(request));
        Self::by_code(entry.code(), text, !entry.sender_fault()).of_one()
    }

    /// Converts [`Fault::Never`] to [`Fault::Message`], for a fault that concerns one message.
    pub(super) fn of_one(self) -> Self {
        match self {
            Self::Never(text) => Self::Message(text),
            fault => fault,
        }
    }

    /// Classifies a fault by its AWS error code. `text`: error message. `otherwise`: set if a fault with an unknown
    /// code counts as temporary.
    pub(super) fn by_code(code: &str, text: String, otherwise: bool) -> Self {
        let among = |codes: &[&str]| codes.contains(&code);
        match () {
            () if among(MISSING) => Self::Missing(text),
            () if among(STALE) => Self::Stale(text),
            () if among(LATER) || otherwise => Self::Later(text),
            () => Self::Never(text),
        }
    }

    /// Returns the error message of the fault.
    pub(super) fn into_text(self) -> String {
        match self {
            Self::Missing(text)
            | Self::Stale(text)
            | Self::Later(text)
            | Self::Unanswered(text)
            | Self::Never(text)
            | Self::Message(text) => text,
        }
    }

    pub(super) fn is_missing(&self) -> bool {
        matches!(self, Self::Missing(_))
    }

    pub(super) fn may_pass(&self) -> bool {
        matches!(self, Self::Later(_) | Self::Unanswered(_))
    }

    pub(super) fn is_unanswered(&self) -> bool {
        matches!(self, Self::Unanswered(_))
    }
}

/// Instructions for providing credentials, for error messages.
const GIVE: &str = "give the ECS task or EC2 instance a role; elsewhere set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or \
                    AWS_PROFILE after `aws configure` or `aws sso login` (a local stand-in for AWS takes any key)";

/// Part of the SDK's error message if the instance metadata service (IMDS) provides no credentials.
const METADATA: &str = "failed to load IMDS";

/// Returns a readable error message for a call that failed because there were no credentials to sign it. `None`: the
/// call failed for another reason. The reason is identified by the message of the SDK's error, because hostler does not
/// depend on the crate that defines the error's type. `variable`: looks up an environment variable.
fn no_credentials(
    error: &(dyn std::error::Error + 'static),
    variable: impl Fn(&str) -> Option<String>,
) -> Option<String> {
    let asked = asked_for(variable);
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(|cause| (cause, cause.to_string())).find_map(|(cause, text)| match text.as_str() {
        text if text.starts_with("the credential provider was not enabled") => Some(format!(
            "no AWS credentials: looked in the environment (AWS_ACCESS_KEY_ID), the profiles (~/.aws, AWS_PROFILE), web identity \
             (AWS_WEB_IDENTITY_TOKEN_FILE), the ECS task role and the EC2 instance role{asked}; {GIVE}"
        )),
        text if text.starts_with("an error occurred while loading credentials")
            || text.starts_with("credentials provider timed out")
            || text.starts_with("the credentials provider was not properly configured") =>
        {
            let causes = with_causes(cause);
            Some(if causes.contains(METADATA) {
                format!(
                    "no AWS credentials: there are none in the environment, the profiles or the ECS task role, and this machine's \
                     metadata service gives out no instance role{asked}; {GIVE}"
                )
            } else {
                format!("cannot get AWS credentials: {causes}{asked}; {GIVE}")
            })
        }
        _ => None,
    })
}

/// Describes the credential sources that are named in environment variables. If no credentials are found, the usual cause is a
/// typo in one of these variables. `variable`: looks up an environment variable.
fn asked_for(variable: impl Fn(&str) -> Option<String>) -> String {
    let profile = variable("AWS_PROFILE").map(|name| {
        format!(" (AWS_PROFILE is `{name}`: is there a profile of this name in ~/.aws/config or ~/.aws/credentials?)")
    });
    let token = variable("AWS_WEB_IDENTITY_TOKEN_FILE").map(|file| {
        let state = match std::fs::File::open(&file) {
            Ok(_) => "can be read".to_owned(),
            Err(error) => format!("cannot be read: {error}"),
        };
        format!(" (AWS_WEB_IDENTITY_TOKEN_FILE is `{file}`, which {state})")
    });
    profile.into_iter().chain(token).collect()
}

/// Returns `true` if the call failed because of missing permissions. SQS, SNS and KMS have different codes for a
/// denial.
pub(super) fn is_denial<E: ProvideErrorMetadata>(error: &SdkError<E>) -> bool {
    let code = error.code().unwrap_or_default();
    code.contains("AccessDenied") || code.starts_with("AuthorizationError")
}

impl From<Fault> for QueueError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Later(text) | Fault::Unanswered(text) => Self::Unavailable(text),
            Fault::Missing(text) | Fault::Stale(text) | Fault::Never(text) | Fault::Message(text) => {
                Self::Refused(text)
            }
        }
    }
}

impl From<Fault> for LeaseError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Later(text) | Fault::Unanswered(text) => Self::Retry(text),
            Fault::Missing(text) | Fault::Stale(text) => Self::Lost(text),
            // A denied call may be allowed later, while the lease is still held.
            Fault::Never(text) | Fault::Message(text) => Self::Retry(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_told_apart_by_code_and_then_by_whose_fault_it_is() {
        let entry = |code: &str, sender: bool| {
            let entry = BatchResultErrorEntry::builder().id("0").code(code).sender_fault(sender).build().unwrap();
            Fault::of_entry("DeleteMessageBatch", &entry, None)
        };
        assert!(matches!(entry("ReceiptHandleIsInvalid", true), Fault::Stale(_)));
        assert!(matches!(entry("RequestThrottled", true), Fault::Later(_)));
        assert!(matches!(entry("InternalError", false), Fault::Later(_)));
        assert!(matches!(entry("InvalidMessageContents", true), Fault::Message(_)));
        assert!(matches!(
            LeaseError::from(entry("AWS.SimpleQueueService.MessageNotInflight", true)),
            LeaseError::Lost(_)
        ));
    }

    #[test]
    fn a_signature_that_is_refused_for_its_time_is_tried_again() {
        let fault = |message| {
            Fault::of_answer("SendMessage", 403, Some("InvalidSignatureException"), Some(message), Request(None))
        };
        for skewed in ["Signature expired: 20260101T000000Z is now earlier than …", "Signature not yet current: …"]
        {
            assert!(matches!(fault(skewed), Fault::Later(_)), "{skewed}");
        }
        assert!(matches!(fault("The request signature we calculated does not match"), Fault::Never(_)));
    }

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Cause(&'static str, #[source] Option<Box<Cause>>);

    #[test]
    fn missing_credentials_are_told_without_the_sdks_words() {
        let dispatch =
            |text| Cause("dispatch failure", Some(Box::new(Cause("other", Some(Box::new(Cause(text, None)))))));
        let told = |text| no_credentials(&dispatch(text), |_| None);
        let missing = told("the credential provider was not enabled: no credentials found in chain").unwrap();
        for part in ["no AWS credentials", "AWS_ACCESS_KEY_ID", "~/.aws", "ECS task", "aws sso login"] {
            assert!(missing.contains(part), "{part} in {missing}");
        }
        assert!(!missing.contains("chain") && !missing.contains("provider"), "{missing}");
        let failed = told("an error occurred while loading credentials").unwrap();
        assert!(failed.starts_with("cannot get AWS credentials: an error occurred"), "{failed}");
        assert_eq!(told("connection refused"), None);
    }

    #[test]
    fn what_the_environment_names_for_credentials_is_told() {
        let metadata = Cause("failed to load IMDS session token", Some(Box::new(Cause("request forbidden", None))));
        let refused = Cause("an error occurred while loading credentials", Some(Box::new(metadata)));
        let none = Cause("the credential provider was not enabled: no credentials found in chain", None);
        let failed = Cause("an error occurred while loading credentials", None);
        let variable = |name: &str| match name {
            "AWS_PROFILE" => Some("produktion".to_owned()),
            "AWS_WEB_IDENTITY_TOKEN_FILE" => Some("/no/such/token".to_owned()),
            _ => None,
        };
        for error in [&refused, &none, &failed] {
            let text = no_credentials(error, variable).unwrap();
            let token = "AWS_WEB_IDENTITY_TOKEN_FILE is `/no/such/token`, which cannot be read: No such file";
            assert!(text.contains("AWS_PROFILE is `produktion`") && text.contains(token), "{text}");
        }
        let text = no_credentials(&refused, |_| None).unwrap();
        assert!(text.contains("this machine's metadata service gives out no instance role"), "{text}");
        assert!(!text.contains("IMDS") && !text.contains("AWS_PROFILE is"), "{text}");
    }

    /// Uses the codes that AWS sends. For KMS errors, SQS and SNS have their own codes, which differ from the names of
    /// the SDK's error types.
    #[test]
    fn a_call_is_judged_by_its_code_before_its_status() {
        let call = |code: &str| Fault::of_answer("TagResource", 400, Some(code), None, Request(None));
        for code in ["KMS.ThrottlingException", "KMSThrottling", "RequestThrottled", "ConcurrentAccess", "StaleTag"] {
            assert!(matches!(call(code), Fault::Later(_)), "{code}");
        }
        for code in ["ResourceNotFound", "NotFound", "AWS.SimpleQueueService.NonExistentQueue"] {
            assert!(matches!(call(code), Fault::Missing(_)), "{code}");
        }
        for code in ["KMS.AccessDeniedException", "KMSDisabled", "KMS.NotFoundException", "InvalidParameter"] {
            assert!(matches!(call(code), Fault::Never(_)), "{code}");
        }
    }

    #[test]
    fn a_failure_of_the_service_itself_tells_nothing_of_what_was_done() {
        let call = |status, code: &str| Fault::of_answer("ReceiveMessage", status, Some(code), None, Request(None));
        assert!(call(503, "ServiceUnavailable").is_unanswered() && call(500, "Unheard").is_unanswered());
        assert!(call(503, "ServiceUnavailable").may_pass());
        for (status, code) in [(400, "RequestThrottled"), (429, "Unheard"), (403, "AccessDenied"), (500, "NotFound")] {
            assert!(!call(status, code).is_unanswered(), "{status} {code}");
        }
    }
}
