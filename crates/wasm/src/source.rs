//! The location of a handler's bytes: a file, or memory if they came from elsewhere.

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

/// The largest handler, in bytes.
pub const MAX_HANDLER: u64 = 256 * 1024 * 1024;

/// A handler to load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A file of the operator's own.
    File(PathBuf),
    /// Bytes that were fetched.
    Fetched(Fetched),
}

/// A handler from elsewhere.
#[derive(Clone, PartialEq, Eq)]
pub struct Fetched {
    /// Its origin, for people.
    pub reference: Arc<str>,
    /// All of its bytes.
    pub bytes: Bytes,
    /// Set if the operator pinned the bytes by a digest. Only then is compiled code trusted.
    pub pinned: bool,
}

impl fmt::Debug for Fetched {
    /// Shows everything but the bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reference, pinned, .. } = self;
        f.debug_struct("Fetched").field("reference", reference).field("pinned", pinned).finish_non_exhaustive()
    }
}

impl Source {
    /// Returns `true` if its compiled code may run: the operator vouches for a file, and for pinned bytes.
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

/// An open source. Parts are read on demand.
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
    /// [`LoadError`] for a source that cannot be read, is not a file, or is larger than a handler may be.
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

    /// Returns the number of bytes.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Reads a part. Fails if the source is shorter.
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

    /// Reads everything.
    pub(super) fn all(&self) -> io::Result<Bytes> {
        self.read(0..self.length)
    }
}

/// Opens a file. A pipe is opened too, without waiting for a writer.
fn open_now(path: &Path) -> io::Result<(File, Metadata)> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let metadata = file.metadata()?;
    match metadata.is_dir() {
        true => Err(Errno::ISDIR.into()),
        false => Ok((file, metadata)),
    }
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
        // Nobody writes to it, so waiting for a writer would never end.
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
