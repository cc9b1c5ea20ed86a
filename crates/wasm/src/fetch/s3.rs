//! Fetches a handler from an S3 bucket.

use std::time::Duration;

use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region};
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_s3::operation::get_object::GetObjectError;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::reference::sha256;
use super::{Bounded, Fault, MAX_HANDLER, Options};
use crate::cache::Cache;
use hostler_children::with_own_children;
use hostler_types::digest::{self, hex};
use hostler_types::error_chain::with_causes;

const CONNECT: Duration = Duration::from_secs(5);

/// Codes of temporary errors that S3 reports with the HTTP status of a client error (4xx).
const PASSING: [&str; 4] = ["RequestTimeout", "SlowDown", "Throttling", "ThrottlingException"];

/// An object in a bucket, with the client that fetches it.
pub(super) struct Object<'a> {
    client: aws_sdk_s3::Client,
    bucket: &'a str,
    key: &'a str,
    cache: Option<&'a Cache>,
    /// Name of the cache entry that contains the ETag and the SHA-256 of the object's last fetched version.
    entry: String,
}

/// The version of an object at the last fetch, as stored in the cache.
#[derive(Serialize, Deserialize)]
struct Seen {
    etag: String,
    sha256: String,
}

impl<'a> Object<'a> {
    pub(super) async fn new(
        options: &Options,
        bucket: &'a str,
        key: &'a str,
        cache: Option<&'a Cache>,
    ) -> Result<Self, Fault> {
        // Disables the SDK's retries, because `retry.rs` retries for longer.
        let retries = RetryConfig::standard().with_max_attempts(1);
        let timeouts = TimeoutConfig::builder().connect_timeout(CONNECT).build();
        let mut loader = aws_config::defaults(BehaviorVersion::latest()).retry_config(retries).timeout_config(timeouts);
        if let Some(region) = &options.region {
            loader = loader.region(Region::new(region.clone()));
        }
        if let Some(url) = &options.endpoint_url {
            loader = loader.endpoint_url(url);
        }
        let shared = with_own_children(loader.load().await);
        if shared.region().is_none() {
            let cure = "set queue.sqs.region, or AWS_REGION in the environment";
            return Err(Fault::Lasting("there is no AWS region".into(), cure));
        }
        let endpoint = shared.endpoint_url().unwrap_or_default();
        let entry = format!("etag-{}", hex(&digest::sha256(format!("{endpoint}\n{bucket}\n{key}").as_bytes())));
        let config = aws_sdk_s3::config::Builder::from(&shared).force_path_style(!endpoint.is_empty());
        Ok(Self { client: aws_sdk_s3::Client::from_conf(config.build()), bucket, key, cache, entry })
    }

    /// Fetches the object. If the object is unchanged, its bytes come from the cache.
    pub(super) async fn pull(&self) -> Result<Bytes, Fault> {
        let kept = self.kept();
        let etag = kept.as_ref().map(|(etag, _)| etag.clone());
        let asked = self.client.get_object().bucket(self.bucket).key(self.key).set_if_none_match(etag).send().await;
        let mut answer = match (asked, kept) {
            (Ok(answer), _) => answer,
            (Err(SdkError::ServiceError(answer)), Some((_, bytes))) if answer.raw().status().as_u16() == 304 => {
                return Ok(bytes);
            }
            (Err(error), _) => return Err(fault(&error)),
        };
        let told = answer.content_length.and_then(|length| u64::try_from(length).ok());
        let mut bounded = Bounded::new(MAX_HANDLER, told)?;
        while let Some(piece) = answer.body.next().await {
            let piece = piece.map_err(|error| Fault::Passing(format!("it broke off: {}", with_causes(&error))))?;
            bounded.push(&piece)?;
        }
        let bytes = Bytes::from(bounded.bytes);
        if let (Some(cache), Some(etag)) = (self.cache, answer.e_tag) {
            let digest = digest::sha256(&bytes);
            cache.put_blob(&digest, &bytes);
            let seen = Seen { etag, sha256: format!("sha256:{}", hex(&digest)) };
            cache.put(&self.entry, &serde_json::to_vec(&seen).unwrap_or_default());
        }
        Ok(bytes)
    }

    /// Returns the ETag and the bytes of the object's last fetched version. `None`: the ETag or the bytes are not in
    /// the cache.
    fn kept(&self) -> Option<(String, Bytes)> {
        let cache = self.cache?;
        let Ok(seen) = serde_json::from_slice::<Seen>(&cache.get(&self.entry)?) else {
            cache.discard(&self.entry, "it is not JSON that hostler wrote");
            return None;
        };
        Some((seen.etag, cache.blob(&sha256(&seen.sha256)?)?))
    }
}

fn fault(error: &SdkError<GetObjectError>) -> Fault {
    let SdkError::ServiceError(answer) = error else {
        let text = with_causes(error);
        return match error {
            SdkError::ConstructionFailure(_) => {
                Fault::Lasting(text, "give hostler AWS credentials, such as a task role")
            }
            _ => Fault::Passing(text),
        };
    };
    let status = answer.raw().status().as_u16();
    let code = error.code().unwrap_or("no error code");
    let text = format!("S3 answered {status} {code}: {}", error.message().unwrap_or("no message"));
    match status {
        408 | 429 | 500.. => Fault::Passing(text),
        _ if PASSING.contains(&code) => Fault::Passing(text),
        404 => Fault::Lasting(text, "upload it, or name a bucket and key that exist"),
        401 | 403 => Fault::Lasting(
            text,
            "allow hostler's role s3:GetObject on it (without s3:ListBucket, a missing object is denied too)",
        ),
        301 | 307 => Fault::Lasting(text, "set queue.sqs.region or AWS_REGION to the bucket's"),
        _ => Fault::Lasting(text, "name a bucket and key that exist, and credentials that may read them"),
    }
}
