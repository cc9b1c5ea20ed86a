//! Look-up of secrets: in files, and in AWS Secrets Manager. Knows nothing of consumers.
//!
//! | file | job | I/O |
//! |---|---|---|
//! | `calls` | decides which files to read and which calls to make | none |
//! | `value` | text of a secret → its value, whole or at a JSON key | none |
//! | `file` | reads a file | files |
//! | `manager` | calls Secrets Manager | network |
//! | `error` | reasons why there is no value | none |

mod calls;
mod error;
mod file;
#[cfg(feature = "sqs")]
mod manager;
mod value;

pub use error::LookupError;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use calls::Calls;
use hostler_types::secret::{ManagedSecret, SecretRef, SecretValue};
use tokio::task::JoinSet;

/// Maximum time for reading a file. One on a network share can hang.
const FILES: Duration = Duration::from_secs(10);

/// Values that were found, or the reason for each that was not.
pub type Found = BTreeMap<SecretRef, Result<SecretValue, LookupError>>;

/// Texts of secrets by where they are kept, or the reason for each that could not be had.
type Texts<K> = BTreeMap<K, Result<SecretValue, LookupError>>;

/// A look-up of secrets. Keeps the credentials of AWS from one look-up to the next.
#[derive(Debug, Default)]
pub struct Lookup {
    #[cfg(feature = "sqs")]
    manager: manager::Manager,
}

impl Lookup {
    /// Looks these references up. Makes one call for one secret, however many keys of it are wanted. The region of a call is
    /// that of the ARN; credentials, and an endpoint other than AWS's, are those of the AWS SDK's environment. Must run on a
    /// runtime with I/O and timers.
    pub async fn find(&self, wanted: &BTreeSet<SecretRef>) -> Found {
        let calls = Calls::of(wanted);
        let (files, managed) = tokio::join!(read_all(calls.files.clone()), self.ask(&calls));
        let value = |reference: &SecretRef| match reference {
            SecretRef::File(path) => files.get(path).cloned().unwrap_or_else(|| Err(LookupError::unanswered())),
            SecretRef::Managed(part) => {
                let text = managed.get(&part.secret).cloned().unwrap_or_else(|| Err(LookupError::unanswered()))?;
                value::part(text, part.json_key.as_deref())
            }
        };
        wanted.iter().map(|reference| (reference.clone(), value(reference))).collect()
    }

    #[cfg(feature = "sqs")]
    async fn ask(&self, calls: &Calls) -> Texts<ManagedSecret> {
        self.manager.ask(calls).await
    }

    #[cfg(not(feature = "sqs"))]
    async fn ask(&self, calls: &Calls) -> Texts<ManagedSecret> {
        let error = || LookupError::lasting("this build of hostler cannot call AWS", "keep the secret in a file");
        calls.secrets().map(|secret| (secret.clone(), Err(error()))).collect()
    }
}

/// Reads files on threads for blocking calls, each by itself: one that hangs keeps none of the others back.
async fn read_all(paths: Vec<PathBuf>) -> Texts<PathBuf> {
    let mut reading = JoinSet::new();
    for path in paths {
        reading.spawn(async move {
            let wanted = path.clone();
            let read = tokio::task::spawn_blocking(move || file::read(&wanted));
            let text = tokio::time::timeout(FILES, read).await;
            (path, text.ok().and_then(Result::ok).unwrap_or_else(|| Err(LookupError::hung(FILES))))
        });
    }
    let mut texts = Texts::new();
    while let Some(read) = reading.join_next().await {
        // A file whose task ended by a bug counts as unanswered.
        texts.extend(read.ok());
    }
    texts
}
