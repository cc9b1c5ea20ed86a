//! Converts metrics to lines of CloudWatch's embedded metric format (specification: "Embedded metric format document
//! structure"). No I/O.
//!
//! CloudWatch charges for each metric of each consumer. Therefore, only the values for alarms and scaling are declared
//! as metrics. All other values are plain members of the line, which queries of the log can use.

use std::collections::BTreeMap;

use opentelemetry::{Key, KeyValue};
use opentelemetry_sdk::metrics::data::{
    AggregatedMetrics, Gauge, Histogram, HistogramDataPoint, Metric, MetricData, ResourceMetrics, Sum,
};
use serde_json::{Map, Value, json};

use super::super::names;
use super::quantile::Counted;

/// Namespace of the metrics in CloudWatch.
const NAMESPACE: &str = "hostler";

/// Dimensions that distinguish metrics with the same name.
const DIMENSIONS: [&str; 2] = ["service", "consumer"];

/// Metrics that are plain members of a line, not declared as CloudWatch metrics.
const PLAIN: [&str; 10] = [
    names::MESSAGING_CLIENT_CONSUMED_MESSAGES,
    names::MESSAGING_CLIENT_SENT_MESSAGES,
    names::MESSAGING_CLIENT_OPERATION_DURATION,
    names::ATTEMPTS,
    names::BATCH_SIZE,
    names::INSTANTIATION,
    names::LEASES_EXTENDED,
    names::QUEUE_DELAYED,
    names::QUEUE_COUNTS_AGE,
    names::TICK_DELAY,
];

/// Values of one consumer.
#[derive(Default)]
struct Line {
    channel: String,
    state: &'static str,
    outcomes: BTreeMap<String, u64>,
    /// Values by name. Each has its CloudWatch unit and a flag that is set if the value is declared as a metric.
    values: BTreeMap<String, (f64, &'static str, bool)>,
    /// Histograms by name. Each has its CloudWatch unit and a flag that is set if its values are declared as metrics.
    counted: BTreeMap<String, (Counted, &'static str, bool)>,
}

/// Returns one line per consumer, sorted by the name of the consumer. `metrics`: the changes of one interval (delta).
/// `now`: time in milliseconds since 1970.
pub(super) fn lines(metrics: &ResourceMetrics, now: u64) -> Vec<String> {
    let mut lines: BTreeMap<String, Line> = BTreeMap::new();
    let mut host = Line::default();
    for metric in metrics.scope_metrics().flat_map(|scope| scope.metrics()) {
        gather(metric, &mut lines, &mut host);
    }
    let service = metrics.resource().get(&Key::from_static_str(names::SERVICE_NAME));
    let service = service.map(|name| name.to_string()).unwrap_or_default();
    let resource = metrics.resource().iter().map(|(name, value)| (name.to_string(), json!(value.to_string())));
    let resource: Value = resource.collect::<BTreeMap<_, _>>().into_iter().collect::<Map<_, _>>().into();
    lines.into_iter().map(|(consumer, line)| line.text(&host, &service, &consumer, &resource, now)).collect()
}

fn gather(metric: &Metric, lines: &mut BTreeMap<String, Line>, host: &mut Line) {
    let kind = Kind::of(metric);
    match metric.data() {
        AggregatedMetrics::U64(MetricData::Sum(sum)) => sums(&kind, sum, lines),
        AggregatedMetrics::U64(MetricData::Gauge(gauge)) => gauges(&kind, gauge, lines, |value| value as f64),
        AggregatedMetrics::F64(MetricData::Gauge(gauge)) => gauges(&kind, gauge, lines, |value| value),
        AggregatedMetrics::U64(MetricData::Histogram(values)) => {
            histograms(&kind, values, lines, host, |sum| sum as f64)
        }
        AggregatedMetrics::F64(MetricData::Histogram(values)) => histograms(&kind, values, lines, host, |sum| sum),
        _ => {}
    }
}

/// Name and unit of a metric in CloudWatch, and a flag that is set if its values are declared as metrics.
struct Kind<'a> {
    name: &'a str,
    unit: &'static str,
    declared: bool,
}

impl<'a> Kind<'a> {
    fn of(metric: &'a Metric) -> Self {
        let unit = match metric.unit() {
            "s" => "Seconds",
            "By" => "Bytes",
            _ => "Count",
        };
        Self { name: metric.name(), unit, declared: !PLAIN.contains(&metric.name()) }
    }
}

fn sums(kind: &Kind<'_>, sum: &Sum<u64>, lines: &mut BTreeMap<String, Line>) {
    for point in sum.data_points() {
        let attributes: Vec<_> = point.attributes().collect();
        let Some(line) = line_of(&attributes, lines) else { continue };
        let mut add = |name: String| {
            let value = line.values.entry(name).or_insert((0.0, kind.unit, kind.declared));
            value.0 += point.value() as f64;
        };
        add(kind.name.to_owned());
        if kind.name == names::SETTLED {
            if let Some(disposition) = attribute(&attributes, names::DISPOSITION) {
                add(format!("{}.{disposition}", kind.name));
            }
            if let Some(outcome) = attribute(&attributes, names::OUTCOME).filter(|_| point.value() > 0) {
                *line.outcomes.entry(outcome).or_default() += point.value();
            }
        }
    }
}

fn gauges<T: Copy>(kind: &Kind<'_>, gauge: &Gauge<T>, lines: &mut BTreeMap<String, Line>, number: impl Fn(T) -> f64) {
    for point in gauge.data_points() {
        let attributes: Vec<_> = point.attributes().collect();
        let Some(line) = line_of(&attributes, lines) else { continue };
        let value = number(point.value());
        if kind.name == names::HEALTH_STATE {
            let state = attribute(&attributes, names::STATE).filter(|_| value > 0.0);
            let state = state.and_then(|state| names::STATES.into_iter().find(|known| *known == state));
            line.state = state.unwrap_or(line.state);
            continue;
        }
        line.values.insert(kind.name.to_owned(), (value, kind.unit, kind.declared));
    }
}

fn histograms<T: Copy>(
    kind: &Kind<'_>,
    histogram: &Histogram<T>,
    lines: &mut BTreeMap<String, Line>,
    host: &mut Line,
    number: impl Fn(T) -> f64 + Copy,
) {
    for point in histogram.data_points() {
        let attributes: Vec<_> = point.attributes().collect();
        // A histogram without a consumer belongs to the host.
        let line = line_of(&attributes, lines).unwrap_or(&mut *host);
        let name = match attribute(&attributes, names::MESSAGING_OPERATION_NAME) {
            Some(operation) if kind.name == names::MESSAGING_CLIENT_OPERATION_DURATION => {
                format!("{}.{operation}", kind.name)
            }
            _ => kind.name.to_owned(),
        };
        let counted = line.counted.entry(name).or_insert_with(|| (Counted::default(), kind.unit, kind.declared));
        counted.0.add(values(point, number));
    }
}

fn values<T: Copy>(point: &HistogramDataPoint<T>, number: impl Fn(T) -> f64) -> Counted {
    Counted {
        bounds: point.bounds().collect(),
        buckets: point.bucket_counts().collect(),
        count: point.count(),
        sum: number(point.sum()),
        min: point.min().map(&number),
        max: point.max().map(&number),
    }
}

fn attribute(attributes: &[&KeyValue], name: &str) -> Option<String> {
    attributes.iter().find(|attribute| attribute.key.as_str() == name).map(|found| found.value.to_string())
}

/// Returns the line of the consumer that the attributes name. Adds the line if it is missing. `None`: the attributes
/// name no consumer.
fn line_of<'l>(attributes: &[&KeyValue], lines: &'l mut BTreeMap<String, Line>) -> Option<&'l mut Line> {
    let consumer = attribute(attributes, names::CONSUMER)?;
    let line = lines.entry(consumer).or_default();
    if line.channel.is_empty() {
        line.channel = attribute(attributes, names::MESSAGING_DESTINATION_NAME).unwrap_or_default();
    }
    Some(line)
}

