//! Description of the machine and of the software versions.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::Result;
use crate::contenders::Places;
use crate::messages::order;

/// The machine, the versions, the date, and the cost of the work alone.
#[derive(Debug)]
pub struct Machine {
    cpu: String,
    cores: usize,
    kernel: String,
    date: String,
    /// Load average over one minute, before the measurements.
    load: String,
    versions: Vec<(&'static str, String)>,
    /// CPU time of the work without a queue, in microseconds.
    work: Vec<(&'static str, String)>,
}

impl Machine {
    /// Collects the description.
    pub fn look(places: &Places) -> Result<Self> {
        let info = fs::read_to_string("/proc/cpuinfo")?;
        let cpu = info.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown CPU");
        let body = serde_json::to_string(&order(1))?;
        let mut versions = vec![
            ("hostler", says(&places.hostler, ["--version"])?.replace("hostler ", "")),
            ("rustc", says("rustc", ["--version"])?.split(' ').nth(1).unwrap_or_default().to_owned()),
        ];
        let mut work = vec![("Rust", format!("{:.1}", alone(&body)))];
        if places.peers.is_some() {
            versions.extend(peers(places)?);
            work.extend(theirs(places, &body)?);
        }
        Ok(Self {
            cpu: cpu.trim_start_matches(['\t', ' ', ':']).to_owned(),
            cores: std::thread::available_parallelism()?.get(),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            date: says("date", ["-u", "+%Y-%m-%d %H:%M UTC"])?,
            load: fs::read_to_string("/proc/loadavg")?.split(' ').next().unwrap_or_default().to_owned(),
            versions,
            work,
        })
    }

    /// Adds versions of software.
    pub fn add(&mut self, versions: impl IntoIterator<Item = (&'static str, String)>) {
        self.versions.extend(versions);
    }

    /// Formats the description as a few lines of text.
    pub fn text(&self) -> String {
        let list = |pairs: &[(&str, String)]| {
            pairs.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
        };
        format!(
            "{}, {} cores, Linux {}, {}, load average before it {}.\n{}.\nThe work alone, in CPU µs per message: {}.",
            self.cpu,
            self.cores,
            self.kernel,
            self.date,
            self.load,
            list(&self.versions),
            list(&self.work)
        )
    }

    /// Formats the description as JSON.
    pub fn json(&self) -> Value {
        let object = |pairs: &[(&'static str, String)]| -> Value {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect()
        };
        json!({
            "cpu": self.cpu, "cores": self.cores, "kernel": self.kernel, "date": self.date, "load_before": self.load,
            "versions": object(&self.versions), "work_cpu_us": object(&self.work),
        })
    }
}

/// Returns the versions of the peers.
fn peers(places: &Places) -> Result<Vec<(&'static str, String)>> {
    let package = |folder: &str, name: &str| package(places, folder, name);
    let npm = |name: &str| -> Result<String> {
        let file = places.peer("node/node_modules")?.join(name).join("package.json");
        let package: Value = serde_json::from_str(&fs::read_to_string(file)?)?;
        Ok(package["version"].as_str().unwrap_or_default().to_owned())
    };
    Ok(vec![
        ("Node", says(places.peer("node/node")?, ["--version"])?),
        ("sqs-consumer", npm("sqs-consumer")?),
        ("AWS SDK for JavaScript", npm("@aws-sdk/client-sqs")?),
        ("Python", says(python(places, "boto3")?, ["-V"])?.replace("Python ", "")),
        ("boto3", package("boto3", "boto3")?),
        ("Celery", package("celery", "celery")?),
        ("kombu", package("celery", "kombu")?),
    ])
}

/// Returns the version of a Python package in the folder of a peer.
pub fn package(places: &Places, folder: &str, name: &str) -> Result<String> {
    says(python(places, folder)?, ["-c", &format!("import {name}; print({name}.__version__)")])
}

/// Returns the version of a Python package that has no attribute for it. `name`: the name in the package index.
pub fn distribution(places: &Places, folder: &str, name: &str) -> Result<String> {
    let code = format!("from importlib.metadata import version; print(version({name:?}))");
    says(python(places, folder)?, ["-c", &code])
}

fn python(places: &Places, folder: &str) -> Result<PathBuf> {
    Ok(places.peer(folder)?.join("bin/python"))
}

/// Measures the work in the languages of the peers, in microseconds.
fn theirs(places: &Places, body: &str) -> Result<Vec<(&'static str, String)>> {
    let folder = places.package.join("peers");
    let of = |program: &Path, file: &str| -> Result<String> {
        let said = says(program, [folder.join(file).as_os_str(), OsStr::new(body)])?;
        Ok(format!("{:.1}", said.parse::<f64>()?))
    };
    Ok(vec![
        ("JavaScript", of(&places.peer("node/node")?, "work.mjs")?),
        ("Python", of(&python(places, "boto3")?, "work.py")?),
    ])
}

/// Measures the work in Rust, in microseconds.
fn alone(body: &str) -> f64 {
    const TURNS: u32 = 20_000;
    let begin = std::time::Instant::now();
    for _ in 0..TURNS {
        std::hint::black_box(work::holds(std::hint::black_box(body.as_bytes())));
    }
    begin.elapsed().as_secs_f64() * 1e6 / f64::from(TURNS)
}

fn says<A: AsRef<OsStr>>(program: impl AsRef<OsStr>, arguments: impl IntoIterator<Item = A>) -> Result<String> {
    let program = program.as_ref();
    let output = Command::new(program).args(arguments).output()?;
    if !output.status.success() {
        return Err(format!("{}: {}", program.display(), String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
