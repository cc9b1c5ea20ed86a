//! The claim check: stores bodies that are too large for a message in S3.

use std::sync::Arc;
use std::time::Duration;

use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::MetadataDirective;
use bytes::Bytes;
use uuid::Uuid;

use super::Service;
use super::fault::{Fault, is_denial};
use hostler_queue::{QueueError, SendError};
use hostler_types::message::{Claim, Invalid, Message, Outgoing};

/// Key prefix of bodies that messages in several queues of an exchange share. No consumer deletes such a body, because
/// no consumer knows whether another one still needs it. A lifecycle rule of the bucket deletes it.
const SHARED: &str = "hostler/shared/";
/// Key prefix of bodies that belong to messages in only one queue. Also the common prefix of all bodies.
pub(super) const OWN: &str = "hostler/";

/// Returns `true` if a key has the form of the keys under which hostler stores bodies. Other programs may store objects
/// under the same prefix.
pub(super) fn is_body(key: &str) -> bool {
    let name = key.strip_prefix(SHARED).or_else(|| key.strip_prefix(OWN));
    // Only the hyphenated form of a UUID has 36 characters. The form with 32 characters may be a digest.
    name.is_some_and(|name| name.len() == 36 && Uuid::try_parse(name).is_ok())
}

/// Maximum size in bytes of a body that hostler fetches. It is limited, because the body of each message that is being
/// processed is in memory.
const MAX_BODY: i64 = 256 * 1024 * 1024;

/// Maximum time for which a settlement waits for S3 to delete a body or to reset its age.
const REMOVAL: Duration = Duration::from_secs(5);

impl Service {
    /// Stores the body of a message in the bucket. Returns the message with a claim in place of the body. If no bucket
    /// is configured, returns the message unchanged. `shared`: set if several queues may receive the message.
    pub(super) async fn check_in(&self, message: Outgoing, shared: bool) -> Result<Outgoing, SendError> {
        let Some(bucket) = &self.options.bucket else { return Ok(message) };
        let key = format!("{}{}", if shared { SHARED } else { OWN }, Uuid::now_v7());
        let size = message.body.len() as u64;
        let put = self.clients.s3.put_object().bucket(bucket).key(&key).body(ByteStream::from(message.body));
        if let Err(error) = put.send().await {
            return Err(QueueError::from(Fault::of(&format!("PutObject into {bucket}"), &error)).into());
        }
        let claim = Claim { bucket: bucket.clone(), key, size: Some(size) };
        Ok(Outgoing { body: Vec::new(), claim: Some(Arc::new(claim)), ..message })
    }

    /// Fetches the body to which `claim` points. Returns the message with this body in place of the claim.
    ///
    /// # Errors
    /// Returns a message that says why the body could not be fetched.
    pub(super) async fn check_out(&self, message: &Message, claim: &Claim) -> Result<Message, String> {
        let (object, body) = (claim_text(claim), self.fetch(claim).await?);
        if claim.size.is_some_and(|size| size != body.len() as u64) {
            // Some versions of the Java client count characters. Therefore, a different size alone is no reason to
            // refuse the body.
            tracing::debug!(
                object,
                told = claim.size,
                found = body.len(),
                "the body has another size than the pointer says"
            );
        }
        Ok(Message { body, claim: None, ..message.clone() })
    }

    async fn fetch(&self, claim: &Claim) -> Result<Bytes, String> {
        let object = claim_text(claim);
        match &self.options.bucket {
            Some(bucket) if *bucket == claim.bucket => {}
            Some(bucket) => return Err(format!("the body is {object}, but payload.bucket is {bucket}")),
            None => return Err(format!("the body is {object}: set payload.bucket to let hostler fetch it")),
        }
        let asked = self.clients.s3.get_object().bucket(&claim.bucket).key(&claim.key).send().await;
        let answer = asked.map_err(|error| {
            let fault = Fault::of(&format!("GetObject of {object}"), &error);
            unfetched(&object, fault, is_denial(&error))
        })?;
        if let Some(bytes) = answer.content_length.filter(|bytes| *bytes > MAX_BODY) {
            return Err(format!("the body in {object} has {bytes} bytes; hostler takes at most {MAX_BODY}"));
        }
        let body = answer.body.collect().await.map_err(|error| format!("GetObject of {object} broke off: {error}"))?;
        Ok(body.into_bytes())
    }

