//! Checks whether a host that writes a health file is running and can answer requests.

use std::path::Path;

use super::process::ProcessInfo;
use super::verdict::{Author, author};
use super::{Reason, Report, STALE_AFTER, Timestamp};

/// Returns the reason why the host that wrote `report` cannot answer requests: the host has ended, or no longer writes
/// reports. `None`: the host can answer. `process` is the running process with the process id in the report, if any.
pub fn absence(report: &Report, process: Option<ProcessInfo>, now: Timestamp) -> Option<Reason> {
    let age = now.since(report.written_at);
    match author(report, process, None) {
        Author::Lives if age > STALE_AFTER => Some(Reason::Stale { age }),
        Author::Lives => None,
        Author::Gone => Some(Reason::Gone { pid: report.pid }),
        Author::OfAnotherLife => Some(Reason::LeftOver { pid: report.pid }),
    }
}

/// Returns the process id of the host that writes the health file. `None`: no running host writes the file, or the host
/// that writes the file is this process.
pub fn other_writer(path: &Path) -> Option<u32> {
    let report = super::read(path).ok()?;
    let is_absent = absence(&report, super::process::info(report.pid), Timestamp::now()).is_some();
    (report.pid != std::process::id() && !is_absent).then_some(report.pid)
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
}
