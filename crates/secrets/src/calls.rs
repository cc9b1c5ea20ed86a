//! Decides which files to read and which calls of Secrets Manager to make. Performs no I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use hostler_types::secret::{ManagedSecret, SecretRef};

/// Maximum number of secrets in one call (AWS: SecretIdList of BatchGetSecretValue).
const BATCH: usize = 20;

/// Files to read and calls to make.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Calls {
    /// Files, each once.
    pub(super) files: Vec<PathBuf>,
    /// Calls of BatchGetSecretValue: current versions, each secret once, up to 20 of one region.
    pub(super) batches: Vec<Vec<ManagedSecret>>,
    /// Calls of GetSecretValue: versions with a stage or an id, each once.
    pub(super) singles: Vec<ManagedSecret>,
}

impl Calls {
    /// Returns the calls that find all these references.
    pub(super) fn of(wanted: &BTreeSet<SecretRef>) -> Self {
        let files = wanted.iter().filter_map(|reference| Some(reference.file()?.to_owned())).collect();
        let secrets: BTreeSet<_> = wanted.iter().filter_map(SecretRef::managed).collect();
        let (current, singles): (Vec<_>, Vec<_>) = secrets.into_iter().partition(|secret| secret.is_current());
        let mut regions = BTreeMap::<&str, Vec<ManagedSecret>>::new();
        for secret in current {
            regions.entry(secret.region()).or_default().push(secret.clone());
        }
        let batches = regions.values().flat_map(|secrets| secrets.chunks(BATCH).map(<[_]>::to_vec)).collect();
        Self { files, batches, singles: singles.into_iter().cloned().collect() }
    }

    /// Returns all secrets that the calls ask for.
    #[cfg(any(test, not(feature = "sqs")))]
    pub(super) fn secrets(&self) -> impl Iterator<Item = &ManagedSecret> {
        self.batches.iter().flatten().chain(&self.singles)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arn(region: &str, name: usize) -> String {
        format!("arn:aws:secretsmanager:{region}:123456789012:secret:s{name}-AbC123")
    }

    fn calls(wanted: &[String]) -> Calls {
        Calls::of(&wanted.iter().map(|text| text.parse().unwrap()).collect())
    }

    #[test]
    fn one_secret_is_asked_for_once_whatever_its_keys() {
        let one = arn("eu-west-1", 1);
        let wanted =
            [format!("{one}:user::"), format!("{one}:password::"), one.clone(), format!("{one}:a:AWSPREVIOUS:")];
        let found = calls(&wanted);
        assert_eq!((found.batches.len(), found.batches[0].len(), found.singles.len()), (1, 1, 1));
        assert_eq!(found.singles[0].stage.as_deref(), Some("AWSPREVIOUS"));
        assert_eq!(found.secrets().count(), 2);
    }

    #[test]
    fn a_batch_has_twenty_secrets_of_one_region() {
        let mut wanted: Vec<_> = (0..45).map(|name| arn("eu-west-1", name)).collect();
        wanted.push(arn("us-east-1", 0));
        let found = calls(&wanted);
        assert_eq!(found.batches.iter().map(Vec::len).collect::<Vec<_>>(), [20, 20, 5, 1]);
        assert!(found.batches.iter().all(|batch| batch.iter().all(|secret| secret.region() == batch[0].region())));
    }

    #[test]
    fn files_are_read_and_nothing_is_called() {
        let found = calls(&["file:/b".to_owned(), "file:/a".to_owned(), "file:/a".to_owned()]);
        assert_eq!(found, Calls { files: vec!["/a".into(), "/b".into()], ..Calls::default() });
    }
}
