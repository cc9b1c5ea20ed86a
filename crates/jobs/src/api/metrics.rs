//! Counters of requests, and the text for Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::fanout::state::FanoutCounts;
use crate::shards::Summed;

/// Upper bounds of the buckets of latency, in seconds.
const BOUNDS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

/// The requests to one route with one method.
#[derive(Debug, Clone, Default)]
struct Route {
    statuses: BTreeMap<u16, u64>,
    buckets: [u64; BOUNDS.len()],
    count: u64,
    seconds: f64,
}

/// The counters of a server.
#[derive(Debug, Default)]
pub struct Metrics(Mutex<BTreeMap<(String, String), Route>>);

impl Metrics {
    /// Counts a request. `route` must be the pattern of the route, so that the number of series is bounded.
    pub fn count(&self, method: &str, route: &str, status: u16, took: Duration) {
        let mut routes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = routes.entry((route.to_owned(), method.to_owned())).or_default();
        *entry.statuses.entry(status).or_default() += 1;
        let seconds = took.as_secs_f64();
        for (bucket, _) in entry.buckets.iter_mut().zip(BOUNDS).filter(|(_, bound)| seconds <= *bound) {
            *bucket += 1;
        }
        entry.count += 1;
        entry.seconds += seconds;
    }

    /// Writes the counters of requests in Prometheus' text format.
    pub fn requests(&self) -> String {
        let routes = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut text = String::new();
        head(&mut text, "hostler_jobs_requests_total", "counter", "Requests by route, method and status.");
        for ((route, method), entry) in &routes {
            for (status, count) in &entry.statuses {
                let labels = format!("route=\"{}\",method=\"{method}\",status=\"{status}\"", escape(route));
                sample(&mut text, "hostler_jobs_requests_total", &labels, *count);
            }
        }
        let name = "hostler_jobs_request_duration_seconds";
        head(&mut text, name, "histogram", "Time until the answer was ready, waits of long polls included.");
        for ((route, method), entry) in &routes {
            let labels = format!("route=\"{}\",method=\"{method}\"", escape(route));
            let finite = BOUNDS.iter().zip(entry.buckets).map(|(bound, count)| (bound.to_string(), count));
            for (bound, count) in finite.chain([("+Inf".to_owned(), entry.count)]) {
                sample(&mut text, &format!("{name}_bucket"), &format!("{labels},le=\"{bound}\""), count);
            }
            sample(&mut text, &format!("{name}_sum"), &labels, entry.seconds);
            sample(&mut text, &format!("{name}_count"), &labels, entry.count);
        }
        text
    }
}

/// Writes the counts of the databases that answered, and which did.
pub fn databases(summed: &Summed<'_>) -> String {
    let mut text = String::new();
    head(&mut text, "hostler_jobs_database_up", "gauge", "1 for each database that answered.");
    for (place, is_up) in &summed.up {
        let label = format!("database=\"{}\"", escape(place));
        sample(&mut text, "hostler_jobs_database_up", &label, u8::from(*is_up));
    }
    let Some(counts) = &summed.counts else { return text };
    head(&mut text, "hostler_jobs_items", "gauge", "Unfinished items by type and state.");
    for (state, by_type) in [("ready", &counts.ready), ("later", &counts.later), ("assigned", &counts.assigned)] {
        for (kind, count) in by_type {
            sample(&mut text, "hostler_jobs_items", &format!("type=\"{}\",state=\"{state}\"", escape(kind)), *count);
        }
    }
    let gauges = [
        (
            "hostler_jobs_items_waiting",
            "Items behind an older one of their serialize key, among the first 10,000 with keys.",
            counts.waiting,
        ),
        ("hostler_jobs_open_trees", "Trees that are not complete.", counts.open_trees),
        ("hostler_jobs_open_jobs", "Jobs that are not complete.", counts.open_jobs),
        ("hostler_jobs_callbacks", "Callbacks that are to be delivered.", counts.callbacks),
        ("hostler_jobs_dead_callbacks", "Callbacks that were given up.", counts.dead_callbacks),
    ];
    for (name, help, value) in gauges {
        head(&mut text, name, "gauge", help);
        sample(&mut text, name, "", value);
    }
    head(&mut text, "hostler_jobs_oldest_ready_seconds", "gauge", "Age of the oldest ready item.");
    sample(&mut text, "hostler_jobs_oldest_ready_seconds", "", counts.oldest_ready_seconds);
    text
}

