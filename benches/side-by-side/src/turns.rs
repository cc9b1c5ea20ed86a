//! A close comparison of a few contenders. All run at the same time, each with a separate server. Their queues are open in turns,
//! for half a second each. Each contender is compared with the first one in the same round, so that changes in the speed of the
//! machine affect both. The result is the median of the ratios.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::arguments::Arguments;
use crate::cell::Setting;
use crate::compare::named;
use crate::contenders::{Contender, Load, Places};
use crate::machine::Machine;
use crate::pair::Pair;
use crate::{Result, process, report, targets};

/// Default contenders: hostler without telemetry twice, and with telemetry. The repeated contender shows the noise.
const USUALLY: [Contender; 4] = [Contender::Component, Contender::Component, Contender::Metrics, Contender::Traces];

/// Time from opening a queue to the start of the measurement.
const LEAD: Duration = Duration::from_millis(300);

/// Longer than any run, so that the servers never start their own measurement.
const NEVER_MS: u64 = 1 << 40;

/// Result of one contender's turn.
#[derive(Clone, Copy, Debug)]
struct Turn {
    rate: f64,
    cpu_us: f64,
}

/// Runs the comparison. Returns true if all measurements succeeded and, if requested, contenders with telemetry met their target.
pub fn run(arguments: &Arguments) -> Result<bool> {
    let places = Places::of(arguments)?;
    let quick = arguments.has("quick");
    let contenders = match arguments.list("only") {
        None => USUALLY.to_vec(),
        Some(names) => names.iter().map(|name| named(name)).collect::<Result<_>>()?,
    };
    let slots = arguments.number("concurrency")?.unwrap_or(64);
    let seconds = arguments.number("seconds")?.unwrap_or(0.5);
    let rounds: usize = arguments.number("rounds")?.unwrap_or(if quick { 2 } else { 100 });
    let machine = Machine::look(&places)?;
    let load = Load { slots, consumers: 1, body_bytes: 0 };
    let setting = |contender| Setting {
        contender,
        load,
        latency_ms: 0,
        warm_up_ms: NEVER_MS,
        window_ms: NEVER_MS,
        idle_ms: 0,
        loud: arguments.has("loud"),
    };
    let start = |&contender| start(&setting(contender), &places).map_err(|error| failed(contender, &*error));
    let mut pairs = contenders.iter().map(start).collect::<Result<Vec<_>>>()?;
    let mut taken = Vec::new();
    for round in 0..rounds {
        let mut turns = vec![None; pairs.len()];
        // The order rotates, so that no contender always follows the same one.
        for at in (0..pairs.len()).map(|step| (step + round) % contenders.len()) {
            if let (Some(pair), Some(slot)) = (pairs.get_mut(at), turns.get_mut(at)) {
                *slot = Some(
                    turn(pair, Duration::from_secs_f64(seconds)).map_err(|error| failed(contenders[at], &*error))?,
                );
            }
        }
        taken.push(turns.into_iter().flatten().collect::<Vec<_>>());
    }
    println!("{}\n\n{}\n", machine.text(), table(&contenders, &taken));
    let rate = |at| middle(&ratios(&taken, at, |turn| turn.rate));
    let held: Vec<_> =
        contenders.iter().enumerate().filter_map(|(at, &contender)| targets::kept(contender, rate(at))).collect();
    held.iter().for_each(|target| println!("{target}"));
    Ok(!arguments.has("check") || held.iter().all(|target| target.held))
}

fn failed(contender: Contender, error: &dyn std::fmt::Display) -> Box<dyn std::error::Error + Send + Sync> {
    format!("{}: {error}", contender.name()).into()
}

/// Starts both processes and closes their queue.
fn start(setting: &Setting, places: &Places) -> Result<Pair> {
    let mut pair = Pair::start(setting, places)?;
    pair.once("take messages", |stats| stats["deleted"].as_u64() > Some(0))?;
    close(&mut pair)?;
    Ok(pair)
}

fn close(pair: &mut Pair) -> Result<()> {
    pair.ask("/close")?;
    pair.once("settle what it held", |stats| stats["in_flight"] == 0).map(|_| ())
}

/// Opens the queue for this time and closes it. Returns the results.
fn turn(pair: &mut Pair, time: Duration) -> Result<Turn> {
    pair.ask("/open")?;
    leave_alone(LEAD);
    let (before, from) = (look(pair)?, Instant::now());
    leave_alone(time);
    let (after, took) = (look(pair)?, from.elapsed().as_secs_f64());
    close(pair)?;
    let messages = after.0 - before.0;
    if messages <= 0.0 {
        return Err("it settled nothing in its turn".into());
    }
    Ok(Turn { rate: messages / took, cpu_us: (after.1 - before.1).as_secs_f64() * 1e6 / messages })
}

/// Returns the number of settled messages and the CPU time so far.
fn look(pair: &Pair) -> Result<(f64, Duration)> {
    let settled = |stats: &Value| stats["deleted"].as_f64().ok_or("the server does not count");
    Ok((settled(&pair.ask("/stats")?)?, process::cpu(pair.pid())?))
}

#[allow(clippy::disallowed_methods, reason = "it is to be left alone for so long")]
fn leave_alone(time: Duration) {
    thread::sleep(time);
}

/// Returns the ratio of one contender's value to the first contender's value, for each round.
fn ratios(taken: &[Vec<Turn>], at: usize, of: impl Fn(&Turn) -> f64) -> Vec<f64> {
    taken.iter().filter_map(|turns| Some(of(turns.get(at)?) / of(turns.first()?))).collect()
}

/// Returns the median. Not a number for an empty list.
fn middle(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * part).round() as usize).copied().unwrap_or(f64::NAN)
}

fn table(contenders: &[Contender], taken: &[Vec<Turn>]) -> String {
    const COLUMNS: [&str; 7] = [
        "contender",
        "messages/s",
        "of the first",
        "half of the rounds",
        "CPU µs/message",
        "of the first",
        "half of the rounds",
    ];
    const WIDTHS: [usize; 7] = [31, 10, 12, 18, 14, 12, 18];
    let lines = contenders.iter().enumerate().map(|(at, contender)| {
        let mut cells = vec![contender.title().to_owned()];
        for (of, digits) in [((|turn| turn.rate) as fn(&Turn) -> f64, 0), (|turn| turn.cpu_us, 1)] {
            let all: Vec<_> = taken.iter().filter_map(|turns| turns.get(at)).map(of).collect();
            let ratios = ratios(taken, at, of);
            cells.push(format!("{:.digits$}", middle(&all)));
            cells.push(format!("{:.3}", middle(&ratios)));
            cells.push(format!("{:.2} to {:.2}", quantile(&ratios, 0.25), quantile(&ratios, 0.75)));
        }
        report::line(&cells, &WIDTHS)
    });
    let lines: Vec<_> = lines.collect();
    format!("{} rounds\n{}\n{}", taken.len(), report::head(&COLUMNS, &WIDTHS), lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_compared_with_the_first_of_its_own_round() {
        let round =
            |first: f64, second: f64| vec![Turn { rate: first, cpu_us: 1.0 }, Turn { rate: second, cpu_us: 2.0 }];
        // The machine is twice as fast in the second round, and has other load in the third.
        let taken = [round(100.0, 90.0), round(200.0, 180.0), round(100.0, 10.0)];
        assert_eq!(middle(&ratios(&taken, 1, |turn| turn.rate)), 0.9);
        assert_eq!(middle(&ratios(&taken, 1, |turn| turn.cpu_us)), 2.0);
        assert!(middle(&ratios(&[], 1, |turn| turn.rate)).is_nan());
    }
}