impl Line {
    fn text(&self, host: &Self, service: &str, consumer: &str, resource: &Value, now: u64) -> String {
        let mut declared = Vec::new();
        let mut members = Map::new();
        let mut add = |name: String, value: f64, unit: &str, is_declared: bool| {
            if is_declared {
                declared.push(json!({ "Name": name, "Unit": unit, "StorageResolution": 60 }));
            }
            members.insert(name, number(value));
        };
        for (name, (value, unit, is_declared)) in &self.values {
            add(name.clone(), *value, unit, *is_declared);
        }
        for (name, (counted, unit, is_declared)) in self.counted.iter().chain(&host.counted) {
            let of = [("avg", counted.mean()), ("p99", counted.quantile(0.99)), ("max", counted.max)];
            for (what, value) in of {
                if let Some(value) = value {
                    add(format!("{name}.{what}"), value, unit, *is_declared);
                }
            }
        }
        let directive = json!({ "Namespace": NAMESPACE, "Dimensions": [DIMENSIONS], "Metrics": declared });
        let mut line = Map::new();
        line.insert("_aws".into(), json!({ "Timestamp": now, "CloudWatchMetrics": [directive] }));
        line.insert("service".into(), service.into());
        line.insert("consumer".into(), consumer.into());
        line.insert("channel".into(), self.channel.as_str().into());
        line.insert("state".into(), self.state.into());
        line.insert("outcomes".into(), json!(self.outcomes));
        line.extend(members);
        line.insert("resource".into(), resource.clone());
        Value::Object(line).to_string()
    }
}

/// Converts a number to JSON. A whole number gets no decimal point.
fn number(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() < 1e15 { json!(value as i64) } else { json!(value) }
}

#[cfg(test)]
mod tests {
    use opentelemetry::metrics::MeterProvider as _;
    use opentelemetry_sdk::metrics::SdkMeterProvider;

    use super::super::super::reader::Reader;
    use super::*;

    #[test]
    fn what_the_host_measures_of_itself_is_in_each_line_and_declared_in_none() {
        let reader = Reader::delta();
        let provider = SdkMeterProvider::builder().with_reader(reader.clone()).build();
        let meter = provider.meter("test");
        meter.f64_histogram(names::TICK_DELAY).with_unit("s").build().record(0.5, &[]);
        let slots = meter.u64_gauge(names::SLOTS).build();
        let consumers = ["a", "b"];
        consumers.iter().for_each(|consumer| slots.record(4, &[KeyValue::new(names::CONSUMER, *consumer)]));
        let lines = lines(&reader.read().unwrap(), 0);
        assert_eq!(lines.len(), consumers.len());
        for line in lines {
            let line: Value = serde_json::from_str(&line).unwrap();
            assert_eq!(line["hostler.host.tick_delay.max"], 0.5, "{line}");
            let declared = line["_aws"]["CloudWatchMetrics"][0]["Metrics"].as_array().unwrap();
            let names: Vec<_> = declared.iter().map(|metric| metric["Name"].as_str().unwrap()).collect();
            assert_eq!(names, [names::SLOTS]);
        }
    }
}
