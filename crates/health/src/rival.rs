//! Detects other writers of this host's health file. Another writer may be another host, possibly with the same process
//! id in another container, or a program that is not a host.

use std::path::Path;

use super::process::ProcessInfo;
use super::verdict::START_TOLERANCE;
use super::{OtherHost, Report, Timestamp, namespace, process};

/// Identifies one write of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Writing {
    pid: u32,
    pid_namespace: Option<String>,
    started_at: Timestamp,
    written_at: Timestamp,
}

impl Writing {
    /// Returns `true` if `found`, the report in the file, is the result of this write. Allows for rounding: the file's
    /// times are truncated to microseconds.
    fn is_found(&self, found: &Report) -> bool {
        let is_same = |one: Timestamp, other: Timestamp| one.since(other).max(other.since(one)).as_micros() < 2;
        self.pid == found.pid
            && is_same(self.started_at, found.started_at)
            && is_same(self.written_at, found.written_at)
    }

    /// Returns the author of a report that differs from this write. If the report has the process id and the PID
    /// namespace of this process, another program forged or changed the report.
    fn rival(&self, found: &Report) -> Rival {
        let is_own = self.pid == found.pid && self.pid_namespace.is_some() && self.pid_namespace == found.pid_namespace;
        if is_own { Rival::InItsName } else { Rival::Host(found.pid) }
    }
}

/// The author of a report that this host did not write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rival {
    /// Another host. The field is the host's process id in its own PID namespace.
    Host(u32),
    /// A program that is not a host. The report has the process id and the PID namespace of this process.
    InItsName,
}

/// Stores the last write of this process, to detect reports that this process did not write.
#[derive(Debug, Default)]
pub struct Rivals {
    last: Option<Writing>,
    is_told: bool,
    /// Other hosts in this PID namespace that have written the file. Some of them may have ended.
    others: Vec<Known>,
}

/// Another host, and the process that is this host.
#[derive(Debug)]
struct Known {
    host: OtherHost,
    /// The process at the time at which this process first learned of the host.
    process: ProcessInfo,
}

impl Known {
    /// Finds the process of a host. `None`: the host has ended.
    fn of(host: OtherHost) -> Option<Self> {
        let process = process::info(host.pid)?;
        is_author(&host, process, namespace::is_host_here).then_some(Self { host, process })
    }

    /// Returns `true` if the host is still running.
    fn runs(&self) -> bool {
        process::info(self.host.pid).is_some_and(|process| self.runs_as(process, namespace::is_host_here))
    }

    /// Returns `true` if `process`, the running process with the host's id, is still the host. Does not compare times of
    /// the system clock, which may have been set in the meantime.
    fn runs_as(&self, process: ProcessInfo, is_host_here: impl FnOnce(u32) -> bool) -> bool {
        match (self.process.since_boot, process.since_boot) {
            (Some(before), Some(now)) => before == now,
            _ => is_author(&self.host, process, is_host_here),
        }
    }
}

/// Returns `true` if `process`, the running process with the host's id, is the host. If the process started later than the
/// host, the id has been reused and the host has ended. If the start time is unknown, `is_host_here` decides.
fn is_author(host: &OtherHost, process: ProcessInfo, is_host_here: impl FnOnce(u32) -> bool) -> bool {
    match process.started_at {
        Some(start) => start.since(host.started_at) <= START_TOLERANCE,
        None => is_host_here(host.pid),
    }
}

impl Rivals {
    /// Reads the file before the first write of this process, which would replace the report in it. Remembers the other
    /// hosts in this PID namespace that, according to the report, have written the file.
    pub fn start(path: &Path) -> Self {
        let mut rivals = Self::default();
        if let Ok(found) = super::read(path)
            && found.pid_namespace.is_some()
            && found.pid_namespace == namespace::own()
        {
            rivals.note(found);
        }
        rivals
    }

