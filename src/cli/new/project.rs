//! Writes all files of a project, or none.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

/// A file of a project.
#[derive(Debug)]
pub(super) struct Content {
    /// Path relative to the project folder.
    pub(super) path: String,
    /// Content of the file.
    pub(super) text: String,
}

/// Reason why a project could not be created.
#[derive(Debug, thiserror::Error)]
pub(super) enum CreateError {
    /// The path exists and is not an empty folder. Nothing was written.
    #[error("{} exists and is not an empty folder", .0.display())]
    Occupied(PathBuf),
    /// A file could not be written. Everything written before was removed.
    #[error("cannot write {}: {error}; nothing was left behind", .path.display())]
    Unwritable {
        /// File or folder that could not be written.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
    /// A file could not be written. The attempt to remove everything written before failed too.
    #[error("cannot write {}: {error}; {} could not be removed", .path.display(), .left.display())]
    Left {
        /// File or folder that could not be written.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
        /// Path that could not be removed.
        left: PathBuf,
    },
}

impl CreateError {
    /// Returns advice for the user.
    pub(super) fn cure(&self) -> String {
        match self {
            Self::Occupied(folder) => format!("choose another name, or move {} away", folder.display()),
            Self::Unwritable { .. } => "run it where you may write, and where there is room".to_owned(),
            Self::Left { left, .. } => format!("remove {}, and run it where you may write", left.display()),
        }
    }
}

/// Creates the project folder and its files. An existing folder must be empty.
///
/// # Errors
/// [`CreateError`]. On an error, removes everything written before, except with [`CreateError::Left`].
pub(super) fn create(folder: &Path, files: &[Content]) -> Result<(), CreateError> {
    let mut made = Made::default();
    let written = made.folder(folder).and_then(|()| files.iter().try_for_each(|file| made.file(folder, file)));
    let Err(CreateError::Unwritable { path, error }) = written else { return written };
    match made.remove() {
        Ok(()) => Err(CreateError::Unwritable { path, error }),
        Err(left) => Err(CreateError::Left { path, error, left }),
    }
}

/// Created files and folders, in order of creation.
#[derive(Default)]
struct Made {
    entries: Vec<Entry>,
}

enum Entry {
    Folder(PathBuf),
    File(PathBuf),
}

impl Made {
    /// Creates the project folder.
    fn folder(&mut self, folder: &Path) -> Result<(), CreateError> {
        match self.new_folder(folder) {
            Err(CreateError::Unwritable { error, .. }) if error.kind() == ErrorKind::AlreadyExists => {
                let empty = fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none());
                if empty { Ok(()) } else { Err(CreateError::Occupied(folder.to_owned())) }
            }
            result => result,
        }
    }

    fn new_folder(&mut self, folder: &Path) -> Result<(), CreateError> {
        fs::create_dir(folder).map_err(unwritable(folder))?;
        self.entries.push(Entry::Folder(folder.to_owned()));
        Ok(())
    }

    fn file(&mut self, root: &Path, content: &Content) -> Result<(), CreateError> {
        let path = root.join(&content.path);
        let above: Vec<_> = path.ancestors().skip(1).take_while(|folder| *folder != root).collect();
        for folder in above.into_iter().rev() {
            if !folder.is_dir() {
                self.new_folder(folder)?;
            }
        }
        let mut file = File::create_new(&path).map_err(unwritable(&path))?;
        self.entries.push(Entry::File(path.clone()));
        file.write_all(content.text.as_bytes()).map_err(unwritable(&path))
    }

    /// Removes everything that was created. On an error, returns the path that could not be removed.
    fn remove(self) -> Result<(), PathBuf> {
        for entry in self.entries.into_iter().rev() {
            let (removed, path) = match entry {
                Entry::Folder(path) => (fs::remove_dir(&path), path),
                Entry::File(path) => (fs::remove_file(&path), path),
            };
            removed.map_err(|_| path)?;
        }
        Ok(())
    }
}

fn unwritable(path: &Path) -> impl FnOnce(io::Error) -> CreateError {
    let path = path.to_owned();
    move |error| CreateError::Unwritable { path, error }
}
