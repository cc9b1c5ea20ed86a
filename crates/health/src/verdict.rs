//! The verdict on a host, without I/O: healthy, starting or unhealthy.

use std::time::Duration;

use serde::Serialize;

use super::process::ProcessInfo;
use super::{ConsumerReport, OtherHost, ReadError, Reason, Report, STALE_AFTER, State, Timestamp};

/// Maximum difference between two readings of the same process's start time. `/proc` is precise to 1/100 s, and
/// [`super::Clock`] allows a drift of 1/10 s. A container cannot stop and start again within this time.
pub(super) const START_TOLERANCE: Duration = Duration::from_millis(300);

/// The period after the start of a container in which a missing health file is normal.
#[derive(Debug, Clone, Copy)]
pub struct StartPeriod {
    /// Duration, counted from the start of PID 1.
    pub limit: Duration,
    /// Start time of PID 1. `None`: the start time is unknown, so there is no start period.
    pub pid1_started_at: Option<Timestamp>,
}

/// The verdict on a host.
#[derive(Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The status of the host.
    pub status: Status,
    /// The reasons for a status other than healthy. Empty if the host is healthy.
    pub reasons: Vec<Reason>,
}

impl Verdict {
    /// Returns `true` if the container should keep running: the host is healthy or starting.
    pub fn healthy(&self) -> bool {
        self.status != Status::Unhealthy
    }
}

/// The status of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// The host writes reports, and every consumer makes progress.
    Healthy,
    /// No host has written a report yet, and the start period has not ended.
    Starting,
    /// The host or a consumer has a fault, which the reasons describe.
    Unhealthy,
}

impl Status {
    /// Returns the name in lower case.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Starting => "starting",
            Self::Unhealthy => "unhealthy",
        }
    }
}

/// Returns the verdict at the time `now`. `file` is the result of reading the health file. `process` is the running
/// process with the process id in the file, or `None` if no process has this id.
pub fn verdict(
    file: Result<&Report, &ReadError>,
    process: Option<ProcessInfo>,
    now: Timestamp,
    start_period: StartPeriod,
) -> Verdict {
    let report = match file {
        Ok(report) => report,
        Err(ReadError::Missing { path }) => return missing(Reason::NoFile { path: path.clone() }, now, start_period),
        Err(error) => return unhealthy(vec![Reason::Unreadable(error.to_string())]),
    };
    let reasons = match author(report, process, start_period.pid1_started_at) {
        Author::Lives => reasons(report, now),
        Author::Gone => vec![Reason::Gone { pid: report.pid }],
        Author::OfAnotherLife => return missing(Reason::LeftOver { pid: report.pid }, now, start_period),
    };
    if reasons.is_empty() { Verdict { status: Status::Healthy, reasons } } else { unhealthy(reasons) }
}

/// Returns the verdict for a health file that a host in another container writes, although the host `pid` runs in this
/// container.
pub fn another_container(pid: u32) -> Verdict {
    unhealthy(vec![Reason::AnotherContainer { pid }])
}

fn unhealthy(reasons: Vec<Reason>) -> Verdict {
    Verdict { status: Status::Unhealthy, reasons }
}

/// Returns the verdict for a missing file, or for a file that counts as missing. The verdict is [`Status::Starting`]
/// during the start period and [`Status::Unhealthy`] otherwise.
fn missing(reason: Reason, now: Timestamp, StartPeriod { limit, pid1_started_at }: StartPeriod) -> Verdict {
    match pid1_started_at.map(|start| now.since(start)) {
        Some(age) if age < limit => {
            Verdict { status: Status::Starting, reasons: vec![reason, Reason::Starting { age, limit }] }
        }
        Some(_) => unhealthy(vec![reason, Reason::NotStarted { limit }]),
        None => unhealthy(vec![reason, Reason::StartUnknown]),
    }
}

/// Returns `true` if the process that wrote the file has ended during this run of the container.
pub(super) fn is_gone(report: &Report, process: Option<ProcessInfo>, pid1_started_at: Option<Timestamp>) -> bool {
    matches!(author(report, process, pid1_started_at), Author::Gone)
}

/// The state of the process that wrote the file.
pub(super) enum Author {
    Lives,
    Gone,
    /// The process belongs to an earlier run of the container, or its id has been reused. In a container, every host has
    /// process id 1.
    OfAnotherLife,
}

