//! Command `hostler check-consumer-health`: prints the verdict on the health of the consumers, for the HEALTHCHECK of a
//! container.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use hostler_health::{self as health, Reason, Report, StartPeriod, Status, Timestamp, Verdict, process};
use hostler_types::duration;
use hostler_types::printable::{Printable, in_json};

/// Text at the end of the help of `check-consumer-health`.
pub const HELP: &str = "\
Examples:
  hostler check-consumer-health
  hostler check-consumer-health --file /tmp/hostler/health.json --json

Made for the HEALTHCHECK of a container: reads the file that `hostler run` keeps up to date, and contacts no queue and \
    no network. Waits at most 5 s for the file's lock. Exits with 0 when healthy or starting; with 1 when unhealthy, with \
    the reasons on standard error.";

/// Arguments of `hostler check-consumer-health`, except those about the config.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The health file [default: host.health_file]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Print the verdict, its reasons and the health file as JSON
    #[arg(long)]
    json: bool,
    /// Time after the start of PID 1 in which a missing health file is accepted
    #[arg(long, value_name = "DURATION", default_value = "300s", value_parser = duration::parse)]
    start_period: Duration,
}

/// Prints the verdict on the health file that the arguments name. If the arguments name no health file, uses `health_file`.
/// Returns the exit code: 0 if healthy or starting, otherwise 1.
pub fn run(args: &Args, health_file: &Path) -> u8 {
    let path = args.file.as_deref().unwrap_or(health_file);
    let file = health::read_in_turn(path);
    let report = file.as_ref().ok();
    let beside = report.and_then(health::host_beside);
    let process = report.and_then(|report| process::info(report.pid));
    let pid1_started_at = process::info(1).and_then(|pid1| pid1.started_at);
    let start_period = StartPeriod { limit: args.start_period, pid1_started_at };
    let verdict = match beside {
        Some(pid) => health::another_container(pid),
        None => health::verdict(file.as_ref(), process, Timestamp::now(), start_period),
    };

    let line = if args.json { json(&verdict, report) } else { line(&verdict, report) };
    // Container engines read only the exit code. Therefore, a failure to write the text does not change it.
    let _ = writeln!(io::stdout(), "{}", Printable(&line));
    if !verdict.healthy() {
        let _ = writeln!(io::stderr(), "{}", Printable(&joined(&verdict.reasons, "\n")));
    }
    u8::from(!verdict.healthy())
}

/// Formats the verdict as one human-readable line.
fn line(verdict: &Verdict, report: Option<&Report>) -> String {
    let detail = match verdict.status {
        Status::Healthy => counted(report.map_or(0, |report| report.consumers.len()), "consumer"),
        Status::Starting => joined(&verdict.reasons, "; "),
        Status::Unhealthy => counted(verdict.reasons.len(), "reason"),
    };
    let link = report.and_then(|report| report.queue_link.as_ref());
    let link = link.map(|link| format!("; {link}")).unwrap_or_default();
    format!("{}: {detail}{link}", verdict.status.name())
}

/// Formats the verdict as one line of JSON.
fn json(verdict: &Verdict, report: Option<&Report>) -> String {
    #[derive(Serialize)]
    struct Answer<'a> {
        status: Status,
        healthy: bool,
        reasons: &'a [Reason],
        report: Option<&'a Report>,
    }
    let answer = Answer { status: verdict.status, healthy: verdict.healthy(), reasons: &verdict.reasons, report };
    // The serialization of these types does not fail. If it did, this would print the error message.
    let text = serde_json::to_string(&answer).unwrap_or_else(|error| error.to_string());
    in_json(&text).into_owned()
}

fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

fn joined(reasons: &[Reason], separator: &str) -> String {
    reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join(separator)
}

#[cfg(test)]
mod tests {
    use hostler_health::{QueueLink, QueueLinkState};

    use super::*;

    fn report() -> Report {
        let now = Timestamp::now();
        let (pid, pid_namespace, consumers, others, queue_link) = (7, None, Vec::new(), Vec::new(), None);
        Report { schema: 1, pid, pid_namespace, started_at: now, written_at: now, consumers, others, queue_link }
    }

    #[test]
    fn people_get_one_line() {
        let said = |status, reasons| line(&Verdict { status, reasons }, Some(&report()));
        assert_eq!(said(Status::Healthy, Vec::new()), "healthy: 0 consumers");
        assert_eq!(said(Status::Unhealthy, vec![Reason::Gone { pid: 7 }]), "unhealthy: 1 reason");
        let link = QueueLink { state: QueueLinkState::Blocked, reason: "low on\nmemory".into() };
        let blocked = Report { queue_link: Some(link), ..report() };
        let healthy = Verdict { status: Status::Healthy, reasons: Vec::new() };
        assert_eq!(
            line(&healthy, Some(&blocked)),
            "healthy: 0 consumers; the queue service accepts no messages: low on\\nmemory"
        );
        let (age, limit) = (Duration::from_millis(12_345), Duration::from_secs(300));
        assert_eq!(
            said(Status::Starting, vec![Reason::NoFile { path: "/x".into() }, Reason::Starting { age, limit }]),
            "starting: there is no health file at `/x`; the container started 12s ago and has 5m to start"
        );
    }

    #[test]
    fn programs_get_one_object() -> Result<(), serde_json::Error> {
        let verdict = Verdict { status: Status::Unhealthy, reasons: vec![Reason::Gone { pid: 7 }] };
        let value: serde_json::Value = serde_json::from_str(&json(&verdict, Some(&report())))?;
        assert_eq!(value["status"], "unhealthy");
        assert_eq!(value["healthy"], false);
        assert_eq!(value["reasons"][0], "the process that wrote the health file (pid 7) is gone");
        assert_eq!(value["report"]["pid"], 7);
        let value: serde_json::Value = serde_json::from_str(&json(&verdict, None))?;
        assert!(value.get("report").is_some_and(serde_json::Value::is_null));
        Ok(())
    }
}
