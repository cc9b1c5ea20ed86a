//! Asks AWS Secrets Manager for secrets.

use std::time::Duration;

use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_secretsmanager::Client;
use aws_sdk_secretsmanager::config::Builder;
use aws_sdk_secretsmanager::error::{ProvideErrorMetadata, SdkError};
use tokio::sync::OnceCell;
use tokio::task::JoinSet;

use super::Texts;
use super::calls::Calls;
use super::error::LookupError;
use super::value::whole;
use hostler_children::with_own_children;
use hostler_types::error_chain::with_causes;
use hostler_types::secret::{ManagedSecret, SecretValue};

/// Timeout for opening a connection.
const CONNECT: Duration = Duration::from_secs(3);

/// Timeout of one attempt of a call.
const ATTEMPT: Duration = Duration::from_secs(5);

/// Maximum number of attempts of a call.
const ATTEMPTS: u32 = 3;

/// Maximum number of answers to one call: an answer may contain only some of the secrets.
const PAGES: usize = 20;

/// Codes of temporary errors that Secrets Manager reports with the HTTP status of a client error (4xx).
const PASSING: [&str; 4] = ["InternalServiceError", "RequestTimeout", "Throttling", "ThrottlingException"];

const PERMISSION: &str = "allow hostler's role what `hostler iam` prints: secretsmanager:GetSecretValue and BatchGetSecretValue, and \
                          kms:Decrypt for a key of your own";

/// Access to Secrets Manager. Makes no connection before the first secret is asked for.
#[derive(Debug, Default)]
pub(super) struct Manager {
    /// Credentials, and the endpoint that the environment sets.
    shared: OnceCell<SdkConfig>,
}

impl Manager {
    /// Makes these calls at the same time.
    pub(super) async fn ask(&self, calls: &Calls) -> Texts<ManagedSecret> {
        let mut asked = JoinSet::new();
        for batch in calls.batches.iter().filter(|batch| !batch.is_empty()) {
            let client = self.client(batch[0].region()).await;
            asked.spawn(batch_of(client, batch.clone()));
        }
        for secret in &calls.singles {
            let client = self.client(secret.region()).await;
            asked.spawn(single(client, secret.clone()));
        }
        let mut texts = Texts::new();
        while let Some(answered) = asked.join_next().await {
            // Secrets of a call that failed by a bug count as unanswered.
            texts.extend(answered.into_iter().flatten());
        }
        texts
    }

    async fn client(&self, region: &str) -> Client {
        let load = || async {
            let timeouts = TimeoutConfig::builder().connect_timeout(CONNECT).operation_attempt_timeout(ATTEMPT).build();
            let retries = RetryConfig::standard().with_max_attempts(ATTEMPTS);
            // With a region, the SDK does not ask the machine for one.
            let loader = aws_config::defaults(BehaviorVersion::latest()).region(Region::new(region.to_owned()));
            with_own_children(loader.retry_config(retries).timeout_config(timeouts).load().await)
        };
        let shared = self.shared.get_or_init(load).await;
        Client::from_conf(Builder::from(shared).region(Region::new(region.to_owned())).build())
    }
}

async fn batch_of(client: Client, secrets: Vec<ManagedSecret>) -> Texts<ManagedSecret> {
    let mut texts = Texts::new();
    let mut next = None;
    for _ in 0..PAGES {
        let ids = secrets.iter().map(|secret| secret.arn.clone()).collect();
        let call = client.batch_get_secret_value().set_secret_id_list(Some(ids)).set_next_token(next);
        let answer = match call.send().await {
            Ok(answer) => answer,
            Err(error) => {
                let error = fault(&error);
                // What earlier answers had stays.
                for secret in secrets {
                    texts.entry(secret).or_insert_with(|| Err(error.clone()));
                }
                return texts;
            }
        };
        for secret in &secrets {
            let is_it = |arn: Option<&str>| arn == Some(secret.arn.as_str());
            if let Some(entry) = answer.secret_values().iter().find(|entry| is_it(entry.arn())) {
                texts.insert(secret.clone(), text(entry.secret_string()));
            } else if let Some(error) = answer.errors().iter().find(|error| is_it(error.secret_id())) {
                let code = error.error_code().unwrap_or("no error code");
                texts.insert(secret.clone(), Err(refused(code, error.message().unwrap_or("no message"), 400)));
            }
        }
        next = answer.next_token().map(str::to_owned);
        if next.is_none() || texts.len() == secrets.len() {
            break;
        }
    }
    texts
}

