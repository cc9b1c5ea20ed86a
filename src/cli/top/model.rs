//! Computes the figures that `hostler top` shows from two snapshots of a host. Performs no I/O.

use std::collections::BTreeMap;
use std::time::Duration;

use super::metrics::Scrape;
use hostler_health::{BreakerState, ConsumerReport, FailureReport, Report, Timestamp};

/// Snapshot of a host. Contains the health file and, if available, the metrics.
#[derive(Debug, Clone)]
pub(super) struct Look {
    /// Time of the snapshot.
    pub(super) at: Timestamp,
    /// Content of the health file.
    pub(super) report: Report,
    /// Metrics. `None`: not available.
    pub(super) scrape: Option<Scrape>,
}

/// Figures of one consumer.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) state: &'static str,
    /// Time since the last change of state.
    pub(super) since: Duration,
    pub(super) busy: u32,
    pub(super) slots: Option<u32>,
    /// Number of messages per second that ended during the time `over`.
    pub(super) rate: f64,
    /// Number of messages per second that failed during the time `over`.
    pub(super) failure_rate: f64,
    /// Time that the rates cover: usually the time between the last two reports in the health file.
    pub(super) over: Duration,
    pub(super) processed: u64,
    pub(super) failed: u64,
    /// Median duration of the handler calls that ended between the two snapshots, in seconds. `p99` is the 99th percentile.
    pub(super) p50: Option<f64>,
    pub(super) p99: Option<f64>,
    pub(super) visible: Option<f64>,
    pub(super) dead_lettered: Option<f64>,
    /// Age of the oldest message in seconds.
    pub(super) oldest: Option<f64>,
    /// Age of the queue counts in seconds.
    pub(super) counted: Option<f64>,
    /// Number of messages by outcome, since the start of the host.
    pub(super) outcomes: BTreeMap<String, f64>,
    /// Latest failures, newest first, each with its age.
    pub(super) failures: Vec<(Duration, FailureReport)>,
}

/// Snapshots from which [`rows`] computes rates. `top` may read the health file more often than the host writes a new
/// report into the file. Therefore, a rate covers the time between two different reports, and does not change until the
/// next report.
#[derive(Debug, Default)]
pub(super) struct Looks {
    /// First snapshot that contains the second-to-last report.
    before: Option<Look>,
    /// First snapshot that contains the last report.
    last: Option<Look>,
}

impl Looks {
    /// Adds the next snapshot, and returns its rows.
    pub(super) fn rows(&mut self, now: &Look) -> Vec<Row> {
        if self.last.as_ref().is_none_or(|last| last.report.written_at != now.report.written_at) {
            self.before = self.last.replace(now.clone());
        }
        rows(self.before.as_ref(), now)
    }
}

/// Returns the rows of a snapshot, in the order of the health file. Rates cover the time since the report in `before`. Without
/// `before`, or after a restart of the host, rates cover the time since the start of the host.
pub(super) fn rows(before: Option<&Look>, now: &Look) -> Vec<Row> {
    let before = before.filter(|before| {
        let (before, now) = (&before.report, &now.report);
        before.pid == now.pid && before.started_at == now.started_at && before.written_at < now.written_at
    });
    let consumers = now.report.consumers.iter();
    consumers.map(|consumer| row(before, now, consumer)).collect()
}

fn row(before: Option<&Look>, now: &Look, consumer: &ConsumerReport) -> Row {
    let name = &consumer.name;
    let earlier = before.and_then(|look| look.report.consumers.iter().find(|consumer| consumer.name == *name));
    let since_when = before.map_or(now.report.started_at, |look| look.report.written_at);
    let seconds = now.report.written_at.since(since_when);
    let per_second = |now: u64, earlier: Option<u64>| {
        let done = now.saturating_sub(earlier.unwrap_or_default());
        if seconds.is_zero() { 0.0 } else { done as f64 / seconds.as_secs_f64() }
    };
    let scrape = now.scrape.as_ref();
    let metric = |metric: &str| scrape.and_then(|scrape| scrape.value(metric, name));
    let took = scrape.map(|scrape| scrape.buckets("messaging_process_duration_seconds", name)).unwrap_or_default();
    let took_before = before.and_then(|look| look.scrape.as_ref());
    let took_before =
        took_before.map(|scrape| scrape.buckets("messaging_process_duration_seconds", name)).unwrap_or_default();
    let took = since(&took_before, took);
    Row {
        name: name.clone(),
        state: state(consumer),
        since: now.at.since(consumer.transition_timestamp),
        busy: consumer.in_flight,
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count of slots")]
        slots: metric("hostler_slots").map(|slots| slots as u32),
        rate: per_second(consumer.processed, earlier.map(|earlier| earlier.processed)),
        failure_rate: per_second(consumer.failed, earlier.map(|earlier| earlier.failed)),
        over: seconds,
        processed: consumer.processed,
        failed: consumer.failed,
        p50: quantile(0.5, &took),
        p99: quantile(0.99, &took),
        visible: metric("hostler_queue_visible"),
        dead_lettered: metric("hostler_queue_dead_lettered"),
        oldest: metric("hostler_queue_oldest_age_seconds"),
        counted: metric("hostler_queue_counts_age_seconds"),
        outcomes: scrape
            .map(|scrape| scrape.by("hostler_messages_settled_total", name, "hostler_outcome"))
            .unwrap_or_default(),
        failures: consumer.last_failures.iter().map(|failure| (now.at.since(failure.at), failure.clone())).collect(),
    }
}

/// Returns the state of a consumer. If the consumer intentionally receives no messages, returns the reason instead.
fn state(consumer: &ConsumerReport) -> &'static str {
    match consumer.breaker {
        _ if consumer.paused => "PAUSED",
        Some(BreakerState::Open) => "BREAKER OPEN",
        Some(BreakerState::Probing) => "PROBING",
        None => consumer.state.name(),
    }
}

