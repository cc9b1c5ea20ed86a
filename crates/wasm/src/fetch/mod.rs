//! Downloads handlers by reference. Downloads are limited in size, retried, verified, and cached for the next start.
//!
//! | file | job | I/O |
//! |---|---|---|
//! | `reference` | parses `s3://…` and `oci://…` | none |
//! | `retry` | retries downloads, with pauses between the attempts | waits |
//! | `s3` | fetches an object from an S3 bucket | yes |
//! | `oci` | fetches a layer of an artifact from a registry | yes |
//! | `manifest` | selects the layer that contains the handler | none |
//! | `login` | parses registries' challenges, and reads logins from Docker's config | a file |
//!
//! If content is pinned by a digest and is in the cache, hostler sends no request. For other content, hostler sends a
//! request that shows whether the content has changed since the last fetch: for an S3 object, a request with the ETag
//! of the last fetch; for an artifact, a request for its manifest. If the content is unchanged, hostler loads the bytes
//! from the cache.

#[cfg(feature = "oci")]
mod login;
#[cfg(feature = "oci")]
pub mod manifest;
#[cfg(feature = "oci")]
mod oci;
mod reference;
mod retry;
#[cfg(feature = "sqs")]
mod s3;

pub use super::source::MAX_HANDLER;
#[cfg(feature = "oci")]
pub use login::Challenge;
pub use reference::{Address, Reference, ReferenceError};
pub use retry::Patience;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use tokio::task::JoinSet;

use super::cache::Cache;
use super::source::Fetched;
use hostler_types::BoxFuture;
use hostler_types::digest::{hex, sha256};

/// A reference to fetch, and the SHA-256 that the fetched bytes must have (`None`: not checked).
pub type Wanted = (Reference, Option<[u8; 32]>);

/// Options for fetching handlers. AWS settings that are not in these options come from the AWS environment.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// AWS region. `None`: the region comes from the AWS environment.
    pub region: Option<String>,
    /// URL of a service that is compatible with S3. `None`: the URL comes from the AWS environment.
    pub endpoint_url: Option<String>,
    /// Limits on the number and the duration of attempts to fetch a handler.
    pub patience: Patience,
}

/// The reason why an attempt to fetch a handler failed.
#[derive(Debug)]
pub enum Fault {
    /// A temporary fault: no response, too many requests, or a fault in the service. Another attempt may succeed.
    Passing(String),
    /// A permanent fault. The fields are a description of the fault, and the fix.
    Lasting(String, &'static str),
}

/// The error for a handler that could not be fetched. Names the reference, the fault and the fix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("handler {reference}: {what}\n  cure: {cure}")]
pub struct FetchError {
    reference: String,
    what: String,
    cure: &'static str,
    /// Set if the fault is temporary: another attempt may succeed.
    pub passing: bool,
}

impl FetchError {
    fn new(reference: &Reference, fault: Fault) -> Self {
        let (what, cure, passing) = match fault {
            Fault::Passing(what) => (what, "make sure that it can be reached from here, then start again", true),
            Fault::Lasting(what, cure) => (what, cure, false),
        };
        Self { reference: reference.to_string(), what, cure, passing }
    }
}

/// Fetches handlers. Cheap to clone.
#[derive(Clone)]
pub struct Fetcher {
    options: Options,
    cache: Option<Arc<Cache>>,
}

impl Fetcher {
    /// Creates a fetcher. Sends no request yet.
    pub fn new(options: Options, cache: Option<Arc<Cache>>) -> Self {
        Self { options, cache }
    }

