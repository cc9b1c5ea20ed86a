//! Reads standard OpenTelemetry variables. Reads only the variables that the SDK does not read, or whose invalid values
//! the SDK ignores without a warning.
//!
//! Sources: OpenTelemetry specification, "Environment variable specification" and "OTLP exporter configuration".

use std::time::Duration;

use super::super::collector::{self, Protocol};
use super::super::variables::Reader;

/// Path for traces, appended to an endpoint that applies to both metrics and traces.
const PATH: &str = "/v1/traces";

/// Time limit for the delivery of a batch, unless `OTEL_EXPORTER_OTLP_TIMEOUT` sets another.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Default and maximum number of spans that wait to be sent. The number is limited, because each span takes memory.
const QUEUE: (usize, usize) = (2048, 8192);

/// Default number of spans per batch.
const BATCH: usize = 512;

/// Samplers that the SDK supports.
const SAMPLERS: &str =
    "always_on always_off traceidratio parentbased_always_on parentbased_always_off parentbased_traceidratio";

/// Settings from the variables and the config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Environment {
    /// Disables the sending of spans.
    pub(super) off: bool,
    pub(super) protocol: Protocol,
    /// Full URL for HTTP, address of the collector for gRPC.
    pub(super) endpoint: String,
    /// Time limit of a batch, including retries.
    pub(super) timeout: Duration,
    /// Maximum number of spans that wait to be sent.
    pub(super) queue: usize,
    /// Maximum number of spans per batch.
    pub(super) batch: usize,
    /// Set if the environment names no valid sampler. hostler's own sampler then applies.
    pub(super) own_sampler: bool,
    /// Warnings for the log. The standard requires that invalid values are ignored.
    pub(super) warnings: Vec<String>,
}

impl Environment {
    /// Reads the variables through `get`. `endpoint`: URL of the collector from the config.
    pub(super) fn read(endpoint: &str, get: impl Fn(&str) -> Option<String>) -> Self {
        let mut reader = Reader::new(get);
        let off = reader.set("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"))
            || reader.word("OTEL_TRACES_EXPORTER", &["otlp", "none"]).as_deref() == Some("none");
        let protocols = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];
        let protocol = collector::protocol(&mut reader, protocols);
        let timeout = reader.first(["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"], Reader::number);
        let own_sampler = sampler(&mut reader).is_none();
        let queue = queue(&mut reader);
        let batch = reader.number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE").unwrap_or(BATCH as u64);
        for name in ["OTEL_BSP_SCHEDULE_DELAY", "OTEL_BSP_EXPORT_TIMEOUT"] {
            reader.number(name);
        }
        Self {
            off,
            protocol,
            endpoint: collector::endpoint(reader.set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), endpoint, protocol, PATH),
            timeout: timeout.map_or(TIMEOUT, Duration::from_millis).max(Duration::from_millis(1)),
            queue,
            batch: usize::try_from(batch).unwrap_or(queue).clamp(1, queue),
            own_sampler,
            warnings: reader.into_warnings(),
        }
    }
}

/// Returns the maximum number of spans that wait to be sent, from the environment of this process.
pub(super) fn queue_of_process() -> usize {
    queue(&mut Reader::of_process())
}

fn queue<F: Fn(&str) -> Option<String>>(reader: &mut Reader<F>) -> usize {
    let queue = reader.number("OTEL_BSP_MAX_QUEUE_SIZE").unwrap_or(QUEUE.0 as u64);
    usize::try_from(queue).unwrap_or(QUEUE.1).clamp(1, QUEUE.1)
}

