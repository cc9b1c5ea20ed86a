//! Plot: four panels above one time axis, with marks for faults and restarts. Output is an SVG for light and dark pages.

use std::fmt::{Display, Write as _};

use crate::clock::Clock;
use crate::faults::{Event, Kind};
use crate::sample::Sample;
use crate::world::lock;
use crate::{Finished, Result};

/// Sizes in pixels. Left and right edge of the panels.
const LEFT: f64 = 72.0;
const RIGHT: f64 = 984.0;
const WIDTH: f64 = 1000.0;
/// Position and height of the lanes of marks, one lane per driver.
const LANES: f64 = 66.0;
const LANE: f64 = 18.0;
/// Height of a panel, and of the title above it.
const PANEL: f64 = 120.0;
const TITLE: f64 = 30.0;

/// Maximum number of points in a line. More points could not be distinguished.
const POINTS: usize = 500;

/// Plain CSS rules, because not every viewer supports CSS variables.
const STYLE: &str = "
  text { font: 12px system-ui, sans-serif; fill: #1f2328; }
  .soft { fill: #6a737d; font-size: 11px; }
  .mark { font-size: 9px; font-weight: 600; text-anchor: middle; }
  .page { fill: #ffffff; } .rule { stroke: #e1e4e8; }
  .line { fill: none; stroke-width: 1.4; stroke-linejoin: round; }
  .thin { stroke-width: 1; stroke-dasharray: 2 2; stroke-opacity: .8; }
  .fault { stroke-opacity: .13; } .restart { stroke-opacity: .7; stroke-dasharray: 3 3; }
  .s0 { stroke: #1f6feb; } .f0 { fill: #1f6feb; } .s1 { stroke: #bc4c00; } .f1 { fill: #bc4c00; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .soft { fill: #8b949e; }
    .page { fill: #0d1117; } .rule { stroke: #2b3138; }
    .s0 { stroke: #58a6ff; } .f0 { fill: #58a6ff; } .s1 { stroke: #f0883e; } .f1 { fill: #f0883e; }
  }
";

/// Value of a line in a sample. `Join` combines the values of several samples into one point.
type Value = fn(&Sample) -> Option<f64>;
type Join = fn(&[f64]) -> f64;

/// A panel: its title, a flag for a logarithmic scale, and its lines, main line first.
struct Panel(&'static str, bool, &'static [(Value, Join)]);

const PANELS: [Panel; 4] = [
    Panel("settled per second", false, &[(|sample| Some(sample.rate), mean)]),
    Panel("messages in flight", false, &[(|sample| Some(sample.in_flight as f64), most)]),
    Panel(
        "memory, MiB: RSS, and PSS dotted",
        false,
        &[
            (|sample| Some(sample.process?.rss as f64 / f64::from(1 << 20)), mean),
            (|sample| Some(sample.process?.pss as f64 / f64::from(1 << 20)), mean),
        ],
    ),
    Panel(
        "latency of `tiny`, ms: p50, and p99 dotted",
        true,
        &[(|sample| Some(sample.latency?.0), mean), (|sample| Some(sample.latency?.1), most)],
    ),
];

/// Conversion of values to pixels.
struct Scale {
    seconds: f64,
    top: f64,
    most: f64,
    logarithmic: bool,
}

impl Scale {
    fn x(&self, at: f64) -> f64 {
        LEFT + (RIGHT - LEFT) * (at / self.seconds).clamp(0.0, 1.0)
    }

    fn y(&self, value: f64) -> f64 {
        let part = match self.logarithmic {
            true => value.max(1.0).log10() / self.most.log10(),
            false => value / self.most,
        };
        self.top + PANEL * (1.0 - part.clamp(0.0, 1.0))
    }
}

/// Plots the runs of all drivers.
pub fn plot(clock: Clock, finished: &[Finished]) -> Result<String> {
    let panels = LANES + LANE * finished.len() as f64;
    let bottom = panels + (TITLE + PANEL) * PANELS.len() as f64;
    let (height, minutes) = (bottom + 44.0, clock.length / 60.0);
    let title =
        format!("Soak of hostler: throughput, messages in flight, memory and latency over {minutes:.0} minutes");
    let mut text = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}">
<style>{STYLE}</style>
<rect width="{WIDTH}" height="{height}" class="page"/>
"#
    );
    legend(&mut text, finished)?;
    for (at, panel) in PANELS.iter().enumerate() {
        let top = panels + TITLE + (TITLE + PANEL) * at as f64;
        draw(&mut text, panel, top, clock, finished)?;
    }
    let scale = Scale { seconds: clock.length, top: 0.0, most: 1.0, logarithmic: false };
    for (at, run) in finished.iter().enumerate() {
        let lane = LANES + LANE * at as f64;
        label(&mut text, LEFT - 6.0, lane, "end", run.world.driver.name())?;
        for event in &*lock(&run.world.events)? {
            mark(&mut text, event, &scale, (at, lane), (panels + 8.0, bottom))?;
        }
    }
    let step = [0.25, 1.0, 2.0, 5.0, 10.0].into_iter().find(|step| minutes / step <= 13.0).unwrap_or(60.0);
    for tick in 0..=(minutes / step) as usize {
        let minute = tick as f64 * step;
        label(&mut text, scale.x(minute * 60.0), bottom + 16.0, "middle", minute)?;
    }
    label(&mut text, RIGHT, bottom + 34.0, "end", "minutes")?;
    text.push_str("</svg>\n");
    Ok(text)
}

/// Writes a label. `anchor` is the end of the label at `x`.
fn label(text: &mut String, x: f64, y: f64, anchor: &str, word: impl Display) -> Result<()> {
    writeln!(text, r#"<text class="soft" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{word}</text>"#)?;
    Ok(())
}

/// Writes the legend: colours of drivers and letters of faults.
fn legend(text: &mut String, finished: &[Finished]) -> Result<()> {
    let mut x = LEFT;
    for (at, run) in finished.iter().enumerate() {
        let name = run.world.driver.name();
        writeln!(text, r#"<rect class="f{at}" x="{x}" y="13" width="18" height="4" rx="2"/>"#)?;
        writeln!(text, r#"<text x="{}" y="20">{name}</text>"#, x + 24.0)?;
        x += 110.0;
    }
    let letters = Kind::ALL.map(|kind| format!("{} {}", letter(kind), kind.name()));
    label(text, LEFT, 40.0, "start", letters.join(" · "))
}

fn letter(kind: Kind) -> char {
    match kind {
        Kind::Restart => 'R',
        Kind::Kill => 'K',
        Kind::Stop => 'S',
        Kind::Lock => 'L',
        Kind::Cut => 'C',
        Kind::Freeze => 'F',
    }
}

/// Marks a fault by a letter in the driver's lane, and by a band through all panels with the width of its duration.
fn mark(
    text: &mut String,
    event: &Event,
    scale: &Scale,
    (at, lane): (usize, f64),
    (top, bottom): (f64, f64),
) -> Result<()> {
    let (from, to) = (scale.x(event.start), scale.x(event.end));
    let (class, width, middle) = match event.kind.restarts() {
        true => ("restart", 1.0, from),
        false => ("fault", (to - from).max(1.0), (from + to) / 2.0),
    };
    writeln!(text, r#"<text class="mark f{at}" x="{from:.1}" y="{lane}">{}</text>"#, letter(event.kind))?;
    let line = format!("M{middle:.1} {top}V{bottom}");
    writeln!(text, r#"<path class="{class} s{at}" stroke-width="{width:.1}" d="{line}"/>"#)?;
    Ok(())
}

fn draw(
    text: &mut String,
    Panel(title, logarithmic, values): &Panel,
    top: f64,
    clock: Clock,
    finished: &[Finished],
) -> Result<()> {
    let mut lines = Vec::new();
    for (at, run) in finished.iter().enumerate() {
        let samples = lock(&run.world.samples)?;
        for (which, (value, join)) in values.iter().enumerate() {
            lines.push((at, which, points(&samples, *value, *join, clock.length)));
        }
    }
    let highest =
        lines.iter().flat_map(|(.., points)| points.iter().flatten()).map(|(_, value)| *value).fold(1.0, f64::max);
    let most = if *logarithmic { 10_f64.powf(highest.log10().ceil()).max(10.0) } else { round_up(highest) };
    let scale = Scale { seconds: clock.length, top, most, logarithmic: *logarithmic };
    writeln!(text, "<text x=\"{LEFT}\" y=\"{:.1}\">{title}</text>", top - 6.0)?;
    let ticks: Vec<f64> = match logarithmic {
        true => (0..=most.log10() as i32).map(|power| 10_f64.powi(power)).collect(),
        false => [0.0, 0.5, 1.0].map(|part| part * most).into(),
    };
    for tick in ticks {
        let y = scale.y(tick);
        writeln!(text, r#"<path class="rule" d="M{LEFT} {y:.1}H{RIGHT}"/>"#)?;
        label(text, LEFT - 6.0, y + 4.0, "end", tick)?;
    }
    for (at, which, points) in lines {
        let class = if which == 0 { "line" } else { "line thin" };
        writeln!(text, "<path class=\"{class} s{at}\" d=\"{}\"/>", path(&points, &scale)?)?;
    }
    Ok(())
}

/// Returns one value for each part of the run that has values.
fn points(samples: &[Sample], value: Value, join: Join, length: f64) -> Vec<Option<(f64, f64)>> {
    let count = POINTS.min(length as usize / 3).max(1);
    let width = length / count as f64;
    let mut parts = vec![Vec::new(); count];
    for sample in samples {
        if let (Some(part), Some(value)) = (parts.get_mut((sample.at / width) as usize), value(sample)) {
            part.push(value);
        }
    }
    let middle = |at: usize| (at as f64 + 0.5) * width;
    parts.iter().enumerate().map(|(at, part)| (!part.is_empty()).then(|| (middle(at), join(part)))).collect()
}

fn path(points: &[Option<(f64, f64)>], scale: &Scale) -> Result<String> {
    let (mut text, mut drawing) = (String::new(), false);
    for point in points {
        if let Some((at, value)) = point {
            let command = if drawing { 'L' } else { 'M' };
            write!(text, "{command}{:.1} {:.1}", scale.x(*at), scale.y(*value))?;
        }
        drawing = point.is_some();
    }
    Ok(text)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn most(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

/// Returns the next number of the form 1, 2, 4, 6 or 10 times a power of ten.
fn round_up(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    [1.0, 2.0, 4.0, 6.0, 10.0].map(|step| step * power).into_iter().find(|round| *round >= value).unwrap_or(value)
}
