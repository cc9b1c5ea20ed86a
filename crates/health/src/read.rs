//! Reads the health file under a shared lock, with limits on time and size. Creates no files.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fs2::FileExt;
use serde::Deserialize;

use super::{Report, SCHEMA, lock};

/// Maximum time to wait for the lock before reading. The timeout of the container's HEALTHCHECK (6 s) must be longer.
/// Otherwise, the health check would be killed before it reports the reason.
pub const LOCK_WAIT: Duration = Duration::from_secs(5);

/// Maximum size of a health file in bytes: enough for about 10,000 consumers, far more than one host runs.
pub const MAX_BYTES: u64 = 4 * 1024 * 1024;

/// Reads the report at `path`. Blocks for up to [`LOCK_WAIT`].
///
/// # Errors
/// [`ReadError`] if there is no readable report.
pub fn read(path: &Path) -> Result<Report, ReadError> {
    let bytes = read_locked(path)?;
    parse(&bytes).map_err(|why| ReadError::Unreadable { path: path.to_owned(), why })
}

/// The error for a report that cannot be read. Each variant leads to a different verdict.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// There is no health file. The host may still be starting.
    #[error("there is no health file at `{}`: start `hostler run`, or name the file of a running host by --file", path.display())]
    Missing {
        /// Path of the health file.
        path: PathBuf,
    },
    /// Another process held the lock for all of [`LOCK_WAIT`]. The host itself holds the lock only for microseconds.
    #[error("`{}` was locked for {}s", path.display(), LOCK_WAIT.as_secs())]
    Locked {
        /// Path of the lock file.
        path: PathBuf,
    },
    /// The file or its lock file cannot be read, or does not contain a report.
    #[error("cannot read `{}`: {why}", path.display())]
    Unreadable {
        /// Path of the health file or of the lock file.
        path: PathBuf,
        /// The reason.
        why: Why,
    },
}

/// The reason why a health file is unreadable.
#[derive(Debug, thiserror::Error)]
pub enum Why {
    /// The path is a symbolic link.
    #[error("it is a symbolic link, and none is followed here")]
    Symlink,
    /// The path is not a regular file, for example a folder or a pipe.
    #[error("it is not a regular file; name the health file of `hostler run`")]
    NotAFile,
    /// The file is larger than [`MAX_BYTES`].
    #[error("it has more than {MAX_BYTES} bytes")]
    Oversize,
    /// Another version of hostler wrote the file.
    #[error("its schema is {found}, this hostler reads {SCHEMA}")]
    Schema {
        /// Schema number in the file.
        found: u64,
    },
    /// The file is not a complete report in JSON.
    #[error("it is torn or not a health file ({0}); a running host replaces it within seconds, else correct its path")]
    Json(serde_json::Error),
    /// The user that runs this process lacks the permission to read the file.
    #[error("{0}; run the check as the user that runs hostler")]
    Permission(io::Error),
    /// The system reported another error.
    #[error("{0}")]
    Io(io::Error),
}

/// Returns the file's bytes and releases the lock. The caller parses the bytes without the lock, so the host never
/// waits for a parser.
fn read_locked(path: &Path) -> Result<Vec<u8>, ReadError> {
    let _held = take_lock(&lock::path_for(path))?;
    let Some(file) = open(path)? else { return Err(ReadError::Missing { path: path.to_owned() }) };
    let unreadable = |why| ReadError::Unreadable { path: path.to_owned(), why };
    if !file.metadata().map_err(|error| unreadable(Why::Io(error)))?.is_file() {
        return Err(unreadable(Why::NotAFile));
    }
    let mut bytes = Vec::new();
    // Reads one byte more than the limit to detect a file that is too large. The size in the metadata is not reliable,
    // because the file may have changed.
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|error| unreadable(Why::Io(error)))?;
    if bytes.len() as u64 > MAX_BYTES { Err(unreadable(Why::Oversize)) } else { Ok(bytes) }
}

/// Acquires the shared lock and returns the lock file. `None`: there is no lock file, so no host is writing.
fn take_lock(path: &Path) -> Result<Option<File>, ReadError> {
    let Some(file) = open(path)? else { return Ok(None) };
    match lock::acquire(&file, <File as FileExt>::try_lock_shared, LOCK_WAIT) {
        Ok(true) => Ok(Some(file)),
        Ok(false) => Err(ReadError::Locked { path: path.to_owned() }),
        Err(error) => Err(ReadError::Unreadable { path: path.to_owned(), why: Why::Io(error) }),
    }
}

/// Opens a file without following a symbolic link. `None`: there is no file.
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

/// Parses a report. Checks the schema number first, because another schema may have other fields.
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
