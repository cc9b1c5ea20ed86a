//! One measurement: a contender with one concurrency against a server with one latency.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::contenders::{Contender, Load, Places};
use crate::pair::Pair;
use crate::{Result, process};

/// The rate of messages at which latency is measured, per second, where that is not half of what the contender can take.
const RATE: f64 = 200.0;

/// What is measured how.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Who.
    pub contender: Contender,
    /// What it has to do.
    pub load: Load,
    /// What every call takes at least, in milliseconds.
    pub latency_ms: u64,
    /// How long before counting, in milliseconds.
    pub warm_up_ms: u64,
    /// How long counting, and how long feeding, in milliseconds.
    pub window_ms: u64,
    /// How long it is watched while there is nothing to do, in milliseconds.
    pub idle_ms: u64,
    /// Whether to show what the contender says.
    pub loud: bool,
}

/// What came of it. Everything is per message that was settled while counting, except where it says otherwise.
#[derive(Debug, Clone)]
pub struct Measured {
    /// What was measured.
    pub setting: Setting,
    /// Messages.
    pub messages: u64,
    /// Messages settled per second.
    pub rate: f64,
    /// CPU time in microseconds.
    pub cpu_us: f64,
    /// The same from the start of the process, its start included.
    pub cpu_us_from_start: f64,
    /// Calls.
    pub calls: f64,
    /// Calls of each kind.
    pub calls_by_kind: Value,
    /// At which rate latency was measured, in messages per second.
    pub fed_rate: f64,
    /// From send to settle, in milliseconds, of messages that came at that rate.
    pub p50_ms: f64,
    /// The same for the slowest hundredth.
    pub p99_ms: f64,
    /// CPU time while there is nothing to do, in milliseconds per second.
    pub idle_cpu_ms: f64,
    /// The most memory it had, in bytes, all its processes added up.
    pub peak_bytes: u64,
    /// From its start to its first request for messages, in seconds.
    pub start_seconds: f64,
}

impl Measured {
    /// All of it.
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

/// Measures.
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

/// The CPU time that a process takes while there is nothing to do, in milliseconds per second.
fn idle(pid: i32, time: Duration) -> Result<f64> {
    #[allow(clippy::disallowed_methods, reason = "it is to be left alone for so long")]
    let leave_alone = || thread::sleep(time);
    // At first it still tidies up.
    leave_alone();
    let (from, begin) = (process::cpu(pid)?, Instant::now());
    leave_alone();
    Ok((process::cpu(pid)? - from).as_secs_f64() * 1e3 / begin.elapsed().as_secs_f64())
}