/// Writes the lag of each sweep in seconds.
pub fn sweeps(lags: &[(&'static str, f64)]) -> String {
    let (mut text, name) = (String::new(), "hostler_jobs_sweep_lag_seconds");
    head(&mut text, name, "gauge", "Time since each sweep of this server last ended well, or since the start.");
    for (sweep, seconds) in lags {
        sample(&mut text, name, &format!("sweep=\"{sweep}\""), *seconds);
    }
    text
}

/// Writes the counts of the fan-out.
pub fn fanout(counts: &FanoutCounts) -> String {
    let mut text = String::new();
    let up = u64::from(counts.faults.is_empty());
    let samples = [
        ("hostler_jobs_fanout_up", "gauge", "0 while the fan-out is degraded.", up),
        ("hostler_jobs_fanout_outbox", "gauge", "Ids on their way to the broker, at the last look.", counts.outbox),
        ("hostler_jobs_fanout_published_total", "counter", "Ids that the broker confirmed.", counts.published),
        ("hostler_jobs_fanout_searched_total", "counter", "Ids that were published again as lost.", counts.searched),
        ("hostler_jobs_fanout_notified_total", "counter", "Notifications to other instances.", counts.notified),
    ];
    for (name, kind, help, value) in samples {
        head(&mut text, name, kind, help);
        sample(&mut text, name, "", value);
    }
    text
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn sample(text: &mut String, name: &str, labels: &str, value: impl std::fmt::Display) {
    let _ =
        if labels.is_empty() { writeln!(text, "{name} {value}") } else { writeln!(text, "{name}{{{labels}}} {value}") };
}

/// Escapes the value of a label.
fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Counts;

    #[test]
    fn requests_are_counted_by_route_and_status() {
        let metrics = Metrics::default();
        metrics.count("POST", "/job", 201, Duration::from_millis(3));
        metrics.count("POST", "/job", 409, Duration::from_secs(60));
        let text = metrics.requests();
        for line in [
            "hostler_jobs_requests_total{route=\"/job\",method=\"POST\",status=\"201\"} 1",
            "hostler_jobs_request_duration_seconds_bucket{route=\"/job\",method=\"POST\",le=\"0.0025\"} 0",
            "hostler_jobs_request_duration_seconds_bucket{route=\"/job\",method=\"POST\",le=\"0.005\"} 1",
            "hostler_jobs_request_duration_seconds_bucket{route=\"/job\",method=\"POST\",le=\"+Inf\"} 2",
            "hostler_jobs_request_duration_seconds_count{route=\"/job\",method=\"POST\"} 2",
        ] {
            assert!(text.lines().any(|known| known == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn counts_of_the_store_are_gauges() {
        let counts = Counts { ready: vec![("a".to_owned(), 3)], waiting: 2, ..Counts::default() };
        let text =
            databases(&Summed { counts: Some(counts), up: vec![("db:5432/jobs", true), ("db:5432/more", false)] });
        assert!(text.contains("\nhostler_jobs_database_up{database=\"db:5432/jobs\"} 1\n"), "{text}");
        assert!(text.contains("\nhostler_jobs_database_up{database=\"db:5432/more\"} 0\n"), "{text}");
        assert!(text.contains("\nhostler_jobs_items{type=\"a\",state=\"ready\"} 3\n"), "{text}");
        assert!(text.contains("\nhostler_jobs_items_waiting 2\n"), "{text}");
        assert!(sweeps(&[("fold", 0.5)]).ends_with("\nhostler_jobs_sweep_lag_seconds{sweep=\"fold\"} 0.5\n"));
        let none = databases(&Summed { counts: None, up: vec![("db:5432/jobs", false)] });
        assert!(none.ends_with("\nhostler_jobs_database_up{database=\"db:5432/jobs\"} 0\n"), "{none}");
    }
}
