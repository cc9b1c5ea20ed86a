//! The folder `host.cache_dir`: fetched and compiled handlers, stored for the next start of hostler.
//!
//! hostler runs cached code without further checks, so anyone who can write to the folder can run code as hostler.
//! hostler therefore does not use a folder that another user owns or may write to. It opens the folder only once, so a
//! folder that later takes its place at the same path is not used. A failure of the cache is never fatal: a handler
//! that is not in the cache is fetched or compiled again.

use std::fs::{DirBuilder, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use rustix::fs::{fstat, futimens, open, openat, renameat, statat, unlinkat};
use rustix::process::geteuid;

use hostler_types::digest::{hex, sha256};

/// Maximum total size of all entries in bytes. If a new entry would exceed this size, the least recently used entries
/// are removed until all entries fit.
const LIMIT: u64 = 1 << 30;

/// Prefixes of entry names. Files in the folder whose names have none of these prefixes are never removed.
const KINDS: [&str; 4] = ["code-", "etag-", "sha256-", TEMPORARY];

/// Prefix of the names of entries that are still being written.
const TEMPORARY: &str = "tmp-";

/// Age in seconds after which an unfinished entry is removed. The process that was writing it must have crashed,
/// because writing an entry takes far less time.
const ABANDONED: i64 = 3600;

/// An open cache folder.
#[derive(Debug)]
pub struct Cache {
    folder: OwnedFd,
    path: PathBuf,
    limit: u64,
}

impl Cache {
    /// Opens the folder at `path`. Creates a missing folder with mode 0700. Returns `None` and logs the reason if the
    /// folder cannot be opened or is not safe to use.
    pub fn open(path: &Path) -> Option<Arc<Self>> {
        match Self::with_limit(path, LIMIT) {
            Ok(cache) => Some(Arc::new(cache)),
            Err(reason) => {
                let cure = "name a folder of hostler's own user, mode 0700";
                tracing::warn!(folder = %path.display(), reason, cure, "host.cache_dir is not used");
                None
            }
        }
    }

    fn with_limit(path: &Path, limit: u64) -> Result<Self, String> {
        let text = |error: io::Error| error.to_string();
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(text)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = open(path, flags, Mode::empty()).map_err(|error| text(error.into()))?;
        let stat = fstat(&folder).map_err(|error| text(error.into()))?;
        ours(&stat)?;
        Ok(Self { folder, path: path.to_owned(), limit })
    }

    /// Returns the cached bytes with this SHA-256. Discards the entry if its content does not match.
    pub(super) fn blob(&self, digest: &[u8; 32]) -> Option<Bytes> {
        let name = blob_name(digest);
        let bytes = self.get(&name)?;
        if sha256(&bytes) == *digest {
            return Some(bytes.into());
        }
        self.discard(&name, "its digest does not fit");
        None
    }

    /// Stores bytes under their SHA-256.
    #[cfg(any(feature = "sqs", feature = "oci", test))]
    pub(super) fn put_blob(&self, digest: &[u8; 32], bytes: &[u8]) {
        self.put(&blob_name(digest), bytes);
    }

    /// Returns the content of an entry. `None`: there is no usable entry of this name. The caller must verify the
    /// content.
    pub(super) fn get(&self, name: &str) -> Option<Vec<u8>> {
        match self.read(name) {
            Ok(bytes) => bytes,
            Err(why) => {
                self.discard(name, &why);
                None
            }
        }
    }

    fn read(&self, name: &str) -> Result<Option<Vec<u8>>, String> {
        // Without NONBLOCK, opening a pipe in place of an entry would block forever.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&self.folder, name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        let stat = fstat(&file).map_err(|error| error.to_string())?;
        ours(&stat)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err("it is not a regular file".into());
        }
        // Anyone who may write to the same file through a hard link in another folder can change the entry. Backup
        // tools may create hard links.
        if stat.st_nlink > 1 {
            return Err("it has another name elsewhere, a hard link".into());
        }
        // Marks the entry as recently used. The least recently used entries are removed first.
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let untouched = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let _ = futimens(&file, &Timestamps { last_access: untouched, last_modification: now });
        let mut bytes = Vec::new();
        File::from(file).take(self.limit).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        Ok(Some(bytes))
    }

    /// Stores an entry, replacing any entry of the same name. Then removes the least recently used entries until the
    /// remaining entries fit the size limit. Does nothing if the new entry alone exceeds the size limit.
    pub(super) fn put(&self, name: &str, bytes: &[u8]) {
        if bytes.len() as u64 > self.limit {
            return;
        }
        let temporary = format!("{TEMPORARY}{}-{:016x}", std::process::id(), fastrand::u64(..));
        let written = self.write(&temporary, bytes).and_then(|()| {
            renameat(&self.folder, &*temporary, &self.folder, name)?;
            Ok(())
        });
        if let Err(error) = written {
            let _ = unlinkat(&self.folder, &*temporary, AtFlags::empty());
            tracing::warn!(folder = %self.path.display(), entry = name, %error, "not kept in the cache");
            return;
        }
        if let Err(error) = self.make_room(name) {
            tracing::warn!(folder = %self.path.display(), %error, "cannot make room in the cache");
        }
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&self.folder, name, flags, Mode::RUSR | Mode::WUSR)?;
        File::from(file).write_all(bytes)
    }

    /// Removes an entry that cannot be used, and logs the reason.
    pub(super) fn discard(&self, name: &str, reason: &str) {
        tracing::warn!(folder = %self.path.display(), entry = name, reason, "replacing an unusable cache entry");
        if unlinkat(&self.folder, name, AtFlags::empty()).is_err() {
            let _ = unlinkat(&self.folder, name, AtFlags::REMOVEDIR);
        }
    }

    /// Removes the least recently used entries until the remaining entries fit the size limit. Never removes the entry
    /// `keep`.
    fn make_room(&self, keep: &str) -> io::Result<()> {
        let mut entries = Vec::new();
        for entry in Dir::read_from(&self.folder)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name == keep || !KINDS.iter().any(|kind| name.starts_with(kind)) {
                continue;
            }
            if let Ok(stat) = statat(&self.folder, &*name, AtFlags::SYMLINK_NOFOLLOW) {
                let size = u64::try_from(stat.st_size).unwrap_or_default();
                entries.push(Entry { used: stat.st_mtime, size, name });
            }
        }
        let kept = statat(&self.folder, keep, AtFlags::SYMLINK_NOFOLLOW)?;
        let size = u64::try_from(kept.st_size).unwrap_or_default();
        let mut failed = Ok(());
        for name in surplus(entries, self.limit.saturating_sub(size), kept.st_mtime) {
            match unlinkat(&self.folder, &*name, AtFlags::empty()) {
                // Another process that shares the folder may have removed the entry.
                Ok(()) | Err(rustix::io::Errno::NOENT) => {}
                Err(error) => failed = Err(error.into()),
            }
        }
        failed
    }
}