    /// Fetches all references in parallel. Dropping the future aborts all downloads.
    pub fn fetch_all<'a>(
        &'a self,
        wanted: BTreeSet<Wanted>,
    ) -> BoxFuture<'a, BTreeMap<Wanted, Result<Fetched, FetchError>>> {
        Box::pin(async move {
            let mut running = JoinSet::new();
            for wanted in wanted {
                let fetcher = self.clone();
                running.spawn(async move {
                    let fetched = fetcher.fetch(&wanted.0, wanted.1.as_ref()).await;
                    (wanted, fetched)
                });
            }
            running.join_all().await.into_iter().collect()
        })
    }

    /// Fetches one handler. `pin`: SHA-256 that the bytes must have, or `None` to skip the check.
    ///
    /// # Errors
    /// [`FetchError`], with `passing` set if another attempt may succeed.
    pub fn fetch<'a>(
        &'a self,
        reference: &'a Reference,
        pin: Option<&'a [u8; 32]>,
    ) -> BoxFuture<'a, Result<Fetched, FetchError>> {
        Box::pin(async move {
            let pinned = pin.is_some() || reference.is_pinned();
            let kept = pin.zip(self.cache.as_deref()).and_then(|(pin, cache)| cache.blob(pin));
            let bytes = match kept {
                Some(bytes) => Ok(bytes),
                None => self.pull(reference).await.and_then(|bytes| check_pin(&bytes, pin).map(|()| bytes)),
            };
            let bytes = bytes.map_err(|fault| FetchError::new(reference, fault))?;
            tracing::info!(handler = %reference, bytes = bytes.len(), "handler fetched");
            Ok(Fetched { reference: reference.to_string().into(), bytes, pinned })
        })
    }

    async fn pull(&self, reference: &Reference) -> Result<Bytes, Fault> {
        match reference {
            #[cfg(feature = "sqs")]
            Reference::S3 { bucket, key } => {
                let object = s3::Object::new(&self.options, bucket, key, self.cache.as_deref()).await?;
                retry::tries(reference, self.options.patience, || object.pull()).await
            }
            #[cfg(not(feature = "sqs"))]
            Reference::S3 { .. } => Err(not_built("sqs")),
            #[cfg(feature = "oci")]
            Reference::Oci(address) => {
                let artifact = oci::Artifact::new(address, self.cache.as_deref())?;
                retry::tries(reference, self.options.patience, || artifact.pull()).await
            }
            #[cfg(not(feature = "oci"))]
            Reference::Oci(_) => Err(not_built("oci")),
        }
    }
}

#[cfg(not(all(feature = "sqs", feature = "oci")))]
fn not_built(feature: &str) -> Fault {
    Fault::Lasting(format!("this build of hostler was made without the feature `{feature}`"), "name a file")
}

fn check_pin(bytes: &Bytes, pin: Option<&[u8; 32]>) -> Result<(), Fault> {
    let found = sha256(bytes);
    match pin {
        Some(pin) if found != *pin => Err(Fault::Lasting(
            format!("its SHA-256 is {}, but the config pins {}", hex(&found), hex(pin)),
            "upload the intended file, or set sha256 to the digest of the new one",
        )),
        _ => Ok(()),
    }
}

/// A buffer for bytes that arrive in chunks, with a maximum size.
struct Bounded {
    bytes: Vec<u8>,
    limit: u64,
}

impl Bounded {
    /// Creates an empty buffer for at most `limit` bytes. `told`: length that the server announced, if any. Fails if
    /// `told` exceeds `limit`.
    fn new(limit: u64, told: Option<u64>) -> Result<Self, Fault> {
        let told = told.unwrap_or_default();
        if told > limit {
            return Err(too_large(limit));
        }
        Ok(Self { bytes: Vec::with_capacity(usize::try_from(told).unwrap_or_default()), limit })
    }

    fn push(&mut self, piece: &[u8]) -> Result<(), Fault> {
        if self.bytes.len() as u64 + piece.len() as u64 > self.limit {
            return Err(too_large(self.limit));
        }
        self.bytes.extend_from_slice(piece);
        Ok(())
    }
}

fn too_large(limit: u64) -> Fault {
    Fault::Lasting(
        format!("it has more than the {} that hostler accepts", bytesize::ByteSize(limit)),
        "name a smaller handler",
    )
}
