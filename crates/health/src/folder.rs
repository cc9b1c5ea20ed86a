//! A folder beside the health file in which commands leave files for the host.

use std::fs::{self, DirBuilder, File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, fchown};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use super::{lock, trust};

/// The error for an action that failed on a folder beside the health file, or on a file in such a folder.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} `{}`: {cause}", path.display())]
pub struct FolderError {
    action: &'static str,
    path: PathBuf,
    cause: io::Error,
}

/// Returns a function that converts an I/O error to a [`FolderError`]. `action`: the action that failed, as a verb.
/// `path`: the folder or file on which the action failed.
pub(super) fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FolderError {
    move |cause| FolderError { action, path: path.to_owned(), cause }
}

/// Creates the folder for a command's files, with mode 0700, or checks that the existing folder can be trusted.
///
/// If this process runs as root, transfers root's folder to the owner of the health file, because the host runs as that
/// user, and refuses a folder that the host would ignore. If the folder then belongs to a user other than root, returns
/// this user and the group, which must also own new files in the folder. Otherwise, returns `None`.
///
/// # Errors
/// The folder cannot be created, handed over or trusted.
pub(super) fn create(folder: &Path) -> Result<Option<(u32, u32)>, FolderError> {
    create_as(folder, geteuid().is_root(), |folder, (user, group)| fchown(folder, Some(user), Some(group)))
}

/// Implements [`create`]. `chown` changes the owner of a folder. If root lacks the permission to change the owner of a
/// new folder, removes the folder again, because the host could never use it.
fn create_as(
    folder: &Path,
    is_root: bool,
    chown: impl Fn(&File, (u32, u32)) -> io::Result<()>,
) -> Result<Option<(u32, u32)>, FolderError> {
    let host = if is_root { host_owner(folder)? } else { None };
    let is_new = match DirBuilder::new().mode(0o700).create(folder) {
        Ok(()) => true,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => false,
        Err(error) => return Err(failed("create the folder", folder)(error)),
    };
    let mut found = metadata(folder)?;
    if let Some(host) = host.filter(|host| host.0 != 0 && found.is_dir() && (is_new || found.uid() == 0)) {
        // Follows no symbolic link. Otherwise, the owner of another folder could be changed.
        let opened = lock::no_follow().read(true).open(folder);
        if let Err(error) = opened.and_then(|opened| chown(&opened, host)) {
            if is_new {
                let _ = fs::remove_dir(folder);
            }
            let cure = format!("{error}; run this as the user of the host (in a container: docker exec -u {})", host.0);
            return Err(failed("hand over", folder)(io::Error::other(cure)));
        }
        found = metadata(folder)?;
    }
    let is_others = is_root && found.uid() != 0;
    // Root may use a folder of any user if no one but the owner can write to the folder, and if the host trusts the owner.
    let fault = if is_others && found.is_dir() && found.mode() & 0o022 == 0 {
        host.and_then(|(host, _)| ignored(found.uid(), host))
    } else {
        trust::fault(&found).map(str::to_owned)
    };
    match fault {
        Some(fault) => Err(failed("trust", folder)(io::Error::other(fault))),
        None => Ok(is_others.then_some((found.uid(), found.gid()))),
    }
}

/// Returns the reason why a host that runs as the user `host` ignores a folder of the user `owner`, who is not root. `None`: the
/// host trusts the folder.
fn ignored(owner: u32, host: u32) -> Option<String> {
    (owner != host).then(|| {
        format!(
            "it belongs to user {owner}, so the host, which runs as user {host}, ignores it; remove it and try again"
        )
    })
}

/// Returns `true` if the folder exists.
///
/// # Errors
/// The folder cannot be read, or another user may have created it or may write to it.
pub(super) fn is_there(folder: &Path) -> Result<bool, FolderError> {
    let found = match fs::symlink_metadata(folder) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(failed("read", folder)(error)),
    };
    trust::fault(&found).map_or(Ok(true), |fault| Err(failed("trust", folder)(io::Error::other(fault))))
}

fn metadata(folder: &Path) -> Result<Metadata, FolderError> {
    fs::symlink_metadata(folder).map_err(failed("read", folder))
}

/// Returns the owner (user and group) of the health file beside the folder. `None`: there is no health file.
fn host_owner(folder: &Path) -> Result<Option<(u32, u32)>, FolderError> {
    let health_file = folder.with_extension("");
    match fs::symlink_metadata(&health_file) {
        Ok(host) => Ok(Some((host.uid(), host.gid()))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("read", &health_file)(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::chown as chown_path;

    use super::*;

    #[test]
    fn a_folder_that_root_cannot_hand_over_does_not_stay() {
        let place = tempfile::tempdir().unwrap();
        let (health_file, folder) = (place.path().join("health.json"), place.path().join("health.json.requests"));
        fs::write(&health_file, "{}").unwrap();
        if geteuid().is_root() {
            chown_path(&health_file, Some(1000), Some(1000)).unwrap();
        }
        let user = fs::symlink_metadata(&health_file).unwrap().uid();
        let refused = |_: &File, _| Err(ErrorKind::PermissionDenied.into());
        let error = create_as(&folder, true, refused).unwrap_err();
        assert!(error.cause.to_string().contains(&format!("docker exec -u {user}")), "{error:?}");
        assert!(!folder.exists(), "the host could not use it");
        let accepted = |_: &File, owner: (u32, u32)| {
            assert_eq!(owner.0, user);
            Ok(())
        };
        assert!(create_as(&folder, true, accepted).is_ok());
        if geteuid().is_root() {
            assert!(create_as(&folder, true, refused).is_err(), "a folder of root from before");
            assert_eq!(create(&folder).unwrap(), Some((1000, 1000)), "it is handed over now");
        }
    }
}