pub(super) fn author(report: &Report, process: Option<ProcessInfo>, pid1_started_at: Option<Timestamp>) -> Author {
    let started_after =
        |time: Timestamp, start: Option<Timestamp>| start.is_some_and(|start| start.since(time) > START_TOLERANCE);
    match process {
        // Only a process that started after the time in the file can have reused the process id.
        Some(process) if started_after(report.started_at.min(report.written_at), process.started_at) => {
            Author::OfAnotherLife
        }
        Some(_) => Author::Lives,
        None if started_after(report.written_at, pid1_started_at) => Author::OfAnotherLife,
        None => Author::Gone,
    }
}

/// Returns the reasons for an unhealthy verdict. If the file is stale or its time is in the future, does not examine
/// the consumers, because the file does not show their current state.
fn reasons(report: &Report, now: Timestamp) -> Vec<Reason> {
    let (age, by) = (now.since(report.written_at), report.written_at.since(now));
    if age > STALE_AFTER {
        vec![Reason::Stale { age }]
    } else if by > STALE_AFTER {
        vec![Reason::Ahead { by }]
    } else {
        let of_consumers = report.consumers.iter().filter_map(|one| judge(one, now).or_else(|| settling(one)));
        of_consumers.chain(report.others.iter().filter_map(|other| frozen(other, now))).collect()
    }
}

/// Returns a reason if another host has stopped writing this file. The report does not contain the consumers of that
/// host, so it is unknown whether they make progress.
fn frozen(other: &OtherHost, now: Timestamp) -> Option<Reason> {
    let age = now.since(other.written_at);
    (age > STALE_AFTER).then_some(Reason::OtherSilent { pid: other.pid, age })
}

fn judge(report: &ConsumerReport, now: Timestamp) -> Option<Reason> {
    let since = match report.state {
        State::Listening | State::Idle if report.rests() => return None,
        // A consumer without free slots stays in this state. The consumer makes progress as long as no message exceeds
        // the limit.
        State::Processing => report.oldest_started_at,
        State::Listening | State::Idle => report.last_poll_at,
        State::Initializing | State::Initialized | State::Exiting => None,
    };
    let since = since.unwrap_or(report.transition_timestamp);
    let (consumer, state, limit) = (report.name.clone(), report.state, report.healthcheck_timeout);
    let (age, by) = (now.since(since), since.since(now));
    if by > STALE_AFTER {
        return Some(Reason::ConsumerAhead { consumer, state, by });
    }
    (age > limit).then_some(match state {
        State::Listening | State::Idle => Reason::NotPolling { consumer, state, age, limit },
        _ => Reason::Stuck { consumer, state, age, limit },
    })
}

/// Returns a reason if settlements or lease extensions have failed for longer than the consumer's
/// `healthcheck_timeout`. The report omits failures that were followed by a successful call.
fn settling(report: &ConsumerReport) -> Option<Reason> {
    let (fails, limit) = (report.settling_fails?, report.healthcheck_timeout);
    let age = fails.last.since(fails.since);
    (age > limit).then(|| Reason::NotSettling { consumer: report.name.clone(), age, limit })
}

