//! The files of requests and answers. Their names are `<pid>-<nanoseconds>.request` and `<pid>-<nanoseconds>.answer`.
//! While a file is being written, its name has the additional extension `.draft`. A file with any other name is
//! foreign.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Extension of a complete request file.
pub(super) const REQUEST: &str = "request";
/// Extension of a complete answer file.
pub(super) const ANSWER: &str = "answer";
/// Extension that is added to the name of a file while the file is being written.
pub(super) const DRAFT: &str = "draft";

/// A file with a name in hostler's format. Orders by the time in the name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RequestFile {
    /// Time at which the command made the request, in nanoseconds since the epoch.
    pub(super) at: u64,
    pub(super) path: PathBuf,
}

impl RequestFile {
    /// Returns the path of a new request of this process, with the current time in its name. Does not create the file.
    pub(super) fn new(folder: &Path) -> Self {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let at = u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX);
        Self { at, path: folder.join(format!("{}-{at}.{REQUEST}", std::process::id())) }
    }

    /// Parses the name of a file. `None`: the file is foreign.
    fn parse(path: PathBuf) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let (stem, extension) = name.strip_suffix(".draft").unwrap_or(name).split_once('.')?;
        let (pid, at) = stem.split_once('-')?;
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if ![REQUEST, ANSWER].contains(&extension) || !is_number(pid) || !is_number(at) {
            return None;
        }
        pid.parse::<u32>().ok()?;
        Some(Self { at: at.parse().ok()?, path })
    }

    /// Returns `true` for a complete request.
    pub(super) fn is_request(&self) -> bool {
        self.path.extension().is_some_and(|extension| extension == REQUEST)
    }
}

/// Returns the files of requests and answers in the folder, the oldest first. Examines only the names of files, so a
/// foreign file is never opened.
///
/// # Errors
/// The folder cannot be read.
pub(super) fn list(folder: &Path) -> io::Result<Vec<RequestFile>> {
    let entries = fs::read_dir(folder)?.flatten();
    let mut files: Vec<_> = entries.filter_map(|entry| RequestFile::parse(entry.path())).collect();
    files.sort_unstable();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_in_the_format_of_a_request_are_recognised() {
        let folder = Path::new("f");
        let new = RequestFile::new(folder);
        assert_eq!(RequestFile::parse(new.path.clone()), Some(new.clone()));
        assert!(new.is_request());
        for (name, at, is_request) in
            [("7-12.request", 12, true), ("7-12.request.draft", 12, false), ("7-13.answer", 13, false)]
        {
            let file = RequestFile::parse(folder.join(name)).unwrap();
            assert_eq!((file.at, file.is_request()), (at, is_request), "{name}");
        }
        for foreign in [
            "7.request",
            "7-.request",
            "-7.request",
            "+7-1.request",
            "7-+1.request",
            "7-1.request.tmp",
            "7-1.draft",
            "7-1",
            "notes.txt",
            ".request",
            "4294967296-1.request",
            "7-18446744073709551616.request",
        ] {
            assert_eq!(RequestFile::parse(folder.join(foreign)), None, "{foreign}");
        }
    }
}
