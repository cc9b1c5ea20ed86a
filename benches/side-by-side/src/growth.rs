//! Growth of hostler's cost with the number of slots, the size of bodies, and the number of consumers in one process. One
//! dimension grows at a time, and the others keep a middle value.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::arguments::Arguments;
use crate::cell::{Measured, Setting, measure};
use crate::contenders::{Contender, Load, Places};
use crate::machine::Machine;
use crate::{Result, compare, report};

/// Middle values of the other dimensions. With many consumers, each has fewer slots, because hostler refuses more sandboxes than
/// fit into the machine's memory.
const MIDDLE: Load = Load { slots: 64, consumers: 1, body_bytes: 200 };

/// The dimension that grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Dimension {
    Slots,
    Bodies,
    Consumers,
}

use Dimension::{Bodies, Consumers, Slots};

impl Dimension {
    const ALL: [Self; 3] = [Slots, Bodies, Consumers];

    /// Returns the name on the command line.
    fn name(self) -> &'static str {
        match self {
            Slots => "slots",
            Bodies => "bodies",
            Consumers => "consumers",
        }
    }

    /// Returns the heading of the table, with the values of the other dimensions.
    fn heading(self) -> &'static str {
        match self {
            Slots => "Slots, with one consumer and bodies of 200 bytes",
            Bodies => "Bodies, with one consumer of 64 slots",
            Consumers => "Consumers in one process, each of 10 slots with a queue of its own, with bodies of 200 bytes",
        }
    }

    fn loads(self) -> Vec<Load> {
        let (values, load): (&[usize], fn(usize) -> Load) = match self {
            Slots => (&[1, 4, 16, 64, 256], |slots| Load { slots, ..MIDDLE }),
            Bodies => (&[200, 1_000, 10_000, 100_000, 1_000_000], |body_bytes| Load { body_bytes, ..MIDDLE }),
            Consumers => (&[1, 10, 50], |consumers| Load { slots: 10, consumers, ..MIDDLE }),
        };
        values.iter().map(|&value| load(value)).collect()
    }

    /// Returns the value of this dimension in a load, for reports.
    fn of(self, load: Load) -> String {
        match (self, load.body_bytes) {
            (Slots, _) => load.slots.to_string(),
            (Consumers, _) => load.consumers.to_string(),
            (Bodies, bytes @ ..1_000) => format!("{bytes} B"),
            (Bodies, bytes @ ..1_000_000) => format!("{} KB", bytes / 1_000),
            (Bodies, bytes) => format!("{} MB", bytes / 1_000_000),
        }
    }
}

/// Runs all measurements. Returns true, or an error if a measurement failed.
pub fn run(arguments: &Arguments) -> Result<bool> {
    let places = Places::of(arguments)?;
    let quick = arguments.has("quick");
    let milliseconds = |key: &str, full: f64, quickly: f64| -> Result<u64> {
        Ok((arguments.number(key)?.unwrap_or(if quick { quickly } else { full }) * 1000.0) as u64)
    };
    let (warm_up_ms, window_ms) = (milliseconds("warm-up", 3.0, 0.3)?, milliseconds("seconds", 4.0, 0.5)?);
    let rounds: usize = arguments.number("rounds")?.unwrap_or(if quick { 1 } else { 3 });
    let dimensions = dimensions(arguments.list("only"))?;
    let machine = Machine::look(&places)?;
    let wanted = wanted(&dimensions);
    let mut measured = vec![Vec::new(); wanted.len()];
    // Measures all settings in each round, so that other load of the machine affects all of them.
    for round in 1..=rounds {
        for ((contender, load), cells) in wanted.iter().zip(&mut measured) {
            let (contender, load, loud) = (*contender, *load, arguments.has("loud"));
            let setting = Setting { contender, load, latency_ms: 0, warm_up_ms, window_ms, idle_ms: window_ms, loud };
            let cell =
                measure(setting, &places).map_err(|error| format!("{} with {load:?}: {error}", contender.name()))?;
            println!("{round}/{rounds}  {:<18} {load:?}  {:.1} µs", contender.name(), cell.cpu_us);
            cells.push(cell);
        }
    }
    let typical = measured.into_iter().map(compare::middle).collect::<Result<Vec<_>>>()?;
    let text = markdown(&dimensions, &typical, &machine);
    println!("\n{text}");
    if let Some(folder) = arguments.text("out").as_deref().map(Path::new) {
        fs::create_dir_all(folder)?;
        let measurements: Vec<Value> = typical.iter().map(Measured::json).collect();
        let all = json!({ "machine": machine.json(), "measurements": measurements });
        fs::write(folder.join("growth.json"), serde_json::to_string_pretty(&all)? + "\n")?;
        fs::write(folder.join("growth.md"), &text)?;
    }
    if let Some(docs) = arguments.text("docs") {
        report::put(Path::new(&docs), "growth", &text)?;
    }
    Ok(true)
}

