//! Health files: whatever stands there, the check says a verdict and, unless it is healthy, why. What a host wrote is read
//! back as it was, and a report is never called healthy that is not current.

#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::{Duration, UNIX_EPOCH};

use hostler_fuzz::{scratch, take};
use hostler_health::process::ProcessInfo;
use hostler_health::{
    self as health, HealthFile, ReadError, Report, STALE_AFTER, StartPeriod, Status, Timestamp, Verdict,
};
use libfuzzer_sys::fuzz_target;

static FILE: LazyLock<PathBuf> = LazyLock::new(|| scratch("health.json"));
static WRITTEN: LazyLock<HealthFile> = LazyLock::new(|| HealthFile::new(scratch("written.json")));

/// Beyond this a number of seconds is not exact to the nanosecond any more (f64 has 53 bits).
const EXACT: Duration = Duration::from_secs(100 * 24 * 60 * 60);

fuzz_target!(|input: &[u8]| {
    let mut file = input;
    // Where the clock, the process and PID 1 stand to what the file says.
    let (by_file, of_process, of_pid1) = (take(&mut file), take(&mut file), take(&mut file));
    std::fs::write(&*FILE, file).expect("a file");
    let read = health::read(&FILE);
    let written_at = read.as_ref().map_or(Timestamp::from(UNIX_EPOCH), |report| report.written_at);
    let now = moved(written_at, by_file);
    let process = (of_process > 0).then(|| ProcessInfo {
        started_at: (of_process > 1).then(|| moved(read.as_ref().map_or(now, |report| report.started_at), of_process)),
        since_boot: None,
    });
    let pid1_started_at = (of_pid1 > 0).then(|| moved(now, of_pid1));
    let limit = Duration::from_secs(300);
    let verdict = health::verdict(read.as_ref(), process, now, StartPeriod { limit, pid1_started_at });
    let reasons: Vec<_> = verdict.reasons.iter().map(ToString::to_string).collect();
    assert_eq!(verdict.status == Status::Healthy, reasons.is_empty(), "{verdict:?}");
    assert!(reasons.iter().all(|reason| !reason.is_empty()));
    match &read {
        Ok(report) => judged(report, &verdict, process.is_some(), now),
        Err(ReadError::Missing { .. }) => panic!("the file is there"),
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert_eq!(verdict.status, Status::Unhealthy);
        }
    }
});

fn judged(report: &Report, verdict: &Verdict, lives: bool, now: Timestamp) {
    if verdict.status == Status::Healthy {
        assert!(lives && now.since(report.written_at).max(report.written_at.since(now)) <= STALE_AFTER);
    }
    WRITTEN.write(report).expect("a place to write");
    if report.consumers.iter().all(|consumer| consumer.healthcheck_timeout <= EXACT) {
        let again = health::read(WRITTEN.path()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(again, *report);
    }
}

/// A time so many seconds later, or earlier from 128 on.
fn moved(time: Timestamp, by: u8) -> Timestamp {
    match by {
        ..128 => time.plus(Duration::from_millis(u64::from(by) * 100)),
        128.. => time.minus(Duration::from_secs(u64::from(by) - 128)),
    }
}
