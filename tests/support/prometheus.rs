//! Prometheus: scrapes of an endpoint, the linter of Prometheus, and the real server. `tests/servers.sh` installs both programs.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use super::hostler::{PATIENCE, until};
use super::servers::{installed, keeper, tail};

/// Returns an address on which no program listens now. In rare cases, another program takes the address before its use.
pub fn free_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}

/// Sends a GET request. Returns the status and the body of the answer.
pub fn get(address: SocketAddr, path: &str) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let bad = || io::Error::other(format!("no HTTP: {answer:?}"));
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(bad)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(bad)?;
    Ok((status, body.to_owned()))
}

/// Result of one scrape.
#[derive(Debug, Clone)]
pub struct Scrape {
    /// Text of the endpoint.
    pub text: String,
    samples: Vec<Sample>,
}

#[derive(Debug, Clone)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

impl Scrape {
    /// Scrapes an endpoint. Waits until it answers.
    pub fn of(address: SocketAddr) -> Self {
        let (status, text) = until("a scrape", PATIENCE, || get(address, "/metrics").ok());
        assert_eq!(status, 200, "{text}");
        let samples = text.lines().filter(|line| !line.starts_with('#')).map(sample).collect();
        Self { text, samples }
    }

    /// Returns the sum of all series with this name and these labels. `None`: no such series.
    pub fn get(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let fits = |sample: &&Sample| {
            sample.name == name
                && labels.iter().all(|(label, value)| sample.labels.get(*label).map(String::as_str) == Some(value))
        };
        self.samples.iter().filter(fits).map(|sample| sample.value).reduce(|sum, value| sum + value)
    }

    /// Returns the names of all labels of a metric's series.
    pub fn labels(&self, name: &str) -> Vec<&str> {
        let mut labels: Vec<_> = self
            .samples
            .iter()
            .filter(|sample| sample.name == name)
            .flat_map(|sample| sample.labels.keys().map(String::as_str))
            .collect();
        labels.sort_unstable();
        labels.dedup();
        labels
    }
}

/// Parses `name{label="value",…} 1.5`. No value in hostler's metrics contains a quote or a comma.
fn sample(line: &str) -> Sample {
    let (series, value) = line.rsplit_once(' ').unwrap();
    let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
    let labels = labels.trim_end_matches('}').split(',').filter(|label| !label.is_empty()).map(|label| {
        let (name, value) = label.split_once('=').unwrap();
        (name.to_owned(), value.trim_matches('"').to_owned())
    });
    Sample { name: name.to_owned(), labels: labels.collect(), value: value.parse().unwrap() }
}

/// Returns the complaints of `promtool check metrics` about a scrape. Empty: no complaints.
pub fn lint(text: &str) -> String {
    let mut promtool = Command::new(installed("prometheus").join("usr/bin/promtool"));
    let promtool = promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = promtool.stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8(said).unwrap();
    assert!(output.status.success() || !said.is_empty());
    said
}

/// A running server that scrapes one address every half second. Dropping this value kills the server. The end of this process
/// also kills it.
pub struct Prometheus {
    keeper: Child,
    address: SocketAddr,
    _folder: TempDir,
}

impl Prometheus {
    /// Starts a server. Waits until it answers.
    pub fn scraping(target: SocketAddr) -> Self {
        let (folder, address) = (tempfile::tempdir().unwrap(), free_address());
        let config = serde_json::json!({
            "global": { "scrape_interval": "500ms" },
            "scrape_configs": [{ "job_name": "hostler", "static_configs": [{ "targets": [target.to_string()] }] }],
        });
        let file = folder.path().join("prometheus.yml");
        // JSON is valid YAML.
        fs::write(&file, config.to_string()).unwrap();
        let mut command = Command::new(installed("prometheus").join("usr/bin/prometheus"));
        command.arg(format!("--config.file={}", file.display()));
        command.arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()));
        command.arg(format!("--web.listen-address={address}"));
        let mut keeper = keeper(folder.path(), &command);
        until("Prometheus", PATIENCE, || {
            assert!(keeper.try_wait().unwrap().is_none(), "it did not start:\n{}", tail(folder.path()));
            get(address, "/-/ready").ok().filter(|(status, _)| *status == 200)
        });
        Self { keeper, address, _folder: folder }
    }

    /// Returns the current result values of a query.
    pub fn query(&self, query: &str) -> Vec<f64> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let (status, body) = get(self.address, &format!("/api/v1/query?query={encoded}")).unwrap();
        assert_eq!(status, 200, "{query}: {body}");
        let answer: Value = serde_json::from_str(&body).unwrap();
        let values = answer["data"]["result"].as_array().unwrap().iter();
        values.map(|series| series["value"][1].as_str().unwrap().parse().unwrap()).collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // `wait` first closes the keeper's standard input, which ends the keeper.
        let _ = self.keeper.wait();
    }
}