/// Properties of an entry that determine whether it is removed.
struct Entry {
    /// Time of the last use, in seconds since the Unix epoch.
    used: i64,
    /// Size in bytes.
    size: u64,
    name: String,
}

/// Returns the names of the entries to remove: unfinished entries that a crash left behind, and the least recently used
/// entries beyond the size limit. `now`: current time in seconds since the Unix epoch.
fn surplus(mut entries: Vec<Entry>, limit: u64, now: i64) -> Vec<String> {
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.used));
    let mut total = 0u64;
    let mut goes = |entry: &Entry| {
        if entry.name.starts_with(TEMPORARY) {
            return now - entry.used > ABANDONED;
        }
        total = total.saturating_add(entry.size);
        total > limit
    };
    entries.into_iter().filter(|entry| goes(entry)).map(|entry| entry.name).collect()
}

fn blob_name(digest: &[u8; 32]) -> String {
    format!("sha256-{}", hex(digest))
}

/// Checks that a file or folder belongs to the user that runs hostler, and that no other user may write to it. `stat`:
/// status of the file or folder.
fn ours(stat: &Stat) -> Result<(), String> {
    match () {
        () if stat.st_uid != geteuid().as_raw() => {
            Err(format!("it belongs to user {}, and not to hostler's own, {}", stat.st_uid, geteuid().as_raw()))
        }
        () if stat.st_mode & 0o022 != 0 => {
            Err(format!("others may write to it: its mode is {:o}", stat.st_mode & 0o7777))
        }
        () => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    use tempfile::TempDir;

    use super::*;

    fn opened(limit: u64) -> (TempDir, PathBuf, Cache) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/cache");
        let cache = Cache::with_limit(&path, limit).unwrap();
        (folder, path, cache)
    }

    fn digest(bytes: &[u8]) -> [u8; 32] {
        sha256(bytes)
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn an_entry_with_another_name_is_not_trusted() {
        let (_root, folder, cache) = opened(LIMIT);
        cache.put("code-1", b"code");
        assert_eq!(cache.get("code-1").as_deref(), Some(&b"code"[..]));
        fs::hard_link(folder.join("code-1"), folder.join("backup")).unwrap();
        assert_eq!(cache.get("code-1"), None);
        assert!(!folder.join("code-1").exists(), "it is made anew");
    }

    #[test]
    fn keeps_privately_and_finds_again() {
        let (_folder, path, cache) = opened(100);
        cache.put_blob(&digest(b"one"), b"one");
        assert_eq!(cache.blob(&digest(b"one")).unwrap(), "one");
        assert_eq!(cache.blob(&digest(b"two")), None);
        assert_eq!((mode(&path), mode(&path.join(blob_name(&digest(b"one"))))), (0o700, 0o600));
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1, "nothing unfinished is left");
    }

    #[test]
    fn a_damaged_entry_is_removed() {
        let (_folder, path, cache) = opened(100);
        cache.put_blob(&digest(b"one"), b"one");
        let entry = path.join(blob_name(&digest(b"one")));
        fs::write(&entry, "ONE").unwrap();
        assert_eq!(cache.blob(&digest(b"one")), None);
        assert!(!entry.exists());
        // A folder in place of the entry is removed too.
        fs::create_dir(&entry).unwrap();
        assert_eq!(cache.get(&blob_name(&digest(b"one"))), None);
        cache.put_blob(&digest(b"one"), b"one");
        assert_eq!(cache.blob(&digest(b"one")).unwrap(), "one");
    }

    #[test]
    fn a_folder_that_others_may_write_to_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        for writable in [0o777, 0o1777, 0o770, 0o702] {
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(writable)).unwrap();
            let refused = Cache::with_limit(folder.path(), 100).unwrap_err();
            assert!(refused.contains(&format!("{writable:o}")), "{refused}");
        }
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Cache::with_limit(folder.path(), 100).unwrap();
        // Only root can change the owner of a folder.
        if std::os::unix::fs::chown(folder.path(), Some(12345), None).is_ok() {
            let refused = Cache::with_limit(folder.path(), 100).unwrap_err();
            assert!(refused.contains("12345"), "{refused}");
        }
        assert!(Cache::with_limit(Path::new("/proc/nowhere/cache"), 100).is_err());
    }

    #[test]
    fn no_link_is_followed_and_no_foreign_entry_believed() {
        let (folder, path, cache) = opened(100);
        let (outside, name) = (folder.path().join("outside"), blob_name(&digest(b"one")));
        fs::write(&outside, "one").unwrap();
        symlink(&outside, path.join(&name)).unwrap();
        assert_eq!(cache.blob(&digest(b"one")), None);
        assert!(outside.exists() && !path.join(&name).exists());

        fs::write(path.join(&name), "one").unwrap();
        fs::set_permissions(path.join(&name), fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(cache.blob(&digest(b"one")), None);

        symlink(&path, folder.path().join("link")).unwrap();
        assert!(Cache::with_limit(&folder.path().join("link"), 100).is_err());
    }

    #[test]
    fn what_was_not_used_for_longest_goes_first() {
        let entry = |name: &str, used, size| Entry { used, size, name: name.into() };
        let entries = || {
            vec![
                entry("sha256-old", 1, 40),
                entry("code-used", 9, 40),
                entry("etag-mid", 5, 20),
                entry("tmp-young", 9_000, 500),
                entry("tmp-abandoned", 2, 1),
            ]
        };
        assert_eq!(surplus(entries(), 100, 9_010), ["tmp-abandoned"]);
        assert_eq!(surplus(entries(), 99, 9_010), ["tmp-abandoned", "sha256-old"]);
        assert_eq!(surplus(entries(), 0, 9_010).len(), 4);
    }

    #[test]
    fn it_stays_within_its_limit() {
        let (_folder, path, cache) = opened(10);
        let names = || fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
        cache.put("code-a", b"12345678901");
        assert!(names().is_empty(), "larger than all");
        fs::write(path.join("unknown"), "not ours, and not counted").unwrap();
        cache.put("code-a", b"123456");
        cache.put("code-b", b"123456");
        let mut names = names();
        names.sort();
        assert_eq!(names, ["code-b", "unknown"]);
    }
}
