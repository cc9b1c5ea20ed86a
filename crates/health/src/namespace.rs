//! Detects that the report in the health file is not from the host in this container.
//!
//! Several hosts may write the same health file by mistake. The health check of a container must judge the host in this
//! container, and the report of another host says nothing about it. There are two cases:
//!
//! - A host in another container wrote the report. Its process id has no meaning in this container. If the health check
//!   accepted the report, it could miss that the host in this container is frozen.
//! - The host that wrote the report has ended, but another host that writes the same file runs in this container. That
//!   host replaces the report within a [`TICK`].

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::verdict::is_gone;
use super::{ReadError, Report, TICK, process};

/// Maximum time to wait until the host in this container writes the file. A host writes twice per [`TICK`], even if
/// another host writes the same file.
const TURN: Duration = TICK.saturating_add(Duration::from_secs(1));

/// Interval between two reads of the file.
const LOOK: Duration = Duration::from_millis(10);

/// Returns an id of this process's PID namespace that is unique across machines. `None`: `/proc` does not provide the
/// namespace.
pub(super) fn own() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(format!("{}/{}", boot.trim(), namespace_of("self")?))
}

/// Returns the number of a process's PID namespace. `None`: `/proc` does not provide the number, for example for another
/// user's process.
fn namespace_of(pid: &str) -> Option<String> {
    let link = fs::read_link(format!("/proc/{pid}/ns/pid")).ok()?;
    Some(link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.to_owned())
}

/// Returns the process id of the `hostler run` process in this container if a host in another container wrote `report`.
/// `None`: `report` may come from this container, or no host runs here. Compares PID namespaces instead of process ids,
/// because both hosts usually have process id 1.
pub fn host_beside(report: &Report) -> Option<u32> {
    let own = own()?;
    report.pid_namespace.as_ref().filter(|namespace| **namespace != own)?;
    host_here()
}

/// Returns the process id of a `hostler run` process in the PID namespace of this process. `None`: there is no such
/// process.
fn host_here() -> Option<u32> {
    let entries = fs::read_dir("/proc").ok()?;
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(|pid| is_host_here(*pid))
}

/// Returns `true` if `pid` is another `hostler run` process in the PID namespace of this process.
pub(super) fn is_host_here(pid: u32) -> bool {
    let name = |pid: &str| fs::read(format!("/proc/{pid}/comm")).ok();
    let of = pid.to_string();
    let is_same = |one: Option<Vec<u8>>, other: Option<Vec<u8>>| one.is_some() && one == other;
    let runs = |arguments: Vec<u8>| arguments.split(|byte| *byte == 0).nth(1) == Some(b"run");
    pid != std::process::id()
        && is_same(name(&of), name("self"))
        && namespace_of(&of).is_some_and(|namespace| Some(namespace) == namespace_of("self"))
        && fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(runs)
}

/// Returns `true` if the process that wrote `report` has ended and another host runs in this container. That host may
/// write the next report.
fn is_of_an_ended_host_beside_another(report: &Report) -> bool {
    let pid1_started_at = process::info(1).and_then(|pid1| pid1.started_at);
    is_gone(report, process::info(report.pid), pid1_started_at) && host_here().is_some()
}

/// Reads the health file at `path`. If a host runs in this container but another host wrote the report, reads the file
/// again until the host in this container has written one. Gives up after a [`TICK`] and one second, and returns the
/// last report that was read.
pub fn read_in_turn(path: &Path) -> Result<Report, ReadError> {
    let begin = Instant::now();
    loop {
        let found = super::read(path);
        let is_others = found
            .as_ref()
            .is_ok_and(|report| host_beside(report).is_some() || is_of_an_ended_host_beside_another(report));
        if !is_others || begin.elapsed() > TURN {
            return found;
        }
        #[allow(clippy::disallowed_methods, reason = "the replacement of a file causes no event")]
        thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Clock, Report};
    use super::*;

    #[test]
    fn a_report_of_this_container_or_of_an_earlier_version_is_no_other_s() {
        let report = Clock::start().report(|_| Vec::new());
        assert!(report.pid_namespace.as_ref().is_some_and(|namespace| namespace.contains('/')), "{report:?}");
        assert_eq!(host_beside(&report), None);
        assert_eq!(host_beside(&Report { pid_namespace: None, ..report.clone() }), None);
        let text = serde_json::to_string(&Report { pid_namespace: None, ..report }).unwrap();
        assert!(!text.contains("namespace"), "{text}");
    }

    /// Checks that the report of a host in another container is accepted if no host runs in this container. The health
    /// check may run outside the host's container.
    #[test]
    fn without_a_host_here_a_report_of_another_container_counts() {
        let report = Clock::start().report(|_| Vec::new());
        assert_eq!(host_beside(&Report { pid_namespace: Some("boot/1".to_owned()), ..report }), None);
    }
}
