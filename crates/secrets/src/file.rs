//! Reads a secret from a file.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;

use super::error::LookupError;
use super::value::whole;
use hostler_types::secret::SecretValue;

/// Maximum size of a file in bytes (that of a secret in Secrets Manager).
const MAX: u64 = 64 << 10;

/// Reads a file of at most 64 KiB of UTF-8 text. One newline at its end is not part of the value. An empty file is refused,
/// because a file is empty for a moment while a program writes it anew.
pub(super) fn read(path: &Path) -> Result<SecretValue, LookupError> {
    let bytes = bytes(path)?;
    if bytes.len() as u64 > MAX {
        return Err(LookupError::lasting("the file is larger than 64 KiB", "name a file with the secret only"));
    }
    let Ok(text) = String::from_utf8(bytes) else {
        return Err(LookupError::lasting("the file is not UTF-8 text", "store the secret as text"));
    };
    match text.strip_suffix('\n').unwrap_or(&text) {
        "" => Err(LookupError::lasting("the file is empty", "write the secret into it, or rename a new file over it")),
        text => whole(text),
    }
}

fn bytes(path: &Path) -> Result<Vec<u8>, LookupError> {
    let mut bytes = Vec::new();
    let file = open(path).map_err(|error| failure(&error))?;
    file.take(MAX + 1).read_to_end(&mut bytes).map_err(|error| failure(&error))?;
    Ok(bytes)
}

/// Opens a regular file. Opening a pipe would wait for its writer, so the call does not block.
fn open(path: &Path) -> io::Result<File> {
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a regular file")) }
}

fn failure(error: &io::Error) -> LookupError {
    let cure = match error.kind() {
        ErrorKind::NotFound => "mount the secret there, or correct the path",
        ErrorKind::PermissionDenied => "let hostler's user read the file, and keep it in a folder of its own",
        _ => "name a file that hostler's user may read",
    };
    LookupError::lasting(error, cure)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn of(content: &[u8]) -> Result<String, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), content).unwrap();
        read(file.path()).map(|value| value.expose().to_owned()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_file_is_its_text_without_one_newline() {
        let longest = vec![b'x'; MAX as usize];
        for (content, expected) in [("a", "a"), ("a\n", "a"), ("a\n\n", "a\n"), (" ä\r\n", " ä\r")] {
            assert_eq!(of(content.as_bytes()).as_deref(), Ok(expected), "{content:?}");
        }
        assert_eq!(of(&longest).unwrap().len(), MAX as usize);
        for wrong in [&b""[..], b"\n", b"\xff", b"hunter\0two", &[longest, b"x".to_vec()].concat()] {
            assert!(!of(wrong).unwrap_err().contains("hunter"));
        }
    }

    #[test]
    fn only_a_regular_file_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        for (path, text) in
            [(pipe.as_path(), "regular"), (folder.path(), "regular"), (&folder.path().join("none"), "No such file")]
        {
            let error = read(path).unwrap_err();
            assert!(error.to_string().contains(text) && !error.is_passing(), "{error}");
        }
        let link = folder.path().join("link");
        fs::write(folder.path().join("real"), "a").unwrap();
        std::os::unix::fs::symlink("real", &link).unwrap();
        assert_eq!(read(&link).unwrap().expose(), "a");
    }
}
