//! What AWS answers when it does not do what was asked, by what the caller does next.

use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_sqs::types::BatchResultErrorEntry;

use super::json::Refusal;
use crate::cause::with_causes;
use crate::queue::{LeaseError, QueueError};

/// The resource is not there.
const MISSING: &[&str] = &[
    "AWS.SimpleQueueService.NonExistentQueue",
    "QueueDoesNotExist",
    "NonExistentQueue",
    "NotFound",
    "NotFoundException",
    "NoSuchKey",
    "NoSuchBucket",
    "ResourceNotFoundException",
];

/// It may work later, though the status says that we are at fault.
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
    "KmsThrottled",
    "KMSThrottlingException",
    "QueueDeletedRecently",
    "AWS.SimpleQueueService.QueueDeletedRecently",
    "InternalError",
    "InternalFailure",
    "ServiceUnavailable",
    "RequestTimeout",
];

/// The receipt is no longer good for anything.
const STALE: &[&str] = &[
    "ReceiptHandleIsInvalid",
    "InvalidReceiptHandle",
    "MessageNotInflight",
    "AWS.SimpleQueueService.MessageNotInflight",
];

/// Why a call, or one entry of a batch, failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// What was asked for does not exist.
    Missing(String),
    /// The receipt is stale.
    Stale(String),
    /// Try again.
    Later(String),
    /// Trying again is in vain: denied, malformed, forbidden by a limit.
    Never(String),
    /// The same, of one entry of a batch: the message itself is at fault, and no other.
    Message(String),
}

impl Fault {
    /// The fault of a call. `what` says what was tried, such as `ReceiveMessage on orders`.
    pub(super) fn of<E>(what: &str, error: &SdkError<E>) -> Self
    where
        E: ProvideErrorMetadata + std::error::Error + 'static,
    {
        let SdkError::ServiceError(answer) = error else {
            let text = format!("{what}: {}", with_causes(error));
            return if matches!(error, SdkError::ConstructionFailure(_)) {
                Self::Never(text)
            } else {
                Self::Later(text)
            };
        };
        Self::of_answer(what, answer.raw().status().as_u16(), error.code(), error.message())
    }

    /// The fault of a call that the SDK had no part in.
    pub(super) fn of_refusal(what: &str, refusal: &Refusal) -> Self {
        Self::of_answer(what, refusal.status, refusal.code.as_deref(), refusal.message.as_deref())
    }

    fn of_answer(what: &str, status: u16, code: Option<&str>, message: Option<&str>) -> Self {
        let code = code.map_or_else(|| format!("HTTP status {status}"), str::to_owned);
        let text = format!("{what}: {code}: {}", message.unwrap_or("no message"));
        Self::by_code(&code, text, status >= 500 || status == 429)
    }

    /// The fault of one entry of a batch.
    pub(super) fn of_entry(what: &str, entry: &BatchResultErrorEntry) -> Self {
        let text = format!("{what}: {}: {}", entry.code(), entry.message().unwrap_or("no message"));
        Self::by_code(entry.code(), text, !entry.sender_fault()).of_one()
    }

    /// The same fault, known to be that of one message.
    pub(super) fn of_one(self) -> Self {
        match self {
            Self::Never(text) => Self::Message(text),
            fault => fault,
        }
    }

    /// By a code of AWS; `otherwise`: whether one that is not known may work later.
    pub(super) fn by_code(code: &str, text: String, otherwise: bool) -> Self {
        let among = |codes: &[&str]| codes.contains(&code);
        match () {
            () if among(MISSING) => Self::Missing(text),
            () if among(STALE) => Self::Stale(text),
            () if among(LATER) || otherwise => Self::Later(text),
            () => Self::Never(text),
        }
    }

    pub(super) fn is_missing(&self) -> bool {
        matches!(self, Self::Missing(_))
    }

    pub(super) fn may_pass(&self) -> bool {
        matches!(self, Self::Later(_))
    }
}

/// Whether we lack the permission. SQS, SNS and KMS each call it otherwise.
pub(super) fn is_denial<E: ProvideErrorMetadata>(error: &SdkError<E>) -> bool {
    let code = error.code().unwrap_or_default();
    code.contains("AccessDenied") || code.starts_with("AuthorizationError")
}

impl From<Fault> for QueueError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Later(text) => Self::Unavailable(text),
            Fault::Missing(text) | Fault::Stale(text) | Fault::Never(text) | Fault::Message(text) => {
                Self::Refused(text)
            }
        }
    }
}

impl From<Fault> for LeaseError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Later(text) => Self::Retry(text),
            Fault::Missing(text) | Fault::Stale(text) => Self::Lost(text),
            // Denied today, and perhaps not in a minute: the lease is ours as long as we say so.
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
            Fault::of_entry("DeleteMessageBatch", &entry)
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
}
