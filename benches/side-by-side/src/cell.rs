//! One measurement: a contender with one concurrency on a server with one latency.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::contenders::{Contender, Load, Places};
use crate::pair::Pair;
use crate::{Result, process};

/// Maximum rate of messages per second at which latency is measured. A slow contender gets half of its throughput instead.
const RATE: f64 = 200.0;

/// Parameters of a measurement.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Contender to measure.
    pub contender: Contender,
    /// Load of the contender.
    pub load: Load,
    /// Minimum duration of every call in milliseconds.
    pub latency_ms: u64,
    /// Time before the measurement in milliseconds.
    pub warm_up_ms: u64,
    /// Duration of the throughput measurement and of the latency measurement, in milliseconds each.
    pub window_ms: u64,
    /// Duration of the idle measurement in milliseconds.
    pub idle_ms: u64,
    /// Set if the output of the contender is shown.
    pub loud: bool,
}

/// Results of a measurement. Values are per message settled during the measurement, unless stated otherwise.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Parameters of the measurement.
    pub setting: Setting,
    /// Number of messages.
    pub messages: u64,
    /// Number of messages settled per second.
    pub rate: f64,
    /// CPU time in microseconds.
    pub cpu_us: f64,
    /// CPU time in microseconds, counted from the start of the process, including the start.
    pub cpu_us_from_start: f64,
    /// Number of calls.
    pub calls: f64,
    /// Number of calls of each kind.
    pub calls_by_kind: Value,
    /// Rate at which latency was measured, in messages per second.
    pub fed_rate: f64,
    /// Median latency from send to settlement in milliseconds, at this rate.
    pub p50_ms: f64,
    /// The 99th percentile of the latency in milliseconds.
    pub p99_ms: f64,
    /// CPU time while idle, in milliseconds per second.
    pub idle_cpu_ms: f64,
    /// Peak memory in bytes, summed over all processes.
    pub peak_bytes: u64,
    /// Time from the start of the process to its first receive, in seconds.
    pub start_seconds: f64,
}

impl Measured {
    /// Returns all results as JSON.
    pub fn json(&self) -> Value {
        json!({
            "contender": self.setting.contender.name(), "concurrency": self.setting.load.slots,
            "consumers": self.setting.load.consumers, "body_bytes": self.setting.load.body_bytes,
            "latency_ms": self.setting.latency_ms, "messages": self.messages, "messages_per_second": self.rate,
            "cpu_us_per_message": self.cpu_us, "cpu_us_per_message_from_start": self.cpu_us_from_start,
            "calls_per_message": self.calls, "calls_by_kind": self.calls_by_kind,
            "fed_per_second": self.fed_rate, "p50_ms": self.p50_ms, "p99_ms": self.p99_ms,
            "idle_cpu_ms_per_second": self.idle_cpu_ms, "peak_rss_bytes": self.peak_bytes, "start_seconds": self.start_seconds,
        })
    }
}

/// Runs the measurement.
pub fn measure(setting: Setting, places: &Places) -> Result<Measured> {
    let mut pair = Pair::start(&setting, places)?;
    let stats = pair.once("take messages", |stats| stats["samples"][1].is_object())?;
    let [from, to] = [&stats["samples"][0], &stats["samples"][1]];
    let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
    let grown = |what: &dyn Fn(&Value) -> f64| what(to) - what(from);
    let messages = grown(&|sample| number(&sample["deleted"]));
    let calls_of = |sample: &Value| -> Vec<(String, f64)> {
        let kinds = sample["calls"].as_object().into_iter().flatten();
        kinds.map(|(kind, count)| (kind.clone(), number(count))).collect()
    };
    let calls: Vec<_> =
        calls_of(to).into_iter().zip(calls_of(from)).map(|((kind, to), (_, from))| (kind, to - from)).collect();
    let rate = messages / grown(&|sample| number(&sample["at_seconds"]));

    pair.once("settle what it held", |stats| stats["in_flight"] == 0 && stats["ready"] == false)?;
    let fed_rate = RATE.min(rate / 2.0);
    let count = (fed_rate * setting.window_ms as f64 / 1000.0).ceil().max(1.0);
    pair.ask(&format!("/feed?milliseconds={}&count={count}", setting.window_ms))?;
    let fed = pair.once("settle what was fed", |stats| number(&stats["settled"]) >= count)?;
    let idle_cpu_ms = idle(pair.pid(), Duration::from_millis(setting.idle_ms))?;
    Ok(Measured {
        setting,
        messages: messages as u64,
        rate,
        cpu_us: grown(&|sample| number(&sample["cpu_seconds"])) * 1e6 / messages,
        cpu_us_from_start: number(&to["cpu_seconds"]) * 1e6 / number(&to["deleted"]),
        calls: calls.iter().map(|(_, count)| count).sum::<f64>() / messages,
        calls_by_kind: calls
            .iter()
            .filter(|(_, count)| *count > 0.0)
            .map(|(kind, count)| (kind.clone(), json!(count / messages)))
            .collect(),
        fed_rate,
        p50_ms: number(&fed["p50_ms"]),
        p99_ms: number(&fed["p99_ms"]),
        idle_cpu_ms,
        peak_bytes: process::peak(pair.pid()),
        start_seconds: number(&fed["first_receive_seconds"]),
    })
}

/// Returns the CPU time of an idle process, in milliseconds per second.
fn idle(pid: i32, time: Duration) -> Result<f64> {
    #[allow(clippy::disallowed_methods, reason = "it is to be left alone for so long")]
    let leave_alone = || thread::sleep(time);
    // At first, the process still does work from before.
    leave_alone();
    let (from, begin) = (process::cpu(pid)?, Instant::now());
    leave_alone();
    Ok((process::cpu(pid)? - from).as_secs_f64() * 1e3 / begin.elapsed().as_secs_f64())
}
