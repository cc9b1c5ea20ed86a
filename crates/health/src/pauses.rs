//! Paused consumers: one file per paused consumer, named after the consumer, in a folder beside the health file.
//!
//! Only the existence of a file matters, so the files are empty. Anyone who can write to the folder can pause
//! consumers. hostler therefore trusts the folder only if this process's user or root owns the folder and no one else
//! may write to it. No symbolic link is followed.

use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};

use super::folder::{self, FolderError, failed};
use super::{lock, trust};

/// The paused consumers of a host, stored in the folder `<health file>.paused`. Creating this value does not access the
/// folder.
#[derive(Debug, Clone)]
pub struct Pauses {
    folder: PathBuf,
}

impl Pauses {
    /// Returns the paused consumers of the host that writes the given health file.
    pub fn beside(health_file: &Path) -> Self {
        Self { folder: health_file.with_added_extension("paused") }
    }

    /// Returns the path of the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns `true` if the consumer is paused.
    ///
    /// # Errors
    /// The folder cannot be trusted, or cannot be read.
    pub fn contains(&self, consumer: &str) -> Result<bool, FolderError> {
        if !folder::is_there(&self.folder)? {
            return Ok(false);
        }
        let path = self.folder.join(consumer);
        match fs::symlink_metadata(&path) {
            Ok(found) => Ok(found.is_file() && trust::is_ours(found.uid())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(failed("read", &path)(error)),
        }
    }

    /// Pauses a consumer. Returns `true` if the consumer was not paused before. The file has mode 0600 and the folder has
    /// mode 0700.
    ///
    /// # Errors
    /// The folder cannot be trusted, or cannot be written to.
    pub fn add(&self, consumer: &str) -> Result<bool, FolderError> {
        if let Some(parent) = self.folder.parent() {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(parent);
            made.map_err(failed("create the folder", parent))?;
        }
        let owner = folder::create(&self.folder)?;
        let path = self.folder.join(consumer);
        match lock::no_follow().write(true).create_new(true).mode(0o600).open(&path) {
            Ok(file) => {
                // The host ignores files that belong to another user.
                let given = owner.map_or(Ok(()), |(user, group)| fchown(file, Some(user), Some(group)));
                given.map_err(failed("hand over", &path))?;
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists && is_file(&path) => Ok(false),
            Err(error) => Err(failed("create", &path)(error)),
        }
    }

    /// Resumes a consumer. Returns `true` if the consumer was paused before.
    ///
    /// # Errors
    /// The folder cannot be trusted, or cannot be written to.
    pub fn remove(&self, consumer: &str) -> Result<bool, FolderError> {
        if fs::symlink_metadata(&self.folder).is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            return Ok(false);
        }
        folder::create(&self.folder)?;
        let path = self.folder.join(consumer);
        match fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(failed("remove", &path)(error)),
        }
    }
}

/// Returns `true` if `path` is a regular file. Does not follow a symbolic link.
fn is_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_file())
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn place() -> (tempfile::TempDir, Pauses) {
        let folder = tempfile::tempdir().unwrap();
        let pauses = Pauses::beside(&folder.path().join("run/health.json"));
        (folder, pauses)
    }

    #[test]
    fn a_consumer_pauses_from_the_first_time_to_the_last() {
        let (folder, pauses) = place();
        assert!(!pauses.contains("a").unwrap() && !pauses.remove("a").unwrap());
        assert!(pauses.add("a").unwrap() && !pauses.add("a").unwrap() && pauses.add("b").unwrap());
        let path = folder.path().join("run/health.json.paused");
        let mode = |path: &Path| fs::symlink_metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&path), mode(&path.join("a"))), (0o700, 0o600));
        assert!(pauses.contains("a").unwrap() && !pauses.contains("c").unwrap());
        assert!(pauses.remove("a").unwrap() && !pauses.remove("a").unwrap());
        assert!(!pauses.contains("a").unwrap() && pauses.contains("b").unwrap());
    }

    #[test]
    fn root_pauses_for_the_user_of_the_host() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let (folder, pauses) = place();
        let health_file = folder.path().join("run/health.json");
        fs::create_dir(folder.path().join("run")).unwrap();
        fs::write(&health_file, "{}").unwrap();
        std::os::unix::fs::chown(&health_file, Some(1000), Some(1000)).unwrap();
        assert!(pauses.add("a").unwrap() && !pauses.add("a").unwrap());
        for path in [pauses.folder().to_owned(), pauses.folder().join("a")] {
            assert_eq!(fs::symlink_metadata(&path).unwrap().uid(), 1000, "{}", path.display());
        }
        assert!(pauses.remove("a").unwrap() && !pauses.remove("a").unwrap());
    }

    #[test]
    fn root_changes_nothing_where_the_host_would_ignore_it() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let (folder, pauses) = place();
        let health_file = folder.path().join("run/health.json");
        let give = |path: &Path, user| std::os::unix::fs::chown(path, Some(user), Some(user)).unwrap();
        pauses.add("a").unwrap();
        give(pauses.folder(), 1000);
        assert!(pauses.add("b").unwrap(), "no health file says who the host is");
        fs::write(&health_file, "{}").unwrap();
        for host in [0, 1001] {
            give(&health_file, host);
            let told =
                format!("it belongs to user 1000, so the host, which runs as user {host}, ignores it; remove it");
            for changed in [pauses.add("c"), pauses.remove("a")] {
                let error = changed.unwrap_err().to_string();
                assert!(error.contains("health.json.paused") && error.contains(&told), "{error}");
            }
        }
        give(&health_file, 1000);
        assert!(pauses.add("c").unwrap() && pauses.remove("a").unwrap());
    }

    #[test]
    fn what_another_may_have_put_there_does_not_count() {
        let (folder, pauses) = place();
        pauses.add("a").unwrap();
        let path = folder.path().join("run/health.json.paused");
        symlink(path.join("a"), path.join("linked")).unwrap();
        assert!(!pauses.contains("linked").unwrap());
        assert!(pauses.add("linked").is_err(), "nor is it written through");
        fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
        let error = pauses.contains("a").unwrap_err().to_string();
        assert!(error.contains("health.json.paused") && error.contains("others may write to it"), "{error}");
        assert!(pauses.add("b").is_err() && pauses.remove("a").is_err());

        let elsewhere = folder.path().join("elsewhere");
        fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        fs::rename(&path, &elsewhere).unwrap();
        symlink(&elsewhere, &path).unwrap();
        assert!(pauses.contains("a").unwrap_err().to_string().contains("it is not a folder"));
    }
}