/// Returns the sampler that the environment names. The SDK reads this variable itself, but ignores invalid values
/// without a warning.
fn sampler<F: Fn(&str) -> Option<String>>(reader: &mut Reader<F>) -> Option<String> {
    let sampler = reader.word("OTEL_TRACES_SAMPLER", &SAMPLERS.split(' ').collect::<Vec<_>>());
    let takes_ratio = sampler.as_deref().is_some_and(|name| name.ends_with("ratio"));
    let argument = "OTEL_TRACES_SAMPLER_ARG";
    match (takes_ratio, reader.set(argument)) {
        (true, Some(value)) if !value.parse().is_ok_and(|ratio: f64| (0.0..=1.0).contains(&ratio)) => {
            reader.wrong(argument, &value, "a number from 0 to 1");
        }
        _ => {}
    }
    sampler
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Environment {
        read_at("http://collector:4318/", variables)
    }

    fn read_at(endpoint: &str, variables: &[(&str, &str)]) -> Environment {
        Environment::read(endpoint, |name| {
            variables.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn without_variables_it_is_protobuf_over_http_to_the_path_of_the_standard() {
        let expected = Environment {
            off: false,
            protocol: Protocol::Http,
            endpoint: "http://collector:4318/v1/traces".into(),
            timeout: Duration::from_secs(10),
            queue: 2048,
            batch: 512,
            own_sampler: true,
            warnings: Vec::new(),
        };
        assert_eq!(read(&[]), expected);
        assert_eq!(read(&[("OTEL_SDK_DISABLED", ""), ("OTEL_EXPORTER_OTLP_PROTOCOL", "")]), expected);
        assert_eq!(read_at("https://c/?tenant=a", &[]).endpoint, "https://c/v1/traces?tenant=a");
    }

    #[test]
    fn the_variable_of_traces_wins_over_the_one_of_all_signals() {
        let both = |traces, all| {
            let environment = read(&[
                ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", traces),
                ("OTEL_EXPORTER_OTLP_PROTOCOL", all),
                ("OTEL_EXPORTER_OTLP_TIMEOUT", "2500"),
            ]);
            (environment.protocol, environment.endpoint, environment.timeout.as_millis())
        };
        assert_eq!(both("", "GRPC"), (Protocol::Grpc, "http://collector:4318/".into(), 2500));
        assert_eq!(both("http/protobuf", "grpc").0, Protocol::Http);
        let own =
            read(&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://a/b"), ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "1")]);
        assert_eq!((own.endpoint.as_str(), own.timeout.as_millis()), ("https://a/b", 1));
    }

    #[test]
    fn it_can_be_switched_off() {
        assert!(read(&[("OTEL_SDK_DISABLED", "True")]).off && read(&[("OTEL_TRACES_EXPORTER", "none")]).off);
        assert!(!read(&[("OTEL_SDK_DISABLED", "1")]).off && !read(&[("OTEL_TRACES_EXPORTER", "otlp")]).off);
    }

    #[test]
    fn what_is_wrong_is_named_and_passed_over() {
        let wrong = [
            ("OTEL_TRACES_EXPORTER", "zipkin"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
            ("OTEL_TRACES_SAMPLER", "xray"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "-1"),
            ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "many"),
            ("OTEL_BSP_SCHEDULE_DELAY", "?"),
        ];
        let environment = read(&wrong);
        for (name, value) in wrong {
            let named = |warning: &String| warning.starts_with(name) && warning.contains(value);
            assert!(environment.warnings.iter().any(named), "{name}: {:?}", environment.warnings);
        }
        assert_eq!(environment.warnings.len(), wrong.len());
        assert_eq!(Environment { warnings: Vec::new(), ..environment }, read(&[]));
        let ratio = |ratio| {
            let variables = [("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", ratio)];
            read(&variables).warnings.len()
        };
        assert_eq!([ratio("0.25"), ratio("1"), ratio("2"), ratio("NaN"), ratio("half")], [0, 0, 1, 1, 1]);
    }

    #[test]
    fn no_queue_is_without_bound_and_none_is_empty() {
        let sizes = |queue, batch| {
            let environment = read(&[("OTEL_BSP_MAX_QUEUE_SIZE", queue), ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", batch)]);
            (environment.queue, environment.batch)
        };
        assert_eq!(sizes("1000000000000", "4000000000000"), (8192, 8192));
        // The reserved memory is that of a full queue.
        let set_aside = [read(&[]).queue, sizes("8192", "").0].map(super::super::footprint_of);
        assert_eq!(set_aside, [16 << 20, 64 << 20]);
        assert_eq!(sizes("0", "0"), (1, 1));
        assert_eq!(sizes("100", ""), (100, 100));
    }
}
