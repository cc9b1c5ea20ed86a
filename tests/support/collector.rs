//! An OTLP collector over HTTP and gRPC, built on OpenTelemetry's protocol definitions, which `tests/servers.sh` installs.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command};

use serde_json::Value;
use tempfile::TempDir;

use super::certificate::self_signed;
use super::hostler::{PATIENCE, until};
use super::servers::{installed, keeper, tail};

const COLLECTOR: &str = include_str!("collector.py");

/// A running collector. Dropping this value kills the collector. The end of this process also kills it.
pub struct Collector {
    keeper: Child,
    folder: TempDir,
    http: u64,
    grpc: u64,
}

/// A received data point of a metric.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// Kind of the metric: `gauge`, `sum` or `histogram`.
    pub kind: String,
    /// Temporality: 1 for delta, 2 for cumulative, 0 for gauges, which have no temporality.
    pub temporality: u64,
    pub attributes: Vec<(String, String)>,
    /// Value of the point. For a histogram, the count.
    pub value: f64,
}

impl Point {
    /// Returns true if the point has this attribute.
    pub fn has(&self, name: &str, value: &str) -> bool {
        self.attributes.iter().any(|(other, text)| other == name && text == value)
    }
}

impl Collector {
    /// Starts a collector. Waits until it listens.
    pub fn start() -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), &[])
    }

    /// Starts a collector that accepts gRPC only over TLS. Clients must be configured to trust its certificate.
    pub fn behind_tls() -> Self {
        let folder = tempfile::tempdir().unwrap();
        self_signed(folder.path(), "collector");
        Self::start_in(folder, &["key.pem", "cert.pem"])
    }

    fn start_in(folder: TempDir, files: &[&str]) -> Self {
        let mut command = Command::new(installed("collector").join("bin/python"));
        command.args(["-c", COLLECTOR]).args(files.iter().map(|file| folder.path().join(file)));
        command.env("HOME", folder.path());
        let mut keeper = keeper(folder.path(), &command);
        let ports = until("the collector", PATIENCE, || {
            assert!(keeper.try_wait().unwrap().is_none(), "it did not start:\n{}", tail(folder.path()));
            lines(&folder).into_iter().next()
        });
        let port = |name: &str| ports[name].as_u64().unwrap_or_else(|| panic!("{ports}"));
        Self { http: port("http"), grpc: port("grpc"), keeper, folder }
    }

    /// Returns the endpoint for OTLP over HTTP.
    pub fn over_http(&self) -> String {
        format!("http://127.0.0.1:{}", self.http)
    }

    /// Returns the endpoint for OTLP over gRPC.
    pub fn over_grpc(&self) -> String {
        format!("http://127.0.0.1:{}", self.grpc)
    }

    /// Returns the file with the certificate of a collector from [`Collector::behind_tls`].
    pub fn certificate(&self) -> PathBuf {
        self.folder.path().join("cert.pem")
    }

    /// Returns all requests so far, with their protocols, headers and contents.
    pub fn requests(&self) -> Vec<Value> {
        lines(&self.folder).into_iter().skip(1).collect()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        // `wait` first closes the keeper's standard input, which ends the keeper.
        let _ = self.keeper.wait();
    }
}

/// Returns the complete output lines of the collector so far.
fn lines(folder: &TempDir) -> Vec<Value> {
    let output = fs::read_to_string(folder.path().join("output")).unwrap_or_default();
    output
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'))
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

fn every(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

fn metrics(request: &Value) -> impl Iterator<Item = Value> {
    let resources = every(&request["request"]["resourceMetrics"]).into_iter();
    let scopes = resources.flat_map(|resource| every(&resource["scopeMetrics"]));
    scopes.flat_map(|scope| every(&scope["metrics"]))
}

/// Returns the names of all metrics in a request.
pub fn names_of(request: &Value) -> Vec<String> {
    metrics(request).map(|metric| metric["name"].as_str().unwrap().to_owned()).collect()
}

/// Returns the data points of a metric in a request.
pub fn points(request: &Value, name: &str) -> Vec<Point> {
    let mut points = Vec::new();
    for metric in metrics(request).filter(|metric| metric["name"] == name) {
        for kind in ["gauge", "sum", "histogram"] {
            let temporality = match metric[kind]["aggregationTemporality"].as_str() {
                Some("AGGREGATION_TEMPORALITY_DELTA") => 1,
                Some("AGGREGATION_TEMPORALITY_CUMULATIVE") => 2,
                _ => 0,
            };
            for point in every(&metric[kind]["dataPoints"]) {
                let attributes = every(&point["attributes"]).into_iter().map(|attribute| {
                    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                    (text(&attribute["key"]), text(&attribute["value"]["stringValue"]))
                });
                // JSON represents 64-bit integers as strings.
                let value = ["asInt", "count", "asDouble"].into_iter().find_map(|field| {
                    let value = &point[field];
                    value.as_f64().or_else(|| value.as_str()?.parse().ok())
                });
                let (kind, value) = (kind.to_owned(), value.unwrap_or(0.0));
                points.push(Point { kind, temporality, attributes: attributes.collect(), value });
            }
        }
    }
    points
}
