//! Replaces the health file atomically. Only the user that runs hostler can read the file. No symbolic link is
//! followed.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fs2::FileExt;

use super::{Report, lock};

/// Maximum time to wait for the lock before writing: half a [`super::TICK`]. A reader that hangs can therefore delay
/// the host, but cannot stop it.
pub const WRITE_LOCK_WAIT: Duration = Duration::from_secs(1);

/// Maximum number of attempts per write. Another process may remove the folder between two attempts.
const ATTEMPTS: u32 = 3;

/// The location of the health file. Opens no file before the first write, and keeps no file open between writes. The
/// folder may therefore be removed or replaced between two writes.
#[derive(Debug, Clone)]
pub struct HealthFile {
    path: PathBuf,
    lock: PathBuf,
    temp: PathBuf,
}

impl HealthFile {
    /// Returns the health file at `path`, with the lock file `<path>.lock` and the temporary file `<path>.tmp`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self { lock: lock::path_for(&path), temp: path.with_added_extension("tmp"), path }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the file with `report`. The file has mode 0600. Creates a missing folder with mode 0700. Waits up to
    /// [`WRITE_LOCK_WAIT`] for the lock, usually for microseconds. Does not sync the file to disk, because the file is
    /// stale after a crash of the machine in any case.
    ///
    /// # Errors
    /// [`WriteError::Locked`]: the next write may succeed. [`WriteError::Failed`]: an operator must act. Both errors leave
    /// the old file unchanged.
    pub fn write(&self, report: &Report) -> Result<(), WriteError> {
        let mut bytes =
            serde_json::to_vec(report).map_err(|error| failed("serialize the report for", &self.path)(error.into()))?;
        bytes.push(b'\n');
        for _ in 1..ATTEMPTS {
            match self.replace(&bytes) {
                Err(WriteError::Failed { cause, .. }) if cause.kind() == ErrorKind::NotFound => self.make_folder()?,
                outcome => return outcome,
            }
        }
        self.replace(&bytes)
    }

    fn replace(&self, bytes: &[u8]) -> Result<(), WriteError> {
        let _held = self.take_lock()?;
        let mut temp = self.create_temp().map_err(failed("create", &self.temp))?;
        if let Err(error) = temp.write_all(bytes) {
            // Frees the space of the incomplete file in case the disk is full. An error here is ignored, because the
            // error of the write is returned.
            let _ = fs::remove_file(&self.temp);
            return Err(failed("write", &self.temp)(error));
        }
        drop(temp);
        // A rename replaces a symbolic link at the target instead of following the link.
        fs::rename(&self.temp, &self.path).map_err(failed("replace", &self.path))
    }

    fn take_lock(&self) -> Result<File, WriteError> {
        let file = lock::no_follow()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&self.lock)
            .map_err(failed("open", &self.lock))?;
        // Names the trait explicitly, because `File` has inherent methods of the same names.
        match lock::acquire(&file, <File as FileExt>::try_lock_exclusive, WRITE_LOCK_WAIT) {
            Ok(true) => Ok(file),
            Ok(false) => Err(WriteError::Locked { path: self.lock.clone() }),
            Err(error) => Err(failed("lock", &self.lock)(error)),
        }
    }

    /// Creates the temporary file. Replaces an existing temporary file, which a crash must have left behind, because
    /// the caller holds the lock.
    fn create_temp(&self) -> io::Result<File> {
        let create = || lock::no_follow().write(true).create_new(true).mode(0o600).open(&self.temp);
        match create() {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                fs::remove_file(&self.temp)?;
                create()
            }
            outcome => outcome,
        }
    }

    fn make_folder(&self) -> Result<(), WriteError> {
        match self.path.parent() {
            Some(folder) if folder != Path::new("") => DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(folder)
                .map_err(failed("create the folder", folder)),
            _ => Ok(()),
        }
    }
}

/// The error for a failed write. The host reacts differently to each variant.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Another process held the lock for all of [`WRITE_LOCK_WAIT`]. The host logs the error and writes again at the next
    /// tick.
    #[error(
        "`{path}` was locked for {}s: find the process that holds it (`fuser {path}`) and end it",
        WRITE_LOCK_WAIT.as_secs(),
        path = path.display()
    )]
    Locked {
        /// Path of the lock file.
        path: PathBuf,
    },
    /// The file system refused the write. Writes keep failing until an operator follows the advice in the message.
    #[error("cannot {action} `{}`: {cause}; {cure}", path.display())]
    Failed {
        /// The action that failed, as a verb.
        action: &'static str,
        /// Path that the action applied to.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
        /// Advice for the operator.
        cure: &'static str,
    },
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> WriteError {
    move |cause| WriteError::Failed { action, path: path.to_owned(), cure: cure(&cause), cause }
}

fn cure(error: &io::Error) -> &'static str {
    match error.kind() {
        _ if lock::is_symlink(error) => "remove the symbolic link: none is followed here",
        ErrorKind::PermissionDenied => {
            "give the user that runs hostler write access to the folder, or set `host.health_file` to a path of its own"
        }
        ErrorKind::ReadOnlyFilesystem => "mount a writable tmpfs there, or set `host.health_file` to a writable path",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "free space on that file system",
        ErrorKind::NotADirectory | ErrorKind::IsADirectory | ErrorKind::DirectoryNotEmpty => {
            "remove what stands in the way, or set `host.health_file` to another path"
        }
        _ => "check the path in `host.health_file`",
    }
}