    /// Resets the age of a stored body before a copy of its message is sent. `hostler clean` deletes bodies by age, and
    /// the retention of the copy begins anew.
    ///
    /// # Errors
    /// [`SendError::Invalid`]: S3 denies the renewal, so retrying is useless. A missing object is not an error.
    pub(super) async fn renew(&self, claim: &Claim) -> Result<(), SendError> {
        match self.copy_in_place(claim).await {
            Ok(()) | Err((Fault::Missing(_), _)) => Ok(()),
            Err((fault, denied)) if denied => {
                let object = claim_text(claim);
                let text = format!("the body in {object} is gone, or may not be renewed: {}", fault.into_text());
                Err(Invalid::Unsupported(text).into())
            }
            Err((fault, _)) => Err(QueueError::from(fault).into()),
        }
    }

    /// Resets the age of a dead letter's body, like [`Self::renew`]. A failure is only logged, because the dead letter
    /// must reach its queue even if S3 fails.
    pub(super) async fn try_to_renew(&self, claim: &Claim) {
        let error = match tokio::time::timeout(REMOVAL, self.copy_in_place(claim)).await {
            Ok(Ok(()) | Err((Fault::Missing(_), _))) => return,
            Ok(Err((fault, _))) => fault.into_text(),
            Err(_) => "S3 did not answer in time".to_owned(),
        };
        let object = claim_text(claim);
        tracing::warn!(
            object,
            error,
            "cannot renew the stored body of a dead letter; `hostler clean` may remove it early"
        );
    }

    /// Copies the object to which `claim` points onto itself, which resets its age. Does not preserve metadata, because
    /// stored bodies have none. Does nothing for an object that hostler did not store. On failure, the flag is `true`
    /// if S3 denied the call.
    async fn copy_in_place(&self, claim: &Claim) -> Result<(), (Fault, bool)> {
        let Claim { bucket, key, .. } = claim;
        if !is_body(key) || self.options.bucket.as_ref() != Some(bucket) {
            return Ok(());
        }
        let copy = self.clients.s3.copy_object().bucket(bucket).key(key).copy_source(format!("{bucket}/{key}"));
        let copied = copy.metadata_directive(MetadataDirective::Replace).send().await;
        let what = format!("CopyObject of {}", claim_text(claim));
        copied.map(drop).map_err(|error| (Fault::of(&what, &error), is_denial(&error)))
    }

    /// Deletes the body of a deleted message. Keeps a body that several queues share. If the deletion fails, the
    /// bucket's lifecycle rule deletes the body later.
    pub(super) async fn discard(&self, claim: &Claim) {
        if claim.key.starts_with(SHARED) || self.options.bucket.as_ref() != Some(&claim.bucket) {
            return;
        }
        let removal = self.clients.s3.delete_object().bucket(&claim.bucket).key(&claim.key).send();
        let object = claim_text(claim);
        match tokio::time::timeout(REMOVAL, removal).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                let fault = Fault::of("DeleteObject", &error);
                tracing::warn!(object, ?fault, "the stored body of a finished message is not deleted");
            }
            Err(_) => tracing::warn!(
                object,
                "the stored body of a finished message is not deleted: S3 did not answer in time"
            ),
        }
    }
}

/// Returns an error message that says why a body could not be fetched. `denied`: set if S3 denied access. In that case,
/// the message says that the object may be missing, because S3 also denies access to a missing object if the caller may
/// not list the bucket.
fn unfetched(object: &str, fault: Fault, denied: bool) -> String {
    match fault {
        Fault::Missing(_) => format!("the body is gone: there is no {object}"),
        fault if denied => format!("the body in {object} is gone, or may not be read: {}", fault.into_text()),
        fault => fault.into_text(),
    }
}

fn claim_text(claim: &Claim) -> String {
    format!("s3://{}/{}", claim.bucket, claim.key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_key_that_we_give_is_a_bodys() {
        let id = Uuid::now_v7();
        assert!(is_body(&format!("{OWN}{id}")) && is_body(&format!("{SHARED}{id}")));
        for other in ["thumbnails.wasm", "shared/thumbnails.wasm", "", "shared/", "0190163d8694739b8d2ec1d1ff66d3d1"] {
            assert!(!is_body(&format!("{OWN}{other}")), "{other}");
        }
        for other in [format!("{id}"), format!("elsewhere/{id}"), format!("{OWN}{id}/x"), format!("{OWN}other/{id}")] {
            assert!(!is_body(&other), "{other}");
        }
    }

    #[test]
    fn what_s3_denies_may_be_gone() {
        let text = |fault, denied| unfetched("s3://b/k", fault, denied);
        assert_eq!(text(Fault::Missing(String::new()), false), "the body is gone: there is no s3://b/k");
        let denied = text(Fault::Never("GetObject of s3://b/k: AccessDenied: Access Denied".into()), true);
        assert!(denied.starts_with("the body in s3://b/k is gone, or may not be read: GetObject"), "{denied}");
        assert_eq!(text(Fault::Later("SlowDown".into()), false), "SlowDown");
    }
}
