//! A third-party OTLP collector for one test, and the spans that it received.

use std::collections::BTreeSet;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command};
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::{Map, Value};
use tempfile::TempDir;

use super::hostler::{PATIENCE, until};
use super::servers::{installed, keeper, tail};

const COLLECTOR: &str = include_str!("rotel.py");

/// Script that prints every attribute of the published conventions, one per line.
const CONVENTIONS: &str = "
import importlib, pkgutil
from opentelemetry.semconv import attributes as stable
from opentelemetry.semconv._incubating import attributes as incubating
for package in (stable, incubating):
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + '.'):
        for name, value in vars(importlib.import_module(module.name)).items():
            if name.isupper() and isinstance(value, str):
                print(value)
";

/// Attributes in OpenTelemetry's own package.
pub static CONVENTION: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
    let output = Command::new(installed("otel").join("bin/python")).args(["-c", CONVENTIONS]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
});

/// A span, as the collector forwarded it. Ids are in hexadecimal. A span without a parent has an empty `parent`.
#[derive(Debug, Clone, Deserialize)]
pub struct Span {
    pub trace: String,
    pub id: String,
    pub parent: String,
    pub name: String,
    pub kind: String,
    pub attributes: Map<String, Value>,
    pub links: Vec<String>,
    pub start: u64,
    pub end: u64,
    pub error: bool,
    pub resource: Map<String, Value>,
    pub scope: String,
}

/// A running collector. Dropping this value kills the collector.
pub struct Collector {
    keeper: Child,
    folder: TempDir,
    grpc: SocketAddr,
    http: SocketAddr,
}

impl Collector {
    /// Starts a collector. Waits until it listens.
    pub fn start() -> Self {
        // No program listens on these addresses now. In rare cases, another program takes an address before the collector.
        let [grpc, http] = [(); 2].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        let [grpc, http] = [grpc, http].map(|listener| listener.local_addr().unwrap());
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(installed("otel").join("bin/python"));
        command.arg("-c").arg(COLLECTOR).args([grpc, http].map(|address| address.to_string()));
        command.env("HOME", folder.path()).env("TMPDIR", folder.path()).current_dir(folder.path());
        let keeper = keeper(folder.path(), &command);
        let mut collector = Self { keeper, folder, grpc, http };
        until("the collector", PATIENCE, || {
            let ended = collector.keeper.try_wait().unwrap().is_some();
            assert!(!ended, "it did not start:\n{}", tail(collector.folder.path()));
            [grpc, http].into_iter().all(|address| TcpStream::connect(address).is_ok()).then_some(())
        });
        collector
    }

    /// Returns the endpoint for OTLP over HTTP.
    pub fn http(&self) -> String {
        format!("http://{}", self.http)
    }

    /// Returns the endpoint for OTLP over gRPC.
    pub fn grpc(&self) -> String {
        format!("http://{}", self.grpc)
    }

    /// Returns all spans so far, in order of arrival.
    pub fn spans(&self) -> Vec<Span> {
        let output = fs::read_to_string(self.folder.path().join("output")).unwrap_or_default();
        // The last line may be incomplete, and some lines are messages of the collector itself.
        output.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Waits until spans with all these names have arrived. Returns all spans.
    pub fn wait_for(&self, names: &[&str]) -> Vec<Span> {
        until(&format!("spans {names:?}"), PATIENCE, || {
            let spans = self.spans();
            names.iter().all(|name| spans.iter().any(|span| span.name == *name)).then_some(spans)
        })
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        // `wait` first closes the keeper's standard input, which ends the keeper.
        let _ = self.keeper.wait();
    }
}