fn dimensions(named: Option<Vec<String>>) -> Result<Vec<Dimension>> {
    let Some(names) = named else { return Ok(Dimension::ALL.to_vec()) };
    let known = |name: &String| Dimension::ALL.into_iter().find(|dimension| dimension.name() == name);
    let named = names.iter().map(|name| known(name).ok_or_else(|| format!("--only {name}: slots, bodies, consumers")));
    Ok(named.collect::<std::result::Result<_, _>>()?)
}

/// Returns the settings to measure, each once, although the middle is in every table. For growing bodies, also measures the bare
/// loop, which shows the part of the cost that is not hostler's.
fn wanted(dimensions: &[Dimension]) -> Vec<(Contender, Load)> {
    let mut wanted = Vec::new();
    for dimension in dimensions {
        for load in dimension.loads() {
            let contenders = if *dimension == Bodies {
                vec![Contender::Component, Contender::Bare]
            } else {
                vec![Contender::Component]
            };
            for one in contenders.into_iter().map(|contender| (contender, load)) {
                if !wanted.contains(&one) {
                    wanted.push(one);
                }
            }
        }
    }
    wanted
}

const COLUMNS: [&str; 7] =
    ["", "messages/s", "CPU µs/message", "calls/message", "p50 ms", "peak RSS MiB", "idle CPU ms/s"];
const WIDTHS: [usize; 7] = [9, 10, 14, 13, 7, 12, 13];
/// Additional column in the table of bodies.
const BESIDE: (&str, usize) = ("bare loop CPU µs", 16);

fn markdown(dimensions: &[Dimension], measured: &[Measured], machine: &Machine) -> String {
    let mut text = machine.text() + "\n";
    for &dimension in dimensions {
        let _ = write!(text, "\n{}:\n\n{}", dimension.heading(), table(dimension, measured));
    }
    text
}

fn table(dimension: Dimension, measured: &[Measured]) -> String {
    let find = |contender, load| {
        measured.iter().find(move |cell| cell.setting.contender == contender && cell.setting.load == load)
    };
    let (mut columns, mut widths) = (COLUMNS.to_vec(), WIDTHS.to_vec());
    if let Some(first) = columns.first_mut() {
        *first = dimension.name();
    }
    if dimension == Bodies {
        columns.push(BESIDE.0);
        widths.push(BESIDE.1);
    }
    let mut text = report::head(&columns, &widths) + "\n";
    for load in dimension.loads() {
        let Some(cell) = find(Contender::Component, load) else { continue };
        let mut cells = vec![
            dimension.of(load),
            format!("{:.0}", cell.rate),
            format!("{:.1}", cell.cpu_us),
            format!("{:.2}", cell.calls),
            format!("{:.1}", cell.p50_ms),
            format!("{:.0}", cell.peak_bytes as f64 / f64::from(1 << 20)),
            format!("{:.1}", cell.idle_cpu_ms),
        ];
        if let Some(bare) = find(Contender::Bare, load) {
            cells.push(format!("{:.1}", bare.cpu_us));
        }
        let _ = writeln!(text, "{}", report::line(&cells, &widths));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn one_thing_grows_at_a_time_and_the_middle_is_measured_once() {
        let wanted = wanted(&Dimension::ALL);
        let middles = wanted.iter().filter(|one| **one == (Contender::Component, MIDDLE)).count();
        assert_eq!((wanted.len(), middles), (17, 1));
        for dimension in Dimension::ALL {
            let loads = dimension.loads();
            let values = |of: fn(&Load) -> usize| loads.iter().map(of).collect::<HashSet<_>>().len();
            let grown = [values(|load| load.slots), values(|load| load.body_bytes), values(|load| load.consumers)];
            assert_eq!(grown.iter().filter(|values| **values > 1).count(), 1, "{dimension:?}");
        }
    }

    #[test]
    fn sizes_read_well_and_unknown_dimensions_are_named() {
        let sizes: Vec<_> = Bodies.loads().into_iter().map(|load| Bodies.of(load)).collect();
        assert_eq!(sizes, ["200 B", "1 KB", "10 KB", "100 KB", "1 MB"]);
        assert_eq!(dimensions(Some(vec!["slots".into()])).unwrap(), [Slots]);
        assert!(dimensions(Some(vec!["slot".into()])).unwrap_err().to_string().contains("slots, bodies, consumers"));
    }
}
