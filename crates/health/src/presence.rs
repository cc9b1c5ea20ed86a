//! Checks whether a host that writes a health file is running, and can answer requests or notice a pause.

use super::process::ProcessInfo;
use super::verdict::{Author, author};
use super::{ReadError, Reason, Report, STALE_AFTER, Timestamp, namespace};

/// Presence of the host that writes a health file. Determines whether the host will notice the files that a command
/// leaves beside the health file.
#[derive(Debug, PartialEq, Eq)]
pub enum Presence {
    /// A host writes reports, so it notices the files.
    Running,
    /// A host may be running, but no recent report shows that it notices the files.
    Silent(Reason),
    /// No host is running. The next one notices the files at its start.
    Absent,
}

/// Returns the presence of a host. `file`: the result of reading its health file.
pub fn presence(file: Result<&Report, &ReadError>) -> Presence {
    let is_here = |report: &Report| match (&report.pid_namespace, namespace::own()) {
        (Some(namespace), Some(own)) => *namespace == own,
        _ => true,
    };
    match file {
        Ok(report) if is_here(report) => present(absence(report, super::process::info(report.pid), Timestamp::now())),
        // The process id has no meaning here, so only the age of the report counts.
        Ok(report) => present(stale(report, Timestamp::now())),
        Err(ReadError::Missing { .. }) => Presence::Absent,
        Err(error) => Presence::Silent(Reason::Unreadable(error.to_string())),
    }
}

fn present(absence: Option<Reason>) -> Presence {
    match absence {
        None => Presence::Running,
        Some(Reason::Gone { .. } | Reason::LeftOver { .. }) => Presence::Absent,
        Some(reason) => Presence::Silent(reason),
    }
}

/// Returns the reason why the host that wrote `report` cannot answer requests: the host has ended, or no longer writes
/// reports. `None`: the host can answer. `process` is the running process with the process id in the report, if any.
pub fn absence(report: &Report, process: Option<ProcessInfo>, now: Timestamp) -> Option<Reason> {
    match author(report, process, None) {
        Author::Lives => stale(report, now),
        Author::Gone => Some(Reason::Gone { pid: report.pid }),
        Author::OfAnotherLife => Some(Reason::LeftOver { pid: report.pid }),
    }
}

/// Returns a reason if the report is stale.
fn stale(report: &Report, now: Timestamp) -> Option<Reason> {
    let age = now.since(report.written_at);
    (age > STALE_AFTER).then_some(Reason::Stale { age })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{Clock, process};
    use super::*;

    #[test]
    fn a_host_that_is_gone_or_frozen_or_replaced_cannot_answer() {
        let report = Clock::start().report(|_| Vec::new());
        let (own, now) = (process::info(report.pid), Timestamp::now());
        assert_eq!(absence(&report, own, now), None);
        assert_eq!(absence(&report, None, now), Some(Reason::Gone { pid: report.pid }));
        let later = now.plus(2 * STALE_AFTER);
        assert!(matches!(absence(&report, own, later), Some(Reason::Stale { .. })));
        let written_at = report.started_at.minus(Duration::from_secs(60));
        let earlier = Report { started_at: written_at, written_at, ..report };
        assert!(matches!(absence(&earlier, own, now), Some(Reason::LeftOver { .. })));
    }

    #[test]
    fn a_host_that_cannot_be_seen_from_here_is_judged_by_its_report_alone() {
        let report = Clock::start().report(|_| Vec::new());
        assert_eq!(presence(Ok(&report)), Presence::Running);
        let gone = Report { pid: u32::MAX, ..report };
        assert_eq!(presence(Ok(&gone)), Presence::Absent);
        let elsewhere = Report { pid_namespace: Some("boot/1".to_owned()), ..gone };
        assert_eq!(presence(Ok(&elsewhere)), Presence::Running);
        let silent = Report { written_at: elsewhere.written_at.minus(2 * STALE_AFTER), ..elsewhere };
        assert!(matches!(presence(Ok(&silent)), Presence::Silent(Reason::Stale { .. })));
        let path = || "f".into();
        assert_eq!(presence(Err(&ReadError::Missing { path: path() })), Presence::Absent);
        assert!(matches!(presence(Err(&ReadError::Locked { path: path() })), Presence::Silent(_)));
    }
}