    /// Checks the health file at `path` for a report of another writer. Must be called before each write. Returns the
    /// author if another writer has replaced the report of this process. Returns the author only once for each series
    /// of foreign reports. A series ends when a check finds the report of this process.
    pub fn look(&mut self, path: &Path) -> Option<Rival> {
        let last = self.last.as_ref()?;
        let found = super::read(path).ok()?;
        let is_rival = !last.is_found(&found);
        let was_told = std::mem::replace(&mut self.is_told, is_rival);
        let rival = (is_rival && !was_told).then(|| last.rival(&found));
        if is_rival && found.pid_namespace.is_some() && found.pid_namespace == last.pid_namespace {
            self.note(found);
        }
        rival
    }

    /// Remembers the author of a report from this PID namespace, and the other hosts that the author has found. With three
    /// hosts, the report of one may always be replaced before this process reads the file.
    fn note(&mut self, found: Report) {
        let Report { pid, started_at, written_at, others, .. } = found;
        self.others.retain(Known::runs);
        for other in others {
            // After the system clock has been set back, a time may be in the future until the author finds a new report.
            let other = OtherHost { written_at: other.written_at.min(written_at), ..other };
            if self.others.iter().all(|known| known.host.pid != other.pid || known.host.written_at < other.written_at) {
                self.remember(other);
            }
        }
        self.remember(OtherHost { pid, started_at, written_at });
    }

    /// Remembers a host that runs, or the newer times of a known host. Ignores this process.
    fn remember(&mut self, host: OtherHost) {
        match self.others.iter_mut().find(|known| known.host.pid == host.pid) {
            Some(known) => known.host = host,
            None if host.pid == std::process::id() => {}
            None => self.others.extend(Known::of(host)),
        }
    }

    /// Returns the other running hosts in this PID namespace that have written the file.
    pub fn others(&mut self) -> Vec<OtherHost> {
        self.others.retain(Known::runs);
        self.others.iter().map(|known| known.host.clone()).collect()
    }

    /// Records a write of this process.
    pub fn wrote(&mut self, report: &Report) {
        let Report { pid, started_at, written_at, .. } = *report;
        self.last = Some(Writing { pid, pid_namespace: report.pid_namespace.clone(), started_at, written_at });
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
            let (pid, pid_namespace, consumers, others, queue_link) = (1, None, Vec::new(), Vec::new(), None);
            Report { schema: SCHEMA, pid, pid_namespace, started_at, written_at, consumers, others, queue_link }
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
        assert_eq!(write_own(), Some(Rival::Host(1)));
        file.write(&report(4)).unwrap();
        assert_eq!(write_own(), None, "it is told already");
        assert_eq!(write_own(), None, "it has gone");
        file.write(&report(1)).unwrap();
        assert_eq!(write_own(), Some(Rival::Host(1)), "another one");
    }

