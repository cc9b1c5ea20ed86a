//! Removes the folders that killed sessions have left behind.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::process::geteuid;

use hostler_health::{self as health, Presence};

/// Start of the name of a session's folder. Eight hexadecimal digits follow.
pub(super) const PREFIX: &str = "hostler-dev-";

/// File in a session's folder that the session keeps locked. The lock ends with the process, even if the process is killed.
pub(super) const LOCK: &str = "lock";

/// Removes the session folders in `temporary` whose sessions have ended. Removes only folders of this user. Skips a
/// folder that cannot be examined or removed.
pub(super) fn sweep(temporary: &Path) {
    for entry in fs::read_dir(temporary).into_iter().flatten().flatten() {
        if is_name(&entry.file_name()) {
            sweep_one(&entry.path());
        }
    }
}

fn is_name(name: &OsStr) -> bool {
    let digits = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
    digits.is_some_and(|digits| digits.len() == 8 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

fn sweep_one(folder: &Path) {
    let is_private =
        |found: &fs::Metadata| found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & 0o077 == 0;
    if !fs::symlink_metadata(folder).is_ok_and(|found| is_private(&found)) {
        return;
    }
    // A session that has just begun has no such file yet. Until the removal, no other session may use the folder.
    let Ok(lock) = File::open(folder.join(LOCK)) else { return };
    if lock.try_lock().is_err() {
        return;
    }
    // The host of a killed session drains for a few seconds.
    let report = health::read(&folder.join("health.json"));
    if health::presence(report.as_ref()) != Presence::Running {
        let _ = fs::remove_dir_all(folder);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use hostler_health::{Clock, HealthFile};

    use super::*;

    #[test]
    fn only_folders_of_sessions_that_have_ended_are_removed() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = |name: &str, mode: u32| {
            let folder = temporary.path().join(name);
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join(LOCK), "").unwrap();
            fs::set_permissions(&folder, Permissions::from_mode(mode)).unwrap();
            folder
        };
        let left = folder("hostler-dev-0000000a", 0o700);
        let runs = folder("hostler-dev-0000000b", 0o700);
        let lock = File::open(runs.join(LOCK)).unwrap();
        lock.lock().unwrap();
        let begins = folder("hostler-dev-0000000c", 0o700);
        fs::remove_file(begins.join(LOCK)).unwrap();
        let drains = folder("hostler-dev-0000000d", 0o700);
        HealthFile::new(drains.join("health.json")).write(&Clock::start().report(|_| Vec::new())).unwrap();
        let linked = temporary.path().join("hostler-dev-0000000e");
        symlink(folder("elsewhere", 0o700), &linked).unwrap();
        let stay = [
            begins,
            drains,
            linked,
            folder("hostler-dev-0000000f", 0o755),
            folder("hostler-dev-mine", 0o700),
            folder("hostler-dev-000000010", 0o700),
        ];

        sweep(temporary.path());
        assert!(!left.exists() && runs.exists());
        assert!(stay.iter().all(|path| path.exists()), "{stay:?}");
        drop(lock);
        sweep(temporary.path());
        assert!(!runs.exists(), "its session has ended");
    }
}
