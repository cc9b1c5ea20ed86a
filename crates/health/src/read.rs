//! Reads the health file under a shared lock, with limits on time and size. Creates nothing.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fs2::FileExt;
use serde::Deserialize;

use super::{Report, SCHEMA, lock};

/// The longest that a reader waits for the lock. The HEALTHCHECK's own timeout (6 s) must be longer, or it hides the reason.
pub const LOCK_WAIT: Duration = Duration::from_secs(5);

/// The largest file that is read, in bytes: about 10,000 consumers, far more than one host runs.
pub const MAX_BYTES: u64 = 4 * 1024 * 1024;

/// Reads the report at `path`. Blocks for up to [`LOCK_WAIT`].
///
/// # Errors
/// [`ReadError`]: there is no readable report.
pub fn read(path: &Path) -> Result<Report, ReadError> {
    let bytes = read_locked(path)?;
    parse(&bytes).map_err(|why| ReadError::Unreadable { path: path.to_owned(), why })
}

/// An error in reading the report; the variants differ in the verdict that they lead to.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// There is no file yet: the host may still be starting.
    #[error("there is no health file at `{}`", path.display())]
    Missing {
        /// The path that was read.
        path: PathBuf,
    },
    /// Another process held the lock for all of [`LOCK_WAIT`]; the host needs it for microseconds.
    #[error("`{}` was locked for {}s", path.display(), LOCK_WAIT.as_secs())]
    Locked {
        /// The lock's path.
        path: PathBuf,
    },
    /// The file, or its lock, cannot be read as a report.
    #[error("cannot read `{}`: {why}", path.display())]
    Unreadable {
        /// The file, or its lock.
        path: PathBuf,
        /// The reason.
        why: Why,
    },
}

/// A reason why a health file is unreadable.
#[derive(Debug, thiserror::Error)]
pub enum Why {
    /// It is a symbolic link.
    #[error("it is a symbolic link, and none is followed here")]
    Symlink,
    /// It is a folder, a pipe or the like.
    #[error("it is not a regular file")]
    NotAFile,
    /// It has more than [`MAX_BYTES`].
    #[error("it has more than {MAX_BYTES} bytes")]
    Oversize,
    /// Another version of hostler wrote it.
    #[error("its schema is {found}, this hostler reads {SCHEMA}")]
    Schema {
        /// The number in the file.
        found: u64,
    },
    /// It is not a complete report in JSON.
    #[error("it is torn or not a health file ({0})")]
    Json(serde_json::Error),
    /// This user may not read it.
    #[error("{0}; run the check as the user that runs hostler")]
    Permission(io::Error),
    /// The system reports another error.
    #[error("{0}")]
    Io(io::Error),
}

/// Returns the file's bytes. Releases the lock before they are parsed, so that the host never waits for a parser.
fn read_locked(path: &Path) -> Result<Vec<u8>, ReadError> {
    let _held = take_lock(&lock::path_for(path))?;
    let Some(file) = open(path)? else { return Err(ReadError::Missing { path: path.to_owned() }) };
    let unreadable = |why| ReadError::Unreadable { path: path.to_owned(), why };
    if !file.metadata().map_err(|error| unreadable(Why::Io(error)))?.is_file() {
        return Err(unreadable(Why::NotAFile));
    }
    let mut bytes = Vec::new();
    // One byte beyond the limit proves that the file is too large. Its metadata would not: the size may change meanwhile.
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|error| unreadable(Why::Io(error)))?;
    if bytes.len() as u64 > MAX_BYTES { Err(unreadable(Why::Oversize)) } else { Ok(bytes) }
}

/// Returns the held lock; `None` if there is no lock file, because then there is no writer either.
fn take_lock(path: &Path) -> Result<Option<File>, ReadError> {
    let Some(file) = open(path)? else { return Ok(None) };
    match lock::acquire(&file, <File as FileExt>::try_lock_shared, LOCK_WAIT) {
        Ok(true) => Ok(Some(file)),
        Ok(false) => Err(ReadError::Locked { path: path.to_owned() }),
        Err(error) => Err(ReadError::Unreadable { path: path.to_owned(), why: Why::Io(error) }),
    }
}

/// Opens a file without following a symbolic link; `None` if there is none.
fn open(path: &Path) -> Result<Option<File>, ReadError> {
    let why = match lock::no_follow().read(true).open(path) {
        Ok(file) => return Ok(Some(file)),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) if lock::is_symlink(&error) => Why::Symlink,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Why::Permission(error),
        Err(error) => Why::Io(error),
    };
    Err(ReadError::Unreadable { path: path.to_owned(), why })
}

/// Checks the schema's number before the rest, because the fields of another schema may differ.
fn parse(bytes: &[u8]) -> Result<Report, Why> {
    #[derive(Deserialize)]
    struct Version {
        schema: u64,
    }
    let Version { schema } = serde_json::from_slice(bytes).map_err(Why::Json)?;
    if schema != SCHEMA {
        return Err(Why::Schema { found: schema });
    }
    serde_json::from_slice(bytes).map_err(Why::Json)
}
