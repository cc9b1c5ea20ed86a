//! The location of a handler's bytes: a file, or memory that contains fetched bytes.

use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::load_error::LoadError;

/// Maximum size of a handler in bytes.
pub const MAX_HANDLER: u64 = 256 * 1024 * 1024;

/// The source of a handler's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A file that the operator provides.
    File(PathBuf),
    /// Bytes that were fetched.
    Fetched(Fetched),
}

/// A fetched handler.
#[derive(Clone, PartialEq, Eq)]
pub struct Fetched {
    /// The reference from which the handler was fetched, for log and error messages.
    pub reference: Arc<str>,
    /// The handler's bytes.
    pub bytes: Bytes,
    /// Set if the operator pinned the bytes by a digest. Without a pin, compiled code is not trusted.
    pub pinned: bool,
}

impl fmt::Debug for Fetched {
    /// Prints everything except the bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reference, pinned, .. } = self;
        f.debug_struct("Fetched").field("reference", reference).field("pinned", pinned).finish_non_exhaustive()
    }
}

impl Source {
    /// Returns the last part of the source's path or reference.
    pub(super) fn name(&self) -> String {
        let text = self.to_string();
        text.rsplit('/').next().unwrap_or(&text).to_owned()
    }

    /// Returns `true` if compiled code in the source may run. The operator has vouched for the origin of a file by
    /// naming it, and for the origin of fetched bytes by pinning them.
    pub(super) fn is_trusted(&self) -> bool {
        match self {
            Self::File(_) => true,
            Self::Fetched(fetched) => fetched.pinned,
        }
    }
}

impl From<&Path> for Source {
    fn from(path: &Path) -> Self {
        Self::File(path.to_owned())
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Fetched(fetched) => f.write_str(&fetched.reference),
        }
    }
}

/// The contents of an open source, whose parts are read on demand.
pub(super) struct Contents {
    place: Place,
    length: u64,
}

enum Place {
    Memory(Bytes),
    File(File),
}

impl Contents {
    /// Opens a source.
    ///
    /// # Errors
    /// [`LoadError`] if the source cannot be read, is not a regular file, or is larger than [`MAX_HANDLER`].
    pub(super) fn open(source: &Source) -> Result<Self, LoadError> {
        let path = match source {
            Source::File(path) => path,
            Source::Fetched(fetched) => return Ok(fetched.bytes.clone().into()),
        };
        let (file, metadata) = open_now(path).map_err(|error| LoadError::unreadable(source, &error))?;
        if !metadata.is_file() {
            let what = "it is not a file: a handler is not read from a pipe or a device";
            return Err(LoadError::new(source, what, "write the handler to a file, and name that"));
        }
        let (length, most) = (metadata.len(), bytesize::ByteSize(MAX_HANDLER));
        if length > MAX_HANDLER {
            let what = format!("it has {}, and a handler may have {most}", bytesize::ByteSize(length));
            return Err(LoadError::new(source, what, "name a smaller handler; the file may be the wrong one"));
        }
        Ok(Self { place: Place::File(file), length })
    }

    /// Returns the length in bytes.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Reads a range of bytes. Fails if the range extends beyond the end of the source.
    pub(super) fn read(&self, range: Range<u64>) -> io::Result<Bytes> {
        let short = || io::Error::from(io::ErrorKind::UnexpectedEof);
        if range.end > self.length || range.start > range.end {
            return Err(short());
        }
        let at = |offset: u64| usize::try_from(offset).map_err(|_| short());
        match &self.place {
            Place::Memory(bytes) => Ok(bytes.slice(at(range.start)?..at(range.end)?)),
            Place::File(file) => {
                let mut bytes = vec![0; at(range.end - range.start)?];
                file.read_exact_at(&mut bytes, range.start)?;
                Ok(bytes.into())
            }
        }
    }

    /// Reads all bytes.
    pub(super) fn all(&self) -> io::Result<Bytes> {
        self.read(0..self.length)
    }
}

/// Opens a file without blocking. Opening a pipe would otherwise wait for a writer.
fn open_now(path: &Path) -> io::Result<(File, Metadata)> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let metadata = file.metadata()?;
    if metadata.is_dir() { Err(Errno::ISDIR.into()) } else { Ok((file, metadata)) }
}

impl From<Bytes> for Contents {
    fn from(bytes: Bytes) -> Self {
        Self { length: bytes.len() as u64, place: Place::Memory(bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(path: &Path) -> String {
        Contents::open(&path.into()).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn only_files_of_a_handler_s_size_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        // No process opens the pipe for writing, so opening the pipe must not wait for a writer.
        rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
        std::os::unix::fs::symlink(at("pipe"), at("link")).unwrap();
        for path in [at("pipe"), at("link"), "/dev/null".into()] {
            assert!(refusal(&path).contains("it is not a file"), "{path:?}: {}", refusal(&path));
        }
        let file = File::create(at("large")).unwrap();
        file.set_len(MAX_HANDLER).unwrap();
        assert_eq!(refusal(&at("large")), "");
        file.set_len(MAX_HANDLER + 1).unwrap();
        assert!(refusal(&at("large")).contains("may have 256"), "{}", refusal(&at("large")));
        assert!(refusal(folder.path()).contains("Is a directory") && refusal(&at("no")).contains("No such file"));
    }
}
