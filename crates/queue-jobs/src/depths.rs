//! Counts of items out of the service's metrics, in the text format of Prometheus. No I/O.

use hostler_queue::Depth;

/// Metric with the number of unfinished items by type and state.
const ITEMS: &str = "hostler_jobs_items{";

/// Metric with a sample for each database of the service: 1 if its items are counted.
const UP: &str = "hostler_jobs_database_up";

/// Reads the counts of a type. `None`: the service could not count.
pub(crate) fn depth(metrics: &str, kind: &str) -> Option<Depth> {
    metrics.lines().filter_map(|line| line.strip_prefix(UP)).find(|rest| rest.trim_end().ends_with(" 1"))?;
    // A type has no characters that the format escapes.
    let of_type = format!("type=\"{kind}\"");
    let count = |state: &str| {
        let of_state = format!("state=\"{state}\"");
        let samples = metrics.lines().filter_map(|line| line.strip_prefix(ITEMS)?.split_once('}'));
        let samples = samples.filter(|(labels, _)| {
            labels.split(',').any(|label| label == of_type) && labels.split(',').any(|label| label == of_state)
        });
        samples.filter_map(|(_, value)| value.trim().parse::<u64>().ok()).sum()
    };
    Some(Depth {
        visible: count("ready"),
        delayed: Some(count("later")),
        in_flight: Some(count("assigned")),
        ..Depth::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_counted_by_type_and_state() {
        let metrics = "# TYPE hostler_jobs_items gauge\nhostler_jobs_database_up{database=\"db:5432/jobs\"} 1\n\
            hostler_jobs_database_up{database=\"db:5432/more\"} 0\n\
            hostler_jobs_items{type=\"a\",state=\"ready\"} 3\nhostler_jobs_items{type=\"a\",state=\"later\"} 2\n\
            hostler_jobs_items{type=\"a.b\",state=\"ready\"} 7\nhostler_jobs_items{type=\"a\",state=\"assigned\"} 1\n";
        let depth = |kind| depth(metrics, kind).map(|depth| (depth.visible, depth.delayed, depth.in_flight));
        assert_eq!(depth("a"), Some((3, Some(2), Some(1))));
        assert_eq!(depth("none"), Some((0, Some(0), Some(0))));
        assert!(super::depth("hostler_jobs_database_up{database=\"db:5432/jobs\"} 0\n", "a").is_none());
    }
}
