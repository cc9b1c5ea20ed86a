//! Parses the parts of the Prometheus text format, version 0.0.4, that `hostler top` needs.

use std::collections::BTreeMap;

/// A sample: one series with its value.
#[derive(Debug, Clone, PartialEq)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

/// All samples of one scrape.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Scrape {
    samples: Vec<Sample>,
}

/// Label with the name of the consumer.
const CONSUMER: &str = "hostler_consumer";

impl Scrape {
    /// Parses a scrape. Skips malformed lines, and parses all others.
    pub(super) fn parse(text: &str) -> Self {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        Self { samples: lines.filter_map(sample).collect() }
    }

    fn of<'a>(&'a self, name: &'a str, consumer: &'a str) -> impl Iterator<Item = &'a Sample> {
        let is_asked = move |sample: &&Sample| {
            sample.name == name && sample.labels.get(CONSUMER).is_some_and(|label| label == consumer)
        };
        self.samples.iter().filter(is_asked)
    }

    /// Returns the sum over all series of this metric and consumer. `None`: no series exists.
    pub(super) fn value(&self, name: &str, consumer: &str) -> Option<f64> {
        self.of(name, consumer).map(|sample| sample.value).reduce(|sum, value| sum + value)
    }

    /// Returns the sum over the series of this metric and consumer for each value of `label`.
    pub(super) fn by(&self, name: &str, consumer: &str, label: &str) -> BTreeMap<String, f64> {
        let mut sums = BTreeMap::new();
        for sample in self.of(name, consumer) {
            if let Some(word) = sample.labels.get(label) {
                *sums.entry(word.clone()).or_default() += sample.value;
            }
        }
        sums
    }

    /// Returns the buckets of a consumer's histogram, sorted by bound. Each bucket has a bound, and the number of observations at
    /// or below the bound.
    pub(super) fn buckets(&self, name: &str, consumer: &str) -> Vec<(f64, f64)> {
        let mut counts: Vec<(f64, f64)> = Vec::new();
        for sample in self.of(&format!("{name}_bucket"), consumer) {
            let Some(bound) = sample.labels.get("le").and_then(|bound| number(bound)) else { continue };
            match counts.iter_mut().find(|(known, _)| *known == bound) {
                Some((_, count)) => *count += sample.value,
                None => counts.push((bound, sample.value)),
            }
        }
        counts.sort_by(|a, b| a.0.total_cmp(&b.0));
        counts
    }
}

/// Parses a line of the form `name{label="value",…} value [timestamp]`.
fn sample(line: &str) -> Option<Sample> {
    let name_ends = line.find(['{', ' ', '\t'])?;
    let (name, mut rest) = line.split_at(name_ends);
    let mut labels = BTreeMap::new();
    if let Some(list) = rest.strip_prefix('{') {
        rest = read_labels(list, &mut labels)?;
    }
    let value = number(rest.split_whitespace().next()?)?;
    Some(Sample { name: name.to_owned(), labels, value })
}

/// Parses labels up to the closing brace. Returns the text that follows the brace.
fn read_labels<'a>(mut list: &'a str, labels: &mut BTreeMap<String, String>) -> Option<&'a str> {
    loop {
        list = list.trim_start_matches([',', ' ']);
        if let Some(rest) = list.strip_prefix('}') {
            return Some(rest);
        }
        let (label, quoted) = list.split_once("=\"")?;
        let mut value = String::new();
        let mut chars = quoted.char_indices();
        let ends = loop {
            match chars.next()? {
                (at, '"') => break at,
                (_, '\\') => match chars.next()?.1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                (_, plain) => value.push(plain),
            }
        };
        labels.insert(label.trim().to_owned(), value);
        list = &quoted[ends + 1..];
    }
}

fn number(text: &str) -> Option<f64> {
    match text {
        "+Inf" => Some(f64::INFINITY),
        "-Inf" => Some(f64::NEG_INFINITY),
        text => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
# HELP hostler_slots slots
# TYPE hostler_slots gauge
hostler_slots{hostler_consumer="mails",otel_scope_name="hostler"} 16
hostler_messages_settled_total{hostler_consumer="mails",hostler_outcome="ack"} 90 1700000000000
hostler_messages_settled_total{hostler_consumer="mails",hostler_outcome="failed"} 10
hostler_messages_settled_total{hostler_consumer="others",hostler_outcome="ack"} 7
odd{hostler_consumer="a\"b\\c\nd, }"} NaN
waits_bucket{hostler_consumer="mails",le="+Inf"} 4
waits_bucket{hostler_consumer="mails",le="0.1"} 1
waits_bucket{hostler_consumer="mails",le="2"} 3
"#;

    #[test]
    fn series_are_found_by_consumer() {
        let scrape = Scrape::parse(TEXT);
        assert_eq!(scrape.value("hostler_slots", "mails"), Some(16.0));
        assert_eq!(scrape.value("hostler_slots", "others"), None);
        assert_eq!(scrape.value("hostler_messages_settled_total", "mails"), Some(100.0));
        let by = scrape.by("hostler_messages_settled_total", "mails", "hostler_outcome");
        assert_eq!(by, BTreeMap::from([("ack".to_owned(), 90.0), ("failed".to_owned(), 10.0)]));
        assert!(scrape.value("odd", "a\"b\\c\nd, }").is_some_and(f64::is_nan));
        assert_eq!(scrape.buckets("waits", "mails"), [(0.1, 1.0), (2.0, 3.0), (f64::INFINITY, 4.0)]);
    }

    #[test]
    fn what_is_no_sample_is_passed_over() {
        for text in
            ["", "name", "name{", "name{a=\"", "name{a=\"b\\", "name{a=\"b\"} x", "name{a} 1", "{} 1 2 3", "\u{0}"]
        {
            let _ = Scrape::parse(text);
        }
        assert_eq!(Scrape::parse("a 1\nname{a=\"b\"\nb 2").samples.len(), 2);
    }
}