async fn single(client: Client, secret: ManagedSecret) -> Texts<ManagedSecret> {
    let call = client.get_secret_value().secret_id(&secret.arn);
    let call = call.set_version_stage(secret.stage.clone()).set_version_id(secret.version.clone());
    let found = match call.send().await {
        Ok(answer) => text(answer.secret_string()),
        Err(error) => Err(fault(&error)),
    };
    [(secret, found)].into()
}

/// Returns the text of an answer, which lacks it if the secret is binary.
fn text(text: Option<&str>) -> Result<SecretValue, LookupError> {
    match text {
        Some(text) => whole(text),
        None => Err(LookupError::lasting("it is binary, and a variable is text", "store it as text")),
    }
}

fn fault<E: ProvideErrorMetadata + std::error::Error + 'static>(error: &SdkError<E>) -> LookupError {
    match error {
        SdkError::ServiceError(answer) => {
            let (code, message) = (error.code().unwrap_or("no error code"), error.message().unwrap_or("no message"));
            refused(code, message, answer.raw().status().as_u16())
        }
        SdkError::ConstructionFailure(_) => {
            LookupError::lasting(with_causes(error), "give hostler AWS credentials, such as a task role")
        }
        _ => LookupError::passing(
            format!("Secrets Manager cannot be reached: {}", with_causes(error)),
            "give hostler AWS credentials, and a route to Secrets Manager in the region of the ARN",
        ),
    }
}

/// Returns the error for the answer of Secrets Manager with this code. `status`: HTTP status of the answer.
fn refused(code: &str, message: &str, status: u16) -> LookupError {
    let text = format!("Secrets Manager answered {code}: {message}");
    if status == 429 || status >= 500 || PASSING.contains(&code) {
        return LookupError::passing(text, "wait: Secrets Manager has a fault, or slows its callers down");
    }
    let cure = match code {
        "AccessDeniedException" | "DecryptionFailure" => PERMISSION,
        "ResourceNotFoundException" => "name a secret, stage and version that exist, by the whole ARN",
        "InvalidRequestException" => "restore the secret, if it is marked for deletion",
        "ExpiredTokenException" | "UnrecognizedClientException" | "InvalidSignatureException" => {
            "give hostler valid AWS credentials, such as a task role"
        }
        _ => "correct the ARN",
    };
    LookupError::lasting(text, cure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_an_error_by_what_can_be_done_next() {
        for (code, status, passing, cure) in [
            ("AccessDeniedException", 400, false, "secretsmanager:GetSecretValue"),
            ("DecryptionFailure", 400, false, "kms:Decrypt"),
            ("ResourceNotFoundException", 400, false, "exist"),
            ("InvalidRequestException", 400, false, "restore"),
            ("ThrottlingException", 400, true, "wait"),
            ("InternalServiceError", 500, true, "wait"),
            ("Unheard", 503, true, "wait"),
            ("Unheard", 400, false, "ARN"),
        ] {
            let error = refused(code, "m", status);
            assert_eq!(error.is_passing(), passing, "{code}");
            assert!(error.cure().contains(cure) && error.to_string().contains(code), "{error:?}");
        }
    }

    #[test]
    fn a_binary_secret_is_refused() {
        assert_eq!(text(Some("a")).unwrap().expose(), "a");
        assert!(text(None).is_err() && text(Some("a\0")).is_err());
    }
}
