//! Where a handler's bytes are: in a file, or in memory when they came from elsewhere.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

/// A handler as something to load.
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
    /// Where it came from, for people.
    pub reference: Arc<str>,
    /// All of it.
    pub bytes: Bytes,
    /// Whether the operator said by digest what the bytes are. Compiled code is believed only then.
    pub pinned: bool,
}

impl fmt::Debug for Fetched {
    /// All but the bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reference, pinned, .. } = self;
        f.debug_struct("Fetched").field("reference", reference).field("pinned", pinned).finish_non_exhaustive()
    }
}

impl Source {
    /// Whether its compiled code may be run: the operator vouches for a file, and for what is pinned.
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

/// An open source, of which any part can be read: what is not needed is not read.
pub(super) struct Contents {
    place: Place,
    length: u64,
}

enum Place {
    Memory(Bytes),
    File(File),
}

impl Contents {
    pub(super) fn open(source: &Source) -> io::Result<Self> {
        let path = match source {
            Source::File(path) => path,
            Source::Fetched(fetched) => return Ok(fetched.bytes.clone().into()),
        };
        let mut file = File::open(path)?;
        let metadata = file.metadata()?;
        if metadata.is_file() {
            return Ok(Self { place: Place::File(file), length: metadata.len() });
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(Bytes::from(bytes).into())
    }

    /// How many bytes there are.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// A part of it; an error if there is less.
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

    /// All of it.
    pub(super) fn all(&self) -> io::Result<Bytes> {
        self.read(0..self.length)
    }
}

impl From<Bytes> for Contents {
    fn from(bytes: Bytes) -> Self {
        Self { length: bytes.len() as u64, place: Place::Memory(bytes) }
    }
}