#[cfg(test)]
mod tests {
    use super::super::SettlingFails;
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }
    const LIMIT: Duration = seconds(90);

    /// Returns the time `age` seconds before the time of all verdicts in these tests.
    fn ago(age: u64) -> Timestamp {
        Timestamp::from(std::time::UNIX_EPOCH + seconds(1_800_000_000)).minus(seconds(age))
    }

    fn report(consumers: Vec<ConsumerReport>) -> Report {
        let (started_at, written_at) = (ago(1000), ago(1));
        Report {
            schema: 1,
            pid: 7,
            pid_namespace: None,
            started_at,
            written_at,
            consumers,
            others: Vec::new(),
            queue_link: None,
        }
    }

    fn consumer(state: State, transition: u64, last_poll: Option<u64>, oldest: Option<u64>) -> ConsumerReport {
        ConsumerReport {
            name: "c".to_owned(),
            state,
            transition_timestamp: ago(transition),
            healthcheck_timeout: LIMIT,
            last_poll_at: last_poll.map(ago),
            in_flight: oldest.map_or(0, |_| 1),
            oldest_started_at: oldest.map(ago),
            processed: 0,
            failed: 0,
            paused: false,
            breaker: None,
            settling_fails: None,
            last_failures: Vec::new(),
        }
    }

    fn process(started_at: Option<Timestamp>) -> Option<ProcessInfo> {
        Some(ProcessInfo { started_at, since_boot: None })
    }
    const ALIVE: fn() -> Option<ProcessInfo> = || process(Some(ago(1000)));

    fn judged(report: &Report, process: Option<ProcessInfo>, pid1_age: Option<u64>) -> Verdict {
        let start_period = StartPeriod { limit: seconds(300), pid1_started_at: pid1_age.map(ago) };
        verdict(Ok(report), process, ago(0), start_period)
    }

    #[test]
    fn settlements_that_fail_for_longer_than_the_limit_are_no_progress() {
        let fails = |since, last| {
            let consumer = consumer(State::Listening, 5, Some(5), None);
            let settling_fails = Some(SettlingFails { since: ago(since), last: ago(last) });
            judged(&report(vec![ConsumerReport { settling_fails, ..consumer }]), ALIVE(), None).healthy()
        };
        let limit = LIMIT.as_secs();
        assert!(!fails(limit + 2, 1));
        assert!(fails(limit + 2, 3), "it may yet succeed");
        assert!(!fails(3 * limit + 2, limit + 1), "none has succeeded since");
    }

    #[test]
    fn a_consumer_is_measured_by_what_its_state_promises() {
        use State::*;
        let stuck = |state, age| Some(Reason::Stuck { consumer: "c".into(), state, age: seconds(age), limit: LIMIT });
        let silent =
            |state, age| Some(Reason::NotPolling { consumer: "c".into(), state, age: seconds(age), limit: LIMIT });
        // Columns: the state; the seconds since its transition, since the last poll, and since the start of the oldest
        // message; the expected reason.
        let table = [
            (Initializing, 90, None, None, None),
            (Initializing, 91, None, None, stuck(Initializing, 91)),
            (Initialized, 90, None, None, None),
            (Initialized, 91, None, None, stuck(Initialized, 91)),
            (Initialized, 91, Some(1), Some(1), stuck(Initialized, 91)),
            (Exiting, 90, Some(500), Some(500), None),
            (Exiting, 91, Some(1), Some(1), stuck(Exiting, 91)),
            // No free slot: the consumer has been in the state for hours without a poll, but each message is young.
            (Processing, 9000, Some(9000), Some(90), None),
            (Processing, 9000, Some(1), Some(91), stuck(Processing, 91)),
            (Processing, 90, None, None, None),
            (Processing, 91, Some(1), None, stuck(Processing, 91)),
            // Idle: the consumer has been in the state for hours, but polls complete.
            (Idle, 9000, Some(90), None, None),
            (Listening, 9000, Some(90), None, None),
            (Idle, 1, Some(91), None, silent(Idle, 91)),
            (Listening, 1, Some(91), None, silent(Listening, 91)),
            (Idle, 90, None, None, None),
            (Idle, 91, None, Some(1), silent(Idle, 91)),
            (Listening, 90, None, None, None),
            (Listening, 91, None, None, silent(Listening, 91)),
        ];
        for (state, transition, last_poll, oldest, wrong) in table {
            let row = format!("{state:?} {transition} {last_poll:?} {oldest:?}");
            let verdict = judged(&report(vec![consumer(state, transition, last_poll, oldest)]), ALIVE(), None);
            assert_eq!(verdict.healthy(), wrong.is_none(), "{row}");
            assert_eq!(verdict.reasons, Vec::from_iter(wrong), "{row}");
        }
    }

    #[test]
    fn a_consumer_that_is_not_to_poll_is_not_blamed_for_it_but_for_all_else() {
        use crate::BreakerState::{Open, Probing};
        for (paused, breaker, rests) in
            [(true, None, true), (false, Some(Open), true), (false, Some(Probing), false), (true, Some(Probing), true)]
        {
            let judged = |state, oldest| {
                let consumer = ConsumerReport { paused, breaker, ..consumer(state, 9000, Some(9000), oldest) };
                judged(&report(vec![consumer]), ALIVE(), None).healthy()
            };
            assert_eq!([judged(State::Idle, None), judged(State::Listening, None)], [rests; 2], "{paused} {breaker:?}");
            assert!(judged(State::Processing, Some(90)) && !judged(State::Processing, Some(91)));
            assert!(!judged(State::Exiting, None));
        }
    }

    #[test]
    fn every_faulty_consumer_is_named() {
        let mut second = consumer(State::Exiting, 91, None, None);
        second.name = "second".to_owned();
        let fine = consumer(State::Idle, 1, None, None);
        let verdict =
            judged(&report(vec![consumer(State::Processing, 1, None, Some(125)), fine, second]), ALIVE(), None);
        let texts: Vec<String> = verdict.reasons.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "consumer `c` has been PROCESSING for 2m 5s; its limit is 1m 30s",
                "consumer `second` has been EXITING for 1m 31s; its limit is 1m 30s"
            ]
        );
    }

    #[test]
    fn the_file_is_the_hosts_pulse() {
        let written = |written_at| judged(&Report { written_at, ..report(Vec::new()) }, ALIVE(), None);
        assert_eq!(written(ago(0)), Verdict { status: Status::Healthy, reasons: Vec::new() });
        assert_eq!(written(ago(10)).status, Status::Healthy);
        assert_eq!(written(ago(11)).reasons, [Reason::Stale { age: seconds(11) }]);
        assert_eq!(written(ago(0).plus(seconds(10))).status, Status::Healthy);
        assert_eq!(written(ago(0).plus(seconds(11))).reasons, [Reason::Ahead { by: seconds(11) }]);
    }

    #[test]
    fn another_host_on_the_file_has_to_write_it_too() {
        let judged = |age| {
            let others = vec![OtherHost { pid: 8, started_at: ago(500), written_at: ago(age) }];
            judged(&Report { others, ..report(vec![consumer(State::Idle, 1, Some(1), None)]) }, ALIVE(), None).reasons
        };
        assert_eq!(judged(10), []);
        assert_eq!(judged(11), [Reason::OtherSilent { pid: 8, age: seconds(11) }]);
    }

    #[test]
    fn a_time_in_the_future_hides_nothing() {
        let mut processing = consumer(State::Processing, 500, None, None);
        processing.oldest_started_at = Some(ago(0).plus(seconds(3600)));
        let verdict = judged(&report(vec![processing]), ALIVE(), None);
        assert!(matches!(verdict.reasons.as_slice(), [Reason::ConsumerAhead { .. }]), "{verdict:?}");
    }

    #[test]
    fn only_the_process_that_wrote_the_file_is_believed() {
        let started = |age: Option<u64>| process(age.map(ago));
        let file = report(Vec::new());
        // Columns: the process with the process id in the file; the age of PID 1; the expected status.
        let table = [
            (started(Some(1000)), None, Status::Healthy),
            (process(Some(ago(1000).plus(START_TOLERANCE))), None, Status::Healthy),
            (started(Some(1500)), None, Status::Healthy),
            (started(None), None, Status::Healthy),
            (started(Some(999)), Some(999), Status::Unhealthy),
            (started(Some(200)), Some(200), Status::Starting),
            (started(Some(200)), Some(300), Status::Unhealthy),
            (None, Some(1000), Status::Unhealthy),
            (None, Some(200), Status::Unhealthy),
            (None, None, Status::Unhealthy),
        ];
        for (process, pid1, status) in table {
            assert_eq!(judged(&file, process, pid1).status, status, "{process:?} {pid1:?}");
        }
        assert_eq!(judged(&file, None, Some(200)).reasons, [Reason::Gone { pid: 7 }]);

        let of_an_earlier_life = Report { written_at: ago(500), ..file };
        assert_eq!(judged(&of_an_earlier_life, None, Some(200)).status, Status::Starting);
        assert_eq!(judged(&of_an_earlier_life, started(Some(200)), Some(200)).status, Status::Starting);
    }

    #[test]
    fn a_missing_file_is_fine_while_the_container_may_still_start() {
        let error = ReadError::Missing { path: "/x".into() };
        let judged =
            |pid1_started_at| verdict(Err(&error), None, ago(0), StartPeriod { limit: seconds(300), pid1_started_at });
        let no_file = || Reason::NoFile { path: "/x".into() };
        let starting = judged(Some(ago(299)));
        assert!(starting.healthy());
        assert_eq!(starting.reasons, [no_file(), Reason::Starting { age: seconds(299), limit: seconds(300) }]);
        let late = judged(Some(ago(300)));
        assert_eq!(late.reasons, [no_file(), Reason::NotStarted { limit: seconds(300) }]);
        assert!(!late.healthy());
        assert_eq!(judged(None), Verdict { status: Status::Unhealthy, reasons: vec![no_file(), Reason::StartUnknown] });
    }

    #[test]
    fn a_locked_or_unreadable_file_is_unhealthy_even_at_the_start() {
        let start_period = StartPeriod { limit: seconds(300), pid1_started_at: Some(ago(1)) };
        let unreadable = ReadError::Unreadable { path: "/x".into(), why: super::super::Why::Oversize };
        for error in [ReadError::Locked { path: "/x".into() }, unreadable] {
            let verdict = verdict(Err(&error), None, ago(0), start_period);
            assert_eq!(verdict.reasons, [Reason::Unreadable(error.to_string())]);
            assert!(!verdict.healthy());
        }
    }
}
