//! Detection of another host that writes the same health file. Also detects a host in another container with the same
//! process id.

use std::path::Path;

use super::{Report, Timestamp};

/// Identifies one write of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Writing {
    pid: u32,
    started_at: Timestamp,
    written_at: Timestamp,
}

impl Writing {
    /// Returns `true` if the file contains this write. Allows for rounding: the file's times are truncated to microseconds.
    fn is_found(&self, found: &Report) -> bool {
        let is_same = |one: Timestamp, other: Timestamp| one.since(other).max(other.since(one)).as_micros() < 2;
        self.pid == found.pid
            && is_same(self.started_at, found.started_at)
            && is_same(self.written_at, found.written_at)
    }
}

/// Records this process's last write. Any other content of the file was written by another host.
#[derive(Debug, Default)]
pub struct Rivals {
    last: Option<Writing>,
    is_told: bool,
}

impl Rivals {
    /// Checks the file before the next write. Returns the process id of another host that has written the file since this
    /// process's last write. A series of such writes is reported only once.
    pub fn look(&mut self, path: &Path) -> Option<u32> {
        let last = self.last?;
        let found = super::read(path).ok()?;
        let is_rival = !last.is_found(&found);
        let was_told = std::mem::replace(&mut self.is_told, is_rival);
        (is_rival && !was_told).then_some(found.pid)
    }

    /// Records a write of this process.
    pub fn wrote(&mut self, report: &Report) {
        let Report { pid, started_at, written_at, .. } = *report;
        self.last = Some(Writing { pid, started_at, written_at });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{HealthFile, SCHEMA};
    use super::*;

    #[test]
    fn a_host_of_the_same_pid_is_noticed_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("health.json");
        let file = HealthFile::new(&path);
        let report = |age: u64| {
            let written_at = Timestamp::now();
            let started_at = written_at.minus(Duration::from_secs(age));
            Report { schema: SCHEMA, pid: 1, pid_namespace: None, started_at, written_at, consumers: Vec::new() }
        };
        let mut rivals = Rivals::default();
        let mut write_own = || {
            let found = rivals.look(&path);
            let report = report(500);
            file.write(&report).unwrap();
            rivals.wrote(&report);
            found
        };
        file.write(&report(900)).unwrap();
        assert_eq!([write_own(), write_own()], [None; 2], "of an earlier life");
        file.write(&report(3)).unwrap();
        assert_eq!(write_own(), Some(1));
        file.write(&report(4)).unwrap();
        assert_eq!(write_own(), None, "it is told already");
        assert_eq!(write_own(), None, "it has gone");
        file.write(&report(1)).unwrap();
        assert_eq!(write_own(), Some(1), "another one");
    }
}