/// Returns the buckets of a histogram with only the observations that were made between two snapshots.
fn since(before: &[(f64, f64)], now: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    let counted = |bound: f64| before.iter().find(|(known, _)| *known == bound).map_or(0.0, |(_, count)| *count);
    now.into_iter().map(|(bound, count)| (bound, (count - counted(bound)).max(0.0))).collect()
}

/// Returns the quantile `share` of a histogram. For example, for a `share` of 0.99, returns the value that 99 % of all
/// observations do not exceed. Interpolates linearly within a bucket, as `histogram_quantile` in Prometheus does.
fn quantile(share: f64, buckets: &[(f64, f64)]) -> Option<f64> {
    let (_, all) = *buckets.last()?;
    if all <= 0.0 {
        return None;
    }
    let rank = share * all;
    let at = buckets.iter().position(|(_, count)| *count >= rank)?;
    let (upper, count) = buckets[at];
    let (lower, below) = if at == 0 { (0.0, 0.0) } else { buckets[at - 1] };
    if upper.is_infinite() {
        return Some(lower);
    }
    Some(lower + (upper - lower) * ((rank - below) / (count - below).max(f64::MIN_POSITIVE)).clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostler_types::State;

    fn look(seconds: u64, processed: u64, metrics: &str) -> Look {
        let start = Timestamp::from(std::time::UNIX_EPOCH + Duration::from_secs(1_000));
        let at = start.plus(Duration::from_secs(seconds));
        let consumer = ConsumerReport {
            name: "mails".into(),
            state: State::Processing,
            transition_timestamp: start,
            healthcheck_timeout: Duration::from_secs(90),
            last_poll_at: None,
            in_flight: 3,
            oldest_started_at: None,
            processed,
            failed: 2,
            paused: false,
            breaker: None,
            settling_fails: None,
            last_failures: Vec::new(),
        };
        let report = Report {
            schema: 1,
            pid: 7,
            pid_namespace: None,
            started_at: start,
            written_at: at,
            consumers: vec![consumer],
            others: Vec::new(),
            queue_link: None,
        };
        Look { at, report, scrape: (!metrics.is_empty()).then(|| Scrape::parse(metrics)) }
    }

    fn took(fast: u32, slow: u32) -> String {
        let series = "messaging_process_duration_seconds_bucket{hostler_consumer=\"mails\",le=";
        let all = fast + slow;
        format!("{series}\"0.1\"}} {fast}\n{series}\"1\"}} {all}\n{series}\"+Inf\"}} {all}\n")
    }

    #[test]
    fn rates_are_those_between_two_looks_of_one_process() {
        let (early, late) = (look(10, 100, ""), look(12, 150, ""));
        assert_eq!(rows(Some(&early), &late)[0].rate, 25.0);
        assert_eq!(rows(None, &late)[0].rate, 12.5);
        let mut failing = late.clone();
        failing.report.consumers[0].failed = 7;
        let row = &rows(Some(&early), &failing)[0];
        assert_eq!((row.failure_rate, row.over), (2.5, Duration::from_secs(2)), "five more in two seconds");
        let mut other = early.clone();
        other.report.pid = 8;
        assert_eq!(rows(Some(&other), &late)[0].rate, 12.5);
        // Two snapshots at the same time produce a rate of zero, rather than a division by zero.
        assert_eq!(rows(None, &look(0, 5, ""))[0].rate, 0.0);
    }

    #[test]
    fn a_rate_stays_until_there_is_another_report() {
        let mut looks = Looks::default();
        let mut rate_at = |milliseconds: u64, report: &Look| {
            let at = report.report.started_at.plus(Duration::from_millis(milliseconds));
            looks.rows(&Look { at, ..report.clone() })[0].rate
        };
        let [first, second, third] = [look(10, 100, ""), look(11, 150, ""), look(13, 160, "")];
        assert_eq!([rate_at(10_100, &first), rate_at(10_200, &first)], [10.0, 10.0]);
        // The rate depends neither on the time between two snapshots nor on the age of a report.
        assert_eq!([rate_at(11_050, &second), rate_at(11_500, &second), rate_at(12_900, &second)], [50.0; 3]);
        assert_eq!([rate_at(13_900, &third), rate_at(14_000, &third)], [5.0; 2]);
    }

    #[test]
    fn quantiles_are_those_between_two_looks() {
        let rows = rows(Some(&look(1, 0, &took(100, 0))), &look(2, 0, &took(150, 50)));
        assert_eq!(rows[0].p50, Some(0.1));
        assert!(rows[0].p99.is_some_and(|p99| (p99 - 0.982).abs() < 1e-9), "{:?}", rows[0].p99);
        assert_eq!(quantile(0.5, &[]), None);
        assert_eq!(quantile(0.5, &[(1.0, 0.0), (f64::INFINITY, 0.0)]), None);
        assert_eq!(quantile(0.5, &[(1.0, 0.0), (f64::INFINITY, 4.0)]), Some(1.0));
    }

    #[test]
    fn without_metrics_there_is_what_the_health_file_has() {
        let row = &rows(None, &look(2, 10, ""))[0];
        assert_eq!((row.state, row.busy, row.slots, row.p50, row.visible), ("PROCESSING", 3, None, None, None));
        assert_eq!((row.processed, row.failed, row.since), (10, 2, Duration::from_secs(2)));
        let mut look = look(2, 10, "");
        look.report.consumers[0].breaker = Some(BreakerState::Open);
        assert_eq!(rows(None, &look)[0].state, "BREAKER OPEN");
        look.report.consumers[0].paused = true;
        assert_eq!(rows(None, &look)[0].state, "PAUSED");
    }
}