    #[test]
    fn a_report_in_this_hosts_name_is_no_other_host() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("health.json");
        let own = super::super::Clock::start().report(|_| Vec::new());
        let mut rivals = Rivals::default();
        rivals.wrote(&own);
        let later = own.written_at.plus(Duration::from_secs(3600));
        let elsewhere = Some("boot/1".to_owned());
        for (found, rival) in [
            (Report { written_at: later, ..own.clone() }, Rival::InItsName),
            (Report { pid_namespace: elsewhere, written_at: later, ..own.clone() }, Rival::Host(own.pid)),
            (Report { pid_namespace: None, written_at: later, ..own.clone() }, Rival::Host(own.pid)),
        ] {
            HealthFile::new(&path).write(&found).unwrap();
            assert_eq!(rivals.look(&path), Some(rival), "{found:?}");
            rivals.is_told = false;
        }
    }

    #[test]
    fn a_host_whose_reports_another_one_always_replaces_is_no_silent_host() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("health.json");
        let own = super::super::Clock::start().report(|_| Vec::new());
        // The first process of the namespace, in place of the host that this process never finds. The other one has ended.
        let (pid, replacing) = (1, u32::MAX);
        let started_at = process::info(pid).unwrap().started_at.unwrap();
        let at = |seconds| own.written_at.plus(Duration::from_secs(seconds));
        let mut rivals = Rivals::default();
        rivals.wrote(&own);
        // Columns: the times of the report and of the other host in it; the expected time of the other host.
        for (report, other, expected) in [(1, 1, 1), (20, 19, 19), (21, 18, 19), (30, 90, 30), (31, 31, 31)] {
            let others = vec![OtherHost { pid, started_at, written_at: at(other) }];
            let found = Report { pid: replacing, written_at: at(report), others, ..own.clone() };
            HealthFile::new(&path).write(&found).unwrap();
            rivals.look(&path);
            let expected = OtherHost { pid, started_at, written_at: at(expected) };
            assert_eq!(rivals.others(), [expected], "{found:?}");
        }
    }

    #[test]
    fn another_host_is_remembered_as_long_as_it_runs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("health.json");
        let file = HealthFile::new(&path);
        let own = super::super::Clock::start().report(|_| Vec::new());
        // The first process of the namespace, in place of a host.
        let pid = 1;
        let started_at = process::info(pid).unwrap().started_at.unwrap();
        let frozen =
            Report { pid, started_at, written_at: own.written_at.minus(Duration::from_secs(11)), ..own.clone() };
        let pids = |rivals: &mut Rivals| rivals.others().iter().map(|other| other.pid).collect::<Vec<_>>();

        file.write(&frozen).unwrap();
        assert_eq!(pids(&mut Rivals::start(&path)), [pid]);

        let mut rivals = Rivals::default();
        rivals.wrote(&own);
        for (found, others) in [
            (frozen.clone(), vec![pid]),
            (own.clone(), vec![pid]),
            (Report { pid: u32::MAX, ..own.clone() }, vec![pid]),
            (Report { pid: pid + 1, pid_namespace: Some("boot/1".to_owned()), ..own.clone() }, vec![pid]),
        ] {
            file.write(&found).unwrap();
            rivals.look(&path);
            assert_eq!(pids(&mut rivals), others, "{found:?}");
        }
        let reused = Report { started_at: started_at.minus(Duration::from_secs(60)), ..frozen };
        file.write(&reused).unwrap();
        assert_eq!(pids(&mut Rivals::start(&path)), [] as [u32; 0]);
        let ended = Report { pid: u32::MAX, ..own };
        file.write(&ended).unwrap();
        assert_eq!(pids(&mut Rivals::start(&path)), [] as [u32; 0]);
        let others = vec![OtherHost { pid, started_at, written_at: ended.written_at }];
        file.write(&Report { others, ..ended }).unwrap();
        assert_eq!(pids(&mut Rivals::start(&path)), [pid], "it knew of another one");
    }

    #[test]
    fn a_step_of_the_system_clock_ends_no_host() {
        let at = Timestamp::now();
        let seconds = Duration::from_secs;
        let process = |started_at, since_boot| ProcessInfo { started_at, since_boot };
        let host = OtherHost { pid: 7, started_at: at, written_at: at };
        let known = |since_boot| Known { host: host.clone(), process: process(Some(at), since_boot) };
        let (start, later) = (Some(seconds(40)), Some(seconds(41)));
        let unasked = |_| unreachable!("the start is known");
        assert!(known(start).runs_as(process(Some(at.plus(seconds(3600))), start), unasked), "the clock was set");
        assert!(known(start).runs_as(process(None, start), unasked));
        assert!(!known(start).runs_as(process(Some(at), later), unasked), "the id was reused");
    }

    #[test]
    fn a_process_of_unknown_start_counts_only_if_it_is_a_host() {
        let at = Timestamp::now();
        let process = ProcessInfo { started_at: None, since_boot: None };
        let host = OtherHost { pid: 7, started_at: at, written_at: at };
        let known = Known { host: host.clone(), process };
        for is_host in [true, false] {
            assert_eq!(is_author(&host, process, |pid| is_host && pid == 7), is_host);
            assert_eq!(known.runs_as(process, |pid| is_host && pid == 7), is_host);
        }
    }
}
