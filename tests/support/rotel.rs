//! An OTLP collector of others, and what it got: started by a test, gone with it.

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

/// Prints every attribute of the published conventions, a line each.
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

/// What OpenTelemetry's own package has of attributes.
pub static CONVENTION: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
    let output = Command::new(installed("otel").join("bin/python")).args(["-c", CONVENTIONS]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
});

/// A span, as the collector passed it on. Ids are in hexadecimal; a span without a parent has an empty one.
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

/// A running collector. Dropping it kills it.
pub struct Collector {
    keeper: Child,
    folder: TempDir,
    grpc: SocketAddr,
    http: SocketAddr,
}

impl Collector {
    /// Starts one, and waits until it listens.
    pub fn start() -> Self {
        // Nobody listens on these now. That nobody will before the collector does is likely, not certain.
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

    /// Where it takes OTLP over HTTP.
    pub fn http(&self) -> String {
        format!("http://{}", self.http)
    }

    /// Where it takes OTLP over gRPC.
    pub fn grpc(&self) -> String {
        format!("http://{}", self.grpc)
    }

    /// All spans so far, in the order in which they came.
    pub fn spans(&self) -> Vec<Span> {
        let output = fs::read_to_string(self.folder.path().join("output")).unwrap_or_default();
        // The last line may be half written, and the collector itself says a few.
        output.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The spans, once there are some of all these names.
    pub fn wait_for(&self, names: &[&str]) -> Vec<Span> {
        until(&format!("spans {names:?}"), PATIENCE, || {
            let spans = self.spans();
            names.iter().all(|name| spans.iter().any(|span| span.name == *name)).then_some(spans)
        })
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        // Waiting closes its standard input first.
        let _ = self.keeper.wait();
    }
}
